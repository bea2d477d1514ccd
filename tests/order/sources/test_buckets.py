"""Buckets: whose turn a step is, what its batch holds, how large it is, and what is refused."""

import json
import pickle
import sys
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loader.errors import BatchTooLarge, EmptyView, InvalidPlan, InvalidRuntime, PlanMismatch
from loader.order import interleave, mixture
from loader.order.from_json import plan_from_json
from loader.order.plan import make_plan
from loader.order.planned_source import source
from loader.order.slots import rank_slice
from loader.order.sources.bucket import batch_sizes, bucket
from loader.order.sources.views import synthetic
from tests.refusals import refusal

LABELS = ("b0", "b1", "w64h32", "é")
BATCHES = st.fixed_dictionaries({label: st.sampled_from((2, 3, 4, 8)) for label in LABELS})
SIZES = st.dictionaries(st.sampled_from(LABELS), st.integers(1, 40), min_size=1)
COARSE = st.dictionaries(st.sampled_from(LABELS), st.sampled_from((6, 12, 24)), min_size=1)


def of_these(batches, *sizes):
    """The batches of the labels that any source has."""
    return {label: batches[label] for label in {label for held in sizes for label in held}}


def reopen(spec):
    return synthetic(spec["n"], spec["name"])


def mixture_plan(schedule=((20, {"photos": 1, "web": 3}),), seed=7, **batches):
    """photos has b0, b1 and b2, web has b1 and b3; weights 2 : 1."""
    photos = synthetic(400, "p", {"b0": 120, "b1": 200, "b2": 80})
    web = synthetic(90, "w", {"b1": 60, "b3": 30})
    return make_plan(
        {"photos": source(photos, 2, chunk=2, lanes=4), "web": web},
        seed=seed,
        global_batch=16,
        bucket_by=bucket("shape", batch={"b1": 9, "b2": 24, **batches}),
        schedule=schedule,
    )


@settings(max_examples=30, deadline=None, derandomize=True)
@given(
    sizes=st.lists(COARSE, min_size=1, max_size=3),
    batches=BATCHES,
    weights=st.lists(st.integers(1, 3), min_size=3, max_size=3),
    at=st.integers(1, 9),
    step=st.integers(0, 25),
    chunk=st.sampled_from((None, 1, 3)),
)
def test_batches_are_the_reference(properties, reference, sizes, batches, weights, at, step, chunk):
    held = {f"s{number}": one for number, one in enumerate(sizes)}
    first = dict(zip(held, weights, strict=False))
    later = {"s0": 3, f"s{len(sizes) - 1}": 1}
    made = properties.bucket_plan(
        held,
        of_these(batches, *sizes),
        first,
        schedule=[(at, later)],
        chunk=chunk,
        lanes=4 if chunk else None,
    )
    segments = [(0, first), (at, later)]
    shapes = {
        name: (one.shape.n, one.shape.chunk, one.shape.lanes, one.shape.rounds_h)
        for name, one in made.sources.items()
    }
    batches = {label: stream.batch for label, stream in made.buckets.streams.items()}
    label, wanted = reference.bucket_batch(
        made.seed, batches, shapes, properties.bucket_sizes(made), segments, step
    )
    slots = made.slots(step)
    columns = (slots.source, slots.position, slots.epoch, slots.view_ordinal)
    got = [(made.source_names[k], *rest) for k, *rest in zip(*(one.tolist() for one in columns), strict=True)]
    assert (made.bucket(step), got) == (label, wanted)
    assert made.batch_size(step) == len(slots) == batches[label]


@settings(max_examples=20, deadline=None, derandomize=True)
@given(sizes=SIZES, batches=BATCHES, seed=st.integers(0, 2**64 - 1))
def test_every_epoch_of_every_bucket_is_every_sample_once(properties, sizes, batches, seed):
    properties.every_bucket_epoch_is_whole(
        properties.bucket_plan({"a": sizes}, of_these(batches, sizes), seed=seed, chunk=3, lanes=2)
    )


def test_every_epoch_is_whole_in_a_mixture_too(properties):
    properties.every_bucket_epoch_is_whole(mixture_plan())


@settings(max_examples=30, deadline=None, derandomize=True)
@given(sizes=SIZES, batches=BATCHES, prefix=st.integers(1, 150))
def test_every_prefix_of_turns_is_within_one_of_the_sizes_shares(properties, sizes, batches, prefix):
    """One source: in every prefix each bucket has had its exact share of steps within 1, in samples by its size."""
    batches = of_these(batches, sizes)
    made = properties.bucket_plan({"a": sizes}, batches)
    turns = [made.bucket(step) for step in range(prefix)]
    exact = {label: Fraction(n, batches[label]) for label, n in sizes.items()}
    total = sum(exact.values())
    for label, share in exact.items():
        count = 0
        for t, turn in enumerate(turns, 1):
            count += turn == label
            assert abs(count - t * share / total) <= 1
        assert count == sum(made.turn(step).bucket == label for step in range(prefix))


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    sizes=st.dictionaries(st.text("abcd", min_size=1, max_size=3), st.integers(1, 10**9), min_size=1),
    batch=st.integers(1, 10**4),
)
def test_shares_are_the_sizes_or_the_next_65536th(sizes, batch):
    held = {label: {"a": n} for label, n in sizes.items()}
    batches = {label: batch + number for number, label in enumerate(sizes)}
    shares = interleave.turn_shares({"a": 3}, held, batches)
    exact = {label: Fraction(n, batches[label]) for label, n in sizes.items()}
    total, given_out = sum(exact.values()), sum(shares.values())
    assert set(shares) == set(sizes)
    assert given_out <= 65_536
    for label, share in exact.items():
        assert abs(Fraction(shares[label], given_out) - share / total) <= Fraction(
            len(sizes), 65_536 - len(sizes)
        )
    if all(share.denominator == 1 for share in exact.values()) and total <= 65_536:
        assert all(Fraction(shares[label], given_out) == exact[label] / total for label in sizes)


def test_bucket_of_one_sample_among_1e9_has_its_turns():
    sizes = {"big": {"a": 10**9}, "tiny": {"a": 1}}
    assert interleave.turn_shares({"a": 1}, sizes, {"big": 1000, "tiny": 1}) == {"big": 65_534, "tiny": 1}


@settings(max_examples=20, deadline=None, derandomize=True)
@given(world_size=st.integers(1, 9))
def test_every_world_sizes_ranks_are_the_batch_and_of_one_bucket(properties, world_size):
    properties.ranks_take_one_bucket(mixture_plan(), 40, world_size)


def test_schedule_repeats_nothing_over_buckets(properties):
    made = mixture_plan([(5, {"web": 1}), (6, {"photos": 1}), (7, {"photos": 5, "web": 1}), (30, {"web": 1})])
    properties.schedule_repeats_nothing(made, 60)
    properties.prefix_is_untouched(made, mixture_plan([(5, {"web": 1})]), 6)


def test_adding_a_source_leaves_the_others_orders_alone(properties):
    few = properties.bucket_plan({"a": {"b0": 40, "b1": 60}}, {"b0": 8, "b1": 6})
    many = properties.bucket_plan(
        {"a": {"b0": 40, "b1": 60}, "c": {"b1": 30, "b2": 50}}, {"b0": 8, "b1": 6, "b2": 4}
    )
    properties.others_keep_their_order(few, many, per_source=100)


def test_two_buckets_of_one_size_are_in_two_orders(properties):
    """Two buckets of one size are not in one order."""
    n = 64
    made = properties.bucket_plan({"a": {"b0": n, "b1": n}}, {"b0": n, "b1": n})
    orders = {made.bucket(step): tuple(made.slots(step).view_ordinal.tolist()) for step in range(2)}
    assert len(orders) == len(set(orders.values())) == 2


@settings(max_examples=20, deadline=None, derandomize=True)
@given(legs=st.lists(st.tuples(st.integers(1, 9), st.integers(0, 9)), min_size=1, max_size=6))
def test_any_stops_resumes_and_world_sizes_give_the_uninterrupted_run(legs):
    """legs: (world size, batches before the stop), each leg resumed from the JSON of the one before."""
    state, got = mixture_plan().state(0), []
    for world_size, batches in legs:
        made = mixture_plan()
        first = made.check_state(json.loads(json.dumps(state)))
        for step in range(first, first + batches):
            ids = made.batch_ids(step)
            got += [ids[rank_slice(len(ids), rank, world_size)] for rank in range(world_size)]
        state = made.state(first + batches)
    whole = mixture_plan()
    steps = sum(batches for _, batches in legs)
    assert [one for part in got for one in part] == [
        one for step in range(steps) for one in whole.batch_ids(step)
    ]
    assert state == whole.state(steps)


def test_another_past_of_buckets_is_refused_and_named():
    state = mixture_plan().state(15)
    assert mixture_plan(schedule=[(15, {"web": 1})]).check_state(state) == 15
    with refusal(PlanMismatch, what="state", where="step 15", given=["bucket_by"]):
        mixture_plan(b2=25).check_state(state)
    with pytest.raises(PlanMismatch, match=r"bucket_by: .* in the state, None in this plan"):
        make_plan({"a": synthetic(100)}, seed=7, global_batch=16).check_state(state)


def test_step_far_away_takes_the_calls_of_a_near_one():
    """Which bucket's turn it is and what its slots are: the same function calls at step 10^7 and at 2^50."""
    made = mixture_plan()
    for step in range(200):
        made.turn(step)

    def calls(step):
        seen = []
        sys.setprofile(lambda frame, event, _: seen.append((event, frame.f_code.co_name)))
        try:
            turn = made.turn(step)
            mixture.stream_slots(
                turn.stream.current_segment(turn.step), turn.stream.names, turn.step, turn.stream.batch
            )
        finally:
            sys.setprofile(None)
        return seen

    near = calls(25)
    assert 10 < len(near) < 300
    assert calls(10**7) == calls(2**50) == near
    assert [made.turn(step).bucket for step in range(20, 40)].count("b1") >= 5


def test_any_step_is_found_in_1e9_samples_of_a_hundred_buckets():
    sizes = {f"w{64 + 32 * k}h512": 10**6 * (k + 1) for k in range(100)}
    made = make_plan(
        {"p": synthetic(sum(sizes.values()), "p", sizes)},
        seed=1,
        global_batch=1024,
        bucket_by=bucket("shape", budget=64 * 512 * 1024, multiple=8),
    )
    for step in (0, 10**7, 2**50):
        slots = made.slots(step)
        assert len(slots) == made.batch_size(step)
        assert len(slots) % 8 == 0
        own = made.sources[made.source_names[int(slots.source[0])]]
        assert own.bucket == made.bucket(step)
        assert 0 <= slots.view_ordinal.min() <= slots.view_ordinal.max() < own.shape.n


def test_plan_with_buckets_survives_json_and_pickle(properties):
    made = mixture_plan()
    content = json.loads(json.dumps(made.to_json()))
    for again in (plan_from_json(content, reopen), pickle.loads(pickle.dumps(made))):  # noqa: S301
        assert again == made
        assert again.to_json() == made.to_json()
        for step in (0, 19, 20, 21, 10**9):
            properties.assert_same_slots(again.slots(step), made.slots(step))
            assert again.batch_ids(step) == made.batch_ids(step)


@pytest.mark.parametrize(
    ("changes", "error", "fault"),
    [
        ({"batch": {"b0": 1}}, InvalidPlan, {"what": "bucket_by.batch", "given": ["b0"]}),
        ({"batch": 5}, InvalidPlan, {"what": "batch", "where": "bucket_by", "given": 5}),
        ({"by": None}, InvalidPlan, {"what": "by", "where": "bucket_by", "given": None}),
        ({"edges": 5}, InvalidPlan, {"what": "edges", "where": "bucket_by", "given": 5}),
        ({"turns": []}, PlanMismatch, {"what": "plan", "given": "bucket_by"}),
        (
            {"batch": {"b0": 16, "b1": 9, "b2": 0, "b3": 16}},
            InvalidPlan,
            {"what": "batch of 'b2'", "given": 0},
        ),
        (
            {"batch": {"b0": 16, "b1": 8, "b2": 24, "b3": 16}},
            PlanMismatch,
            {"what": "plan", "given": "bucket_by"},
        ),
    ],
)
def test_edited_plan_is_refused(changes, error, fault: dict[str, object]):
    content = json.loads(json.dumps(mixture_plan().to_json()))
    content["bucket_by"] |= changes
    with refusal(error, **fault):
        plan_from_json(content, reopen)


def test_hash_covers_the_buckets():
    plain = make_plan({"photos": synthetic(400, "p")}, seed=7, global_batch=16)
    hashes = {
        plain.hash,
        mixture_plan().hash,
        mixture_plan(b2=25).hash,
        mixture_plan(seed=8).hash,
        mixture_plan(None).hash,
    }
    assert len(hashes) == 5
    assert plain.to_json()["bucket_by"] is None
    assert plain.bucket(3) is None
    assert plain.batch_size(3) == 16


SHAPES = ("w64h64", "w128h64", "w64h64f16")


@pytest.mark.parametrize(
    ("asked", "labels", "want"),
    [
        (bucket("b"), SHAPES, dict.fromkeys(SHAPES, 100)),
        (bucket("b", batch={"w64h64": 7}), SHAPES, {"w64h64": 7, "w128h64": 100, "w64h64f16": 100}),
        (bucket("b", budget=64 * 64 * 40), SHAPES, {"w64h64": 40, "w128h64": 20, "w64h64f16": 2}),
        (bucket("b", budget=64 * 64 * 400), SHAPES, {"w64h64": 100, "w128h64": 100, "w64h64f16": 25}),
        (bucket("b", budget=10), SHAPES, dict.fromkeys(SHAPES, 1)),
        (bucket("b", budget=64 * 64 * 30, multiple=8), SHAPES, {"w64h64": 24, "w128h64": 8, "w64h64f16": 8}),
        (bucket("b", budget=100, cost={"x": 3, "y": "0.7"}), ("x", "y"), {"x": 33, "y": 100}),
        (
            bucket("t", edges=[0, 128, 512.5], budget=1024),
            ("0..128", "128..512.5"),
            {"0..128": 8, "128..512.5": 1},
        ),
        (
            bucket("t", edges=[0, 2, float("inf")], budget=60, cost={"2..inf": 20}),
            ("0..2", "2..inf"),
            {"0..2": 30, "2..inf": 3},
        ),
    ],
)
def test_batch_sizes(asked, labels, want):
    assert batch_sizes(asked, labels, 100) == want


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        ({"by": ""}, {"what": "by", "where": "bucket", "given": ""}),
        ({"by": 5}, {"what": "by", "where": "bucket", "given": 5}),
        ({"batch": {"b0": 5}, "budget": 100}, {"what": "batch", "where": "bucket"}),
        ({"cost": {"b0": 5}}, {"what": "budget", "where": "bucket"}),
        ({"multiple": 8}, {"what": "budget", "where": "bucket"}),
        ({"multiple": 0, "budget": 5}, {"what": "multiple", "given": 0}),
        ({"multiple": 64, "budget": 5}, {"what": "multiple", "given": 64}),
        ({"batch": 5}, {"what": "batch", "where": "bucket", "given": 5}),
        ({"batch": {"b0": 0}}, {"what": "batch of bucket 'b0'", "given": 0}),
        ({"batch": {"b9": 5}}, {"what": "batch", "where": "bucket", "given": ["b9"]}),
        ({"budget": 5, "cost": {"b9": 5}}, {"what": "cost", "where": "bucket", "given": ["b9"]}),
        ({"budget": 0}, {"what": "budget", "given": 0}),
        ({"budget": True}, {"what": "budget", "given": True}),
        ({"budget": float("nan")}, {"what": "budget", "given": float("nan")}),
        ({"budget": 5}, {"what": "cost", "where": "bucket 'b0'"}),
        ({"budget": 5, "cost": {"b0": 0, "b1": 1}}, {"what": "cost of bucket 'b0'", "given": 0}),
        ({"edges": [1]}, {"what": "edges", "where": "bucket", "given": [1]}),
        ({"edges": [2, 1]}, {"what": "edges", "where": "bucket", "given": [2, 1]}),
        ({"edges": [1, 1]}, {"what": "edges", "where": "bucket", "given": [1, 1]}),
        ({"edges": [1, float("nan")]}, {"what": "edges", "where": "bucket", "given": [1, float("nan")]}),
        ({"edges": [float("-inf"), 1]}, {"what": "edges", "where": "bucket", "given": [float("-inf"), 1]}),
        ({"edges": ["a", "b"]}, {"what": "edges", "where": "bucket", "given": ["a", "b"]}),
        ({"edges": 5}, {"what": "edges", "where": "bucket", "given": 5}),
        ({"edges": [False, 1, 2]}, {"what": "edges", "where": "bucket", "given": [False, 1, 2]}),
    ],
)
def test_what_is_refused_of_buckets(arguments, fault: dict[str, object]):
    view = synthetic(100, "p", {"b0": 60, "b1": 40})
    with refusal(InvalidPlan, **fault):
        make_plan({"a": view}, seed=1, global_batch=16, bucket_by=bucket(**{"by": "shape", **arguments}))


def test_plans_with_buckets_that_are_refused():
    view = synthetic(103, "p", {"b0": 60, "b1": 40, "b2": 2, "b3": 1})
    with refusal(BatchTooLarge, what="the batch of bucket 'b2'", where="source 'a/b2'", given=16):
        make_plan({"a": view}, seed=1, global_batch=16, bucket_by="b")
    assert make_plan({"a": view}, seed=1, global_batch=16, bucket_by="b", allow_repeats=True)
    plain = make_plan({"a": view}, seed=1, global_batch=16)  # without the question it has no buckets
    assert plain.source_names == ("a",)
    clash = {"a": synthetic(9, "p", {"b/c": 9}), "a/b": synthetic(9, "p", {"c": 9})}
    with refusal(InvalidPlan, what="source 'a/b'", given="a/b/c"):
        make_plan(clash, seed=1, global_batch=2, bucket_by="b")
    many = synthetic(5000, "p", {str(k): 1 for k in range(5000)})
    with refusal(InvalidPlan, what="b", given=5000):
        make_plan({"a": many}, seed=1, global_batch=1, bucket_by="b")
    with refusal(InvalidPlan, what="n_samples", given=6):
        synthetic(6, "p", {"b0": 5})
    with refusal(EmptyView, what="bucket 'b0'", where="synthetic view 'p'", given=0):
        synthetic(6, "p", {"b0": 0, "b1": 6})


def test_last_step_follows_from_the_largest_batch():
    made = mixture_plan()
    assert len(made.slots(2**63 // 24 - 1)) == made.batch_size(2**63 // 24 - 1)
    with refusal(InvalidRuntime, what="step", given=2**63 // 24, accepted=f"at most {2**63 // 24 - 1}"):
        made.slots(2**63 // 24)
