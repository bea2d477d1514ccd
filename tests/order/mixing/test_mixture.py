from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loader.errors import InvalidPlan
from loader.order import mixture
from loader.order.plan import make_plan
from loader.order.planned_source import source
from loader.order.sources.views import synthetic
from loader.order.weights import integer_weights
from tests.refusals import refusal

WEIGHTS = st.dictionaries(
    st.text(st.characters(codec="utf-8", max_codepoint=500), min_size=1, max_size=3),
    st.integers(0, 60),
    min_size=1,
    max_size=6,
).filter(lambda weights: any(weights.values()))


@settings(max_examples=100, deadline=None, derandomize=True)
@given(weights=WEIGHTS)
def test_table_is_the_reference(reference, weights):
    names = sorted(weights)
    quotas = integer_weights(weights)
    table, rank = mixture.quota_table(tuple(quotas.get(name, 0) for name in names))
    got = [(names[k], r) for k, r in zip(table.tolist(), rank.tolist(), strict=True)]
    assert got == reference.table(weights)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(weights=WEIGHTS, prefix=st.integers(1, 700))
def test_every_prefix_is_within_one_of_exact(properties, weights, prefix):
    properties.counts_stay_within_one(weights, prefix)


@pytest.mark.parametrize("weights", [{"a": 65_535, "b": 1}, {"a": 40_000, "b": 20_000, "c": 5_521}])
def test_largest_tables_are_within_one_too(properties, weights):
    properties.counts_stay_within_one(weights, 70_000)


@pytest.mark.parametrize(
    ("weights", "want"),
    [
        ({"b": 30, "a": 10}, {"a": 1, "b": 3}),
        ({"a": 0.7, "b": 0.2, "c": 0.1}, {"a": 7, "b": 2, "c": 1}),
        ({"a": "0.7", "b": "3/10"}, {"a": 7, "b": 3}),
        ({"a": Fraction(1, 3), "b": Fraction(2, 3)}, {"a": 1, "b": 2}),
        ({"a": 1 / 3, "b": 2 / 3}, {"a": 1, "b": 2}),
        ({"a": 5, "b": 0}, {"a": 1}),
        ({"a": 2**70, "b": 2**70}, {"a": 1, "b": 1}),
        ({"a": 65_535, "b": 1}, {"a": 65_535, "b": 1}),
    ],
)
def test_weights_become_reduced_integers(weights, want):
    assert integer_weights(weights) == want


@pytest.mark.parametrize(
    ("weights", "fault"),
    [
        ({"a": -1}, {"what": "weight", "where": "source 'a'", "given": -1}),
        ({"a": 0}, {"what": "weights", "given": "{'a': 0}"}),
        ({}, {"what": "weights", "given": "{}"}),
        ({"a": 1, "b": 1e-6}, {"what": "weight", "where": "source 'b'", "given": 1e-06}),
        ({"a": float("nan")}, {"what": "weight", "where": "source 'a'", "given": float("nan")}),
        ({"a": float("inf")}, {"what": "weight", "where": "source 'a'", "given": float("inf")}),
        ({"a": "many"}, {"what": "weight", "where": "source 'a'", "given": "many"}),
        ({"a": None}, {"what": "weight", "where": "source 'a'", "given": None}),
        ({"a": True}, {"what": "weight", "where": "source 'a'", "given": True}),
        ({"a": "1/0"}, {"what": "weight", "where": "source 'a'", "given": "1/0"}),
        ({"a": 65_536, "b": 1}, {"what": "weights", "given": 65537}),
        ({"a": 123_456_789, "b": 987_654_321}, {"what": "weights", "given": 123456790}),
    ],
)
def test_weights_that_are_refused(weights, fault: dict[str, object]):
    with refusal(InvalidPlan, **fault):
        integer_weights(weights)


def test_tables_are_shared_and_cannot_be_written():
    table, rank = mixture.quota_table((1, 2))
    with pytest.raises(ValueError, match="read-only"):
        table[0] = 1
    assert mixture.quota_table((1, 2))[1] is rank


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    batch=st.integers(1, 40),
    cuts=st.lists(st.tuples(st.integers(1, 15), WEIGHTS), max_size=3),
    first=WEIGHTS,
    step=st.integers(0, 60),
)
def test_streams_over_segments_are_the_reference(reference, batch, cuts, first, step):
    starts, at = [(0, first)], 0
    for gap, weights in cuts:
        at += gap
        starts.append((at, weights))
    names = sorted({name for _, weights in starts for name in weights})
    whole = [(start, integer_weights(weights)) for start, weights in starts]
    segments = mixture.chain_segments(whole, names, batch)
    here = [segment for segment in segments if segment.start_step <= step][-1]
    k, position = mixture.stream_slots(here, names, step, batch)
    got = [(names[a], b) for a, b in zip(k.tolist(), position.tolist(), strict=True)]
    assert got == reference.stream(starts, batch, step)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    cuts=st.lists(
        st.tuples(st.integers(1, 8), st.integers(0, 9), st.integers(0, 9)).filter(
            lambda cut: cut[1] + cut[2]
        ),
        max_size=4,
    )
)
def test_schedule_repeats_nothing_and_leaves_no_gap(properties, cuts):
    schedule, at = [], 0
    for gap, photos, web in cuts:
        at += gap
        schedule.append((at, {"photos": photos, "web": web}))
    made = properties.two_sources_plan(schedule=schedule)
    properties.schedule_repeats_nothing(made, at + 12)


def test_weights_changed_at_a_step_leave_the_prefix_alone(properties):
    before = properties.two_sources_plan()
    after = properties.two_sources_plan(schedule=[(9, {"web": 1})])
    properties.prefix_is_untouched(before, after, 9)
    assert before.hash != after.hash
    assert set(after.slots(9).source.tolist()) == {1}


def test_adding_or_reweighting_a_source_leaves_the_others_orders_alone(properties):
    photos = source(synthetic(900, "p"), weight=3, chunk=4, lanes=8)
    web = source(synthetic(700, "w"))
    few = make_plan({"photos": photos, "web": web}, seed=7, global_batch=32)
    more = {"photos": photos, "web": source(synthetic(700, "w"), weight=2), "audio": synthetic(300)}
    many = make_plan(more, seed=7, global_batch=20)
    properties.others_keep_their_order(few, many)


def test_positions_far_out_are_exact():
    segment = mixture.MixtureSegment(start_step=0, weights={"a": 2, "b": 1}, base={})
    step, batch = 2**53 - 1, 768
    k, position = mixture.stream_slots(segment, ["a", "b"], step, batch)
    first = step * batch  # a multiple of 3
    assert (k.tolist()[:3], first % 3) == ([0, 0, 1], 0)
    assert position[:3].tolist() == [first // 3 * 2, first // 3 * 2 + 1, first // 3]
    assert np.all(position >= 0)
