"""Find all 64-bit hashes within a few bits of a query, by exact multi-index hashing.

Norouzi, Punjani, Fleet, "Fast Search in Hamming Space with Multi-Index Hashing", CVPR 2012. Hashes are cut into m
chunks, each indexed. Take two hashes that differ in at most r = m q + a bits (0 <= a < m). They differ in at most q
bits in one of the first a + 1 chunks, or in q - 1 in one of the others. So each chunk's neighbourhood suffices. m
minimizes lookups and comparisons. Among a million hashes, one core runs 4,096 queries in 0.3 s.
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
"""Largest distance in bits."""

_MAX_CHUNK_BITS = 22
"""Chunk's table has 2^bits + 1 entries of 4 bytes: at most 16 MiB."""

_AT_ONCE = 1 << 20
"""Lookups or comparisons per step, about 80 MiB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """A range of a hash's bits."""

    shift: int
    """Position of the lowest bit."""
    bits: int
    """Number of bits."""
    radius: int
    """Number of the chunk's bits that may differ."""

    @property
    def n_masks(self) -> int:
        """Number of values within the radius of a given one."""
        return sum(comb(self.bits, flipped) for flipped in range(self.radius + 1))

    def of(self, hashes: UInt64s) -> Int64s:
        value: Int64s = ((hashes >> np.uint64(self.shift)) & np.uint64((1 << self.bits) - 1)).astype(np.int64)
        return value


def cut(n_chunks: int, max_distance: int) -> tuple[Chunk, ...]:
    """Cut 64 bits into chunks so that hashes within `max_distance` are within the radius of some chunk.

    Chunks with a negative radius are left out.
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
    """Return the cheapest cut for searching `n_hashes` random hashes. Raises: ValueError beyond `MAX_DISTANCE`."""
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
    """Return int64 [n]: every `bits`-bit value with at most `radius` bits set."""
    values = [
        sum(1 << bit for bit in chosen)
        for flipped in range(radius + 1)
        for chosen in combinations(range(bits), flipped)
    ]
    return np.array(values, np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkTable:
    """Hashes indexed by one chunk."""

    chunk: Chunk
    """Indexed chunk."""
    rows: np.ndarray[Any, np.dtype[np.int32]]
    """Int32 [n]: row numbers, sorted by the chunk's value."""
    hashes: UInt64s
    """Uint64 [n], in the order of `rows`."""
    starts: np.ndarray[Any, np.dtype[np.int32]]
    """Int32 [2^bits + 1]: position in `rows` where each chunk value starts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HashIndex:
    """Index of n rows of k hashes. Rows are near if each of their k hashes is within `max_distance` bits."""

    hashes: UInt64s
    """Uint64 [n, k]: all indexed hashes."""
    max_distance: int
    """Largest distance in bits."""
    tables: tuple[ChunkTable, ...]
    """A table per chunk of the first hashes."""

    @property
    def lookups(self) -> int:
        """Lookups per query."""
        return sum(table.chunk.n_masks for table in self.tables)


def build(hashes: UInt64s, max_distance: int) -> HashIndex:
    """Index hashes, uint64 [n, k], by the first of each row. Raises: ValueError beyond `MAX_DISTANCE`."""
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
    """Return sorted arrays (query, row, distance) of all near rows for queries, uint64 [b, k].

    distance: bits of the most different of the k hashes. Memory: the pairs and one step of `_AT_ONCE`.
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
    bits: Int64s = differ.max(axis=1, initial=0).astype(np.int64)
    return bits


def n_compared(index: HashIndex, queries: UInt64s) -> int:
    """Return how many hashes a search compares, in addition to `lookups` per query."""
    total = 0
    for table in index.tables:
        values = table.chunk.of(queries[:, 0])[:, None] ^ masks(table.chunk.bits, table.chunk.radius)
        total += int((table.starts[values + 1] - table.starts[values]).sum(dtype=np.int64))
    return total


def _places(table: ChunkTable, queries: UInt64s) -> Iterator[tuple[Int64s, Int64s]]:
    near_values = masks(table.chunk.bits, table.chunk.radius)
    step = max(1, _AT_ONCE // len(near_values))
    for first in range(0, len(queries), step):
        values = table.chunk.of(queries[first : first + step])
        near_chunks = (values[:, None] ^ near_values).ravel()
        begin = table.starts[near_chunks].astype(np.int64)
        count = table.starts[near_chunks + 1] - begin
        filled = np.flatnonzero(count)
        begin, count = begin[filled], count[filled]
        query = first + filled // len(near_values)
        ends = np.cumsum(count)
        low = 0
        while low < len(count):
            done = int(ends[low - 1]) if low else 0
            high = max(low + 1, int(np.searchsorted(ends, done + _AT_ONCE, "right")))
            counts = count[low:high]
            offset = np.arange(int(counts.sum())) - np.repeat(ends[low:high] - counts - done, counts)
            yield np.repeat(query[low:high], counts), np.repeat(begin[low:high], counts) + offset
            low = high
