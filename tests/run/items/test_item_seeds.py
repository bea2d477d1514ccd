"""Draws of items: the same wherever an item is made, and none of the training's."""

import random

import numpy as np
import pytest
import torch

from loader.run.items.global_generators import GENERATORS
from loader.run.items.item_seeds import ItemSeeds


class Drawing:
    """A dataset whose items draw from generators, and which counts its calls."""

    def __init__(self, *kinds, until=0):
        self.kinds = kinds
        self.until = until
        self.calls = 0

    def item(self, number):
        self.calls += 1
        draws = {
            "random": random.random,
            "numpy": lambda: float(np.random.rand()),
            "torch": lambda: float(torch.rand(())),
        }
        if number < self.until:
            return [number]
        return [number, *(draws[kind]() for kind in self.kinds)]


def seed_words(numbers):
    return [(number * 7919 + 1, number * 104729 + 3) for number in numbers]


def batch(seeds, dataset, numbers):
    return seeds.make(
        len(numbers),
        lambda: seed_words(numbers),
        lambda: [dataset.item(number) for number in numbers],
        lambda place: dataset.item(numbers[place]),
    )


KINDS = [("random",), ("numpy",), ("torch",), ("random", "numpy", "torch"), ("torch", "random")]


@pytest.mark.parametrize("kinds", KINDS)
def test_item_draws_the_same_in_any_batch_and_order(kinds):
    together = batch(ItemSeeds(), Drawing(*kinds), [0, 1, 2, 3, 4, 5])
    seeds = ItemSeeds()
    apart = [batch(seeds, Drawing(*kinds), [number])[0] for number in (5, 3, 1, 0, 2, 4)]
    assert sorted(apart) == together
    assert len({tuple(draws[1:]) for draws in together}) == 6


@pytest.mark.parametrize("kinds", [(), *KINDS])
def test_generators_of_the_training_are_left_alone(kinds):
    states = [generator.state() for generator in GENERATORS]
    seeds = ItemSeeds()
    for _ in range(2):
        batch(seeds, Drawing(*kinds), [0, 1, 2])
    assert all(generator.has_state(state) for generator, state in zip(GENERATORS, states, strict=True))


def test_generators_are_as_before_after_an_error():
    states = [generator.state() for generator in GENERATORS]

    def fail():
        random.random()
        raise KeyError("planted")

    with pytest.raises(KeyError):
        ItemSeeds().make(1, lambda: seed_words([0]), fail, lambda place: fail())
    assert all(generator.has_state(state) for generator, state in zip(GENERATORS, states, strict=True))


def test_dataset_that_draws_nothing_is_made_once():
    dataset = Drawing()
    seeds = ItemSeeds()
    batch(seeds, dataset, [0, 1, 2])
    batch(seeds, dataset, [3, 4])
    assert (dataset.calls, seeds.names) == (5, [])


def test_batch_is_made_again_once_items_draw():
    dataset = Drawing("random", "torch", until=3)
    seeds = ItemSeeds()
    first = batch(seeds, dataset, [0, 1, 2])
    assert (dataset.calls, seeds.names) == (3, [])
    late = batch(seeds, dataset, [3, 2])
    assert (dataset.calls, seeds.names) == (7, ["random", "torch"])
    batch(seeds, dataset, [4])
    assert dataset.calls == 8
    assert first + late == batch(ItemSeeds(), Drawing("random", "torch", until=3), [0, 1, 2, 3, 2])
