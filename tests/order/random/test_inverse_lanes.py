"""Positions of ordinals: `unperm`, `unperm_one` and `lane_inverse` undo `keyed_permutation.perm` and `lanes.locate`."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from loader.order.random.keyed_permutation import ARGSORT_MAX, perm, unperm, unperm_one
from loader.order.random.lane_inverse import MIN_TOGETHER, find_position, find_positions
from loader.order.random.lanes import LaneShape, locate

SHAPES = st.builds(
    LaneShape,
    n=st.one_of(st.integers(1, 300), st.integers(1, 2**53)),
    chunk=st.one_of(st.integers(1, 40), st.integers(1, 2**20)),
    lanes=st.sampled_from([1, 2, 8, 1024]),
    rounds_h=st.sampled_from([1, 3, 4]),
)


@pytest.mark.parametrize("n", [1, 2, 7, 127, 128, 129, 500, 1024])
def test_every_value_is_sent_back(n):
    sent = perm(11, n, np.arange(n)).tolist()
    assert [unperm_one(11, n, y) for y in sent] == list(range(n))


@settings(derandomize=True, deadline=None, max_examples=200)
@given(st.integers(0, 2**64 - 1), st.integers(1, 2**53), st.data())
def test_any_value_is_sent_back(k, n, data):
    x = data.draw(st.integers(0, n - 1))
    assert unperm_one(k, n, int(perm(k, n, np.array([x]))[0])) == x


@settings(derandomize=True, deadline=None, max_examples=300)
@given(SHAPES, st.integers(0, 2**64 - 1), st.integers(0, 10**6), st.data())
@example(LaneShape(n=1000, chunk=7, lanes=8, rounds_h=4), 0, 0, None)
def test_positions_are_those_of_the_ordinals(shape, seed, epoch, data):
    if data is None:
        positions = np.arange(shape.n)
    else:
        near = [at for at in (0, shape.body - 1, shape.body, shape.n - 1) if 0 <= at < shape.n]
        drawn = data.draw(st.lists(st.integers(0, shape.n - 1), max_size=20))
        positions = np.array([*near, *drawn])
    ordinals = locate(shape, seed, "photos", epoch, positions).tolist()
    assert [find_position(shape, seed, "photos", epoch, one) for one in ordinals] == positions.tolist()


@settings(derandomize=True, deadline=None, max_examples=200)
@given(st.integers(0, 2**64 - 1), st.integers(ARGSORT_MAX + 1, 2**53), st.data())
def test_any_values_are_sent_back_together(k, n, data):
    x = np.array(data.draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=20)), np.int64)
    assert unperm(k, n, perm(k, n, x)).tolist() == x.tolist()


@settings(derandomize=True, deadline=None, max_examples=100)
@given(
    st.one_of(
        SHAPES,
        st.builds(
            LaneShape, n=st.integers(1, 10**6), chunk=st.just(1), lanes=st.just(1), rounds_h=st.just(1)
        ),
    ),
    st.data(),
)
def test_positions_together_are_positions_one_by_one(shape, data):
    # From MIN_TOGETHER on, positions are computed together.
    size = data.draw(st.sampled_from([1, MIN_TOGETHER - 1, MIN_TOGETHER, 20]))
    ordinals = data.draw(st.lists(st.integers(0, shape.n - 1), min_size=size, max_size=size))
    together = find_positions(shape, 7, "arm", 2, np.array(ordinals, np.int64))
    assert together.tolist() == [find_position(shape, 7, "arm", 2, ordinal) for ordinal in ordinals]
