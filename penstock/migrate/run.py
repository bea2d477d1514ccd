"""A mirror brought up to date: data first, the log last, so that it never names what it does not have."""

from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from loader import Root
from loader.dataset.history import State
from loader.errors import Conflict, Forbidden, PenstockError
from loader.storage import Store
from loader.storage.threads import DaemonPool

from ..progress import progress
from ..words import size
from .contents import Item, new_items, new_versions
from .journal import Journal
from .pace import Pace
from .target import copied_entries, copy_entries, make_mirror
from .transfer import Copied, Transfer


@dataclass(slots=True)
class Report:
    """What was done. copied, nbytes: objects and bytes; skipped: objects that were there; failures: path -> why;
    entries: of the log, in the mirror now; recorded: whether the primary's log names the mirror."""

    target: str
    versions: list[str] = field(default_factory=list)
    copied: int = 0
    nbytes: int = 0
    skipped: int = 0
    failures: dict[str, str] = field(default_factory=dict)
    entries: int = 0
    recorded: bool = False

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}

    def to_text(self) -> str:
        lines = [
            f"{self.target}: {self.copied} objects copied ({size(self.nbytes)}), {self.skipped} were there, "
            f"{len(self.failures)} failed; log up to entry {self.entries}",
            *(f"  {path}: {why}" for path, why in self.failures.items()),
        ]
        if self.failures:
            lines.append("the log was not copied: the mirror shows what it had; run this again")
        return "\n".join(lines)


def migrate(
    root: Root, target: Store, pace: Pace, *, at_once: int = 16, scratch: str | None = None
) -> Report:
    """Copy what the mirror at `target` lacks of `root`. Memory: 160 MiB of objects at most, and the paths that an
    unfinished run has copied. An object that cannot be copied is named, the rest goes on, and the log stays as it was.

    Raises: Conflict, NotARoot as `copied_entries`; InvalidStore; what the target's store raises when it fails.
    """
    source, state = root.store, root.state
    after, report = copied_entries(source, target), Report(target=target.url)
    report.entries = after
    report.versions = [one.name for one in new_versions(state, after)]
    journal = Journal(target)
    # (another tool may have copied data first)
    resumed = journal.is_resumed or (not after and any(True for _ in target.list("data/")))
    done = journal.done()
    make_mirror(source, target)

    def failed(path: str, error: PenstockError) -> None:
        report.failures[path] = str(error)

    def items() -> Iterator[Item]:
        for item in new_items(source, target, state, after, failed):
            if item.path in done:
                report.skipped += 1
            else:
                yield item

    if new_versions(state, after):
        journal.begin()
    transfer = Transfer(source, target, pace, scratch)

    def total() -> int:
        return sum(item.nbytes or 0 for item in new_items(source, target, state, after, lambda *_: None))

    for copied in progress(
        _copied(items(), transfer, at_once, resumed, failed), "migrate", lambda one: one.nbytes, total
    ):
        journal.add(copied)
        if copied.sha256:
            report.copied += 1
            report.nbytes += copied.nbytes
        else:
            report.skipped += 1
    journal.flush()
    if report.failures:
        return report
    report.entries = _cut_over(root, target, state, after)
    report.recorded = any(one.get("url") == target.url for one in root.state.mirrors)
    journal.finish()
    return report


def _cut_over(root: Root, target: Store, state: State, after: int) -> int:
    """Copy the log; say in it what the mirror holds, where it holds more than was said; copy that too."""
    copy_entries(root.store, target, after, state.n)
    try:
        said = root.log.mirror(target.url, state.n)
    except (Forbidden, Conflict):  # a mirror's mirror, or that of a reader who may not write
        return state.n
    if said == state.n + 1:  # else others have written meanwhile: the next run copies that
        copy_entries(root.store, target, state.n, said)
        return said
    return state.n


def _copied(
    items: Iterator[Item], transfer: Transfer, at_once: int, look: bool, failed: Any
) -> Iterator[Copied]:
    """What was copied, as it comes; what cannot be is told. At most four times `at_once` items are known."""
    pool = DaemonPool(at_once, "penstock-migrate")
    waiting: dict[Future[Copied], Item] = {}
    try:
        while True:
            for item in islice(items, 4 * at_once - len(waiting)):
                waiting[pool.submit(transfer, item, look=look)] = item
            if not waiting:
                return
            done, _ = wait(waiting, return_when=FIRST_COMPLETED)
            for future in done:
                item = waiting.pop(future)
                try:
                    yield future.result()
                except PenstockError as error:
                    failed(item.path, error)
    finally:
        pool.dismiss()
