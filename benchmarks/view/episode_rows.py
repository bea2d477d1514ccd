"""An episode of an hour at 1 kHz with 64 dimensions (0.9 GB), as its page asks for it."""

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

import loader

from .browser import Viewer
from .rows import Row

HZ, SECONDS, DIMS = 1000, 3600, 64
_PAGE = "/v/hour/1/s/0"


def episode(root: Path, rounds: int, seconds: int = SECONDS) -> Iterator[Row]:
    """The page, its lanes, and moments of the cursor; `root` is not read."""
    page, lanes, zoomed, moments, size, peaks = [], [], [], [], [], []
    length_ns = seconds * 10**9
    with tempfile.TemporaryDirectory() as folder:
        with loader.Root(folder) as own, own.write("hour") as writer:
            rows = np.arange(seconds * HZ, dtype=np.int64)
            state = np.sin(rows[:, None] / (100 + np.arange(DIMS))).astype(np.float32)
            writer.add("episode", {"state.npy": state, "state.ns.npy": rows * (10**9 // HZ)})
        del state
        for _ in range(rounds):
            with Viewer(folder) as viewer:
                page.append(_spent(viewer, [_PAGE, f"{_PAGE}.json", f"{_PAGE}/moment?at=0"]))
                paths = [f"{_PAGE}/lane/state.npy?first={dim}&stop={dim + 8}" for dim in range(0, DIMS, 8)]
                lanes.append(_spent(viewer, paths))
                part = f"from={length_ns // 2}&to={length_ns // 2 + 10**9}"
                zoomed.append(_spent(viewer, [f"{one}&{part}" for one in paths]))
                size.append(len(viewer.get(paths[0])) / 1024)
                times = range(0, length_ns, length_ns // 20)
                moments += [_spent(viewer, [f"{_PAGE}/moment?at={at}"]) * 1000 for at in times]
                peaks.append(viewer.peak_mib()[0])
    yield Row(what="- an episode of an hour at 1 kHz, 64 dimensions: its page", values=page, unit="s")
    yield Row(what="- its 8 lanes, which read 0.9 GB once", values=lanes, unit="s", goal=1)
    yield Row(what="- the lanes of one second of it", values=zoomed, unit="s")
    yield Row(what="- a lane", values=size, unit="KiB", digits=0)
    yield Row(what="- the cursor moved", values=moments, unit="ms", goal=50, digits=1)
    yield Row(what="- memory of the server", values=peaks, unit="MiB", goal=500, digits=0)


def _spent(viewer: Viewer, paths: list[str]) -> float:
    start = time.perf_counter()
    viewer.get_all(paths)
    return time.perf_counter() - start
