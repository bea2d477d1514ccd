"""A range of steps: samples that came twice, the mixture that was planned, buckets, substitutes, limits."""

from collections import Counter

import numpy as np
import pytest

import loader
from loader.errors import InvalidRuntime
from penstock.view.inspect.step_range import MOST_STEPS, step_range
from penstock.view.replays.training import Training
from tests.refusals import refusal
from tests.view.conftest import BATCH, STEPS, write_photos


@pytest.fixture
def range_record(trained):
    """range_record(first, last) of the run `one`, and its plan."""
    with loader.Root(trained) as root:
        training = Training(root, "one")
        yield lambda *span: (step_range(training, *span), training.plan(0))
        training.close()


@pytest.mark.parametrize(("first", "last"), [(0, STEPS - 1), (2, 4), (3, 3)])
def test_samples_that_came_twice_are_listed_with_their_slots(range_record, first, last):
    record, plan = range_record(first, last)
    held = {}
    for step in range(first, last + 1):
        for slot, (_, key) in enumerate(plan.batch_ids(step)):
            held.setdefault(key, []).append((step, slot))
    told = {one.key: list(one.places) for one in record.repeated}
    assert told == {key: places for key, places in held.items() if len(places) > 1}
    assert record.n_repeated == len(told)
    assert (record.n_samples, record.n_slots) == (len(held), BATCH * (last + 1 - first))
    assert [one.n_slots for one in record.repeated] == sorted(map(len, told.values()), reverse=True)
    assert {(one.source, one.version) for one in record.repeated} <= {("photos", "photos@1")}


def test_mixture_is_the_planned_one_and_the_weights_may_change(root):
    a, b = (write_photos(root, name, numbers=range(40)).select() for name in ("a", "b"))
    plan = loader.plan(
        {"a": loader.source(a, weight=3), "b": b}, seed=1, global_batch=8, schedule=[(4, {"a": 1, "b": 1})]
    )
    plan.save(root)
    training = Training(root, plan.hash)
    record = step_range(training, 2, 7)
    training.close()
    counts = Counter(name for step in range(2, 8) for name, _ in plan.batch_ids(step))
    assert {one.source: one.delivered for one in record.sources} == counts
    assert {one.source: one.planned for one in record.sources} == {"a": 2 * 6 + 4 * 4, "b": 2 * 2 + 4 * 4}
    assert record.buckets == {}


def test_buckets_are_counted_by_steps_and_their_sources_told_together(root):
    version = write_photos(root, numbers=range(40))
    plan = loader.plan(
        {"photos": version.select()},
        seed=1,
        global_batch=4,
        bucket_by=loader.bucket("width", edges=[0, 43, 99]),
    )
    plan.save(root)
    training = Training(root, plan.hash)
    record = step_range(training, 0, 8)
    training.close()
    assert record.buckets == Counter(plan.bucket(step) for step in range(9))
    assert len(record.buckets) > 1
    assert [(one.source, one.planned, one.delivered) for one in record.sources] == [("photos", 36.0, 36)]


def test_substitutes_are_listed_with_their_slots(root, tmp_path):
    plan = loader.plan({"photos": write_photos(root).select("jpg", "cls")}, seed=3, global_batch=BATCH)
    _, key = plan.batch_ids(2)[3]
    plan = plan.quarantined({"photos": [key]}, 0)
    plan.save(root)
    training = Training(root, plan.hash)
    record = step_range(training, 0, 5)
    training.close()
    places = [
        (step, slot) for step in range(6) for slot in np.flatnonzero(plan.slots(step).attempt > 0).tolist()
    ]
    assert [one.places for one in record.substituted] == [(place,) for place in places]
    assert record.n_substituted == len(places) > 0
    assert key not in {one.key for one in (*record.substituted, *record.repeated)}


def test_window_that_is_not_asked_for_is_the_last_of_the_run(range_record):
    assert [(one.first, one.last) for one, _ in (range_record(), range_record(3))] == [
        (0, STEPS - 1),
        (3, 102),
    ]


@pytest.mark.parametrize(("first", "last"), [(4, 3), (0, MOST_STEPS), (None, -1)])
def test_window_has_a_limit(range_record, first, last):
    with refusal(InvalidRuntime, what="steps", accepted=MOST_STEPS):
        range_record(first, last)
