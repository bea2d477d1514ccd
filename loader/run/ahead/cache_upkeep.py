"""The upkeep of a cache while a loader runs."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ..recipe.rank_slots import real_slots
from ..recipe.recipe import Recipe

if TYPE_CHECKING:
    from ...cache.memory import MemoryPages
    from ...cache.node_cache import OpenCache
    from ...cache.peers.peer_cache import PeerCache
    from .index_reads import CachedIndexes

EPOCH_CHECKS = 64
"""Checks of each epoch: its start is found to within one part in so many of its length."""


class CacheUpkeep:
    """Shows a cache that the loader runs, and where epochs begin. Call it with the current step."""

    def __init__(
        self,
        recipe: Recipe,
        cache: "OpenCache | PeerCache | MemoryPages",
        epoch_steps: int,
        indexes: "Sequence[CachedIndexes]" = (),
    ) -> None:
        self._recipe = recipe
        self._cache = cache
        self._indexes = indexes
        self._interval = max(1, epoch_steps // EPOCH_CHECKS)
        self._checked_step: int | None = None
        self._epochs: dict[int, int] = {}  # source -> its epoch, when an epoch began for all

    def __call__(self, step: int) -> None:
        self._cache.beat()
        if self._checked_step is not None:
            distance = abs(step - self._checked_step)
            if distance < self._interval:
                return
        self._checked_step = step
        epochs = self._step_epochs(step)
        if not self._epochs:
            self._epochs = epochs
            return
        if not epochs:
            return
        for source, epoch in epochs.items():
            if epoch == self._epochs.get(source):
                return
        self._epochs.update(epochs)
        self._cache.begin_epoch()

    def close(self) -> None:
        """Close the cache. Indexes are read without it from now on."""
        for indexes in self._indexes:
            indexes.close()
        self._cache.close()

    def _step_epochs(self, step: int) -> dict[int, int]:
        """Return source -> its epoch, of the sources in a step of this rank."""
        slots, rows = real_slots(self._recipe, step)
        sources = slots.source[rows]  # [rows]
        epochs = slots.epoch[rows]  # [rows]
        first_epochs: dict[int, int] = {}
        for source in np.unique(sources).tolist():
            of_source = epochs[sources == source]
            first_epochs[source] = int(of_source.min())
        return first_epochs
