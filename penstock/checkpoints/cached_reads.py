"""Read a checkpoint's parts through a node's cache, so that replicas read each block from the store once."""

from collections.abc import Iterator
from contextlib import contextmanager

import loader
from loader.cache.cached_ranges import Content
from loader.cache.cached_store import CachedStore
from loader.cache.claims import CLAIM_S
from loader.cache.object_sets import ObjectSet
from loader.cache.page_cache import count_nothing
from loader.run.ahead.remote_reads import open_cache
from loader.storage import RangeReader, Store, is_local

from .marker import Checkpoint

LATE_S = 2.0
"""Seconds after which a peer is late. A peer that is left out costs its blocks once for each replica."""


@contextmanager
def cache_reads(
    store: Store, checkpoint: Checkpoint, cache: "loader.NodeCache | None"
) -> Iterator[RangeReader | None]:
    """Yield the store through a cache; None without one, and for a local store, which is read directly.

    A replica waits for a block that another one is reading: nothing else could go on meanwhile.
    """
    if cache is None or is_local(store):
        yield None
        return
    contents: dict[str, Content] = {}
    objects: list[tuple[str, int]] = []
    for part in checkpoint.parts:
        key = checkpoint.key(part)
        contents[key] = Content(part.sha256, part.nbytes)
        objects.append((part.sha256, part.nbytes))
    opened = open_cache(
        cache,
        count_nothing,
        lambda: [ObjectSet.of(objects)],
        late_s=LATE_S,
    )
    try:
        yield CachedStore(
            store,
            opened,
            contents.get,
            # Any read claims its block, however few of its bytes this replica needs: the others need the rest.
            fraction=0.0,
            # As long as a claim lasts: after that its holder is dead, and this replica reads the block itself.
            wait_s=CLAIM_S,
        )
    finally:
        opened.close()
