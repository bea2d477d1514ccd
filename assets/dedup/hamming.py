"""All 64-bit hashes within a few bits of another: multi-index hashing, exact.

M. Norouzi, A. Punjani, D. J. Fleet, "Fast Search in Hamming Space with Multi-Index Hashing", CVPR 2012. A hash is cut
into m chunks, and the hashes are filed under each of them. Take two hashes that differ in at most r = m q + a bits (0
<= a < m). They differ in at most q bits in one of the first a + 1 chunks, or in at most q - 1 bits in one of the
others. Were every chunk further away, the sum would be at least m q + a + 1. So a search looks up, for each chunk,
everything that lies that near to the wanted chunk, and misses nothing. Each find is checked in full.

Cost. Building: O(n) per chunk and 12 n m bytes. A search looks up `lookups` places per query and compares the hashes
that lie there. Random bits put n / 2^bits hashes at a place, real pictures twice as many. The number of chunks is
chosen so that the sum is least, which keeps them about log2(n) bits long. A query takes 130 lookups and comparisons
among ten thousand hashes, 3,100 among a million, 3,500 among ten million. A million hashes are filed in 0.4 s and
searched for 4,096 others in 0.3 s on one core.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from math import comb
from typing import Any

import numpy as np

UInt64s = np.ndarray[Any, np.dtype[np.uint64]]
Int64s = np.ndarray[Any, np.dtype[np.int64]]

BITS = 64
MAX_DISTANCE = 16
"""Beyond it every other picture is near."""

_MAX_CHUNK_BITS = 22
"""A chunk's table of places has 2^bits + 1 entries of 4 bytes: 16 MiB at most."""

_AT_ONCE = 1 << 20
"""Places looked up, and hashes compared, in one step of numpy: about 80 MiB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """A range of the bits of a hash."""

    shift: int
    """First bit."""
    bits: int
    """Number of bits."""
    radius: int
    """Most bits of the chunk that may differ."""

    @property
    def n_masks(self) -> int:
        """Number of values that lie within the radius of one."""
        return sum(comb(self.bits, flipped) for flipped in range(self.radius + 1))

    def of(self, hashes: UInt64s) -> Int64s:
        """Return the chunk's value of each hash."""
        value: Int64s = ((hashes >> np.uint64(self.shift)) & np.uint64((1 << self.bits) - 1)).astype(np.int64)
        return value


def cut(n_chunks: int, max_distance: int) -> tuple[Chunk, ...]:
    """Cut 64 bits into chunks, so that hashes at most `max_distance` apart are within the radius of one of them.

    Chunks whose radius would be below 0 need no search and are left out.
    """
    least, rest = divmod(max_distance, n_chunks)
    bits = [BITS // n_chunks + (position < BITS % n_chunks) for position in range(n_chunks)]
    return tuple(
        Chunk(shift=sum(bits[:position]), bits=bits[position], radius=least - (position > rest))
        for position in range(n_chunks)
        if least - (position > rest) >= 0
    )


@cache
def chunks_for(n_hashes: int, max_distance: int) -> tuple[Chunk, ...]:
    """Return the cut by which a search among so many hashes costs least, were their bits random.

    Raises: ValueError for a distance that is not 0 to `MAX_DISTANCE`.
    """
    if not 0 <= max_distance <= MAX_DISTANCE:
        raise ValueError(f"max_distance={max_distance}; accepted: 0 to {MAX_DISTANCE} bits")
    longest = min(_MAX_CHUNK_BITS, max(8, n_hashes.bit_length() + 1))
    cuts = (cut(n_chunks, max_distance) for n_chunks in range(3, 17))
    fitting = [chunks for chunks in cuts if max(chunk.bits for chunk in chunks) <= longest]
    return min(
        fitting, key=lambda chunks: sum(chunk.n_masks * (2 + n_hashes / 2**chunk.bits) for chunk in chunks)
    )


@cache
def masks(bits: int, radius: int) -> Int64s:
    """Return int64 [n]: every value of so many bits with at most `radius` of them set."""
    found = [
        sum(1 << bit for bit in chosen)
        for flipped in range(radius + 1)
        for chosen in combinations(range(bits), flipped)
    ]
    return np.array(found, np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkTable:
    """Hashes filed under one chunk."""

    chunk: Chunk
    """Chunk that they are filed under."""
    rows: np.ndarray[Any, np.dtype[np.int32]]
    """int32 [n]: rows of the hashes, in the order of their chunk's value."""
    hashes: UInt64s
    """uint64 [n]: hashes, in the order of `rows`."""
    starts: np.ndarray[Any, np.dtype[np.int32]]
    """int32 [2^bits + 1]: place where each value of the chunk begins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HashIndex:
    """n rows of k hashes, ready to be searched.

    A row is near to another when each of its hashes lies within `max_distance` bits of the other's at the same place.
    """

    hashes: UInt64s
    """uint64 [n, k]."""
    max_distance: int
    """Most bits in which near hashes differ."""
    tables: tuple[ChunkTable, ...]
    """Tables that the first of the k hashes is filed in."""

    @property
    def lookups(self) -> int:
        """Places looked up per query."""
        return sum(table.chunk.n_masks for table in self.tables)


def build(hashes: UInt64s, max_distance: int) -> HashIndex:
    """File uint64 [n, k], by the first of the k. Raises: ValueError for a distance that is not 0 to `MAX_DISTANCE`."""
    tables = []
    first = np.ascontiguousarray(hashes[:, 0])
    for chunk in chunks_for(len(hashes), max_distance):
        values = chunk.of(first)
        rows = np.argsort(values.astype(np.int32), kind="stable").astype(np.int32)
        starts = np.zeros((1 << chunk.bits) + 1, np.int32)
        np.cumsum(np.bincount(values, minlength=1 << chunk.bits), out=starts[1:])
        tables.append(ChunkTable(chunk=chunk, rows=rows, hashes=first[rows], starts=starts))
    return HashIndex(hashes=hashes, max_distance=max_distance, tables=tuple(tables))


def near(index: HashIndex, queries: UInt64s) -> tuple[Int64s, Int64s, Int64s]:
    """Return (query, row, distance) of every row near to a query [b, k], each once, by query and row.

    distance: in bits, at the place where the two differ most. Memory: the pairs found, and `_AT_ONCE`.
    """
    n_rows = len(index.hashes)
    codes = [np.zeros(0, np.int64)]
    for table in index.tables:
        for query, place in _places(table, queries[:, 0]):
            hit = np.bitwise_count(queries[query, 0] ^ table.hashes[place]) <= index.max_distance
            query, row = query[hit], table.rows[place[hit]]
            also = _distance(index.hashes, row, queries, query) <= index.max_distance
            codes.append(query[also] * n_rows + row[also])
    query, row = np.divmod(np.unique(np.concatenate(codes)), max(n_rows, 1))
    return query, row, _distance(index.hashes, row, queries, query)


def _distance(hashes: UInt64s, row: Int64s, queries: UInt64s, query: Int64s) -> Int64s:
    differ = np.bitwise_count(hashes[row] ^ queries[query])
    found: Int64s = differ.max(axis=1, initial=0).astype(np.int64)
    return found


def n_compared(index: HashIndex, queries: UInt64s) -> int:
    """Return how many hashes a search for these compares: its cost, besides `lookups` per query."""
    total = 0
    for table in index.tables:
        wanted = table.chunk.of(queries[:, 0])[:, None] ^ masks(table.chunk.bits, table.chunk.radius)
        total += int((table.starts[wanted + 1] - table.starts[wanted]).sum(dtype=np.int64))
    return total


def _places(table: ChunkTable, queries: UInt64s) -> Iterator[tuple[Int64s, Int64s]]:
    """Yield (query, place on the table) of all that is filed near to each query's chunk, some `_AT_ONCE` at a time."""
    near_values = masks(table.chunk.bits, table.chunk.radius)
    step = max(1, _AT_ONCE // len(near_values))
    for first in range(0, len(queries), step):
        values = table.chunk.of(queries[first : first + step])
        wanted = (values[:, None] ^ near_values).ravel()
        begin = table.starts[wanted].astype(np.int64)
        count = table.starts[wanted + 1] - begin
        asked = np.flatnonzero(count)
        begin, count = begin[asked], count[asked]
        query = first + asked // len(near_values)
        ends = np.cumsum(count)
        low = 0
        while low < len(count):
            done = int(ends[low - 1]) if low else 0
            high = max(low + 1, int(np.searchsorted(ends, done + _AT_ONCE, "right")))
            some = count[low:high]
            offset = np.arange(int(some.sum())) - np.repeat(ends[low:high] - some - done, some)
            yield np.repeat(query[low:high], some), np.repeat(begin[low:high], some) + offset
            low = high
