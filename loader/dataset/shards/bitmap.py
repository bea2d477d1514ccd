"""Store sets of rows as bitmaps: a part's exclusions, a filtered view's live ordinals."""

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Int64s = NDArray[np.int64]
Bools = NDArray[np.bool_]

BLOCK_BITS = 4096
WORD_BITS = 64
BLOCK_BYTES = BLOCK_BITS // 8
BLOCK_WORDS = BLOCK_BITS // WORD_BITS
SPARSE = 8192
"""Most members that are looked up without unpacking blocks: 4 MiB of words."""


def pack(members: Bools) -> bytes:
    """Return a bitmap: bit i (least significant first) is `members[i]`."""
    return np.packbits(members, bitorder="little").tobytes()


def unpack(data: bytes, n: int) -> Bools:
    octets = np.frombuffer(data, np.uint8)
    bits = np.unpackbits(octets, count=n, bitorder="little")
    return bits.astype(bool)


def _unpacked(octets: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return uint8 [..., 8 * bytes]: the bits of each byte, least significant first."""
    return np.unpackbits(octets, axis=-1, bitorder="little")


class SelectTable:
    """Finds the x-th members of a subset of [0, n), for arrays of x. Takes n/8 bytes plus a count per 4,096 bits."""

    def __init__(self, packed: bytes, n: int) -> None:
        n_blocks = -(-n // BLOCK_BITS)
        octets = np.frombuffer(packed, np.uint8)
        self._n = n
        self._bytes = np.zeros(n_blocks * BLOCK_BYTES, np.uint8)
        self._bytes[: len(octets)] = octets

        word_counts = np.bitwise_count(self._words())
        block_counts = word_counts.sum(axis=1, dtype=np.int64)
        self._before = np.zeros(n_blocks + 1, np.int64)  # members before each block, then all members
        np.cumsum(block_counts, out=self._before[1:])

    def __len__(self) -> int:
        return int(self._before[-1])

    def packed(self) -> bytes:
        nbytes = -(-self._n // 8)
        return self._bytes[:nbytes].tobytes()

    def rank(self, n: int) -> int:
        block, bit = divmod(n, BLOCK_BITS)
        before_block = int(self._before[block])
        before_bit = self._block(block)[:bit].sum()
        return before_block + int(before_bit)

    def bits(self, start: int, stop: int) -> Bools:
        """Return bool [stop - start]: whether each number from `start` to before `stop` is a member."""
        first_byte = start // 8
        end_byte = -(-stop // 8)
        bits = _unpacked(self._bytes[first_byte:end_byte])
        first_bit = start - 8 * first_byte
        end_bit = stop - 8 * first_byte
        is_member = bits[first_bit:end_bit]
        return is_member.astype(bool)

    def after(self, n: int) -> "SelectTable":
        """Return the members from `n` on, counted from `n`."""
        first_byte, shift = divmod(n, 8)
        end_byte = -(-self._n // 8)
        n_after = self._n - n
        nbytes_after = -(-n_after // 8)

        # Each new byte has the high bits of one byte and the low bits of the next; a 0 follows the last byte.
        octets = self._bytes[first_byte:end_byte]
        wide = np.append(octets, np.uint8(0)).astype(np.uint16)
        low = wide[:-1]
        high = wide[1:] << 8
        shifted = (low | high) >> shift
        bytes_after = shifted.astype(np.uint8)[:nbytes_after]
        return SelectTable(bytes_after.tobytes(), n_after)

    def select(self, x: Int64s) -> Int64s:
        """Return int64 members: the x-th smallest, 0 <= x < len(self)."""
        if not len(x):
            return np.zeros(0, np.int64)
        block = np.searchsorted(self._before, x, side="right") - 1
        rank = x - self._before[block]  # [n]: index of the member in its block
        order = np.argsort(block, kind="stable")
        step = np.diff(block[order])
        starts = np.flatnonzero(step) + 1  # in `order`, where a block begins, except the first

        # A random batch has a block per member, and unpacking a block takes 20 us.
        n_blocks = len(starts) + 1
        if len(x) <= min(4 * n_blocks, SPARSE):
            return self._select_from_words(block, rank)

        members = np.empty(len(x), np.int64)
        bounds = [0, *starts.tolist(), len(order)]
        for start, end in pairwise(bounds):  # `np.split` takes 3 % longer
            rows = order[start:end]  # of x: those with the same block
            number = int(block[rows[0]])
            members_in_block = np.flatnonzero(self._block(number))
            members[rows] = number * BLOCK_BITS + members_in_block[rank[rows]]
        return members

    def _select_from_words(
        self,
        block: Int64s,
        rank: Int64s,
    ) -> Int64s:
        """Return int64 members by block and rank within it, from counts of words. O(64) per member."""
        words = self._words()[block]  # [n, 64]
        word_counts = np.bitwise_count(words)
        word_ends = np.cumsum(word_counts, axis=1, dtype=np.int64)
        is_earlier = word_ends <= rank[:, None]
        word = is_earlier.sum(axis=1)  # [n]: number of each member's word in its block

        row = np.arange(len(block))
        before_word = np.where(word > 0, word_ends[row, word - 1], 0)
        rank_in_word = rank - before_word
        octets = words[row, word][:, None].view(np.uint8)  # [n, 8]
        bit_ends = np.cumsum(_unpacked(octets), axis=1, dtype=np.int64)
        is_lower = bit_ends <= rank_in_word[:, None]
        bit = is_lower.sum(axis=1)

        members: Int64s = block * BLOCK_BITS
        members += word * WORD_BITS
        members += bit
        return members

    def _block(self, number: int) -> NDArray[np.uint8]:
        """Return the bits of a block, uint8 [4096]; none behind the last block."""
        start = number * BLOCK_BYTES
        end = start + BLOCK_BYTES
        return _unpacked(self._bytes[start:end])

    def _words(self) -> NDArray[np.uint64]:
        """Return the blocks as uint64 [blocks, 64]."""
        return self._bytes.view(np.uint64).reshape(-1, BLOCK_WORDS)
