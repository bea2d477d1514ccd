"""Copy objects on a cluster: a unit is one large object, or several small ones."""

import hashlib
import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, count

from loader.errors import ObjectNotFound, PenstockError
from loader.storage import is_there, open_store

from ...compute.attach import follow
from ...compute.cluster import Cluster
from ...compute.job import Job, JobFolder
from ...compute.pool import Failure
from ...compute.submit import BlockOutcomes, Submission, created, find_job, name_other
from ...compute.work import Node, StoredPlace, Work
from .copy_many import Copies, Migration, copy_here
from .copy_one import Compared, Transfer, count_copy_requests
from .items import HELD_BYTES, Copied, Item, Pace
from .journal import Journal

COPY_BYTES_PER_S = 50e6
"""Estimated bytes per second that one process copies."""
OBJECT_S = 0.02
"""Estimated overhead per object, in seconds."""
SLOWEST_BYTES_PER_S = 1e6
"""Bytes per second below which a unit fails, after ten minutes of grace plus one per object."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CopySettings:
    """One process's copy settings."""

    source: str
    """Source URL."""
    target: str
    """Target URL."""
    compared: bool
    """True if items without a digest are read twice, as in a root."""
    may_exist: bool
    """True if the target may already have some objects."""
    hash: str
    """Digest kind, one of `KINDS`, for objects without an expected digest."""
    at_once: int
    """Objects copied at once."""
    requests_per_s: float | None
    """Most requests per second for one process; None: no limit."""
    bytes_per_s: float | None
    """Most bytes per second for one process; None: no limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyUnit:
    """One unit of work: objects to copy."""

    settings: CopySettings
    """Copy settings, shared by all units."""
    items: list[Item]
    """Objects."""

    @property
    def nbytes(self) -> int:
        """Total size in bytes of the objects whose size is known."""
        return sum(item.nbytes or 0 for item in self.items)

    @property
    def waits_s(self) -> float:
        """Shortest time in seconds that the rate limits allow."""
        requests = sum(sum(count_copy_requests(item.nbytes)) for item in self.items)
        return max(
            requests / self.settings.requests_per_s if self.settings.requests_per_s else 0.0,
            self.nbytes / self.settings.bytes_per_s if self.settings.bytes_per_s else 0.0,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class NotCopied:
    """An object that was not copied."""

    path: str
    """Key."""
    nbytes: int | None
    """Size in bytes; None if unknown."""
    is_missing: bool
    """True if the source has no such object."""
    why: str
    """Reason."""

    @property
    def error(self) -> PenstockError:
        """The reason as an exception."""
        if self.is_missing:
            return ObjectNotFound(self.why)
        return PenstockError(self.why)


@dataclass(frozen=True, slots=True, kw_only=True)
class CopiedUnit:
    """Result of one unit."""

    copied: list[Copied]
    """Copied objects, sorted by key."""
    failed: list[NotCopied]
    """Objects that were not copied, sorted by key."""


def copy_unit(unit: CopyUnit, node: Node) -> CopiedUnit:
    """Copy a unit's objects; a failure is returned, not raised."""
    failed: list[NotCopied] = []

    def name(path: str, error: PenstockError, nbytes: int | None) -> None:
        is_missing = isinstance(error, ObjectNotFound)
        # Its text and kind only: a unit's result is JSON.
        failed.append(NotCopied(path=path, nbytes=nbytes, is_missing=is_missing, why=str(error)))

    settings = unit.settings
    arrivals = copy_here(
        iter(unit.items),
        _transfer(settings, node),
        name,
        at_once=settings.at_once,
        may_exist=settings.may_exist,
    )
    # Objects arrive in any order; sorted, a unit that runs twice has the same result.
    copied = sorted(arrivals, key=lambda copied: copied.path)
    return CopiedUnit(copied=copied, failed=sorted(failed, key=lambda missing: missing.path))


def _cost_s(unit: CopyUnit) -> float:
    return max(len(unit.items) * OBJECT_S + unit.nbytes / COPY_BYTES_PER_S, unit.waits_s)


def _limit_s(unit: CopyUnit) -> float:
    # An object may be read twice and read back; all units of a process share its rate limits.
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
"""This worker process's transfer, shared by all units of its job."""


def _transfer(settings: CopySettings, node: Node) -> Transfer | Compared:
    if settings not in _transfers:
        # The former job's transfer holds a memory budget and reader threads.
        _transfers.clear()
        source = node.open(settings.source)
        target = node.open(settings.target)
        transfer = Transfer(
            source, target, Pace(settings.requests_per_s, settings.bytes_per_s), hash=settings.hash
        )
        _transfers[settings] = Compared(source, target, transfer) if settings.compared else transfer
    return _transfers[settings]


ITEMS = 64
"""Most objects per unit."""
_log = logging.getLogger(__name__)


def migration_job(migration: Migration, attempt: int) -> Job[CopyUnit, CopiedUnit]:
    """Return a migration's job. Its fingerprint includes the rate limits."""
    pace = migration.pace
    # Rate limits too: a run with others must not continue a job whose units have the old ones.
    words = [migration.source.url, migration.target.url, *migration.since, migration.hash]
    words += [str(pace.requests_per_s), str(pace.bytes_per_s)]
    store = migration.target
    place = StoredPlace.of(migration.target)
    if migration.notes:
        # A plain prefix: listings of its media must not show a job's files.
        store = open_store(f"{place.url.rstrip('/')}/{migration.notes.rstrip('/')}", place.options)
    return Job(
        store=store,
        work=COPY,
        about=f"migrate {migration.source.url} to {migration.target.url}",
        fingerprint=hashlib.sha256("\0".join(words).encode()).hexdigest(),
        attempt=attempt,
        stores=[migration.source, migration.target],
    )


def process_settings(migration: Migration, cluster: Cluster) -> CopySettings:
    """Return each process's settings, with its share of the rate limits."""
    # As if all ran at once: the limits are of all machines together, and no process sees the others.
    processes = cluster.slot.number * COPY.resources.units_at_once(cluster.cpus, cluster.memory_bytes)
    requests = migration.pace.requests_per_s
    nbytes = migration.pace.bytes_per_s
    return CopySettings(
        source=StoredPlace.of(migration.source).url,
        target=StoredPlace.of(migration.target).url,
        compared=migration.compared,
        may_exist=migration.may_exist,
        hash=migration.hash,
        at_once=migration.at_once,
        requests_per_s=requests / processes if requests else None,
        bytes_per_s=nbytes / processes if nbytes else None,
    )


def copy_on_cluster(
    cluster: Cluster,
    migration: Migration,
    items: Callable[[], Iterator[Item]],
    journal: Journal,
    report: Copies,
) -> Iterator[Copied]:
    """Copy items on a cluster, after earlier runs' jobs have ended; yield each once the target has it.

    items: returns the items not yet in the journal. Raises: as `attach`.
    """
    engine = cluster.open()
    settings = process_settings(migration, cluster)
    n_others = 0
    try:
        # Jobs of earlier runs first: objects that they copied after a kill are not copied twice.
        for attempt in count():
            job = migration_job(migration, attempt)
            folder = JobFolder(job.store, job.id)
            sha256 = journal.job(job.id)
            if sha256 and (earlier := find_job(folder, sha256)) is not None:
                for value in _outcomes(earlier, follow(earlier, COPY, engine, cluster)):
                    for copied in value.copied:
                        journal.add(copied)
                continue
            there = None
            if not is_there(folder.store, folder.key("job.json")):
                coming = items()
                # No job without work: its folder would stay in the target.
                first = next(coming, None)
                if first is None:
                    return
                there = created(job, _Units(chain([first], coming), settings))
            if there is None:
                n_others += 1
                name_other(folder, "no run of this migration has a note of it", _log.warning, n_others)
                continue
            # Before the wait: after a kill, the next run trusts only jobs that the journal names.
            journal.add_job(job.id, there.description.sha256)
            failed = list[NotCopied]()
            for value in _outcomes(there, follow(there, COPY, engine, cluster)):
                yield from value.copied
                failed += value.failed
            for missing in failed:
                report.failed(missing.path, missing.error, missing.nbytes)
            return
    finally:
        engine.close()


def _outcomes(there: Submission, blocks: Iterable[BlockOutcomes[CopiedUnit]]) -> Iterator[CopiedUnit]:
    for block in blocks:
        for number, outcome in enumerate(block.outcomes):
            # A unit that no worker finished does not end a migration: its objects are reported.
            yield outcome.value or _lost_unit(there, block.number, number, outcome.error)


def _lost_unit(there: Submission, block: int, number: int, error: Failure | None) -> CopiedUnit:
    assert error is not None
    why = f"it was not copied to its end: {error.code}: {error.summary}"
    items = there.folder.units(there.description, block, CopyUnit)[number].items
    failed = [NotCopied(path=one.path, nbytes=one.nbytes, is_missing=False, why=why) for one in items]
    return CopiedUnit(copied=[], failed=failed)


class _Units:
    """Units of at most `ITEMS` objects and `HELD_BYTES`, or one larger object."""

    def __init__(self, items: Iterator[Item], settings: CopySettings) -> None:
        self._items = items
        self._settings = settings

    def __call__(self) -> Iterator[CopyUnit]:
        run: list[Item] = []
        nbytes = 0
        for item in self._items:
            # Before the item is added, so that a large object is a unit of its own.
            if run and (len(run) == ITEMS or nbytes + (item.nbytes or 0) > HELD_BYTES):
                yield CopyUnit(settings=self._settings, items=run)
                run = []
                nbytes = 0
            run.append(item)
            nbytes += item.nbytes or 0
        if run:
            yield CopyUnit(settings=self._settings, items=run)
