"""Objects that one process of a cluster copies: a large one, or a run of small ones."""

from dataclasses import dataclass

from loader.errors import ObjectNotFound, PenstockError

from ...compute.work import Node, Work
from .compare import Compared
from .copy_many import copied_here
from .copy_one import Transfer, requests_of
from .items import Copied, Item
from .rate_limit import Pace

COPY_BYTES_PER_S = 50e6
"""Estimated bytes that a process copies per second."""
OBJECT_S = 0.02
"""Estimated overhead of an object, in s."""
SLOWEST_BYTES_PER_S = 1e6
"""A unit copied slower than this, after ten minutes of grace, fails."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CopySettings:
    """How a process copies objects, for all units of a job."""

    source: str
    """URL of the source."""
    target: str
    """URL of the target."""
    compared: bool
    """True if items without a digest are read twice, as for a root."""
    may_exist: bool
    """True if any may exist already."""
    hash: str
    """One of `digest.KINDS`, for objects without an expected digest."""
    at_once: int
    """Objects at once."""
    requests_per_s: float | None
    """Most requests per second, a process's share; None: no limit."""
    bytes_per_s: float | None
    """Most bytes per second, a process's share; None: no limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyUnit:
    """Objects to copy."""

    settings: CopySettings
    """Settings of all units of the job."""
    items: list[Item]
    """The objects."""

    @property
    def nbytes(self) -> int:
        """Their bytes, as far as known."""
        return sum(item.nbytes or 0 for item in self.items)

    @property
    def waits_s(self) -> float:
        """Seconds that the limits take by themselves."""
        requests = sum(sum(requests_of(item.nbytes)) for item in self.items)
        return max(
            requests / self.settings.requests_per_s if self.settings.requests_per_s else 0.0,
            self.nbytes / self.settings.bytes_per_s if self.settings.bytes_per_s else 0.0,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class NotCopied:
    """An object that was not copied."""

    path: str
    """Its key."""
    nbytes: int | None
    """Size in bytes; None if unknown."""
    is_missing: bool
    """True if it is no object, or the source lost it."""
    why: str
    """The reason."""

    @property
    def error(self) -> PenstockError:
        """The reason as an error."""
        return ObjectNotFound(self.why) if self.is_missing else PenstockError(self.why)


@dataclass(frozen=True, slots=True, kw_only=True)
class CopiedUnit:
    """Result of a unit."""

    copied: list[Copied]
    """Objects in the target, by key."""
    failed: list[NotCopied]
    """The others, by key."""


def copy_unit(unit: CopyUnit, node: Node) -> CopiedUnit:
    """Copy the objects of a unit; name failures, and go on."""
    failed: list[NotCopied] = []

    def name(path: str, error: PenstockError, nbytes: int | None) -> None:
        is_missing = isinstance(error, ObjectNotFound)
        failed.append(NotCopied(path=path, nbytes=nbytes, is_missing=is_missing, why=str(error)))

    settings = unit.settings
    arrivals = copied_here(
        iter(unit.items),
        _transfer(settings, node),
        name,
        at_once=settings.at_once,
        may_exist=settings.may_exist,
    )
    copied = sorted(arrivals, key=lambda copied: copied.path)
    return CopiedUnit(copied=copied, failed=sorted(failed, key=lambda missing: missing.path))


def _cost_s(unit: CopyUnit) -> float:
    return max(len(unit.items) * OBJECT_S + unit.nbytes / COPY_BYTES_PER_S, unit.waits_s)


def _limit_s(unit: CopyUnit) -> float:
    # (an object may be read twice, and back; all units of a process share its limits)
    return 600.0 + 60.0 * len(unit.items) + unit.nbytes / SLOWEST_BYTES_PER_S + 10 * unit.waits_s


COPY = Work(
    name="migrate",
    version="1",
    function=copy_unit,
    unit=CopyUnit,
    result=CopiedUnit,
    timeout_s=_limit_s,
    cost_s=_cost_s,
)

_transfers: dict[CopySettings, Transfer | Compared] = {}
"""A worker process copies for one job: all units share limits and threads."""


def _transfer(settings: CopySettings, node: Node) -> Transfer | Compared:
    if settings not in _transfers:
        _transfers.clear()
        source, target = node.open(settings.source), node.open(settings.target)
        transfer = Transfer(
            source, target, Pace(settings.requests_per_s, settings.bytes_per_s), hash=settings.hash
        )
        _transfers[settings] = Compared(source, target, transfer) if settings.compared else transfer
    return _transfers[settings]
