"""State of discovery: budgets, results of a tick, and each source's progress, which may be lost.

tables/<dataset>/arrivals/<source>/waiting.parquet      replaced by every tick
tables/<dataset>/arrivals/<source>/paused.json          present while the source is paused
"""

import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from loader.dataset.log.entries import DAMAGED, canonical
from loader.dataset.log.state import Deny
from loader.dataset.names import check_dataset_name
from loader.dataset.tables.parquet import parse_table, table_bytes, table_facts
from loader.errors import FormatTooNew, ObjectNotFound
from loader.json_text import DamagedJson, parse_json_object
from loader.storage import ObjectInfo, Store

from ..sources import BatchLimits, Source
from .batch_manifests import Book, DeniedObjects, RawObject
from .make_batches import is_there, raw_object, unseen

if TYPE_CHECKING:
    import polars as pl


HOUR_US = 3_600_000_000
_KIND = "waiting-objects"
_SCHEMA = pa.schema(
    [
        ("key", pa.string()),
        ("uri", pa.string()),
        ("nbytes", pa.int64()),
        ("etag", pa.string()),
        ("arrived_us", pa.int64()),  # last write by the store's clock, at most the first listing's time
        ("files", pa.list_(pa.string())),
    ]
)
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    item: RawObject
    """Object that waits."""
    arrived_us: int
    """Last write by the store's clock, at most the time of its first listing; microseconds since 1970."""


@dataclass(slots=True, kw_only=True)
class Progress:
    """Progress of one source."""

    cursor: str = ""
    """Last key handled; "" between passes."""
    n_passes: int = 0
    """Complete passes."""
    listed: int = 0
    """Objects listed in this pass."""
    not_taken: dict[str, int] = field(default_factory=dict)
    """Reason -> objects skipped in this pass."""
    last_listed: int = 0
    """Objects listed in the last complete pass."""
    last_not_taken: dict[str, int] = field(default_factory=dict)
    """Reason -> objects skipped in the last complete pass."""
    admitted: list[tuple[int, int]] = field(default_factory=list)
    """(microseconds since 1970, objects) per tick of the last hour."""
    waiting: dict[str, Waiting] = field(default_factory=dict)
    """URI -> waiting object, in the order of discovery."""
    held: list[str] = field(default_factory=list)
    """Names of messages whose objects wait."""
    read: dict[str, int] = field(default_factory=dict)
    """Partly read file -> notices read."""
    retries: dict[str, int] = field(default_factory=dict)
    """File of an object that the store refused to show -> earliest next read, microseconds since 1970."""
    at_us: int = 0
    """Last tick, microseconds since 1970."""
    rest_us: int = 0
    """Last batch that was not full, microseconds since 1970; 0 before the first."""

    def correct_times(self, now_us: int) -> None:
        """Set later times to `now_us`: the clock was set back, or an earlier release stored the date of an object."""
        self.rest_us = min(self.rest_us, now_us)
        if now_us < self.at_us:  # a retry is due after the tick that set it
            self.retries = {name: min(at_us, now_us) for name, at_us in self.retries.items()}
        self.admitted = [(min(at_us, now_us), n) for at_us, n in self.admitted]
        for uri, waiting in self.waiting.items():
            if waiting.arrived_us > now_us:
                self.waiting[uri] = replace(waiting, arrived_us=now_us)

    def refused(self, reason: str) -> None:
        """Count one skipped object under its reason."""
        self.not_taken[reason] = self.not_taken.get(reason, 0) + 1

    def end_pass(self) -> None:
        """End a pass; the next one starts at the beginning of the listing."""
        self.last_listed = self.listed
        self.last_not_taken = self.not_taken
        self.cursor = ""
        self.listed = 0
        self.not_taken = {}
        self.n_passes += 1

    def room(self, per_hour: int | None, now_us: int) -> int | None:
        """Return how many objects the hourly limit still allows; None without a limit."""
        self.admitted = [(at, n) for at, n in self.admitted if at > now_us - HOUR_US]
        if per_hour is None:
            return None
        return max(0, per_hour - sum(n for _, n in self.admitted))


def read_progress(store: Store, dataset: str, source: str) -> Progress:
    """Return a source's progress; empty if none is stored or it is unreadable."""
    path = f"{_folder(dataset, source)}waiting.parquet"
    try:
        table = parse_table(store.get(path).data, path)
        facts = _fact_values(parse_json_object(table_facts(table)["progress"]))
        waiting = {}
        for row in table.select(_SCHEMA.names).cast(_SCHEMA).to_pylist():
            item = RawObject(**{**row, "files": tuple(row["files"])})
            waiting[row["uri"]] = Waiting(item=item, arrived_us=row["arrived_us"])
        return Progress(**facts, waiting=waiting)
    except ObjectNotFound:
        return Progress()
    except (FormatTooNew, *DAMAGED, pa.ArrowException) as error:
        # Lost progress costs one more pass: the manifests show which objects have a batch.
        _log.warning("ignoring %s/%s, a new pass begins: %s", store.url, path, error)
        return Progress()


def _fact_values(facts: Mapping[str, Any]) -> dict[str, Any]:
    return {_FIELDS.get(name, name): _FACTS[name](value) for name, value in facts.items()}


def _counts(counts: Mapping[str, Any]) -> dict[str, int]:
    return {_text(name): int(n) for name, n in counts.items()}


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r:.100} is not text")
    return value


_FIELDS = {"taken": "admitted"}
"""Stored name -> field name, where they differ."""
_FACTS: Mapping[str, Callable[[Any], Any]] = {
    **dict.fromkeys(("n_passes", "listed", "last_listed", "at_us", "rest_us"), int),
    **dict.fromkeys(("not_taken", "last_not_taken", "read", "retries"), _counts),
    "cursor": _text,
    "held": lambda names: [_text(name) for name in names],
    "taken": lambda hours: [(int(at), int(n)) for at, n in hours],
}


def write_progress(store: Store, dataset: str, source: str, progress: Progress) -> None:
    """Replace the stored progress."""
    facts = {name: getattr(progress, _FIELDS.get(name, name)) for name in _FACTS}
    rows = [asdict(one.item) | {"arrived_us": one.arrived_us} for one in progress.waiting.values()]
    table = pa.Table.from_pylist(rows, schema=_SCHEMA)
    body = table_bytes(table, _KIND, facts={"progress": json.dumps(facts)})
    store.put(f"{_folder(dataset, source)}waiting.parquet", body)


def pause(store: Store, dataset: str, source: str, *, reason: str, by: str) -> None:
    """Stop admitting objects of the source from the next tick on, until `resume`. Existing batches continue."""
    body = {"reason": reason, "by": by, "at_us": time.time_ns() // 1000}
    store.put(f"{_folder(dataset, source)}paused.json", canonical(body))


def resume(store: Store, dataset: str, source: str) -> bool:
    """End a pause; return whether there was one."""
    was_paused = source_pause(store, dataset, source) is not None
    store.delete_many([f"{_folder(dataset, source)}paused.json"])
    return was_paused


def source_pause(store: Store, dataset: str, source: str) -> Mapping[str, Any] | None:
    """Return who paused the source, why and when; None if it is not paused. An unreadable file counts as a pause."""
    try:
        data = store.get(f"{_folder(dataset, source)}paused.json").data
    except ObjectNotFound:
        return None
    try:
        return parse_json_object(data)
    except DamagedJson:
        return {}


def _folder(dataset: str, source: str) -> str:
    return f"tables/{check_dataset_name(dataset)}/arrivals/{source}/"


_MANY_BATCHES = 64  # full batches of waiting objects that a source may queue, unless `max_batches` is set


@dataclass(frozen=True, slots=True, kw_only=True)
class TickBudget:
    """Limits of one tick over all sources. The next tick continues."""

    max_listed: int = 100_000
    """Most keys listed."""
    max_s: float = 20.0
    """Most seconds of listing, checked every 32,768 keys."""
    max_notices: int = 4096
    """Most notices read; each costs one HEAD."""


DEFAULT_BUDGET = TickBudget()


@dataclass(slots=True, kw_only=True)
class TickResult:
    source: str
    """Name of the source."""
    listed: int = 0
    """Keys listed."""
    n_new: int = 0
    """New objects."""
    batches: list[str] = field(default_factory=list)
    """Keys of the new batches."""
    waiting: int = 0
    """Waiting objects."""
    oldest_s: float = 0.0
    """Longest wait among the waiting objects, in seconds."""
    cursor: str = ""
    """Last key listed; "" between passes."""
    n_passes: int = 0
    """Complete passes."""
    not_taken: Mapping[str, int] = field(default_factory=dict)
    """Reason -> objects skipped in this, or the last, pass."""
    note: str = ""
    """Why the tick did not do everything, or ""."""
    failed: bool = False
    """True if source or feed raised an error."""
    set_aside: list[str] = field(default_factory=list)
    """Location and reason of each unreadable notice."""
    unlisted: list[str] = field(default_factory=list)
    """First objects that the listing refused, and why: invalid keys, or links that leave a folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TickDataset:
    store: Store
    """Root's store."""
    name: str
    limits: BatchLimits
    """Batch sizes."""
    denies: Sequence[Deny] = ()
    """Root's takedowns."""
    now_us: int = 0
    """Time of the tick, in microseconds since 1970."""
    by_subject: bool = False
    """True if each folder is a subject."""

    def denied(self) -> DeniedObjects:
        return DeniedObjects(self.denies, self.name, by_subject=self.by_subject)


@dataclass(slots=True, kw_only=True)
class SourceTick:
    """One source during one tick."""

    dataset: TickDataset
    """Dataset to advance."""
    source: Source
    place: Store
    """Source's store, opened."""
    progress: Progress
    """Progress of the source, updated by the tick."""
    book: Book
    """Manifests of the dataset."""
    denied: DeniedObjects
    """Takedowns that exclude objects."""
    budget: TickBudget
    """Limits for this source."""
    step: TickResult
    """Results so far, updated by the tick."""

    def admit(self, infos: Sequence[ObjectInfo], room: int) -> int:
        """Let at most `room` new objects wait for a batch; return how many leading `infos` were handled."""
        progress = self.progress
        base = self.place.url.rstrip("/")
        identities = [(f"{base}/{info.key}", info.etag) for info in infos]
        for position in unseen(identities, batched_objects(self.book)):
            info = infos[position]
            item = raw_object(self.place, info, self.dataset.now_us)
            waits = progress.waiting.get(item.uri)
            if waits is not None and waits.item.etag == item.etag:
                continue
            if self.denied.has(item):
                progress.refused("taken_down")
            elif is_there(self.place, info):
                if not room:
                    # The cursor stays before this object, so the next tick begins with it.
                    return position
                room -= 1
                if info.modified_us is None:
                    arrived_us = self.dataset.now_us
                else:
                    arrived_us = item.arrived_us
                progress.waiting.pop(item.uri, None)  # an overwritten object waits from now on
                progress.waiting[item.uri] = Waiting(item=item, arrived_us=arrived_us)
                self.step.n_new += 1
        return len(infos)

    def room(self) -> int:
        """Return how many more objects this tick may admit from the source."""
        source = self.source
        limits = self.dataset.limits
        n_new = self.step.n_new
        hour = self.progress.room(source.objects_per_hour, self.dataset.now_us)
        rooms = [limits.max_objects * (limits.max_batches or _MANY_BATCHES) - len(self.progress.waiting)]
        if hour is not None:
            rooms.append(hour - n_new)
        if source.objects_per_tick is not None:
            rooms.append(source.objects_per_tick - n_new)
        return max(0, min(rooms))


def batched_objects(book: Book) -> "pl.DataFrame":
    """Return the uri and etag of every batched object."""
    import polars as pl  # slow to import, and not needed to load the definitions

    return pl.DataFrame(book.seen())
