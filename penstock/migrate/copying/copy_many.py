"""Many objects at once: what every migration does, of a root or of a plain prefix."""

from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import asdict, dataclass, field
from itertools import islice
from typing import Any

from loader.errors import PenstockError
from loader.storage.shared.threads import DaemonPool

from ...progress import progress
from ...units import size
from .compare import Compared
from .copy_one import Transfer
from .items import Copied, Item
from .journal import Journal


@dataclass(slots=True, kw_only=True)
class Copies:
    """The result of a copy."""

    target: str
    """URL of the target."""
    copied: int = 0
    """Objects that were copied."""
    nbytes: int = 0
    """Their bytes."""
    skipped: int = 0
    """Objects that were there."""
    failures: dict[str, str] = field(default_factory=dict)
    """Path of an object that was not copied -> reason."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def failed(self, path: str, error: PenstockError, nbytes: int | None = None) -> None:
        """Name an object that could not be read or written; the rest goes on. nbytes: where its size is known."""
        self.failures[path] = str(error)

    def lines(self) -> list[str]:
        """Return the lines for people."""
        return [
            f"{self.target}: {self.copied} objects copied ({size(self.nbytes)}), {self.skipped} were there, "
            f"{len(self.failures)} failed",
            *(f"  {path}: {why}" for path, why in self.failures.items()),
        ]


def copy_all(
    items: Iterator[Item],
    transfer: Transfer | Compared,
    journal: Journal,
    report: Copies,
    *,
    at_once: int,
    look: bool = False,
    total: Callable[[], int],
) -> None:
    """Copy items, note and count those that were copied, name the others. At most four times `at_once` items are known.

    look: whether any may be there already.
    total: returns the bytes of all, asked for where somebody watches.
    """
    coming = _copied(items, transfer, at_once, look, report)
    for copied in progress(coming, "migrate", lambda one: one.nbytes, total):
        journal.add(copied)
        if copied.written:
            report.copied += 1
            report.nbytes += copied.nbytes
        else:
            report.skipped += 1
    journal.flush()


def _copied(
    items: Iterator[Item], transfer: Transfer | Compared, at_once: int, look: bool, report: Copies
) -> Iterator[Copied]:
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
                    report.failed(item.path, error, item.nbytes)
    finally:
        pool.dismiss()
