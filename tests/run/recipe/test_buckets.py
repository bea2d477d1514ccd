"""A Loader over a plan with buckets: batches of unequal size, the same bucket on every rank, bytes as planned."""

from contextlib import ExitStack

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import loader
from loader.errors import InvalidRuntime
from tests.refusals import refusal


@pytest.fixture(scope="session")
def truth(samples):
    return lambda source, key: samples.sample(source.partition("/")[0], samples.number(key))


@pytest.fixture(scope="session")
def plan(versions):
    """photos: 24 below 25, 19 from there on; web: 19 below. A batch has 8 or 13 samples."""
    return loader.plan(
        {"photos": loader.source(versions["photos"], weight=2), "web": versions["web"].select("cls", "txt")},
        seed=5,
        global_batch=13,
        bucket_by=loader.bucket("i", edges=[0, 25, "inf"], batch={"0..25": 8}),
    )


@settings(max_examples=20, deadline=None, derandomize=True)
@given(
    world_size=st.sampled_from((1, 2, 3, 8)),
    workers=st.sampled_from((0, 2)),
    framework=st.sampled_from(("torch", "numpy")),
    start=st.one_of(st.integers(0, 40), st.just(10**9)),
)
def test_every_runtime_delivers_the_same_global_batches(
    plan, truth, properties, world_size, workers, framework, start
):
    properties.delivers_the_plan(
        plan, truth, world_size=world_size, workers=workers, framework=framework, start=start, steps=5
    )


@pytest.mark.parametrize(("world_size", "workers"), [(3, 2), (2, 0)])
def test_batches_that_change_at_a_step_are_delivered_and_resumed(
    versions, truth, properties, world_size, workers
):
    made = loader.plan(
        {"photos": loader.source(versions["photos"], weight=2), "web": versions["web"].select("cls", "txt")},
        seed=5,
        global_batch=[(0, 6), (8, 13)],
        bucket_by=loader.bucket("i", edges=[0, 25, "inf"], batch={"0..25": [(0, 4), (5, 8)]}),
    )
    assert {made.batch_size(step) for step in range(20)} == {4, 6, 8, 13}
    properties.delivers_the_plan(
        made, truth, world_size=world_size, workers=workers, framework="numpy", start=0, steps=20
    )
    properties.resumes_exactly(made, [(1, 3, False), (3, 4, True), (2, 9, False)], workers=workers)


def test_ranks_are_at_one_bucket_and_weights_make_the_mean(plan):
    sizes = set()
    with ExitStack() as stack:
        ranks = [stack.enter_context(loader.Loader(plan, rank, 3, steps=12, workers=0)) for rank in range(3)]
        for step in range(12):
            batches = [next(rank) for rank in ranks]
            assert {batch.bucket for batch in batches} == {plan.bucket(step)}
            assert sum(len(batch) for batch in batches) == plan.batch_size(step)
            assert sum(batch.weight for batch in batches) == pytest.approx(3)
            # mean loss of a rank times its weight, averaged over ranks: the mean over the samples of the batch
            means = [np.mean([key_number(key) for _, key in batch.ids]) for batch in batches]
            every = [key_number(key) for batch in batches for _, key in batch.ids]
            weighted = np.mean([mean * batch.weight for mean, batch in zip(means, batches, strict=True)])
            assert weighted == pytest.approx(np.mean(every))
            sizes.add(len(every))
    assert sizes == {8, 13}


def key_number(key):
    return int(key.rpartition("/")[2])


@pytest.mark.parametrize(
    "script",
    [
        [(1, 3, False), (3, 4, True), (8, 2, False)],
        [(2, 0, True), (5, 6, False), (1, 1, False), (2, 3, True)],
    ],
)
def test_stops_and_resumes_give_the_uninterrupted_run(plan, properties, script):
    properties.resumes_exactly(plan, script, workers=2, framework="numpy")


def test_what_a_transform_draws_depends_on_the_sample_alone(plan, properties):
    properties.augments_by_sample(plan, steps=6)


def test_explain_follows_slots_of_any_bucket(plan):
    for step in range(6):
        explained = loader.explain(plan, step)
        assert [(one.source, one.address.key) for one in explained] == plan.batch_ids(step)
        parts = [loader.explain(plan, step, rank=rank, world_size=3) for rank in range(3)]
        assert [one.slot for part in parts for one in part] == list(range(plan.batch_size(step)))


def test_what_buckets_refuse_of_a_loader(plan):
    with refusal(InvalidRuntime, what="epochs", where="buckets", given=2):
        loader.Loader(plan, 0, 1, epochs=2)
    with refusal(InvalidRuntime, what="world_size", given=9):
        loader.Loader(plan, 0, 9)
    one = loader.plan({"p": plan.sources["web/0..25"].view}, seed=1, global_batch=4, bucket_by="1")
    assert one.source_names == ("p/1",)
    with refusal(InvalidRuntime, what="epochs", where="buckets", given=1):
        loader.Loader(one, 0, 1, epochs=1)


def test_batch_without_buckets_names_none(versions):
    with loader.Loader(
        loader.plan({"p": versions["web"]}, seed=1, global_batch=4), 0, 1, workers=0
    ) as batches:
        assert next(batches).bucket is None
