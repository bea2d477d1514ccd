"""`python -m benchmarks.collect`: what a plan and a sweep of the collector take over so many objects.

The root is synthetic: its log, manifests and tables of shards are real. The shards and indexes that they name, half of
them of a retired version, are made up while they are listed, so that the listing costs nothing but what Python makes of
it; or with --disk they are files without contents there, which are listed, and deleted. It prints rows of Markdown.
"""

import argparse
import resource
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import loader
from loader.dataset.publishing.commit import Pending, commit
from loader.dataset.shards.part import SHARDS_SCHEMA
from loader.dataset.tables.manifest import Change, GroupExtent
from loader.dataset.tables.parquet import put_table
from loader.storage.store import ObjectInfo
from penstock.upkeep.gc import Moment, Options, collect

OBJECTS = 1_000_000
SHARD_BYTES, INDEX_BYTES = 2**28, 2**16
HOUR_US = 3_600_000_000


class Listed:
    """A store that lists shards and indexes which are not there, and counts requests and deletions. folder: that of
    the store, where they are to be there."""

    def __init__(self, store: Any, folder: Path | None = None) -> None:
        self._store, self._folder, self._made_up = store, folder, list[str]()
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
        if self._folder is not None:
            for parent in {(self._folder / key).parent for key in keys}:
                parent.mkdir(parents=True, exist_ok=True)
            for key in keys:
                with open(self._folder / key, "wb") as file:
                    file.truncate(_nbytes(key))
            return
        self._made_up = sorted([*self._made_up, *keys])

    def list(self, prefix: str = "", start_after: str | None = None) -> Iterator[ObjectInfo]:
        self.requests += 1
        if prefix != "data/" or self._folder is not None:
            yield from self._store.list(prefix, start_after)
            return
        real = {info.key: info.nbytes for info in self._store.list(prefix)}
        for key in sorted([*self._made_up, *real]):
            yield ObjectInfo(key=key, nbytes=real.get(key, _nbytes(key)), etag="")

    def delete_many(self, keys: Sequence[str]) -> None:
        self.requests += 1
        self.deleted += len(keys)
        self._store.delete_many(keys)


def _nbytes(key: str) -> int:
    return SHARD_BYTES if key.endswith(".tar") else INDEX_BYTES


def root_of(objects: int, name: str, folder: Path | None = None) -> tuple[loader.Root, Listed]:
    """A root with d@1, retired, and d@2, which have half of the objects each; in this folder, or in memory under this
    name."""
    root = loader.Root(f"memory://{name}" if folder is None else str(folder))
    root.create()
    store = Listed(root.store, folder)
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
        "index_footer_sha256": [f"{i:064x}" for i in range(shards)],
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


def measure(objects: int, folder: Path | None) -> Iterator[str]:
    """A row per look. folder: for files, on a disk."""
    root, store = root_of(objects, "collected", folder)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    options = Options(name="bench", max_objects=objects, max_bytes=2**62)
    where = "made up" if folder is None else "on a disk"
    for what, hour, apply in (("first plan", 0, False), ("plan", 80, False), ("sweep", 81, True)):
        store.requests, start, spent = 0, time.perf_counter(), time.process_time()
        at = Moment(at_us=hour * HOUR_US, run="one", run_us=hour * HOUR_US)
        report = collect(root, options, apply=apply, at=at)
        took, cpu = time.perf_counter() - start, time.process_time() - spent
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        due = sum(n for n, _ in report.due.values())
        yield (
            f"| {objects:,} {where} | {what} | {took:.1f} s | {cpu:.1f} s | {store.requests:,} "
            f"| {peak - before:.0f} MiB | {due:,} | {store.deleted:,} |"
        )


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("objects", nargs="?", type=int, default=OBJECTS, help="default: %(default)s")
    options.add_argument(
        "--disk", type=Path, metavar="FOLDER", help="make files in a folder there, for the while"
    )
    given = options.parse_args()
    if given.disk is None:
        for row in measure(given.objects, None):
            print(row, flush=True)
        return
    with tempfile.TemporaryDirectory(dir=given.disk) as folder:
        for row in measure(given.objects, Path(folder) / "root"):
            print(row, flush=True)


if __name__ == "__main__":
    main()
