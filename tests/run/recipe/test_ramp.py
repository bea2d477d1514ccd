"""A Loader over a plan whose global batch grows."""

from collections import Counter

import pytest

import loader
from loader.errors import InvalidRuntime
from tests.refusals import refusal


@pytest.fixture(scope="module")
def plan(versions):
    return loader.plan({"web": versions["web"].select("cls")}, seed=5, global_batch=[(0, 2), (3, 4), (5, 7)])


@pytest.mark.parametrize("workers", [0, 2])
def test_epochs_end_where_the_samples_do(plan, workers):
    """19 samples: 2 + 2 + 2 + 4 + 4 + 5 of 7."""
    with loader.Loader(plan, 0, 1, epochs=1, workers=workers, framework="numpy") as batches:
        assert len(batches) == 6
        made = list(batches)
    assert [len(batch) for batch in made] == [2, 2, 2, 4, 4, 7]
    assert made[-1].mask.tolist() == [True] * 5 + [False] * 2
    assert made[-1].weight == 5 / 7
    keys = Counter(key for batch in made for _, key in filter(None, batch.ids))
    assert len(keys) == 19
    assert set(keys.values()) == {1}


def test_stops_and_resumes(plan, properties):
    properties.resumes_exactly(
        plan, [(2, 3, False), (1, 2, True), (2, 4, False)], workers=2, framework="numpy"
    )


def test_world_that_does_not_fit_the_smallest_batch_is_refused(plan):
    with refusal(InvalidRuntime, what="world_size", given=3):
        loader.Loader(plan, 0, 3)
