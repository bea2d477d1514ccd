"""Copy many objects at once, of a root or a plain prefix."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import asdict, dataclass, field
from itertools import islice
from typing import Any

from loader.errors import PenstockError
from loader.storage import Store
from loader.storage.shared.threads import DaemonPool

from ...units import size
from .compare import Compared
from .copy_one import Transfer
from .items import Copied, Item, Pace


@dataclass(slots=True, kw_only=True)
class Copies:
    """The result of a migration."""

    target: str
    """URL of the target."""
    copied: int = 0
    """Objects that were copied."""
    nbytes: int = 0
    """Their bytes."""
    skipped: int = 0
    """Objects that were there already."""
    failures: dict[str, str] = field(default_factory=dict)
    """Path of an object that was not copied -> reason."""

    @property
    def is_whole(self) -> bool:
        """True if the target has all that it should have."""
        return not self.failures

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def failed(self, path: str, error: PenstockError, nbytes: int | None = None) -> None:
        """Name an object that could not be copied; others go on. nbytes: its size, if known."""
        self.failures[path] = str(error)

    def lines(self) -> list[str]:
        """Return the lines for people."""
        return [
            f"{self.target}: {self.copied} objects copied ({size(self.nbytes)}), {self.skipped} were there, "
            f"{len(self.failures)} failed",
            *(f"  {path}: {why}" for path, why in self.failures.items()),
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Migration:
    """The settings by which all objects of a migration are copied."""

    source: Store
    """The source."""
    target: Store
    """The target."""
    pace: Pace
    """Limits of all machines together."""
    at_once: int
    """Objects at once, per process."""
    scratch: str | None
    """Folder of this machine for large objects in transit."""
    may_exist: bool = False
    """True if any may be in the target already."""
    compared: bool = False
    """True if items without a digest are read twice, as for a root."""
    hash: str = "sha256"
    """One of `KINDS`, for objects without an expected digest."""
    notes: str = ""
    """Folder of the target for a cluster's job."""
    since: Sequence[str] = ()
    """Texts that decide the objects of a job, besides places and limits."""

    def transfer(self) -> Transfer | Compared:
        """Return the object that copies in this process."""
        transfer = Transfer(self.source, self.target, self.pace, self.scratch, self.hash)
        return Compared(self.source, self.target, transfer) if self.compared else transfer


Failed = Callable[[str, PenstockError, int | None], None]
"""Receives an object that was not copied: path, reason, and size in bytes if known."""


def copied_here(
    items: Iterator[Item],
    transfer: Transfer | Compared,
    failed: Failed,
    *,
    at_once: int,
    may_exist: bool = False,
) -> Iterator[Copied]:
    """Copy items, and yield each once it exists. At most four times `at_once` items wait."""
    pool = DaemonPool(at_once, "penstock-migrate")
    waiting: dict[Future[Copied], Item] = {}
    try:
        while True:
            for item in islice(items, 4 * at_once - len(waiting)):
                waiting[pool.submit(transfer, item, may_exist=may_exist)] = item
            if not waiting:
                return
            done, _ = wait(waiting, return_when=FIRST_COMPLETED)
            for future in done:
                item = waiting.pop(future)
                try:
                    yield future.result()
                except PenstockError as error:
                    failed(item.path, error, item.nbytes)
    finally:
        pool.dismiss()
