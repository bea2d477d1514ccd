"""Open the stores of a loader's views: local folders directly, other stores through cached pages or ranges."""

import logging
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from ...cache.spec import CacheSpec, NodeCache
from ...dataset.reading.sample_places import Map
from ...storage import RangeReader, is_local
from ..metrics import Metrics
from ..recipe.recipe import Recipe
from ..recipe.video_groups import Group

if TYPE_CHECKING:
    from ...cache.memory import MemoryPages
    from ...cache.node_cache import OpenCache
    from ...cache.peers.peer_cache import PeerCache
    from ..ahead.cache_upkeep import CacheUpkeep
    from ..ahead.read_ahead import ReadAhead

logger = logging.getLogger(__name__)


class NodeReads:
    """Readers for a loader's stored sources, by number of the source.

    metrics: the loader's, for reads ahead, which belong to no batch.
    """

    def __init__(
        self,
        cache: CacheSpec,
        recipe: Recipe,
        videos: Mapping[int, Sequence[Group]],
        metrics: Metrics,
        parallel_map: Map,
        end: int | None = None,
    ) -> None:
        self._stores: dict[int, RangeReader] = {}
        for source, view in recipe.stored.items():
            self._stores[source] = view.version.shard_store
        self._cache: OpenCache | PeerCache | MemoryPages | None = None
        self._ahead: ReadAhead[Any] | None = None
        self._upkeep: CacheUpkeep | None = None
        remote = [source for source, store in self._stores.items() if not is_local(store)]
        if not remote:
            if isinstance(cache, NodeCache):
                logger.info("every source lies on this machine: the node cache %s is not used", cache.path)
            return
        if not isinstance(cache, NodeCache) and cache.limit_bytes == 0:
            return  # without a cache every read goes to the store itself
        from ..ahead.remote_reads import open_remote  # 5 ms, only for remote stores

        # Replaces the entries of remote sources in self._stores by cached readers.
        self._cache, self._ahead, self._upkeep = open_remote(
            cache,
            recipe,
            videos,
            metrics,
            parallel_map,
            end,
            self._stores,
            remote,
        )

    def __getitem__(self, source: int) -> RangeReader:
        return self._stores[source]

    def begin(self, steps: Sequence[int]) -> bool:
        """Read later steps ahead. Return whether these steps are the first after a start or a seek."""
        if self._ahead is not None:
            return self._ahead.begin(steps)
        if self._upkeep is not None:
            self._upkeep(steps[0])
        return False

    def waiting_for_no_page(self) -> AbstractContextManager[None]:
        """Return a context whose reads fetch only the bytes that they need, and wait for no other page."""
        if self._cache is None:
            return nullcontext()
        from ...cache.cached_store import waiting_for_no_page

        return waiting_for_no_page()

    def done(self, step: int) -> None:
        """Record that a step was made, or failed."""
        if self._ahead is not None:
            self._ahead.done(step)

    def dismiss(self) -> None:
        if self._ahead is not None:
            self._ahead.dismiss()

    def close(self) -> None:
        if self._ahead is not None:
            self._ahead.close()
        if self._upkeep is not None:
            self._upkeep.close()
