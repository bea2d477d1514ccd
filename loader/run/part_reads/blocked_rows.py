"""Rows of large arrays and frames of long videos: a window reads the blocks that it needs, which are cached."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from threading import local
from typing import Any

import numpy as np

from ...dataset.reading.verified_bucket_reads import FieldPart, PartsOfField, raise_corrupt
from ...dataset.shards.address import UNKNOWN_CRC, SampleAddress, crc_text
from ...errors import Corrupt, DecodeFailed
from ...modalities.array import npy_layout
from ...modalities.row_blocks import SUFFIX, RowBlocks, RowIndexer, has_rows
from ...modalities.video.packet_pages import PacketPage, PacketPages, joined
from ...modalities.video.packet_table import SUFFIX as PACKETS
from ...modalities.video.timeline import Timeline
from ...order.random.keyed_permutation import I64
from ...storage.requests import retry_corrupt
from ...storage.threads import SizedLru
from .video_packet_reads import Readers

PIECE_BYTES = 16 * 2**20
"""Bytes of an array without row blocks that are read together to compute them."""
Key = tuple[int, str, int]
"""(ordinal of the episode, stored field, number of the block)."""


class BlocksMissing(Exception):
    """Blocks are needed that are not in memory."""

    def __init__(self, blocks: "Mapping[BlockSource, set[int]]") -> None:
        super().__init__(blocks)
        self.blocks = blocks


class BlockCache:
    """Least-recently-used blocks, bounded in bytes; thread-safe. Blocks that a batch uses stay until it is complete."""

    def __init__(self, limit_bytes: int) -> None:
        self._blocks = SizedLru(limit_bytes)
        self._own = local()

    @contextmanager
    def batch(self) -> Iterator[None]:
        self._own.held = {}
        try:
            yield
        finally:
            self._own.held = {}

    def get(self, key: Key) -> Any:
        held: dict[Key, Any] = self._own.held
        if key not in held:
            block = self._blocks.get(key)
            if block is None:
                return None
            held[key] = block
        return held[key]

    def put(self, key: Key, block: Any, nbytes: int) -> None:
        """Add a block. An error lasts for this batch only."""
        self._own.held[key] = block
        if not isinstance(block, Corrupt):
            self._blocks.put(key, block, nbytes)


class BlockSource:
    """Reads and caches the blocks of one stored field.

    part: returns (offset, size, CRC-32C) of a block. parse: returns the block in its bytes, or raises DecodeFailed.
    name: returns the name of a block's checksum, for errors.
    """

    def __init__(
        self,
        address: SampleAddress,
        field: str,
        cache: BlockCache,
        part: Callable[[int], tuple[int, int, int]],
        parse: Callable[[int, bytes | memoryview], Any],
        name: Callable[[int], str],
    ) -> None:
        self.address = address
        self.field = field
        self._cache = cache
        self.part = part
        self._parse = parse
        self.name = name

    def blocks(self, numbers: I64) -> dict[int, Any]:
        """Return the blocks with these numbers. Raises: BlocksMissing; the error of a corrupt one."""
        cached: dict[int, Any] = {}
        for number in np.unique(numbers).tolist():
            key = (self.address.ordinal, self.field, number)
            cached[number] = self._cache.get(key)
        missing = {number for number, block in cached.items() if block is None}
        if missing:
            # The caller reads the missing blocks of all samples together, and tries again.
            raise BlocksMissing({self: missing})
        for block in cached.values():
            if isinstance(block, Corrupt):
                raise block
        return cached

    def take(self, number: int, data: bytes | memoryview | Corrupt) -> None:
        """Parse and cache a block that was read. number: the block's. data: its bytes, or why they are corrupt.

        An error is cached in the block's place, and `blocks` raises it: other samples of the batch are intact.
        """
        nbytes = 0
        block: Any = data
        if not isinstance(data, Corrupt):
            nbytes = len(data)
            try:
                block = self._parse(number, data)
            except DecodeFailed as error:
                at = self.address.describe(self.field)
                block = error.with_message(f"{at}: {error}", where=at)
        self._cache.put((self.address.ordinal, self.field, number), block, nbytes)


def read_blocks(blocks: Mapping[BlockSource, set[int]], readers: Readers) -> None:
    """Read blocks together into their sources' caches. blocks: source -> the numbers of its blocks."""
    sought: list[tuple[BlockSource, int]] = []
    requests: list[PartsOfField] = []
    for source, numbers in blocks.items():
        for block in sorted(numbers):
            part = FieldPart(*source.part(block))
            sought.append((source, block))
            requests.append(PartsOfField(source.address, source.field, [[part]], source.name(block)))
    bad: dict[int, Corrupt] = {}  # number of the request -> why its bytes are corrupt
    read = readers.parts(requests, bad.setdefault)
    for number, (source, block) in enumerate(sought):
        if number in bad:
            source.take(block, bad[number])
        else:
            source.take(block, read[number][0])


class BlockedRows:
    """An array of rows in blocks: `rows[numbers]`, and `searchsorted` if it is a clock. Both raise BlocksMissing.

    starts: int64 [blocks + 1], number of each block's first row, then of all rows.
    values: returns the rows of a source's block.
    times: int64 [blocks + 1], first value of each block, then the last of all; None unless it is a clock.
    """

    def __init__(
        self,
        source: BlockSource,
        starts: I64,
        dtype: np.dtype[Any],
        shape: tuple[int, ...],
        values: Callable[[Any], np.ndarray],
        times: I64 | None = None,
    ) -> None:
        self._source = source
        self._starts = starts
        self._values = values
        self.times = times
        self.dtype = dtype
        self.shape = (int(starts[-1]), *shape)
        self.ndim = 1 + len(shape)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Any) -> Any:
        numbers = np.asarray(rows, np.int64)
        flat = numbers.reshape(-1)  # [n]
        flat = np.where(flat < 0, flat + len(self), flat)
        which = np.searchsorted(self._starts, flat, side="right") - 1  # [n]: block of each row
        out = np.empty((*flat.shape, *self.shape[1:]), self.dtype)
        unread = np.ones(flat.shape, bool)
        if self.times is not None:
            # The head states the first value of each block, and the last of all: these rows need no block.
            is_first = flat == self._starts[which]
            is_last = flat == len(self) - 1
            out[is_first] = self.times[which[is_first]]
            out[is_last] = self.times[-1]
            unread = ~(is_first | is_last)
        for values, start, here in self._group_blocks(which, unread):
            out[here] = values[flat[here] - start]
        if numbers.ndim:
            return out.reshape(*numbers.shape, *self.shape[1:])
        return out[0]

    def searchsorted(self, times: Any, side: str) -> Any:
        assert self.times is not None
        assert side == "right"
        sought = np.asarray(times, np.int64)
        flat = sought.reshape(-1)  # [n]
        # [n]: block of each time, -1 before all
        which = np.searchsorted(self.times[:-1], flat, side="right") - 1
        # Times before the first block and after the last one need no block.
        out = np.where(which < 0, 0, len(self))
        inside = (which >= 0) & (flat < self.times[-1])
        for values, start, here in self._group_blocks(which, inside):
            out[here] = start + np.searchsorted(values, flat[here], side="right")
        if sought.ndim:
            return out.reshape(sought.shape)
        return int(out[0])

    def _group_blocks(self, which: I64, chosen: np.ndarray) -> Iterator[tuple[Any, int, I64]]:
        """Yield (rows of a block, number of its first, places of the block among the chosen of `which`)."""
        blocks = self._source.blocks(which[chosen])
        places = np.flatnonzero(chosen)
        places = places[np.argsort(which[places], kind="stable")]
        if not len(places):  # `np.split` of nothing returns one empty group
            return
        block_starts = np.flatnonzero(np.diff(which[places])) + 1  # where another block begins
        for here in np.split(places, block_starts):
            block = int(which[here[0]])
            yield self._values(blocks[block]), int(self._starts[block]), here


def index_field(address: SampleAddress, field: str, readers: Readers) -> RowBlocks | None:
    """Return the row blocks of an array field, from its bytes in pieces of `PIECE_BYTES`; None without contiguous rows.

    Raises: Corrupt; DecodeFailed.
    """
    return retry_corrupt(partial(_index_field, address, field, readers))


def _index_field(address: SampleAddress, field: str, readers: Readers) -> RowBlocks | None:
    place = address.fields[field]
    indexer: RowIndexer | None = None
    for at in range(0, place.nbytes, PIECE_BYTES):
        part = FieldPart(at, min(PIECE_BYTES, place.nbytes - at), UNKNOWN_CRC)
        ((data,),) = readers.parts([PartsOfField(address, field, [[part]])], raise_corrupt)
        if indexer is None:
            layout = npy_layout(data)
            if not has_rows(layout) or len(layout.head) + layout.nbytes != place.nbytes:
                return None  # read whole, which raises if its size is wrong
            indexer = RowIndexer(layout)
        indexer.add(data)
    if indexer is None:
        blocks = None
    else:
        blocks = indexer.blocks()
    if blocks is not None and blocks.crc32c != place.crc32c != UNKNOWN_CRC:
        raise Corrupt(
            f"{address.describe(field)}: its CRC-32C is {crc_text(blocks.crc32c)}, the index has "
            f"{crc_text(place.crc32c)}: it was damaged or replaced; restore it from a mirror",
            what=field,
            where=address.describe(field),
            given=crc_text(blocks.crc32c),
            accepted=crc_text(place.crc32c),
        )
    return blocks


def rows_in_blocks(
    address: SampleAddress, field: str, blocks: RowBlocks, cache: BlockCache, is_clock: bool
) -> BlockedRows:
    def parse(number: int, data: bytes | memoryview) -> np.ndarray:
        rows = blocks.array(number, data)
        if is_clock:
            back = np.flatnonzero(rows[1:] <= rows[:-1])
            if len(back):
                row = blocks.block_range(number).start + int(back[0]) + 1
            else:
                row = blocks.block_range(number).stop
            assert blocks.times is not None
            if len(back) or (row < len(blocks) and rows[-1] >= blocks.times[number + 1]):
                raise DecodeFailed(
                    f"a clock does not ascend: row {row}", what=f"row {row}", accepted="ascending times"
                )
        return rows

    def name(number: int) -> str:
        rows = blocks.block_range(number)
        return f"block {number} (rows {rows.start} to {rows.stop - 1}) of {field}{SUFFIX}"

    source = BlockSource(address, field, cache, blocks.part, parse, name)
    n = len(blocks)
    step = blocks.block_rows
    starts = np.append(np.arange(0, n, step, dtype=np.int64), n)
    return BlockedRows(source, starts, blocks.layout.dtype, blocks.layout.shape[1:], _same, blocks.times)


def _same(block: np.ndarray) -> np.ndarray:
    return block


class PagedVideo:
    """A long video's packets, page by page.

    address: of the packet table. frame_times: returns the times of a page's frames, int64 ns.
    """

    def __init__(
        self,
        address: SampleAddress,
        field: str,
        pages: PacketPages,
        cache: BlockCache,
        frame_times: Callable[[Timeline], I64],
    ) -> None:
        table = field + PACKETS
        self.pages = pages
        self.facts = pages.facts
        self._source = BlockSource(
            address, table, cache, pages.part, pages.page, lambda n: f"page {n} of its head"
        )
        self._frame_times = frame_times
        self._table = replace(address, fields={table: address.fields[table]})

    def packet_bytes(self, readers: Readers) -> bytes:
        (fields,) = readers.fields([self._table], raise_corrupt)
        (data,) = fields.values()
        return data

    def __len__(self) -> int:
        return len(self.pages)

    def clock(self, times: I64) -> BlockedRows:
        """Return when each frame is first shown. times: of `pages.pts`."""

        def values(page: PacketPage) -> np.ndarray:
            return self._frame_times(page.timeline)

        return BlockedRows(self._source, self.pages.starts, np.dtype(np.int64), (), values, times)

    def packets(self, frames: Sequence[int]) -> tuple[PacketPage, list[int]]:
        """Return (the packets of the pages with these frames, the frames' numbers there). Raises: BlocksMissing."""
        numbers = np.array(frames, np.int64)
        starts = self.pages.starts
        which = np.searchsorted(starts, numbers, side="right") - 1
        pages = self._source.blocks(which)
        before = 0
        own = np.zeros_like(numbers)
        for number, page in pages.items():
            is_in_page = which == number
            own[is_in_page] = numbers[is_in_page] - starts[number] + before
            before += len(page.timeline)
        try:
            return joined(list(pages.values())), own.tolist()
        except DecodeFailed as error:
            at = self._table.describe(self._source.field)
            raise error.with_message(f"{at}: {error}", where=at) from None
