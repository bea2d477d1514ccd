"""Known-bad samples in the plan: their slots hold substitutes, everything else stays where it was."""

import copy
import json
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loader.errors import InvalidPlan, PlanMismatch
from loader.order import plan
from loader.order.from_json import plan_from_json
from loader.order.plan import make_plan
from loader.order.planned_source import source
from loader.order.sources.pack_request import pack
from loader.order.sources.views import synthetic
from loader.order.sources.views import synthetic as synthetic_view
from tests.refusals import refusal

SETTINGS = settings(max_examples=40, deadline=None, derandomize=True)


def key(ordinal):
    return f"{ordinal:012d}"


def reopen_plan(plan):
    return plan_from_json(
        json.loads(json.dumps(plan.to_json())), lambda spec: synthetic(spec["n"], spec["name"])
    )


@SETTINGS
@given(
    sizes=st.lists(st.integers(20, 60), min_size=1, max_size=2),
    seed=st.integers(0, 2**64 - 1),
    start=st.integers(0, 3),
    step=st.integers(0, 12),
    data=st.data(),
)
def test_quarantined_slots_hold_their_substitutes(properties, sizes, seed, start, step, data):
    views = {f"s{i}": source(synthetic(n, f"s{i}"), chunk=2, lanes=4) for i, n in enumerate(sizes)}
    bad = {name: data.draw(st.sets(st.integers(0, sizes[i] - 1), max_size=5)) for i, name in enumerate(views)}
    for one in {max(start - 1, 0), start, step}:
        properties.quarantines_by_the_rule(views, seed, start, one, bad)


def test_buckets_are_quarantined_by_their_sources_name():
    """A substitute is of the same source and bucket."""
    from loader.order.sources.bucket import bucket
    from loader.order.substitutes import substitute

    def build_plan(quarantine=None):
        return make_plan(
            {"a": synthetic(60, "a", {"b0": 20, "b1": 40}), "z": synthetic(50, "z", {"b1": 50})},
            seed=3,
            global_batch=20,
            bucket_by=bucket("shape", batch={"b0": 5}),
            quarantine=quarantine,
        )

    bad = set(range(0, 20, 3))
    plain, quarantined = build_plan(), build_plan([(4, {"a": [key(o) for o in bad]})])
    changed = Counter()
    for step in range(12):
        own, got = plain.slots(step), quarantined.slots(step)
        for slot in range(len(own)):
            k, position = int(own.source[slot]), int(own.position[slot])
            wanted, attempt = int(own.ordinal[slot]), 0
            while step >= 4 and plain.source_names[k].startswith("a/") and wanted in bad:
                attempt += 1
                wanted = substitute(plain, k, position, attempt)[1]
                changed[plain.source_names[k]] += 1
            assert (int(got.source[slot]), int(got.ordinal[slot]), int(got.attempt[slot])) == (
                k,
                wanted,
                attempt,
            )
    assert set(changed) == {"a/b0", "a/b1"}
    again = plan_from_json(quarantined.to_json(), lambda spec: synthetic(spec["n"], spec["name"]))
    assert again == quarantined
    assert again.batch_ids(9) == quarantined.batch_ids(9)
    assert quarantined.check_state(plain.state(4)) == 4
    with refusal(PlanMismatch, what="state", where="step 5", given=["quarantine"]):
        quarantined.check_state(plain.state(5))
    with refusal(InvalidPlan, what="quarantine", given="a/b0"):
        build_plan({"a/b0": [key(0)]})


@SETTINGS
@given(bad=st.sets(st.integers(0, 49), max_size=6), start=st.integers(0, 5))
def test_saved_plan_comes_back_with_its_quarantine(bad, start):
    made = make_plan(
        {"a": synthetic(50)}, seed=3, global_batch=20, quarantine=[(start, {"a": [key(o) for o in bad]})]
    )
    again = reopen_plan(made)
    assert again == made
    for step in (start, start + 7):
        assert again.batch_ids(step) == made.batch_ids(step)


def test_empty_quarantine_leaves_the_plan_unchanged():
    views = {"a": synthetic(50)}
    plain = make_plan(views, seed=3, global_batch=20)
    for nothing in (None, [], (), {}, {"a": []}, [(7, {"a": []})]):
        made = make_plan(views, seed=3, global_batch=20, quarantine=nothing)
        assert made.hash == plain.hash
        assert made.state(5) == plain.state(5)


def test_list_is_in_the_hash_whatever_its_order():
    def build_plan(quarantine):
        return make_plan(
            {"a": synthetic(50), "b": synthetic(50)}, seed=3, global_batch=20, quarantine=quarantine
        )

    first = build_plan({"a": [key(3), key(7)], "b": [key(1)]})
    for same in (
        [(0, {"b": [key(1)]}), (0, {"a": [key(7), key(3), key(3)]})],
        [(0, {"a": [key(7)], "b": []}), (0, {"b": {key(1)}, "a": iter([key(3)])})],
    ):
        assert build_plan(same).hash == first.hash
    others = [{}, {"a": [key(3)], "b": [key(1)]}, {"a": [key(1)], "b": [key(3), key(7)]}]
    others.append([(1, {"a": [key(3), key(7)], "b": [key(1)]})])
    assert len({first.hash, *(build_plan(other).hash for other in others)}) == 5
    assert first.to_json()["quarantine"] == [
        {"start_step": 0, "source": "a", "samples": [[3, key(3)], [7, key(7)]]},
        {"start_step": 0, "source": "b", "samples": [[1, key(1)]]},
    ]


def test_run_may_quarantine_steps_after_its_stop(properties):
    """A list that counted before the state's step cannot change; one that counts from there on can."""
    views = {"a": synthetic_view(50)}

    def build_plan(quarantine):
        return plan.make_plan(views, seed=3, global_batch=20, quarantine=quarantine)

    bad = {"a": [f"{ordinal:012d}" for ordinal in (1, 2, 3)]}
    state = build_plan(None).state(4)
    for later in (4, 5, 100):
        assert properties.refusal(build_plan([(later, bad)]), state) is None
    held = build_plan([(2, bad)]).state(4)
    assert properties.refusal(build_plan([(2, bad), (4, {"a": ["000000000009"]})]), held) is None
    for other, theirs in (
        (build_plan([(3, bad)]), state),
        (build_plan(None), held),
        (build_plan([(3, bad)]), held),
        (build_plan([(2, {"a": bad["a"][:2]})]), held),
    ):
        assert "quarantine" in (properties.refusal(other, theirs) or "")


def test_sample_listed_twice_counts_from_the_earlier_step():
    views = {"a": synthetic(20)}
    made = make_plan(
        views,
        seed=3,
        global_batch=20,
        quarantine=[(2, {"a": [key(3)]}), (1, {"a": [key(3)]}), (3, {"a": [key(3)]})],
    )
    assert [("a", key(3)) in made.batch_ids(step) for step in range(5)] == [True, False, False, False, False]


def test_view_of_some_samples():
    """Ordinals of the list are the version's; a sample that the view leaves out may be listed."""

    class Even:
        id, identity, mean_sample_bytes = "w-even", "v-all", 0

        def __len__(self):
            return 30

        def spec(self):
            return {"kind": "even"}

        def version_ordinals(self, x):
            return x * 2

        def keys(self, ordinals):
            return [key(o) for o in ordinals.tolist()]

        def ordinals(self, keys):
            return np.array([int(one) if int(one) < 60 else -1 for one in keys], np.int64)

    plain = make_plan({"a": Even()}, seed=3, global_batch=30)
    made = make_plan({"a": Even()}, seed=3, global_batch=30, quarantine={"a": [key(4), key(5)]})
    before, after = plain.slots(0), made.slots(0)
    assert (
        np.flatnonzero(before.ordinal != after.ordinal).tolist()
        == np.flatnonzero(before.ordinal == 4).tolist()
    )
    assert np.array_equal(after.view_ordinal * 2, after.ordinal)


def test_samples_that_came_with_a_growth_are_quarantined_too(properties):
    """Lists of samples that came with either growth, of old ones by the later versions' keys, before and after."""
    views = properties.versions([40, 20, 10], [{0, 5}, {1, 11, 21, 29}])
    lists = {2: {"1/3", "1/7", "0/30"}, 5: {"2/2", "2/9", "1/4", "0/8"}, 3: {"1/0", "0/39"}}
    began = plan.make_plan({"a": views[0]}, seed=3, global_batch=10)
    made = began.grow({"a": views[1]}, 2).quarantined({"a": lists[2]}, 2).grow({"a": views[2]}, 4)
    for step in (5, 3):
        made = made.quarantined({"a": lists[step]}, step)
    assert properties.slots_hold_what_is_left(made, {2: views[:2], 4: views[1:]}, lists, 40) > 15
    plain = began.grow({"a": views[1]}, 2)
    properties.prefix_is_untouched(plain, plain.quarantined({"a": lists[5] - {"2/2", "2/9"}}, 3), 3)
    every_way_is_the_same_plan = [
        began.quarantined({"a": ["0/9"]}, 7).grow({"a": views[1]}, 2).quarantined({"a": ["1/3"]}, 7),
        plain.quarantined({"a": ["1/3"]}, 7).quarantined({"a": ["0/9"]}, 7),
        plain.quarantined({"a": ["0/9", "1/3", "1/3"]}, 7),
    ]
    assert len({one.hash for one in every_way_is_the_same_plan}) == 1


@settings(max_examples=12, deadline=None, derandomize=True)
@given(
    counts=st.lists(st.integers(12, 30), min_size=2, max_size=3),
    gone=st.lists(st.sets(st.integers(0, 99), max_size=2), min_size=2, max_size=2),
    lists=st.dictionaries(st.integers(0, 9), st.sets(st.integers(0, 99), max_size=3), max_size=3),
    late=st.booleans(),
)
def test_any_lists_and_growths_hold_back_their_samples(properties, counts, gone, lists, late):
    """Growths at the steps 2 and 5; lists from any step on, of the version that is read then, added before the
    growths that come after their step, or once the plan has them all."""
    views = properties.versions(counts, gone[: len(counts) - 1])
    steps = [2, 5][: len(counts) - 1]
    held = {}
    for start, picked in lists.items():
        live = views[sum(at <= start for at in steps)].version_keys
        held[start] = {live[i % len(live)] for i in picked}
    made = make_plan({"a": source(views[0], chunk=2, lanes=4)}, seed=5, global_batch=4)
    for start in sorted(held) if not late else []:
        if start < 2:
            made = made.quarantined({"a": held[start]}, start)
    for at, view in zip(steps, views[1:], strict=True):
        made = made.grow({"a": source(view, chunk=2, lanes=4)}, at)
    for start in sorted(held, reverse=True):
        if late or start >= 2:
            made = made.quarantined({"a": held[start]}, start)
    grown = {at: views[number : number + 2] for number, at in enumerate(steps)}
    properties.slots_hold_what_is_left(made, grown, held, 25)
    again = plan_from_json(
        json.loads(json.dumps(made.to_json())),
        lambda spec: properties.Listed(tuple(spec["keys"]), spec["first"]),
    )
    assert again == made
    assert [again.batch_ids(step) for step in range(12)] == [made.batch_ids(step) for step in range(12)]


def test_list_of_new_samples_belongs_to_the_past_after_its_step(properties):
    views = properties.versions([40, 20], [{3}])
    plain = make_plan({"a": views[0]}, seed=3, global_batch=10).grow({"a": views[1]}, 2)
    made = plain.quarantined({"a": ["1/3", "0/9"]}, 5)
    assert made.to_json()["quarantine"] == [
        {"start_step": 5, "source": "a", "samples": [[9, "0/9"]]},
        {"start_step": 5, "source": "a", "samples": [[42, "1/3"]], "growth": 1},
    ]
    assert made.state(5) == plain.state(5)
    assert made.check_state(plain.state(5)) == 5
    for here, there in ((made, plain), (plain, made)):
        with refusal(PlanMismatch, what="state", where="step 6", given=["quarantine"]):
            here.check_state(there.state(6))
    assert made.quarantined({}, 9) == made.quarantined({"a": []}, 9) == made
    body = made.to_json()
    growth = {"what": "an entry of quarantine: growth"}
    unknown = {"what": "source", "where": "an entry of quarantine", "given": ["a", 2]}
    for wrong, fault in ((2, unknown), (-1, {**growth, "given": -1}), ("1", {**growth, "given": "1"})):
        body["quarantine"][1]["growth"] = wrong
        with refusal(InvalidPlan, **fault):
            plan_from_json(body, lambda spec: properties.Listed(tuple(spec["keys"]), spec["first"]))


@pytest.mark.parametrize(
    ("samples", "step", "fault"),
    [
        ({"a": ["1/3"]}, 1, {"what": "key", "where": "source 'a'", "given": "1/3"}),
        ({"a": ["0/3"]}, 2, {"what": "key", "where": "source 'a'", "given": "0/3"}),
        ({"a#1": ["1/3"]}, 2, {"what": "quarantine", "given": "a#1"}),
        ({"a": "1/3"}, 2, {"what": "quarantine", "where": "source 'a'", "given": "1/3"}),
        ({"a": [["1/3"]]}, 2, {"what": "key", "where": "source 'a'", "given": ["1/3"]}),
        ([(2, {"a": ["1/3"]})], 2, {"what": "quarantined", "given": [(2, "{'a': ['1/3']}")]}),
        ({"a": ["1/3"]}, -1, {"what": "quarantined: step", "given": -1}),
    ],
)
def test_later_lists_that_are_refused(properties, samples, step, fault: dict[str, object]):
    """A key counts by the version that is in force at the step: new ones come at 2, and 0/3 is gone then."""
    views = properties.versions([40, 20], [{3}])
    made = make_plan({"a": views[0]}, seed=3, global_batch=10).grow({"a": views[1]}, 2)
    with refusal(InvalidPlan, **fault):
        made.quarantined(samples, step)


def test_lists_may_be_added_to_any_plan(properties):
    """With buckets, of the whole source; of packed documents, by their keys; one step at a time or all at once."""
    views = {"a": synthetic(50), "b": synthetic(30)}
    at_once = make_plan(
        views, seed=3, global_batch=20, quarantine=[(4, {"a": [key(1), key(9)], "b": [key(2)]})]
    )
    plain = make_plan(views, seed=3, global_batch=20)
    assert plain.quarantined({"b": [key(2)]}, 4).quarantined({"a": [key(9), key(1)]}, 4) == at_once
    bucketed = {"a": synthetic(60, "a", {"b0": 20, "b1": 40})}
    lists = [(4, {"a": [key(0), key(30)]})]
    made = make_plan(bucketed, seed=3, global_batch=20, bucket_by="shape")
    assert made.quarantined(lists[0][1], 4) == make_plan(
        bucketed, seed=3, global_batch=20, bucket_by="shape", quarantine=lists
    )
    documents = {"a": properties.make_documents([5] * 90)}
    packed = make_plan(documents, seed=3, global_batch=2, pack=pack("t.npy", 10))
    with_list = make_plan(
        documents, seed=3, global_batch=2, pack=pack("t.npy", 10), quarantine={"a": [key(7)]}
    )
    assert packed.quarantined({"a": [key(7)]}, 0) == with_list


@pytest.mark.parametrize(
    ("quarantine", "fault"),
    [
        ({"b": [key(1)]}, {"what": "quarantine", "given": "b"}),
        ({"a": [key(1), "x", key(50)]}, {"what": "key", "where": "source 'a'", "given": "x"}),
        ({"a": ["1"]}, {"what": "key", "where": "source 'a'", "given": "1"}),
        ({"a": key(1)}, {"what": "quarantine", "where": "source 'a'", "given": "000000000001"}),
        ({"a": 5}, {"what": "quarantine", "where": "source 'a'", "given": 5}),
        ({"a": [5]}, {"what": "key", "where": "source 'a'", "given": 5}),
        ({"a": [key(1), ["1"]]}, {"what": "key", "where": "source 'a'", "given": ["1"]}),
        ([(0, {"a": [{"key": "1"}]})], {"what": "key", "where": "source 'a'", "given": {"key": "1"}}),
        ([(-1, {"a": []})], {"what": "quarantine entry: step", "given": -1}),
        ([("a", [key(1)])], {"what": "quarantine", "given": ("a", ["000000000001"])}),
        (key(1), {"what": "quarantine", "given": "000000000001"}),
        (7, {"what": "quarantine", "given": 7}),
    ],
)
def test_lists_that_are_refused(quarantine, fault: dict[str, object]):
    with refusal(InvalidPlan, **fault):
        make_plan({"a": synthetic(50)}, seed=3, global_batch=20, quarantine=quarantine)


def test_source_of_which_too_much_is_quarantined_is_refused_at_its_step():
    made = make_plan(
        {"a": synthetic(20)}, seed=3, global_batch=20, quarantine=[(2, {"a": [key(o) for o in range(20)]})]
    )
    assert len(made.batch_ids(1)) == 20
    with refusal(InvalidPlan, what="source 'a'", where="step 2", given=40):
        made.slots(2)


@pytest.mark.parametrize(
    "change",
    [
        lambda one: one.pop("samples"),
        lambda one: one.update(source="z"),
        lambda one: one.update(start_step="0"),
        lambda one: one.update(samples=[[1]]),
        lambda one: one.update(samples=[["1", "x"]]),
    ],
)
def test_damaged_json_is_refused(change):
    made = make_plan({"a": synthetic(50)}, seed=3, global_batch=20, quarantine={"a": [key(1)]})
    body = copy.deepcopy(made.to_json())
    change(body["quarantine"][0])
    with pytest.raises(InvalidPlan):
        plan_from_json(body, lambda spec: synthetic(spec["n"], spec["name"]))
    body["quarantine"] = None
    with refusal(InvalidPlan, what="quarantine", where="the plan"):
        plan_from_json(body, lambda spec: synthetic(spec["n"], spec["name"]))


def test_state_of_a_run_without_the_list_is_refused_by_name():
    views = {"a": synthetic(50)}
    plain = make_plan(views, seed=3, global_batch=20)
    made = make_plan(views, seed=3, global_batch=20, quarantine={"a": [key(1)]})
    for here, there in ((plain, made), (made, plain)):
        with refusal(PlanMismatch, what="state", where="step 1", given=["quarantine"]):
            here.check_state(there.state(1))


def test_list_without_samples_excludes_nothing():
    views = {"a": synthetic(30, "a")}
    content = make_plan(views, seed=3, global_batch=10).to_json()
    content["quarantine"] = [{"start_step": 0, "source": "a", "samples": []}]
    saved = plan_from_json(content, lambda spec: synthetic(spec["n"], spec["name"]))
    expected = make_plan(views, seed=3, global_batch=10)
    assert saved.slots(1).ordinal.tolist() == expected.slots(1).ordinal.tolist()
