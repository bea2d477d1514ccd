"""Batch-size ramps: the global batch changes at a step, and no sample is read twice or left out for it."""

import json
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loader.errors import BatchTooLarge, InvalidPlan, InvalidRuntime, PlanMismatch
from loader.order.from_json import plan_from_json
from loader.order.plan import make_plan
from loader.order.planned_source import source
from loader.order.slots import rank_slice
from loader.order.sources.views import synthetic
from tests.refusals import refusal

SETTINGS = settings(max_examples=40, deadline=None, derandomize=True)

RAMPS = st.lists(st.tuples(st.integers(1, 9), st.integers(1, 40)), max_size=4)
"""(steps since the change before, slots), after the first batch."""


def make_ramp(first, gaps):
    ramp = [(0, first)]
    for gap, slots in gaps:
        ramp.append((ramp[-1][0] + gap, slots))
    return ramp


def in_force(ramp, step):
    return [slots for start, slots in ramp if start <= step][-1]


def build_plan(global_batch, schedule=None, **more):
    views = {
        "photos": source(synthetic(400, "p"), 3, chunk=4, lanes=8),
        "web": source(synthetic(70, "w"), 1),
    }
    return make_plan(views, seed=7, global_batch=global_batch, schedule=schedule, **more)


def reopen_plan(made):
    content = json.loads(json.dumps(made.to_json()))
    return plan_from_json(content, lambda spec: synthetic(spec["n"], spec["name"]))


@settings(max_examples=20, deadline=None, derandomize=True)
@given(first=st.integers(1, 40), gaps=RAMPS, n=st.integers(40, 200), steps=st.integers(1, 20))
def test_one_sources_samples_go_on_from_step_to_step(first, gaps, n, steps):
    """Written down as a list: every step takes the next `slots` samples of epoch after epoch."""
    ramp = make_ramp(first, gaps)
    made = make_plan({"a": synthetic(n)}, seed=3, global_batch=ramp)
    plain = make_plan({"a": synthetic(n)}, seed=3, global_batch=1)
    at = 0
    for step in range(steps):
        slots = made.slots(step)
        assert made.batch_size(step) == len(slots) == in_force(ramp, step)
        assert slots.position.tolist() == list(range(at, at + len(slots)))
        wanted = [int(plain.slots(position).ordinal[0]) for position in slots.position.tolist()]
        assert slots.ordinal.tolist() == wanted
        at += len(slots)


@SETTINGS
@given(
    first=st.integers(1, 40),
    gaps=RAMPS,
    cuts=st.lists(st.tuples(st.integers(1, 9), st.integers(0, 4), st.integers(1, 4)), max_size=3),
    step=st.integers(0, 45),
)
def test_ramps_and_schedules_together_are_the_reference(properties, reference, first, gaps, cuts, step):
    ramp, schedule = make_ramp(first, gaps), []
    for gap, photos, web in cuts:
        schedule.append(((schedule[-1][0] if schedule else 0) + gap, {"photos": photos, "web": web}))
    made = build_plan(ramp, schedule)
    weights = [(0, {"photos": 3, "web": 1}), *schedule]
    segments = [
        (start, [given for at, given in weights if at <= start][-1])
        for start in sorted({at for at, _ in [*weights, *distinct_entries(ramp)]})
    ]
    assert [(one.start_step, made.batch_size(one.start_step)) for one in made.segments] == [
        (start, in_force(ramp, start)) for start, _ in segments
    ]
    properties.batch_matches_reference(reference, made, segments, step)
    properties.assert_same_slots(reopen_plan(made).slots(step), made.slots(step))
    assert reopen_plan(made).hash == made.hash


def distinct_entries(ramp):
    """Without the entries that change nothing."""
    return [ramp[0], *(b for a, b in pairwise(ramp) if a[1] != b[1])]


@settings(max_examples=15, deadline=None, derandomize=True)
@given(first=st.integers(1, 40), gaps=RAMPS)
def test_nothing_repeats_and_nothing_is_missing(properties, first, gaps):
    made = build_plan(make_ramp(first, gaps), [(5, {"photos": 1, "web": 2})])
    properties.schedule_repeats_nothing(made, 40)


def test_change_at_a_step_leaves_the_prefix_alone(properties):
    before, after = build_plan(24), build_plan([(0, 24), (9, 40)])
    properties.prefix_is_untouched(before, after, 9)
    assert (before.batch_size(8), after.batch_size(8), after.batch_size(9)) == (24, 24, 40)
    assert before.hash != after.hash


def test_one_number_and_entries_that_change_nothing_are_the_same_plan():
    plain = build_plan(24)
    for same in ([(0, 24)], [(0, 24), (5, 24), (9, 24)], ((0, np.int64(24)),)):
        made = build_plan(same)
        assert made.hash == plain.hash
        assert made.to_json() == plain.to_json()
    assert build_plan([(0, 24), (5, 24), (9, 30), (12, 30)]).hash == build_plan([(0, 24), (9, 30)]).hash
    assert "batch" not in build_plan([(0, 24), (4, 8), (9, 24)]).to_json()["segments"][2]


def test_later_batch_may_change_and_an_earlier_one_may_not():
    plain, ramped = build_plan(24), build_plan([(0, 24), (10, 40)])
    for step in (0, 1, 10):
        assert ramped.state(step) == plain.state(step)
        assert ramped.check_state(plain.state(step)) == step
    state = json.loads(json.dumps(ramped.state(20)))
    assert ramped.check_state(state) == 20
    assert build_plan([(0, 24), (10, 40), (20, 8)]).check_state(state) == 20
    assert state["segments"][1]["batch"] == 40
    changed, moved = build_plan([(0, 24), (10, 39)]), build_plan([(0, 24), (9, 40)])
    for other, part in ((plain, "segments"), (changed, "segments[1]"), (moved, "segments[1]")):
        with refusal(PlanMismatch, what="state", where="step 20", given=[part]):
            other.check_state(state)
    with refusal(PlanMismatch, what="state", where="step 20", given=["global_batch", "segments[1]"]):
        build_plan([(0, 25), (10, 40)]).check_state(state)


def test_every_world_size_that_fits_the_smallest_batch_makes_the_batches():
    made = build_plan([(0, 7), (3, 40), (6, 9)])
    assert made.batch_range == (7, 40)
    for step in range(9):
        ids = made.batch_ids(step)
        parts = [ids[rank_slice(len(ids), rank, 7)] for rank in range(7)]
        assert [one for part in parts for one in part] == ids
    with refusal(InvalidRuntime, what="world_size", given=8):
        made.facts(world_size=8)


@settings(max_examples=20, deadline=None, derandomize=True)
@given(first=st.integers(1, 40), gaps=RAMPS)
def test_what_is_told_is_what_a_count_finds(first, gaps):
    made = build_plan(make_ramp(first, gaps), [(6, {"photos": 1, "web": 1})])
    facts, used = made.facts(), {"photos": 0, "web": 0}
    told = {name: one["exhausted_at_step"] for name, one in facts["sources"].items()}
    for step in range(100):
        before = dict(used)
        for name, _ in made.batch_ids(step):
            used[name] += 1
        for name, n in (("photos", 400), ("web", 70)):
            assert (told[name] == step) == (before[name] < n <= used[name])
        segment = [one for one in facts["segments"] if one["start_step"] <= step][-1]
        assert segment["global_batch"] == segment["samples_per_step"] == made.batch_size(step)
    text = made.describe()
    assert all(f"global batch {one['global_batch']}:" in text for one in facts["segments"])


def test_step_far_away_costs_what_a_near_one_does():
    made = make_plan({"big": synthetic(10**9)}, seed=7, global_batch=[(s, 256 + s) for s in range(0, 500, 5)])
    used = sum(256 + 5 * (step // 5) for step in range(495))
    for step in (495, 10**7, 10**12):
        slots = made.slots(step)
        assert len(slots) == 751
        assert int(slots.position.min()) == used + (step - 495) * 751


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        ([], {"what": "global_batch", "given": []}),
        ([(1, 20)], {"what": "global_batch entry 0: step", "given": 1}),
        ([(0, 20), (0, 21)], {"what": "global_batch entry 1: step", "given": 0}),
        ([(0, 20), (5, 0)], {"what": "global_batch from step 5", "given": 0}),
        ([(0, 20), 5], {"what": "global_batch", "given": 5}),
        ("20", {"what": "global_batch", "given": "20"}),
        (2.5, {"what": "global_batch", "given": 2.5}),
    ],
)
def test_ramps_that_are_refused(given, fault: dict[str, object]):
    with refusal(InvalidPlan, **fault):
        build_plan(given)


def test_later_batch_may_not_outgrow_a_source_that_is_read_then():
    with refusal(BatchTooLarge, what="global_batch", where="source 'web'", given=71):
        build_plan([(0, 20), (10, 71)])
    assert build_plan([(0, 20), (10, 71)], allow_repeats=True)
    assert build_plan([(0, 20), (10, 71)], [(10, {"photos": 1})]).batch_size(10) == 71


def test_damaged_batch_is_refused():
    content = build_plan([(0, 24), (9, 40)]).to_json()
    for wrong in (0, "40", None, 24):
        content["segments"][1]["batch"] = wrong
        with pytest.raises((InvalidPlan, PlanMismatch), match=r"batch|segments"):
            plan_from_json(content, lambda spec: synthetic(spec["n"], spec["name"]))


def test_padded_epochs_and_ramps_are_refused_together():
    with refusal(
        InvalidPlan,
        what="boundary",
        given="a schedule or a ramp",
    ):
        make_plan({"a": synthetic(100)}, seed=1, global_batch=[(0, 10), (5, 20)], boundary="mask")
