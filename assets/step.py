"""What one tick of discovery may do at one source, and what it did."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from loader.dataset.history import Deny
from loader.storage import ObjectInfo, Store

from .denied import DeniedObjects
from .discovery import is_there, raw_object, unseen
from .manifests import Book
from .sources import BatchLimits, Source
from .waiting import Progress, Waiting

if TYPE_CHECKING:
    import polars as pl

_MANY_BATCHES = 64  # that one tick makes of a source


@dataclass(frozen=True, slots=True, kw_only=True)
class TickBudget:
    """What one tick may cost, all sources together. max_listed: keys; max_s: seconds of listing, looked at every
    32,768 keys; max_notices: of feeds, one HEAD each. What is left goes on with the next tick."""

    max_listed: int = 100_000
    max_s: float = 20.0
    max_notices: int = 4096


DEFAULT_BUDGET = TickBudget()


@dataclass(slots=True, kw_only=True)
class Step:
    """What a tick did at one source. made: keys of its batches; waiting: objects left; oldest_s: how long the oldest
    of them has been there; not_taken: by reason, of this pass or else of the last one; note: why nothing, or not all,
    was done; set_aside: notices that make no sense, where they stand and why."""

    source: str
    listed: int = 0
    found: int = 0
    made: list[str] = field(default_factory=list)
    waiting: int = 0
    oldest_s: float = 0.0
    cursor: str = ""
    n_passes: int = 0
    not_taken: Mapping[str, int] = field(default_factory=dict)
    note: str = ""
    failed: bool = False
    set_aside: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """What a tick works for. now_us: the time, since 1970; by_subject: each folder is a subject."""

    store: Store
    name: str
    limits: BatchLimits
    denies: Sequence[Deny] = ()
    now_us: int = 0
    by_subject: bool = False

    def denied(self) -> DeniedObjects:
        return DeniedObjects(self.denies, self.name, by_subject=self.by_subject)


@dataclass(slots=True, kw_only=True)
class Work:
    """One source in one tick."""

    dataset: Dataset
    source: Source
    place: Store
    progress: Progress
    book: Book
    denied: DeniedObjects
    budget: TickBudget
    step: Step

    def admit(self, infos: Sequence[ObjectInfo], room: int) -> int:
        """Let new objects of `infos` wait for a batch; how many of `infos`, from the first on, were dealt with: those
        behind the `room`-th new one were not."""
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
        """How many more objects this tick may take in here."""
        source, limits, found = self.source, self.dataset.limits, self.step.found
        hour = self.progress.room(source.objects_per_hour, self.dataset.now_us)
        rooms = [limits.max_objects * (limits.max_batches or _MANY_BATCHES) - len(self.progress.waiting)]
        if hour is not None:
            rooms.append(hour - found)
        if source.objects_per_tick is not None:
            rooms.append(source.objects_per_tick - found)
        return max(0, min(rooms))


def batched(book: Book) -> "pl.DataFrame":
    """uri, etag of every object that a batch names."""
    import polars as pl  # loading the definitions must not cost it

    return pl.DataFrame(book.seen())
