"""Measure the opening of the newest version of rollouts after many steps.

Real writers write the first step. Each later step repeats its parts under new names, keys and hashes: tables, commits
and log are penstock's own, shards and indexes are absent. Opening reads neither.
"""

import json
import secrets
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

import loader
from loader.dataset.publishing.commit import Pending, commit
from loader.dataset.publishing.publication_gate import NewKeys
from loader.dataset.publishing.publish import new_prefix
from loader.dataset.shards.part import Part, ShardFile
from loader.dataset.writing.run_tables import part_tables, write_run

from .rollout_runs import DATASET, publish, renamed, small_rollouts
from .throughput import say

OPEN = r"""
import json, re, sys, threading, time
import loader, loader.storage.disk.store
import numpy, pyarrow.parquet
loader.Root  # loads its modules
def anonymous_mib():
    status = open("/proc/self/status").read()
    return int(re.search(r"RssAnon:\s*([0-9]+)", status)[1]) / 1024
before_mib = anonymous_mib()
most_mib = before_mib
is_open = threading.Event()
def watch():
    global most_mib
    while not is_open.wait(0.002):
        most_mib = max(most_mib, anonymous_mib())
watcher = threading.Thread(target=watch)
watcher.start()
start_s = time.perf_counter()
start_cpu_s = time.process_time()
version = loader.Root(sys.argv[1]).open("rl@latest")
n_parts = len(version.parts)
for position in (0, n_parts // 2, n_parts - 1):
    version.parts.shard("tokens", position)
seconds = time.perf_counter() - start_s
cpu_s = time.process_time() - start_cpu_s
is_open.set()
watcher.join()
most_mib = max(most_mib, anonymous_mib())
print(json.dumps([seconds, cpu_s, most_mib - before_mib, n_parts]))
"""
"""Opens the newest version in a fresh process, and finds three of its shards."""


@dataclass(frozen=True, kw_only=True)
class Opening:
    """Medians of the rounds."""

    seconds: float
    cpu_s: float
    anonymous_mib: float
    """Most anonymous memory, less what the imports take."""
    n_parts: int


def grow(root: loader.Root, n_steps: int, n_parts: int) -> None:
    """Publish `n_steps` steps of `n_parts` parts of one rollout each."""
    samples = renamed(small_rollouts(n_parts), "t0")
    parts = publish(root, "t0", samples, n_parts)
    tables = part_tables(root.store, parts)
    for number in range(1, n_steps):
        txn = f"t{number}"
        _publish_again(root, txn, parts, tables)
        if number % 1_000 == 0:
            say(f"opening: {number:,} of {n_steps:,} steps")


def _publish_again(
    root: loader.Root,
    txn: str,
    parts: Sequence[Part],
    tables: Sequence[pa.Table],
) -> None:
    """Publish parts under the names of another transaction. tables: samples tables of the parts."""
    root.begin(DATASET, txn=txn)
    new_parts = []
    new_tables = []
    for part, table in zip(parts, tables, strict=True):
        name = part.id.removeprefix(f"{part.txn}-")
        shards = tuple(_renamed_shard(shard, part.txn, txn) for shard in part.shards)
        new_part = replace(
            part,
            id=f"{txn}-{name}",
            txn=txn,
            shards=shards,
        )
        new_parts.append(new_part)
        keys = [key.replace(f"{part.txn}/", f"{txn}/", 1) for key in table["key"].to_pylist()]
        place = table.schema.get_field_index("key")
        new_tables.append(table.set_column(place, "key", pa.array(keys, pa.string())))
    prefix = new_prefix(txn)
    change, run_keys = write_run(root.store, prefix, new_parts, {}, {}, samples=new_tables)
    pending = Pending(
        dataset=DATASET,
        txn=txn,
        prefix=prefix,
        change=change,
        producer={},
    )
    commit(root.store, root.log, pending, NewKeys(root.store, run_keys))


def _renamed_shard(
    shard: ShardFile,
    txn: str,
    new_txn: str,
) -> ShardFile:
    """Return a shard with the paths of another transaction, and hashes that compress as badly as real ones."""
    attempt = secrets.token_hex(8)
    paths = {}
    for name in ("path", "index_path"):
        path = getattr(shard, name)
        file_name = path.rpartition("/")[2]
        paths[name] = f"data/{new_txn}/{attempt}/{file_name}"
    return replace(
        shard,
        **paths,
        sha256=secrets.token_hex(32),
        index_crc32c=secrets.randbits(32),
        index_footer_crc32c=secrets.randbits(32),
        index_footer_sha256=secrets.token_hex(32),
    )


def opening(url: str, rounds: int) -> Opening:
    """Measure the opening of the newest version in fresh processes."""
    runs: list[list[Any]] = []
    for _ in range(rounds):
        run = subprocess.run(
            [sys.executable, "-c", OPEN, url],
            capture_output=True,
            text=True,
            check=True,
        )
        runs.append(json.loads(run.stdout))
    return Opening(
        seconds=statistics.median(run[0] for run in runs),
        cpu_s=statistics.median(run[1] for run in runs),
        anonymous_mib=statistics.median(run[2] for run in runs),
        n_parts=runs[0][3],
    )
