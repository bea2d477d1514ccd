"""Slices of a large version: lists of a tenth of its samples, saved and opened."""

import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

import loader
from loader.dataset.versions.version import Version

from ..contest import ROOT
from .facet_rows import make_wide
from .rows import Row

GOALS = {10_000: (10, 30), 1_000_000: (15, 300)}
"""Samples of the version -> ms of opening and of saving a list of a tenth of them."""
OPENINGS = 20
REASON = {"by": "benchmarks", "why": "to measure"}


def slices(root: Path, rounds: int, sizes: Sequence[int] = tuple(GOALS)) -> Iterator[Row]:
    """Rows of each size; `root` is not read, but the versions are kept beside it."""
    for n in sizes:
        yield from _sized(make_wide(root.parent, n), n, rounds)


def _sized(folder: Path, n: int, rounds: int) -> Iterator[Row]:
    saved: list[float] = []
    opened: list[float] = []
    grown: list[float] = []
    with loader.Root(folder) as root:
        version = root.open("wide@1")
        rng = np.random.default_rng(0)
        chosen = rng.choice(n, n // 10, replace=False)
        keys = version.keys(np.sort(chosen))
        root.save_slice("wide@1", "warm", keys[:10], **REASON)  # imports polars and opens the tables
        for number in range(rounds):
            name = f"tenth-{number}"
            begun = time.process_time()
            root.save_slice("wide@1", name, keys, **REASON)
            saved.append((time.process_time() - begun) * 1000)
            opened.append(_opening_ms(version, name))
            grown.append(_grown_mib(folder, n))
        stored = [info.key for info in root.store.list("slices/")]
        root.store.delete_many(stored)
    open_ms, save_ms = GOALS.get(n, (None, None))
    words = f"1e{round(np.log10(n // 10))} keys of 1e{round(np.log10(n))} samples"
    yield Row(what=f"open a slice of {words}: processor", values=opened, unit="ms", goal=open_ms, digits=0)
    yield Row(what="save it: processor", values=saved, unit="ms", goal=save_ms, digits=0)
    yield Row(what="memory that a save of all its samples adds", values=grown, unit="MiB", digits=0)


def _opening_ms(version: Version, name: str) -> float:
    begun = time.process_time()
    for _ in range(OPENINGS):
        version.slice(name)
    return (time.process_time() - begun) * 1000 / OPENINGS


_CHILD = """
import sys, loader, numpy, re
from pathlib import Path
def peak():
    return int(re.search(r"VmHWM:\\s*(\\d+)", Path("/proc/self/status").read_text())[1])
root = loader.Root(sys.argv[1])
root.save_slice("wide@1", "few", numpy.arange(10), by="benchmarks", why="to measure")
before = peak()
root.save_slice("wide@1", "all", numpy.arange(int(sys.argv[2])), by="benchmarks", why="to measure")
print((peak() - before) / 1024)
"""


def _grown_mib(folder: Path, n: int) -> float:
    """Return by how much a save of all samples raises the peak memory of a process of its own."""
    command = [sys.executable, "-c", _CHILD, str(folder), str(n)]
    answer = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    number = re.fullmatch(r"([\d.]+)\s*", answer.stdout)
    assert number is not None, answer.stdout
    return float(number[1])
