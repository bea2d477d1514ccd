"""`python -m benchmarks.verified`: what `Root(verify="sha256")` costs a training, and the hashes of pages a publish.

Both kinds of reader take turns on samples in the page cache, with two threads: first epochs, each of a new root, in
which every page is hashed, for a second or more. Ratios are within a round, by processor seconds, which a busy machine
distorts less than the clock. The machine's own limit is what the default would be if hashlib
hashed the same bytes beside it. The table goes to docs/benchmarks.md.
"""

import argparse
import hashlib
import os
import platform
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from unittest import mock

import loader
from loader.dataset.shards.shard import PAGE_BYTES
from loader.native import PagedSha256

from . import sections
from .data import Data, make
from .page import shown
from .peers.penstock import FIELDS, prepare, write
from .throughput import say

WORK = {
    "JPEGs of 256 px, decoded": ("images", 64, True),
    "as bytes": ("images", 64, False),
    "latents, float16 [4, 64, 64]": ("latents", 64, True),
    "tokens, uint16 [2048]": ("tokens", 32, True),
}
"""What is made of which samples: their kind, the batch, whether they are decoded."""
SAMPLES = {"images": 8_000, "latents": 8_000, "tokens": 40_000}
WAYS = ("crc32c", "sha256")
AT_LEAST_S = 1.0
"""How long epochs are repeated."""
Spent = tuple[float, float]
"""Seconds an epoch, or a publish: by the clock, and of the processor."""


def main() -> int:
    options = argparse.ArgumentParser(prog="python -m benchmarks.verified", description=__doc__)
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--samples", type=int, default=None, help="of each kind")
    options.add_argument("--note", default="", help="a sentence for the page's head, about the machine")
    options.add_argument("--out", type=Path, help="write here, not to docs/benchmarks.md")
    given = options.parse_args()
    rows: dict[str, list[tuple[Spent, Spent]]] = {}
    limits: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as temporary:
        made = {kind: make(kind, Path(temporary, kind), given.samples or n) for kind, n in SAMPLES.items()}
        for kind, data in made.items():
            prepare(data, Path(temporary, f"{kind}-root"))
        for number in range(given.rounds + 1):  # the first one warms up
            for work in WORK:
                spent = {way: epochs(Path(temporary), work, way) for way in turned(number)}
                rows.setdefault(work, []).append((spent["crc32c"], spent["sha256"]))
                hashing = shard_bytes(Path(temporary, f"{WORK[work][0]}-root")) / hash_rate()
                default = spent["crc32c"][1]
                limits.setdefault(work, []).append(default / (default + hashing))
            for kind in ("images",):
                ways = {way: publish(Path(temporary), made[kind], way == "sha256") for way in turned(number)}
                rows.setdefault("a publish of the JPEGs, with hashes", []).append(
                    (ways["crc32c"], ways["sha256"])
                )
            say(f"round {number} of {given.rounds}")
    warm, limits = ({name: found[1:] for name, found in one.items()} for one in (rows, limits))
    sections.write("benchmarks.verified", page(warm, limits, given.rounds, given.note), given.out)
    return 0


def turned(number: int) -> tuple[str, ...]:
    """The ways, who is first by turns."""
    return WAYS[:: 1 if number % 2 else -1]


def epochs(folder: Path, work: str, way: str) -> Spent:
    """Return what a first epoch costs."""
    kind, batch, decode = WORK[work]
    first = list[Spent]()
    while sum(clock for clock, _ in first) < AT_LEAST_S:
        version = loader.Root(folder / f"{kind}-root", verify=way).open("bench@latest")  # type: ignore[arg-type]
        plan = loader.plan({"bench": version.select(*FIELDS[kind])}, seed=1, global_batch=batch)
        steps = len(version) // batch
        with loader.Loader(
            plan, 0, 1, framework="numpy", decode=decode, workers=2, executor="threads"
        ) as batches:

            def epoch(batches: loader.Loader = batches, steps: int = steps) -> None:
                for _ in range(steps):
                    next(batches)

            first.append(timed(epoch))
    return mean(first)


def mean(spent: Sequence[Spent]) -> Spent:
    clock, processor = (sum(column) / len(spent) for column in zip(*spent, strict=True))
    return clock, processor


def shard_bytes(root: Path) -> int:
    return sum(path.stat().st_size for path in root.rglob("*.tar"))


def hash_rate() -> float:
    """Bytes that one thread of hashlib hashes a second, in pages."""
    data, n = os.urandom(PAGE_BYTES), 2_000
    _, processor = timed(lambda: [hashlib.sha256(data).digest() for _ in range(n)])
    return n * PAGE_BYTES / processor


class WithoutPages:
    """A hash of all bytes alone."""

    def __init__(self, page_bytes: int) -> None:
        self._all = hashlib.sha256()

    def update(self, data: memoryview) -> bytes:
        self._all.update(data)
        return b""

    def digest(self) -> bytes:
        return self._all.digest()


def publish(folder: Path, data: Data, hashes: bool) -> Spent:
    """What it costs to write a dataset. Without hashes the index says that there are none."""
    hasher = PagedSha256 if hashes else WithoutPages
    hashing = mock.patch("loader.dataset.shards.shard.PagedSha256", hasher)
    with tempfile.TemporaryDirectory(dir=folder) as made, hashing:
        return timed(lambda: write(loader.Root(made), "bench", data, range(len(data))))


def timed(action: Callable[[], object]) -> Spent:
    start = time.perf_counter(), time.process_time()
    action()
    return time.perf_counter() - start[0], time.process_time() - start[1]


def has_sha() -> str:
    try:
        flags = Path("/proc/cpuinfo").read_text()
    except OSError:
        return "whose instructions are not known"
    return "with SHA instructions" if "sha_ni" in flags or " sha2 " in flags else "without SHA instructions"


def page(
    rows: dict[str, list[tuple[Spent, Spent]]], limits: dict[str, list[float]], rounds: int, note: str
) -> str:
    """The document."""
    lines = [
        "# Shards held against SHA-256",
        "",
        f"Made by `python -m benchmarks.verified --rounds {rounds}` on {platform.machine()}, {has_sha()}, "
        f"Python {platform.python_version()}, {os.cpu_count()} cores. {note}",
        "",
        'Speed of `Root(verify="sha256")`, times the default, by processor seconds: the first epoch hashes each page',
        "of 64 KiB once. At most: the default with `hashlib` beside it.",
        "",
        "| samples | speed | at most |",
        "| --- | --- | --- |",
    ]
    for name, found in rows.items():
        processor = [default / proved for (_, default), (_, proved) in found]
        limit = shown(limits[name]) if name in limits else ""
        lines.append(f"| {name} | {shown(processor)} | {limit} |")
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    raise SystemExit(main())
