"""Reads from remote stores: cached pages or ranges, read ahead, and the choice between the two."""

import hashlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import Any

from ...cache.cached_store import VERIFIED, CachedStore, Content
from ...cache.memory import Count, MemoryPages
from ...cache.node_cache import OpenCache
from ...cache.spec import CacheSpec, NodeCache
from ...dataset.reading.places import Map
from ...dataset.shards.index import IndexFile, IndexPlace
from ...dataset.shards.shard import END_BYTES
from ...dataset.tables.foreign_objects import is_foreign
from ...dataset.versions.version import Version
from ...dataset.versions.view import View
from ...order.plan import PlannedSource
from ...storage import RangeReader
from ..metrics import Metrics
from ..recipe.recipe import Recipe
from ..recipe.video_packet_reads import Group
from .next_reads import (
    AheadReader,
    PagesAhead,
    RangesAhead,
    RankFuture,
    Steps,
    group_bodies,
    pages_of,
    pages_pay,
    working_set_bytes,
)
from .read_ahead import ReadAhead

logger = logging.getLogger(__name__)

IN_FLIGHT = 32
"""Page reads in flight: 1.6 GB/s at 20 ms latency and pages of 1 MiB."""
WINDOW_BYTES = 32 * 2**20
"""Most bytes in flight: the larger the pages, the fewer are read at once."""
RANGES_IN_FLIGHT = 8
"""Range reads in flight, each for one step's ranges in one shard."""
RANGES_BYTES = 256 * 2**20
"""Bytes of ranges held for later batches, in addition to the cache."""
RANGES_STEPS = 16
KNOWN_SAMPLES = 2**18
"""Most samples whose next use is looked up: about 50 MB."""
HINT_SAMPLES = 2**16
"""Samples looked up per hint to a node cache: less than a second, once in ten."""


def open_remote(
    cache: CacheSpec,
    recipe: Recipe,
    videos: Mapping[int, Sequence[Group]],
    metrics: Metrics,
    run: Map,
    end: int | None,
    readers: dict[int, RangeReader],
    remote: Sequence[int],
) -> tuple[OpenCache | MemoryPages, ReadAhead[Any] | None]:
    """Return the open cache and the reads ahead; replace the remote views' stores by cached readers."""
    opened = open_cache(cache, metrics.count)
    limit = opened.limit_bytes or 0
    planned = list(recipe.plan.sources.values())
    stored = recipe.stored
    sources, views = [planned[i] for i in remote], [stored[i] for i in remote]
    ranks = 1 if isinstance(opened, OpenCache) else recipe.world.world_size
    live = working_set_bytes(sources, views, cache.page_bytes, ranks)
    in_pages = live <= limit and pages_pay(sources, views, cache.page_bytes, ranks)
    logger.info(
        "remote sources are read %s: the pages that are read side by side take about %d bytes, of %d there may be",
        "in pages, ahead of their next use" if in_pages else "by ranges, some steps ahead",
        live,
        limit,
    )
    if in_pages or isinstance(opened, OpenCache):
        for i, view in zip(remote, views, strict=True):
            readers[i] = CachedStore(readers[i], opened, _Contents(view.version))
    steps = RankFuture(recipe, videos, end, run)
    hints = Hinting(steps, opened, dict(readers)) if isinstance(opened, OpenCache) else None
    on_plan = hints or _nothing
    if in_pages:
        stores = {i: store for i, store in readers.items() if isinstance(store, CachedStore)}
        memory = opened if isinstance(opened, MemoryPages) else None
        return opened, ReadAhead(
            PagesAhead(steps, stores, cache.page_bytes, memory, partial(_pages, views, cache.page_bytes)),
            in_flight=max(1, min(IN_FLIGHT, WINDOW_BYTES // cache.page_bytes, -(-live // cache.page_bytes))),
            horizon=_horizon(recipe, sources),
            count=metrics.count,
            on_reads=metrics.reads,
            on_plan=on_plan,
            waits=True,
        )
    if recipe.plan.pack is not None:
        return opened, None  # reads only pieces of documents, which become known when they are planned
    ranges = RangesAhead(steps, {i: readers[i] for i in remote}, min(limit, RANGES_BYTES))
    for i in remote:
        readers[i] = AheadReader(ranges, i, readers[i])
    return opened, ReadAhead(
        ranges,
        in_flight=RANGES_IN_FLIGHT,
        horizon=RANGES_STEPS,
        count=metrics.count,
        on_reads=metrics.reads,
        on_plan=on_plan,
        waits=True,
    )


class Hinting:
    """Publishes the pages that this loader needs next to the other users of a node cache."""

    def __init__(self, steps: Steps, cache: OpenCache, stores: Mapping[int, RangeReader]) -> None:
        self._steps, self._cache, self._stores = steps, cache, stores

    def __call__(self, step: int) -> None:
        self._cache.beat(lambda: self.next_pages(step + 1))

    def next_pages(self, step: int) -> Iterator[str]:
        seen: set[str] = set()
        budget = HINT_SAMPLES
        while budget > 0 and (reads := self._steps(step)):
            for view, shards in reads.items():
                store = self._stores[view]
                if not isinstance(store, CachedStore):
                    continue
                for key, extents in shards.items():
                    if not store.has_pages(key):
                        continue
                    budget -= len(extents.offset)
                    for number in pages_of(extents, self._cache.page_bytes):
                        name = store.page_name(key, number)
                        if name not in seen:
                            seen.add(name)
                            yield name
            step += 1


def open_cache(spec: CacheSpec, count: Count) -> OpenCache | MemoryPages:
    return OpenCache(spec, count) if isinstance(spec, NodeCache) else MemoryPages(spec, count)


def _nothing(step: int) -> None: ...


def _horizon(recipe: Recipe, sources: Sequence[PlannedSource]) -> int:
    """Return the number of steps that read every live sample: an epoch of a full shuffle, or the lanes' D*h chunks."""
    live = sum(one.shape.n if one.shape.chunk == 1 else one.shape.live_samples for one in sources)
    return -(-min(live, KNOWN_SAMPLES * recipe.world.world_size) // recipe.plan.batch_range[0])


def _pages(views: Sequence[View], page_bytes: int) -> int:
    shards = {(view.version.id, group): view.version for view in views for group in group_bodies(view)}
    return sum(
        int(-(-(nbytes - END_BYTES) // page_bytes))
        for (_, group), version in shards.items()
        for nbytes in version.parts.shard_nbytes(group)
    )


class _Contents:
    """Shard path -> the shard's content; None for a registered shard whose object holds redacted samples.

    Pages are cut from stored objects, so caching such a page would keep redacted bytes on this node.
    """

    def __init__(self, version: Version) -> None:
        self._version = version

    def __call__(self, path: str) -> Content | None:
        content = self._version.parts.shard_content(path)
        if content is None:
            return None
        sha256, nbytes = content
        if is_foreign(path):  # its path includes the hash of all sizes and change tokens
            if any(map(self._is_redacted, self._with_exclusions.get(path, ()))):
                return None
            sha256 = sha256 or hashlib.sha256(path.encode()).hexdigest()
        # Verified pages have their own names: other processes' pages may be unverified.
        return Content(sha256 if self._version.verify == "crc32c" else f"{sha256}{VERIFIED}", nbytes)

    @cached_property
    def _with_exclusions(self) -> dict[str, list[tuple[int, dict[str, Any]]]]:
        out: dict[str, list[tuple[int, dict[str, Any]]]] = {}
        parts = self._version.parts
        for position in parts.with_exclusions if self._version.manifest.get("denies") else ():
            for group in parts.groups:
                if parts.has_group(group)[position] and is_foreign(
                    (row := parts.shard(group, position))["path"]
                ):
                    out.setdefault(row["path"], []).append((position, row))
        return out

    def _is_redacted(self, at: tuple[int, dict[str, Any]]) -> bool:
        position, shard = at
        live = self._version.parts.live_members(position)
        index, row = IndexFile(self._version.store, IndexPlace.of(shard), whole=True), 0
        while row < index.n_rows:
            rows = index.read_group(index.row_group_of(row))
            is_removed = ~live[row : row + len(rows.keys)]
            if (is_removed & ~rows.places.any(axis=(1, 2))).any():
                return True
            row += len(rows.keys)
        return False
