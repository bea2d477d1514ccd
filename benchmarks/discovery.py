"""`python -m benchmarks.discovery [OBJECTS] [--write]`: what discovery costs over so many objects in one place.

The place is synthetic: its keys are made up while they are listed, 1,000 a page, so that only what Python and polars
make of a listing is measured, and not a store. The root is real, on this disk. Ticks are those of the sensor, with its
own limits. --write puts the table into docs/benchmarks-pipeline.md.
"""

import argparse
import os
import resource
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

os.environ.setdefault("POLARS_MAX_THREADS", "2")

from assets.arrivals.batch_manifests import manifests
from assets.arrivals.progress import DEFAULT_BUDGET, TickDataset
from assets.arrivals.reconcile import reconcile
from assets.arrivals.tick import tick
from assets.sources import BatchLimits, Source
from loader.storage import ObjectInfo, Store, open_store

from . import sections

NOW_US = 1_900_000_000_000_000
SOURCE = Source(exclude=("*.tmp",))
_PER_PAGE = 1_000


class Made:
    """A store of n objects, and of objects put later, listed in key order."""

    url = "s3://made-up/raw"

    def __init__(self, n: int) -> None:
        self._n, self._more = n, dict[str, ObjectInfo]()

    def put(self, key: str) -> None:
        """One more, which sorts behind all others."""
        self._more[key] = ObjectInfo(key=key, nbytes=1_000_000, etag=f'"{key}"', modified_us=NOW_US)

    def list_from(self, prefix: str, start_after: str) -> Iterator[ObjectInfo]:
        first = int(start_after.split("/")[1][:9]) + 1 if start_after[:1].isdigit() else 0
        first = self._n if start_after[:1] == "z" else first
        for number in range(first, self._n):
            yield ObjectInfo(
                key=f"{number // 1000:06d}/{number:09d}.jpg",
                nbytes=1_000_000,
                etag=f'"{number * 0x9E3779B97F4A7C15 % 2**128:032x}"',
                modified_us=NOW_US - 10**12,
            )
        yield from (info for key, info in sorted(self._more.items()) if key > start_after)

    def list(self, prefix: str = "", start_after: str | None = None) -> Iterator[ObjectInfo]:
        return self.list_from(prefix, start_after or "")

    def head(self, key: str) -> ObjectInfo:
        raise NotImplementedError(key)


Row = tuple[str, int, float, float, float, int]
"""What, how often, wall and processor seconds of all, the longest, and the memory at most so far in MiB."""


def measured(what: str, steps: Iterator[Callable[[], object]]) -> Row:
    """Run all steps; the row is printed."""
    longest, count, start, used = 0.0, 0, time.perf_counter(), time.process_time()
    for step in steps:
        began = time.perf_counter()
        step()
        longest, count = max(longest, time.perf_counter() - began), count + 1
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    row = what, count, time.perf_counter() - start, time.process_time() - used, longest, memory
    print(
        f"{what:<50} {row[1]:4d} {row[2]:8.1f} s {row[3]:8.1f} s cpu {row[4]:7.2f} s {row[5]:6d} MiB",
        flush=True,
    )
    return row


def rows_of(n: int, store: Store) -> list[Row]:
    """The rows of the table."""
    place = Made(n)
    limits = BatchLimits()
    work = TickDataset(store=store, name="d", limits=limits, now_us=NOW_US)

    @contextmanager
    def opened(source: Source) -> Iterator[Any]:
        yield place

    def one() -> object:
        steps.append(tick(work, (SOURCE,), opened, DEFAULT_BUDGET)[0])
        return None

    steps: list[Any] = []

    def until_passed(passes: int) -> Iterator[Callable[[], object]]:
        while not steps or steps[-1].n_passes < passes:
            yield one

    rows = [measured("nothing batched yet", until_passed(1))]
    found = [item.key for manifest in manifests(store, "d") for item in manifest.objects]
    assert len(found) == len(set(found)) == n
    del found
    rows.append(measured("nothing new", until_passed(2)))
    place.put("z/1")
    rows.append(measured("one new object, at the end", until_passed(3)))
    rows.append(measured("reconcile by a listing", iter([lambda: reconcile(work, SOURCE, place)])))  # type: ignore[arg-type]
    return rows


def table(n: int, rows: list[Row]) -> str:
    """The section of the page."""
    budget, load = DEFAULT_BUDGET, os.getloadavg()[0]
    lines = [
        "# Discovery",
        "",
        f"Made by `python -m benchmarks.discovery {n} --write` on {os.cpu_count()} cores (load {load:.1f}): a listing",
        f"that costs nothing; batches of 4,096, ticks of {budget.max_listed:,} keys or {budget.max_s:.0f} s.",
        "",
        "| | processor s | longest tick, s | peak MiB |",
        "| --- | --- | --- | --- |",
    ]
    lines += [
        f"| {what} | {used:.1f} | {longest:.1f} | {memory:,} |" for what, _, _, used, longest, memory in rows
    ]
    lines += [
        "",
        f"A store that lists {_PER_PAGE:,} keys in 100 ms adds {budget.max_listed / _PER_PAGE / 10:.0f} s to a tick. "
        "Dagster ends a sensor's tick after 60 s.",
    ]
    return "\n".join(lines)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("objects", type=int, nargs="?", default=1_000_000)
    options.add_argument("--write", action="store_true")
    given = options.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = rows_of(given.objects, open_store(folder))
    if given.write:
        sections.write("benchmarks.discovery", table(given.objects, rows))


if __name__ == "__main__":
    main()
