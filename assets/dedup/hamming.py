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

from assets import invalid_option

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

    def values(self, hashes: UInt64s) -> Int64s:
        """Return the chunk's bits of each hash."""
        shifted = hashes >> np.uint64(self.shift)
        mask = np.uint64((1 << self.bits) - 1)
        values: Int64s = (shifted & mask).astype(np.int64)
        return values


def cut_hashes(n_chunks: int, max_distance: int) -> tuple[Chunk, ...]:
    """Cut 64 bits into chunks so that hashes within `max_distance` are within the radius of some chunk.

    Chunks with a negative radius are left out.
    """
    quotient, remainder = divmod(max_distance, n_chunks)
    chunks = []
    shift = 0
    for position in range(n_chunks):
        bits = BITS // n_chunks
        if position < BITS % n_chunks:
            bits += 1
        radius = quotient
        if position > remainder:
            radius -= 1
        if radius >= 0:
            chunks.append(Chunk(shift=shift, bits=bits, radius=radius))
        shift += bits
    return tuple(chunks)


@cache
def cheapest_chunks(n_hashes: int, max_distance: int) -> tuple[Chunk, ...]:
    """Return the cheapest cut for searching `n_hashes` random hashes. Raises: InvalidSpec beyond `MAX_DISTANCE`."""
    if not 0 <= max_distance <= MAX_DISTANCE:
        raise invalid_option("max_distance", max_distance, f"0 to {MAX_DISTANCE} bits")
    # A chunk's table has 2^bits entries: at most four per hash, unless there are few hashes.
    longest = min(_MAX_CHUNK_BITS, max(8, n_hashes.bit_length() + 1))
    cuts = [cut_hashes(n_chunks, max_distance) for n_chunks in range(3, 17)]
    accepted = [chunks for chunks in cuts if max(chunk.bits for chunk in chunks) <= longest]

    def cost(chunks: tuple[Chunk, ...]) -> float:
        total = 0.0
        for chunk in chunks:
            n_comparisons = n_hashes / 2**chunk.bits
            # A lookup costs as much as two comparisons.
            total += chunk.n_masks * (2 + n_comparisons)
        return total

    return min(accepted, key=cost)


@cache
def masks(bits: int, radius: int) -> Int64s:
    """Return int64 [n]: every `bits`-bit value with at most `radius` bits set."""
    values = []
    for n_set in range(radius + 1):
        for positions in combinations(range(bits), n_set):
            value = sum(1 << bit for bit in positions)
            values.append(value)
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
    """Index hashes, uint64 [n, k], by the first of each row. Raises: InvalidSpec beyond `MAX_DISTANCE`."""
    tables = []
    first = np.ascontiguousarray(hashes[:, 0])
    for chunk in cheapest_chunks(len(hashes), max_distance):
        values = chunk.values(first)
        order = np.argsort(values.astype(np.int32), kind="stable")
        rows = order.astype(np.int32)
        n_values = 1 << chunk.bits
        starts = np.zeros(n_values + 1, np.int32)
        counts = np.bincount(values, minlength=n_values)
        np.cumsum(counts, out=starts[1:])
        tables.append(
            ChunkTable(
                chunk=chunk,
                rows=rows,
                hashes=first[rows],
                starts=starts,
            )
        )
    return HashIndex(hashes=hashes, max_distance=max_distance, tables=tuple(tables))


def near_rows(index: HashIndex, queries: UInt64s) -> tuple[Int64s, Int64s, Int64s]:
    """Return sorted arrays (query, row, distance) of all near rows for queries, uint64 [b, k].

    distance: bits of the most different of the k hashes. Memory: the pairs and one step of `_AT_ONCE`.
    """
    n_rows = len(index.hashes)
    # A pair (query, row) as query * n_rows + row: unique and sorted at once.
    codes = [np.zeros(0, np.int64)]
    for table in index.tables:
        for query, place in _candidates(table, queries[:, 0]):
            # The first hashes are compared before the others, because they leave few pairs.
            differing_bits = queries[query, 0] ^ table.hashes[place]
            is_near = np.bitwise_count(differing_bits) <= index.max_distance
            query = query[is_near]
            row = table.rows[place[is_near]]
            distance = _distance(index.hashes, row, queries, query)
            all_near = distance <= index.max_distance
            codes.append(query[all_near] * n_rows + row[all_near])
    unique_codes = np.unique(np.concatenate(codes))
    query, row = np.divmod(unique_codes, max(n_rows, 1))
    return query, row, _distance(index.hashes, row, queries, query)


def _distance(hashes: UInt64s, row: Int64s, queries: UInt64s, query: Int64s) -> Int64s:
    """Return int64 [pairs]: differing bits of the most different of a pair's k hashes."""
    differ = np.bitwise_count(hashes[row] ^ queries[query])
    bits: Int64s = differ.max(axis=1, initial=0).astype(np.int64)
    return bits


def n_compared(index: HashIndex, queries: UInt64s) -> int:
    """Return how many hashes a search compares, in addition to `lookups` per query."""
    total = 0
    for table in index.tables:
        near_masks = masks(table.chunk.bits, table.chunk.radius)
        query_values = table.chunk.values(queries[:, 0])
        values = query_values[:, None] ^ near_masks  # [queries, masks]: values within the radius
        counts = table.starts[values + 1] - table.starts[values]
        total += int(counts.sum(dtype=np.int64))
    return total


def _candidates(table: ChunkTable, queries: UInt64s) -> Iterator[tuple[Int64s, Int64s]]:
    """Yield (query, position in `table.rows`) of all hashes whose chunk is near, about `_AT_ONCE` at a time."""
    near_masks = masks(table.chunk.bits, table.chunk.radius)
    step = max(1, _AT_ONCE // len(near_masks))
    for first in range(0, len(queries), step):
        values = table.chunk.values(queries[first : first + step])
        near_values = (values[:, None] ^ near_masks).ravel()  # [queries x masks]
        begin = table.starts[near_values].astype(np.int64)
        count = table.starts[near_values + 1] - begin
        # Most near values have no hash.
        occupied = np.flatnonzero(count)
        begin = begin[occupied]
        count = count[occupied]
        query = first + occupied // len(near_masks)
        ends = np.cumsum(count)
        low = 0
        n_yielded = 0
        while low < len(count):
            high = int(np.searchsorted(ends, n_yielded + _AT_ONCE, "right"))
            high = max(high, low + 1)  # one value may have more hashes than that
            counts = count[low:high]
            # Each pair's position within its near value: 0, 1, ... count - 1.
            range_starts = ends[low:high] - counts - n_yielded
            n_pairs = int(counts.sum())
            offset = np.arange(n_pairs) - np.repeat(range_starts, counts)
            pair_query = np.repeat(query[low:high], counts)
            pair_begin = np.repeat(begin[low:high], counts)
            yield pair_query, pair_begin + offset
            n_yielded = int(ends[high - 1])
            low = high
