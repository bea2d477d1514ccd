"""Arrays of a dataset in worker processes: equal to the caller's, and in memory once."""

import gc
import os
import signal
import weakref
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch

import loader
from loader.errors import InvalidRuntime
from loader.run.workers import sent_dataset
from tests.refusals import refusal
from tests.servers.processes import python

BASE = np.arange(6000, dtype=np.int32).reshape(60, 100)


class Marked(torch.Tensor):
    """A user's kind of tensor."""


def masked_array():
    return np.ma.masked_greater(BASE[:8], 400)


def map_file(folder, name, mode):
    """Return a mapping of a file that holds BASE."""
    path = folder / name
    BASE.tofile(path)
    return np.memmap(path, np.int32, mode, shape=BASE.shape)


@pytest.fixture(scope="module")
def values(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mapped")
    read_only = BASE.copy()
    read_only.flags.writeable = False
    private = map_file(folder, "private", "c")
    private[0, 0] = 7
    deleted = map_file(folder, "deleted", "r")
    (folder / "deleted").unlink()
    shared = {
        "contiguous": BASE.copy(),
        "fortran": np.asfortranarray(BASE),
        "every second row": BASE[::2],
        "backwards": BASE[::-1, ::-1],
        "column": np.repeat(BASE, 20, 0)[:, 0],
        "repeated": np.broadcast_to(np.arange(500), (70, 500)),
        "read-only": read_only,
        "structured": np.zeros(90, [("a", "<f8"), ("b", "S3")]),
        "dates": np.arange(900).astype("datetime64[s]"),
        "big-endian": BASE.astype(">i4"),
        "private mapping": private,
        "deleted file": deleted,
        "tensor": torch.from_numpy(BASE.copy()),
        "transposed tensor": torch.arange(900.0).reshape(30, 30).t(),
        "column of a tensor": torch.arange(9000.0).reshape(30, 300)[:, 3],
        "bfloat16": torch.arange(300).bfloat16(),
        "single value": torch.tensor(3.5),
        "parameter": torch.nn.Parameter(torch.arange(300.0)),
        "conjugated": torch.arange(300).to(torch.complex64).conj(),
    }
    by_path = {
        "mapped": map_file(folder, "mapped", "r"),
        "writable mapping": map_file(folder, "writable", "r+"),
        "part of a mapping": map_file(folder, "part", "r")[3:9, ::-2],
        "small view": map_file(folder, "small", "r")[1, :3],
        "array over a mapping": np.asarray(map_file(folder, "asarray", "r"))[1:],
    }
    copied = {
        "small": np.arange(3),
        "empty": np.empty((0, 9)),
        "without dimensions": np.array(3.0),
        "objects": np.array([1, "a", None], object),
        "record array": np.rec.fromarrays([BASE[:, 0], BASE[:, 1]], names="a,b"),
        "empty tensor": torch.empty(0, 3),
        "tuple": (BASE.copy(), torch.arange(300)),
        "table": pa.table({"a": BASE.reshape(-1)}),
    }
    return shared, by_path, copied


def read_batches(dataset, steps=1, batch=None, **options):
    global_batch = batch or len(dataset)
    plan = loader.plan({"photos": dataset}, seed=7, global_batch=global_batch)
    with loader.Loader(plan, 0, 1, steps=steps, **options) as batches:
        return list(batches)


def test_arrays_are_equal_in_a_worker_and_shared(datasets, values):
    shared, by_path, copied = values
    everything = shared | by_path | copied
    (batch,) = read_batches(datasets.Arrays(everything), workers=1)
    described = dict(zip(batch["name"], batch["description"], strict=True))
    assert described == {name: datasets.comparable_value(value) for name, value in everything.items()}
    is_shared = dict(zip(batch["name"], batch["shared"].tolist(), strict=True))
    assert {name for name, inside in is_shared.items() if inside} == set(shared)


def test_write_to_an_array_stays_in_its_process(datasets):
    dataset = datasets.Counting()
    batches = read_batches(loader.items(dataset, seeded=False), 4, 30, workers=2)
    for pid in {pid for batch in batches for pid in batch["pid"].tolist()}:
        counts = []
        for batch in batches:
            counts += batch["count"][batch["pid"] == pid].tolist()
        assert sorted(counts) == list(range(1, len(counts) + 1))
    for batch in batches:
        assert torch.equal(batch["count"], batch["seen"])  # views share memory
    assert dataset.counts[-1] == 0


def test_mapped_file_that_was_cut_is_named(datasets, tmp_path):
    dataset = datasets.Arrays({"mapped": map_file(tmp_path, "rows", "r")})
    os.truncate(tmp_path / "rows", 4096)
    with refusal(InvalidRuntime, what="dataset's array", where=f"{tmp_path}/rows", given=4096):
        read_batches(dataset, workers=1)


def memories():
    """Return the number of descriptors of startup messages in this process."""
    files = (f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd"))
    return sum("penstock-recipe" in os.readlink(name) for name in files if os.path.islink(name))


def test_nothing_is_left_of_killed_workers(datasets):
    before = memories()  # without a file in /dev/shm, where other processes have theirs
    items = loader.items(datasets.Counting(), seeded=False)
    plan = loader.plan({"photos": items}, seed=7, global_batch=10)
    with loader.Loader(plan, 0, 1, steps=6, workers=2) as batches:
        first = next(batches)
        os.kill(int(first["pid"][0]), signal.SIGKILL)
        assert len(list(batches)) == 5
        assert memories() == before + 1
    assert memories() == before


@pytest.fixture
def small_is_large(monkeypatch):
    monkeypatch.setattr(sent_dataset, "LEAST_BYTES", 2**19)


@pytest.mark.usefixtures("small_is_large")
def test_dataset_that_only_the_plan_has_lies_in_memory_once(datasets):
    dataset = datasets.Counting()
    reference = weakref.ref(dataset)
    plan = loader.plan({"photos": loader.items(dataset, seeded=False)}, seed=7, global_batch=10)
    del dataset
    before = memories()
    for _ in range(2):  # the second loader sends the workers' copy
        with loader.Loader(plan, 0, 1, steps=2, workers=1) as batches:
            assert len(list(batches)) == 2
        assert reference() is None
        gc.collect()
        assert memories() == before + 1
    with loader.Loader(plan, 0, 1, steps=2, workers=0) as batches:
        (pid,) = {pid for batch in batches for pid in batch["pid"].tolist()}
    assert pid == os.getpid()
    assert "Counting" in repr(plan.sources["photos"].view.source.dataset)
    del plan, batches
    gc.collect()
    assert memories() == before


@pytest.mark.usefixtures("small_is_large")
def test_dataset_that_the_script_has_too_stays_the_same_object(datasets):
    dataset = datasets.Counting()
    items = loader.items(dataset, seeded=False)
    read_batches(items, 1, 10, workers=1)
    read_batches(items, 1, 10, workers=0)
    assert dataset.counts[-1] == 10


WITHOUT_ROOM = """
import resource, sys
import numpy as np
import loader
sys.path.insert(0, sys.argv[1])
import own_datasets
resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, 2**20))
items = loader.items(own_datasets.Counting(mib=4), seeded=False)
plan = loader.plan({"photos": items}, seed=7, global_batch=10)
try:
    next(loader.Loader(plan, 0, 1, workers=1))
except OSError as error:
    print(error)
"""


def test_memory_without_room_says_what_to_do(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(WITHOUT_ROOM)
    done = python(script, Path(__file__).parent)
    assert done.stderr == ""
    assert "4 MiB of arrays cannot be written into memory that worker processes share" in done.stdout
    assert "raise the memory limit" in done.stdout
