import hashlib
import json
import pickle
import tracemalloc
from dataclasses import FrozenInstanceError, dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import loader
from loader.errors import BatchTooLarge, EmptyView, FormatTooNew, InvalidPlan, InvalidRuntime, PlanMismatch
from loader.order.from_json import plan_from_json
from loader.order.plan import make_plan
from loader.order.planned_source import source
from loader.order.random.plan_hash import plan_json
from loader.order.sources.views import SyntheticView, synthetic
from tests.refusals import refusal


@dataclass(frozen=True)
class Odd:
    """A view with a predicate: only the odd ordinals of its version are live."""

    n: int
    id: str = "w-odd"
    identity: str = "v-odd"
    mean_sample_bytes: int = 10

    def __len__(self):
        return self.n

    def spec(self):
        return {"kind": "odd", "n": self.n, "where": "ordinal % 2 = 1"}

    def version_ordinals(self, x):
        return x * 2 + 1

    def keys(self, version_ordinals):
        return [f"odd/{ordinal}" for ordinal in version_ordinals.tolist()]


def reopen(spec):
    return Odd(spec["n"]) if spec["kind"] == "odd" else synthetic(spec["n"], spec["name"])


def through_json(made):
    return plan_from_json(json.loads(json.dumps(made.to_json())), reopen)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 2**64 - 1),
    batch=st.integers(1, 40),
    sizes=st.lists(
        st.tuples(st.integers(1, 400), st.integers(0, 5), st.integers(1, 9)), min_size=1, max_size=3
    ),
    at=st.integers(1, 20),
    step=st.integers(0, 40),
)
def test_batches_are_the_reference(properties, reference, seed, batch, sizes, at, step):
    views = {
        f"s{number}": source(synthetic(n), weight=weight + (number == 0), chunk=chunk, lanes=4)
        for number, (n, weight, chunk) in enumerate(sizes)
    }
    first = {name: given.weight for name, given in views.items()}
    later = {"s0": 2, f"s{len(sizes) - 1}": 3}
    made = make_plan(views, seed=seed, global_batch=batch, schedule=[(at, later)], allow_repeats=True)
    properties.batch_matches_reference(reference, made, [(0, first), (at, later)], step)


def test_epoch_is_every_sample_once():
    made = make_plan({"a": source(synthetic(960), chunk=4, lanes=8)}, seed=1, global_batch=32)
    for epoch in range(3):
        seen = np.concatenate([made.slots(epoch * 30 + step).ordinal for step in range(30)])
        assert sorted(seen.tolist()) == list(range(960))
        assert set(made.slots(epoch * 30).epoch.tolist()) == {epoch}


def test_slots_have_their_types_and_lengths(properties):
    slots = properties.two_sources_plan().slots(5)
    assert len(slots) == 48
    kinds = {
        "source": np.int32,
        "position": np.int64,
        "epoch": np.int64,
        "ordinal": np.int64,
        "view_ordinal": np.int64,
        "valid": np.bool_,
        "attempt": np.int8,
    }
    for name, kind in kinds.items():
        assert getattr(slots, name).dtype == kind
        assert getattr(slots, name).shape == (48,)
    assert slots.valid.all()


def test_version_ordinals_and_keys_come_from_the_view():
    made = make_plan({"odd": Odd(50), "all": synthetic(50)}, seed=3, global_batch=20)
    slots = made.slots(1)
    odd = slots.source == made.source_names.index("odd")
    assert np.array_equal(slots.ordinal[odd], slots.view_ordinal[odd] * 2 + 1)
    assert np.array_equal(slots.ordinal[~odd], slots.view_ordinal[~odd])
    want = [
        ("odd", f"odd/{ordinal}") if is_odd else ("all", f"{ordinal:012d}")
        for is_odd, ordinal in zip(odd.tolist(), slots.ordinal.tolist(), strict=True)
    ]
    assert made.batch_ids(1) == want


def test_predicate_that_leaves_everything_does_not_change_the_order():
    one = make_plan({"a": Odd(50)}, seed=3, global_batch=20).slots(2)
    other = make_plan({"a": synthetic(50)}, seed=3, global_batch=20).slots(2)
    assert np.array_equal(one.view_ordinal, other.view_ordinal)


def test_names_not_places_of_sources_decide(properties):
    a, b = synthetic(100, "a"), synthetic(200, "b")
    one = make_plan({"a": a, "b": b}, seed=3, global_batch=20)
    other = make_plan({"b": b, "a": a}, seed=3, global_batch=20)
    assert one.hash == other.hash
    assert one == other
    assert len({one, other}) == 1
    assert one != make_plan({"a": a, "c": b}, seed=3, global_batch=20)
    assert one != one.hash
    properties.assert_same_slots(one.slots(3), other.slots(3))


def test_hash_covers_what_changes_data(properties):
    view = synthetic(100)
    base = {"views": {"a": view}, "seed": 3, "global_batch": 20}
    changes = [
        {},
        {"seed": 4},
        {"global_batch": 21},
        {"views": {"b": view}},
        {"views": {"a": synthetic(101)}},
        {"views": {"a": synthetic(100, "other")}},
        {"views": {"a": source(view, chunk=4)}},
        {"views": {"a": source(view, chunk=4, lanes=8)}},
        {"views": {"a": view, "b": view}},
        {"views": {"a": source(view, 2), "b": view}},
        {"schedule": [(5, {"a": 1})]},
        {"allow_repeats": True},
    ]
    hashes = []
    for change in changes:
        arguments = base | change
        hashes.append(make_plan(arguments.pop("views"), **arguments).hash)
    assert len(set(hashes)) == len(changes)
    assert all(one.startswith("p-") and len(one) == 66 for one in hashes)
    assert make_plan({"a": source(view, 7)}, seed=3, global_batch=20).hash == hashes[0]


def test_plan_survives_json_and_pickle(properties):
    made = make_plan(
        {"é/b3": source(Odd(64), 0.3, 4, 8), "web": source(synthetic(90), "0.7")},
        seed=2**64 - 1,
        global_batch=16,
        schedule=[(4, {"web": 1})],
    )
    for again in (through_json(made), pickle.loads(pickle.dumps(made))):  # noqa: S301
        assert again == made
        assert again.to_json() == made.to_json()
        for step in (0, 3, 4, 1000):
            properties.assert_same_slots(again.slots(step), made.slots(step))
            assert again.batch_ids(step) == made.batch_ids(step)


def test_chunk_and_lanes_are_whole_numbers_of_any_kind():
    def build_plan(**shape):
        return make_plan({"a": source(synthetic(10_000), **shape)}, seed=3, global_batch=20)

    assert build_plan(chunk=np.int64(2), lanes=np.int32(4)) == build_plan(chunk=2, lanes=4)
    json.dumps(build_plan(chunk=np.int64(2), lanes=np.int32(4)).to_json())
    for shape in ({"chunk": True}, {"lanes": True}, {"chunk": 2.0}, {"lanes": "4"}):
        ((name, value),) = shape.items()
        with refusal(InvalidPlan, what=name, where="source 'a'", given=value):
            build_plan(**shape)


def test_frozen_chunk_and_lanes_are_not_chosen_again():
    made = make_plan({"a": source(synthetic(10_000), chunk=2, lanes=4)}, seed=3, global_batch=20)
    content = made.to_json()
    assert content["sources"]["a"] | {"view": 0, "id": 0} == {
        "view": 0,
        "id": 0,
        "n": 10_000,
        "chunk": 2,
        "lanes": 4,
        "h": 4,
    }
    assert through_json(made).sources["a"].shape == made.sources["a"].shape


def test_saved_plan_is_named_by_its_bytes(properties, tmp_path):
    made = properties.two_sources_plan()
    root = loader.Root(tmp_path)
    assert made.save(root) == made.hash
    assert made.save(root) == made.hash
    data = (tmp_path / "plans" / f"{made.hash}.json").read_bytes()
    assert "p-" + hashlib.sha256(data).hexdigest() == made.hash
    assert plan_from_json(json.loads(data), reopen) == made


def edit_plan(made, **changes):
    content = json.loads(json.dumps(made.to_json()))
    return content | changes


def test_plan_that_cannot_be_reopened(properties):
    made = properties.two_sources_plan(schedule=[(9, {"web": 1})])
    content = made.to_json()
    for name, newer in {"format": 3, "order": 2}.items():
        with refusal(FormatTooNew, what=name, given=newer):
            plan_from_json(edit_plan(made, **{name: newer}), reopen)
        with refusal(InvalidPlan, what=name, given="1"):
            plan_from_json(edit_plan(made, **{name: "1"}), reopen)
    with refusal(PlanMismatch, what="view", where="source 'photos'") as refused:
        plan_from_json(content, lambda spec: synthetic(5, spec["name"]))
    assert "n was 4000 and is 5" in refused.value.given
    with refusal(PlanMismatch, what="view", where="source 'photos'") as refused:
        plan_from_json(content, lambda spec: SyntheticView(spec["n"], "another"))
    assert refused.value.given[0].startswith("id was")
    segments = edit_plan(made)["segments"]
    segments[1]["base"]["web"] += 1
    with refusal(PlanMismatch, what="plan", given="segments"):
        plan_from_json(edit_plan(made, segments=segments), reopen)
    with refusal(PlanMismatch, what="plan", given="bucket_by"):
        plan_from_json(edit_plan(made, bucket_by="height"), reopen)
    with refusal(PlanMismatch, what="plan", given="format"):
        plan_from_json(edit_plan(made, format=2), reopen)
    for broken in (
        {"sources": {}},
        {"segments": []},
        {"segments": [{"start_step": 0}]},
        {"sources": [1]},
        {"sources": {"a": 1}},
        {"sources": {"a": {"n": 5}}},
        {"seed": None},
        {"global_batch": 0},
    ):
        with pytest.raises(InvalidPlan):
            plan_from_json(edit_plan(made, **broken), reopen)
    for not_a_plan, part in (([], "plan"), ("p-12", "plan"), ({}, "format")):
        with refusal(InvalidPlan, what=part):
            plan_from_json(not_a_plan, reopen)


@pytest.mark.parametrize(
    ("arguments", "error", "fault"),
    [
        ({"seed": -1}, InvalidPlan, {"what": "seed", "given": -1}),
        ({"seed": 2**64}, InvalidPlan, {"what": "seed", "given": 18446744073709551616}),
        ({"seed": 1.0}, InvalidPlan, {"what": "seed", "given": 1.0}),
        ({"seed": True}, InvalidPlan, {"what": "seed", "given": True}),
        ({"global_batch": 0}, InvalidPlan, {"what": "global_batch", "given": 0}),
        ({"global_batch": 51}, BatchTooLarge, {"what": "global_batch", "where": "source 'a'", "given": 51}),
        ({"views": {}}, InvalidPlan, {"what": "views", "given": "{}"}),
        (
            {"views": synthetic(5)},
            InvalidPlan,
            {"what": "views", "given": "SyntheticView(n_samples=5, name='synthetic', buckets=(), first=0)"},
        ),
        ({"views": {"": synthetic(50)}}, InvalidPlan, {"what": "source name", "given": ""}),
        ({"views": {3: synthetic(50)}}, InvalidPlan, {"what": "source name", "given": 3}),
        ({"views": {"\ud800": synthetic(50)}}, InvalidPlan, {"what": "source name", "given": "\ud800"}),
        ({"views": {"a": "photos@1"}}, InvalidPlan, {"what": "source 'a'", "given": "str"}),
        ({"views": {"a": Odd(0)}}, EmptyView, {"what": "view", "where": "source 'a'", "given": 0}),
        (
            {"views": {"a": synthetic(50), "b": source(Odd(0), 0)}},
            EmptyView,
            {"what": "view", "where": "source 'b'", "given": 0},
        ),
        (
            {"views": {"a": source(synthetic(50), lanes=3)}},
            InvalidPlan,
            {"what": "lanes", "where": "source 'a'", "given": 3},
        ),
        (
            {"views": {"a": source(synthetic(50), weight=-1)}},
            InvalidPlan,
            {"what": "weight", "where": "source 'a'", "given": -1},
        ),
        (
            {"bucket_by": "height"},
            InvalidPlan,
            {"what": "buckets", "where": "source 'a'", "given": "synthetic"},
        ),
        ({"bucket_by": 5}, InvalidPlan, {"what": "bucket_by", "given": 5}),
        ({"pack": 1024}, InvalidPlan, {"what": "pack", "given": 1024}),
        ({"quarantine": ["x"]}, InvalidPlan, {"what": "quarantine", "given": "x"}),
        ({"boundary": "drop"}, InvalidPlan, {"what": "boundary", "given": "drop"}),
        ({"allow_repeats": 1}, InvalidPlan, {"what": "allow_repeats", "given": 1}),
        ({"schedule": [5]}, InvalidPlan, {"what": "schedule", "given": 5}),
        ({"schedule": [(5, {"b": 1})]}, InvalidPlan, {"what": "schedule", "where": "step 5", "given": ["b"]}),
        (
            {"schedule": [(5, {"a": 1}), (5, {"a": 2})]},
            InvalidPlan,
            {"what": "schedule entry 1: step", "given": 5},
        ),
        ({"schedule": [(-5, {"a": 1})]}, InvalidPlan, {"what": "schedule entry 0: step", "given": -5}),
    ],
)
def test_plans_that_are_refused(arguments, error, fault: dict[str, object]):
    arguments = {"views": {"a": synthetic(50)}, "seed": 3, "global_batch": 20} | arguments
    with refusal(error, **fault):
        make_plan(arguments.pop("views"), **arguments)


def test_small_sources_are_taken_on_request_or_when_nothing_reads_them():
    made = make_plan({"a": synthetic(3)}, seed=3, global_batch=20, allow_repeats=True)
    seen = np.concatenate([made.slots(step).ordinal for step in range(3)])
    assert np.bincount(seen).tolist() == [20, 20, 20]
    made = make_plan({"a": synthetic(50), "b": source(synthetic(3), 0)}, seed=3, global_batch=20)
    assert set(made.slots(0).source.tolist()) == {0}
    assert make_plan({"a": synthetic(20)}, seed=3, global_batch=20, quarantine=[]).slots(0)


def test_schedule_entry_at_step_0_replaces_the_weights():
    made = make_plan(
        {"a": synthetic(50), "b": synthetic(50)}, seed=3, global_batch=20, schedule=[(0, {"b": 2})]
    )
    assert len(made.segments) == 1
    assert set(made.slots(0).source.tolist()) == {1}


def test_steps_that_cannot_be(properties):
    made = properties.two_sources_plan()
    for step in (-1, 1.0, "1", None, 2**63):
        with refusal(InvalidRuntime, what="step", given=step):
            made.slots(step)
    with refusal(InvalidRuntime, what="step", given=-1):
        made.state(-1)
    properties.assert_same_slots(made.slots(np.int64(3)), made.slots(3))


def test_steps_up_to_2_to_the_53():
    made = make_plan({"a": synthetic(10**9), "b": source(synthetic(10**6), 2)}, seed=3, global_batch=1024)
    last = made.slots(2**53 - 1)
    assert last.position.min() > 0
    assert np.array_equal(last.position // np.array([10**9, 10**6])[last.source], last.epoch)
    with refusal(InvalidRuntime, what="step", given=9007199254740992):
        made.slots(2**53)


def test_no_table_grows_with_n_or_with_the_step():
    """Planning 1e9 samples and finding step 1e7 takes the memory of a batch, not of a table."""
    tracemalloc.start()
    try:
        made = make_plan({"big": synthetic(10**9)}, seed=7, global_batch=1024)
        for step in (0, 10**7):
            assert len(made.slots(step)) == 1024
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak_bytes < 4 * 2**20


def test_batch_at_1e9_samples_is_the_reference(properties, reference):
    made = make_plan({"big": synthetic(10**9)}, seed=7, global_batch=32)
    for step in (0, 10**7, 31_250_000 - 1, 31_250_000):
        properties.batch_matches_reference(reference, made, [(0, {"big": 1})], step)


def test_numpy_integers_are_integers():
    a = {"a": synthetic(50)}
    schedule = [(np.int64(4), {"a": np.int64(2)})]
    made = make_plan(a, seed=np.uint64(2**64 - 1), global_batch=np.int32(20), schedule=schedule)
    assert made.hash == make_plan(a, seed=2**64 - 1, global_batch=20, schedule=[(4, {"a": 2})]).hash
    assert type(made.seed) is type(made.global_batch) is type(made.segments[1].start_step) is int


def test_plan_is_frozen(properties):
    made = properties.two_sources_plan()
    with pytest.raises(FrozenInstanceError):
        made.seed = 8


def test_describe_names_epochs_and_shares(properties):
    made = make_plan(
        {"photos": source(Odd(4000), 3, 8, 16), "web": synthetic(700)},
        seed=7,
        global_batch=48,
        schedule=[(9, {"web": 1})],
    )
    text = made.describe()
    for word in (
        made.hash,
        "seed 7",
        "global batch 48",
        "'photos': 4000 samples",
        "chunks of 8 samples",
        "16 lanes x 4",
        "tail 10.40 %",
        "working set 5120 bytes",
        "full shuffle",
        "from step 9",
        "3 of 4 slots (75.00 %)",
        "an epoch is 111.1 steps",
        "first exhausted: 'web'",
    ):
        assert word in text, (word, text)


@pytest.mark.parametrize("wrong", [0.5, {"a": [1.0]}, {"a": {1, 2}}, {1: 2}])
def test_only_what_has_one_text_is_hashed(wrong):
    with pytest.raises(InvalidPlan, match=r"plan\.view"):
        plan_json({"view": wrong})


def test_canonical_json_is_one_text():
    assert plan_json({"b": [1, None, True], "a": "é\n"}) == '{"a":"é\\n","b":[1,null,true]}'.encode()


def test_synthetic_views():
    assert synthetic(5).keys(np.array([0, 4])) == ["000000000000", "000000000004"]
    assert synthetic(5).identity == "synthetic-synthetic-5"
    assert len({synthetic(5).id, synthetic(6).id, synthetic(5, "b").id}) == 3
    with pytest.raises(EmptyView):
        synthetic(0)
    for wrong in (-1, 1.5, True, 2**60):
        with pytest.raises(InvalidPlan):
            synthetic(wrong)
