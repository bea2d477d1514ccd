"""A run goes on under a later version from a chosen step: what was planned before stays, no old sample is lost or read
twice in its epoch, new ones come in proportion, removed ones no more."""

import itertools
import json
from collections import Counter
from dataclasses import replace
from itertools import accumulate, pairwise

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from loader.errors import BatchTooLarge, InvalidPlan, PlanMismatch
from loader.order import plan
from loader.order.from_json import plan_from_json
from loader.order.plan import make_plan
from loader.order.planned_source import source
from loader.order.slots import rank_slice
from loader.order.sources import growth
from loader.order.sources.growth import Stage
from loader.order.sources.packing import Packing
from loader.order.sources.views import SyntheticView, synthetic
from loader.order.sources.views import synthetic as synthetic_view
from tests.refusals import refusal

SETTINGS = settings(max_examples=40, deadline=None, derandomize=True)


@pytest.fixture(scope="module")
def versions(properties):
    return properties.versions


@pytest.fixture(scope="module")
def reopen_plan(properties):
    def again(made, content=None):
        given_content = json.loads(json.dumps(made.to_json() if content is None else content))
        return plan_from_json(given_content, reopen)

    def reopen(spec):
        if spec["kind"] == "listed":
            return properties.Listed(tuple(spec["keys"]), spec["first"])
        return SyntheticView(spec["n"], spec["name"], first=spec.get("first", 0))

    return again


class Another(SyntheticView):
    """A view of another kind."""


@SETTINGS
@given(
    n=st.integers(1, 30),
    growths=st.lists(st.tuples(st.integers(0, 40), st.integers(0, 30), st.integers(0, 5)), max_size=4),
    more=st.integers(1, 60),
)
def test_stream_is_the_reference(properties, reference, n, growths, more):
    """growths: (positions since the one before, new samples, removed ones)."""
    sizes, stages, whole = {"a": n}, [growth.Stage(start=0, origin=0, epoch=0, n=n)], n
    starts = list(itertools.accumulate(gap for gap, _, _ in growths))
    for number, (start, (_, new, removed)) in enumerate(zip(starts, growths, strict=True), 1):
        whole = max(1, whole - removed) + new
        sizes |= {f"a+{number}": new, f"a#{number}": whole}
        stages.append(stages[-1].next_stage(start, whole, new))
    count = (starts[-1] if starts else 0) + more
    stream = growth.GrownStream(tuple(stages))
    number, new, epoch, inside = stream.view_positions(np.arange(count, dtype=np.int64))
    names = [
        f"a+{g}" if d else (f"a#{g}" if g else "a")
        for g, d in zip(number.tolist(), new.tolist(), strict=True)
    ]
    got = list(zip(names, epoch.tolist(), inside.tolist(), strict=True))
    wanted = reference.growth_stream("a", sizes, starts, count)
    assert got == wanted
    assert epoch.tolist() == sorted(epoch.tolist())
    for one in range(int(epoch[-1]) + 1):
        assert stream.epoch_start(one) == epoch.tolist().index(one)
    for last in (count - 1, 0):  # alone as in an array
        alone = [part.tolist() for part in stream.view_positions(np.array([last], np.int64))]
        assert alone == [[part[last].item()] for part in (number, new, epoch, inside)]


@settings(max_examples=15, deadline=None, derandomize=True)
@given(
    counts=st.lists(st.integers(3, 25), min_size=2, max_size=4),
    gone=st.lists(st.sets(st.integers(0, 99), max_size=2), min_size=3, max_size=3),
    gaps=st.lists(st.integers(1, 9), min_size=3, max_size=3),
    batch=st.integers(1, 3),
    others=st.booleans(),
)
def test_every_epoch_is_whole_and_new_samples_come_once(versions, counts, gone, gaps, batch, others):
    """Walks the run: which sample each slot was planned with, and when."""
    views = versions(counts, gone[: len(counts) - 1])
    steps = list(accumulate(gaps[: len(counts) - 1]))
    given_views = {"a": source(views[0], chunk=2, lanes=4), **({"b": synthetic(50, "b")} if others else {})}
    plain = made = make_plan(given_views, seed=5, global_batch=batch, allow_repeats=True)
    for step, view in zip(steps, views[1:], strict=True):
        made = made.grow({"a": source(view, chunk=2, lanes=4)}, step)
    taken, limit = Counter(), steps[-1] + 4 * sum(counts)
    names, epochs = made.source_names, []
    for step in range(limit):
        own, planned = plain.slots(step), made.slots(step)
        others_of = [names.index("b")] if others else []
        mine = ~np.isin(planned.source, others_of)
        # the other source is where it was, sample by sample
        for one, slots in ((plain, own), (made, planned)):
            assert len(slots) == batch
            here = slots.source == (one.source_names.index("b") if others else -1)
            epochs.append(
                sorted(zip(slots.position[here].tolist(), slots.ordinal[here].tolist(), strict=True))
            )
        assert epochs[-1] == epochs[-2]
        held = {key for number, at in enumerate(steps) if at <= step for key in views[number].version_keys}
        live = set(views[sum(at <= step for at in steps)].version_keys)
        held -= live
        for slot in np.flatnonzero(mine).tolist():
            name = names[planned.source[slot]]
            view = made.sources[name].view
            key = view.version_keys[planned.ordinal[slot]]
            assert key not in held  # what was removed is in no slot
            if planned.attempt[slot] == 0:
                taken[int(planned.epoch[slot]), key] += 1
    assert set(taken.values()) == {1}
    # whole epochs: all that the views of the epoch hold, but what was removed before its turn came
    last = max(epoch for epoch, _ in taken)
    everything = set().union(*(view.version_keys for view in views))
    removed = everything - set(views[-1].version_keys)
    for epoch in range(last):
        seen = {key for one, key in taken if one == epoch}
        begun = [
            number for number, at in enumerate(steps) if made.stream_of("a").stages[number + 1].epoch <= epoch
        ]
        assert seen - removed >= set(views[len(begun)].version_keys) - removed
        if len(begun) == len(steps):
            assert seen == set(views[-1].version_keys)


@settings(max_examples=15, deadline=None, derandomize=True)
@given(
    n=st.integers(20, 60),
    new=st.integers(1, 60),
    step=st.integers(1, 12),
    batch=st.integers(1, 10),
)
def test_old_and_new_end_together_and_in_proportion(versions, n, new, step, batch):
    views = versions([n, new], [set()])
    made = make_plan({"a": views[0]}, seed=5, global_batch=batch).grow({"a": views[1]}, step)
    start, old_left = step * batch, -step * batch % n
    plan = make_plan({"a": views[0]}, seed=5, global_batch=1).grow({"a": views[1]}, start)
    counts = Counter()
    for done in range(old_left + new if old_left else 0):
        slots = plan.slots(start + done)
        counts[plan.source_names[slots.source[0]]] += 1
        exact = (done + 1) * new / (old_left + new)
        assert exact - 1 < counts["a+1"] <= exact
    assert counts == ({"a": old_left, "a+1": new} if old_left else {})
    mixed = old_left + new if old_left else 0
    after = [plan.slots(start + mixed + i) for i in range(n + new)]
    assert {plan.source_names[slots.source[0]] for slots in after} == {"a#1"}
    assert sorted(int(slots.ordinal[0]) for slots in after) == list(range(n + new))
    # slots of larger batches are the same stream
    position = {}
    for at in range(step + 6):
        slots = made.slots(at)
        position |= dict(zip(slots.position.tolist(), slots.ordinal.tolist(), strict=True))
    assert sorted(position) == list(range((step + 6) * batch))
    for at in range(max(0, start - 3), (step + 6) * batch):
        assert position[at] == int(plan.slots(at).ordinal[0])


@SETTINGS
@given(left=st.integers(1, 2**53), delta=st.integers(1, 2**53), share=st.floats(0, 1), n=st.integers(1, 50))
@example(left=2**53 - 7, delta=2**53 - 9, share=0.5, n=50)
def test_new_samples_are_counted_exactly_however_many(left, delta, share, n):
    stage = Stage(start=5, origin=5 + left + delta, epoch=1, n=left + delta, delta=delta)
    first = int(share * (left + delta))
    j = range(first, min(first + n, left + delta) + 1)
    assert stage.count_new_each(np.array(j, np.int64)).tolist() == [
        one * delta // (left + delta) for one in j
    ]


def test_another_growth_is_another_past(properties):
    """A growth before the state's step cannot change; one at that step or later can."""
    before = plan.make_plan({"a": synthetic_view(50, "a")}, seed=3, global_batch=20)

    def grow_view(n, step):
        return before.grow({"a": synthetic_view(n, "a")}, step)

    state = before.state(4)
    assert properties.refusal(grow_view(60, 4), state) is None
    assert grow_view(60, 4).state(4) == state
    state = grow_view(60, 4).state(5)
    assert properties.refusal(grow_view(60, 4).grow({"a": synthetic_view(90, "a")}, 5), state) is None
    for other in (before, grow_view(60, 3), grow_view(61, 4)):
        why = properties.refusal(other, state) or ""
        assert "grown: " in why or "source 'a#1' n: " in why


def test_old_plans_states_go_on_and_later_ones_too(properties):
    old = synthetic(400, "p")
    web = source(synthetic(90, "w"), 2)
    before = make_plan({"photos": old, "web": web}, seed=7, global_batch=[(0, 20), (7, 30)])
    after = before.grow({"photos": synthetic(500, "p")}, step=10)
    assert after.hash != before.hash
    for step in range(11):
        assert after.state(step) == before.state(step)
        assert after.check_state(before.state(step)) == step
        if step < 10:
            assert after.batch_ids(step) == before.batch_ids(step)
    state = json.loads(json.dumps(after.state(11)))
    assert after.check_state(state) == 11
    with refusal(
        PlanMismatch, what="state", where="step 11", given=["grown", "source 'photos#1'", "source 'photos+1'"]
    ):
        before.check_state(state)
    with refusal(PlanMismatch, what="state", where="step 11", given=["grown"]):
        before.grow({"photos": synthetic(500, "p")}, step=9).check_state(state)
    changed = [
        "source 'photos#1' view",
        "source 'photos#1' n",
        "source 'photos+1' view",
        "source 'photos+1' n",
    ]
    with refusal(PlanMismatch, what="state", where="step 11", given=changed):
        before.grow({"photos": synthetic(501, "p")}, step=10).check_state(state)
    again = after.grow({"photos": synthetic(700, "p")}, step=11)
    assert again.check_state(state) == 11
    assert again.state(11) == state
    both = before.grow({"photos": synthetic(500, "p"), "web": synthetic(95, "w")}, step=10)
    with refusal(
        PlanMismatch, what="state", where="step 11", given=["grown", "source 'web#1'", "source 'web+1'"]
    ):
        both.check_state(state)


@SETTINGS
@given(legs=st.lists(st.tuples(st.integers(1, 20), st.integers(0, 7)), min_size=1, max_size=6))
def test_any_stops_resumes_and_world_sizes_give_the_uninterrupted_run(versions, reopen_plan, legs):
    views = versions([90, 30, 20], [{3, 50}, {7, 100}])

    def growing_plan():
        made = make_plan({"a": source(views[0], chunk=2, lanes=4)}, seed=3, global_batch=20)
        return made.grow({"a": views[1]}, 3).grow({"a": views[2]}, 5)

    state, got = make_plan({"a": source(views[0], chunk=2, lanes=4)}, seed=3, global_batch=20).state(0), []
    for world_size, batches in legs:
        made = reopen_plan(growing_plan())
        first = made.check_state(json.loads(json.dumps(state)))
        for step in range(first, first + batches):
            ids = made.batch_ids(step)
            got += [one for rank in range(world_size) for one in ids[rank_slice(20, rank, world_size)]]
        state = made.state(first + batches)
    whole = growing_plan()
    steps = sum(batches for _, batches in legs)
    assert got == [one for step in range(steps) for one in whole.batch_ids(step)]
    assert state == whole.state(steps)


def test_quarantined_sample_stays_so_under_the_later_versions(properties):
    """Removed samples, and lists of the version that the plan began with."""
    views = properties.versions([40, 20, 10], [{0, 5}, {1, 11, 21, 29}])
    made = plan.make_plan({"a": views[0]}, seed=3, global_batch=10, quarantine=[(1, {"a": ["0/7", "0/20"]})])
    made = made.grow({"a": views[1]}, 2).grow({"a": views[2]}, 4)
    assert (
        properties.slots_hold_what_is_left(made, {2: views[:2], 4: views[1:]}, {1: {"0/7", "0/20"}}, 30) > 10
    )


def test_json_hash_and_what_is_said(versions, reopen_plan):
    views = versions([40, 20], [{3}])
    plain = make_plan({"a": views[0], "b": synthetic(30)}, seed=3, global_batch=10)
    made = plain.grow({"a": views[1]}, 3)
    assert "grown" not in plain.to_json()
    assert made.to_json()["grown"] == [{"step": 3, "source": "a", "position": 15}]
    assert list(made.sources) == ["a", "a#1", "a+1", "b"]
    again = reopen_plan(made)
    assert again == made
    assert [again.batch_ids(step) for step in range(20)] == [made.batch_ids(step) for step in range(20)]
    (growth,) = made.facts()["growths"]
    assert growth == {
        "step": 3,
        "source": "a",
        "view": views[1].id,
        "samples": 59,
        "left_of_epoch": 25,
        "new": 20,
        "removed": 1,
        "whole_from_step": 12,
        "buckets": {},
    }
    text = made.describe()
    assert "from step 3 source 'a' grows: 25 samples left of its epoch are mixed with 20 new ones" in text
    assert "1 removed samples are in no slot" in text
    wrong = json.loads(json.dumps(made.to_json()))
    wrong["grown"][0]["position"] = 16
    with refusal(PlanMismatch, what="plan", given="grown"):
        reopen_plan(made, wrong)
    later = {"step": 3, "source": "b", "position": 15}
    edits = (
        ({}, "grown", "{}"),
        ([5], "grown[0]", 5),
        ([later], "grown", "b"),
        ([{"step": "3"}], "step", "3"),
    )
    for broken, name, value in edits:
        with refusal(InvalidPlan, what=name, given=value):
            reopen_plan(made, {**made.to_json(), "grown": broken})


@SETTINGS
@given(
    counts=st.lists(st.integers(4, 30), min_size=2, max_size=3),
    gaps=st.lists(st.integers(1, 12), min_size=2, max_size=2),
    batch=st.integers(1, 4),
)
def test_exhaustion_is_the_step_that_a_count_finds(versions, counts, gaps, batch):
    views = versions(counts, [set()] * (len(counts) - 1))
    made = make_plan({"a": views[0]}, seed=3, global_batch=batch)
    for step, view in zip(accumulate(gaps), views[1:], strict=False):
        made = made.grow({"a": view}, step)
    ends = {}
    for step in range(4 * sum(counts)):
        slots = made.slots(step)
        for k, epoch in zip(slots.source.tolist(), slots.epoch.tolist(), strict=True):
            ends.setdefault((made.source_names[k], epoch), [step, step])[1] = step
    facts = made.facts()
    for name, one in facts["sources"].items():
        epochs = sorted(epoch for view, epoch in ends if view == name)
        if one["exhausted_at_step"] is None:
            assert not epochs
            continue
        same = [last for (_, epoch), (_, last) in ends.items() if epoch == epochs[0]]
        assert one["exhausted_at_step"] == max(same)
    for grown, (one, other) in zip(facts["growths"], pairwise(range(len(views))), strict=True):
        assert (one, grown["source"]) == (other - 1, "a")
        begun = [first for (name, _), (first, _) in ends.items() if name == f"a#{other}"]
        assert grown["whole_from_step"] == (min(begun) if begun else None)


def test_step_far_away_costs_what_a_near_one_does():
    made = make_plan({"big": synthetic(10**9, "b")}, seed=7, global_batch=1024)
    for number in range(1, 40):
        made = made.grow({"big": synthetic(10**9 + number * 10**7, "b")}, step=number * 1000)
    stages = made.stream_of("big").stages
    assert made.check_state(made.state(10**7)) == 10**7
    for step in (39_000, 10**6, 10**9, 2**52):
        slots = made.slots(step)
        assert (
            len({*zip(slots.source.tolist(), slots.epoch.tolist(), slots.view_ordinal.tolist(), strict=True)})
            == 1024
        )
    assert stages[-1].origin == 10**9 + 39 * 10**7
    assert {made.source_names[k] for k in made.slots(10**9).source.tolist()} == {"big#39"}


@pytest.mark.parametrize(
    ("views", "step", "error", "fault"),
    [
        ({"b": synthetic(60, "a")}, 3, InvalidPlan, {"what": "source", "where": "grow", "given": "b"}),
        ({"a#1": synthetic(60, "a")}, 9, InvalidPlan, {"what": "source", "where": "grow", "given": "a#1"}),
        ({}, 3, InvalidPlan, {"what": "views", "where": "grow", "given": "{}"}),
        ({"a": synthetic(60, "a")}, -1, InvalidPlan, {"what": "grow: step", "given": -1}),
        ({"a": synthetic(60, "a")}, 5, InvalidPlan, {"what": "step", "where": "source 'a'", "given": 5}),
        (
            {"a": synthetic(60, "other")},
            9,
            InvalidPlan,
            {"what": "view", "where": "source 'a'", "given": ["other", 60]},
        ),
        (
            {"a": synthetic(54, "a")},
            9,
            InvalidPlan,
            {"what": "view", "where": "source 'a'", "given": ["a", 54]},
        ),
        (
            {"a": Another(60, "a")},
            9,
            InvalidPlan,
            {"what": "view", "where": "source 'a'", "given": "Another"},
        ),
        (
            {"a": source(synthetic(60, "a"), 2)},
            9,
            InvalidPlan,
            {"what": "weight", "where": "source 'a'", "given": 2},
        ),
        ({"a": "photos@13"}, 9, InvalidPlan, {"what": "source 'a#2'", "given": "str"}),
    ],
)
def test_growths_that_are_refused(views, step, error, fault: dict[str, object]):
    made = make_plan({"a": synthetic(50, "a")}, seed=3, global_batch=20).grow({"a": synthetic(55, "a")}, 5)
    with refusal(error, **fault):
        made.grow(views, step)


def test_plans_that_do_not_grow():
    view = synthetic(100, "p")
    masked = make_plan({"a": view}, seed=1, global_batch=10, boundary="mask")
    packed = replace(
        make_plan({"a": view}, seed=1, global_batch=10),
        pack=Packing(field="t", length=8, pad_id=0, dtype="<u2"),
    )
    for made, option in ((masked, "boundary"), (packed, "pack")):
        with refusal(InvalidPlan, what=option, where="grow"):
            made.grow({"a": synthetic(120, "p")}, 3)
    taken = make_plan({"a": synthetic(50, "p"), "a#1": synthetic(50)}, seed=1, global_batch=10)
    with refusal(InvalidPlan, what="source 'a#1'", accepted="the name of no grown view"):
        taken.grow({"a": synthetic(60, "p")}, 3)


def test_version_that_shrank_below_the_batch_is_refused(versions):
    views = versions([30, 1], [set(range(29))])
    made = make_plan({"a": views[0]}, seed=1, global_batch=10)
    with refusal(BatchTooLarge, what="global_batch", where="source 'a#1'", given=10):
        made.grow({"a": views[1]}, 2)


def test_growth_at_an_epochs_end_or_of_nothing_new(versions):
    views = versions([40, 20], [set()])
    made = make_plan({"a": views[0]}, seed=1, global_batch=10).grow({"a": views[1]}, 4)
    assert list(made.sources) == ["a", "a#1"]  # nothing is left to mix with
    assert {name for name, _ in made.batch_ids(3)} == {"a"}
    assert {name for name, _ in made.batch_ids(4)} == {"a#1"}
    shrunk = versions([40, 0], [{1, 2}])
    made = make_plan({"a": shrunk[0]}, seed=1, global_batch=10).grow({"a": shrunk[1]}, 2)
    assert list(made.sources) == ["a", "a#1"]
    assert [{name for name, _ in made.batch_ids(step)} for step in (3, 4)] == [{"a"}, {"a#1"}]
