"""Hashes near to one another: the search finds what comparing all with all finds, and does not compare all with all."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assets.dedup.hamming import (
    MAX_DISTANCE,
    build,
    cheapest_chunks,
    cut_hashes,
    masks,
    n_compared,
    near_rows,
)
from loader.errors import InvalidSpec
from tests.refusals import refusal

hashes = st.integers(0, 2**64 - 1)


def brute_force(filed: np.ndarray, queries: np.ndarray, max_distance: int) -> list[tuple[int, int, int]]:
    return [
        (query, row, distance)
        for query, asked in enumerate(queries.tolist())
        for row, there in enumerate(filed.tolist())
        if (distance := max((a ^ b).bit_count() for a, b in zip(asked, there, strict=True))) <= max_distance
    ]


def near_pairs(filed: np.ndarray, queries: np.ndarray, max_distance: int) -> list[tuple[int, int, int]]:
    return list(zip(*(part.tolist() for part in near_rows(build(filed, max_distance), queries)), strict=True))


def flip_bits(base: int, bits: frozenset[int]) -> int:
    return base ^ sum(1 << bit for bit in bits)


@st.composite
def near_families(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, int]:
    """Rows and queries of k hashes around a few of them, about as many bits away as the limit is."""
    max_distance, k = draw(st.integers(0, MAX_DISTANCE)), draw(st.integers(1, 3))
    bases = draw(st.lists(hashes, min_size=1, max_size=3))
    around = st.builds(
        flip_bits, st.sampled_from(bases), st.frozensets(st.integers(0, 63), max_size=max_distance + 2)
    )
    some = st.lists(st.lists(around, min_size=k, max_size=k), max_size=20)
    filed, queries = (np.array(draw(some), np.uint64).reshape(-1, k) for _ in range(2))
    return filed, queries, max_distance


@settings(derandomize=True, max_examples=100, deadline=None)
@given(near_families())
def test_search_is_exact(family: tuple[np.ndarray, np.ndarray, int]) -> None:
    filed, queries, max_distance = family
    assert near_pairs(filed, queries, max_distance) == brute_force(filed, queries, max_distance)


@pytest.mark.parametrize("n_filed", [3_000, 70_000])
def test_exact_among_many_whatever_the_cut(n_filed: int) -> None:
    """Every distance from nothing to beyond the limit, the bits flipped anywhere."""
    draw = np.random.default_rng(n_filed)
    filed = draw.integers(0, 2**64, n_filed, np.uint64)
    queries = filed[:200].copy()
    for position in range(len(queries)):
        for bit in draw.permutation(64)[: position % 11]:
            queries[position] ^= np.uint64(1) << np.uint64(bit)
    assert len(cheapest_chunks(n_filed, 8)) != len(cheapest_chunks(300, 8))
    everything = np.bitwise_count(queries[:, None] ^ filed[None, :])
    rows = np.argwhere(everything <= 8)
    expected = [(int(q), int(r), int(everything[q, r])) for q, r in rows]
    assert len(expected) >= 160
    assert near_pairs(filed[:, None], queries[:, None], 8) == expected


@pytest.mark.parametrize("n_chunks", range(1, 17))
@pytest.mark.parametrize("max_distance", [0, 1, 7, 8, 9, 16])
def test_worst_spread_of_differences_is_within_one_chunk(n_chunks: int, max_distance: int) -> None:
    """However max_distance bits are dealt out over all chunks, one is within its radius."""
    kept = {chunk.shift: chunk for chunk in cut_hashes(n_chunks, max_distance)}
    whole = cut_hashes(n_chunks, 64 * n_chunks)  # radii so large that no chunk is left out
    assert sum(chunk.bits for chunk in whole) == 64
    beyond = sum(kept[chunk.shift].radius + 1 if chunk.shift in kept else 0 for chunk in whole)
    assert beyond > max_distance


def test_masks_are_all_values_within_the_radius() -> None:
    for bits, radius in ((8, 0), (8, 2), (12, 3)):
        expected = [value for value in range(1 << bits) if value.bit_count() <= radius]
        assert sorted(masks(bits, radius).tolist()) == expected


def test_cost_grows_far_slower_than_what_is_filed() -> None:
    """Hashes looked at and compared per query, of bits thrown by a coin, at two sizes."""
    draw = np.random.default_rng(5)
    queries = draw.integers(0, 2**64, (64, 1), np.uint64)
    cost = {}
    for n_filed in (10_000, 1_000_000):
        index = build(draw.integers(0, 2**64, (n_filed, 1), np.uint64), 8)
        cost[n_filed] = index.lookups + n_compared(index, queries) / len(queries)
    assert cost[10_000] < 10_000 / 50
    assert cost[1_000_000] < 1_000_000 / 250
    assert cost[1_000_000] < 30 * cost[10_000]  # of a hundred times as many


def test_memory_is_what_is_found_and_one_step() -> None:
    """A hundred thousand hashes of which half are one and the same, asked for by as many as a step takes."""
    filed = np.random.default_rng(3).integers(0, 2**64, (100_000, 1), np.uint64)
    filed[::2] = 7
    index = build(filed, 8)
    queries = np.full(
        (40, 1), 0xFFFF, np.uint64
    )  # 13 bits from 7, and filed in the same places by 48 of them
    tracemalloc.start()
    try:
        assert len(near_rows(index, queries)[0]) == 0
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert n_compared(index, queries) > 5_000_000
    assert peak < 150 * 2**20


def test_nothing_filed_and_nothing_asked() -> None:
    none, one = np.zeros((0, 3), np.uint64), np.zeros((1, 3), np.uint64)
    assert near_pairs(none, one, 8) == near_pairs(one, none, 8) == near_pairs(none, none, 8) == []


@pytest.mark.parametrize("max_distance", [-1, 17, 64])
def test_distance_that_makes_no_sense(max_distance: int) -> None:
    with refusal(InvalidSpec, what="max_distance", given=max_distance):
        build(np.zeros((1, 1), np.uint64), max_distance)
