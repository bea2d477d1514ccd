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
    versions = _open_whole_versions(root, dataset)
    while True:
        try:
            return work(versions)
        except ObjectNotFound:
            remaining = _open_whole_versions(root, dataset)
            if {record.id for record, _ in versions} <= {record.id for record, _ in remaining}:
                raise
            versions = remaining


def _open_whole_versions(root: Root, dataset: str) -> list[tuple[VersionRecord, Version]]:
    """Return the dataset's versions, without retired ones that are partly collected."""
    opened = []
    for record in root.state.versions(dataset):
        try:
            opened.append((record, Version.of_record(root.store, record)))
        except ObjectNotFound:
            # A collector deletes the manifest of a version that is retired, perhaps only since the log was read above.
            newest_record = root.record(record.id, retired=True)
            if newest_record.retired is None:
                raise
    # Read the state again: a version that is retired by now may be half deleted.
    now = {one.id: one for one in root.state.versions(dataset)}
    tables: dict[str, set[str]] = {}  # id of a version -> paths of its tables
    existing: set[str] = set()  # a collector deletes no table of a version that is not retired
    uncertain: set[str] = set()
    for record, version in opened:
        paths = {reference.path for reference in table_references(version.manifest)}
        tables[record.id] = paths
        if now[record.id].retired is None:
            existing |= paths
        else:
            uncertain |= paths
    to_request = sorted(uncertain - existing)

    def exists(path: str) -> bool:
        return is_there(root.store, path)

    with DaemonPool(READ_AHEAD, "penstock-takedown") as pool:
        for path, has_object in zip(to_request, pool.map(exists, to_request), strict=True):
            if has_object:
                existing.add(path)
    return [(now[record.id], version) for record, version in opened if tables[record.id] <= existing]
