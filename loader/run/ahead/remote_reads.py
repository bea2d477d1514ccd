"""Reads from remote stores: cached pages or ranges, read ahead, and the choice between the two."""

import hashlib
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from ...cache.cached_ranges import Content
from ...cache.cached_store import INDEX, VERIFIED, CachedStore
from ...cache.memory import Count, MemoryPages, Sets
from ...cache.object_sets import ObjectSet
from ...cache.page_cache import PageCache
from ...cache.spec import CacheSpec, NodeCache, PageMemory, WorkersNodeCache
from ...dataset.reading.sample_places import Map
from ...dataset.shards.index import IndexFile, IndexPlace
from ...dataset.shards.shard import END_BYTES
from ...dataset.tables.foreign_objects import is_foreign
from ...dataset.versions.version import Version, View
from ...order.plan import PlannedSource
from ...storage import RangeReader, is_local
from ..metrics import Metrics
from ..recipe.recipe import Recipe
from ..recipe.video_groups import Group
from .cache_upkeep import CacheUpkeep
from .next_reads import PagesAhead, RankFuture
from .range_reads import AheadReader, RangesAhead
from .read_ahead import ReadAhead, UnitSource
from .read_choice import OVERFLOW_BYTES, RANGES_STEPS, ReadChoice, group_bodies

if TYPE_CHECKING:
    from ...cache.node_cache import OpenCache
    from ...cache.overflow import FolderWithMemory
    from ...cache.peers.peer_cache import PeerCache
    from .index_reads import CachedIndexes

logger = logging.getLogger(__name__)

IN_FLIGHT = 32
"""Page reads in flight: 1.6 GB/s at 20 ms latency and pages of 1 MiB."""
IN_FLIGHT_BYTES = 32 * 2**20
"""Most bytes in flight: the larger the pages, the fewer are read at once."""
RANGES_IN_FLIGHT = 8
"""Range reads in flight, each for one step's ranges in one shard."""
KNOWN_SAMPLES = 2**18
"""Most samples whose next use is looked up: about 50 MB."""


def open_remote(
    cache: CacheSpec,
    recipe: Recipe,
    videos: Mapping[int, Sequence[Group]],
    metrics: Metrics,
    run: Map,
    end: int | None,
    readers: dict[int, RangeReader],
    remote: Sequence[int],
) -> "tuple[OpenCache | PeerCache | MemoryPages, ReadAhead[Any] | None, CacheUpkeep]":
    """Return the cache, the reads ahead, and the cache's upkeep. Replace the views' stores by cached readers."""
    views = [recipe.stored[i] for i in remote]
    contents = [ShardContents(view.version) for view in views]
    sets = partial(_object_sets, views, contents)
    opened = open_cache(cache, metrics.count, sets, views)
    memory = None
    if isinstance(opened, MemoryPages):
        memory = opened
    # Each worker process uses parts of pages, which its own memory would read whole.
    can_overflow = not isinstance(cache, WorkersNodeCache) and not opened.peers
    choice = ReadChoice(
        recipe,
        remote,
        cache.page_bytes,
        opened.limit_bytes or 0,
        is_folder=memory is None,
        can_overflow=can_overflow,
        peers=opened.peers,
    )
    logger.info("remote sources are read %s", choice.describe())
    pages_cache: PageCache = opened
    overflow: FolderWithMemory | None = None
    if memory is not None:
        choice.divide(memory, sets)
    elif choice.in_pages and can_overflow:
        overflow = _with_memory(opened, choice, metrics.count)
        memory = overflow.memory
        pages_cache = overflow
    if choice.pays or not isinstance(opened, MemoryPages):
        for i, content_of in zip(remote, contents, strict=True):
            readers[i] = CachedStore(readers[i], pages_cache, content_of, choice.fraction)
    horizon = _horizon(recipe, choice.sources)
    indexes: list[CachedIndexes] = []
    if choice.pays and not isinstance(opened, MemoryPages):
        indexes = _cache_indexes(views, contents, opened)
    upkeep = CacheUpkeep(recipe, opened, horizon, indexes)
    steps = RankFuture(recipe, videos, end, run)
    if choice.in_pages:
        stores = {i: store for i, store in readers.items() if isinstance(store, CachedStore)}
        n_pages = partial(_pages, views, cache.page_bytes)
        pages = PagesAhead(steps, stores, cache.page_bytes, memory, n_pages, overflow)
        in_flight = max(1, min(IN_FLIGHT, IN_FLIGHT_BYTES // cache.page_bytes, choice.live_pages))
        return opened, _read_ahead(pages, in_flight, horizon, metrics, upkeep), upkeep
    if recipe.plan.pack is not None:
        # Reads only pieces of documents, which become known when they are planned.
        return opened, None, upkeep
    ranges = RangesAhead(steps, {i: readers[i] for i in remote}, choice.range_bytes)
    for i in remote:
        readers[i] = AheadReader(ranges, i, readers[i])
    return opened, _read_ahead(ranges, RANGES_IN_FLIGHT, RANGES_STEPS, metrics, upkeep), upkeep


def _cache_indexes(
    views: Sequence[View], contents: "Sequence[ShardContents]", opened: "OpenCache | PeerCache"
) -> "list[CachedIndexes]":
    """Read the indexes of each version through the cache's pages."""
    from .index_reads import CachedIndexes  # not needed for memory: open indexes are in memory anyway

    contents_of = {view.version: content_of for view, content_of in zip(views, contents, strict=True)}
    return [
        CachedIndexes(version, opened, content_of.index_content)
        for version, content_of in contents_of.items()
    ]


def _read_ahead(
    source: UnitSource[Any], in_flight: int, horizon: int, metrics: Metrics, upkeep: CacheUpkeep
) -> ReadAhead[Any]:
    return ReadAhead(
        source,
        in_flight=in_flight,
        horizon=horizon,
        count=metrics.count,
        on_reads=metrics.reads,
        on_plan=upkeep,
        waits=True,
    )


def _with_memory(
    opened: "OpenCache | PeerCache | MemoryPages", choice: ReadChoice, count: Count
) -> "FolderWithMemory":
    """Return a folder with memory for the pages that it does not keep. opened: an `OpenCache`."""
    from ...cache.node_cache import OpenCache
    from ...cache.overflow import FolderWithMemory

    assert isinstance(opened, OpenCache)  # `can_overflow` is False with peers, and memory is no folder
    spec = PageMemory(limit_bytes=OVERFLOW_BYTES, page_bytes=opened.page_bytes)
    return FolderWithMemory(opened, MemoryPages(spec, count), choice.live_of_rank)


def open_cache(
    spec: CacheSpec,
    count: Count,
    sets: Sets,
    views: Sequence[View] = (),
    late_s: float = 0.0,
) -> "OpenCache | PeerCache | MemoryPages":
    """Return the open cache of the views that are read through it. late_s: no answer of a peer is late before."""
    if not isinstance(spec, NodeCache):
        return MemoryPages(spec, count)
    from ...cache.node_cache import OpenCache  # 5 ms, not needed for memory

    if spec.peers is None:
        return OpenCache(spec, count, sets)
    is_verified = any(view.version.verify != "crc32c" for view in views)
    if is_verified and not spec.shared:
        # A checksum of pages does not stop a holder of the token who means harm.
        logger.warning(
            "node cache %s: no page comes from peers, because a source has verify='sha256'; shared=True trusts them",
            spec.path,
        )
        return OpenCache(spec, count, sets)
    from ...cache.peers.peer_cache import PeerCache  # only with peers: sockets and processes

    return PeerCache(spec, count, sets, late_s=late_s)


def _object_sets(views: Sequence[View], contents: "Sequence[ShardContents]") -> list[ObjectSet]:
    """Return the objects that the views read, a set for each view."""
    sets: dict[str, ObjectSet] = {}
    for view, content_of in zip(views, contents, strict=True):
        objects_of_view = content_of.objects(group_bodies(view))
        sets[objects_of_view.id] = objects_of_view
    return list(sets.values())


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


class ShardContents:
    """Shard path -> the shard's content; None for a registered shard whose object holds redacted samples.

    Pages are cut from stored objects, so caching such a page would keep redacted bytes on this node.
    """

    def __init__(self, version: Version) -> None:
        self._version = version
        self._has_index_pages = not is_local(version.store)
        self._redacted: dict[
            str, bool
        ] = {}  # path of a shard with exclusions -> whether it has redacted samples

    def __call__(self, path: str) -> Content | None:
        content = self._version.parts.shard_content(path)
        if content is None:
            return None
        sha256, nbytes = content
        if is_foreign(path) and self._has_redacted(path):
            return None
        return Content(self.identity(path, sha256), nbytes)

    def index_content(self, place: IndexPlace) -> Content | None:
        """Return an index's content; None if it has no pages.

        An index of an earlier release has none, because no hash covers its bytes. Nor has one whose shard has none: it
        has the keys of redacted samples.
        """
        if not place.footer_sha256 or not self._has_index_pages:
            return None
        shard_path = self._indexes_with_exclusions.get(place.path)
        if shard_path is not None and self(shard_path) is None:
            return None
        return Content(f"{place.footer_sha256}{INDEX}", place.nbytes)

    def objects(self, groups: Iterable[str]) -> ObjectSet:
        """Return the set of the shards of some groups, and of their indexes."""
        objects: list[tuple[str, int]] = []
        for group in groups:
            for path, sha256, nbytes in self._version.parts.shard_contents(group):
                objects.append((self.identity(path, sha256), nbytes))
            if self._has_index_pages:
                objects += self._indexes(group)
        return ObjectSet.of(objects)

    def _indexes(self, group: str) -> Iterator[tuple[str, int]]:
        """Yield (identity, bytes) of each index of a group that has pages."""
        for row in self._version.parts.shard_columns(group, "index_footer_sha256", "index_nbytes"):
            footer_sha256 = row.get("index_footer_sha256")
            if footer_sha256:
                yield f"{footer_sha256}{INDEX}", row["index_nbytes"]

    def identity(self, path: str, sha256: str) -> str:
        """Return the text that names the pages of the shard at a path."""
        if is_foreign(path) and not sha256:
            # Its path includes the hash of all sizes and change tokens.
            sha256 = hashlib.sha256(path.encode()).hexdigest()
        if self._version.verify == "crc32c":
            return sha256
        # Verified pages have their own names: other processes' pages may be unverified.
        return f"{sha256}{VERIFIED}"

    @cached_property
    def _with_exclusions(self) -> dict[str, list[tuple[int, dict[str, Any]]]]:
        """Path of a registered shard -> (position of its part, its row), for parts with excluded samples."""
        shards: dict[str, list[tuple[int, dict[str, Any]]]] = {}
        parts = self._version.parts
        if not self._version.manifest.get("denies"):  # without a takedown nothing is redacted
            return shards
        for position in parts.with_exclusions:
            for group in parts.groups:
                if not parts.has_group(group)[position]:
                    continue
                row = parts.shard(group, position)
                path = row["path"]
                if is_foreign(path):
                    shards.setdefault(path, []).append((position, row))
        return shards

    @cached_property
    def _indexes_with_exclusions(self) -> dict[str, str]:
        """Path of an index -> path of its registered shard, if that has exclusions."""
        shard_paths: dict[str, str] = {}
        for path, rows in self._with_exclusions.items():
            for _, row in rows:
                shard_paths[row["index_path"]] = path
        return shard_paths

    def _has_redacted(self, path: str) -> bool:
        """Return whether a takedown removed bytes from the registered shard at a path."""
        if path not in self._redacted:
            self._redacted[path] = any(map(self._is_redacted, self._with_exclusions.get(path, ())))
        return self._redacted[path]

    def _is_redacted(self, at: tuple[int, dict[str, Any]]) -> bool:
        """Return whether a shard's index has a removed sample without places. at: (position of the part, its row)."""
        position, shard = at
        live = self._version.parts.live_members(position)
        index = IndexFile(self._version.store, IndexPlace.of(shard), whole=True)
        row = 0
        while row < index.n_rows:
            rows = index.read_group(index.row_group_number(row))
            is_removed = ~live[row : row + len(rows.keys)]
            if (is_removed & ~rows.places.any(axis=(1, 2))).any():
                return True
            row += len(rows.keys)
        return False
