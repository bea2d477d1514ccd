"""`python -m benchmarks.scale`: what a large dataset costs to publish onto and to open.

It writes docs/benchmarks-stores.md.

Shards are synthetic: their tables, keys and history are real, the tars are not there. Requests are counted, so that
they are the same on every machine; times and memory are of a fresh process.
"""

import argparse
import json
import os
import platform
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa

import loader
from loader.dataset.names import hashes_of
from loader.dataset.publishing.commit import Pending, commit
from loader.dataset.publishing.publication_gate import NewKeys
from loader.dataset.shards.key_hashes import put_hashes
from loader.dataset.shards.part import SHARDS_ROW_GROUP_ROWS, SHARDS_SCHEMA
from loader.dataset.tables.columns import KEYS_SCHEMA
from loader.dataset.tables.manifest import Change, GroupExtent, SamplesFile
from loader.dataset.tables.parquet import put_table
from loader.dataset.tables.stats import column_stats
from loader.dataset.writing.run_samples import RunKeys

from . import sections

DATASET, ADDED = "d", 10
OPEN = """
import json, re, sys, time
import loader, loader.storage.disk.store
import pyarrow.parquet, numpy
loader.Root  # whose modules come with it
def peak(): return int(re.search(r"VmHWM:\\s*([0-9]+)", open("/proc/self/status").read())[1]) / 1024
before, start = peak(), time.perf_counter()
version = loader.Root(sys.argv[1]).open("d")
parts = version.parts
some = [parts.shard("media", at) for at in (0, len(parts) // 2, len(parts) - 1)]
print(json.dumps([time.perf_counter() - start, peak() - before, len(parts)]))
"""

HEAD = """# Scale

Made by `python -m benchmarks.scale` on {machine}
Shards are synthetic, of one sample each.

| shards | in publishes | open | memory | requests of a publish of 10 shards, median (most) |
| --- | --- | --- | --- | --- |"""
BOUNDS = """
The aims: O(new shards) requests; 1 s and 300 MiB for a million shards.
"""


class Counting:
    """A store that counts requests."""

    def __init__(self, store: Any) -> None:
        self.store, self.url = store, store.url
        self.requests = 0

    def __getattr__(self, name: str) -> Any:
        verb = getattr(self.store, name)

        def call(*given: Any, **named: Any) -> Any:
            self.requests += 1
            return verb(*given, **named)

        return call


def shard_rows(txn: str, n: int) -> pa.Table:
    """n rows of a shards table, as full of chance as real ones."""
    rng = np.random.default_rng()
    folder = f"data/{txn}/{secrets.token_hex(8)}"
    columns = {
        "part": [f"{txn}-{k:05d}" for k in range(n)],
        "group": ["media"] * n,
        "path": [f"{folder}/media-{k:05d}.tar" for k in range(n)],
        "nbytes": rng.integers(2**27, 2**28, n),
        "sha256": [secrets.token_hex(32) for _ in range(n)],
        "n_rows": np.ones(n, np.int64),
        "index_path": [f"{folder}/media-{k:05d}.index.parquet" for k in range(n)],
        "index_nbytes": rng.integers(20_000, 90_000, n),
        "index_crc32c": rng.integers(0, 2**32, n),
        "index_footer_crc32c": rng.integers(0, 2**32, n),
        "index_footer_sha256": [secrets.token_hex(32) for _ in range(n)],
        "index_pages_nbytes": rng.integers(2**16, 2**17, n) // 32 * 32,
    }
    return pa.table([pa.array(columns[f.name], f.type) for f in SHARDS_SCHEMA], schema=SHARDS_SCHEMA)


def publish(root: loader.Root, first: int, n: int) -> str:
    """The next version, with n more shards of one sample: all of a publish but its shards. Its transaction's name."""
    txn = root.begin(DATASET)
    prefix = f"data/{txn}/{secrets.token_hex(8)}"
    shards = shard_rows(txn, n)
    keys = [f"sample/{i:09d}" for i in range(first, first + n)]
    whole = pa.table(
        {"part": shards["part"], "row": np.zeros(n, np.int64), "key": keys, "w": np.arange(n) % 640}
    )
    names = [name for name in KEYS_SCHEMA.names if name in whole.column_names]
    files = {"keys": whole.select(names), "metadata": whole.select(["part", "row", "w"])}
    nbytes = int(shards["nbytes"].to_numpy().sum())
    change = Change(
        shards=put_table(root.store, f"{prefix}/shards.parquet", shards, "shards", SHARDS_ROW_GROUP_ROWS),
        samples=tuple(
            SamplesFile(
                file=put_table(root.store, f"{prefix}/samples-{group}-0.parquet", table, f"samples-{group}"),
                group=group,
                columns={f.name: str(f.type) for f in table.schema if f.name not in ("part", "row")},
            )
            for group, table in files.items()
        ),
        stats=put_table(root.store, f"{prefix}/stats.parquet", column_stats(whole), "stats"),
        key_hashes=put_hashes(root.store, prefix, hashes_of(keys)),
        groups={"media": GroupExtent(field_nbytes={"jpg": nbytes}, n_parts=n, n_rows=n, nbytes=nbytes)},
        n_parts=n,
        n_rows=n,
    )
    pending = Pending(dataset=DATASET, txn=txn, prefix=prefix, change=change, producer={})
    commit(root.store, root.log, pending, NewKeys(root.store, RunKeys.of(keys)))
    return str(txn)


def counted(root: loader.Root, first: int) -> Counting:
    """One more publish, of ADDED shards, by a process that knows the history."""
    store = Counting(root.store)
    root._use(store)  # type: ignore[arg-type]
    root.state  # noqa: B018
    store.requests = 0
    publish(root, first, ADDED)
    root._use(store.store)
    return store


def opened(url: str, rounds: int) -> tuple[float, float]:
    """(seconds, MiB above the import) to open the newest version and find three of its shards: medians."""
    runs = []
    for _ in range(rounds):
        run = subprocess.run([sys.executable, "-c", OPEN, url], capture_output=True, text=True, check=True)
        runs.append(json.loads(run.stdout))
    return median(run[0] for run in runs), median(run[1] for run in runs)


def grown(url: str, shards: int, publishes: int) -> list[Counting]:
    """Make a root of that many shards; return the costs of publishes of ADDED shards beside them: the last sixteen."""
    root = loader.Root(url)
    at, costs = 0, []
    for number in range(publishes):
        publish(root, at, shards // publishes)
        at += shards // publishes
        if number >= publishes - 16:
            costs.append(counted(root, at))
            at += ADDED
    return costs


def sizes(shards: int, publishes: int, rounds: int) -> Iterator[str]:
    """A row per size of a dataset."""
    with tempfile.TemporaryDirectory() as folder:
        cases = [(shards, 1), *((max(1, shards // d), max(1, publishes // d)) for d in (10, 1))]
        for number, (n, times) in enumerate(cases):
            url = f"{folder}/{number}"
            costs = grown(url, n, times)
            seconds, mib = opened(url, rounds)
            requests = [cost.requests for cost in costs]
            yield (
                f"| {n:,} | {times:,} | {seconds:.2f} s | {mib:.0f} MiB | {median(requests):.0f} "
                f"({max(requests)}) |"
            )


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--shards", type=int, default=1_000_000)
    options.add_argument("--publishes", type=int, default=10_000)
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--note", default="", help="a sentence for the page's head, about the machine")
    options.add_argument("--out", type=Path, help="write here, not to docs/benchmarks-stores.md")
    given = options.parse_args()
    machine = (
        f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, a local disk."
    )
    lines = [HEAD.format(machine=f"{machine} {given.note}".strip())]
    lines += shown(sizes(given.shards, given.publishes, given.rounds))
    sections.write("benchmarks.scale", "\n".join([*lines, BOUNDS]), given.out)
    return 0


def shown(rows: Iterator[str]) -> Iterator[str]:
    """They take minutes each: printed as they come."""
    for row in rows:
        print(row, flush=True)
        yield row


if __name__ == "__main__":
    sys.exit(main())
