"""Batches on an NVIDIA GPU: `pytest -m gpu tests/run/device`, half a minute on one."""

import os
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import loader
from loader.errors import InvalidRuntime
from loader.run.device.torch_copies import CudaCopies, CudaCopy
from tests.servers.processes import python

pytestmark = pytest.mark.gpu

PROCESSES = {"executor": "processes", "workers": 2}
TURN = 20_000_000
"""Cycles that a stream is kept busy: some 10 ms."""
STEPS = 30


@pytest.fixture(scope="module")
def plan(tmp_path_factory, samples):
    root = loader.Root(str(tmp_path_factory.mktemp("gpu") / "root"))
    version = samples.write(root, "photos", range(50), part_samples=11, fields=("cls",))
    return loader.plan({"photos": version}, seed=8, global_batch=8)


class Behind(CudaCopies):
    """The stream of copies is busy before each batch, so that a copy begins long after it was asked for."""

    waits = True

    def __init__(self):
        super().__init__(torch.device("cuda", 0))
        self.sources, self.threads, self.registered, self.unregistered = [], set(), {}, []

    def copy(self, batch):
        torch.cuda._sleep(TURN)
        return super().copy(batch)

    def start(self, tensor):
        self.sources.append(tensor.is_pinned())
        self.threads.add(threading.current_thread())
        return super().start(tensor)

    def started(self, tensors):
        copy = super().started(tensors)
        if not self.waits:
            copy.wait = lambda: None
        return copy

    def register(self, address, nbytes):
        super().register(address, nbytes)
        self.registered[address] = nbytes

    def unregister(self, address):
        super().unregister(address)
        self.unregistered.append(address)


def differing(got, wanted):
    """Return the steps whose values are not those of the host."""
    found = []
    for batch, same in zip(got, wanted, strict=True):
        assert (batch.step, batch.ids, batch.digest) == (same.step, same.ids, same.digest)
        for name in same:
            column, other = batch[name], same[name]
            for tensor, array in (
                zip(column, other, strict=True) if isinstance(other, list) else [(column, other)]
            ):
                if torch.is_tensor(array):
                    assert tensor.is_cuda
                    if not torch.equal(tensor.cpu(), array):
                        found.append((batch.step, name))
                elif isinstance(array, np.ndarray):
                    assert np.array_equal(tensor, array)
    return found


def host(plan, transform, **options):
    with loader.Loader(plan, 0, 1, workers=0, transform=transform, steps=STEPS, **options) as batches:
        return list(batches)


@pytest.mark.parametrize("how", [PROCESSES, {"executor": "threads", "workers": 2}, {"workers": 0}])
@pytest.mark.parametrize("transform", ["large", "various", "tensors"])
def test_batches_are_those_of_the_host(plan, in_workers, how, transform):
    transform = getattr(in_workers, transform)
    options = {"transform": transform, "steps": STEPS, **how}
    with loader.Loader(plan, 0, 1, device="cuda", **options) as batches:
        assert differing(batches, host(plan, transform)) == []
    with loader.Loader(plan, 0, 1, device=torch.device("cuda", 0), micro_batch=3, **options) as batches:
        assert differing(batches, host(plan, transform, micro_batch=3)) == []


def test_segments_are_page_locked_once_and_return_after_their_copy(plan, in_workers):
    device = Behind()
    options = {"transform": in_workers.large, "steps": STEPS, "prefetch": 0}
    with loader.Loader(plan, 0, 1, device=device, **PROCESSES, **options) as batches:
        assert differing(list(batches), host(plan, in_workers.large)) == []
    assert all(device.sources), "everything is read from page-locked memory"
    assert 0 < len(device.registered) == len(device.unregistered) < STEPS
    assert threading.main_thread() not in device.threads


def test_segment_that_returned_before_its_copy_would_be_seen(plan, in_workers):
    """The same, with the bug planted: the memory holds another batch when the GPU reads it."""
    device = Behind()
    device.waits = False
    options = {"transform": in_workers.large, "steps": STEPS, "prefetch": 0}
    with loader.Loader(plan, 0, 1, device=device, **PROCESSES, **options) as batches:
        got = list(batches)
        torch.cuda.synchronize()
    assert differing(got, host(plan, in_workers.large)), (
        "the copies of this test are too early to see anything"
    )


@pytest.mark.parametrize("records", [True, False])
def test_memory_that_the_training_drops_serves_again_after_its_work(plan, in_workers, monkeypatch, records):
    """The training's stream is behind, and each batch is let go of at once. Without `record_stream` it is seen."""
    if not records:

        def hand_over(self):
            torch.cuda.current_stream(self._device).wait_event(self._event)
            self._tensors = []

        monkeypatch.setattr(CudaCopy, "hand_over", hand_over)
    sums = []
    with loader.Loader(
        plan, 0, 1, device="cuda", transform=in_workers.large, steps=STEPS, **PROCESSES
    ) as batches:
        for batch in batches:
            torch.cuda._sleep(4 * TURN)
            sums.append((batch["x"].double().mean(1), batch.ids))
            del batch
    wrong = [ids for got, ids in sums if got.tolist() != [int(key[-3:]) for _, key in ids]]
    assert bool(wrong) != records


def test_trainings_stream_waits_for_the_copy(plan, in_workers):
    stream = torch.cuda.Stream()
    with loader.Loader(plan, 0, 1, device=Behind(), transform=in_workers.large, steps=STEPS) as batches:
        got = []
        for number, batch in enumerate(batches):
            with torch.cuda.stream(stream if number % 2 else torch.cuda.current_stream()):
                pass
            got.append((batch["x"] + 0, batch.ids))
        for x, ids in got:
            assert x.amax(1).tolist() == x.amin(1).tolist() == [int(key[-3:]) for _, key in ids]


def test_memory_that_cannot_be_page_locked_twice_is_copied_through_the_buffer(plan, in_workers, caplog):
    class Refusing(Behind):
        def register(self, address, nbytes):
            super().register(address, nbytes)
            super().register(address, nbytes)  # cudaErrorHostMemoryAlreadyRegistered, from the driver itself

    device = Refusing()
    options = {"transform": in_workers.large, "steps": STEPS}
    with loader.Loader(plan, 0, 1, device=device, **PROCESSES, **options) as batches:
        assert differing(batches, host(plan, in_workers.large)) == []
    assert all(device.sources)
    assert [record.message for record in caplog.records if "cannot be page-locked" in record.message]
    assert torch.ones(3, device="cuda").sum().item() == 3, "no error is left behind"
    for address in device.registered:
        device.unregister(address)


def test_gpu_that_is_not_there_is_refused(plan):
    count = torch.cuda.device_count()
    with pytest.raises(InvalidRuntime, match=f"device = 'cuda:{count}'; this process sees {count} of them"):
        loader.Loader(plan, 0, 1, device=f"cuda:{count}")


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_of_a_dataloader(plan, workers):
    dataset = loader.torch_dataset(plan, 0, 1, steps=STEPS)
    context = "spawn" if workers else None
    batches = DataLoader(dataset, batch_size=None, num_workers=workers, multiprocessing_context=context)
    assert differing(loader.on(batches, "cuda"), host(plan, None)) == []
    assert differing(dataset.on("cuda"), host(plan, None)) == []


SCRIPT = """
import os, sys, loader
plan = loader.plan({"photos": loader.Root(sys.argv[1]).open("photos@1")}, seed=8, global_batch=8)
batches = loader.Loader(plan, 0, 1, device="cuda", executor="processes", workers=1)
for _ in range(5):
    total = next(batches)["cls"].sum().item()
child = os.fork()  # it has the batches, and no threads
if not child:
    batches.close()
    del batches
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
print("here", flush=True)
"""


def test_training_may_end_and_fork_without_closing(plan):
    url = plan.sources["photos"].view.version.store.url
    folders = [str(Path(__file__).parents[3]), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, folders))}
    done = python("-W", "ignore", "-c", SCRIPT, url, env=environment)
    assert (done.returncode, done.stdout, done.stderr) == (0, "here\n", "")
