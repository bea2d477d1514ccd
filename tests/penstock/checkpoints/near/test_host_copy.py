"""Copies of a state in host memory that stays.

Planted: new memory for each copy; a copy into memory of another size, type or name.
"""

import resource

import pytest
import torch

from penstock.checkpoints.near.host_copy import HostCopy
from tests.penstock.checkpoints.conftest import ranks

__all__ = ["ranks"]  # a fixture

PAGE_BYTES = resource.getpagesize()


def page_faults():
    return resource.getrusage(resource.RUSAGE_THREAD).ru_minflt


def test_second_copy_needs_no_new_memory():
    state = {"model": {"w": torch.zeros(2**22)}, "lr": 0.1}
    n_pages = state["model"]["w"].nbytes // PAGE_BYTES
    copy = HostCopy()
    copy.take(state)
    state["model"]["w"] += 1.0
    state["lr"] = 0.2
    before = page_faults()
    staged = copy.take(state)
    assert page_faults() - before < n_pages / 100
    state["model"]["w"] += 1.0
    assert torch.equal(staged["model"]["w"], torch.ones(2**22))
    assert staged["lr"] == 0.2


@pytest.mark.parametrize(
    "after",
    [
        {"w": torch.ones(5), "n": [1, torch.tensor(2)]},
        {"w": torch.ones(4, dtype=torch.float64) / 3, "n": [1, torch.tensor(2)]},
        {"v": torch.ones(4), "n": [1, torch.tensor(2)]},
        {"w": torch.ones(4), "n": [1, torch.tensor(2), {3, 4}]},
        {"w": torch.ones(4), "n": (1, torch.tensor(3))},
        {"w": torch.nn.Parameter(torch.ones(2, 2).T), "n": [None, torch.tensor(2)]},
    ],
)
def test_copy_of_a_state_that_changed_equals_the_state(after):
    copy = HostCopy()
    copy.take({"w": torch.zeros(4), "n": [1, torch.tensor(2)]})
    staged = copy.take(after)
    assert staged.keys() == after.keys()
    for name in after.keys() & {"w", "v"}:
        assert staged[name].dtype == after[name].dtype
        assert torch.equal(staged[name], after[name])
        assert staged[name] is not after[name]
    assert staged["n"][1:] == after["n"][1:]
    assert type(staged["n"]) is type(after["n"])


COPIED = {"in_place": True, "devices": ["cpu"], "equal": True, "sizes": [[64, 64], [64, 64]]}


def test_sharded_tensors_are_copied_into_the_same_memory(ranks):
    """Planted: a layout without shards, for which each copy takes new memory."""
    assert ranks(2, "copy_to_host") == COPIED


@pytest.mark.gpu
def test_tensors_of_a_gpu_are_copied_into_the_same_memory(ranks):
    assert ranks(1, "copy_to_host", device="cuda") == COPIED


def test_copies_of_a_scalar_follow_it():
    copy = HostCopy()
    step = torch.tensor(1.0)
    for number in (1.0, 2.0, 3.0):
        step.fill_(number)
        assert copy.take({"step": step})["step"].item() == number
