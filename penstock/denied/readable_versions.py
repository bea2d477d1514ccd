"""Find versions that can be read completely while a collector runs."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from loader import Root, Version
from loader.dataset.log.state import VersionRecord
from loader.dataset.tables.manifest import table_references
from loader.errors import ObjectNotFound
from loader.storage import is_there
from loader.storage.threads import DaemonPool

READ_AHEAD = 32
WholeVersions = Sequence[tuple[VersionRecord, Version]]
"""Versions of a dataset, oldest first."""
T = TypeVar("T")


def read_whole_versions(root: Root, dataset: str, work: Callable[[WholeVersions], T]) -> T:
    """Return work(versions) for the versions whose manifest and tables exist, retired or not.

    Restarts if a collector deletes part of a version meanwhile. Costs a request per version, and per table that
    only retired versions have.
    """
    versions = _whole(root, dataset)
    while True:
        try:
            return work(versions)
        except ObjectNotFound:
            remaining = _whole(root, dataset)
            if {record.id for record, _ in versions} <= {record.id for record, _ in remaining}:
                raise
            versions = remaining


def _whole(root: Root, dataset: str) -> list[tuple[VersionRecord, Version]]:
    opened = []
    for record in root.state.versions(dataset):
        try:
            opened.append((record, Version.of_record(root.store, record)))
        except ObjectNotFound:
            if root.record(record.id, retired=True).retired is None:
                raise
    # Read the state again: a version that is retired by now may be half deleted.
    now = {one.id: one for one in root.state.versions(dataset)}
    tables = {record.id: {one.path for one in table_references(v.manifest)} for record, v in opened}
    kept = set().union(*(paths for id, paths in tables.items() if now[id].retired is None))
    asked = sorted(set().union(*tables.values()) - kept)
    with DaemonPool(READ_AHEAD, "penstock-takedown") as pool:
        there = kept.union(
            path
            for path, is_in in zip(
                asked, pool.map(lambda path: is_there(root.store, path), asked), strict=True
            )
            if is_in
        )
    return [(now[record.id], version) for record, version in opened if tables[record.id] <= there]
