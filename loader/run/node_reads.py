"""A loader's reads through the node cache: which stores, which pages are worth keeping, what is needed next."""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

from ..cache.opened import OpenCache
from ..cache.spec import NodeCache
from ..cache.store import CachedStore, Content
from ..dataset.address import SampleAddress
from ..dataset.version import Version
from ..dataset.view import View
from ..order.packed_view import PackedView
from ..order.plan import Plan, PlannedSource
from ..storage import RangeReader, Span, is_local
from .metrics import Metrics

logger = logging.getLogger(__name__)

HINT_SAMPLES = 4096
"""Samples whose places are looked up for a hint: some tens of milliseconds, once in ten seconds."""

Future = Callable[[int], Sequence[SampleAddress]]
"""step -> where this rank's samples of it lie; empty after the last."""


class NodeReads:
    """How a loader reads each of its views. Without a cache, and of a folder of this machine: from its store.

    Raises: InvalidRuntime for a folder that may not be a cache.
    """

    def __init__(self, cache: NodeCache | None, plan: Plan, views: Sequence[View], metrics: Metrics) -> None:
        self._stores: list[RangeReader] = [view.version.store for view in views]
        self._cached: dict[int, CachedStore] = {}
        self._cache: OpenCache | None = None
        remote = [i for i, store in enumerate(self._stores) if not is_local(store)]
        if cache is None:
            return
        if not remote:
            logger.info("every source lies on this machine: the node cache %s is not used", cache.path)
            return
        self._cache = OpenCache(cache, metrics.count)
        sources = list(plan.sources.values())
        live = working_set_bytes([sources[i] for i in remote], [views[i] for i in remote], cache.page_bytes)
        for i in remote:
            self._cached[i] = CachedStore(
                self._stores[i],
                self._cache,
                partial(_content, views[i].version),
                whole_pages=live <= (self._cache.limit_bytes or 0),
            )
            self._stores[i] = self._cached[i]

    def __getitem__(self, view: int) -> RangeReader:
        """What to read a view from."""
        return self._stores[view]

    def look_ahead(self, step: int, future: Future) -> None:
        """Tell the other users of the cache, from time to time, what this loader needs after `step`."""
        if self._cache is not None:
            self._cache.beat(lambda: self._next_pages(step + 1, future))

    def close(self) -> None:
        """Need nothing any more."""
        if self._cache is not None:
            self._cache.close()

    def _next_pages(self, step: int, future: Future) -> Iterator[str]:
        """Pages in the order of their next use, each once."""
        seen: set[str] = set()
        left = HINT_SAMPLES
        while left > 0 and (addresses := future(step)):
            for name in self._pages(addresses):
                if name not in seen:
                    seen.add(name)
                    yield name
            left, step = left - len(addresses), step + 1

    def _pages(self, addresses: Iterable[SampleAddress]) -> Iterator[str]:
        for address in addresses:
            for place in address.fields.values():
                for store in self._cached.values():
                    yield from store.page_names(place.path, Span(place.offset, place.nbytes))


def working_set_bytes(sources: Sequence[PlannedSource], views: Sequence[View], page_bytes: int) -> int:
    """What a cache has to hold for every page of these sources to be fetched once an epoch: the chunks that are read
    side by side, or all of a source that is shuffled sample by sample. An estimate; whole shards count, with the fields
    that are not read, and a version of which there are several views (buckets) counts once at most."""
    live: dict[str, int] = {}
    stored: dict[str, dict[str, int]] = {}
    for source, view in zip(sources, views, strict=True):
        version, shape = view.version, source.shape
        bodies = {group: version.manifest["groups"][group] for group in map(version.group_of, view.fields)}
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
            needed = shape.live_samples * per_sample + shape.lanes * shape.rounds_h * page_bytes
        live[version.id] = live.get(version.id, 0) + needed
    return sum(min(needed, sum(stored[version].values())) for version, needed in live.items())


def _content(version: Version, path: str) -> Content | None:
    found = version.parts.shard_content(path)
    return None if found is None else Content(*found)
