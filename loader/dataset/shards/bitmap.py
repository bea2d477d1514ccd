"""Store sets of rows as bitmaps: a part's exclusions, a filtered view's live ordinals."""

from typing import Any

import numpy as np

Int64s = np.ndarray[Any, np.dtype[np.int64]]
Bools = np.ndarray[Any, np.dtype[np.bool_]]

BLOCK_BITS = 4096
SPARSE = 8192
"""Most members that are looked up without unpacking blocks: 4 MiB of words."""


def pack(members: Bools) -> bytes:
    """Return a bitmap: bit i (least significant first) is `members[i]`."""
    return np.packbits(members, bitorder="little").tobytes()


def unpack(data: bytes, n: int) -> Bools:
    return np.unpackbits(np.frombuffer(data, np.uint8), count=n, bitorder="little").astype(bool)


class SelectTable:
    """Finds the x-th members of a subset of [0, n), for arrays of x. Takes n/8 bytes plus a count per 4,096 bits."""

    def __init__(self, packed: bytes, n: int) -> None:
        self._n = n
        bits = np.frombuffer(packed, np.uint8)
        padded = -(-n // BLOCK_BITS) * (BLOCK_BITS // 8)
        self._bytes = np.zeros(padded, np.uint8)
        self._bytes[: len(bits)] = bits
        words = self._bytes.view(np.uint64).reshape(-1, BLOCK_BITS // 64)
        counts = np.bitwise_count(words).sum(axis=1, dtype=np.int64)
        self._before = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])

    def __len__(self) -> int:
        return int(self._before[-1])

    def packed(self) -> bytes:
        return self._bytes[: -(-self._n // 8)].tobytes()

    def rank(self, n: int) -> int:
        block, bits = divmod(n, BLOCK_BITS)
        row = self._bytes.reshape(-1, BLOCK_BITS // 8)[block : block + 1]
        return int(self._before[block]) + int(np.unpackbits(row, bitorder="little")[:bits].sum())

    def bits(self, start: int, stop: int) -> Bools:
        """Return bool [stop - start]: whether each number from `start` to before `stop` is a member."""
        first = start // 8
        octets = self._bytes[first : -(-stop // 8)]
        return np.unpackbits(octets, bitorder="little")[start - 8 * first : stop - 8 * first].astype(bool)

    def after(self, n: int) -> "SelectTable":
        """Return the members from `n` on, counted from `n`."""
        first, shift = divmod(n, 8)
        octets = np.append(self._bytes[first : -(-self._n // 8)], np.uint8(0)).astype(np.uint16)
        later: np.ndarray[Any, Any] = (octets[:-1] | octets[1:] << 8) >> shift
        return SelectTable(later.astype(np.uint8)[: -(-(self._n - n) // 8)].tobytes(), self._n - n)

    def _select_apart(self, block: Int64s, rank: Int64s) -> Int64s:
        """Return int64 members by block and rank within it, from counts of words. O(64) per member."""
        words = self._bytes.view(np.uint64).reshape(-1, BLOCK_BITS // 64)[block]
        ends = np.cumsum(np.bitwise_count(words), axis=1, dtype=np.int64)
        word = (ends <= rank[:, None]).sum(axis=1)
        row = np.arange(len(block))
        within = rank - np.where(word > 0, ends[row, word - 1], 0)
        octets = words[row, word][:, None].view(np.uint8)
        bits = np.cumsum(np.unpackbits(octets, axis=1, bitorder="little"), axis=1, dtype=np.int64)
        members: Int64s = block * BLOCK_BITS + word * 64 + (bits <= within[:, None]).sum(axis=1)
        return members

    def select(self, x: Int64s) -> Int64s:
        """Return int64 members: the x-th smallest, 0 <= x < len(self)."""
        if not len(x):
            return np.zeros(0, np.int64)
        block = np.searchsorted(self._before, x, side="right") - 1
        rank = x - self._before[block]
        out = np.empty(len(x), np.int64)
        blocks = self._bytes.reshape(-1, BLOCK_BITS // 8)
        order = np.argsort(block, kind="stable")
        starts = np.flatnonzero(np.diff(block[order], prepend=-1))
        # A random batch has a block per member: 20 us each, unpacked.
        if len(x) <= min(4 * len(starts), SPARSE):
            return self._select_apart(block, rank)
        for first, last in zip(starts, [*starts[1:], len(order)], strict=True):
            group = order[first:last]
            number = int(block[group[0]])
            members = np.flatnonzero(np.unpackbits(blocks[number], bitorder="little"))
            out[group] = number * BLOCK_BITS + members[rank[group]]
        return out
