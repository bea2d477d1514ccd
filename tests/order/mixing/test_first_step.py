"""`first_step`: the first epoch begins at a later step than 0, and the plan has no step before it."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loader.errors import InvalidPlan, InvalidRuntime, PlanMismatch
from loader.order.digests import planned_digest
from loader.order.from_json import plan_from_json
from loader.order.plan import make_plan
from loader.order.planned_source import source
from loader.order.sources.views import synthetic
from loader.run.recipe.recipe import bounds
from tests.refusals import refusal

exact = settings(derandomize=True, deadline=None, max_examples=60)


def mask_plan(n=100, batch=32, **more):
    view = source(synthetic(n, "photos"), chunk=2, lanes=4)
    return make_plan({"photos": view}, seed=7, global_batch=batch, boundary="mask", **more)


def reopen_plan(plan):
    return plan_from_json(plan.to_json(), lambda spec: synthetic(spec["n"], spec["name"]))


sizes = {"n": st.integers(1, 90), "batch": st.integers(1, 40)}
steps = {"first": st.integers(0, 2**53), "after": st.integers(0, 12)}


@exact
@given(**sizes, **steps)
def test_batches_with_a_first_step_are_the_reference(reference, n, batch, first, after):
    slots = mask_plan(n, batch, first_step=first).slots(first + after)
    rows = zip(slots.position.tolist(), slots.epoch.tolist(), slots.view_ordinal.tolist(), strict=True)
    shape = (n, 2, 4, 4)
    assert list(rows) == reference.mask_batch(7, batch, "photos", shape, first + after, first)


@exact
@given(**sizes, **steps, ranks=st.integers(1, 8))
def test_stack_state_and_json_count_from_the_first_step(n, batch, first, after, ranks):
    plan = mask_plan(n, batch, first_step=first)
    plain = mask_plan(n, batch)
    step = first + after
    again = reopen_plan(plan)
    assert again.hash == plan.hash
    assert (again.hash == plain.hash) == (first == 0)
    state = plan.state(step)
    assert again.check_state(state) == step
    assert (state["digest"] == "") == (state["segments"] == []) == (after == 0)
    assert plan.batch_ids(step) == plain.batch_ids(after)

    # Ranks that make several steps at once get what single steps have.
    ranks = min(ranks, batch)
    pair = [step, step + 1]
    stacked = [plan.stack(pair, rank, ranks).slots.ordinal.tolist() for rank in range(ranks)]
    alone = []
    for rank in range(ranks):
        ordinals = []
        for one in pair:
            ordinals += plan.stack([one], rank, ranks).slots.ordinal.tolist()
        alone.append(ordinals)
    assert stacked == alone


@exact
@given(**sizes, first=st.integers(0, 10**6), epochs=st.integers(1, 4), position=st.integers(0, 400))
def test_ends_of_epochs_and_uses_of_samples_count_from_the_first_step(n, batch, first, epochs, position):
    plan = mask_plan(n, batch, first_step=first)
    plain = mask_plan(n, batch)
    assert plan.step_of("photos", position) == first + plain.step_of("photos", position)
    end, _ = bounds(plan, epochs, None)
    assert end == first + -(-n // batch) * epochs
    assert plan.used_before(end) == plain.used_before(end - first)
    (key,) = synthetic(n, "photos").keys(plan.slots(first).ordinal[:1].clip(0))
    uses = plan.steps_of("photos", key, before=end)
    plain_uses = plain.steps_of("photos", key, before=end - first)
    assert [use.step - first for use in uses] == [use.step for use in plain_uses]


def test_step_before_the_first_is_refused():
    plan = mask_plan(first_step=40)
    for call in (plan.slots, plan.state, plan.batch_size, plan.batch_ids):
        with refusal(InvalidRuntime, what="step", given=39):
            call(39)


def test_state_of_another_first_step_is_refused():
    with refusal(PlanMismatch, what="state", where="step 42", given=["first_step"]):
        mask_plan(first_step=41).check_state(mask_plan(first_step=40).state(42))
    with refusal(PlanMismatch, what="state", where="step 42", given=["first_step"]):
        mask_plan(first_step=41).check_state(mask_plan().state(42))


def test_state_names_a_changed_batch_of_the_last_step():
    plan = mask_plan(first_step=40)
    state = plan.state(42)
    assert state["digest"] == planned_digest(41, plan.slots(41), plan)
    with refusal(PlanMismatch, what="digest", where="step 41"):
        plan.check_state({**state, "digest": "0" * 16})


def test_plan_with_a_first_step_has_a_format_that_older_packages_refuse():
    assert mask_plan(first_step=1).to_json()["format"] == 2
    plain = mask_plan(first_step=0).to_json()
    assert plain["format"] == 1
    assert "first_step" not in plain
    assert mask_plan(first_step=0).hash == mask_plan().hash


def test_facts_begin_with_the_first_step():
    plan = mask_plan(n=10, batch=4, first_step=40)
    facts = plan.facts()
    assert facts["sources"]["photos"]["exhausted_at_step"] == 42
    assert facts["segments"][0]["start_step"] == 40
    assert "from step 40, global batch 4" in plan.describe()


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"first_step": 3, "boundary": "fill"}, {"what": "first_step", "given": 3}),
        ({"first_step": -1}, {"what": "first_step", "given": -1}),
        ({"first_step": True}, {"what": "first_step", "given": True}),
        ({"first_step": 2**53 + 1}, {"what": "first_step", "given": 9007199254740993}),
        ({"first_step": "3"}, {"what": "first_step", "given": "3"}),
    ],
)
def test_invalid_first_step_is_refused(options, fault: dict[str, object]):
    arguments = {"boundary": "mask", **options}
    with refusal(InvalidPlan, **fault):
        make_plan({"photos": synthetic(100, "photos")}, seed=7, global_batch=32, **arguments)
