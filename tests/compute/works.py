"""Works of the tests of jobs. A node imports them by name."""

import errno
import os
import signal
import socket
import time
from dataclasses import dataclass
from pathlib import Path

from loader.errors import Transient
from penstock.compute.work import Node, Resources, Work


@dataclass(frozen=True, slots=True, kw_only=True)
class Number:
    """A unit. does: how it ends; where: a folder in which it leaves a line per start."""

    n: int
    does: str = "square"
    where: str = ""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Square:
    """A result."""

    n: int
    square: int


def square(unit: Number, node: Node) -> Square:
    """Square a number, or end badly."""
    assert not list(node.scratch.iterdir())
    (node.scratch / "file").write_bytes(b"gone after the unit")
    if unit.where:
        with (Path(unit.where) / f"begun-{unit.n}").open("a") as file:
            file.write(f"{os.getpid()}\n")
    time.sleep(unit.seconds)
    if unit.does == "raise":
        raise ValueError(f"{unit.n} is odd in some way")
    if unit.does in ("hang", "sleep"):
        time.sleep(3600)
    if unit.does == "die":
        os.kill(os.getpid(), signal.SIGSEGV)
    if unit.does == "memory":
        raise MemoryError
    if unit.does == "kill the runner":
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(3600)
    if unit.does == "wait for the store" and not (Path(unit.where) / "open").exists():
        raise Transient("the store does not answer")
    if unit.does == "fill the disk":
        raise OSError(errno.ENOSPC, "No space left on device")
    if unit.does == "miss a file":
        Path("/no/such/file").read_bytes()
    if unit.does == "wrong type":
        return {"n": "text"}  # type: ignore[return-value]
    return Square(n=unit.n, square=unit.n**2)


def _cost_s(unit: Number) -> float:
    return 40.0 if unit.n else 500.0


def _limit_s(unit: Number) -> float:
    return 1.0 if unit.does == "hang" else 60.0


SQUARES = Work(
    name="squares",
    version="1",
    function=square,
    unit=Number,
    result=Square,
    timeout_s=_limit_s,
    cost_s=_cost_s,
    libraries=("numpy", "no-such-distribution"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """Where a unit ran."""

    place: str
    visible: str
    worker: str


def where(unit: Number, node: Node) -> Device:
    """Tell where it runs, after a while."""
    time.sleep(unit.seconds)
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    return Device(place=node.place, visible=visible, worker=f"{socket.gethostname()}:{os.getpid()}")


ON_GPUS = Work(
    name="on-gpus",
    version="1",
    function=where,
    unit=Number,
    result=Device,
    timeout_s=600,
    cost_s=_cost_s,
    resources=Resources(gpus=1),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A unit that names the run that submits it."""

    n: int
    run_id: str


def of_run(unit: Run, node: Node) -> Square:
    """Square a number."""
    return Square(n=unit.n, square=unit.n**2)


RUNS = Work(
    name="runs",
    version="1",
    function=of_run,
    unit=Run,
    result=Square,
    timeout_s=600,
    alike=lambda unit: Run(n=unit.n, run_id=""),
)
