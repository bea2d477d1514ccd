"""A plan with buckets goes on under a later version: each bucket's epoch is untouched and takes its share of what is
new, buckets come and go, and the shares of the turns change at the step and never before."""

import json
from collections import Counter
from fractions import Fraction
from itertools import accumulate

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from loader.errors import EmptyView, InvalidPlan, PlanMismatch
from loader.order.from_json import plan_from_json
from loader.order.plan import make_plan
from loader.order.sources.bucket import bucket
from loader.order.sources.views import SyntheticView, synthetic
from tests.refusals import refusal

LABELS = ("b0", "b1", "é")
BATCHES = {"b0": 3, "b1": 2, "é": 4}
COUNTS = st.dictionaries(st.sampled_from(LABELS), st.integers(1, 14), max_size=3)
FIRST = st.dictionaries(st.sampled_from(LABELS), st.integers(4, 14), min_size=1)
FIELDS = ("source", "position", "ordinal")
GONE = st.sets(st.one_of(st.integers(0, 99), st.sampled_from(LABELS)), max_size=2)

GROWTHS = st.lists(st.tuples(st.integers(1, 9), COUNTS, GONE), min_size=1, max_size=3)
"""(steps since the one before, new samples of labels, what is removed)."""


@pytest.fixture(scope="module")
def reopen_plan(properties):
    def reopen(spec):
        if spec["kind"] == "labelled":
            return properties.Labelled(tuple(spec["keys"]), spec["first"], label=spec["label"])
        return SyntheticView(spec["n"], spec["name"], first=spec.get("first", 0))

    def again(made, content=None):
        given_content = json.loads(json.dumps(made.to_json() if content is None else content))
        return plan_from_json(given_content, reopen)

    return again


def enough(views):
    """Of what any view holds of a bucket most is still there under later versions, or the bucket is gone in between: so
    that eight substitutes are not all removed too."""
    held = [
        {
            label: set(part.keys(part.version_ordinals(slice(None))))
            for label, part in view.split(None, None).items()
        }
        for view in views
    ]
    for number, one in enumerate(held):
        for label, had in one.items():
            for later in held[number + 1 :]:
                if label not in later:
                    break
                if len(had & later[label]) < 0.6 * len(had):
                    return False
    return all(held)


def history(properties, first, growths):
    """Views of versions, and the steps at which a plan grows."""
    views = properties.label_versions(
        [first, *(new for _, new, _ in growths)], [gone for *_, gone in growths]
    )
    assume(all(len(view) for view in views))
    return views, list(accumulate(gap for gap, *_ in growths))


def state_or_error(plan, step):
    """The plan's state, or why it has none: a growth may remove a sample with all of its substitutes."""
    try:
        return plan.state(step)
    except InvalidPlan as error:
        return str(error)


@settings(max_examples=20, deadline=None, derandomize=True)
@given(first=FIRST, growths=GROWTHS, mixed=st.sampled_from((None, (), (4, 8))))
@example(
    first={"b0": 9, "b1": 8}, growths=[(5, {"b0": 6, "é": 7}, {"b1"}), (6, {"b1": 5}, {0})], mixed=(4, 8)
)
@example(first={"b0": 9, "b1": 8}, growths=[(4, {"b0": 9}, set()), (2, {"b0": 5}, {"b1"})], mixed=())
@example(first={"b0": 8}, growths=[(4, {"b0": 1, "b1": 1}, {"b0"})], mixed=(4, 8))
def test_batches_are_the_reference(properties, reference, reopen_plan, first, growths, mixed):
    views, steps = history(properties, first, growths)
    other = None if mixed is None else {"b0": 9, "w": 7}
    schedule = [(mixed[0], {"a": 1}), (mixed[1], {"a": 2, "z": 1})] if mixed else None
    batches = BATCHES | ({"w": 3} if other else {})
    _, made = properties.bucket_growth_plan(views, steps, batches, (3, 1), schedule=schedule, other=other)
    properties.check_bucket_growth(reference, made, 20)
    again = reopen_plan(made)
    assert again == made
    assert [state_or_error(again, step) for step in (0, 9)] == [state_or_error(made, step) for step in (0, 9)]


@settings(max_examples=30, deadline=None, derandomize=True)
@given(first=FIRST, growths=GROWTHS)
@example(
    first={"b0": 12, "b1": 11, "é": 9}, growths=[(9, {"b0": 8, "é": 2}, {2, 7}), (4, {"b1": 7}, {"é", 5})]
)
def test_every_epoch_of_every_bucket_is_whole_and_new_samples_come_once(properties, first, growths):
    """Walks the run: old batches as they were; every bucket's old epoch goes on, each sample of it once, new ones once;
    then whole epochs; what was removed is in no slot; every batch is of the bucket whose turn it is."""
    views, steps = history(properties, first, growths)
    assume(enough(views))
    before, made = properties.bucket_growth_plan(views, steps, BATCHES)
    limit = 60
    for step in range(steps[0] if steps else limit):
        a, b = before.slots(step), made.slots(step)
        for field in ("position", "epoch", "ordinal", "view_ordinal", "attempt"):
            assert np.array_equal(getattr(a, field), getattr(b, field)), field
        assert [before.source_names[k] for k in a.source.tolist()] == [
            made.source_names[k] for k in b.source.tolist()
        ]
    taken = Counter()
    for step in range(limit):
        label, planned = made.bucket(step), made.slots(step)
        assert len(planned) == made.batch_size(step)
        version = sum(at <= step for at in steps)
        live = set(views[version].version_keys)
        came = set().union(*(view.version_keys for view in views[: version + 1]))
        for k, epoch, ordinal, attempt in zip(
            planned.source.tolist(),
            planned.epoch.tolist(),
            planned.ordinal.tolist(),
            planned.attempt.tolist(),
            strict=True,
        ):
            one = list(made.sources.values())[k]
            assert one.bucket == label
            if one.source != "a":
                continue
            key = one.view.version_keys[ordinal]
            assert key.partition("/")[0] == label
            assert key in came
            assert key in live
            if not attempt:
                taken[label, epoch, key] += 1
    assert set(taken.values()) <= {1}
    everything = set().union(*(view.version_keys for view in views))
    removed = everything - set(views[-1].version_keys)
    for name, stream in made.grown_streams.items():
        label = name.partition("/")[2]
        epochs = [epoch for one, epoch, _ in taken if one == label]
        for epoch in range(max(epochs, default=0)):
            seen = {key for one, at, key in taken if (one, at) == (label, epoch)}
            begun = max(number for number, stage in enumerate(stream.stages) if stage.epoch <= epoch)
            of_label = {key for key in views[begun].version_keys if key.partition("/")[0] == label}
            assert seen - removed >= of_label - removed
            if begun == len(steps) and stream.stages[-1].origin >= stream.stages[-1].start:
                assert seen == of_label or epoch < stream.stages[-1].epoch


def growing_views(properties, more=0, **options):
    """b0 and b1, and b2 from step 6 on; b1 is gone from step 11 on, and two samples of b0. more: of b2 at step 6."""
    views = properties.label_versions(
        [{"b0": 12, "b1": 10}, {"b0": 8, "b2": 9 + more}, {"b2": 3}], [set(), {0, 4, "b1"}]
    )
    return properties.bucket_growth_plan(views, [6, 11], {"b0": 4, "b1": 5, "b2": 3}, **options)


def test_two_sources_buckets_and_lists_of_what_is_new(properties):
    """The other source stays where it was, sample by sample; new and old samples are quarantined by their keys."""
    before, made = growing_views(properties, other={"b0": 20, "b1": 15, "b2": 9})
    for name in ("z/b0", "z/b1"):
        one, other = (
            {
                position: ordinal
                for step in range(40)
                for k, position, ordinal in zip(
                    *(getattr(p.slots(step), f).tolist() for f in FIELDS), strict=True
                )
                if p.source_names[k] == name
            }
            for p in (before, made)
        )
        assert len(one.keys() & other.keys()) > 20
        assert all(one[position] == other[position] for position in one.keys() & other.keys())
    listed = made.quarantined({"a": ["b0/1/3", "b2/1/0", "b0/0/7"]}, 8)
    properties.prefix_is_untouched(made, listed, 8)
    taken = [{key for _, key in listed.batch_ids(step)} for step in range(40)]
    assert {"b0/1/3", "b2/1/0", "b0/0/7"}.isdisjoint(set().union(*taken[8:]))
    assert {"b0/1/4", "b2/1/1", "b0/0/6"} <= set().union(*taken[8:])
    assert listed.to_json()["quarantine"][1]["growth"] == 1


def test_earlier_steps_stay_and_states_continue(properties, reopen_plan):
    before, made = growing_views(properties)
    for step in range(12):
        if step <= 6:
            assert made.state(step) == before.state(step)
            assert made.check_state(before.state(step)) == step
        assert made.check_state(json.loads(json.dumps(made.state(step)))) == step
    with pytest.raises(PlanMismatch, match=r"bucket_by: .*grown: .*None in this plan"):
        before.check_state(made.state(7))
    with pytest.raises(PlanMismatch, match=r"bucket_by: .*'start_step': 6"):
        made.check_state(before.state(7))
    _, other = growing_views(properties, more=1)
    with refusal(PlanMismatch, what="state", where="step 7", given=["bucket_by", "grown"]):
        other.check_state(made.state(7))
    again = reopen_plan(made)
    assert [again.batch_ids(step) for step in range(40)] == [made.batch_ids(step) for step in range(40)]
    for world_size in (1, 2, 3):
        properties.ranks_take_one_bucket(made, 25, world_size)


def test_another_step_of_a_growth_that_brings_nothing_is_another_past(properties):
    views = properties.label_versions([{"b0": 12, "b1": 10}, {}], [set()])
    made, early = (properties.bucket_growth_plan(views, [at], {"b0": 3, "b1": 4})[1] for at in (5, 4))
    assert made.check_state(made.state(7)) == 7
    with refusal(PlanMismatch, what="state", where="step 7", given=["bucket_by", "grown", "segments[1]"]):
        early.check_state(made.state(7))


@settings(max_examples=15, deadline=None, derandomize=True)
@given(legs=st.lists(st.tuples(st.integers(1, 3), st.integers(0, 7)), min_size=1, max_size=6))
def test_any_stops_resumes_and_world_sizes_give_the_uninterrupted_run(properties, legs):
    before, whole = growing_views(properties)
    properties.resumes_give_the_uninterrupted_run(whole, before.state(0), legs)


def test_shares_change_at_the_step(properties):
    before, made = growing_views(properties)
    shares = [one.weights for one in made.buckets.turns.segments]
    assert [(one.start_step, one.weights) for one in before.buckets.turns.segments] == [(0, shares[0])]
    sizes = [{"b0": 12, "b1": 10}, {"b0": 20, "b1": 10, "b2": 9}, {"b0": 18, "b2": 12}]
    for held, share in zip(sizes, shares, strict=True):
        exact = {label: Fraction(n, {"b0": 4, "b1": 5, "b2": 3}[label]) for label, n in held.items()}
        assert {label: Fraction(n, sum(share.values())) for label, n in share.items()} == {
            label: one / sum(exact.values()) for label, one in exact.items()
        }
    assert [one.start_step for one in made.segments] == [0, 6, 11]
    turns = [made.bucket(step) for step in range(60)]
    assert turns[:6] == [before.bucket(step) for step in range(6)]
    assert "b2" not in turns[:6]
    assert "b1" not in turns[11:]


def test_what_is_told_is_what_a_count_finds(properties):
    _, made = growing_views(properties)
    facts, first, last = made.facts(), {}, {}
    for step in range(200):
        slots = made.slots(step)
        for k, epoch in zip(slots.source.tolist(), slots.epoch.tolist(), strict=True):
            first.setdefault((made.source_names[k], epoch), step)
            last[made.source_names[k], epoch] = step
    for name, one in facts["sources"].items():
        epochs = [epoch for view, epoch in first if view == name]
        assert one["exhausted_at_step"] == (last[name, min(epochs)] if epochs else None), name
    one, two = facts["growths"]
    assert (one["step"], one["source"], one["view"], one["samples"], one["removed"]) == (6, "a", None, 39, 0)
    assert (two["step"], two["samples"], two["removed"], list(two["buckets"])) == (11, 30, 12, ["b0", "b2"])
    for growth in (one, two):
        for label, part in growth["buckets"].items():
            name = next(
                name
                for name, view in made.sources.items()
                if (view.bucket, view.view_id, view.delta) == (label, part["view"], False)
            )
            begun = [step for (view, _), step in first.items() if view == name]
            assert part["whole_from_step"] == (min(begun) if begun else None)
    for key in ("left_of_epoch", "new"):
        assert one[key] == sum(part[key] for part in one["buckets"].values())
    text = made.describe()
    assert "from step 6 source 'a' grows to 39 samples, by bucket" in text
    assert "from step 11 source 'a' grows to 30 samples, by bucket; 12 removed samples are in no slot" in text
    assert "  from step 6 bucket 'b2' grows: its epochs are of the 9 samples" in text
    for number, end in ((1, 11), (2, None)):
        segment = facts["segments"][number]
        cycle = segment["buckets"]["b0"]["total_turns"]
        steps = range(segment["start_step"], end or segment["start_step"] + 10 * cycle)
        if end is None:
            turns = Counter(made.bucket(step) for step in steps)
            assert turns == {label: 10 * part["turns"] for label, part in segment["buckets"].items()}
            assert segment["steps_per_epoch"]["a"] == pytest.approx(30 / segment["samples_per_step"])


def test_step_far_away_in_1e9_samples_of_a_hundred_buckets():
    def view(scale):
        sizes = {f"w{64 + 32 * k}h512": scale * (k + 1) for k in range(100)}
        return synthetic(sum(sizes.values()), "p", sizes)

    made = make_plan(
        {"p": view(190_000)}, seed=1, global_batch=1024, bucket_by=bucket("shape", budget=64 * 512 * 1024)
    )
    for number in range(1, 4):
        made = made.grow({"p": view(190_000 + 10_000 * number)}, step=number * 10_000)
    assert made.check_state(made.state(10**7)) == 10**7
    for step in (9_999, 30_001, 10**7, 2**50):
        slots = made.slots(step)
        assert len(slots) == made.batch_size(step)
        assert {made.sources[made.source_names[k]].bucket for k in slots.source.tolist()} == {
            made.bucket(step)
        }
    assert all(name.endswith("#3") for name, _ in made.batch_ids(10**9))


def test_opening_a_plan_asks_once_per_growth_what_is_new(properties, reopen_plan, monkeypatch):
    """However many buckets there are: each has its table of samples to read for the answer."""
    made, asked, real = growing_views(properties)[1].to_json(), [], properties.Labelled.since
    monkeypatch.setattr(
        properties.Labelled, "since", lambda view, old, **more: asked.append(view) or real(view, old, **more)
    )
    reopen_plan(None, made)
    assert len(asked) == 2
    everything_new = properties.label_versions([{"b0": 12, "b1": 9}, {"é": 12}], [{"b0", "b1"}])
    _, made = properties.bucket_growth_plan(everything_new, [5], {"b0": 4, "b1": 3, "é": 4})
    assert reopen_plan(made) == made
    assert [made.bucket(step) for step in range(5, 9)] == ["é"] * 4


def test_bucket_that_comes_again_has_an_order_of_its_own(properties):
    views = properties.label_versions(
        [{"b0": 12, "b1": 10}, {"b0": 3}, {"b1": 10}, {"b1": 4}], [{"b1"}, set(), set()]
    )
    _, made = properties.bucket_growth_plan(views, [4, 8, 12], {"b0": 4, "b1": 5})
    assert [name for name, one in made.sources.items() if one.bucket == "b1"] == [
        "a/b1",
        "a/b1#2",
        "a/b1#3",
        "a/b1+3",
    ]
    seen = {name for step in range(60) for name, _ in made.batch_ids(step)}
    assert {"a/b1", "a/b1#2", "a/b1#3", "a/b1+3"} <= seen
    assert all(made.bucket(step) == "b0" for step in range(4, 8))


@pytest.mark.parametrize(
    ("sizes", "by", "fault"),
    [
        ({"b0": 12, "b1": 9}, None, {"what": "view", "where": "source 'a/b1'", "given": ["p/b1", 9]}),
        (
            {"b0": 12},
            None,
            {"what": "view", "where": "source 'a/b1'", "given": 0},
        ),
        (
            {"b0": 12, "b1": 10, "b2": 4},
            None,
            {"what": "bucket_by", "given": ["b2"]},
        ),
        (
            {"b0": 12, "b1": 10},
            bucket("other"),
            {"what": "bucket_by", "given": ["other", None]},
        ),
        (
            {"b0": 12, "b1": 10},
            bucket("shape", batch={"b1": 4}),
            {"what": "batch of bucket 'b1'", "where": "step 0", "given": 4},
        ),
        (
            {"b0": 12, "b1": 10},
            bucket("shape", batch={"b9": 4}),
            {"what": "batch", "where": "bucket", "given": ["b9"]},
        ),
        ({"b0": 12, "b1": 10}, 5, {"what": "bucket_by", "given": 5}),
        (None, None, {"what": "buckets", "where": "source 'a'", "given": "p"}),
    ],
)
def test_growths_that_are_refused(sizes, by, fault: dict[str, object]):
    made = make_plan(
        {"a": synthetic(22, "p", {"b0": 12, "b1": 10})}, seed=1, global_batch=5, bucket_by=bucket("shape")
    )
    new = synthetic(sum(sizes.values()), "p", sizes) if sizes else synthetic(30, "p")
    with refusal(InvalidPlan, **fault):
        made.grow({"a": new}, 3, bucket_by=by)


def test_names_and_versions_that_are_refused(properties):
    views = properties.label_versions([{"b0": 9}, {"b0": 2}], [{"b0"}])
    with refusal(EmptyView, what="view", where="source 'a'", given=0):
        properties.bucket_growth_plan([views[0], properties.Labelled(())], [3], {"b0": 4})
    clash = synthetic(20, "p", {"b0": 10, "b0#1": 10})
    made = make_plan({"a": clash}, seed=1, global_batch=5, bucket_by="shape")
    with refusal(InvalidPlan, what="source 'a/b0#1'", accepted="the name of no grown view"):
        made.grow({"a": clash}, 3)
    plain = make_plan({"a": synthetic(20)}, seed=1, global_batch=5)
    with refusal(InvalidPlan, what="bucket_by", where="grow"):
        plain.grow({"a": synthetic(30)}, 3, bucket_by="shape")


def test_sources_grow_in_ascending_steps_and_at_one_step_in_any_order():
    """A growth moves every bucket's turns, and so where other sources stand at later steps."""

    def view(name, *sizes):
        held = dict(zip(("b0", "b1"), sizes, strict=True))
        return synthetic(sum(sizes), name, held)

    made = make_plan(
        {"a": view("a", 30, 20), "z": view("z", 15, 15)}, seed=1, global_batch=5, bucket_by="shape"
    )
    new = {"a": view("a", 44, 20), "z": view("z", 15, 36)}
    at_once = made.grow(new, 5)
    assert at_once == made.grow({"a": new["a"]}, 5).grow({"z": new["z"]}, 5)
    assert at_once == made.grow({"z": new["z"]}, 5).grow({"a": new["a"]}, 5)
    assert made.grow({"a": new["a"]}, 5).grow({"z": new["z"]}, 6) != at_once
    with refusal(InvalidPlan, what="step", where="grow", given=4):
        made.grow({"a": new["a"]}, 5).grow({"z": new["z"]}, 4)


def test_labels_that_end_like_growths_are_labels(properties, reopen_plan):
    """The bucket `b#1` that comes with growth 1 is not the grown view of `b`."""
    views = properties.label_versions([{"b#2": 12, "c": 8}, {"b+1": 8, "c": 3}], [set()])
    _, made = properties.bucket_growth_plan(views, [5], {"b#2": 4, "b+1": 4, "c": 4})
    assert {name: (one.source, one.stream) for name, one in made.sources.items()} == {
        "a/b#2": ("a", "a/b#2"),
        "a/b#2#1": ("a", "a/b#2"),
        "a/b+1": ("a", "a/b+1"),
        "a/c": ("a", "a/c"),
        "a/c#1": ("a", "a/c"),
    }
    assert reopen_plan(made) == made


@pytest.mark.parametrize(
    "change",
    [
        lambda body: body["grown"].pop(),
        lambda body: body["grown"][0].update(step=7),
        lambda body: body["grown"][0].update(source="z"),
        lambda body: body["segments"].pop(),
        lambda body: body["sources"]["a/b0#1"].update(growth=2),
    ],
)
def test_edited_plan_is_refused(properties, reopen_plan, change):
    body = json.loads(json.dumps(growing_views(properties)[1].to_json()))
    change(body)
    with pytest.raises((InvalidPlan, PlanMismatch)):
        reopen_plan(None, body)
