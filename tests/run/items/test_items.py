"""A dataset that you bring as a source: one order, one content, whatever makes the batches."""

import contextlib
import functools
import random

import numpy as np
import pytest
import torch

import loader
from loader.errors import Corrupt, InvalidRuntime, InvalidSample, PlanMismatch, TooManyCorrupt, UnseededItems
from tests.refusals import refusal

STEPS = 4
BATCH = 30


def make_plan(dataset, **more):
    return loader.plan({"photos": dataset}, seed=7, global_batch=BATCH, **more)


def content(batch):
    """Return the digest's and the values' part of a batch, to add up over ranks."""
    image = batch["image"] if "image" in batch.fields else batch["0"]
    return batch.digest, [tensor.numpy().tobytes() for tensor in torch.as_tensor(image)]


def step_contents(plan, world=1, **options):
    """Return step -> (digest, bytes of every sample in canonical order) of all ranks together."""
    steps = {}
    for rank in range(world):
        with loader.Loader(plan, rank, world, steps=STEPS, **options) as batches:
            for batch in batches:
                digest, samples = content(batch)
                total, in_order = steps.get(batch.step, (0, []))
                steps[batch.step] = ((total + digest) % 2**64, in_order + samples)
    return steps


def first_batch(plan, **options):
    with loader.Loader(plan, 0, 1, **options) as batches:
        return next(batches)


@pytest.mark.parametrize("name", ["Pictures", "Augmented", "LateAugmented", "Bulk"])
def test_batches_are_the_same_for_every_world_size(datasets, name):
    plan = make_plan(getattr(datasets, name)())
    alone = step_contents(plan)
    assert len(alone) == STEPS
    assert step_contents(plan, 2) == alone
    assert step_contents(plan, 5) == alone


def test_worker_processes_make_the_same_batches(datasets):
    plan = make_plan(datasets.LateAugmented())
    assert step_contents(plan, 2, workers=2) == step_contents(plan)


def test_items_are_those_of_the_order(datasets):
    """Beside a second implementation: the plan's ordinals, and items made one by one."""
    dataset = datasets.Pictures()
    plan = make_plan(dataset)
    with loader.Loader(plan, 0, 1, steps=STEPS) as batches:
        for batch in batches:
            ordinals = plan.slots(batch.step).ordinal.tolist()
            assert batch.ordinals.tolist() == ordinals
            assert [key for _, key in batch.ids] == [str(ordinal) for ordinal in ordinals]
            assert batch["1"].tolist() == [dataset[ordinal][1] for ordinal in ordinals]
            expected = np.stack([dataset[ordinal][0] for ordinal in ordinals])
            assert np.array_equal(batch["0"].numpy(), expected)


def test_any_step_is_made_by_itself(datasets):
    plan = make_plan(datasets.Augmented())
    steps = step_contents(plan)
    with loader.Loader(plan, 0, 1) as batches:
        assert content(batches.batch_at(3)) == steps[3]
        next(batches)
        state = batches.state_dict()
    with loader.Loader(plan, 0, 1) as resumed:
        resumed.load_state_dict(state)
        assert content(next(resumed)) == steps[1]


def test_generators_of_the_training_do_not_move(datasets):
    plan = make_plan(datasets.Augmented())
    before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    step_contents(plan)
    assert (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()) == before


def test_epochs_and_sources_draw_differently(datasets):
    plan = loader.plan(
        {"a": datasets.Augmented(20), "b": datasets.Augmented(20)},
        seed=7,
        global_batch=40,
        allow_repeats=True,
    )
    seen = set()
    with loader.Loader(plan, 0, 1, steps=2) as batches:
        for batch in batches:
            seen |= {one.numpy().tobytes() for one in batch["image"]}
    assert len(seen) == 80


def test_mixture_with_a_version(datasets, tmp_path):
    root = loader.Root(tmp_path / "root")
    with root.write("rows") as writer:
        for i in range(50):
            writer.add(f"{i:03d}", {"cls": i})
    sources = {"rows": root.open("rows@1"), "photos": loader.source(datasets.Augmented(), weight=2)}
    plan = loader.plan(sources, seed=3, global_batch=BATCH)

    def digests(world, **options):
        total = [0] * STEPS
        for rank in range(world):
            with loader.Loader(plan, rank, world, steps=STEPS, **options) as batches:
                for batch in batches:
                    total[batch.step] = (total[batch.step] + batch.digest) % 2**64
                    here = {plan.source_names[source] for source in batch.sources.tolist()}
                    assert here <= {"rows", "photos"}
        return total

    alone = digests(1)
    assert digests(3) == alone
    assert digests(2, workers=1) == alone


def test_generator_of_its_own_is_found_at_the_first_item(datasets):
    with (
        loader.Loader(make_plan(datasets.OwnGenerator()), 0, 1) as batches,
        refusal(
            UnseededItems, what="image", where="item 41 of source 'photos'", given="other values each time"
        ),
    ):
        next(batches)
    seeded = make_plan(loader.items(datasets.OwnGenerator(), seeded=datasets.seed_own))
    assert step_contents(seeded, 2) == step_contents(seeded)
    with loader.Loader(make_plan(loader.items(datasets.OwnGenerator(), seeded=False)), 0, 1) as batches:
        assert len(next(batches)) == BATCH


def test_generator_of_its_own_is_found_each_time(datasets):
    with loader.Loader(make_plan(datasets.OwnGenerator()), 0, 1) as batches:
        for _ in range(3):
            with pytest.raises(UnseededItems):
                next(batches)


def test_items_that_depend_on_their_call_are_reported(datasets):
    fault = {"what": "ids", "given": "other values beside other items"}
    first_is_longest = set()
    for seed in range(6):
        plan = loader.plan({"photos": datasets.Padded()}, seed=seed, global_batch=2)
        first, second = plan.slots(0).ordinal.tolist()
        first_is_longest.add(first > second)
        with loader.Loader(plan, 0, 1) as batches, refusal(UnseededItems, **fault):
            next(batches)
    assert first_is_longest == {True, False}


def test_damaged_items_have_substitutes(datasets, tmp_path):
    plan = make_plan(datasets.Damaged())
    ledger = loader.Root(tmp_path / "ledger")
    substitutions = []
    with loader.Loader(plan, 0, 1, steps=STEPS, ledger=ledger) as batches:
        for batch in batches:
            substitutions += batch.substitutions
            assert bool(batch.mask.all())
    damaged = {one.address.ordinal for one in substitutions}
    assert damaged == {7, 47, 87}
    assert "image file is truncated" in substitutions[0].error
    assert [one.identity for one in loader.read_ledger(ledger, plan)] == [
        one.identity for one in substitutions
    ]
    assert step_contents(plan, 2) == step_contents(plan)
    with loader.Loader(plan, 0, 1, steps=STEPS, on_corrupt="raise") as batches, pytest.raises(Corrupt):
        list(batches)
    with pytest.raises(TooManyCorrupt, match="this process's log"):
        step_contents(plan, corrupt_budget=0)


def test_factory_opens_the_dataset_in_each_process(datasets, tmp_path):
    path = tmp_path / "rows"
    path.write_bytes(np.arange(datasets.N, dtype="<u8").tobytes())
    items = loader.items(functools.partial(datasets.OpenFile, path))
    plan = make_plan(items)
    with loader.Loader(plan, 0, 1, steps=2, workers=2) as batches:
        for batch in batches:
            assert batch["item"].tolist() == batch.ordinals.tolist()
    with (
        refusal(
            loader.errors.Unpicklable,
            what="the OpenFile.file",
            where="source 'photos'",
            given="BufferedReader",
        ),
        contextlib.closing(datasets.OpenFile(path)) as dataset,
    ):
        loader.Loader(make_plan(dataset), 0, 1, workers=1)


class Changing:
    """Items that a test replaces."""

    def __init__(self, item, n=40):
        self.item = item
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        return self.item(i)


def missing(i):
    raise IndexError("list index out of range")


ITEM = "item 1 of source 'photos'"


@pytest.mark.parametrize(
    ("item", "error", "fields"),
    [
        (missing, InvalidRuntime, {"what": "item 1", "where": "source 'photos'", "given": 40}),
        (lambda i: None, InvalidSample, {"what": "item", "where": ITEM, "given": None}),
        (lambda i: iter([i]), InvalidSample, {"what": "item", "where": ITEM, "given": "list_iterator"}),
        (lambda i: {i: 1}, InvalidSample, {"what": "1", "where": ITEM, "accepted": "a string"}),
    ],
)
def test_bad_item_ends_with_its_source_and_number(item, error, fields):
    plan = make_plan(Changing(item))
    with loader.Loader(plan, 0, 1) as batches, refusal(error, **fields):
        next(batches)


def test_error_of_an_item_names_its_source():
    def item(i):
        raise KeyError("labels.csv")

    with loader.Loader(make_plan(Changing(item)), 0, 1) as batches, pytest.raises(KeyError) as raised:
        next(batches)
    assert raised.value.args == ("labels.csv",)
    assert any("of source 'photos'" in note for note in raised.value.__notes__)


def test_dataset_of_another_length_than_planned_is_refused():
    dataset = Changing(lambda i: i)
    plan = make_plan(dataset)
    dataset.n = 39
    with refusal(PlanMismatch, what="items", where="source 'photos'", given=39):
        first_batch(plan)


def test_bulk_call_must_return_an_item_for_each_number(datasets):
    class Short(datasets.Bulk):
        def __getitems__(self, numbers):
            return super().__getitems__(numbers)[1:]

    with refusal(InvalidRuntime, what="__getitems__", where="source 'photos'", given=29):
        first_batch(make_plan(Short()))


def test_bulk_call_is_used_while_no_item_draws(datasets):
    dataset = datasets.Bulk()
    step_contents(make_plan(dataset))
    assert dataset.calls > 1
    assert dataset.single_calls == 0


def test_threads_are_refused(datasets):
    with refusal(InvalidRuntime, what="executor", given="threads"):
        loader.Loader(make_plan(datasets.Pictures()), 0, 1, executor="threads")
    with loader.Loader(make_plan(datasets.Pictures()), 0, 1) as batches:
        assert (batches.executor, batches.workers) == ("caller", 0)


def test_transform_gets_the_fields_and_a_keyed_generator(datasets):
    def noisy(sample, rng):
        return {"image": sample["0"] + rng.random(), "label": sample["1"]}

    plan = make_plan(datasets.Pictures())
    alone = step_contents(plan, transform=noisy)
    assert step_contents(plan, 3, transform=noisy) == alone
    assert {step: digest for step, (digest, _) in alone.items()} == {
        step: digest for step, (digest, _) in step_contents(plan).items()
    }


def test_substitutions_of_a_mixture_are_in_the_order_of_slots(datasets, tmp_path):
    root = loader.Root(tmp_path / "root")
    with root.write("rows") as writer:
        for i in range(60):
            writer.add(f"{i:03d}", {"cls": i})

    def decode(data, rng):
        number = int(data)
        if number % 20 == 3:
            raise ValueError("planted")
        return number

    sources = {"rows": root.open("rows@1"), "photos": datasets.Damaged()}
    plan = loader.plan(sources, seed=3, global_batch=60)
    seen = []
    options = {"decode": {"cls": decode}, "corrupt_budget": 1, "ledger": root}
    with loader.Loader(plan, 0, 1, steps=2, **options) as batches:
        for batch in batches:
            slots = [one.slot for one in batch.substitutions]
            assert slots == sorted(slots)
            seen += [one.source for one in batch.substitutions]
    # Neither source's substitutions come first.
    assert len(set(seen)) == 2
    assert seen != sorted(seen)
    assert seen != sorted(seen, reverse=True)
    ledger = loader.read_ledger(root, plan)
    with loader.Replay(plan, ledger, decode={"cls": decode}) as replay:
        assert [one.source for step in range(2) for one in replay.batch(step).substitutions] == []
    damaged = loader.open_plan(root, plan.save(root), items={"photos": datasets.Broken()})
    with loader.Replay(damaged, ledger, decode={"cls": decode}) as replay:
        batch = replay.batch(0)
    slots = [one.slot for one in batch.substitutions if one.source == "photos"]
    assert slots == sorted(slots)
    assert [one.attempt for one in batch.substitutions] == [0] * len(batch.substitutions)
    assert (~batch.mask).nonzero().ravel().tolist() == slots
