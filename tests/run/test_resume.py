"""Stopping and going on anywhere, at any world size, is not stopping at all."""

import json

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import loader
from loader.errors import InvalidRuntime, PlanMismatch
from tests.refusals import refusal

scripts = st.lists(
    st.tuples(st.sampled_from((1, 2, 3, 5, 8)), st.integers(0, 4), st.booleans()), min_size=1, max_size=6
)


@pytest.fixture(scope="module")
def plan(versions):
    return loader.plan(
        {"photos": loader.source(versions["photos"].select("cls", "txt"), weight=2), "web": versions["web"]},
        seed=5,
        global_batch=9,
        schedule=[(3, {"photos": 1, "web": 3}), (7, {"web": 1})],
    )


@settings(max_examples=25, deadline=None, derandomize=True)
@given(script=scripts, workers=st.sampled_from((0, 1, 2)))
@example(script=[(8, 3, False), (2, 3, False), (8, 3, False)], workers=2)
@example(script=[(3, 0, False), (2, 0, True), (5, 4, True)], workers=2)
@example(script=[(2, 2, True), (2, 0, True), (2, 0, True), (2, 2, True)], workers=1)
def test_any_stops_and_resumes(script, workers, plan, properties):
    properties.resumes_exactly(plan, script, workers=workers, framework="numpy")


def test_at_the_end_of_an_epoch(versions, properties):
    """19 samples in batches of 19: each step is an epoch."""
    plan = loader.plan({"web": versions["web"].select("cls")}, seed=5, global_batch=19)
    properties.resumes_exactly(plan, [(2, 1, False), (3, 1, True), (1, 1, False)], workers=2)


def test_state_counts_delivered_batches(plan):
    with loader.Loader(plan, 0, 1, workers=2) as batches:
        assert batches.state_dict()["step"] == batches.step == 0
        for taken in range(1, 4):
            next(batches)
            assert batches.state_dict()["step"] == batches.step == taken
        batches.batch_at(40)
        assert batches.step == 3
        assert batches.state_dict() == plan.state(3)


def test_loading_before_and_after_iteration_began(plan, properties):
    wanted = properties.reference_digests(plan, 8)
    state = plan.state(5)
    with loader.Loader(plan, 0, 1, workers=2, framework="numpy") as batches:
        batches.load_state_dict(state)
        batches.load_state_dict(batches.state_dict())
        assert next(batches).digest == wanted[5]
        assert next(batches).digest == wanted[6]
        batches.load_state_dict(plan.state(2))
        assert [next(batches).digest for _ in range(3)] == [wanted[step] for step in (2, 3, 4)]
        batches.load_state_dict(json.loads(json.dumps(plan.state(7))))
        assert next(batches).digest == wanted[7]


def test_seeking_backwards_and_forwards(plan, properties):
    """Backwards, forwards and in place, whatever was made ahead."""
    steps = (0, 1, 7, 8, 2, 2, 9, 0)
    wanted = properties.reference_digests(plan, max(steps) + 1)
    with loader.Loader(plan, 0, 1, workers=2, framework="numpy") as batches:
        for step in steps:
            batches.seek(step)
            batch = next(batches)
            assert (batch.step, batch.digest) == (step, wanted[step])


@pytest.mark.parametrize("step", [-1, 2**62, 1.5, "3", None])
def test_steps_that_cannot_be(step, plan):
    with loader.Loader(plan, 0, 1, workers=0) as batches:
        for call in (batches.seek, batches.batch_at):
            with refusal(InvalidRuntime, what="step", given=step):
                call(step)
        assert next(batches).step == 0


def test_state_of_another_plan_names_what_differs(plan, versions):
    view = versions["photos"].select("cls")
    state = loader.plan({"photos": view}, seed=1, global_batch=9).state(4)
    others = {
        "seed": loader.plan({"photos": view}, seed=2, global_batch=9),
        "global_batch": loader.plan({"photos": view}, seed=1, global_batch=10),
        "source 'web'": loader.plan({"web": versions["web"]}, seed=1, global_batch=9),
        "source 'photos' view": loader.plan({"photos": view.where("even")}, seed=1, global_batch=9),
    }
    for named, other in others.items():
        with loader.Loader(other, 0, 1, workers=0) as batches:
            with refusal(PlanMismatch, what="state", where="step 4") as refused:
                batches.load_state_dict(state)
            assert named in refused.value.given
            assert batches.step == 0


def test_state_read_with_other_fields_or_a_later_schedule_continues(versions):
    """What decided the past is the same: the fields are not among it, nor segments that have not begun."""
    photos, web = versions["photos"], versions["web"]
    begun = loader.plan({"p": photos.select("cls"), "w": web}, seed=1, global_batch=9)
    for later in (
        loader.plan({"p": photos.select("txt"), "w": web}, seed=1, global_batch=9),
        loader.plan({"p": photos, "w": web}, seed=1, global_batch=9, schedule=[(4, {"p": 1})]),
    ):
        with loader.Loader(later, 0, 1, workers=0) as batches:
            batches.load_state_dict(begun.state(4))
            assert next(batches).step == 4


def test_plan_with_a_first_step_is_trained_from_it_and_resumed(versions):
    """19 samples in batches of 8 are three steps of an epoch, 40 to 42."""
    view = versions["web"].select("cls")
    options = {"seed": 5, "global_batch": 8, "boundary": "mask"}
    plan = loader.plan({"web": view}, first_step=40, **options)
    plain = loader.plan({"web": view}, **options)
    with (
        loader.Loader(plan, 0, 1, workers=2, epochs=2, framework="numpy") as batches,
        loader.Loader(plain, 0, 1, workers=0, epochs=2, framework="numpy") as plain_batches,
    ):
        assert batches.state_dict()["step"] == batches.step == 40
        assert batches.end == 46
        with refusal(InvalidRuntime, what="step", given=39):
            batches.seek(39)
        delivered = list(batches)
        assert [batch.step for batch in delivered] == list(range(40, 46))
        assert [batch.ids for batch in delivered] == [batch.ids for batch in plain_batches]
        batches.load_state_dict(plan.state(43))
        assert next(batches).digest == delivered[3].digest


def test_torch_dataset_begins_with_the_first_step(versions):
    plan = loader.plan(
        {"web": versions["web"].select("cls")}, seed=5, global_batch=8, boundary="mask", first_step=40
    )
    dataset = loader.torch_dataset(plan, 0, 1, epochs=1)
    assert [batch.step for batch in dataset] == [40, 41, 42]
    assert dataset.state_dict() == plan.state(43)
