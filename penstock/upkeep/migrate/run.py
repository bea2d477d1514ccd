"""A mirror brought up to date: data first, the log last, so that it never names what it does not have."""

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
from ..copying.items import Item
from ..copying.journal import Journal
from ..copying.rate_limit import Pace
from .contents import OWN, new_items, new_versions
from .target import close_former, copied_entries, make_mirror

if TYPE_CHECKING:
    from ...compute.cluster import Cluster


@dataclass(slots=True, kw_only=True)
class Report(Copies):
    """The result of a migration of a root."""

    versions: list[str] = field(default_factory=list)
    """Names of the versions that the mirror lacked."""
    entries: int = 0
    """Log entries that the mirror has now."""
    recorded: bool = False
    """True where the primary's log names the mirror."""
    left_out: dict[str, str] = field(default_factory=dict)
    """Version that names an object outside of its data, which is not copied -> path of the first such object."""

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
) -> Report:
    """Copy what the mirror at `target` lacks of `root`.

    Memory: 228 MiB of objects at most. An object that cannot be copied is named, the rest goes on, and the log stays as
    it was. A former primary that came back becomes a mirror.

    cluster: whose machines copy the objects, each process `at_once` of them, within the limits together; None: this
    process. The log is copied by this process.

    Raises: Conflict, NotARoot as `copied_entries`; InvalidStore; what the target's store raises when it fails; with a
    cluster as `attach`.
    """
    source, state = root.store, root.state
    close_former(source, state, target)
    after, report = copied_entries(source, target), Report(target=target.url)
    report.entries = after
    report.versions = [one.name for one in new_versions(state, after)]
    with Journal(target, scratch=scratch) as journal:
        # (another tool may have copied data first)
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
            look=resumed,
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


def _items(items: Iterator[Item], journal: Journal, report: Report) -> Iterator[Item]:
    """Yield the items to copy; count those that the journal has."""
    for item in items:
        if journal.find(item.path):
            report.skipped += 1
        else:
            yield item


def _copy_places(source: Store, target: Store) -> None:
    """Copy where registered bytes lie, behind the objects: a record may say that they are in the root."""
    there = {info.key for info in target.list(PLACES)}
    for info in source.list(PLACES):
        if info.key not in there:
            put_compared(target, info.key, read_twice(source, info.key))


def _copy_log(root: Root, target: Store, state: State, after: int) -> int:
    """Copy the log; say in it what the mirror holds, where it holds more than was said; copy that too."""
    copy_entries(root.store, target, after, state.n, state.prev)
    try:
        said = root.log.mirror(target.url, state.n)
    except (Forbidden, Conflict):  # a mirror's mirror, or a reader's without the right to write
        return state.n
    if said == state.n + 1:  # else others have written meanwhile: the next run copies that
        copy_entries(root.store, target, state.n, said, "")
        return said
    return state.n
