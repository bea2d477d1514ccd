"""A loader's reads of its views: of a folder of this machine from its store, of others through `remote_reads.py`."""

import logging
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from ...cache.spec import CacheSpec, NodeCache
from ...dataset.reading.verified_bucket_reads import Map
from ...storage import RangeReader, is_local
from ..metrics.metrics import Metrics
from ..recipe.recipe import Recipe
from ..recipe.video_reads import Group

if TYPE_CHECKING:
    from ...cache.memory import MemoryPages
    from ...cache.node_cache import OpenCache
    from .read_ahead import ReadAhead

logger = logging.getLogger(__name__)


class NodeReads:
    """The reads of each of a loader's views: of a folder of this machine from its store.

    Others go through pages in memory or in a node cache, or by ranges read ahead. None of it changes a byte.

    videos: per view, the groups of its video fields.
    end: the first step that is not made.

    Raises: InvalidRuntime for a folder that may not be a cache.
    """

    def __init__(
        self,
        cache: CacheSpec,
        recipe: Recipe,
        videos: Sequence[Sequence[Group]],
        metrics: Metrics,
        run: Map,
        end: int | None = None,
    ) -> None:
        self._stores: list[RangeReader] = [view.version.shard_store for view in recipe.views]
        self._cache: OpenCache | MemoryPages | None = None
        self._ahead: ReadAhead[Any] | None = None
        remote = [i for i, store in enumerate(self._stores) if not is_local(store)]
        if not remote:
            if isinstance(cache, NodeCache):
                logger.info("every source lies on this machine: the node cache %s is not used", cache.path)
            return
        if not isinstance(cache, NodeCache) and cache.limit_bytes == 0:
            return
        from .remote_reads import open_remote  # 5 ms, which folders of this machine do without

        self._cache, self._ahead = open_remote(cache, recipe, videos, metrics, run, end, self._stores, remote)

    def __getitem__(self, view: int) -> RangeReader:
        """Return the reader of a view."""
        return self._stores[view]

    def begin(self, steps: Sequence[int]) -> bool:
        """Say that the batches of these steps are being made together: the steps after them are read ahead.

        Return whether they are the first after a start or a seek; others wait for those.
        """
        return self._ahead is not None and self._ahead.begin(steps)

    def waiting_for_no_page(self) -> AbstractContextManager[None]:
        """Return a context that reads alone where a page is on its way: see `cached_store.waiting_for_no_page`."""
        if self._cache is None:
            return nullcontext()
        from ...cache.cached_store import waiting_for_no_page

        return waiting_for_no_page()

    def done(self, step: int) -> None:
        """Say that a batch that was begun has been read, or failed."""
        if self._ahead is not None:
            self._ahead.done(step)

    def dismiss(self) -> None:
        """Read nothing ahead any more; does not wait."""
        if self._ahead is not None:
            self._ahead.dismiss()

    def close(self) -> None:
        """Need nothing any more; no thread is left."""
        if self._ahead is not None:
            self._ahead.close()
        if self._cache is not None:
            self._cache.close()
