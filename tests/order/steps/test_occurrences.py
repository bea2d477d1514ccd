"""The steps that held a sample are those whose slots name it."""

from collections import defaultdict

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from loader.errors import InvalidRuntime
from loader.order import plan
from loader.order.sources.pack_request import pack
from tests.order.building import test_grow_buckets
from tests.order.steps import test_stack
from tests.refusals import refusal


def with_lanes(properties):
    views = {"a": plan.source(plan.synthetic(137, "a"), chunk=4, lanes=2), "b": plan.synthetic(20, "b")}
    return plan.make_plan(views, seed=5, global_batch=16)


def with_many_quarantined(properties):
    listed = [(3, {"a": ["0/1", "0/2", "0/9"]})]
    return plan.make_plan({"a": properties.versions([30], [])[0]}, seed=1, global_batch=8, quarantine=listed)


def with_quarantined_of_several_versions(properties):
    views = properties.versions([30, 8, 6], [{3, 4}, {1, 20}])
    made = plan.make_plan(
        {"a": views[0]}, seed=4, global_batch=7, quarantine=[(2, {"a": ["0/0", "0/9", "0/25"]})]
    )
    return made.grow({"a": views[1]}, 6).quarantined({"a": ["1/5", "0/11"]}, 9).grow({"a": views[2]}, 13)


def with_growing_buckets(properties):
    return test_grow_buckets.growing_views(properties, other={"b0": 20, "b1": 15, "b2": 9})[1]


def check_found(made, steps):
    """Every sample of these steps is found in its slots, and in no other."""
    wanted, ordinals = defaultdict(list), defaultdict(set)
    for step in range(steps):
        slots, ids = made.slots(step), made.batch_ids(step)
        for slot in np.flatnonzero(slots.valid).tolist():
            source = made.sources[made.source_names[slots.source[slot]]].source
            found = (step, slot, int(slots.epoch[slot]), int(slots.attempt[slot]))
            wanted[source, ids[slot][1]].append(found)
            ordinals[source, ids[slot][1]].add(int(slots.ordinal[slot]))
    for (source, key), found in wanted.items():
        assert made.steps_of(source, key, before=steps) == found
    for (source, key), found in list(wanted.items())[::9]:
        last = found[-1][0]
        wanted_before = [one for one in found if one[0] < last]
        assert made.steps_of(source, key, before=last) == wanted_before
        for guess in (*ordinals[source, key], 0, 10**9):
            assert made.steps_of(source, key, before=last, ordinal=guess) == wanted_before
    return len(wanted)


MADE = [
    *test_stack.PLANS,
    with_lanes,
    with_many_quarantined,
    with_quarantined_of_several_versions,
    with_growing_buckets,
]


@pytest.mark.parametrize("made", MADE)
def test_every_sample_is_found_where_it_was(properties, made):
    assert check_found(made(properties), 25) > 20


@settings(derandomize=True, deadline=None, max_examples=10)
@given(first=test_grow_buckets.FIRST, growths=test_grow_buckets.GROWTHS)
def test_buckets_that_grow_anyhow(properties, first, growths):
    views, steps = test_grow_buckets.history(properties, first, growths)
    assume(test_grow_buckets.enough(views))
    _, made = properties.bucket_growth_plan(views, steps, test_grow_buckets.BATCHES)
    assert check_found(made, 30)


GROWN = st.lists(
    st.tuples(st.integers(1, 9), st.integers(0, 30), st.sets(st.integers(0, 99), max_size=3)), max_size=3
)
"""(Steps since the one before, new samples, what is removed)."""


@settings(derandomize=True, deadline=None, max_examples=12)
@given(n=st.integers(16, 60), growths=GROWN)
def test_sources_that_grow_anyhow(properties, n, growths):
    views = properties.versions([n, *(new for _, new, _ in growths)], [gone for *_, gone in growths])
    made, step = plan.make_plan({"a": views[0]}, seed=3, global_batch=5), 0
    for (gap, _, _), view in zip(growths, views[1:], strict=True):
        step += gap
        made = made.grow({"a": view}, step)
    assert check_found(made, 25)


def test_documents_are_found_in_their_sequences(properties):
    tokens = [3, 40, 7, 7, 0, 16, 5, 33, 12, 9, 1, 1]
    made = plan.make_plan(
        {"docs": properties.make_documents(tokens)}, seed=7, global_batch=3, pack=pack("t.npy", 16)
    )
    table, documents = made.sources["docs"].view.table, made.sources["docs"].view.documents
    for document, key in enumerate(documents.keys(np.arange(len(tokens)))):
        wanted = [
            (step, slot, int(slots.epoch[slot]), 0)
            for step in range(12)
            for slots in [made.slots(step)]
            for slot in range(3)
            if document in table.pieces(slots.ordinal[slot : slot + 1]).document
        ]
        assert made.steps_of("docs", key, before=12) == wanted
        assert bool(wanted) == bool(tokens[document])
    with refusal(InvalidRuntime, what="key", where="source 'docs'", given="sequence-000000000006"):
        made.steps_of("docs", made.batch_ids(0)[0][1], before=12)


def test_bucket_is_named_too(properties):
    made = with_growing_buckets(properties)
    name, key = made.batch_ids(3)[0]
    assert made.sources[name].source != name
    assert made.steps_of(name, key, before=4) == made.steps_of(made.sources[name].source, key, before=4)
    assert (made.steps_of(name, key, before=4)[-1][:2]) == (3, 0)


def test_far_away():
    made = plan.make_plan({"a": plan.synthetic(10**9, "a")}, seed=2, global_batch=2**16)
    step = 10**5
    _, key = made.batch_ids(step)[77]
    found = made.steps_of("a", key, before=step + 1)
    assert found[-1] == (step, 77, 6, 0)
    assert [one.epoch for one in found] == list(range(7)), "once in each of its epochs"


def test_refusals(properties):
    made = properties.two_sources_plan()
    with refusal(InvalidRuntime, what="source", given="wub"):
        made.steps_of("wub", "000000000000", before=3)
    with refusal(InvalidRuntime, what="key", where="source 'photos'", given="x"):
        made.steps_of("photos", "x", before=3)
    with refusal(InvalidRuntime, what="step", given=-1):
        made.steps_of("photos", "000000000000", before=-1)
    assert made.steps_of("photos", "000000000000", before=0) == []
