"""`loader.on` and `on`: batches of a DataLoader, of a torch_dataset and of a Loader on a device."""

import threading

import pytest
import torch
from torch.utils.data import DataLoader

import loader
from loader.errors import InvalidRuntime
from tests.refusals import refusal
from tests.servers.patience import PATIENCE_S

STEPS = 9


@pytest.fixture(scope="module")
def plan(tmp_path_factory, samples):
    root = loader.Root(str(tmp_path_factory.mktemp("iterables") / "root"))
    return loader.plan({"photos": samples.write(root, "photos", range(50))}, seed=8, global_batch=8)


@pytest.fixture(scope="module")
def reference_batches(plan):
    with loader.Loader(plan, 0, 1, workers=0, steps=STEPS) as batches:
        return list(batches)


def check(got, wanted):
    got = list(got)
    assert [(one.step, one.ids, one.digest) for one in got] == [
        (one.step, one.ids, one.digest) for one in wanted
    ]
    for one, same in zip(got, wanted, strict=True):
        assert torch.equal(one["x.npy"], same["x.npy"])
        assert all(map(torch.equal, one["ragged.npy"], same["ragged.npy"]))
        assert one["txt"] == same["txt"]


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_of_a_dataloader_on_a_device(plan, reference_batches, delayed_copies, workers):
    dataset = loader.torch_dataset(plan, 0, 1, steps=STEPS)
    context = "forkserver" if workers else None
    batches = DataLoader(dataset, batch_size=None, num_workers=workers, multiprocessing_context=context)
    device = delayed_copies()
    on_device = loader.on(batches, device)
    check(on_device, reference_batches)
    assert device.closed.is_set()
    assert device.handed_by == [threading.current_thread()] * STEPS
    assert device.buffers, "its workers' memory is copied through the buffer"
    assert len(on_device) == STEPS
    assert loader.on(batches, "cpu") is not None
    if not workers:
        check(on_device, reference_batches)  # another pass
        dataset.load_state_dict(plan.state(4))
        check(loader.on(batches, "cpu"), reference_batches[4:])


def test_dataset_and_a_loader_on_a_device_keep_their_positions(plan, reference_batches, delayed_copies):
    dataset = loader.torch_dataset(plan, 0, 1, steps=STEPS)
    dataset.seek(2)
    for moved in (
        loader.on(dataset, delayed_copies()),
        loader.torch_dataset(plan, 0, 1, steps=STEPS, device=delayed_copies()),
    ):
        if moved.state_dict() != plan.state(2):
            moved.seek(2)
        batches = iter(moved)
        check([next(batches), next(batches)], reference_batches[2:4])
        assert moved.state_dict() == plan.state(4), "what lies ready does not count"
        check(batches, reference_batches[4:])
    with loader.Loader(plan, 0, 1, steps=STEPS) as batches:
        assert loader.on(batches, delayed_copies()) is batches
        check([next(batches)], reference_batches[:1])
        assert batches.state_dict() == plan.state(1)


def test_iteration_that_is_left_ends_its_thread(plan, delayed_copies):
    device = delayed_copies()
    batches = loader.on(DataLoader(loader.torch_dataset(plan, 0, 1), batch_size=None), device)
    for batch in batches:
        if batch.step == 3:
            break
    assert device.closed.wait(PATIENCE_S)


def test_other_values_than_batches_are_refused(plan, delayed_copies):
    with refusal(InvalidRuntime, what="batches", given="int"):
        list(loader.on([1, 2], delayed_copies()))


def test_worker_of_a_dataloader_refuses_a_device(plan):
    dataset = loader.torch_dataset(plan, 0, 1, steps=STEPS, device="cpu")
    batches = DataLoader(dataset, batch_size=None, num_workers=1, multiprocessing_context="forkserver")
    assert [batch.step for batch in batches] == list(range(STEPS))
    dataset._options["device"] = "cuda"  # as on a machine that has one
    with pytest.raises(InvalidRuntime, match=r"iterate over loader.on\(DataLoader\(...\), device\)"):
        list(batches)
