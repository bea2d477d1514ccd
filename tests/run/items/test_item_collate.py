"""`collate=` of a dataset: the items of a rank's part, as the dataset returned them."""

import random

import numpy as np
import pytest
import torch
from torch.utils.data import default_collate

import loader
from loader.errors import InvalidPlan, InvalidRuntime
from tests.refusals import refusal

STEPS = 3
BATCH = 8


def ragged_item(i):
    return torch.arange(i % 3 + 1), i


RAGGED = [ragged_item(i) for i in range(40)]
EVEN = [(torch.full((2, 3), i), i) for i in range(40)]


def pad_items(items):
    """Join ragged tensors by zeros, as detection's and text's collate functions do."""
    tensors, labels = zip(*items, strict=True)
    return {
        "tokens": torch.nn.utils.rnn.pad_sequence(tensors, batch_first=True),
        "labels": list(labels),
    }


def make_plan(dataset, collate, **options):
    items = loader.items(dataset, collate=collate, **options)
    return loader.plan({"photos": items}, seed=7, global_batch=BATCH)


def read_batches(plan, rank=0, world_size=1, **options):
    with loader.Loader(plan, rank, world_size, steps=STEPS, **options) as batches:
        return list(batches)


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_collate_gets_the_items_of_the_rank(world_size):
    plan = make_plan(RAGGED, pad_items)
    for rank in range(world_size):
        for batch in read_batches(plan, rank, world_size):
            ordinals = batch.ordinals.tolist()
            expected = pad_items([RAGGED[ordinal] for ordinal in ordinals])
            assert batch.collated["labels"] == expected["labels"] == ordinals
            assert torch.equal(batch.collated["tokens"], expected["tokens"])


def test_collate_changes_no_digest_and_no_field():
    with_collate = read_batches(make_plan(RAGGED, pad_items))
    without = read_batches(make_plan(RAGGED, None))
    assert [batch.digest for batch in with_collate] == [batch.digest for batch in without]
    for one, other in zip(with_collate, without, strict=True):
        assert torch.equal(one["1"], other["1"])
        assert other.collated is None
        assert one.nbytes > other.nbytes


def test_torch_default_collate_gives_what_a_dataloader_gives():
    for batch in read_batches(make_plan(EVEN, default_collate)):
        images, labels = batch.collated
        expected = default_collate([EVEN[ordinal] for ordinal in batch.ordinals.tolist()])
        assert torch.equal(images, expected[0])
        assert torch.equal(labels, expected[1])
        with pytest.raises(InvalidRuntime, match=r"Take its columns: batch\.collated"):
            _images, _labels = batch


def test_worker_processes_send_what_collate_returned():
    plan = make_plan(RAGGED, pad_items)
    for one, other in zip(read_batches(plan), read_batches(plan, workers=1), strict=True):
        assert torch.equal(one.collated["tokens"], other.collated["tokens"])
        assert one.collated["labels"] == other.collated["labels"]


def test_collate_gets_items_before_the_transform():
    def double_labels(sample, rng):
        return {"label": sample["1"] * 2}

    for batch in read_batches(make_plan(RAGGED, pad_items), transform=double_labels):
        assert batch["label"].tolist() == [2 * ordinal for ordinal in batch.ordinals.tolist()]
        assert batch.collated["labels"] == batch.ordinals.tolist()


@pytest.mark.parametrize("framework", ["torch", "numpy"])
def test_collated_values_are_of_the_function_in_every_framework(framework):
    (batch, *_) = read_batches(make_plan(RAGGED, pad_items), framework=framework)
    assert isinstance(batch.collated["tokens"], torch.Tensor)


def test_padding_has_no_items():
    plan = make_plan(RAGGED[:12], pad_items)
    with loader.Loader(plan, 1, 3, epochs=1) as batches:
        first, last = list(batches)
    assert len(first.collated["labels"]) == 3
    # Slots 2 to 4 of the last batch, which has four samples.
    assert last.mask.tolist() == [True, True, False]
    assert last.collated["labels"] == last.ordinals[:2].tolist()
    with loader.Loader(plan, 2, 3, epochs=1) as batches:
        *_, empty = batches
    assert not empty.mask.any()
    assert empty.weight == 0
    assert len(empty.collated["labels"]) == 1  # another rank's, for the shapes


def test_collate_gets_substitutes():
    class Damaged(list):
        def __getitem__(self, i):
            if i % 4 == 1:
                raise OSError("image file is truncated")
            return super().__getitem__(i)

    substituted = 0
    for batch in read_batches(make_plan(Damaged(RAGGED), pad_items), corrupt_budget=1):
        substituted += len(batch.substitutions)
        assert batch.collated["labels"] == batch.ordinals.tolist() == batch["1"].tolist()
    assert substituted > 0


def mix_items(items):
    """Draw as MixUp and CutMix do."""
    return {"factor": random.random() + float(np.random.rand()) + float(torch.rand(())), "n": len(items)}


def test_draws_of_collate_repeat_and_leave_the_training_alone():
    plan = make_plan(RAGGED, mix_items)
    before = random.getstate(), torch.get_rng_state().tolist()
    factors = [batch.collated["factor"] for batch in read_batches(plan)]
    assert (random.getstate(), torch.get_rng_state().tolist()) == before
    assert len(set(factors)) == STEPS
    with loader.Loader(plan, 0, 1) as batches:
        assert batches.batch_at(2).collated["factor"] == factors[2]
        batches.seek(1)
        assert next(batches).collated["factor"] == factors[1]
    with loader.Replay(plan) as replay:
        assert replay.batch(2).collated["factor"] == factors[2]
    (other, *_) = read_batches(plan, 1, 2)
    assert other.collated["factor"] not in factors


def test_error_of_collate_names_the_step():
    def raise_key_error(items):
        raise KeyError("image")

    with (
        loader.Loader(make_plan(RAGGED, raise_key_error), 0, 1) as batches,
        pytest.raises(KeyError) as raised,
    ):
        next(batches)
    assert raised.value.args == ("image",)
    assert "while collate joined 8 items of source 'photos' for step 0" in raised.value.__notes__


def test_collate_is_refused_in_mixtures_and_micro_batches():
    mixture = loader.plan(
        {"photos": loader.items(RAGGED, collate=pad_items), "others": RAGGED},
        seed=7,
        global_batch=BATCH,
    )
    with refusal(InvalidRuntime, what="collate", where="source 'photos'", given=2):
        loader.Loader(mixture, 0, 1)
    plan = make_plan(RAGGED, pad_items)
    with refusal(InvalidRuntime, what="micro_batch", where="source 'photos'", given=2):
        loader.Loader(plan, 0, 1, micro_batch=2)
    (batch, *_) = read_batches(plan)
    with refusal(InvalidRuntime, what="micro_batches", given=2):
        batch.micro_batches(2)
    with refusal(InvalidPlan, what="collate", given="pad"):
        loader.items(RAGGED, collate="pad")


class Bag(dict):
    """A mapping of its own, as tokenizers return."""


def test_collated_tensors_move_with_the_batch():
    def collate_nested(items):
        bag = Bag(tokens=torch.ones(2))
        return {"bag": bag, "pair": (torch.ones(1), ["a"]), "n": len(items)}

    (batch, *_) = read_batches(make_plan(RAGGED, collate_nested))
    moved = batch.to("meta").collated
    assert type(moved["bag"]) is Bag
    assert [moved["bag"]["tokens"].device.type, moved["pair"][0].device.type] == ["meta", "meta"]
    assert moved["pair"][1] == ["a"]
    assert moved["n"] == BATCH
    assert batch.collated["bag"]["tokens"].device.type == "cpu"
