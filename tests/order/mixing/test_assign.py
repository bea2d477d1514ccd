import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loader.errors import InvalidRuntime
from loader.order.slots import bit_reversed, canonical_order, rank_slice
from tests.refusals import refusal

POWERS = st.sampled_from([1, 2, 4, 8, 64, 1024])


@settings(max_examples=200, deadline=None, derandomize=True)
@given(global_batch=st.integers(1, 300), data=st.data())
def test_ranks_parts_make_the_batch_in_order(properties, global_batch, data):
    properties.ranks_make_the_batch(global_batch, data.draw(st.integers(1, global_batch)))


@pytest.mark.parametrize("global_batch", [1, 2, 7, 64])
def test_every_world_size_of_small_batches(properties, global_batch):
    for world_size in range(1, global_batch + 1):
        properties.ranks_make_the_batch(global_batch, world_size)


@pytest.mark.parametrize(
    ("rank", "world_size", "fault"),
    [
        (0, 65, {"what": "world_size", "given": 65}),
        (8, 8, {"what": "rank", "given": 8}),
        (-1, 8, {"what": "rank", "given": -1}),
        (0, 0, {"what": "world_size", "given": 0}),
        (0, -3, {"what": "world_size", "given": -3}),
    ],
)
def test_ranks_that_are_refused(rank, world_size, fault: dict[str, object]):
    with refusal(InvalidRuntime, **fault):
        rank_slice(64, rank, world_size)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(
    shapes=st.lists(POWERS, min_size=1, max_size=4),
    slots=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5000)), min_size=1, max_size=80),
)
def test_canonical_order_is_the_reference(reference, shapes, slots):
    source = np.array([k % len(shapes) for k, _ in slots])
    position = np.array([i for _, i in slots])
    order = canonical_order(source, position, np.array(shapes))
    named = [(str(k), i) for k, i in zip(source.tolist(), position.tolist(), strict=True)]
    plain = {str(k): (10**6, 1, lane_count, 1) for k, lane_count in enumerate(shapes)}
    assert [named[at] for at in order] == reference.canonical(named, plain)


def test_bit_reversal():
    assert bit_reversed(np.arange(8), 3).tolist() == [0, 4, 2, 6, 1, 5, 3, 7]
    assert bit_reversed(np.array([0]), 0).tolist() == [0]


def test_full_shuffle_keeps_its_stream_order():
    order = canonical_order(np.zeros(50, dtype=np.int64), np.arange(50), np.array([1]))
    assert order.tolist() == list(range(50))


@pytest.mark.parametrize(("global_batch", "limit"), [(256, 1.0), (768, 1.0), (1024, 1.0), (1021, 1.10)])
def test_ranks_seldom_share_a_chunk(global_batch, limit):
    """Distinct (rank, lane) pairs over distinct lanes, for steps of one source, at 64 ranks."""
    pairs, seen = set(), set()
    for step in range(8):
        position = np.arange(step * global_batch, (step + 1) * global_batch)
        order = canonical_order(np.zeros(global_batch, dtype=np.int64), position, np.array([1024]))
        for rank in range(64):
            for slot in order[rank_slice(global_batch, rank, 64)]:
                pairs.add((step, rank, int(position[slot]) % 1024))
                seen.add((step, int(position[slot]) % 1024))
    assert len(pairs) / len(seen) <= limit
