"""Copy many objects at once, from a root or a plain prefix."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import asdict, dataclass, field
from itertools import islice
from typing import Any

from loader.errors import PenstockError
from loader.storage import Store
from loader.storage.threads import DaemonPool

from ...units import size
from .copy_one import Compared, Transfer
from .items import Copied, Item, Pace


@dataclass(slots=True, kw_only=True)
class Copies:
    """Result of a migration."""

    target: str
    """Target URL."""
    copied: int = 0
    """Copied objects."""
    nbytes: int = 0
    """Bytes of the copied objects."""
    skipped: int = 0
    """Objects that the target already had."""
    failures: dict[str, str] = field(default_factory=dict)
    """Path of an object that was not copied -> reason."""

    @property
    def is_whole(self) -> bool:
        """True if no object failed."""
        return not self.failures

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def failed(self, path: str, error: PenstockError, nbytes: int | None = None) -> None:
        """Record an object that could not be copied. nbytes: its size, if known."""
        self.failures[path] = str(error)

    def lines(self) -> list[str]:
        """Return the result as readable lines."""
        return [
            f"{self.target}: {self.copied} objects copied ({size(self.nbytes)}), {self.skipped} were there, "
            f"{len(self.failures)} failed",
            *(f"  {path}: {why}" for path, why in self.failures.items()),
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Migration:
    """A migration's copy settings."""

    source: Store
    target: Store
    pace: Pace
    """Rate limits for all machines together."""
    at_once: int
    """Objects that each process copies at once."""
    scratch: str | None
    """Local folder for large objects in transit; None: the system's temporary folder."""
    may_exist: bool = False
    """True if the target may already have some objects."""
    compared: bool = False
    """True if items without a digest are read twice, as in a root."""
    hash: str = "sha256"
    """Digest kind, one of `KINDS`, for objects without an expected digest."""
    notes: str = ""
    """Folder in the target for a cluster job's files."""
    since: Sequence[str] = ()
    """Texts that identify a job's set of objects, besides URLs and rate limits."""

    def transfer(self) -> Transfer | Compared:
        """Return the callable that copies items in this process."""
        transfer = Transfer(self.source, self.target, self.pace, self.scratch, self.hash)
        if self.compared:
            return Compared(self.source, self.target, transfer)
        return transfer


Failed = Callable[[str, PenstockError, int | None], None]
"""Callback for an object that was not copied: path, reason, and bytes if known."""


def copy_here(
    items: Iterator[Item],
    transfer: Transfer | Compared,
    failed: Failed,
    *,
    at_once: int,
    may_exist: bool = False,
) -> Iterator[Copied]:
    """Copy items in this process, and yield each once the target has it. Queues at most `4 * at_once` items."""
    pool = DaemonPool(at_once, "penstock-migrate")
    waiting: dict[Future[Copied], Item] = {}
    try:
        while True:
            # A few per thread: the items come from a listing, which may have millions.
            for item in islice(items, 4 * at_once - len(waiting)):
                waiting[pool.submit(transfer, item, may_exist=may_exist)] = item
            if not waiting:
                return
            done, _ = wait(waiting, return_when=FIRST_COMPLETED)
            for future in done:
                item = waiting.pop(future)
                try:
                    yield future.result()
                # A fault of the store or object is a line of the report; any other exception ends the run.
                except PenstockError as error:
                    failed(item.path, error, item.nbytes)
    finally:
        # Without a wait: after an error, its threads may copy for minutes.
        pool.dismiss()
