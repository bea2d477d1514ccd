"""Given segments: a table next to the media lists the stretches of video or audio that become units.

It is `_segments.csv`, `.jsonl` or `.parquet` in the landing folder, with a row per unit: the object's `key`, `start_s`
and `end_s`, optionally `label` and `caption`. An invalid row rejects its object.
"""

import io
import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from fractions import Fraction
from typing import Any

import pyarrow as pa
import pyarrow.compute
import pyarrow.csv
import pyarrow.parquet

from loader.dataset.log.entries import DAMAGED
from loader.errors import Corrupt, ObjectNotFound
from loader.json_text import is_text, parse_json_object
from loader.modalities.fields import is_machine_fault
from loader.storage import Store

NEEDED = ("key", "start_s", "end_s")
TEXTS = ("label", "caption")
MAX_ROWS = 10_000_000
MAX_DECODED_BYTES = 512 * 2**20
"""Most bytes of a Parquet file's decompressed pages, and of rows of a batch's objects."""
MAX_TEXT_BYTES = 64 * 2**10
"""Most bytes of one value."""

_BATCH_ROWS = 65_536
_BLOCK_BYTES = 16 * 2**20  # per CSV block; a row is shorter
Row = Mapping[str, Any] | Corrupt
"""Column -> value, or an error if the row cannot be read."""


def select_rows(name: str, data: bytes, keys: Collection[str]) -> Iterator[tuple[int, str, Row]]:
    """Yield (row number from 1, key, row) for rows whose key is in `keys`; CSV values are text.

    Raises: ValueError or Arrow's errors if the table is unreadable or exceeds a limit.
    """
    if name.endswith(".jsonl"):
        yield from _json_rows(data, frozenset(keys))
        return
    if name.endswith(".parquet"):
        batches = _parquet_batches(data)
    else:
        batches = _csv_batches(data)
    keys_wanted = pa.array(sorted(keys), pa.string())
    n_rows = n_bytes = 0
    for batch in batches:
        for at in _matching(batch.column("key"), keys_wanted):
            key, row, nbytes = _row(batch, at)
            n_bytes += nbytes
            if n_bytes > MAX_DECODED_BYTES:
                raise Corrupt(
                    f"rows of one batch hold more than {MAX_DECODED_BYTES} bytes of text",
                    what="rows of one batch",
                    given=n_bytes,
                    accepted=MAX_DECODED_BYTES,
                )
            yield n_rows + at + 1, key, row
        n_rows += len(batch)
        if n_rows > MAX_ROWS:
            raise Corrupt(f"more than {MAX_ROWS} rows", what="rows", accepted=MAX_ROWS)


def _json_rows(data: bytes, keys: frozenset[str]) -> Iterator[tuple[int, str, Row]]:
    """Yield (number, key, row) of the lines with one of these keys. Raises: Corrupt."""
    # Arrow's JSON reader crashes the process on deeply nested brackets
    number = 0
    names = set[str]()
    for line in io.BytesIO(data.removeprefix(b"\xef\xbb\xbf")):
        if not line.strip():
            continue
        number += 1
        if number > MAX_ROWS:
            raise Corrupt(f"more than {MAX_ROWS} rows", what="rows", accepted=MAX_ROWS)
        try:
            row = parse_json_object(line)
        except ValueError as error:
            raise Corrupt(f"row {number}: {error}", what=f"row {number}", given=str(error)) from error
        if "key" not in names:
            names = set(row)
        key = row.get("key")
        if type(key) is int:
            key = str(key)
        if isinstance(key, str) and key in keys:
            long_texts = [name for name in TEXTS if len(str(row.get(name))) > MAX_TEXT_BYTES]
            if long_texts:
                yield number, key, _too_long(long_texts[0])
            else:
                yield number, key, row
    if number and "key" not in names:
        _check_columns(names)


def _csv_batches(data: bytes) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a CSV table, every column as text, as it is written."""
    header = data[:_BLOCK_BYTES].split(b"\n", 1)[0].decode().strip("\r\ufeff").split(",")
    texts = {column.strip('" '): pa.string() for column in header}
    with pa.csv.open_csv(
        io.BytesIO(data),
        read_options=pa.csv.ReadOptions(block_size=_BLOCK_BYTES, use_threads=False),
        convert_options=pa.csv.ConvertOptions(column_types=texts, strings_can_be_null=False),
        parse_options=pa.csv.ParseOptions(newlines_in_values=True),
    ) as reader:
        _check_columns(reader.schema.names)
        yield from reader


def _parquet_batches(data: bytes) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a Parquet table, once its headers show that they fit into memory. Raises: Corrupt."""
    schema = pa.parquet.read_schema(io.BytesIO(data))
    _check_columns(schema.names)
    names = [name for name in (*NEEDED, *TEXTS) if name in schema.names]
    for name in names:
        _check_type(name, schema.field(name).type)
    # As dictionaries, which have equal texts once.
    texts = [name for name in names if _is_text(schema.field(name).type)]
    file = pa.parquet.ParquetFile(io.BytesIO(data), read_dictionary=texts, pre_buffer=False)
    if file.metadata.num_rows > MAX_ROWS:
        raise Corrupt(
            f"{file.metadata.num_rows} rows; accepted are {MAX_ROWS}",
            what="rows",
            given=file.metadata.num_rows,
            accepted=MAX_ROWS,
        )
    from .parquet_pages import DELTA_BYTE_ARRAY, pages  # most batches have no such table

    n_bytes = 0
    for page in pages(data, file.metadata, frozenset(names)):
        n_bytes += page.nbytes
        if n_bytes > MAX_DECODED_BYTES:
            raise Corrupt(
                f"its pages are more than {MAX_DECODED_BYTES} bytes when they are read",
                what="pages",
                given=n_bytes,
                accepted=MAX_DECODED_BYTES,
            )
        # Its values share prefixes: the page's size does not bound the bytes of its texts.
        if page.encoding == DELTA_BYTE_ARRAY:
            raise Corrupt(
                "a column is encoded as DELTA_BYTE_ARRAY; write it with a dictionary, or plain",
                what="encoding",
                given="DELTA_BYTE_ARRAY",
            )
    yield from file.iter_batches(batch_size=_BATCH_ROWS, columns=names, use_threads=False)


def _check_columns(names: Collection[str]) -> None:
    if missing := [column for column in NEEDED if column not in names]:
        raise Corrupt(
            f"it has no column {', '.join(missing)}; needed are key, start_s, end_s (and, where wanted, label, "
            f"caption), it has {', '.join(sorted(names)[:20])}",
            what=missing[0],
            given=sorted(names)[:20],
            accepted=list(NEEDED),
        )


def _check_type(name: str, kind: pa.DataType) -> None:
    if pa.types.is_dictionary(kind):
        of = kind.value_type
    else:
        of = kind
    known = (_is_text, pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_null)
    if not any(is_one(of) for is_one in known):
        raise Corrupt(
            f"column {name} is {kind}; accepted are text and numbers",
            what=name,
            given=str(kind),
            accepted="text and numbers",
        )


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _matching(column: pa.Array, keys_wanted: pa.Array) -> list[int]:
    """Return the positions of the rows with one of these keys. All-digit keys may be stored as numbers."""
    if pa.types.is_dictionary(column.type):
        matches = pa.compute.is_in(column.dictionary.cast(pa.string()), value_set=keys_wanted).take(
            column.indices
        )
    else:
        matches = pa.compute.is_in(column.cast(pa.string()), value_set=keys_wanted)
    positions: list[int] = pa.compute.indices_nonzero(matches).to_pylist()
    return positions


def _row(batch: pa.RecordBatch, at: int) -> tuple[str, Row, int]:
    """Return (key, row or what is wrong with it, bytes of its texts)."""
    row: dict[str, Any] = {}
    nbytes = 0
    key = str(_cell(batch.column("key"), at).as_py())
    for name in (*NEEDED, *TEXTS):
        if name not in batch.schema.names:
            continue
        cell = _cell(batch.column(name), at)
        size = 0
        if cell.is_valid and _is_text(cell.type):
            size = cell.as_buffer().size
        if size > MAX_TEXT_BYTES:
            return key, _too_long(name), nbytes
        nbytes += size
        try:
            row[name] = cell.as_py()
        except UnicodeDecodeError as error:
            return key, Corrupt(f"{name} is not UTF-8 ({error})"), nbytes
    return key, row, nbytes


def _cell(column: pa.Array, at: int) -> Any:
    """Return a value of a column as a scalar, also of a dictionary."""
    if not pa.types.is_dictionary(column.type):
        return column[at]
    place = column.indices[at].as_py()
    if place is None:
        return pa.scalar(None, column.type.value_type)
    return column.dictionary[place]


def _too_long(name: str) -> Corrupt:
    return Corrupt(
        f"{name} has more than {MAX_TEXT_BYTES} bytes, which are accepted", what=name, accepted=MAX_TEXT_BYTES
    )


SEGMENT_TABLES = ("_segments.csv", "_segments.jsonl", "_segments.parquet")
MIN_S, MAX_S = 0.02, 600.0
MAX_SEGMENTS = 100_000
"""Most segments per object."""
MAX_TABLE_BYTES = 256 * 2**20
"""Most bytes of a stored table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """One given segment of an object."""

    start_s: float
    """Start, in seconds after the first frame or sample."""
    end_s: float
    """End, exclusive, in seconds after the first frame or sample."""
    label: str = ""
    """Label of the unit or ""."""
    caption: str = ""
    """Caption of the unit; "" keeps the object's own."""

    def span_s(self) -> tuple[Fraction, Fraction]:
        """Exact start and end, from the decimals as written."""
        return Fraction(str(self.start_s)), Fraction(str(self.end_s))

    @property
    def request(self) -> str:
        """The segment as `Unit.request`."""
        return repr((self.start_s, self.end_s, self.label, self.caption))

    def plain(self) -> dict[str, Any]:
        """Return the segment as a table row."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenSegments:
    """Given segments per object, and the objects with invalid rows."""

    by_key: Mapping[str, tuple[Segment, ...]] = field(default_factory=dict)
    """Object key -> segments, ordered by start."""
    problems: Mapping[str, str] = field(default_factory=dict)
    """Object key -> what is wrong with its first invalid row."""


SEGMENTS = pa.list_(
    pa.struct(
        [
            ("start_s", pa.float64()),
            ("end_s", pa.float64()),
            ("label", pa.string()),
            ("caption", pa.string()),
        ]
    )
)
"""Type of the column `segments` in raw_objects."""


def read_segments(landing: Store, keys: Collection[str]) -> GivenSegments:
    """Return the given segments of these objects; objects without segments have no entry.

    Costs a HEAD per table name and one read. An invalid row goes to `problems`, with its number and value.

    Raises: Corrupt if the table is unreadable or too large.
    """
    name, data = _read_table(landing)
    if data is None:
        return GivenSegments()
    place = f"{landing.url.rstrip('/')}/{name}"
    segments: dict[str, dict[tuple[float, float], Segment]] = {}
    problems: dict[str, str] = {}
    try:
        for number, key, row in select_rows(name, data, keys):
            others = segments.setdefault(key, {})
            try:
                _add(others, f"{place}, row {number} (key {key!r})", row)
            except Corrupt as error:
                problems.setdefault(key, str(error))
    except (pa.ArrowException, OSError, *DAMAGED) as error:
        if is_machine_fault(error):
            raise
        message = f"{place} cannot be read ({error}); repair it, or take it away"
        if isinstance(error, Corrupt):
            raise error.with_message(message, where=place) from error
        raise Corrupt(message, what="table", where=place, given=type(error).__name__) from error
    by_key = {
        key: tuple(spans[times] for times in sorted(spans))
        for key, spans in segments.items()
        if key not in problems
    }
    return GivenSegments(by_key=by_key, problems=problems)


def _read_table(landing: Store) -> tuple[str, bytes | None]:
    """Return (name, bytes) of the table; ("", None) without one. Raises: Corrupt for several or a large one."""
    tables = {}
    for name in SEGMENT_TABLES:
        try:
            tables[name] = landing.head(name)
        except ObjectNotFound:
            continue
    if len(tables) > 1:
        raise Corrupt(
            f"{landing.url} holds {' and '.join(tables)}: which of them counts? Take all but one away",
            what="tables",
            where=landing.url,
            given=list(tables),
        )
    for name, info in tables.items():
        if info.nbytes > MAX_TABLE_BYTES:
            raise Corrupt(
                f"{landing.url}/{name} has {info.nbytes} bytes; accepted are {MAX_TABLE_BYTES}: split the place into "
                "several sources",
                what="size",
                where=f"{landing.url}/{name}",
                given=info.nbytes,
                accepted=MAX_TABLE_BYTES,
            )
        data = b""
        if info.nbytes:
            data = bytes(landing.get_range(name, 0, info.nbytes, info.etag).data)
        return name, data
    return "", None


def _add(others: dict[tuple[float, float], Segment], where: str, row: Mapping[str, Any] | Corrupt) -> None:
    """Add the segment of a row to an object's others, by start and end. Raises: Corrupt."""
    if isinstance(row, Corrupt):
        raise row.with_message(f"{where}: {row}", where=where)
    segment = _segment(where, row)
    span = segment.start_s, segment.end_s
    if span in others:
        raise Corrupt(
            f"{where}: {span[0]} to {span[1]} s is there twice; take one of the rows away",
            what="segment",
            where=where,
            given=span,
        )
    if len(others) == MAX_SEGMENTS:
        raise Corrupt(
            f"{where}: more than {MAX_SEGMENTS} segments of one object; split it",
            what="segments",
            where=where,
            accepted=MAX_SEGMENTS,
        )
    others[span] = segment


def _segment(where: str, row: Mapping[str, Any]) -> Segment:
    """Return the segment of a row. where: table and row, for messages. Raises: Corrupt."""
    start_s = _seconds(where, "start_s", row["start_s"])
    end_s = _seconds(where, "end_s", row["end_s"])
    if not MIN_S <= end_s - start_s <= MAX_S:
        raise Corrupt(
            f"{where}: start_s={start_s} to end_s={end_s} is {end_s - start_s:.6g} s; accepted are {MIN_S} to "
            f"{MAX_S:.0f} s",
            what="end_s",
            where=where,
            given=(start_s, end_s),
            accepted=(MIN_S, MAX_S),
        )
    texts = {name: row.get(name) or "" for name in TEXTS}
    for name, value in texts.items():
        if not is_text(value):
            raise Corrupt(
                f"{where}: {name}={value!r} is not text", what=name, where=where, given=value, accepted="text"
            )
    return Segment(start_s=start_s, end_s=end_s, **texts)


def _seconds(where: str, name: str, value: Any) -> float:
    try:
        seconds = float(value)
    except (TypeError, ValueError, OverflowError):
        seconds = math.nan
    if isinstance(value, bool) or not math.isfinite(seconds) or seconds < 0:
        raise Corrupt(
            f"{where}: {name}={value!r}; accepted are seconds from 0",
            what=name,
            where=where,
            given=value,
            accepted="seconds from 0",
        )
    return seconds
