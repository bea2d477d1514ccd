"""A list orders the first epoch of its source; later epochs are L1's over its entries."""

import hashlib
import json
import pickle
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loader.errors import EmptyView, InvalidPlan
from loader.order.from_json import plan_from_json
from loader.order.plan import make_plan
from loader.order.planned_source import source
from loader.order.slots import rank_slice
from loader.order.sources.bucket import bucket
from loader.order.sources.pack_request import pack
from loader.order.sources.views import ListedView, check_list, synthetic
from loader.order.substitutes import usable_stack
from tests.order import reference
from tests.order.steps.test_occurrences import check_found
from tests.refusals import refusal

GOLDEN = Path(__file__).parents[1] / "golden" / "listed.json"
SETTINGS = settings(max_examples=30, deadline=None, derandomize=True)
LISTS = st.lists(st.integers(0, 29), min_size=12, max_size=60)
"""Samples of a view of 30; most lists repeat some and leave some out."""


def list_view(ordinals, n=30, name="a"):
    return ListedView(synthetic(n, name), check_list(ordinals))


def list_plan(ordinals, seed=3, batch=7, **more):
    return make_plan(
        {"a": source(list_view(ordinals), chunk=2, lanes=2)},
        seed=seed,
        global_batch=batch,
        **{"allow_repeats": True, **more},
    )


def rows(slots):
    columns = slots.source, slots.position, slots.epoch, slots.ordinal, slots.view_ordinal, slots.attempt
    return np.stack([one.astype(np.int64) for one in columns], axis=1)


@SETTINGS
@given(ordinals=LISTS, seed=st.integers(0, 2**64 - 1), batch=st.integers(1, 12))
def test_first_epoch_is_the_list_and_later_ones_are_the_orders(ordinals, seed, batch):
    made, n = list_plan(ordinals, seed, batch), len(ordinals)
    entries = sorted((ordinal, place) for place, ordinal in enumerate(ordinals))
    shape = made.sources["a"].shape
    lane = (n, shape.chunk, shape.lanes, shape.rounds_h)
    for step in range(3 * n // batch + 1):
        slots = made.slots(step)
        for position, ordinal in zip(slots.position.tolist(), slots.ordinal.tolist(), strict=True):
            epoch, inside = divmod(position, n)
            wanted = (
                ordinals[inside]
                if epoch == 0
                else entries[reference.locate(lane, seed, "a", epoch, inside)][0]
            )
            assert ordinal == wanted


@SETTINGS
@given(
    ordinals=LISTS,
    world=st.integers(1, 6),
    steps=st.lists(st.integers(0, 25), min_size=1, max_size=5, unique=True),
    boundary=st.sampled_from(["fill", "mask"]),
    bad=st.sets(st.integers(0, 29), max_size=2),
)
def test_any_ranks_and_runs_of_steps_have_the_same_slots(ordinals, world, steps, boundary, bad):
    """A worker or a resumed run asks for other steps at a time, and each step comes out the same."""
    listed_bad = {"a": [f"{one:012d}" for one in bad]} if len(set(ordinals) - bad) > 20 else None
    made, steps = list_plan(ordinals, boundary=boundary, quarantine=listed_bad), sorted(steps)
    for rank in range(world):
        found = usable_stack(made, steps, rank, world)
        for step, start, stop in zip(steps, found.starts, found.starts[1:], strict=False):
            alone = made.slots(step).part(rank_slice(7, rank, world))
            assert np.array_equal(rows(found.slots.part(slice(start, stop))), rows(alone))


@SETTINGS
@given(ordinals=LISTS, bad=st.sets(st.integers(0, 29), max_size=2), start=st.integers(0, 4))
def test_samples_are_found_where_they_were_and_quarantined_ones_nowhere(ordinals, bad, start):
    bad = bad if len(set(ordinals) - bad) > 20 else set()
    made = list_plan(ordinals, quarantine=[(start, {"a": [f"{one:012d}" for one in bad]})])
    assert check_found(made, 20)
    for step in range(start, 20):
        assert not bad & set(made.slots(step).ordinal.tolist())


def test_beside_another_source_it_is_read_in_its_order():
    ordinals = [5, 1, 1, 28, *range(10, 24)]
    both = {"a": source(list_view(ordinals), weight=1), "b": source(synthetic(40, "b"), weight=3)}
    made = make_plan(both, seed=9, global_batch=12)
    found = {}
    for step in range(6):
        slots = made.slots(step)
        mine = slots.source == 0
        found |= dict(zip(slots.position[mine].tolist(), slots.ordinal[mine].tolist(), strict=True))
    assert [found[place] for place in range(len(ordinals))] == ordinals
    assert check_found(made, 12)


def test_id_is_that_of_the_golden_file():
    for case in json.loads(GOLDEN.read_text()):
        view = list_view(case["ordinals"], case["n"], case["name"])
        assert (view.list_sha256, view.listed.id, view.id) == (case["list"], case["view"], case["id"])
        told = json.dumps({"list": case["list"], "view": case["view"]}, sort_keys=True, separators=(",", ":"))
        assert case["id"] == "w-" + hashlib.sha256(told.encode()).hexdigest()
        data = b"".join(one.to_bytes(8, "little") for one in case["ordinals"])
        assert case["list"] == hashlib.sha256(data).hexdigest()


def test_plan_comes_back_and_its_list_is_part_of_its_hash():
    ordinals = [3, 3, 0, *range(20)]
    made = list_plan(ordinals)
    body = json.loads(json.dumps(made.to_json()))
    assert plan_from_json(body, lambda spec: list_view(ordinals)).hash == made.hash
    assert list_plan([3, 0, 3, *range(20)]).hash != made.hash
    again = pickle.loads(pickle.dumps(made.sources["a"].view))  # noqa: S301
    assert (again.id, again.in_order.tolist()) == (made.sources["a"].view.id, ordinals)


@pytest.mark.parametrize(
    ("given_list", "error", "fault"),
    [
        ([], EmptyView, {"what": "listed", "given": 0}),
        ([1.5, 2.0], InvalidPlan, {"what": "listed", "given": ["float64", 2]}),
        ([[1, 2]], InvalidPlan, {"what": "listed", "given": ["int64", 1, 2]}),
        ([True], InvalidPlan, {"what": "listed", "given": ["bool", 1]}),
        ([4, -1, -1], InvalidPlan, {"what": "listed", "where": "place 1", "given": -1}),
        (["a"], InvalidPlan, {"what": "listed", "given": ["<U1", 1]}),
        (
            np.array([2**63], np.uint64),
            InvalidPlan,
            {"what": "listed", "where": "place 0", "given": 9223372036854775808},
        ),
    ],
)
def test_other_lists_are_refused(given_list, error, fault: dict[str, object]):
    with refusal(error, **fault):
        check_list(given_list)


def test_no_packing_buckets_or_growth():
    view = list_view(range(30))
    with refusal(InvalidPlan, what="list", where="source 'a'", given="SyntheticView"):
        make_plan({"a": view}, seed=1, global_batch=4, pack=pack("tokens.npy", 8))
    with refusal(InvalidPlan, what="source 'a'", given="ListedView"):
        make_plan({"a": view}, seed=1, global_batch=4, bucket_by=bucket("kind"))
    plain = make_plan({"a": synthetic(30, "a")}, seed=1, global_batch=4)
    for made, more in ((make_plan({"a": view}, seed=1, global_batch=4), synthetic(40, "a")), (plain, view)):
        with refusal(InvalidPlan, what="list", where="source 'a'"):
            made.grow({"a": more}, 3)
