"""Ticks over places in memory."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from assets.arrivals.progress import TickBudget, TickDataset, TickResult
from assets.arrivals.tick import tick
from assets.sources import BatchLimits, Source
from loader.storage import ObjectInfo, Store

NOW_US = 1_900_000_000_000_000


class Place:
    """A landing place with a clock of its own, which counts what is listed."""

    def __init__(self, url: str = "memory://place") -> None:
        self.url = url
        self.objects: dict[str, ObjectInfo] = {}
        self.n_listed = 0
        self._etags = 0

    def put(self, *keys: str, at_us: int = NOW_US, nbytes: int = 1) -> None:
        for key in keys:
            self._etags += 1
            self.objects[key] = ObjectInfo(key=key, nbytes=nbytes, etag=str(self._etags), modified_us=at_us)

    def list(self, prefix: str = "", start_after: str | None = None) -> Iterator[ObjectInfo]:
        for key in sorted(self.objects):
            if key.startswith(prefix) and key > (start_after or ""):
                self.n_listed += 1
                yield self.objects[key]

    def head(self, key: str) -> ObjectInfo:
        return self.objects[key]


class Ticking:
    """Ticks over places by the names of their sources."""

    def __init__(self, store: Store, limits: BatchLimits, *sources: Source, **places: Any) -> None:
        self.sources, self.places = sources or (Source(),), places
        self.dataset = TickDataset(store=store, name="d", limits=limits, now_us=NOW_US)
        self.budget = TickBudget()

    @contextmanager
    def opened(self, source: Source) -> Iterator[Any]:
        yield self.places[source.name]

    def __call__(self, later_s: float = 0) -> list[TickResult]:
        self.dataset = replace(self.dataset, now_us=self.dataset.now_us + int(later_s * 1_000_000))
        return tick(self.dataset, self.sources, self.opened, self.budget)
