"""What a training script defines itself goes to worker processes by value, and its classes come back as they are."""

import functools
import logging
import sys
import threading

import numpy as np
import pytest

import loader
from loader.errors import Unpicklable
from loader.run.workers import startup_message
from tests.refusals import refusal
from tests.servers.processes import python

GUARDLESS = """
import enum, functools, struct, sys
from dataclasses import dataclass
import loader
import beside

print("ran", flush=True)

@dataclass
class Box:
    number: int
    def doubled(self):
        return 2 * self.number

class Colour(enum.Enum):
    RED = 1

class Bad(BaseException):
    pass  # (an Exception would come as a TransformFailed)

class Scale:
    def __init__(self, by):
        self.by = by
    def __call__(self, sample, rng):
        if sample["cls"] == FAILS:
            raise Bad(f"at {sample['cls']}")
        number = HEAD.unpack(HEAD.pack(sample["cls"]))[0]
        return {"x": self.by * offset(number), "box": Box(sample["cls"]), "colour": Colour.RED,
                "beside": beside.Named(sample["cls"])}

HEAD = struct.Struct("<I")
OFFSET, FAILS = 5, int(sys.argv[3])
@functools.lru_cache(maxsize=8)
def offset(number):
    return number + OFFSET

plan = loader.open_plan(loader.Root(sys.argv[1]), sys.argv[2])
def made(transform, **options):
    with loader.Loader(plan, 0, 1, transform=transform, framework="numpy", steps=3, **options) as batches:
        return [{name: list(values) for name, values in batch.items()} for batch in batches]

for transform in (Scale(3), lambda sample, rng: Scale(2)(sample, rng)):
    try:
        processes, threads = (made(transform, executor=one, workers=1) for one in ("processes", "threads"))
    except Bad as error:
        print("bad", error)
        break
    assert processes == threads
    batch = processes[0]
    assert all(type(box) is Box and box.doubled() == 2 * box.number for box in batch["box"])
    assert all(colour is Colour.RED for colour in batch["colour"])
    assert all(type(one) is beside.Named for one in batch["beside"])
    print("same", getattr(transform, "by", "lambda"))
print("cloudpickle" in sys.modules)
"""
BESIDE = """
class Named:
    def __init__(self, number):
        self.number = number
    def __eq__(self, other):
        return self.number == other.number
"""


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return loader.Root(str(tmp_path_factory.mktemp("by-value") / "root"))


@pytest.fixture(scope="module")
def plan(root, samples):
    version = samples.write(root, "photos", range(20), fields=("cls",))
    made = loader.plan({"photos": version}, seed=8, global_batch=5)
    made.save(root)
    return made


@pytest.mark.parametrize("fails", [False, True])
def test_script_without_a_main_guard_sends_its_own_code(root, plan, tmp_path, fails):
    """Workers do not run the script; a module beside it is imported by name."""
    number = int(plan.batch_ids(0)[0][1][-3:]) if fails else -1
    (tmp_path / "beside.py").write_text(BESIDE)
    script = tmp_path / "train.py"
    script.write_text(GUARDLESS)
    done = python(script, root.url, plan.hash, number)
    assert (done.returncode, done.stderr) == (0, "")
    made = [f"bad at {number}"] if fails else ["same 3", "same lambda"]
    assert done.stdout.splitlines() == ["ran", *made, "True"]


def closure(number):
    return lambda sample, rng: {"x": sample["cls"] + number}


@pytest.mark.parametrize("transform", [closure(4), functools.partial(closure(4))], ids=["closure", "partial"])
def test_closure_of_a_module_goes_by_value(plan, transform):
    def read_values(**options):
        with loader.Loader(
            plan, 0, 1, transform=transform, framework="numpy", steps=2, workers=1, **options
        ) as batches:
            return [batch["x"].tolist() for batch in batches]

    assert read_values(executor="processes") == read_values(executor="threads")


def test_code_with_a_name_needs_no_cloudpickle(plan, in_workers, monkeypatch):
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    with loader.Loader(
        plan, 0, 1, executor="processes", workers=1, transform=in_workers.noisy, steps=1
    ) as batches:
        assert len(list(batches)) == 1


@pytest.mark.parametrize("field", [None, "cls"])
def test_what_cannot_be_sent_is_named(plan, field):
    held = threading.Lock()

    def use_lock(value, rng):
        with held:
            return value

    options = {"transform": use_lock} if field is None else {"decode": {field: use_lock}}
    name = "transform" if field is None else "decode['cls']"
    with refusal(Unpicklable, what=name, given=use_lock):
        loader.Loader(plan, 0, 1, executor="processes", **options)
    with loader.Loader(plan, 0, 1, workers=1, **options) as batches:
        next(batches)
        assert batches.executor == "threads"


def test_large_capture_is_named_once(plan, caplog, monkeypatch):
    monkeypatch.setattr(startup_message, "CAPTURE_BYTES", 2**20)
    texts = {size: b"\1" * size for size in (2**19, 3 * 2**20)}

    def capture_warnings(size):
        caplog.clear()
        text = texts[size]
        with (
            caplog.at_level(logging.WARNING, "loader"),
            loader.Loader(
                plan,
                0,
                1,
                executor="processes",
                workers=2,
                transform=lambda sample, rng: {"x": len(text)},
                steps=1,
            ) as batches,
        ):
            assert next(batches)["x"].tolist() == [size] * 5
        return caplog.messages

    assert capture_warnings(2**19) == []
    (warning,) = capture_warnings(3 * 2**20)
    assert "transform = <function" in warning
    assert "holds 3 MiB, which each worker process gets a copy of" in warning


def test_large_array_of_a_transform_is_shared(plan, caplog, monkeypatch):
    monkeypatch.setattr(startup_message, "CAPTURE_BYTES", 2**20)
    array = np.ones(3 * 2**20, np.uint8)

    def transform(sample, rng):
        return {"x": int(array.sum())}

    with (
        caplog.at_level(logging.WARNING, "loader"),
        loader.Loader(plan, 0, 1, executor="processes", workers=1, transform=transform, steps=1) as batches,
    ):
        assert next(batches)["x"].tolist() == [3 * 2**20] * 5
    assert caplog.messages == []


@pytest.mark.gpu
def test_tensor_on_a_gpu_is_not_sent(plan):
    import torch

    held = torch.ones(3, device="cuda")
    with pytest.raises(Unpicklable, match="it holds a tensor on cuda:0"):
        loader.Loader(plan, 0, 1, executor="processes", transform=lambda sample, rng: {"x": held.sum()})
