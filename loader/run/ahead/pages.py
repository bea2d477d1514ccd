"""Pages read ahead, each fetched once before its first use, if they fit the cache and are worth their bytes."""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from ...cache.cached_store import CachedStore, Claim
from ...cache.memory import MemoryPages
from ...dataset.versions.version import Version
from ...dataset.versions.view import View
from ...order.plan import PlannedSource
from ...order.sources.packed_view import PackedView
from .next_reads import Extents, Steps


class Page(NamedTuple):
    """A page of one object: fetched once, used by many samples."""

    store: CachedStore
    """Store that the page is read from."""
    key: str
    """Key of the object."""
    number: int
    """Number of the page in the object."""


class PagesAhead:
    """Pages in the order of their next use. memory: where they are kept, if not on a disk, which evicts by hints.

    pages: tells how many there are in all; once memory has every one, or will have, there is nothing to plan.
    """

    def __init__(
        self,
        steps: Steps,
        stores: Mapping[int, CachedStore],
        page_bytes: int,
        memory: MemoryPages | None,
        pages: Callable[[], int],
    ) -> None:
        self._steps, self._stores, self._page_bytes = steps, stores, page_bytes
        self._memory, self._pages = memory, pages

    def units(self, step: int) -> Sequence[Page] | None:
        if self._memory is not None and len(self._memory) >= self._in_all:
            return []
        pages_of_step = self._steps(step)
        if pages_of_step is None:
            return None
        return [
            Page(self._stores[view], key, number)
            for view, shards in pages_of_step.items()
            if view in self._stores
            for key, extents in shards.items()
            if self._stores[view].has_pages(key)
            for number in pages_of(extents, self._page_bytes)
        ]

    @cached_property
    def _in_all(self) -> int:
        return self._pages()

    def expect(self, step: int, units: Sequence[Page]) -> None:
        if self._memory is not None:
            self._memory.needs(step, [page.store.page_name(page.key, page.number) for page in units])

    def claim(self, unit: Page) -> Claim:
        return unit.store.claim(unit.key, unit.number)

    def fetch(self, unit: Page) -> int:
        return unit.store.keep(unit.key, unit.number)

    def give_back(self, unit: Page) -> None:
        unit.store.give_back(unit.key, unit.number)

    def passed(self, step: int) -> None:
        if self._memory is not None:
            self._memory.passed(step)

    def forget(self) -> None:
        if self._memory is not None:
            self._memory.forget()


def pages_of(extents: Extents, page_bytes: int) -> list[int]:
    """Return the numbers of the pages that hold these ranges, ascending, each once."""
    is_read = extents.nbytes > 0
    low = extents.offset[is_read] // page_bytes
    high = (extents.offset[is_read] + extents.nbytes[is_read] - 1) // page_bytes
    most = int((high - low).max(initial=0))
    numbers = np.minimum(low[:, None] + np.arange(most + 1), high[:, None])
    return sorted(set(numbers.ravel().tolist()))


REQUEST_BYTES = 64 * 2**10
"""Cost of a request in bytes: the gap up to which two ranges are read as one (`plan_reads`)."""


def working_set_bytes(
    sources: Sequence[PlannedSource], views: Sequence[View], page_bytes: int, world_size: int = 1
) -> int:
    """Return the bytes that a cache has to hold for every page of these sources to be fetched once an epoch.

    They are the chunks that are read side by side, or all of a source that is shuffled sample by sample. It is an
    estimate: whole shards count, with the fields that are not read. A version of which there are several views
    (buckets) counts once at most.

    world_size: of the ranks that share the chunks; 1 where all of them use the cache.
    """
    live: dict[str, int] = {}
    stored: dict[str, dict[str, int]] = {}
    for source, view in zip(sources, views, strict=True):
        version, shape = view.version, source.shape
        bodies = group_bodies(view)
        whole = {group: int(body["nbytes"]) for group, body in bodies.items()}
        stored.setdefault(version.id, {}).update(whole)
        # A predicate spreads a chunk over more of the shard, at most a page for each of its samples.
        alone = sum(-(-body["nbytes"] // max(body["n_rows"], 1)) + page_bytes for body in bodies.values())
        if isinstance(source.view, PackedView):  # a sequence's documents lie anywhere in their block
            needed = sum(whole.values())
        elif shape.chunk == 1:
            needed = shape.n * alone
        else:
            per_sample = min(-(-sum(whole.values()) // shape.n), alone)
            needed = -(-shape.live_samples * per_sample // world_size)
            needed += -(-shape.lanes * shape.rounds_h * page_bytes // world_size)
        live[version.id] = live.get(version.id, 0) + needed
    return sum(min(needed, sum(stored[version].values())) for version, needed in live.items())


def pages_pay(
    sources: Sequence[PlannedSource], views: Sequence[View], page_bytes: int, world_size: int
) -> bool:
    """Return whether pages cost this rank less than ranges in one epoch, a request counted as REQUEST_BYTES.

    A rank uses one of `world_size` samples of a page where a source is shuffled sample by sample; of one read in chunks
    all. Fields that are not selected are fetched with a page and not without, so this bounds them too.
    """
    by_page = by_range = 0.0
    for source, view in zip(sources, views, strict=True):
        n = len(view) / (world_size if source.shape.chunk == 1 else 1)  # of a packed source: documents
        for body in group_bodies(view).values():
            rows = max(body["n_rows"], 1)
            chosen = sum(nbytes for field, nbytes in body["field_nbytes"].items() if field in view.fields)
            by_range += n * (chosen / rows + REQUEST_BYTES)
            pages = min(-(-body["nbytes"] // page_bytes), n)
            by_page += min(body["nbytes"], pages * page_bytes) + pages * REQUEST_BYTES
    return by_page <= by_range


def group_bodies(view: View) -> dict[str, dict[str, Any]]:
    """Return the manifest's entry of each group that a view reads."""
    version: Version = view.version
    return {group: version.manifest["groups"][group] for group in map(version.group_of, view.fields)}
