"""Read segments that anyone may have written: bounded, checked, and left out by name if they are wrong."""

import io
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from ...errors import Corrupt, FormatTooNew, ObjectNotFound
from ...json_text import parse_json
from ...modalities.fields import is_machine_fault
from ...storage import Store
from ...storage.requests import retry_corrupt
from ...storage.store import ObjectInfo
from ...storage.threads import DaemonPool
from ..tables.parquet import UNREADABLE, check_schema_version
from ..tables.parquet_ranges import TAIL_BYTES, RangeFile, footer_nbytes
from .segments import (
    MAX_SEGMENT_PARTS,
    MAX_SEGMENT_ROWS,
    SegmentKind,
    SegmentPart,
    StoredSegment,
    VersionPart,
    content_digest,
    list_segments,
    segment_bytes,
    segment_name,
    transaction,
    with_rows,
)

_MOST_FOOTER_BYTES = 2**25
_MOST_PART_ROWS = 2**31
_ROW_BYTES = 256
"""Most uncompressed bytes of part and row, per row; part ids have at most 150."""
_MOST_TEXT_BYTES = 2**20
_READS_AT_ONCE = 16
_AGAIN = "run penstock index again, and penstock gc sweep deletes it"


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentCoverage:
    """Segments that have parts of a version."""

    segments: dict[str, tuple[SegmentPart, ...]]
    """Path of a segment to read -> all of its parts, the largest segment first."""
    missing: tuple[VersionPart, ...]
    """Parts of the version without a segment, in its order."""
    damaged: dict[str, str]
    """Path of a segment that is left out -> what is wrong with it."""


def coverage(
    store: Store,
    folder: str,
    kind: SegmentKind,
    parts: Sequence[VersionPart],
    without: Collection[str] = (),
) -> SegmentCoverage:
    """Return the segments that have these parts. without: paths of segments to leave out.

    Costs a listing, and the footer of each segment of the parts' transactions, sixteen at a time. Others are read only
    if parts are missing.
    """
    uncovered = {part.own: part for part in parts}
    transactions = {transaction(part.own.source) for part in parts}
    own: list[ObjectInfo] = []
    others: list[ObjectInfo] = []
    for info in list_segments(store, folder, kind):
        if info.key in without:
            continue
        name = segment_name(info.key, kind)
        is_own = name is not None and name.txn in transactions
        if is_own:
            own.append(info)
        else:
            others.append(info)

    chosen: dict[str, tuple[SegmentPart, ...]] = {}
    damaged: dict[str, str] = {}
    for infos in (own, others):
        if not uncovered:
            break
        for path, stated in _readable_parts(
            store,
            infos,
            kind,
            damaged,
        ):
            useful = [part for part in stated if part in uncovered]
            if not useful:
                continue
            chosen[path] = stated
            for part in useful:
                del uncovered[part]
    return SegmentCoverage(segments=chosen, missing=tuple(uncovered.values()), damaged=damaged)


def check_coverage(
    store: Store,
    folder: str,
    kind: SegmentKind,
    parts: Sequence[VersionPart],
) -> SegmentCoverage:
    """Return the segments that have these parts, after each was read whole and agreed with its digest.

    Costs the bytes of the segments: `coverage` does not find damage outside the footers.
    A damaged segment is left out and the choice repeated: other segments may have its parts.
    """
    damaged: dict[str, str] = {}
    checked: set[str] = set()
    while True:
        covered = coverage(
            store,
            folder,
            kind,
            parts,
            damaged,
        )
        damaged |= covered.damaged
        all_read = True
        for path in covered.segments.keys() - checked:
            try:
                read_segment(store, path, kind)
                checked.add(path)
            except (Corrupt, FormatTooNew, ObjectNotFound) as error:
                damaged[path] = str(error)
                all_read = False
        if all_read:
            return SegmentCoverage(
                segments=covered.segments,
                missing=covered.missing,
                damaged=damaged,
            )


def _readable_parts(
    store: Store,
    infos: Sequence[ObjectInfo],
    kind: SegmentKind,
    damaged: dict[str, str],
) -> Iterator[tuple[str, tuple[SegmentPart, ...]]]:
    """Yield (path, parts) of each readable segment, in order; add the others to `damaged`."""

    def read(info: ObjectInfo) -> tuple[SegmentPart, ...] | str:
        try:
            return read_segment_parts(store, info, kind)
        except ObjectNotFound:  # a collector deleted it meanwhile
            return ()
        except (Corrupt, FormatTooNew) as error:
            return str(error)

    with DaemonPool(_READS_AT_ONCE, "penstock-segments") as pool:
        for info, parts in zip(infos, pool.map(read, infos), strict=True):
            if isinstance(parts, str):
                damaged[info.key] = parts
            else:
                yield info.key, parts


def read_segment_parts(store: Store, info: ObjectInfo, kind: SegmentKind) -> tuple[SegmentPart, ...]:
    """Return the parts that a segment's footer states. Costs a range, or two. Raises: Corrupt; FormatTooNew."""
    first = max(0, info.nbytes - TAIL_BYTES)
    tail = store.get_range(info.key, first, info.nbytes - first).data
    nbytes = 0
    if len(tail) >= 8:
        nbytes = footer_nbytes(tail)
    if not 8 < nbytes <= min(info.nbytes, _MOST_FOOTER_BYTES):
        raise Corrupt(f"{info.key} has no footer of a Parquet file; {_AGAIN}")
    if nbytes > len(tail):
        first = info.nbytes - nbytes
        tail = store.get_range(info.key, first, nbytes).data
    range_file = RangeFile(info.nbytes, first, tail)
    with _corrupt_if_unreadable(info.key):
        metadata = pq.read_metadata(range_file)
        return _check_footer(metadata, info.key, kind).parts


def read_segment(store: Store, path: str, kind: SegmentKind) -> StoredSegment:
    """Return a segment, checked against its digest. Reads it whole. Raises: Corrupt; FormatTooNew; ObjectNotFound."""

    def read() -> StoredSegment:
        stored = store.get(path)
        return parse_segment(stored.data, path, kind)

    return retry_corrupt(read)


def _check_n_rows(parts: Sequence[SegmentPart], n_rows: int, path: str) -> None:
    """Raise Corrupt unless a segment's columns have as many rows as its footer states."""
    n_stated = sum(part.n_rows for part in parts)
    if n_stated != n_rows:
        raise Corrupt(
            f"{path} has {n_rows} rows, its footer states {n_stated}; {_AGAIN}",
            what="rows",
            where=path,
            given=n_rows,
            accepted=n_stated,
        )


def parse_segment(data: bytes, path: str, kind: SegmentKind) -> StoredSegment:
    """Return the segment in a file. Raises: Corrupt; FormatTooNew."""
    with _corrupt_if_unreadable(path):
        metadata = pq.read_metadata(io.BytesIO(data))
        footer = _check_footer(metadata, path, kind)
        # Texts are read as dictionaries: a small file can repeat a large one for each row.
        text_columns = [field.name for field in kind.columns if pa.types.is_string(field.type)]
        reader = pq.ParquetFile(
            io.BytesIO(data),
            metadata=metadata,
            page_checksum_verification=True,
            pre_buffer=False,
            read_dictionary=["part", *text_columns],
        )
        table = reader.read(columns=["part", "row", *kind.columns.names], use_threads=False)
        for name in text_columns:
            _check_texts(
                table[name],
                path,
                kind,
            )
        table = table.cast(pa.schema([("part", pa.string()), ("row", pa.int64()), *kind.columns]))
        table.validate(full=True)
    values = table.select(kind.columns.names).replace_schema_metadata(None).combine_chunks()
    _check_n_rows(footer.parts, len(values), path)
    rows = with_rows(footer.parts, values)
    for name in ("part", "row"):
        if not table[name].combine_chunks().equals(rows[name].combine_chunks()):
            raise Corrupt(
                f"{path} has other values of {name!r} than its footer states; {_AGAIN}",
                what=name,
                where=path,
                given="other values than the footer's",
            )
    digest = content_digest(
        kind,
        footer.parts,
        values,
    )
    if digest != footer.sha256:
        raise Corrupt(
            f"{path}: the sha256 of its values is {digest}, it states {footer.sha256}; {_AGAIN}",
            what="sha256",
            where=path,
            given=digest,
            accepted=footer.sha256,
        )
    return StoredSegment(
        path=path,
        parts=footer.parts,
        values=values,
    )


@dataclass(
    frozen=True,
    slots=True,
    kw_only=True,
)
class _Footer:
    parts: tuple[SegmentPart, ...]
    sha256: str


def footer_facts(
    metadata: pq.FileMetaData,
    path: str,
    remedy: str,
) -> dict[bytes, bytes]:
    """Return the facts in a footer, which must name the file's own path.

    remedy: what to do with another file, for the message. Raises: Corrupt; FormatTooNew; KeyError; UnicodeDecodeError.
    """
    schema = metadata.schema.to_arrow_schema()
    facts = {**(metadata.metadata or {}), **(schema.metadata or {})}
    check_schema_version(pa.schema([], metadata=facts), path)
    written_as = facts[b"penstock.path"].decode()
    if written_as != path:
        message = f"{path} was written as {written_as}: it was exchanged or renamed; {remedy}"
        raise Corrupt(message, what="path", where=path, given=written_as)
    return facts


def _check_footer(metadata: pq.FileMetaData, path: str, kind: SegmentKind) -> _Footer:
    """Return what a footer states, before any page is decompressed. Raises: Corrupt, and errors of damaged JSON."""
    facts = footer_facts(metadata, path, _AGAIN)
    sha256 = facts[b"penstock.sha256"].decode()
    name = segment_name(path, kind)
    if name is None or name.digest != sha256[:16]:
        raise Corrupt(f"{path} states the sha256 {sha256}, which is not the one of its name; {_AGAIN}")
    stated = parse_json(facts[b"penstock.sources"])
    parts = tuple(_check_part(each) for each in stated)
    n_rows = sum(part.n_rows for part in parts)
    is_small = n_rows <= MAX_SEGMENT_ROWS and len(parts) <= MAX_SEGMENT_PARTS
    is_one_part = len(parts) == 1
    is_bounded = is_small or is_one_part
    is_distinct = len(set(parts)) == len(parts)
    if n_rows != metadata.num_rows or not is_bounded or not is_distinct:
        raise Corrupt(
            f"{path} has {metadata.num_rows} rows, its footer states {n_rows} of {len(parts)} parts; {_AGAIN}"
        )
    schema = metadata.schema.to_arrow_schema()
    for field in kind.columns:
        if schema.field(field.name).type != field.type:
            raise Corrupt(
                f"{path} has a column of {schema.field(field.name).type}, needed is {field}; {_AGAIN}"
            )
    nbytes = 0
    for number in range(metadata.num_row_groups):
        nbytes += metadata.row_group(number).total_byte_size
    most_bytes = _most_bytes(kind, n_rows)
    if nbytes > most_bytes:
        raise Corrupt(
            f"{path} has {nbytes:,} bytes of values; accepted are {most_bytes:,}; {_AGAIN}",
            what="values",
            where=path,
            given=nbytes,
            accepted=most_bytes,
        )
    return _Footer(parts=parts, sha256=sha256)


def _most_bytes(kind: SegmentKind, n_rows: int) -> int:
    return 2**20 + n_rows * (kind.most_value_bytes + _ROW_BYTES)


def _check_part(stated: object) -> SegmentPart:
    if not isinstance(stated, list) or len(stated) != 3:
        raise TypeError(f"a part {stated!r:.80}")
    part, source, n_rows = stated
    is_number = isinstance(n_rows, int) and not isinstance(n_rows, bool)
    if not is_number or not 0 <= n_rows < _MOST_PART_ROWS:
        raise ValueError(f"a part of {n_rows!r:.80} rows")
    if not isinstance(part, str) or not isinstance(source, str):
        raise TypeError(f"a part {part!r:.80} of {source!r:.80}")
    return SegmentPart(
        part,
        source,
        n_rows,
    )


def _check_texts(column: pa.ChunkedArray, path: str, kind: SegmentKind) -> None:
    """Raise Corrupt for texts that take too much memory once each row has its own."""
    import pyarrow.compute as pc  # 40 ms, saved at startup

    nbytes = 0
    for chunk in column.chunks:
        lengths = pc.binary_length(chunk.dictionary)
        longest = pc.max(lengths).as_py() or 0
        if longest > _MOST_TEXT_BYTES:
            raise Corrupt(
                f"{path} has a text of {longest:,} bytes; accepted are {_MOST_TEXT_BYTES:,}; {_AGAIN}"
            )
        row_lengths = lengths.take(chunk.indices)
        nbytes += pc.sum(row_lengths).as_py() or 0
    most_bytes = _most_bytes(kind, len(column))
    if nbytes > most_bytes:
        raise Corrupt(
            f"{path} has {nbytes:,} bytes of texts; accepted are {most_bytes:,}; {_AGAIN}",
            what="texts",
            where=path,
            given=nbytes,
            accepted=most_bytes,
        )


@contextmanager
def _corrupt_if_unreadable(path: str) -> Iterator[None]:
    try:
        yield
    except (Corrupt, FormatTooNew):
        raise
    except (*UNREADABLE, LookupError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        if is_machine_fault(error):
            raise
        raise Corrupt(
            f"{path} is not a segment ({type(error).__name__} {error}); {_AGAIN}",
            what="segment",
            where=path,
            given=type(error).__name__,
        ) from error


def merge_segments(
    segments: Sequence[StoredSegment],
    folder: str,
    kind: SegmentKind,
) -> Iterator[tuple[str, memoryview]]:
    """Yield (path, bytes) of segments with the parts of these, as few as `MAX_SEGMENT_ROWS` allows.

    A part of several segments is merged once. Equal segments merge into equal bytes.
    """
    parts: list[SegmentPart] = []
    tables: list[pa.Table] = []
    merged: set[SegmentPart] = set()
    n_rows = 0
    for segment in segments:
        starts = segment.starts
        for number, part in enumerate(segment.parts):
            if part in merged:
                continue
            is_full = n_rows + part.n_rows > MAX_SEGMENT_ROWS or len(parts) == MAX_SEGMENT_PARTS
            if parts and is_full:
                yield segment_bytes(
                    folder,
                    kind,
                    parts,
                    pa.concat_tables(tables),
                )
                parts = []
                tables = []
                n_rows = 0
            merged.add(part)
            parts.append(part)
            tables.append(segment.values.slice(int(starts[number]), part.n_rows))
            n_rows += part.n_rows
    if parts:
        yield segment_bytes(
            folder,
            kind,
            parts,
            pa.concat_tables(tables),
        )
