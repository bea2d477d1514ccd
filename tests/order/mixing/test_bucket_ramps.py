"""Batches of buckets that change at a step: by budget, by bucket, by global batch; with schedules and growths."""

import json
import pickle
from collections import Counter
from fractions import Fraction

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from loader.errors import BatchTooLarge, InvalidPlan, PlanMismatch
from loader.order.from_json import plan_from_json
from loader.order.plan import make_plan
from loader.order.planned_source import source
from loader.order.sources.bucket import bucket, size_ramp
from loader.order.sources.views import SyntheticView, synthetic
from loader.run.recipe.world import count_micros, micro_count
from tests.refusals import refusal

SIZES = {"b0": 40, "b1": 30, "w32h1": 20}
SLOTS = st.sampled_from((1, 2, 3, 4, 6, 8))
RAMP = st.lists(st.tuples(st.integers(1, 9), SLOTS), max_size=3)
"""(steps since the change before, samples), after the first batch."""


def reopen_plan(made, content=None):
    return plan_from_json(
        json.loads(json.dumps(made.to_json() if content is None else content)),
        lambda spec: SyntheticView(spec["n"], spec["name"], first=spec.get("first", 0)),
    )


def make_ramp(first, gaps):
    ramp = [(0, first)]
    for gap, slots in gaps:
        ramp.append((ramp[-1][0] + gap, slots))
    return ramp


def in_force(ramp, step):
    return [slots for start, slots in ramp if start <= step][-1]


def build_plan(by, global_batch=9, schedule=None, web=True):
    views = {"photos": source(synthetic(sum(SIZES.values()), "p", SIZES), 2, chunk=2, lanes=4)}
    if web:
        views["web"] = synthetic(30, "w", {"b1": 20, "é": 10})
    return make_plan(
        views, seed=7, global_batch=global_batch, bucket_by=by, schedule=schedule, allow_repeats=True
    )


@settings(max_examples=12, deadline=None, derandomize=True)
@given(first=SLOTS, most=RAMP, b0=RAMP, b1=RAMP, schedule=st.booleans())
@example(first=4, most=[(3, 8)], b0=[(3, 6), (1, 2)], b1=[(4, 8)], schedule=True)
def test_batches_are_the_reference(properties, reference, first, most, b0, b1, schedule):
    """Of buckets that have a ramp of their own, and of those that follow the global batch."""
    most, own = make_ramp(first, most), {"b0": make_ramp(4, b0), "b1": make_ramp(3, b1)}
    weights = [(4, {"photos": 1}), (8, {"web": 3, "photos": 1})] if schedule else None
    made = build_plan(bucket("s", batch=own), most, weights)
    properties.check_bucket_growth(reference, made, 20)
    for step in range(20):
        assert made.batch_size(step) == in_force(own.get(made.bucket(step), most), step)
    for again in (reopen_plan(made), pickle.loads(pickle.dumps(made))):  # noqa: S301
        assert again == made
        assert [again.batch_ids(step) for step in range(12)] == [made.batch_ids(step) for step in range(12)]


@settings(max_examples=15, deadline=None, derandomize=True)
@given(first=st.integers(1, 9), most=RAMP, budget=RAMP)
def test_nothing_repeats_and_every_epoch_is_whole(properties, first, most, budget):
    costs = {"b0": 3, "b1": Fraction(7, 2), "é": 2}
    by = bucket("s", budget=make_ramp(20, [(gap, 8 * n) for gap, n in budget]), cost=costs)
    made = build_plan(by, make_ramp(first, most))
    properties.schedule_repeats_nothing(made, 40)
    properties.every_bucket_epoch_is_whole(made, epochs=1)
    properties.ranks_take_one_bucket(made, 20, 1)


@settings(max_examples=15, deadline=None, derandomize=True)
@given(at=st.integers(1, 20), kind=st.sampled_from(("budget", "batch", "global batch")))
def test_change_at_a_step_leaves_the_prefix_alone(properties, at, kind):
    cost = {"b0": 3, "b1": 5, "é": 2}
    before, after = {
        "budget": lambda: [build_plan(bucket("s", budget=b, cost=cost)) for b in (20, [(0, 20), (at, 40)])],
        "batch": lambda: [build_plan(bucket("s", batch={"b0": b})) for b in (4, [(0, 4), (at, 8)])],
        "global batch": lambda: [build_plan("s", b) for b in (5, [(0, 5), (at, 8)])],
    }[kind]()
    properties.prefix_is_untouched(before, after, at)
    assert before.hash != after.hash
    for step in (0, at):
        assert after.state(step) == before.state(step)
        assert after.check_state(before.state(step)) == step
    state = json.loads(json.dumps(after.state(at + 1)))
    assert after.check_state(state) == at + 1
    with refusal(PlanMismatch, what="state", given=["bucket_by", "segments"]):
        before.check_state(state)
    if kind != "global batch":
        assert state["past"]["bucket_by"]["ramp"][0]["start_step"] == at


def test_shares_keep_the_samples_shares():
    """When one bucket's batches double, it has half the turns per sample: epochs stay together."""
    made = build_plan(bucket("s", batch={"b0": [(0, 4), (6, 8)], "b1": 5, "w32h1": 2}), web=False)
    for segment, batch in zip(made.buckets.turns.segments, made.buckets.batches, strict=True):
        exact = {label: Fraction(n, batch[label]) for label, n in SIZES.items()}
        total = sum(segment.weights.values())
        assert {label: Fraction(n, total) for label, n in segment.weights.items()} == {
            label: one / sum(exact.values()) for label, one in exact.items()
        }
    assert [one.start_step for one in made.segments] == [0, 6]


def test_one_number_and_entries_that_change_nothing_are_the_same_plan():
    plain = build_plan(bucket("s", batch={"b0": 4}), 9)
    for by, most in (
        (bucket("s", batch={"b0": [(0, 4)]}), [(0, 9)]),
        (bucket("s", batch={"b0": [(0, 4), (5, 4)]}), [(0, 9), (3, 9)]),
    ):
        made = build_plan(by, most)
        assert made == plain
        assert "ramp" not in made.to_json()["bucket_by"]
    cost = {"b0": 3, "b1": 5, "é": 2}
    assert build_plan(bucket("s", budget=[(0, 30), (4, 30.5)], cost=cost)) == build_plan(
        bucket("s", budget=30, cost=cost)
    )


def test_sizes_by_step():
    asked = bucket("s", budget=[(0, 64), (10, 128.0), (20, "640")], cost={"b0": 4}, multiple=2)
    assert size_ramp(asked, ["b0", "w32h1"], [(0, 20), (15, 40)]) == [
        (0, {"b0": 16, "w32h1": 2}),
        (10, {"b0": 20, "w32h1": 4}),
        (15, {"b0": 32, "w32h1": 4}),
        (20, {"b0": 40, "w32h1": 20}),
    ]


@settings(max_examples=10, deadline=None, derandomize=True)
@given(legs=st.lists(st.tuples(st.integers(1, 3), st.integers(0, 7)), min_size=1, max_size=5))
def test_any_stops_resumes_and_world_sizes_give_the_uninterrupted_run(properties, legs):
    whole = build_plan(bucket("s", batch={"b0": [(0, 4), (6, 8)]}), [(0, 5), (9, 7)])
    properties.resumes_give_the_uninterrupted_run(whole, whole.state(0), legs)


def test_what_is_told_is_what_a_count_finds():
    made = build_plan(bucket("s", batch={"b0": [(0, 4), (6, 8), (11, 2)]}), [(0, 5), (9, 7)], web=False)
    facts, used, ends = made.facts(), Counter(), {}
    for step in range(60):
        for name, _ in made.batch_ids(step):
            used[name] += 1
        for name, one in made.sources.items():
            if used[name] >= one.shape.n:
                ends.setdefault(name, step)
    assert {name: one["exhausted_at_step"] for name, one in facts["sources"].items()} == ends
    assert [
        (one["start_step"], one["global_batch"], one["buckets"]["b0"]["batch"]) for one in facts["segments"]
    ] == [
        (0, 5, 4),
        (6, 5, 8),
        (9, 7, 8),
        (11, 7, 2),
    ]
    last = facts["segments"][-1]
    cycle = last["buckets"]["b0"]["total_turns"]
    taken = Counter(name for step in range(11, 11 + cycle) for name, _ in made.batch_ids(step))
    for name, one in last["sources"].items():
        assert taken[name] == pytest.approx(cycle * one["samples_per_step"])
    assert "bucket 'b0': batches of 8" in made.describe()
    for end in (0, 5, 10, 11, 40):
        counted = sum(micro_count(made.batch_size(step), 2, 2) for step in range(end))
        assert count_micros(made, end, 2, 2) == counted


def test_growths_and_ramps_together(properties, reference):
    """A bucket that comes with a growth has its batch of then, and follows its own ramp from there on; old ones keep
    theirs, and a step's past is what it was."""
    by = {"b0": [(0, 4), (3, 5), (9, 6)], "b1": 3}
    before = make_plan(
        {"a": source(synthetic(50, "p", {"b0": 20, "b1": 30}), chunk=2, lanes=4)},
        seed=7,
        global_batch=[(0, 5), (5, 8)],
        bucket_by=bucket("s", batch=by),
    )
    new = synthetic(95, "p", {"b0": 30, "b1": 30, "b2": 15, "b3": 20})
    asked = bucket("s", batch=by | {"b2": [(0, 1), (2, 2), (12, 4)]})
    made = before.grow({"a": source(new, chunk=2, lanes=4)}, 7, bucket_by=asked)
    properties.check_bucket_growth(reference, made, 25)
    assert reopen_plan(made) == made
    assert [one.start_step for one in made.segments] == [0, 3, 5, 7, 9, 12]
    assert made.to_json()["bucket_by"]["ramp"] == [
        {"start_step": 3, "batch": {"b0": 5}},
        {"start_step": 9, "batch": {"b0": 6}},
        {"start_step": 12, "batch": {"b2": 4}},
    ]
    assert made.buckets.batches[0] == {"b0": 4, "b1": 3, "b2": 2, "b3": 8}
    for step in range(8):
        assert made.state(step) == before.state(step)
    again = made.grow(
        {"a": source(synthetic(99, "p", {"b0": 34, "b1": 30, "b2": 15, "b3": 20}), chunk=2, lanes=4)}, 10
    )
    properties.check_bucket_growth(reference, again, 25)
    wrong = bucket("s", batch=by | {"b0": [(0, 4), (3, 5), (10, 6)]})
    with refusal(InvalidPlan, what="batch of bucket 'b0'", where="step 9", given=5):
        before.grow({"a": new}, 7, bucket_by=wrong)


def test_step_far_away_in_1e9_samples():
    sizes = {f"w{64 + 32 * k}h512": 10**6 * (k + 1) for k in range(44)}
    budgets = [(step, 64 * 512 * (256 + step)) for step in range(0, 500, 50)]
    made = make_plan(
        {"p": synthetic(sum(sizes.values()), "p", sizes)},
        seed=1,
        global_batch=1024,
        bucket_by=bucket("shape", budget=budgets, multiple=8),
    )
    for step in (0, 499, 10**7, 2**50):
        assert len(made.slots(step)) == made.batch_size(step)
    assert made.check_state(made.state(10**7)) == 10**7


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        ({"batch": {"b0": [(1, 5)]}}, {"what": "batch of bucket 'b0' entry 0: step", "given": 1}),
        ({"batch": {"b0": []}}, {"what": "batch of bucket 'b0'", "given": []}),
        ({"batch": {"b0": [(0, 5), (0, 6)]}}, {"what": "batch of bucket 'b0' entry 1: step", "given": 0}),
        ({"batch": {"b0": [(0, 5), (4, 0)]}}, {"what": "batch of bucket 'b0' from step 4", "given": 0}),
        ({"budget": [(0, 5), 7]}, {"what": "budget", "given": 7}),
        ({"budget": [(0, 5), (9, -1)]}, {"what": "budget from step 9", "given": -1}),
        ({"budget": [(0, 900), (9, 90)], "multiple": 64}, {"what": "multiple", "given": 64}),
    ],
)
def test_ramps_that_are_refused(arguments, fault: dict[str, object]):
    with refusal(InvalidPlan, **fault):
        build_plan(bucket("s", **arguments))


def test_later_batch_may_not_outgrow_a_bucket():
    views = {"a": synthetic(50, "p", {"b0": 20, "b1": 30})}
    by = bucket("s", batch={"b0": [(0, 4), (9, 21)]})
    with refusal(BatchTooLarge, what="the batch of bucket 'b0'", where="source 'a/b0'", given=21):
        make_plan(views, seed=1, global_batch=5, bucket_by=by)
    assert make_plan(views, seed=1, global_batch=5, bucket_by=by, allow_repeats=True).batch_range == (4, 21)


@pytest.mark.parametrize(
    "change",
    [
        lambda by: by["ramp"].pop(),
        lambda by: by.update(ramp=5),
        lambda by: by["ramp"][0].update(start_step=0),
        lambda by: by["ramp"][0].update(start_step=7),
        lambda by: by["ramp"][0]["batch"].update(b0=0),
        lambda by: by["ramp"][0]["batch"].update(b7=4),
        lambda by: by["ramp"][0].pop("batch"),
        lambda by: by["ramp"].append({"start_step": 9, "batch": {"b0": 8}}),
    ],
)
def test_edited_plan_is_refused(change):
    made = build_plan(bucket("s", batch={"b0": [(0, 4), (6, 8)]}))
    content = json.loads(json.dumps(made.to_json()))
    change(content["bucket_by"])
    with pytest.raises((InvalidPlan, PlanMismatch), match=r"ramp|bucket_by|batch|segments"):
        reopen_plan(made, content)
