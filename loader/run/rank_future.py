"""What a rank reads in the steps to come: the order is a function of the step, so it is known without any message."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from ..dataset.read import Map
from ..dataset.sample_places import SamplePlaces
from ..modalities.packets import SUFFIX
from ..order.keys import I64
from .pieces import pieces_of
from .rank_slots import real_slots
from .recipe import Recipe
from .video_reads import Group


class Extents(NamedTuple):
    """Byte ranges [offset, offset + nbytes) of one object; int64 arrays of one length."""

    offset: I64
    nbytes: I64


Steps = Callable[[int], Mapping[int, Mapping[str, Extents]] | None]
"""step -> view -> shard path -> what is read of it; None after the last step."""


class RankFuture:
    """step -> where what it reads lies.

    videos: per view, the groups of its video fields; of one with packet tables only a part is read, which is known
    once its table is there, so it is left out. end: the first step that is not made; None where the run is endless.
    """

    def __init__(self, recipe: Recipe, videos: Sequence[Sequence[Group]], end: int | None, run: Map) -> None:
        self._recipe, self._end, self._run = recipe, end, run
        self._fields: list[list[str]] = []
        for view, groups in zip(recipe.views, videos, strict=True):
            parted = {field for group in groups for field in group if field + SUFFIX in view.version.fields}
            self._fields.append([field for field in view.fields if field not in parted])

    def __call__(self, step: int) -> dict[int, dict[str, Extents]] | None:
        """view -> shard path -> ranges; None after the last step. Raises: what planning and reading indexes raise."""
        if self._end is not None and step >= self._end:
            return None
        slots, wanted = real_slots(self._recipe, step)
        if not len(wanted):
            return None
        if self._recipe.plan.pack is not None:
            pieces = pieces_of(self._recipe.plan, step, slots, wanted)
            slots, wanted = pieces.documents, np.flatnonzero(~pieces.held)
        out = {}
        for number, (view, fields) in enumerate(zip(self._recipe.views, self._fields, strict=True)):
            mine = slots.ordinal[wanted[slots.source[wanted] == number]]
            if len(mine) and fields:
                out[number] = by_path(view.version.places(mine, fields, self._run))
        return out


def by_path(places: SamplePlaces) -> dict[str, Extents]:
    """Shard path -> where the fields lie in it."""
    found: dict[str, list[Extents]] = {}
    for at in places.fields.values():
        for shard, mine in at.by_shard():
            found.setdefault(shard.path, []).append(Extents(at.offset[mine], at.nbytes[mine]))
    return {
        path: Extents(*(np.concatenate(some) for some in zip(*extents, strict=True)))
        for path, extents in found.items()
    }
