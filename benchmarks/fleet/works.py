"""Works of the benchmark. A node imports them by name."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from penstock.compute.work import Node, Work

UNIT_S = 0.001
AT_WORK = "at-work"
"""Name of a process that has begun a unit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Number:
    """A unit."""

    n: int


def wait(unit: Number, _: Node) -> Number:
    """Take a millisecond."""
    _say_at_work()
    time.sleep(UNIT_S)
    return unit


@cache
def _say_at_work() -> None:
    Path("/proc/self/comm").write_text(AT_WORK)


def wait_alone(n: int) -> int:
    """Take a millisecond, as a unit of the pool without a job."""
    time.sleep(UNIT_S)
    return n


def sleep(unit: Number, _: Node) -> Number:
    """Take a minute."""
    time.sleep(60)
    return unit


def _costing(
    name: str, seconds: float, function: Callable[[Number, Node], Number] = wait
) -> Work[Number, Number]:
    return Work(
        name=name,
        version="1",
        function=function,
        unit=Number,
        result=Number,
        timeout_s=120,
        cost_s=lambda _: seconds,
    )


SHORT = _costing("short", UNIT_S)
LONG = _costing("long", 300.0)
"""Each of its units is a block."""
MANY = _costing("many", 0.0)
"""Its blocks are of 256 units."""
ASLEEP = _costing("asleep", 300.0, sleep)
"""A job that does not end before it is cancelled."""
