"""Copy all objects of a migration, in this process or on a cluster, and record them."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from ...progress import progress
from .copy_many import Copies, Migration, copy_here
from .items import Copied, Item
from .journal import Journal

if TYPE_CHECKING:
    from ...compute.cluster import Cluster


def copy_all(
    migration: Migration,
    items: Callable[[], Iterator[Item]],
    journal: Journal,
    report: Copies,
    total: Callable[[], int],
    cluster: "Cluster | None" = None,
) -> None:
    """Copy items. Record copies in the journal, and count copies and failures in the report.

    total: returns the items' total bytes. cluster: None copies in this process. Raises: with a cluster, as `attach`.
    """
    coming = _copy_items(migration, items, journal, report, cluster)
    for copied in progress(coming, "migrate", lambda copied: copied.nbytes, total):
        journal.add(copied)
        # An object that was there is recorded too, so that the next run asks for nothing.
        if copied.written:
            report.copied += 1
            report.nbytes += copied.nbytes
        else:
            report.skipped += 1
    journal.flush()


def _copy_items(
    migration: Migration,
    items: Callable[[], Iterator[Item]],
    journal: Journal,
    report: Copies,
    cluster: "Cluster | None",
) -> Iterator[Copied]:
    if cluster is None:
        transfer = migration.transfer()
        at_once = migration.at_once
        return copy_here(items(), transfer, report.failed, at_once=at_once, may_exist=migration.may_exist)
    # A copy in this process needs none of a cluster's modules.
    from .copy_job import copy_on_cluster

    return copy_on_cluster(cluster, migration, items, journal, report)
