"""Counting in bounded memory gives what counting everything at once gives."""

import math

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.card import tally
from penstock.card.tally import NameTally, NumberSummary

numbers = st.one_of(
    st.integers(-(2**53), 2**53).map(float),
    st.floats(allow_nan=True, allow_infinity=True),
    st.sampled_from([0.0, -0.0, 1.0, 1e-149, -1e-149, 1e149, -1e149, 0.1, -0.1, 2**-1074]),
)
bounded = settings(derandomize=True, max_examples=80, deadline=None)


def spread(pieces, whole=False):
    made = NumberSummary(whole=whole)
    for piece in pieces:
        made.add(np.array(piece, np.float64))
    return made


@bounded
@given(pieces=st.lists(st.lists(numbers, max_size=30), max_size=6))
def test_spread_is_that_of_all_numbers_however_they_come(pieces):
    every = [value for piece in pieces for value in piece]
    finite = np.array([value if abs(value) >= 1e-150 else 0.0 for value in every if abs(value) < 1e150])
    told = spread(pieces).result(len(every))
    if not len(finite):
        assert told is None
        return
    assert (told.known, told.unknown) == (len(finite), len(every) - len(finite))
    assert (told.minimum, told.maximum) == (finite.min(), finite.max())
    assert math.isclose(told.total, math.fsum(finite), rel_tol=1e-9, abs_tol=1e-9 * np.abs(finite).sum())
    assert sum(told.counts) == len(finite)
    assert 1 <= len(told.counts) <= tally.MAX_BINS
    assert len(told.edges) == len(told.counts) + 1
    assert told.edges[0] <= finite.min()
    assert finite.max() <= told.edges[-1]
    assert told.minimum <= told.p5 <= told.p50 <= told.p95 <= told.maximum
    again = spread([every]).result(len(every))
    assert (again.edges, again.counts) == (told.edges, told.counts)


@bounded
@given(values=st.lists(st.floats(-1e9, 1e9).map(lambda x: round(x, 9)), min_size=1, max_size=60))
def test_each_number_is_in_its_bin(values):
    told = spread([values[:7], values[7:]]).result(len(values))
    edges = np.array(told.edges)
    places = np.searchsorted(edges, values, side="right") - 1
    n = len(told.counts)
    assert np.bincount(np.minimum(places, n - 1), minlength=n).tolist() == list(told.counts)
    assert np.allclose(np.diff(edges), edges[1] - edges[0])


@bounded
@given(values=st.lists(st.floats(1e-6, 1e9), min_size=1, max_size=80), sign=st.sampled_from([1, -1]))
def test_quantiles_are_close(values, sign):
    told = spread([[sign * value for value in values]]).result(len(values))
    ordered = np.sort(sign * np.array(values))
    for share, found in ((0.05, told.p5), (0.5, told.p50), (0.95, told.p95)):
        true = ordered[math.floor(share * (len(ordered) - 1))]
        assert math.isclose(found, true, rel_tol=0.0051)


@pytest.mark.parametrize("value", [0.0, 44_100.0, -25.03, 1e-100])
def test_one_value_many_times_is_told_exactly(value):
    told = spread([[value] * 1000, [value] * 77]).result(1077)
    assert (told.minimum, told.p5, told.p50, told.p95, told.maximum) == (value,) * 5
    assert told.counts == (1077,)


def test_whole_numbers_have_bins_of_whole_numbers():
    told = spread([[1, 2, 2], [5]], whole=True).result(4)
    assert told.edges == (1, 2, 3, 4, 5, 6)
    assert told.counts == (1, 2, 0, 0, 1)


def test_zeros_first_do_not_widen_the_bins():
    """A batch of nothing but zeros says nothing of how fine the others are."""
    zeros_first = spread([[0.0] * 50, [0.01, 0.02, 0.1]]).result(53)
    assert zeros_first.counts == spread([[0.01, 0.02, 0.1, *[0.0] * 50]]).result(53).counts
    assert len(zeros_first.counts) > 20


def test_names_are_counted_largest_first():
    made = NameTally()
    made.add(pa.array(["b", "a", None, "b"]))
    made.add(pa.array(["a", "c"]))
    told = made.result(10)
    assert told.counts == (("a", 2), ("b", 2), ("c", 1))
    assert (told.unknown, told.known, told.n_others) == (5, 5, 0)
    short = made.result(10, listed=1)
    assert (short.counts, short.n_others, short.others) == ((("a", 2),), 2, 3)


def test_last_name_is_not_called_others():
    made = NameTally()
    made.add(pa.array(["a", "a", "b"]))
    assert made.result(3, listed=1).counts == (("a", 2), ("b", 1))


def test_too_many_names_are_given_up_and_told():
    made = NameTally(most=100)
    for start in range(0, 1000, 50):
        made.add(pa.array([f"name {i}" for i in range(start, start + 50)]))
    assert made.overflowed
    assert made.counted() == {}
    told = made.result(1200)
    assert (told.complete, told.counts, told.others, told.unknown) == (False, (), 1000, 200)
