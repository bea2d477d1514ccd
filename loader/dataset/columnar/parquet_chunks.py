"""Read fields of a Parquet object as one byte range: its decoded column chunks, by row group, then by field column."""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from ...errors import Corrupt, InvalidSample
from ...storage import ByteRange, ObjectInfo
from ...storage.threads import SizedLru, begins_anew
from ..shards.shard import crc32c
from ..tables.parquet_ranges import TAIL_BYTES, RangeFile, chunk_start
from .arrow_columns import Column, TableRows, joined
from .arrow_errors import arrow_errors
from .choices import ColumnarOptions, schema_features

CAPACITY_BYTES = 4 * 2**30
"""Decoded bytes that a process caches: twice `lanes.LIVE_CHUNK_BYTES`."""


class ChunkCache(SizedLru):
    """A cache that is emptied in a forked child, which would otherwise hold the values a second time."""

    def __init__(self, capacity_bytes: int = CAPACITY_BYTES) -> None:
        super().__init__(capacity_bytes)
        begins_anew(self)


CHUNKS = ChunkCache()


TOGETHER_BYTES = 64 * 2**20
"""Most decoded bytes of chunks that are read together; one larger chunk is read by itself."""
METADATA_TIMES = 4
"""Memory of a parsed footer, as a multiple of its stored bytes."""

ReadRaw = Callable[[Sequence[ByteRange]], Sequence[bytes]]
"""Stored spans of the object -> their bytes. Raises: Changed; ObjectNotFound; StoreError."""


class Chunks(NamedTuple):
    """The decoded chunks of one object, as stored in the table of foreign objects."""

    footer_nbytes: int
    """Size of the footer in bytes, with its length and magic, at the object's end."""
    footer_crc32c: int
    """CRC-32C of the footer: a damaged footer can crash a reader."""
    columns: tuple[str, ...]
    """Columns of the table that become fields."""
    starts: tuple[int, ...]
    """First decoded byte of each chunk, row group by row group, and the end of the last."""

    @property
    def nbytes(self) -> int:
        """Decoded bytes of all chunks."""
        return self.starts[-1]

    @property
    def row_groups(self) -> int:
        return (len(self.starts) - 1) // max(1, len(self.columns))

    def to_row(self) -> dict[str, Any]:
        return {
            **self._asdict(),
            "columns": list(self.columns),
            "starts": list(self.starts),
        }

    @staticmethod
    def of_row(body: Mapping[str, Any]) -> "Chunks":
        return Chunks(
            footer_nbytes=body["footer_nbytes"],
            footer_crc32c=body["footer_crc32c"],
            columns=tuple(body["columns"]),
            starts=tuple(body["starts"]),
        )


class _Cut(NamedTuple):
    """Bytes [low, high) of a chunk, which belong to a span."""

    span: int
    low: int
    high: int


class DecodedParquet:
    """Reads the decoded bytes of one object. Thread-safe. Chunks are cached per process.

    name: the object, for errors. identity: cache key of its bytes and options. stored_nbytes: stored size.
    """

    def __init__(
        self,
        name: str,
        identity: str,
        stored_nbytes: int,
        chunks: Chunks,
        options: ColumnarOptions,
        cache: ChunkCache = CHUNKS,
    ) -> None:
        self._name = name
        self._identity = identity
        self._stored = stored_nbytes
        self._chunks = chunks
        self._options = options
        self._cache = cache
        self._looked_at = False

    @property
    def nbytes(self) -> int:
        """Decoded bytes of all chunks."""
        return self._chunks.nbytes

    def forget(self) -> None:
        self._looked_at = False
        for number in range(len(self._chunks.starts) - 1):
            self._cache.discard((self._identity, number))

    def apart(self) -> "DecodedParquet":
        return DecodedParquet(
            self._name,
            self._identity,
            self._stored,
            self._chunks,
            self._options,
            cache=ChunkCache(TOGETHER_BYTES),
        )

    def read(
        self,
        spans: Sequence[ByteRange],
        raw: ReadRaw,
        *,
        anew: bool = False,
    ) -> list[bytes]:
        """Return the decoded bytes of spans, in the order given.

        anew: read the chunks again instead of using the cache.

        Raises: Corrupt if a chunk cannot be decoded or a span exceeds the end; as `raw`.
        """
        cuts = self._cuts(spans)
        if not self._looked_at:  # the cache may hold chunks of an earlier object
            self._metadata(raw, anew=True)
            self._looked_at = True
        pieces: list[list[bytes]] = [[] for _ in spans]
        if anew:
            for number in cuts:
                self._cache.discard((self._identity, number))
        for together in self._together(sorted(cuts)):
            chunks, missing = self._find_cached(together)
            if missing:
                chunks |= self._load(missing, raw)
            for number in together:
                for cut in cuts[number]:
                    piece = chunks[number][cut.low : cut.high]
                    pieces[cut.span].append(bytes(piece))  # a copy: a view would keep the whole chunk alive
        return [b"".join(pieces_of_span) for pieces_of_span in pieces]  # of one piece: without a copy

    def _cuts(self, spans: Sequence[ByteRange]) -> dict[int, list[_Cut]]:
        """Return chunk -> its bytes that the spans need."""
        starts = self._chunks.starts
        cuts: dict[int, list[_Cut]] = {}
        for span, (offset, nbytes) in enumerate(spans):
            stop = offset + nbytes
            if offset < 0 or stop > self.nbytes:
                raise Corrupt(
                    f"{self._name} decodes to {self.nbytes} bytes, and its index names [{offset}:{stop}] of them: "
                    "register it again",
                    what="byte range",
                    where=self._name,
                    given=[offset, stop],
                    accepted=self.nbytes,
                )
            position = offset
            while position < stop:
                number = bisect_right(starts, position) - 1
                chunk_offset = starts[number]
                end = min(stop, starts[number + 1])
                cut = _Cut(span, position - chunk_offset, end - chunk_offset)
                cuts.setdefault(number, []).append(cut)
                position = end
        return cuts

    def _together(self, numbers: Sequence[int]) -> Iterator[Sequence[int]]:
        """Yield these chunks in groups of at most `TOGETHER_BYTES`, or of one larger chunk."""
        starts = self._chunks.starts
        together: list[int] = []
        together_nbytes = 0
        for number in numbers:
            nbytes = starts[number + 1] - starts[number]
            if together and together_nbytes + nbytes > TOGETHER_BYTES:
                yield together
                together = []
                together_nbytes = 0
            together.append(number)
            together_nbytes += nbytes
        if together:
            yield together

    def _find_cached(self, numbers: Sequence[int]) -> tuple[dict[int, Any], list[int]]:
        """Return (chunk -> its cached bytes, chunks that are not cached)."""
        chunks: dict[int, Any] = {}
        missing: list[int] = []
        for number in numbers:
            data = self._cache.get((self._identity, number))
            if data is None:
                missing.append(number)
            else:
                chunks[number] = data
        return chunks, missing

    def _load(self, numbers: Sequence[int], raw: ReadRaw) -> dict[int, Any]:
        """Return decoded chunks. numbers: ascending, so that threads cannot deadlock."""
        metadata = self._metadata(raw)
        with ExitStack() as turns:
            for number in numbers:
                turns.enter_context(self._cache.turns.of((self._identity, number)))
            chunks, missing = self._find_cached(numbers)  # another thread may have decoded some meanwhile
            if not missing:
                return chunks
            extents = [self._extent(metadata, number) for number in missing]
            for number, extent, data in zip(missing, extents, raw(extents), strict=True):
                chunk = self._decode_chunk(metadata, number, extent, data)
                self._cache.put((self._identity, number), chunk, len(chunk))
                chunks[number] = chunk
        return chunks

    def _metadata(self, raw: ReadRaw, *, anew: bool = False) -> pq.FileMetaData:
        key = (self._identity, "footer")
        if not anew:
            metadata = self._cache.get(key)
            if metadata is not None:
                return metadata
        with self._cache.turns.of(key):
            metadata = None
            if not anew:
                metadata = self._cache.get(key)  # another thread may have parsed it meanwhile
            if metadata is None:
                metadata = self._parse_footer(raw)
                self._cache.put(key, metadata, METADATA_TIMES * self._chunks.footer_nbytes)
        return metadata

    def _parse_footer(self, raw: ReadRaw) -> pq.FileMetaData:
        nbytes = self._chunks.footer_nbytes
        start = self._stored - nbytes
        (data,) = raw([ByteRange(start, nbytes)])
        checksum = crc32c(data)
        if checksum != self._chunks.footer_crc32c:
            raise Corrupt(
                f"{self._name}: its footer, bytes [{start}:{self._stored}], has the CRC-32C {checksum:08x}, "
                f"registered was {self._chunks.footer_crc32c:08x}: it was damaged; restore the object"
            )
        # A parser first reads this much of the end, and then only the footer in it.
        tail_nbytes = min(TAIL_BYTES, self._stored)
        pad = max(0, tail_nbytes - nbytes)
        range_file = RangeFile(self._stored, start - pad, bytes(pad) + data)
        with _corrupt_on_error(self._name, "its footer"):
            return pq.read_metadata(range_file)

    def _place(self, number: int) -> tuple[int, str]:
        group, column = divmod(number, len(self._chunks.columns))
        return group, self._chunks.columns[column]

    def _extent(self, metadata: pq.FileMetaData, number: int) -> ByteRange:
        group, name = self._place(number)
        try:
            return column_extent(metadata, group, name)
        except (KeyError, ValueError) as error:
            raise Corrupt(
                f"{self._name}, row group {group}: {error}; it was damaged, restore the object"
            ) from error

    def _decode_chunk(
        self,
        metadata: pq.FileMetaData,
        number: int,
        extent: ByteRange,
        data: bytes,
    ) -> memoryview:
        group, name = self._place(number)
        end = extent.offset + extent.nbytes
        what = f"row group {group}, column {name!r}, bytes [{extent.offset}:{end}]"
        with _corrupt_on_error(self._name, what):
            reader = pq.ParquetFile(
                RangeFile(self._stored, extent.offset, data),
                metadata=metadata,
                page_checksum_verification=True,
                pre_buffer=False,
            )
            table = reader.read_row_group(group, columns=[name], use_threads=False)
            column = self._column(metadata, name)
            chunk_bytes = joined(column, table.column(name), f"{self._name}, {what}")
        expected = self._chunks.starts[number + 1] - self._chunks.starts[number]
        if len(chunk_bytes) != expected:
            raise Corrupt(
                f"{self._name}, {what} decodes to {len(chunk_bytes)} bytes, registered were {expected}: it was "
                "damaged; restore the object"
            )
        return chunk_bytes

    def _column(self, metadata: pq.FileMetaData, name: str) -> Column:
        key = (self._identity, "columns")
        columns: dict[str, Column] | None = self._cache.get(key)
        if columns is None:
            schema = metadata.schema.to_arrow_schema()
            rows = TableRows(schema, schema_features(schema), self._options, self._name)
            columns = {column.column: column for column in rows.columns if column.kind == "field"}
            self._cache.put(key, columns, 1000 * len(columns))
        if name not in columns:
            raise InvalidSample(f"it has no column {name!r}")
        return columns[name]


def column_extent(
    metadata: pq.FileMetaData,
    group: int,
    name: str,
) -> ByteRange:
    """Return the span of a column in a row group, all leaves included. Raises: KeyError."""
    row_group = metadata.row_group(group)
    starts: list[int] = []
    ends: list[int] = []
    for number in range(row_group.num_columns):
        leaf = row_group.column(number)
        if f"{leaf.path_in_schema}.".startswith(f"{name}."):
            start = chunk_start(leaf)
            starts.append(start)
            ends.append(start + leaf.total_compressed_size)
    if not starts:
        raise KeyError(f"no column {name!r}")
    first = min(starts)
    end = max(ends)
    if not 0 <= first <= end:
        raise ValueError(f"the column lies at bytes [{first}:{end}]")
    return ByteRange(first, end - first)


@contextmanager
def _corrupt_on_error(name: str, what: str) -> Iterator[None]:
    """Raise reader errors as Corrupt: the chunk was readable at registration."""
    try:
        with arrow_errors(
            f"{name}, {what}", damaged="cannot be read", hint="; it was damaged, restore the object"
        ):
            yield
    except InvalidSample as error:
        raise Corrupt(
            f"{name}, {what} cannot be read: {error}; it was damaged, restore the object"
        ) from error


BATCH_BYTES = 8 * 2**20
BOMB_BYTES = 2**30
BOMB_TIMES = 1000
"""Limit of a row group's decoded bytes: the larger of BOMB_BYTES and BOMB_TIMES its stored bytes."""


def check_row_group(
    metadata: pq.FileMetaData,
    at: int,
    info: ObjectInfo,
) -> pq.RowGroupMetaData:
    """Return a row group's metadata. Raises: Corrupt if it declares far more bytes than it stores."""
    group = metadata.row_group(at)
    stored = 0
    for number in range(group.num_columns):
        stored += group.column(number).total_compressed_size
    most_by_ratio = BOMB_TIMES * min(stored, info.nbytes)
    if not 0 <= group.total_byte_size <= max(BOMB_BYTES, most_by_ratio):
        raise Corrupt(
            f"{info.key}, row group {at} declares {group.total_byte_size:,} bytes for {stored:,} stored ones, "
            "taken for a mistake or an attack"
        )
    return group


def row_group_reader(
    source: Any,
    metadata: pq.FileMetaData,
    schema: pa.Schema,
    name: str,
) -> pq.ParquetFile:
    """Return a row-group reader that stores equal texts and bytes once. source: anything that Arrow reads.

    Raises: Corrupt if the footer spells a column's name in two ways; ArrowException.
    """
    shared = []
    for field in schema:
        kind = field.type
        if pa.types.is_binary(kind) or pa.types.is_string(kind):
            shared.append(field.name)
    try:
        return pq.ParquetFile(
            source,
            metadata=metadata,
            read_dictionary=shared,
            page_checksum_verification=True,
            pre_buffer=False,
        )
    except KeyError as error:  # a bytes name, spelled the other way
        raise Corrupt(f"{name}: its footer has no column {error}, which its schema names") from error


def rows_at_once(group: pq.RowGroupMetaData) -> int:
    """Return how many of a group's rows are decoded at once."""
    # 1,024 rows at most: Python's objects of a row take more memory than its stored bytes.
    n_rows = int(group.num_rows)
    nbytes = int(group.total_byte_size)
    rows_of_batch = BATCH_BYTES * n_rows // max(1, nbytes)
    return max(1, min(1024, rows_of_batch))
