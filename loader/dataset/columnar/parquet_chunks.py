"""Read fields of a Parquet object as one byte range: its decoded column chunks, by row group, then by field column."""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from ...errors import Corrupt, InvalidSample
from ...storage import ByteRange, ObjectInfo
from ...storage.threads import ByteLru, begins_anew
from ..shards.shard import crc32c
from ..tables.parquet_ranges import TAIL_BYTES, Window, chunk_start
from .arrow_columns import Column, TableRows, arrow_errors, joined
from .choices import ColumnarOptions, features_of

CAPACITY_BYTES = 4 * 2**30
"""Decoded bytes that a process caches: twice `lanes.LIVE_CHUNK_BYTES`."""


class ChunkCache(ByteLru):
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
        return {**self._asdict(), "columns": list(self.columns), "starts": list(self.starts)}

    @staticmethod
    def of_row(body: Mapping[str, Any]) -> "Chunks":
        return Chunks(
            body["footer_nbytes"], body["footer_crc32c"], tuple(body["columns"]), tuple(body["starts"])
        )


class _Cut(NamedTuple):
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
        self._name, self._identity, self._stored = name, identity, stored_nbytes
        self._chunks, self._options, self._cache = chunks, options, cache
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
            self._name, self._identity, self._stored, self._chunks, self._options, ChunkCache(TOGETHER_BYTES)
        )

    def read(self, spans: Sequence[ByteRange], raw: ReadRaw, *, anew: bool = False) -> list[bytes]:
        """Return the decoded bytes of spans, in the order given.

        anew: read the chunks again instead of using the cache.

        Raises: Corrupt if a chunk cannot be decoded or a span exceeds the end; as `raw`.
        """
        cuts = self._cuts(spans)
        if not self._looked_at:  # the cache may hold chunks of an earlier object
            self._metadata(raw, anew=True)
            self._looked_at = True
        pieces: list[list[bytes]] = [[] for _ in spans]
        for number in cuts if anew else ():
            self._cache.discard((self._identity, number))
        for together in self._together(sorted(cuts)):
            held = {number: self._cache.get((self._identity, number)) for number in together}
            if missing := [number for number, data in held.items() if data is None]:
                held |= self._load(missing, raw)
            for number in together:
                for cut in cuts[number]:
                    pieces[cut.span].append(bytes(held[number][cut.low : cut.high]))
        return [piece[0] if len(piece) == 1 else b"".join(piece) for piece in pieces]

    def _cuts(self, spans: Sequence[ByteRange]) -> dict[int, list[_Cut]]:
        starts, cuts = self._chunks.starts, dict[int, list[_Cut]]()
        for which, (offset, nbytes) in enumerate(spans):
            at, stop = offset, offset + nbytes
            if offset < 0 or stop > self.nbytes:
                raise Corrupt(
                    f"{self._name} decodes to {self.nbytes} bytes, and its index names [{offset}:{stop}] of them: "
                    "register it again"
                )
            while at < stop:
                number = bisect_right(starts, at) - 1
                end = min(stop, starts[number + 1])
                cuts.setdefault(number, []).append(_Cut(which, at - starts[number], end - starts[number]))
                at = end
        return cuts

    def _together(self, numbers: Sequence[int]) -> Iterator[Sequence[int]]:
        starts, numbers_together, held = self._chunks.starts, list[int](), 0
        for number in numbers:
            nbytes = starts[number + 1] - starts[number]
            if numbers_together and held + nbytes > TOGETHER_BYTES:
                yield numbers_together
                numbers_together, held = [], 0
            numbers_together.append(number)
            held += nbytes
        if numbers_together:
            yield numbers_together

    def _load(self, numbers: Sequence[int], raw: ReadRaw) -> dict[int, Any]:
        """Return decoded chunks. numbers: ascending, so that threads cannot deadlock."""
        metadata = self._metadata(raw)
        with ExitStack() as turns:
            for number in numbers:
                turns.enter_context(self._cache.turns.of((self._identity, number)))
            cached = {number: self._cache.get((self._identity, number)) for number in numbers}
            missing = [number for number, data in cached.items() if data is None]
            extents = [self._extent(metadata, number) for number in missing]
            for number, extent, data in zip(missing, extents, raw(extents) if extents else (), strict=True):
                cached[number] = self._decoded(metadata, number, extent, data)
                self._cache.put((self._identity, number), cached[number], len(cached[number]))
        return cached

    def _metadata(self, raw: ReadRaw, *, anew: bool = False) -> pq.FileMetaData:
        key = (self._identity, "footer")
        metadata = None if anew else self._cache.get(key)
        if metadata is not None:
            return metadata
        nbytes = self._chunks.footer_nbytes
        with self._cache.turns.of(key):
            metadata = None if anew else self._cache.get(key)
            if metadata is None:
                start = self._stored - nbytes
                (data,) = raw([ByteRange(start, nbytes)])
                if (checksum := crc32c(data)) != self._chunks.footer_crc32c:
                    raise Corrupt(
                        f"{self._name}: its footer, bytes [{start}:{self._stored}], has the CRC-32C {checksum:08x}, "
                        f"registered was {self._chunks.footer_crc32c:08x}: it was damaged; restore the object"
                    )
                with _corrupt_on_error(self._name, "its footer"):
                    pad = max(
                        0, min(TAIL_BYTES, self._stored) - nbytes
                    )  # a parser first reads this much of the end
                    metadata = pq.read_metadata(Window(self._stored, start - pad, bytes(pad) + data))
                self._cache.put(key, metadata, METADATA_TIMES * nbytes)
        return metadata

    def _place(self, number: int) -> tuple[int, str]:
        group, column = divmod(number, len(self._chunks.columns))
        return group, self._chunks.columns[column]

    def _extent(self, metadata: pq.FileMetaData, number: int) -> ByteRange:
        group, name = self._place(number)
        try:
            return extent_of(metadata, group, name)
        except (KeyError, ValueError) as error:
            raise Corrupt(
                f"{self._name}, row group {group}: {error}; it was damaged, restore the object"
            ) from error

    def _decoded(self, metadata: pq.FileMetaData, number: int, extent: ByteRange, data: bytes) -> memoryview:
        group, name = self._place(number)
        what = f"row group {group}, column {name!r}, bytes [{extent.offset}:{extent.offset + extent.nbytes}]"
        with _corrupt_on_error(self._name, what):
            reader = pq.ParquetFile(
                Window(self._stored, extent.offset, data),
                metadata=metadata,
                page_checksum_verification=True,
                pre_buffer=False,
            )
            table = reader.read_row_group(group, columns=[name], use_threads=False)
            chunk_bytes = joined(self._column(metadata, name), table.column(name), f"{self._name}, {what}")
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
            rows = TableRows(schema, features_of(schema), self._options, self._name)
            columns = {one.column: one for one in rows.columns if one.kind == "field"}
            self._cache.put(key, columns, 1000 * len(columns))
        if name not in columns:
            raise InvalidSample(f"it has no column {name!r}")
        return columns[name]


def extent_of(metadata: pq.FileMetaData, group: int, name: str) -> ByteRange:
    """Return the span of a column in a row group, all leaves included. Raises: KeyError."""
    row_group = metadata.row_group(group)
    leaves = [row_group.column(at) for at in range(row_group.num_columns)]
    nested = [one for one in leaves if f"{one.path_in_schema}.".startswith(f"{name}.")]
    if not nested:
        raise KeyError(f"no column {name!r}")
    first = min(map(chunk_start, nested))
    end = max(chunk_start(one) + one.total_compressed_size for one in nested)
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
BOMB_BYTES, BOMB_TIMES = 2**30, 1000
"""Limit of a row group's decoded bytes: the larger of BOMB_BYTES and BOMB_TIMES its stored bytes."""


def check_row_group(metadata: pq.FileMetaData, at: int, info: ObjectInfo) -> pq.RowGroupMetaData:
    """Return a row group's metadata. Raises: Corrupt if it declares far more bytes than it stores."""
    group = metadata.row_group(at)
    stored = sum(group.column(k).total_compressed_size for k in range(group.num_columns))
    if not 0 <= group.total_byte_size <= max(BOMB_BYTES, BOMB_TIMES * min(stored, info.nbytes)):
        raise Corrupt(
            f"{info.key}, row group {at} declares {group.total_byte_size:,} bytes for {stored:,} stored ones, "
            "taken for a mistake or an attack"
        )
    return group


def row_group_reader(source: Any, metadata: pq.FileMetaData, schema: pa.Schema, name: str) -> pq.ParquetFile:
    """Return a row-group reader that stores equal texts and bytes once. source: anything that Arrow reads.

    Raises: Corrupt if the footer spells a column's name in two ways; ArrowException.
    """
    shared = [one.name for one in schema if pa.types.is_binary(one.type) or pa.types.is_string(one.type)]
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
    n_rows, nbytes = int(group.num_rows), int(group.total_byte_size)
    return max(1, min(1024, BATCH_BYTES * n_rows // max(1, nbytes)))
