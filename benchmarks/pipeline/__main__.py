"""`python -m benchmarks.pipeline`: what the pipeline costs in Dagster, into its section of docs/benchmarks-pipeline.md.

Batches through all stages as runs of this process, beside the same stages without Dagster; then a root and an instance
with 1, 100, 1,000 and 5,000 batches: ticks of the sensors, a release, what the pages ask, and the pages in Chromium.
Needs what scripts/install-servers.sh brings. On tmpfs where there is one: what is measured is not the disk. With
--postgres Dagster's storage is a Postgres that is started for it, on the disk, with the settings of deploy/production.
"""

import argparse
import os
import platform
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import dagster as dg

from penstock.progress import progress
from tests.servers.postgres import postgres

from .. import sections
from .page import LATENCY_S, Measured, section
from .runs import POSTGRES, batches
from .servers import served
from .ticks import cost, refresh, release, tick

SIZES = (1, 100, 1_000, 5_000)
SERVED_FROM = 100


def measured(folder: Path, sizes: tuple[int, ...], postgres_url: str) -> list[Measured]:
    """One instance and root that grow from size to size."""
    found = []
    with served(folder, postgres_url) as (world, servers):
        for n in sizes:
            for _ in progress(world.grow(n), f"{n} batches", total=n - len(world.keys)):
                pass
            steps: dict[str, Callable[[], Any]] = {
                "discovery, first": tick(world, "discovery"),
                "discovery": tick(world, "discovery"),
                "watch, first": tick(world, "watch"),
                "watch": tick(world, "watch"),
                "refresh, first": refresh(world),
                "refresh": refresh(world),
                "release": release(world),
                "release, far": release(world, LATENCY_S),
            }
            costs = {name: cost(world, step) for name, step in progress(steps.items(), f"ticks at {n}")}
            looked = servers.look(n) if n >= SERVED_FROM else None
            found.append(Measured(n=n, costs=costs, served=looked))
            print(found[-1], flush=True)
    return found


@contextmanager
def _postgres() -> Iterator[str]:
    """The URL of a fresh one, which is in the environment as deploy/production wants it."""
    with postgres() as server:
        os.environ[POSTGRES] = server.url
        yield server.url


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    options.add_argument("--batches", type=int, default=20, help="through all stages, of each kind")
    options.add_argument("--sizes", type=int, nargs="+", default=list(SIZES), help="batches in the root")
    options.add_argument("--postgres", action="store_true", help="instead of SQLite")
    options.add_argument("--note", default="", help="about the machine")
    options.add_argument("--out", type=Path, help="write here, not to docs/benchmarks-pipeline.md")
    given = options.parse_args()
    place = "/dev/shm" if Path("/dev/shm").is_dir() else None
    storage = _postgres if given.postgres else nullcontext
    with tempfile.TemporaryDirectory(dir=place) as name:
        with storage() as url:
            costs = batches(Path(name) / "batches", given.batches, url or "")
        print(costs, flush=True)
        with storage() as url:
            rows = measured(Path(name) / "many", tuple(given.sizes), url or "")
    versions = f"Python {platform.python_version()}, Dagster {dg.__version__}"
    machine = f"{platform.machine()}, {os.cpu_count()} cores, {versions}"
    flags = "--postgres " if given.postgres else ""
    sizes = " ".join(map(str, given.sizes))
    command = f"python -m benchmarks.pipeline {flags}--batches {given.batches} --sizes {sizes}"
    text = section(costs, rows, command=command, machine=machine, note=given.note)
    sections.write("benchmarks.pipeline", text, given.out)


if __name__ == "__main__":
    main()
