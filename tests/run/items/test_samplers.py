"""What torch's samplers are here: mixtures of subsets, an evaluation's pass, and epochs of one loader."""

import itertools

import pytest
from torch.utils.data import Subset

import loader

BATCH = 30


def test_weighted_sampler_is_a_mixture_of_subsets(datasets):
    """Of 120 items 20 are rare, and a third of each batch is theirs."""
    dataset = datasets.Pictures()
    sources = {
        "common": loader.source(Subset(dataset, range(100)), weight=2),
        "rare": loader.source(Subset(dataset, range(100, 120)), weight=1),
    }
    plan = loader.plan(sources, seed=7, global_batch=BATCH, allow_repeats=True)
    n_rare = 0
    with loader.Loader(plan, 0, 1, steps=20, workers=0) as batches:
        for batch in batches:
            pixels = batch["0"].reshape(BATCH, -1)
            ordinals = pixels[:, 0].int() // 12  # the first pixel of item i is 12 * i
            is_rare = ordinals >= 100
            assert [plan.source_names[source] == "rare" for source in batch.sources] == is_rare.tolist()
            n_rare += int(is_rare.sum())
    assert n_rare == 20 * BATCH // 3


@pytest.mark.parametrize("world_size", [1, 4])
def test_evaluation_has_each_item_once(datasets, world_size):
    """The last batch of 125 items is padded, which the mask shows."""
    plan = loader.plan({"val": datasets.Pictures(125)}, seed=0, global_batch=BATCH, boundary="mask")
    ordinals = []
    for rank in range(world_size):
        with loader.Loader(plan, rank, world_size, epochs=1, workers=0) as batches:
            for batch in batches:
                ordinals += batch.ordinals[batch.mask].tolist()
                assert len(batch["1"][batch.mask]) == int(batch.mask.sum())
    assert sorted(ordinals) == [*range(125)]


def test_loop_over_epochs_continues_in_the_middle_of_one(datasets):
    dataset = datasets.Augmented()
    plan = loader.plan({"photos": dataset}, seed=7, global_batch=BATCH)
    steps = len(dataset) // BATCH

    def epoch_digests(batches, n_epochs):
        digests = {}
        for epoch in range(batches.step // steps, n_epochs):
            rest = itertools.islice(batches, (epoch + 1) * steps - batches.step)
            digests[epoch] = [batch.digest for batch in rest]
        return digests

    with loader.Loader(plan, 0, 1, workers=0) as batches:
        whole = epoch_digests(batches, 3)
    assert [len(digests) for digests in whole.values()] == [steps] * 3
    with loader.Loader(plan, 0, 1, workers=0) as batches:
        for _ in range(steps + 1):
            next(batches)
        state = batches.state_dict()
    with loader.Loader(plan, 0, 1, workers=0) as resumed:
        resumed.load_state_dict(state)
        assert epoch_digests(resumed, 3) == {1: whole[1][1:], 2: whole[2]}
