"""Limits and results of one tick of discovery at one source, and the progress that is kept between ticks.

Kept are the key that discovery has reached at a source, and the objects that wait there for a full batch.

    tables/<dataset>/arrivals/<source>/waiting.parquet      replaced by every tick
    tables/<dataset>/arrivals/<source>/paused.json          there while the source is paused

All of it may be lost: a hint of where to go on, never the truth. The manifests alone say which objects are in a batch.
Objects that waited, and are forgotten, are found again by the next pass over the listing.
"""

import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
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
        ("arrived_us", pa.int64()),  # since 1970: last written, by the store's clock
        ("files", pa.list_(pa.string())),
    ]
)
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """An object that waits."""

    item: RawObject
    """The object."""
    arrived_us: int
    """Time of its last write, or of its first sight where the store does not tell."""


@dataclass(slots=True, kw_only=True)
class Progress:
    """Progress of one source."""

    cursor: str = ""
    """Last key that was listed and dealt with; "" between two passes."""
    n_passes: int = 0
    """Complete passes."""
    listed: int = 0
    """Objects listed in the pass that goes on."""
    not_taken: dict[str, int] = field(default_factory=dict)
    """Reason -> objects not taken in the pass that goes on."""
    last_listed: int = 0
    """Objects listed in the last complete pass."""
    last_not_taken: dict[str, int] = field(default_factory=dict)
    """Reason -> objects not taken in the last complete pass."""
    taken: list[tuple[int, int]] = field(default_factory=list)
    """(time in microseconds, objects) of the last hour."""
    waiting: dict[str, Waiting] = field(default_factory=dict)
    """URI -> object, in the order of their arrival here."""
    held: list[str] = field(default_factory=list)
    """Files of a feed that were read and name objects that wait."""
    read: dict[str, int] = field(default_factory=dict)
    """Other files of a feed -> notices read."""
    at_us: int = 0
    """Time of the last tick."""

    def refused(self, reason: str) -> None:
        """Count an object that is not taken."""
        self.not_taken[reason] = self.not_taken.get(reason, 0) + 1

    def end_pass(self) -> None:
        """Begin the next pass at the beginning of the listing, which has come to its end: it finds what was late."""
        self.last_listed, self.last_not_taken = self.listed, self.not_taken
        self.cursor, self.listed, self.not_taken = "", 0, {}
        self.n_passes += 1

    def room(self, per_hour: int | None, now_us: int) -> int | None:
        """Return the number of objects that the last hour still has room for; None: any number."""
        self.taken = [(at, n) for at, n in self.taken if at > now_us - HOUR_US]
        return None if per_hour is None else max(0, per_hour - sum(n for _, n in self.taken))


def read_progress(store: Store, dataset: str, source: str) -> Progress:
    """Return the progress of a source; a fresh one where none is kept, or it cannot be read."""
    path = f"{_folder(dataset, source)}waiting.parquet"
    try:
        table = parse_table(store.get(path).data, path)
        facts = _typed(parse_json_object(table_facts(table)["progress"]))
        waiting = {}
        for row in table.select(_SCHEMA.names).cast(_SCHEMA).to_pylist():
            item = RawObject(**{**row, "files": tuple(row["files"])})
            waiting[row["uri"]] = Waiting(item=item, arrived_us=row["arrived_us"])
        return Progress(**facts, waiting=waiting)
    except ObjectNotFound:
        return Progress()
    except (FormatTooNew, *DAMAGED, pa.ArrowException) as error:
        _log.warning("%s/%s is no use, a new pass begins: %s", store.url, path, error)
        return Progress()


def _typed(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts of `write_progress`, each of its type. Raises: those of `DAMAGED` for anything else."""
    return {name: _FACTS[name](value) for name, value in facts.items()}


def _counts(told: Mapping[str, Any]) -> dict[str, int]:
    return {_text(name): int(n) for name, n in told.items()}


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r:.100} is no text")
    return value


_FACTS: Mapping[str, Callable[[Any], Any]] = {
    **dict.fromkeys(("n_passes", "listed", "last_listed", "at_us"), int),
    **dict.fromkeys(("not_taken", "last_not_taken", "read"), _counts),
    "cursor": _text,
    "held": lambda names: [_text(name) for name in names],
    "taken": lambda hours: [(int(at), int(n)) for at, n in hours],
}


def write_progress(store: Store, dataset: str, source: str, progress: Progress) -> None:
    """Replace the progress that is kept, whole."""
    facts = {name: getattr(progress, name) for name in Progress.__slots__ if name != "waiting"}
    rows = [asdict(one.item) | {"arrived_us": one.arrived_us} for one in progress.waiting.values()]
    table = pa.Table.from_pylist(rows, schema=_SCHEMA)
    body = table_bytes(table, _KIND, facts={"progress": json.dumps(facts)})
    store.put(f"{_folder(dataset, source)}waiting.parquet", body)


def pause(store: Store, dataset: str, source: str, *, reason: str, by: str) -> None:
    """Take nothing of the source from the next tick on, until `resume`. Batches that are made go on."""
    body = {"reason": reason, "by": by, "at_us": time.time_ns() // 1000}
    store.put(f"{_folder(dataset, source)}paused.json", canonical(body))


def resume(store: Store, dataset: str, source: str) -> bool:
    """End a pause, and return whether there was one."""
    was = paused(store, dataset, source) is not None
    store.delete_many([f"{_folder(dataset, source)}paused.json"])
    return was


def paused(store: Store, dataset: str, source: str) -> Mapping[str, Any] | None:
    """Return who paused the source, why and when; None for a source that is not paused.

    A file that somebody wrote by hand counts, whatever is in it.
    """
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


_MANY_BATCHES = 64  # that one tick makes of a source


@dataclass(frozen=True, slots=True, kw_only=True)
class TickBudget:
    """Limits of one tick, all sources together. The rest goes on with the next tick."""

    max_listed: int = 100_000
    """Most keys listed."""
    max_s: float = 20.0
    """Most seconds of listing, looked at every 32,768 keys."""
    max_notices: int = 4096
    """Most notices of feeds, one HEAD each."""


DEFAULT_BUDGET = TickBudget()


@dataclass(slots=True, kw_only=True)
class Step:
    """Results of a tick at one source."""

    source: str
    """Name of the source."""
    listed: int = 0
    """Keys listed."""
    found: int = 0
    """Objects that are new."""
    made: list[str] = field(default_factory=list)
    """Keys of the batches made."""
    waiting: int = 0
    """Objects left waiting."""
    oldest_s: float = 0.0
    """Seconds that the oldest of them has waited."""
    cursor: str = ""
    """Last key that was listed; "" between two passes."""
    n_passes: int = 0
    """Complete passes over the listing."""
    not_taken: Mapping[str, int] = field(default_factory=dict)
    """Reason -> objects not taken, of this pass or else of the last one."""
    note: str = ""
    """Reason why nothing, or not all, was done; "" for none."""
    failed: bool = False
    """True where the source, or its feed, raised an error."""
    set_aside: list[str] = field(default_factory=list)
    """Notices that make no sense: where they stand, and why."""
    unlisted: list[str] = field(default_factory=list)
    """The first objects that the listing could not hand out, and why: names that are no keys, links out of a folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """The dataset that a tick works for."""

    store: Store
    """Store of the root."""
    name: str
    """Name of the dataset."""
    limits: BatchLimits
    """Sizes of its batches."""
    denies: Sequence[Deny] = ()
    """Takedowns of the root."""
    now_us: int = 0
    """Time of the tick, in microseconds since 1970."""
    by_subject: bool = False
    """True where each folder is a subject."""

    def denied(self) -> DeniedObjects:
        return DeniedObjects(self.denies, self.name, by_subject=self.by_subject)


@dataclass(slots=True, kw_only=True)
class Work:
    """One source in one tick."""

    dataset: Dataset
    """The dataset."""
    source: Source
    """The source."""
    place: Store
    """Its place, opened."""
    progress: Progress
    """Its progress, which the tick changes."""
    book: Book
    """Manifests of the dataset."""
    denied: DeniedObjects
    """Takedowns that its objects are held against."""
    budget: TickBudget
    """Limits of the tick for this source."""
    step: Step
    """Results so far, which the tick changes."""

    def admit(self, infos: Sequence[ObjectInfo], room: int) -> int:
        """Let new objects of `infos` wait for a batch.

        Returns how many of `infos`, from the first on, were dealt with: those behind the `room`-th new one were not.
        """
        progress = self.progress
        base = self.place.url.rstrip("/")
        found = [(f"{base}/{info.key}", info.etag) for info in infos]
        for position in unseen(found, batched(self.book)):
            info = infos[position]
            item = raw_object(self.place, info)
            waits = progress.waiting.get(item.uri)
            if waits is not None and waits.item.etag == item.etag:
                continue
            if self.denied.has(item):
                progress.refused("taken_down")
            elif is_there(self.place, info):
                if not room:
                    return position
                room -= 1
                arrived_us = info.modified_us if info.modified_us is not None else self.dataset.now_us
                progress.waiting.pop(item.uri, None)  # an overwritten one waits anew
                progress.waiting[item.uri] = Waiting(item=item, arrived_us=arrived_us)
                self.step.found += 1
        return len(infos)

    def room(self) -> int:
        """Return the number of objects that this tick may still take in here."""
        source, limits, found = self.source, self.dataset.limits, self.step.found
        hour = self.progress.room(source.objects_per_hour, self.dataset.now_us)
        rooms = [limits.max_objects * (limits.max_batches or _MANY_BATCHES) - len(self.progress.waiting)]
        if hour is not None:
            rooms.append(hour - found)
        if source.objects_per_tick is not None:
            rooms.append(source.objects_per_tick - found)
        return max(0, min(rooms))


def batched(book: Book) -> "pl.DataFrame":
    """Return uri and etag of every object that a batch names."""
    import polars as pl  # loading the definitions must not cost it

    return pl.DataFrame(book.seen())
