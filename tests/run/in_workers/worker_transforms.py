"""Transforms and decoders that worker processes import by name."""

import ctypes
import json
import logging
import os
import signal
import sys
from dataclasses import dataclass

import numpy as np

from loader.errors import Throttled


def where(sample, rng):
    """What the process that runs this has imported; decoders of an earlier loader came from its fork server."""
    heavy = [name for name in ("torch", "dagster", "polars") if name in sys.modules]
    return {"pid": os.getpid(), "heavy": ",".join(heavy)}


EMPTY_PHOTO = np.zeros((224, 224, 3), np.uint8)


def draw_nothing(data, rng):
    """A decoder that costs nothing, and draws from no generator: what is left is the loader's own work."""
    return EMPTY_PHOTO


def noisy(sample, rng):
    return {"cls": sample["cls"], "noise": rng.random(3), "picture": rng.integers(0, 256, (80, 80), np.uint8)}


def various(sample, rng):
    """Values of every kind that a batch may hold; large arrays stacked, in lists, in odd layouts."""
    number = sample["cls"]
    side = 40 + number % 3
    return {
        "number": number,
        "float": number / 3,
        "flag": number % 2 == 0,
        "big": 2**70 + number,
        "text": "x" * number,
        "raw": bytes([number]) * 40_000,
        "nothing": None,
        "equal": np.full((128, 128), number, np.float32),
        "unequal": np.full((side, 500), number, np.int16),
        "turned": np.asfortranarray(np.arange(20_000, dtype=np.int32).reshape(100, 200) + number),
        "strided": np.arange(40_000, dtype=np.int64)[::2] + number,
        "foreign": np.arange(9000, dtype=">u2") + number % 7,
        "empty": np.zeros((0, 3), np.float32),
        "scalar": np.float16(number),
        "words": np.array(["a" * number, "b"]),
        "deep": {"list": [np.full(5000, number, np.int64), {"n": number}]},
    }


def tensors(sample, rng):
    import torch

    number = sample["cls"]
    return {
        "stacked": torch.full((50, 60), number, dtype=torch.float32),
        "half": torch.full((50, 200), number, dtype=torch.bfloat16),
        "unequal": torch.full((30 + number % 2, 400), number, dtype=torch.int64),
        "small": torch.tensor(number),
    }


def large(sample, rng):
    """64 KiB each."""
    return {"cls": sample["cls"], "x": np.full(2**14, sample["cls"], np.int32)}


def growing(sample, rng):
    """Larger the larger the number is: a batch hardly ever fits where the one before lay."""
    return {"cls": sample["cls"], "x": np.full((1 + sample["cls"] % 9, 9000), sample["cls"], np.int64)}


def log_sample(sample, rng, *, folder):
    """Leaves a file per sample that is begun."""
    with open(f"{folder}/{sample['cls']}", "w"):
        return {"cls": sample["cls"]}


def wait_gate(sample, rng, *, folder):
    """Says in the pipe `begun` that it is here, and waits until `gate` is written to, or for ever."""
    with open(f"{folder}/begun", "w") as begun:
        begun.write(f"{os.getpid()}\n")
    with open(f"{folder}/gate") as gate:
        gate.read(1)
    return {"cls": sample["cls"]}


def kill_worker(sample, rng, *, folder, number, times):
    """Kills its process at one sample, so many times."""
    if sample["cls"] == number:
        for time in range(times):
            try:
                os.close(os.open(f"{folder}/killed{time}", os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                continue
            os.kill(os.getpid(), signal.SIGKILL)
    return {"cls": sample["cls"]}


@dataclass(frozen=True)
class FailingDecoder:
    """Fails at one sample: the store's fault, the machine's, or the bytes'."""

    number: int
    kind: str

    def __call__(self, data, rng):
        if int(data) != self.number:
            return int(data)
        if self.kind == "throttled":
            error = Throttled("slow down, said https://example.org/")
            error.add_note("a note")
            raise error
        if self.kind == "memory":
            raise MemoryError("no room")
        raise ValueError("not a number")


def failing(sample, rng, *, number):
    if sample["cls"] == number:
        raise KeyError("inner")
    return sample


def raise_base_exception(sample, rng, *, number, kind):
    """Raises what is not an Exception: it comes over as it is, where it can be."""
    if sample["cls"] == number:
        raise {"awkward": AwkwardExit("one", "two"), "local": LocalExit("held"), "exit": SystemExit(3)}[kind]
    return sample


class AwkwardExit(BaseException):
    """Cannot be made again from what it is pickled to."""

    def __init__(self, one, two):
        super().__init__(f"{one} and {two}")


class LocalExit(BaseException):
    """Holds what cannot be pickled."""

    def __init__(self, text):
        super().__init__(text)
        self.held = lambda: None


def unsendable(sample, rng):
    return {"cls": sample["cls"], "bad": (lambda: None)}


def chatty(sample, rng):
    logging.getLogger("loader.chatty").info("sample %d", sample["cls"])
    return sample


def log_and_wait(sample, rng, *, folder, pipes, number):
    """`log_sample`, and at one sample `wait_gate`."""
    log_sample(sample, rng, folder=folder)
    return wait_gate(sample, rng, folder=pipes) if sample["cls"] == number else sample


class OnlyHere:
    """A transform that cannot be made again in a worker."""

    def __call__(self, sample, rng):
        return sample

    def __reduce__(self):
        return refuse, ()


def refuse():
    raise LookupError("this worker has no such thing")


@dataclass
class FailsOn:
    """Fails on the samples of one class."""

    cls: int

    def __call__(self, sample, rng):
        if sample["cls"] == self.cls:
            raise ValueError("as planned")
        return sample


def surroundings(sample, rng, folder):
    """Writes a variable of the environment, and a number that numpy's own generator draws."""
    path = f"{folder}/{os.getpid()}"
    if not os.path.exists(path):
        with open(path, "w") as file:
            json.dump({"SAID": os.environ["SAID"], "drawn": np.random.random()}, file)
    return sample


def deaf(sample, rng, folder):
    """Never returns, and lets no other thread run."""
    with open(f"{folder}/begun", "w") as begun:
        begun.write(f"{os.getpid()}\n")
    ctypes.PyDLL(None).sleep(600)


def nest_arrays(sample, rng):
    """Arrays and tensors of 16 KiB and more in every kind of container, now and then."""
    import torch

    number = sample["cls"]
    big = np.full(2**11, number) if number == 7 else number
    return {
        "x": np.full(4, number),
        "dict": {"a": [big], "b": (torch.full((2**11,), number),) if number == 7 else ()},
        "text": "x" * number,
        "day": np.datetime64("2026-01-01", "s"),
    }
