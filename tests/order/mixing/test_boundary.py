"""`boundary="mask"`: every epoch is whole batches, and no batch holds a sample twice."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loader.errors import InvalidPlan, PlanMismatch
from loader.order.digests import planned_digest
from loader.order.from_json import plan_from_json
from loader.order.plan import make_plan
from loader.order.planned_source import source
from loader.order.slots import rank_slice
from loader.order.sources.bucket import bucket
from loader.order.sources.views import synthetic
from loader.order.substitutes import substitute
from tests.refusals import refusal

exact = settings(derandomize=True, deadline=None, max_examples=60)


def mask_plan(n=100, batch=32, seed=7, chunk=None, lanes=None, **more):
    view = source(synthetic(n, "photos"), chunk=chunk, lanes=lanes)
    return make_plan({"photos": view}, seed=seed, global_batch=batch, boundary="mask", **more)


@exact
@given(
    n=st.integers(1, 300),
    batch=st.integers(1, 80),
    chunk=st.sampled_from([None, 1, 3, 8]),
    lanes=st.sampled_from([None, 2, 8]),
    seed=st.integers(0, 2**64 - 1),
)
def test_every_epoch_is_whole_batches(properties, n, batch, chunk, lanes, seed):
    """Every epoch is ceil(N/B) steps, with each sample once, in the order of the lanes; the rest of it is padding."""
    made = mask_plan(n, batch, seed, chunk, lanes)
    epochs = 3
    ((name, one),) = made.sources.items()
    n, b = one.shape.n, made.global_batch
    steps = -(-n // b)
    for epoch in range(epochs):
        parts = [made.slots(epoch * steps + step) for step in range(steps)]
        for step, slots in enumerate(parts):
            valid = slots.valid
            assert len(slots) == b
            assert int(valid.sum()) == (b if step < steps - 1 else n - (steps - 1) * b)
            assert len(set(slots.ordinal[valid].tolist())) == int(valid.sum())
            assert set(slots.epoch.tolist()) == {epoch}
            for column in (slots.position, slots.ordinal, slots.view_ordinal):
                assert (column[~valid] == -1).all()
                assert (column[valid] >= 0).all()
        position = np.concatenate([slots.position[slots.valid] for slots in parts])
        ordinal = np.concatenate([slots.view_ordinal[slots.valid] for slots in parts])
        order = np.argsort(position)
        assert position[order].tolist() == list(range(epoch * n, (epoch + 1) * n))
        assert ordinal[order].tolist() == properties.epoch_order(one.shape, made.seed, name, epoch).tolist()


@exact
@given(n=st.integers(1, 90), batch=st.integers(1, 40), step=st.integers(0, 12))
def test_batches_are_the_reference(reference, n, batch, step):
    made = mask_plan(n, batch, chunk=2, lanes=4)
    slots = made.slots(step)
    got = zip(slots.position.tolist(), slots.epoch.tolist(), slots.view_ordinal.tolist(), strict=True)
    assert list(got) == reference.mask_batch(7, batch, "photos", (n, 2, 4, 4), step)


@exact
@given(n=st.integers(1, 200), batch=st.integers(2, 60), step=st.integers(0, 30), data=st.data())
def test_ranks_resumes_and_json_give_the_same_batches(n, batch, step, data):
    made = mask_plan(n, batch)
    world = data.draw(st.integers(1, batch))
    again = plan_from_json(made.to_json(), lambda spec: synthetic(spec["n"], spec["name"]))
    assert again.hash == made.hash
    assert again.check_state(made.state(step)) == step
    slots = again.slots(step)
    assert planned_digest(step, slots, again) == planned_digest(step, made.slots(step), made)
    ids = made.batch_ids(step)
    parts = [ids[rank_slice(batch, rank, world)] for rank in range(world)]
    assert [one for part in parts for one in part] == ids
    assert [one != ("", "") for one in ids] == slots.valid.tolist()


def test_epochs_last_batch_by_hand():
    """10 samples in batches of 4: 4, 4 and 2, then the next epoch."""
    made = mask_plan(10, 4)
    assert [made.slots(step).valid.sum() for step in range(7)] == [4, 4, 2, 4, 4, 2, 4]
    assert [int(made.slots(step).epoch[0]) for step in range(7)] == [0, 0, 0, 1, 1, 1, 2]
    fill = make_plan({"photos": synthetic(10, "photos")}, seed=7, global_batch=4)
    assert made.hash != fill.hash
    assert made.slots(0).ordinal.tolist() == fill.slots(0).ordinal.tolist()
    facts = made.facts()
    assert facts["sources"]["photos"]["exhausted_at_step"] == 2
    assert facts["segments"][0]["sources"]["photos"]["steps_per_epoch"] == 3
    assert facts["segments"][0]["samples_per_step"] == pytest.approx(10 / 3)
    assert "padded at the end of an epoch" in made.describe()


def test_digest_tells_padding_from_samples():
    """Step 2 of 10 samples in batches of 4 holds two; of 12 samples it holds four."""
    made = mask_plan(10, 4)
    slots = made.slots(2)
    digest = planned_digest(2, slots, made)
    slots.valid[:] = True
    assert planned_digest(2, slots, made) == digest  # padding has no ordinal but the digest's own
    slots.ordinal[np.flatnonzero(slots.ordinal < 0)[0]] = 3
    assert planned_digest(2, slots, made) != digest


def test_far_step_costs_what_a_near_one_does():
    made = mask_plan(10**9, 1000, chunk=512)
    far = made.slots(10**12)
    assert far.valid.all()
    assert int(far.epoch[0]) == 10**12 // 10**6


def test_small_source_is_one_padded_batch():
    """With "fill" it would be refused: a batch could hold a sample twice."""
    slots = mask_plan(3, 8).slots(5)
    assert sorted(slots.ordinal.tolist()) == [-1] * 5 + [0, 1, 2]
    assert set(slots.epoch.tolist()) == {5}


def test_quarantine_and_substitutes_are_those_of_the_position():
    bad = [f"{ordinal:012d}" for ordinal in range(0, 100, 9)]
    plain, made = mask_plan(), mask_plan(quarantine={"photos": bad})
    for step in range(8):
        own, slots = plain.slots(step), made.slots(step)
        assert own.valid.tolist() == slots.valid.tolist()
        for slot in range(32):
            held = own.valid[slot] and own.ordinal[slot] % 9 == 0
            assert bool(slots.attempt[slot]) == bool(held)
            if held:
                taken = substitute(made, 0, int(own.position[slot]), int(slots.attempt[slot]))
                assert slots.ordinal[slot] == taken[1]


def test_state_of_another_boundary_is_refused():
    fill = make_plan({"photos": synthetic(100, "photos")}, seed=7, global_batch=32)
    with refusal(PlanMismatch, what="state", where="step 3", given=["boundary"]):
        mask_plan().check_state(fill.state(3))


@pytest.mark.parametrize(
    ("more", "fault"),
    [
        ({"views": {"a": synthetic(50), "b": synthetic(50)}}, {"what": "boundary", "given": "2 sources"}),
        (
            {"views": {"a": synthetic(50, buckets={"x": 25, "y": 25})}, "bucket_by": bucket("x")},
            {"what": "boundary", "given": "buckets"},
        ),
        ({"schedule": [(3, {"a": 1})]}, {"what": "boundary", "given": "a schedule or a ramp"}),
        ({"boundary": "drop"}, {"what": "boundary", "given": "drop"}),
    ],
)
def test_what_has_no_common_end_is_refused(more, fault: dict[str, object]):
    arguments = {"views": {"a": synthetic(50)}, "seed": 1, "global_batch": 20, "boundary": "mask"} | more
    with refusal(InvalidPlan, **fault):
        make_plan(arguments.pop("views"), **arguments)
