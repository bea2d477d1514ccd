"""One way of one library to serve samples, alone in a process of that library's own environment.

    python -m benchmarks.contestant NAME        a module of benchmarks/peers

Requests come as lines of JSON on stdin, `{"do": ..., ...}`; each is answered by one line of JSON on stdout, which holds
"error" where it went wrong. Whatever the library prints goes to stderr.

A module of benchmarks/peers has VERSION, `prepare(data, folder)`, which writes the library's own format, and ROWS:
row -> {label: way}. A way is a function of a `Task`; it gives an endless iterator of batches (a list of buffers, an
array or tensor, or a tuple of those), or, for a bare loop, an object with `rate(seconds)`.
"""

import importlib
import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import clips, meter, photos
from .data import GROUPS, Data, checksums


@dataclass(frozen=True, kw_only=True)
class Task:
    """What is to be served: `folder` holds the library's own format, `scratch` is this contestant's own.

    crop: the library by which decoded photos are cropped at random, or "" (photos.py). store: URL of an S3-compatible
    server whose bucket `BUCKET` holds `folder` under its name, or "". state: where to go on, as the library's own state
    says it (`state(task, samples)` of its module), or None.
    """

    data: Data
    folder: Path
    scratch: Path
    batch: int
    decode: bool = False
    crop: str = ""
    workers: int = 2
    store: str = ""
    state: Any = None

    @classmethod
    def of(cls, given: dict[str, Any]) -> "Task":
        data = Data(given.pop("kind"), Path(given.pop("data")))
        return cls(data=data, folder=Path(given.pop("folder")), scratch=Path(given.pop("scratch")), **given)

    @property
    def decoder(self) -> Callable[..., Any]:
        """JPEG -> the photo that a batch holds; a function by name, for worker processes."""
        return photos.CROPS[self.crop] if self.crop else photos.decoded

    def finder(self) -> Callable[[Any], list[int | None]]:
        """Return a function: batch -> the samples that it was made of, None for what is not as written."""
        if self.crop:
            return photos.Crops(self.data, self.crop)
        if self.data.kind == "clips":
            return clips.Windows(self.data)
        known = self.data.samples("decoded" if self.decode else "stored")
        return lambda batch: [known.get(one) for one in checksums(batch)]


def size(batch: Any) -> int:
    return len(batch[0] if isinstance(batch, tuple) else batch)


class Contestant:
    """Answers requests; `peer` is a module of benchmarks/peers."""

    def __init__(self, peer: Any) -> None:
        self.peer = peer
        self.task: Task | None = None
        self.batches: Any = None
        self.opened_s = 0.0

    def hello(self) -> dict[str, Any]:
        rows = {row: list(ways) for row, ways in self.peer.ROWS.items()}
        return {"version": self.peer.VERSION, "rows": rows}

    def prepare(self, kind: str, data: str, folder: str) -> dict[str, Any]:
        start = time.perf_counter()
        self.peer.prepare(Data(kind, Path(data)), Path(folder))
        return {"seconds": time.perf_counter() - start}

    def open(self, row: str, label: str, task: dict[str, Any]) -> dict[str, Any]:
        """Begin to serve; nothing is waited for. Imports are behind us: what follows is the start of an epoch."""
        self.task = Task.of(task)
        self.opened_s = time.perf_counter()
        self.batches = self.peer.ROWS[row][label](self.task)
        return {}

    def state(self, samples: int, task: dict[str, Any]) -> dict[str, Any]:
        """The library's own state after so many samples of an epoch."""
        return {"state": self.peer.state(Task.of(task), samples)}

    def turn(self, warm_s: float, seconds: float) -> dict[str, Any]:
        """Take batches for a time, after some that empty what was made ahead while others had their turn."""
        if hasattr(self.batches, "rate"):
            before = meter.cpu_times_s(os.getpid())
            samples, took = self.batches.rate(seconds)
        else:
            self._take(warm_s)
            before = meter.cpu_times_s(os.getpid())
            samples, took = self._take(seconds)
        user_s, kernel_s = (b - a for a, b in zip(before, meter.cpu_times_s(os.getpid()), strict=True))
        return {
            "samples": samples,
            "seconds": took,
            "cpu_s": user_s + kernel_s,
            "kernel_s": kernel_s,
            "memory_bytes": meter.memory_bytes(os.getpid()),
        }

    def first(self) -> dict[str, Any]:
        """Seconds from `open` to the first batch; nothing for a bare loop."""
        if hasattr(self.batches, "rate"):
            return {}
        next(self.batches)
        return {"first_s": time.perf_counter() - self.opened_s}

    def settled(self) -> dict[str, Any]:
        """What the library chose by itself, in words; "" for one that chooses nothing."""
        return {"choice": self.peer.choice() if hasattr(self.peer, "choice") else ""}

    def race(self, samples: int, limit_s: float) -> dict[str, Any]:
        """From nothing to the first batch, and on to so many samples or seconds; call it right after `open`."""
        cpu, start = meter.cpu_s(os.getpid()), time.perf_counter()
        marks = []
        done = 0
        while done < samples and (not marks or marks[-1][1] < limit_s):
            done += size(next(self.batches))
            marks.append((done, time.perf_counter() - start))
        half, half_s = next(mark for mark in marks if mark[0] >= done / 2)
        return {
            "samples": done,
            "seconds": marks[-1][1],
            "first_s": marks[0][1],
            "steady": (done - half) / max(1e-9, marks[-1][1] - half_s),
            "cpu_s": meter.cpu_s(os.getpid()) - cpu,
            "memory_bytes": meter.memory_bytes(os.getpid()),
        }

    def check(self, n: int) -> dict[str, Any]:
        """Of the next n batches: in how many twentieths of the data set a batch's samples lie, on average, and how
        many samples are not what they should be."""
        assert self.task is not None
        find = self.batches.find if hasattr(self.batches, "find") else self.task.finder()
        per_group, spread, wrong = max(1, len(self.task.data) // GROUPS), [], 0
        for _ in range(n):
            seen = find(next(self.batches))
            wrong += seen.count(None)
            spread.append(len({one // per_group for one in seen if one is not None}))
        return {"groups": sum(spread) / n, "wrong": wrong}

    def close(self) -> dict[str, Any]:
        if isinstance(self.batches, Iterator) and hasattr(self.batches, "close"):
            self.batches.close()
        self.batches = None
        return {}

    def _take(self, seconds: float) -> tuple[int, float]:
        done, start = 0, time.perf_counter()
        while True:
            done += size(next(self.batches))
            took = time.perf_counter() - start
            if took >= seconds:
                return done, took


def answer(contestant: Any, request: dict[str, Any]) -> dict[str, Any]:
    try:
        reply: dict[str, Any] = getattr(contestant, request.pop("do"))(**request)
    except BaseException as error:  # noqa: BLE001 - a library's failure is a row of the page, not the end of the run
        traceback.print_exc()
        return {"error": f"{type(error).__name__}: {error}".splitlines()[0][:300]}
    return reply


def serve(make: Callable[[], Any]) -> None:
    """Answer requests until stdin ends, each by the method of what `make` gives that has its name."""
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    try:
        contestant = make()
    except BaseException as error:  # noqa: BLE001 - as above: it does not import
        traceback.print_exc()
        contestant, broken = None, {"error": f"{type(error).__name__}: {error}".splitlines()[0][:300]}
    for line in sys.stdin:
        reply = answer(contestant, json.loads(line)) if contestant else broken
        print(json.dumps(reply), file=replies, flush=True)


if __name__ == "__main__":
    serve(lambda: Contestant(importlib.import_module(f"benchmarks.peers.{sys.argv[1]}")))
