"""Store sets of rows as bitmaps: a part's exclusions, a filtered view's live ordinals."""

from collections.abc import Iterable
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Int64s = NDArray[np.int64]
Bools = NDArray[np.bool_]

BLOCK_BITS = 4096
WORD_BITS = 64
BLOCK_BYTES = BLOCK_BITS // 8
BLOCK_WORDS = BLOCK_BITS // WORD_BITS
MOST_FROM_WORDS = 8192
"""Most members that are looked up without unpacking blocks: 4 MiB of words."""
MEMBERS_PER_BLOCK = 4
"""Mean members of a block up to which words are faster than unpacking the block, which takes 20 us."""


def pack(members: Bools) -> bytes:
    """Return a bitmap: bit i (least significant first) is `members[i]`."""
    return np.packbits(members, bitorder="little").tobytes()


def pack_pieces(pieces: Iterable[Bools], n: int, together: int) -> NDArray[np.uint8]:
    """Return the bitmap of `n` members in pieces, uint8.

    together: members that are joined before they are packed: bounds the memory, beside the largest piece.
    """
    packed = np.zeros(-(-n // 8), np.uint8)
    n_octets = 0  # filled so far
    waiting: list[Bools] = []
    n_waiting = 0

    def append(values: Bools) -> None:
        nonlocal n_octets
        octets = np.packbits(values, bitorder="little")
        end = n_octets + len(octets)
        packed[n_octets:end] = octets
        n_octets = end

    for piece in pieces:
        waiting.append(piece)
        n_waiting += len(piece)
        if n_waiting >= together:
            values = np.concatenate(waiting)
            n_whole = n_waiting // 8 * 8  # the rest waits: only the last octet may have fewer bits
            append(values[:n_whole])
            waiting = [values[n_whole:]]
            n_waiting -= n_whole
    append(np.concatenate([np.zeros(0, bool), *waiting]))
    return packed


def unpack(data: bytes, n: int) -> Bools:
    """Return bool [n]: the members of a bitmap from `pack`."""
    octets = np.frombuffer(data, np.uint8)
    bits = np.unpackbits(
        octets,
        count=n,
        bitorder="little",
    )
    return bits.astype(bool)


def _unpack_bits(octets: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return uint8 [..., 8 * bytes]: the bits of each byte, least significant first."""
    return np.unpackbits(
        octets,
        axis=-1,
        bitorder="little",
    )


class SelectTable:
    """Finds the x-th members of a subset of [0, n), for arrays of x. Takes n/8 bytes plus a count per 4,096 bits."""

    def __init__(
        self,
        packed: bytes,
        n: int,
    ) -> None:
        self._n = n

        # Zeros fill the last block: all blocks are counted and unpacked alike.
        n_blocks = -(-n // BLOCK_BITS)
        nbytes = n_blocks * BLOCK_BYTES
        octets = np.frombuffer(packed, np.uint8)
        self._bytes = np.zeros(nbytes, np.uint8)
        self._bytes[: len(octets)] = octets

        words = self._words()
        word_counts = np.bitwise_count(words)
        block_counts = word_counts.sum(axis=1, dtype=np.int64)
        self._before = np.zeros(n_blocks + 1, np.int64)  # members before each block, then all members
        np.cumsum(
            block_counts,
            out=self._before[1:],
        )

    def __len__(self) -> int:
        n_members = self._before[-1]
        return int(n_members)

    def packed(self) -> bytes:
        """Return the subset as a bitmap, as from `pack`."""
        nbytes = -(-self._n // 8)
        octets = self._bytes[:nbytes]
        return octets.tobytes()

    def rank(self, n: int) -> int:
        """Return the number of members below `n`."""
        block, bit = divmod(n, BLOCK_BITS)
        before_block = int(self._before[block])
        bits = self._block(block)
        before_bit = bits[:bit].sum()
        return before_block + int(before_bit)

    def bits(
        self,
        start: int,
        stop: int,
    ) -> Bools:
        """Return bool [stop - start]: whether each number from `start` to before `stop` is a member."""
        first_byte = start // 8
        end_byte = -(-stop // 8)
        octets = self._bytes[first_byte:end_byte]
        bits = _unpack_bits(octets)

        # The first and the last byte may have bits outside the range.
        offset = 8 * first_byte
        first_bit = start - offset
        end_bit = stop - offset
        is_member = bits[first_bit:end_bit]
        return is_member.astype(bool)

    def after(self, n: int) -> "SelectTable":
        """Return the members from `n` on, counted from `n`."""
        first_byte, shift = divmod(n, 8)
        end_byte = -(-self._n // 8)
        octets = self._bytes[first_byte:end_byte]

        # Each new byte has the high bits of one byte and the low bits of the next; a 0 follows the last byte.
        zero = np.uint8(0)
        padded = np.append(octets, zero)
        wide = padded.astype(np.uint16)
        low = wide[:-1]
        high = wide[1:] << 8
        both = low | high
        shifted = both >> shift
        octets_after = shifted.astype(np.uint8)

        n_after = self._n - n
        nbytes_after = -(-n_after // 8)
        packed = octets_after[:nbytes_after].tobytes()
        return SelectTable(packed, n_after)

    def select(self, x: Int64s) -> Int64s:
        """Return int64 members: the x-th smallest, 0 <= x < len(self)."""
        if not len(x):
            return np.zeros(0, np.int64)

        block = np.searchsorted(self._before, x, side="right") - 1
        before_block = self._before[block]
        rank = x - before_block  # [n]: index of the member in its block

        order = np.argsort(block, kind="stable")
        step = np.diff(block[order])
        starts = np.flatnonzero(step) + 1  # in `order`, where a block begins, except the first

        # In a random batch, most members have a block of their own: then it is not worth unpacking.
        n_blocks = len(starts) + 1
        most_from_words = min(MEMBERS_PER_BLOCK * n_blocks, MOST_FROM_WORDS)
        if len(x) <= most_from_words:
            return self._select_from_words(block, rank)
        return self._select_from_blocks(
            block,
            rank,
            order,
            starts,
        )

    def _select_from_blocks(
        self,
        block: Int64s,
        rank: Int64s,
        order: Int64s,
        starts: Int64s,
    ) -> Int64s:
        """Return int64 members by block and rank within it, from each block's unpacked bits.

        order: int64 [n], members by block. starts: positions in `order` where a block begins, except the first.
        """
        members = np.empty(len(block), np.int64)
        bounds = [
            0,
            *starts.tolist(),
            len(order),
        ]
        for start, end in pairwise(bounds):  # `np.split` takes 3 % longer
            rows = order[start:end]  # of `members`: those with the same block
            number = int(block[rows[0]])
            bits = self._block(number)
            members_in_block = np.flatnonzero(bits)
            first_number = number * BLOCK_BITS
            members[rows] = first_number + members_in_block[rank[rows]]
        return members

    def _select_from_words(
        self,
        block: Int64s,
        rank: Int64s,
    ) -> Int64s:
        """Return int64 members by block and rank within it, from counts of words. O(64) per member."""
        words = self._words()[block]  # [n, 64]
        word_counts = np.bitwise_count(words)
        word_ends = np.cumsum(
            word_counts,
            axis=1,
            dtype=np.int64,
        )
        is_earlier = word_ends <= rank[:, None]
        word = is_earlier.sum(axis=1)  # [n]: number of each member's word in its block

        # A member in its block's first word has none before the word.
        row = np.arange(len(block))
        earlier_end = word_ends[row, word - 1]
        before_word = np.where(word > 0, earlier_end, 0)
        rank_in_word = rank - before_word

        member_words = words[row, word]
        octets = member_words[:, None].view(np.uint8)  # [n, 8]
        bits = _unpack_bits(octets)  # [n, 64]
        bit_ends = np.cumsum(
            bits,
            axis=1,
            dtype=np.int64,
        )
        is_lower = bit_ends <= rank_in_word[:, None]
        bit = is_lower.sum(axis=1)

        members: Int64s = block * BLOCK_BITS
        members += word * WORD_BITS
        members += bit
        return members

    def _block(self, number: int) -> NDArray[np.uint8]:
        """Return the bits of a block, uint8 [4096]; none after the last block."""
        start = number * BLOCK_BYTES
        end = start + BLOCK_BYTES
        octets = self._bytes[start:end]
        return _unpack_bits(octets)

    def _words(self) -> NDArray[np.uint64]:
        """Return the blocks as uint64 [blocks, 64]."""
        words = self._bytes.view(np.uint64)
        return words.reshape(-1, BLOCK_WORDS)
