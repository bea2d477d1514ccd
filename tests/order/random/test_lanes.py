from math import sqrt

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loader.errors import InvalidPlan
from loader.order.random import lanes
from tests.refusals import refusal

SEEDS = st.integers(0, 2**64 - 1)
LANES = st.sampled_from([1, 2, 4, 8, 16])

FIXED = [  # (N, c, D, h): what each is for
    (1, 1, 1, 1),  # one sample
    (2, 1, 1, 1),
    (5, 8, 4, 4),  # N < c: no full chunk
    (8, 8, 1, 1),  # one chunk exactly
    (9, 8, 1, 1),  # one chunk and a short one
    (100, 8, 4, 4),  # K = 0: all tail
    (127, 1, 16, 4),  # K = 1, c = 1
    (128, 2, 16, 4),  # exactly one round
    (1000, 4, 8, 4),  # body and tail
    (1000, 3, 8, 5),  # chunk not a power of two
    (5000, 7, 16, 3),
    (4096, 4, 1, 4),  # one lane
    (3000, 130, 4, 2),  # Feistel inside a chunk
    (9000, 1, 2, 130),  # Feistel over lane slots
    (20_000, 1, 1, 1),  # full shuffle
]


@pytest.mark.parametrize("fixed", FIXED)
def test_fixed_shapes_are_bijections_equal_to_the_reference(properties, reference, fixed):
    shape = properties.lane_shape(*fixed)
    properties.is_bijection(shape)
    n, body = shape.n, shape.body
    near = {0, 1, n // 2, n - 2, n - 1, body - 1, body, body + 1}
    positions = sorted(i for i in near if 0 <= i < n)
    for epoch in (0, 1):
        properties.matches_reference(reference, shape, 7, "photos", epoch, positions)


@settings(max_examples=250, deadline=None, derandomize=True)
@given(
    n=st.integers(1, 1500),
    chunk=st.integers(1, 40),
    lane_count=LANES,
    h=st.integers(1, 6),
    seed=SEEDS,
    epoch=st.integers(0, 2**40),
)
def test_every_shape_is_a_bijection(properties, n, chunk, lane_count, h, seed, epoch):
    properties.is_bijection(properties.lane_shape(n, chunk, lane_count, h), seed, "photos", epoch)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    n=st.one_of(st.integers(1, 600), st.integers(1, 2**45)),
    chunk=st.integers(1, 300),
    lane_count=st.sampled_from([1, 2, 8, 64, 1024]),
    h=st.integers(1, 6),
    seed=SEEDS,
    name=st.text(min_size=1, max_size=4),
    epoch=st.integers(0, 5),
    data=st.data(),
)
def test_every_shape_is_the_reference(
    properties, reference, n, chunk, lane_count, h, seed, name, epoch, data
):
    shape = properties.lane_shape(n, chunk, lane_count, h)
    edge = min(max(shape.body - 1, 0), n - 1)
    drawn = data.draw(st.lists(st.integers(0, n - 1), max_size=4))
    positions = [*drawn, 0, edge, min(edge + 1, n - 1), n - 1]
    properties.matches_reference(reference, shape, seed, name, epoch, positions)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(
    shapes=st.lists(
        st.tuples(
            st.one_of(st.integers(1, 400), st.integers(1, 2**45)),
            st.integers(1, 200),
            st.sampled_from([1, 2, 64]),
            st.integers(1, 5),
        ),
        min_size=1,
        max_size=6,
    ),
    seed=SEEDS,
    data=st.data(),
)
def test_epochs_of_several_sources_are_located_as_each_by_itself(properties, shapes, seed, data):
    epochs = [
        (properties.lane_shape(*fixed), f"source-{i % 4}", data.draw(st.integers(0, 3)))
        for i, fixed in enumerate(shapes)
    ]
    pairs = []
    for number, (shape, _, _) in enumerate(epochs):
        near = [0, max(0, shape.body - 1), min(shape.body, shape.n - 1), shape.n - 1]
        pairs += [(number, i) for i in (*near, *data.draw(st.lists(st.integers(0, shape.n - 1), max_size=3)))]
    which, positions = np.array(data.draw(st.permutations(pairs)), np.int64).T
    alone = [
        int(lanes.locate(epochs[k][0], seed, *epochs[k][1:], np.array([i]))[0])
        for k, i in zip(which.tolist(), positions.tolist(), strict=True)
    ]
    assert lanes.locate_each(seed, epochs, which, positions).tolist() == alone


def test_any_part_of_an_epoch_is_that_part_of_the_whole(properties):
    shape = properties.lane_shape(3000, 8, 16, 4)
    whole = properties.epoch_order(shape)
    positions = np.random.default_rng(1).permutation(3000)[:500]
    assert np.array_equal(lanes.locate(shape, 7, "photos", 0, positions), whole[positions])
    for position in (0, shape.body - 1, shape.body, 2999):
        assert lanes.locate(shape, 7, "photos", 0, np.array([position]))[0] == whole[position]
    assert lanes.locate(shape, 7, "photos", 0, np.zeros(0, dtype=np.int64)).shape == (0,)


def test_seeds_names_and_epochs_never_share_an_order(properties):
    properties.orders_differ()
    properties.orders_differ(n=16, seeds=range(30), epochs=range(6))


@pytest.mark.parametrize("fixed", [(6000, 8, 16, 4), (5003, 3, 32, 4), (6000, 1, 64, 4), (4099, 16, 8, 1)])
def test_window_holds_a_chunk_once_up_to_d_and_twice_up_to_d_times_h(properties, fixed):
    shape = properties.lane_shape(*fixed)
    assert shape.chunk_rounds >= 1
    d, h = shape.lanes, shape.rounds_h
    for epoch in (0, 1):
        for window in (2, d - 1, d):
            properties.window_holds_chunk_at_most(shape, window, 1, epoch=epoch)
        for window in {min(w, d * h) for w in (d + 1, 2 * d + 1, d * h)} - {d}:
            properties.window_holds_chunk_at_most(shape, window, 2, epoch=epoch)


def test_chunks_are_begun_at_a_level_rate(properties):
    """Chunks met for the first time, counted per stretch of 1/8 chunk time, after the start: peak/mean."""
    shape = properties.lane_shape(64 * 4 * 32 * 6, 32, 64, 4)
    seed = 7
    limit = 1.35
    n = shape.n
    ordinals = properties.epoch_order(shape, seed)
    rotation = lanes.epoch_keys(seed, "photos", 0).rot % n
    chunk = (ordinals - rotation) % n // shape.chunk
    _, first = np.unique(chunk[: shape.body], return_index=True)
    chunk_time = shape.lanes * shape.rounds_h * shape.chunk
    stretch = chunk_time // 8
    counts = np.bincount(first[first >= chunk_time] // stretch)[8:]
    assert counts.max() / counts.mean() < limit, counts


@pytest.mark.parametrize(
    ("fixed", "positions"),
    [
        ((997, 1, 1, 1), (0, 500, 996)),  # full shuffle
        ((1003, 4, 8, 4), (0, 895, 896, 991, 992, 1002)),  # body, tail in lanes, the rest
        ((103, 8, 4, 4), (0, 95, 96, 102)),  # all tail
        ((1031, 32, 2, 2), (0, 1024, 1030)),  # the short chunk is all of the tail
    ],
)
def test_positions_over_epochs_are_those_of_a_uniform_shuffle(properties, fixed, positions):
    """Over epochs, the ordinal at each of these positions falls everywhere equally often."""
    shape = properties.lane_shape(*fixed)
    epochs = 3000
    bins = 20
    seed = 3
    sizes = np.bincount(np.arange(shape.n) * bins // shape.n, minlength=bins)
    for position, found in zip(
        positions, properties.over_epochs(shape, positions, epochs, seed).T, strict=True
    ):
        counts = np.bincount(found * bins // shape.n, minlength=bins)
        z = properties.z_score(counts, epochs * sizes / shape.n)
        assert abs(z) < 4, (position, z)


# The last T - body2 < D*h positions of an epoch come from a few neighbouring chunks (docs/order.md).
@pytest.mark.parametrize(
    ("fixed", "positions"), [((997, 1, 1, 1), (0, 500, 995)), ((4003, 4, 16, 4), (0, 2000, 3839, 3900))]
)
def test_adjacent_pairs_over_epochs_are_those_of_a_uniform_shuffle(properties, fixed, positions):
    """Over epochs, the step from each of these positions' ordinal to the next one's is uniform on 1..N-1 (mod N)."""
    shape = properties.lane_shape(*fixed)
    epochs = 3000
    bins = 20
    seed = 4
    both = [at for position in positions for at in (position, position + 1)]
    found = properties.over_epochs(shape, both, epochs, seed)
    sizes = np.bincount(np.arange(shape.n - 1) * bins // (shape.n - 1), minlength=bins)
    for position, a, b in zip(positions, found[:, ::2].T, found[:, 1::2].T, strict=True):
        steps = (b - a) % shape.n - 1
        assert steps.min() >= 0
        counts = np.bincount(steps * bins // (shape.n - 1), minlength=bins)
        z = properties.z_score(counts, epochs * sizes / (shape.n - 1))
        assert abs(z) < 4, (position, z)


def test_small_full_shuffle_has_no_favourites(properties):
    """Every (position, ordinal) pair of a full shuffle is equally frequent over epochs."""
    n = 16
    epochs = 4000
    seed = 11
    shape = properties.lane_shape(n, 1, 1, 1)
    counts = np.zeros((n, n))
    for epoch in range(epochs):
        counts[np.arange(n), properties.epoch_order(shape, seed, "photos", epoch)] += 1
    # rows and columns are both fixed, which leaves (n-1)^2 degrees of freedom, stretched by n/(n-1)
    chi = float(((counts - epochs / n) ** 2 / (epochs / n)).sum()) * (n - 1) / n
    df = (n - 1) ** 2
    assert abs((chi - df) / sqrt(2 * df)) < 4, (chi, df)


@pytest.mark.parametrize(
    ("n", "mean_sample_bytes", "want"),
    [
        (20_000, 16_000, (1, 1, 1)),  # small: a full shuffle
        (10**6, 2**20 + 1, (1, 1, 1)),  # clips above 1 MiB
        (10**6, 10**6, (2, 1024, 4)),
        (10**9, 4096, (512, 1024, 4)),
        (10**9, 0, (8192, 1024, 4)),  # without bytes: N decides
        (131_071, 1, (1, 1, 1)),
        (131_072, 1, (2, 1024, 4)),
        (1, 0, (1, 1, 1)),
    ],
)
def test_frozen_shape_follows_the_rule(n, mean_sample_bytes, want):
    shape = lanes.choose_shape(n, mean_sample_bytes)
    assert (shape.chunk, shape.lanes, shape.rounds_h) == want


def test_overrides_of_chunk_and_lanes():
    shape = lanes.choose_shape(100, 0, chunk=8)
    assert (shape.chunk, shape.lanes, shape.rounds_h) == (8, 1024, 4)
    shape = lanes.choose_shape(100, 0, chunk=8, lanes=16)
    assert (shape.chunk, shape.lanes, shape.rounds_h) == (8, 16, 4)
    shape = lanes.choose_shape(100, 0, lanes=16)
    assert (shape.chunk, shape.lanes, shape.rounds_h) == (1, 16, 4)
    for chunk, lane_count in ((1, None), (None, 1), (1, 1)):
        shape = lanes.choose_shape(100, 0, chunk=chunk, lanes=lane_count)
        assert (shape.chunk, shape.lanes, shape.rounds_h) == (1, 1, 1)


@pytest.mark.parametrize(
    ("name", "value"), [("chunk", 0), ("chunk", -1), ("lanes", 0), ("lanes", 12), ("chunk", 2**31)]
)
def test_overrides_out_of_range_are_refused(name, value):
    with refusal(InvalidPlan, what=name, given=value):
        lanes.choose_shape(100, 0, **{name: value})


def test_keys_are_made_once_per_epoch():
    lanes.epoch_keys.cache_clear()
    shape = lanes.choose_shape(1000, 0)
    for _ in range(5):
        lanes.locate(shape, 7, "photos", 0, np.arange(10))
    assert lanes.epoch_keys.cache_info().misses == 1
