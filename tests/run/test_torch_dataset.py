"""`loader.torch_dataset` in a torch DataLoader: the Loader's batches, for any number of worker processes."""

import copy
import functools
import multiprocessing
import os
import pickle

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import loader
from loader.api.shared_start import SharedStart
from loader.errors import InvalidRuntime, PlanMismatch, Unpicklable
from tests.refusals import refusal

STEPS = 7


@pytest.fixture(scope="module")
def plan(tmp_path_factory, samples):
    root = loader.Root(str(tmp_path_factory.mktemp("torch") / "root"))
    photos = samples.write(root, "photos", range(30), part_samples=11)
    web = samples.write(root, "web", range(20))
    return loader.plan(
        {"photos": photos.select("cls", "x.npy", "txt"), "web": web.select("cls", "txt")},
        seed=8,
        global_batch=6,
    )


@pytest.fixture(scope="module")
def expected(plan):
    with loader.Loader(plan, 1, 2, steps=STEPS) as batches:
        return list(batches)


@pytest.fixture(scope="module")
def forkserver():
    """Starts processes that have imported torch already, which takes seconds, and are otherwise as new as spawned."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "loader.api.torch_iterable"])
    return context


def noisy(sample, rng, *, scale):
    return {"cls": sample["cls"], "noise": scale * rng.random()}


def check(got, expected):
    assert [type(batch) for batch in got] == [loader.Batch] * len(got)
    assert [batch.step for batch in got] == [batch.step for batch in expected]
    assert [batch.ids for batch in got] == [batch.ids for batch in expected]
    assert [batch.digest for batch in got] == [batch.digest for batch in expected]
    for batch, same in zip(got, expected, strict=True):
        assert isinstance(batch["cls"], torch.Tensor)
        assert torch.equal(batch["cls"], same["cls"])
        assert torch.equal(batch.mask, same.mask)
        assert batch["txt"] == same["txt"]
        assert batch.weight == same.weight


@pytest.mark.filterwarnings("ignore:This DataLoader will create 3 worker processes")  # on a small machine
@pytest.mark.parametrize("workers", [0, 1, 3])
def test_loaders_batches_in_order(plan, expected, workers, forkserver):
    dataset = loader.torch_dataset(plan, 1, 2, steps=STEPS)
    context = {0: None, 1: "spawn"}.get(workers, forkserver)
    check(
        list(DataLoader(dataset, batch_size=None, num_workers=workers, multiprocessing_context=context)),
        expected,
    )


@pytest.mark.gpu
@pytest.mark.parametrize("workers", [0, 2])
def test_dataloader_pins_whole_batches(plan, expected, workers, forkserver):
    got = list(
        DataLoader(
            loader.torch_dataset(plan, 1, 2, steps=STEPS),
            batch_size=None,
            num_workers=workers,
            multiprocessing_context=forkserver if workers else None,
            pin_memory=True,
        )
    )
    check(got, expected)
    for batch, same in zip(got, expected, strict=True):
        assert batch.mask.is_pinned()
        assert batch["cls"].is_pinned()
        assert torch.equal(batch.to("cuda", non_blocking=True)["cls"].cpu(), same["cls"])


def test_resuming_after_the_last_batch_used(plan, expected, forkserver):
    dataset = loader.torch_dataset(plan, 1, 2, steps=STEPS)
    for batch in DataLoader(dataset, batch_size=None):
        state = plan.state(batch.step + 1)
        if batch.step == 2:
            break
    resumed = loader.torch_dataset(plan, 1, 2, steps=STEPS)
    resumed.load_state_dict(state)
    check(
        list(DataLoader(resumed, batch_size=None, num_workers=2, multiprocessing_context=forkserver)),
        expected[3:],
    )
    resumed.seek(5)
    check(list(DataLoader(resumed, batch_size=None)), expected[5:])


def test_state_loaded_after_iter_moves_the_running_iterator(plan, expected):
    """As a Loader's, also between two batches."""
    for make in (
        lambda: loader.Loader(plan, 1, 2, steps=STEPS),
        lambda: loader.torch_dataset(plan, 1, 2, steps=STEPS),
    ):
        dataset = make()
        is_dataset = not isinstance(dataset, loader.Loader)
        iterator = iter(DataLoader(dataset, batch_size=None) if is_dataset else dataset)
        dataset.load_state_dict(plan.state(4))
        assert dataset.state_dict() == plan.state(4)
        check([next(iterator), next(iterator)], expected[4:6])
        dataset.load_state_dict(plan.state(1))
        check(list(iterator), expected[1:])


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_state_loaded_while_workers_iterate_is_refused(plan, expected, method, forkserver):
    context = forkserver if method == "forkserver" else multiprocessing.get_context(method)
    dataset = loader.torch_dataset(plan, 1, 2, steps=STEPS)
    options = {"batch_size": None, "num_workers": 2, "multiprocessing_context": context}
    iterator = iter(DataLoader(dataset, **options))
    check([next(iterator)], expected[:1])
    for call in (lambda: dataset.load_state_dict(plan.state(4)), lambda: dataset.seek(4)):
        with refusal(InvalidRuntime, what="step", where="torch_dataset", given=4):
            call()
    check(list(iterator), expected[1:])  # its workers have ended now
    dataset.load_state_dict(plan.state(4))
    check(list(DataLoader(dataset, **options)), expected[4:])


def test_state_loaded_before_a_worker_begins_reaches_it(plan, expected, monkeypatch):
    """Also if it was forked before."""
    gate, opened = os.pipe()
    begin = SharedStart.begin

    def begin_late(self):
        os.read(gate, 1)
        return begin(self)

    monkeypatch.setattr(SharedStart, "begin", begin_late)
    dataset = loader.torch_dataset(plan, 1, 2, steps=STEPS)
    context = multiprocessing.get_context("fork")
    iterator = iter(DataLoader(dataset, batch_size=None, num_workers=2, multiprocessing_context=context))
    dataset.load_state_dict(plan.state(4))
    os.write(opened, b"12")
    check(list(iterator), expected[4:])
    os.close(gate)
    os.close(opened)


def test_killed_worker_leaves_no_open_iteration(plan, expected):
    dataset = loader.torch_dataset(plan, 1, 2, steps=STEPS)
    context = multiprocessing.get_context("fork")
    iterator = iter(DataLoader(dataset, batch_size=None, num_workers=1, multiprocessing_context=context))
    check([next(iterator)], expected[:1])
    (worker,) = multiprocessing.active_children()
    worker.kill()
    worker.join()
    with pytest.raises(RuntimeError, match="DataLoader worker"):
        list(iterator)
    dataset.load_state_dict(plan.state(3))
    check(list(DataLoader(dataset, batch_size=None)), expected[3:])


def unpickled(dataset):
    return pickle.loads(pickle.dumps(dataset))  # noqa: S301


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, unpickled])
def test_copy_has_a_position_of_its_own(plan, expected, copied):
    dataset = loader.torch_dataset(plan, 1, 2, steps=STEPS)
    dataset.seek(2)
    other = copied(dataset)
    assert other.state_dict() == plan.state(2)
    other.seek(5)
    check(list(dataset), expected[2:])
    check(list(other), expected[5:])


def test_position_of_the_dataset_itself(plan, expected):
    dataset = loader.torch_dataset(plan, 1, 2, steps=STEPS)
    assert dataset.state_dict() == plan.state(0)
    iterator = iter(dataset)
    check([next(iterator), next(iterator)], expected[:2])
    assert dataset.state_dict() == plan.state(2)
    other = loader.torch_dataset(plan, 1, 2, steps=STEPS)
    other.load_state_dict(dataset.state_dict())
    assert other.state_dict() == plan.state(2)
    check(list(other), expected[2:])
    check(list(iter(dataset)), expected)


@pytest.mark.parametrize("n_workers", [1, 2, 3])
def test_each_workers_own_state(plan, expected, monkeypatch, n_workers):
    """As a stateful DataLoader keeps it: one state per worker, taken before or after its first batch."""

    def in_worker(number):
        info = torch.utils.data._utils.worker.WorkerInfo(
            id=number, num_workers=n_workers, seed=0, dataset=None
        )
        monkeypatch.setattr(torch.utils.data._utils.worker, "_worker_info", info)

    for taken in range(5):
        states = []
        for number in range(n_workers):
            in_worker(number)
            own = loader.torch_dataset(plan, 1, 2, steps=STEPS)
            iterator = iter(own)
            for _ in range(len(range(number, taken, n_workers))):
                next(iterator)
            states.append(own.state_dict())
            iterator.close()
        rest = []
        for number, state in enumerate(states):
            in_worker(number)
            own = loader.torch_dataset(plan, 1, 2, steps=STEPS)
            own.load_state_dict(state)
            assert own.state_dict() == state
            rest.extend(own)
        check(sorted(rest, key=lambda batch: batch.step), expected[taken:])


def test_state_of_another_plan(plan):
    other = loader.plan({"photos": plan.sources["photos"].view}, seed=9, global_batch=6)
    with refusal(PlanMismatch, what="state", where="step 3", given=["seed", "source 'web'", "segments[0]"]):
        loader.torch_dataset(plan, 0, 1).load_state_dict(other.state(3))


def test_transform_that_can_be_sent(plan):
    transform = functools.partial(noisy, scale=2.0)
    with loader.Loader(plan, 0, 1, steps=2, transform=transform) as batches:
        expected = [batch["noise"].tolist() for batch in batches]
    # (A class or function of this file cannot be sent: its module is not importable by name elsewhere.)
    dataset = loader.torch_dataset(plan, 0, 1, steps=2, transform=transform)
    assert [batch["noise"].tolist() for batch in DataLoader(dataset, batch_size=None)] == expected


@pytest.mark.parametrize(
    "option",
    [
        {"transform": lambda sample, rng: sample},
        {"decode": {"cls": lambda data, rng: 1}},
    ],
)
def test_lambda_cannot_be_sent_to_a_process(plan, option):
    ((name, value),) = option.items()
    dataset = loader.torch_dataset(plan, 0, 1, steps=1, **option)
    assert len(list(DataLoader(dataset, batch_size=None))) == 1
    processes = DataLoader(dataset, batch_size=None, num_workers=1, multiprocessing_context="spawn")
    with refusal(Unpicklable, what=name, given=value):
        iter(processes)


def test_forked_workers_may_read_a_disk_with_any_transform(plan, expected):
    dataset = loader.torch_dataset(plan, 1, 2, steps=STEPS, transform=lambda sample, rng: sample)
    got = list(DataLoader(dataset, batch_size=None, num_workers=2, multiprocessing_context="fork"))
    check(got, expected)


def test_options_are_checked_when_the_dataset_is_made(plan):
    with refusal(InvalidRuntime, what="rank", given=2):
        loader.torch_dataset(plan, 2, 2)
    with refusal(InvalidRuntime, what="framework", where="torch_dataset", given="jax"):
        loader.torch_dataset(plan, 0, 1, framework="jax")


def test_executor_without_workers_is_refused_as_by_a_loader(plan):
    """In a DataLoader's worker its own workers are the processes."""
    dataset = loader.torch_dataset(plan, 0, 1, workers=0, executor="processes")
    with refusal(InvalidRuntime, what="workers", given=0):
        next(iter(dataset))


def test_environment_is_read_where_the_dataset_is_made(plan, expected, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    dataset = loader.torch_dataset(plan, steps=STEPS)
    monkeypatch.setenv("RANK", "0")
    check(list(DataLoader(dataset, batch_size=None)), expected)


def test_numpy_batches_stay_numpy(plan):
    dataset = loader.torch_dataset(plan, 0, 1, steps=1, framework="numpy")
    (batch,) = DataLoader(dataset, batch_size=None)
    assert isinstance(batch["cls"], np.ndarray)
