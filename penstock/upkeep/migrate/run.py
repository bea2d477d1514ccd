"""Update a mirror: data first, the log last, so that the log never names missing objects."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from loader import Root
from loader.dataset.log.state import State
from loader.dataset.tables.foreign_objects import PLACES
from loader.errors import Conflict, Forbidden
from loader.storage import Store

from ..copying.compare import copy_entries, put_compared, read_twice
from ..copying.copy_all import copy_all
from ..copying.copy_many import Copies, Migration
from ..copying.items import Item, Pace
from ..copying.journal import Journal
from .contents import OWN, new_items, new_versions
from .target import close_former, copied_entries, make_mirror

if TYPE_CHECKING:
    from ...compute.cluster import Cluster


@dataclass(slots=True, kw_only=True)
class MigrationReport(Copies):
    """The result of migrating a root."""

    versions: list[str] = field(default_factory=list)
    """Names of versions that the mirror lacked."""
    entries: int = 0
    """Number of log entries in the mirror."""
    recorded: bool = False
    """True if the primary's log names the mirror."""
    left_out: dict[str, str] = field(default_factory=dict)
    """Version name -> path of its first object outside `data/`, which is not copied."""

    @property
    def is_whole(self) -> bool:
        return not (self.failures or self.left_out)

    def to_text(self) -> str:
        head, *lines = self.lines()
        lines += [
            f"  {name}: {path!r} was not copied, because the objects of a version lie under {OWN}: publish its samples "
            f"anew, or penstock retire {name}"
            for name, path in self.left_out.items()
        ]
        if self.failures:
            lines.append("the log was not copied: the mirror shows what it had; run this again")
        return "\n".join([f"{head}; log up to entry {self.entries}", *lines])


def migrate(
    root: Root,
    target: Store,
    pace: Pace,
    *,
    at_once: int = 16,
    scratch: str | None = None,
    cluster: "Cluster | None" = None,
) -> MigrationReport:
    """Copy what the mirror at `target` lacks. A former primary that came back becomes a mirror.

    If an object cannot be copied, the report names it, and the mirror's log stays unchanged. Memory: at most 228 MiB of
    objects.

    cluster: copies the objects, `at_once` per process, within the shared rate limits; None: this process copies.

    Raises: Conflict and NotARoot as `copied_entries`; InvalidStore; with a cluster, as `attach`.
    """
    source, state = root.store, root.state
    close_former(source, state, target)
    after, report = copied_entries(source, target), MigrationReport(target=target.url)
    report.entries = after
    report.versions = [one.name for one in new_versions(state, after)]
    with Journal(target, scratch=scratch) as journal:
        # Another tool may have copied data first.
        resumed = journal.is_resumed or (not after and any(True for _ in target.list("data/")))
        make_mirror(source, target)

        def items() -> Iterator[Item]:
            coming = new_items(source, target, state, after, report.failed, report.left_out.setdefault)
            return _items(coming, journal, report)

        def total() -> int:
            items = new_items(source, target, state, after, lambda *_: None, lambda *_: None)
            return sum(item.nbytes or 0 for item in items if not journal.find(item.path))

        if new_versions(state, after):
            journal.begin()
        migration = Migration(
            source=source,
            target=target,
            pace=pace,
            at_once=at_once,
            scratch=scratch,
            may_exist=resumed,
            compared=True,
            since=[str(after)],
        )
        copy_all(migration, items, journal, report, total, cluster)
        if report.failures:
            return report
        _copy_places(source, target)
        report.entries = _copy_log(root, target, state, after)
        report.recorded = any(one.get("url") == target.url for one in root.state.mirrors)
        journal.finish()
    return report


def _items(items: Iterator[Item], journal: Journal, report: MigrationReport) -> Iterator[Item]:
    for item in items:
        if journal.find(item.path):
            report.skipped += 1
        else:
            yield item


def _copy_places(source: Store, target: Store) -> None:
    """Copy records of registered folders and buckets last: a record may state that the root has their objects."""
    there = {info.key for info in target.list(PLACES)}
    for info in source.list(PLACES):
        if info.key not in there:
            put_compared(target, info.key, read_twice(source, info.key))


def _copy_log(root: Root, target: Store, state: State, after: int) -> int:
    copy_entries(root.store, target, after, state.n, state.prev)
    try:
        recorded = root.log.mirror(target.url, state.n)
    except (Forbidden, Conflict):  # the source is itself a mirror, or read-only here
        return state.n
    if recorded == state.n + 1:  # otherwise the next run copies what others wrote meanwhile
        copy_entries(root.store, target, state.n, recorded, "")
        return recorded
    return state.n
