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
"""Bytes that a process copies in a second, about: by this units are cut into blocks."""
OBJECT_S = 0.02
"""Seconds that an object takes beside its bytes, about."""
SLOWEST_BYTES_PER_S = 1e6
"""A unit that is copied slower than this, after ten minutes of grace, is given up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """The way in which a process copies objects: one for all units of a job."""

    source: str
    """URL of the source."""
    target: str
    """URL of the target."""
    compared: bool
    """True where items without a digest are read twice, as a root's are."""
    look: bool
    """True where any may be there already."""
    hash: str
    """One of `digest.KINDS`, taken of objects without an expected digest."""
    at_once: int
    """Objects at once."""
    requests_per_s: float | None
    """Requests per second, at most: a process's share of the limit; None: no limit."""
    bytes_per_s: float | None
    """Bytes per second, likewise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyUnit:
    """Objects to copy."""

    way: Way
    """Way of all units of the job."""
    items: list[Item]
    """The objects."""

    @property
    def nbytes(self) -> int:
        """Their bytes, as far as their sizes are known."""
        return sum(item.nbytes or 0 for item in self.items)

    @property
    def waits_s(self) -> float:
        """Seconds that the limits take by themselves."""
        requests = sum(sum(requests_of(item.nbytes)) for item in self.items)
        return max(
            requests / self.way.requests_per_s if self.way.requests_per_s else 0.0,
            self.nbytes / self.way.bytes_per_s if self.way.bytes_per_s else 0.0,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class NotCopied:
    """An object that was not copied."""

    path: str
    """Its key."""
    nbytes: int | None
    """Its size in bytes; None where it is not known."""
    is_missing: bool
    """True where it is no object, or the source has it no more."""
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
    """Objects that are in the target, by key."""
    failed: list[NotCopied]
    """The others, by key."""


def copy_unit(unit: CopyUnit, node: Node) -> CopiedUnit:
    """Copy the objects of a unit; one that cannot be copied is named, and the others go on."""
    failed: list[NotCopied] = []

    def name(path: str, error: PenstockError, nbytes: int | None) -> None:
        is_missing = isinstance(error, ObjectNotFound)
        failed.append(NotCopied(path=path, nbytes=nbytes, is_missing=is_missing, why=str(error)))

    way = unit.way
    found = copied_here(iter(unit.items), _transfer(way, node), name, at_once=way.at_once, look=way.look)
    copied = sorted(found, key=lambda one: one.path)
    return CopiedUnit(copied=copied, failed=sorted(failed, key=lambda one: one.path))


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

_transfers: dict[Way, Transfer | Compared] = {}
"""A worker process copies for one job: its limits and its threads serve all units."""


def _transfer(way: Way, node: Node) -> Transfer | Compared:
    if way not in _transfers:
        _transfers.clear()
        source, target = node.open(way.source), node.open(way.target)
        transfer = Transfer(source, target, Pace(way.requests_per_s, way.bytes_per_s), hash=way.hash)
        _transfers[way] = Compared(source, target, transfer) if way.compared else transfer
    return _transfers[way]
