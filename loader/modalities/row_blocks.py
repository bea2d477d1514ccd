"""Row blocks of a large array, field `<field>.rows`: checksums by which single rows are read.

`MAGIC`, the .npy header, the CRC-32C of the whole field, then a CRC-32C for each block of rows. An int64 [n] may be a
clock: its row blocks end with the first value of each block and the last of all, so that a search reads one block.
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
from google_crc32c import extend
from google_crc32c import value as crc32c

from ..errors import DecodeFailed
from .array import NpyLayout, npy_layout
from .fields import MAX_FIELD_BYTES, ROWS_SUFFIX, Buffer, last_word

SUFFIX = ROWS_SUFFIX
MAGIC = b"penrows\x01"
BLOCK_BYTES = 65_536
MIN_BYTES = 2**20
"""Size of an array field from which importers write row blocks, and from which windows use them."""

I64 = npt.NDArray[np.int64]
U32 = npt.NDArray[np.uint32]


class RowBlocks:
    """Places and checksums of an array's blocks of rows."""

    __slots__ = ("block_rows", "crc32c", "crcs", "layout", "times")

    def __init__(
        self, layout: NpyLayout, crc32c: int, crcs: npt.NDArray[np.uint32], times: I64 | None
    ) -> None:
        """crc32c: of the field. crcs: of blocks. times: int64 [blocks + 1], of a clock; None for other arrays."""
        self.layout = layout
        self.crc32c = crc32c
        self.crcs = crcs
        self.times = times
        self.block_rows = _block_rows(layout)

    def __len__(self) -> int:
        return self.layout.shape[0]

    @property
    def nbytes(self) -> int:
        return len(self.layout.head) + self.layout.nbytes

    def block_range(self, block: int) -> range:
        first = block * self.block_rows
        return range(first, min(first + self.block_rows, len(self)))

    def part(self, block: int) -> tuple[int, int, int]:
        rows = self.block_range(block)
        row_nbytes = self.layout.nbytes // len(self)
        begin = len(self.layout.head) + rows.start * row_nbytes
        return begin, len(rows) * row_nbytes, int(self.crcs[block])

    def array(self, block: int, data: Buffer) -> np.ndarray:
        """Return a block's rows from its bytes, read-only. Raises: DecodeFailed for a clock that does not ascend."""
        rows = self.block_range(block)
        values = np.frombuffer(bytes(data), self.layout.dtype)
        array = values.reshape(len(rows), *self.layout.shape[1:])
        if self.times is None:
            return array
        is_right = array[0] == self.times[block]
        if rows.stop == len(self):
            is_right = is_right and array[-1] == self.times[-1]
        if not is_right:
            raise DecodeFailed(
                f"row blocks: block {block} does not start or end where the header states; recompute them",
                what="row blocks",
                where=f"block {block}",
                accepted="first and last times as in the header",
            )
        return array


class RowIndexer:
    """Computes the row blocks of a .npy file from its bytes, piece by piece. Holds less than a block of them."""

    def __init__(self, layout: NpyLayout) -> None:
        """layout: of an array with contiguous rows (`has_rows`)."""
        self._layout = layout
        self._head_left = len(layout.head)
        self._waiting = b""
        row_nbytes = layout.nbytes // layout.shape[0]
        self._step = _block_rows(layout) * row_nbytes
        self._crc32c = 0
        self._crcs = list[int]()
        self._times = list[int]()

    def add(self, data: Buffer) -> None:
        view = memoryview(data)
        self._crc32c = extend(self._crc32c, bytes(view))
        in_head = min(self._head_left, len(view))
        self._head_left -= in_head
        body = self._waiting + view[in_head:]
        n_whole = len(body) // self._step
        for block in range(n_whole):
            begin = block * self._step
            self._block(body[begin : begin + self._step])
        self._waiting = body[n_whole * self._step :]

    def blocks(self) -> RowBlocks:
        if self._waiting:
            self._block(self._waiting)
        crcs = np.array(self._crcs, np.uint32)
        times = None
        if _is_clock(self._layout):
            times = np.array(self._times, np.int64)
        return RowBlocks(self._layout, self._crc32c, crcs, times)

    def _block(self, data: bytes) -> None:
        self._crcs.append(crc32c(data))
        if _is_clock(self._layout):
            values = np.frombuffer(data, "<i8")
            self._times[-1:] = [int(values[0]), int(values[-1])]  # the last value of all stays at the end


def index_rows(data: Buffer) -> bytes:
    """Return the row blocks of a .npy file; b"" if its rows are not contiguous. Equal arrays give equal bytes.

    Raises: DecodeFailed.
    """
    view = memoryview(data)
    layout = npy_layout(view)
    nbytes = len(layout.head) + layout.nbytes
    if len(view) != nbytes:
        raise DecodeFailed(
            f"npy: {len(view)} bytes, its header describes {nbytes}",
            what="npy",
            given=len(view),
            accepted=nbytes,
        )
    if not has_rows(layout):
        return b""
    indexer = RowIndexer(layout)
    indexer.add(view)
    blocks = indexer.blocks()
    times = b""
    if blocks.times is not None:
        times = blocks.times.astype("<i8").tobytes()
    crcs = np.array([blocks.crc32c, *blocks.crcs], "<u4")
    return b"".join([MAGIC, layout.head, crcs.tobytes(), times])


def read_rows(data: Buffer) -> RowBlocks:
    """Return row blocks from a field's verified bytes. Raises: DecodeFailed."""
    view = memoryview(data)
    magic = bytes(view[: len(MAGIC)])
    if magic != MAGIC:
        raise DecodeFailed(
            f"row blocks: begin with {magic!r}, not {MAGIC!r}: damaged, or of a later penstock",
            what="row blocks",
            given=magic,
            accepted=MAGIC,
        )
    layout = npy_layout(view[len(MAGIC) :])
    if not has_rows(layout):
        raise DecodeFailed(
            f"row blocks: of {layout.dtype} {list(layout.shape)}, which has no contiguous rows",
            what="row blocks",
            given=[str(layout.dtype), *layout.shape],
            accepted="contiguous rows",
        )
    rest = view[len(MAGIC) + len(layout.head) :]
    n_blocks = -(-layout.shape[0] // _block_rows(layout))
    crcs_nbytes = 4 * (1 + n_blocks)
    times_nbytes = 0
    if _is_clock(layout):
        times_nbytes = 8 * (n_blocks + 1)
    if len(rest) != crcs_nbytes + times_nbytes:
        raise DecodeFailed(
            f"row blocks: {len(rest)} bytes of checksums for {n_blocks} blocks; recompute them",
            what="row blocks",
            given=len(rest),
            accepted=crcs_nbytes + times_nbytes,
        )
    crcs = np.frombuffer(rest[:crcs_nbytes], "<u4")
    times = None
    if times_nbytes:
        times = np.frombuffer(rest[crcs_nbytes:], "<i8")
    blocks = RowBlocks(layout, int(crcs[0]), crcs[1:], times)
    if _blocks_crc(blocks) != blocks.crc32c:
        raise DecodeFailed(
            "row blocks: header and blocks belong to another array; recompute them",
            what="checksum of the row blocks",
            given=_blocks_crc(blocks),
            accepted=blocks.crc32c,
        )
    return blocks


def with_row_blocks(fields: Mapping[str, bytes]) -> dict[str, bytes]:
    out = dict(fields)
    for field, data in fields.items():
        if not has_row_blocks(field, len(data)):
            continue
        rows = index_rows(data)
        if rows:
            out[field + SUFFIX] = rows
    return out


def has_row_blocks(field: str, nbytes: int) -> bool:
    """Return whether a field of this size has row blocks, if its rows are contiguous."""
    is_named = last_word(field) == "npy" and len(field + SUFFIX) <= MAX_FIELD_BYTES
    return is_named and nbytes > MIN_BYTES


def _blocks_crc(blocks: RowBlocks) -> int:
    """Return the CRC-32C of the whole field from its header's and its blocks' CRCs, in log2(blocks) rounds."""
    head_crc = np.uint32(crc32c(blocks.layout.head))
    crcs = np.append(head_crc, blocks.crcs[:-1])  # the last block may be shorter
    _, nbytes, _ = blocks.part(0)
    shift = _shift_factor(nbytes)
    while len(crcs) > 1:  # in pairs; zeros in front change nothing
        padding = np.zeros(len(crcs) % 2, np.uint32)
        crcs = np.append(padding, crcs)
        crcs = _times(shift, crcs[::2]) ^ crcs[1::2]
        shift = _times(shift, shift)  # a pair is twice as long
    last = len(blocks.crcs) - 1
    _, last_nbytes, last_crc = blocks.part(last)
    return crc_appended(int(crcs[0]), last_crc, last_nbytes)


def crc_appended(crc: int, part_crc: int, nbytes: int) -> int:
    """Return the CRC-32C of bytes with a part of `nbytes` appended, from both CRCs."""
    crc = _times(_shift_factor(nbytes), crc)
    return crc ^ part_crc


def _times(factor: int, values: Any) -> Any:
    """Return polynomials (uint32, one or several) times `factor`, modulo CRC-32C's. Bit 31 is the term of degree 0."""
    product = values ^ values
    while factor:
        if factor & 0x80000000:
            product = product ^ values
        factor = factor << 1 & 0xFFFFFFFF
        values = values >> 1 ^ (values & 1) * 0x82F63B78
    return product


@lru_cache(maxsize=4096)
def _shift_factor(nbytes: int) -> int:
    """Return x ** (8 * nbytes): the factor for a CRC followed by that many bytes."""
    # As polynomials: 1 and x ** 8.
    factor = 1 << 31
    square = 1 << 23
    while nbytes:
        if nbytes & 1:
            factor = _times(factor, square)
        nbytes = nbytes >> 1
        square = _times(square, square)
    return factor


def has_rows(layout: NpyLayout) -> bool:
    if not layout.shape or not layout.nbytes:
        return False
    if layout.fortran and len(layout.shape) > 1:  # a row's values are apart
        return False
    return layout.dtype.subdtype is None


def _block_rows(layout: NpyLayout) -> int:
    row_nbytes = max(1, layout.nbytes // layout.shape[0])
    return max(1, BLOCK_BYTES // row_nbytes)


def _is_clock(layout: NpyLayout) -> bool:
    return layout.dtype == np.dtype("<i8") and len(layout.shape) == 1
