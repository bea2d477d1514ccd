"""A work whose blocks write a part each, for the tests of jobs. A node imports it by name."""

import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loader.dataset.writing.single_part import write_part
from loader.errors import Transient
from penstock.compute.pool import Outcome
from penstock.compute.work import Block, Node, Work


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """A unit. does: how it, or its block, ends; where: a folder in which it leaves a line per start."""

    root: str
    n: int
    does: str = "write"
    where: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """A result."""

    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """The part of a block: its JSON."""

    part: dict[str, Any]


def write(unit: Text, node: Node) -> Written:
    """Leave a text in the unit's folder, or end badly behind it."""
    if unit.where:
        with (Path(unit.where) / f"begun-{unit.n}").open("a") as file:
            file.write(f"{os.getpid()}\n")
    (node.scratch / "text").write_text(f"text {unit.n} " * (unit.n + 1))
    if unit.does == "raise":
        raise ValueError(f"{unit.n} is odd in some way")
    if unit.does == "kill the runner":
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(3600)
    return Written(name="text")


def write_block(block: Block[Text], outcomes: Sequence[Outcome[Written]], node: Node) -> Part:
    """Write the texts of the units that have one as a part."""
    told = {unit.does for unit in block.units}
    if "finish badly" in told:
        raise ValueError("no part comes of it")
    if "wait for the store" in told and not (Path(block.units[0].where) / "open").exists():
        raise Transient("the store does not answer")
    samples = []
    for unit, folder, outcome in zip(block.units, block.folders, outcomes, strict=True):
        if outcome.value is None:
            assert not (folder / "text").exists() or unit.does == "kill the runner"
        else:
            samples.append((f"text/{unit.n}", {"txt": (folder / outcome.value.name).read_bytes()}))
    store = node.open(block.units[0].root)
    return Part(part=write_part(store, "texts", samples, name=f"{block.number:05d}").to_json())


def _cost_s(unit: Text) -> float:
    return 40.0 if unit.n else 500.0


TEXTS = Work(
    name="texts",
    version="1",
    function=write,
    unit=Text,
    result=Written,
    timeout_s=600,
    cost_s=_cost_s,
    finish=write_block,
    part=Part,
)
