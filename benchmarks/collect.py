"""`python -m benchmarks.collect [OBJECTS]`: what a plan and a sweep of the collector take over so many objects.

The root is synthetic: its log, manifests and tables of shards are real; the shards and indexes that they name are made
up while they are listed, half of them of a retired version. So the listing costs nothing but what Python makes of it.
"""

import resource
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

import loader
from loader.dataset.manifest import Change, GroupExtent
from loader.dataset.parquet import put_table
from loader.dataset.part import SHARDS_SCHEMA
from loader.dataset.publish import Pending, commit
from loader.storage.store import ObjectInfo
from penstock.collect import Options, collect

OBJECTS = 1_000_000
SHARD_BYTES, INDEX_BYTES = 2**28, 2**16
HOUR_US = 3_600_000_000


class Listed:
    """A store that lists shards and indexes which are not there, and counts requests and deletions."""

    def __init__(self, store: Any) -> None:
        self._store, self._made_up = store, list[str]()
        self.requests, self.deleted = 0, 0

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if not callable(found):
            return found

        def call(*given: Any, **named: Any) -> Any:
            self.requests += 1
            return found(*given, **named)

        return call

    def add(self, keys: list[str]) -> None:
        """List these too."""
        self._made_up = sorted([*self._made_up, *keys])

    def list(self, prefix: str = "", start_after: str | None = None) -> Iterator[ObjectInfo]:
        self.requests += 1
        if prefix != "data/":
            yield from self._store.list(prefix, start_after)
            return
        real = {info.key: info.nbytes for info in self._store.list(prefix)}
        for key in sorted([*self._made_up, *real]):
            made_up = SHARD_BYTES if key.endswith(".tar") else INDEX_BYTES
            yield ObjectInfo(key=key, nbytes=real.get(key, made_up), etag="")

    def delete_many(self, keys: Sequence[str]) -> None:
        self.requests += 1
        self.deleted += len(keys)
        self._store.delete_many(keys)


def root_of(objects: int, name: str) -> tuple[loader.Root, Listed]:
    """A root with d@1, retired, and d@2, which have half of the objects each; opened in memory under this name."""
    root = loader.Root(f"memory://{name}")
    root.create()
    store = Listed(root.store)
    root._use(store)  # type: ignore[arg-type]
    for number in (1, 2):
        _publish(root, store, objects // 4)
        if number == 1:
            root.retire("d@1", reason="old")
    return root, store


def _publish(root: loader.Root, store: Listed, shards: int) -> None:
    txn = root.begin("d")
    prefix = f"data/{txn}/0123456789abcdef"
    stems = [f"{prefix}/media-{i:07d}" for i in range(shards)]
    paths, indexes = [f"{stem}.tar" for stem in stems], [f"{stem}.index.parquet" for stem in stems]
    store.add([*paths, *indexes])
    ones = np.ones(shards, np.int64)
    columns = {
        "part": [f"{txn}-{i:07d}" for i in range(shards)],
        "group": ["media"] * shards,
        "path": paths,
        "nbytes": ones * SHARD_BYTES,
        "sha256": [f"{i:064x}" for i in range(shards)],
        "index_path": indexes,
        "index_nbytes": ones * INDEX_BYTES,
    }
    table = pa.table(
        [pa.array(columns.get(field.name, ones), field.type) for field in SHARDS_SCHEMA], SHARDS_SCHEMA
    )
    extent = GroupExtent(
        field_nbytes={"jpg": shards}, n_parts=shards, n_rows=shards, nbytes=shards * SHARD_BYTES
    )
    change = Change(
        shards=put_table(root.store, f"{prefix}/shards.parquet", table, "shards"),
        groups={"media": extent},
        n_parts=shards,
        n_rows=shards,
    )
    commit(root.store, root.log, Pending(dataset="d", txn=txn, prefix=prefix, change=change, producer={}))


def main(objects: int) -> None:
    root, store = root_of(objects, "collected")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    options = Options(name="bench", max_objects=objects, max_bytes=2**62)
    for what, hour, apply in (("plan", 0, False), ("plan again", 80, False), ("sweep", 81, True)):
        store.requests, start, spent = 0, time.perf_counter(), time.process_time()
        report = collect(root, options, apply=apply, now_us=hour * HOUR_US)
        took, cpu = time.perf_counter() - start, time.process_time() - spent
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        due = sum(n for n, _ in report.due.values())
        print(
            f"{what:<10} {objects} objects: {took:.1f} s ({cpu:.1f} s of processors), {store.requests} requests, "
            f"peak {peak:.0f} MiB ({peak - before:.0f} above the root itself); {due} due, {store.deleted} deleted"
        )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else OBJECTS)
