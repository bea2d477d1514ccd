"""Many objects at once: what every migration does, of a root or of a plain prefix."""

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
from .items import Copied, Item
from .rate_limit import Pace


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

    @property
    def is_whole(self) -> bool:
        """True where the target has all that it was to have."""
        return not self.failures

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Migration:
    """The way in which all objects of a migration are copied."""

    source: Store
    """The source."""
    target: Store
    """The target."""
    pace: Pace
    """Limits: of all machines together."""
    at_once: int
    """Objects at once, of each process."""
    scratch: str | None
    """Folder of this machine for larger objects on their way."""
    look: bool = False
    """True where any may be in the target already."""
    compared: bool = False
    """True where items without a digest are read twice, as a root's are."""
    hash: str = "sha256"
    """One of `digest.KINDS`, taken of objects without an expected digest."""
    notes: str = ""
    """Folder of the target for the folder of a cluster's job."""
    since: Sequence[str] = ()
    """Texts that decide the objects of a job, beside places and limits: a later migration has others."""

    def transfer(self) -> Transfer | Compared:
        """Return what copies an object in this process."""
        transfer = Transfer(self.source, self.target, self.pace, self.scratch, self.hash)
        return Compared(self.source, self.target, transfer) if self.compared else transfer


Failed = Callable[[str, PenstockError, int | None], None]
"""Told of an object that was not copied: its path, why, and its size in bytes where it is known."""


def copied_here(
    items: Iterator[Item],
    transfer: Transfer | Compared,
    failed: Failed,
    *,
    at_once: int,
    look: bool = False,
) -> Iterator[Copied]:
    """Copy items, and yield each once it is there. At most four times `at_once` items are known.

    look: whether any may be there already.
    """
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
                    failed(item.path, error, item.nbytes)
    finally:
        pool.dismiss()
