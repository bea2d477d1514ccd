"""The reads of a rank in the steps to come: the order is a function of the step, so they are known without messages."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from ...dataset.reading.verified_bucket_reads import Map
from ...modalities.video.packet_table import SUFFIX
from ...order.random.keyed_permutation import I64
from ..recipe.document_pieces import pieces_of
from ..recipe.rank_slots import Locate, Located, real_slots
from ..recipe.recipe import Recipe
from ..recipe.video_packet_reads import Group


class Extents(NamedTuple):
    """Byte ranges [offset, offset + nbytes) of one object; int64 arrays of one length."""

    offset: I64
    """int64 [n]: first byte."""
    nbytes: I64
    """int64 [n]: bytes from there."""


Steps = Callable[[int], Mapping[int, Mapping[str, Extents]] | None]
"""step -> view -> shard path -> what is read of it; None after the last step."""


class RankFuture:
    """Step -> places of its reads.

    videos: per view, the groups of its video fields. A field with packet tables is left out: only a part of it is
    read, which is known once its table is there.
    end: the first step that is not made; None where the run is endless.
    """

    def __init__(self, recipe: Recipe, videos: Sequence[Sequence[Group]], end: int | None, run: Map) -> None:
        self._recipe, self._end, self._run = recipe, end, run
        fields: list[tuple[str, ...]] = []
        for view, groups in zip(recipe.views, videos, strict=True):
            parted = {field for group in groups for field in group if field + SUFFIX in view.version.fields}
            fields.append(tuple(field for field in view.fields if field not in parted))
        self._locate = Locate(recipe.views, fields, [None] * len(fields))

    def __call__(self, step: int) -> dict[int, dict[str, Extents]] | None:
        """Return view -> shard path -> ranges; None after the last step. Raises: as planning and reading indexes do."""
        if self._end is not None and step >= self._end:
            return None
        slots, rows = real_slots(self._recipe, step)
        if not len(rows):
            return None
        if self._recipe.plan.pack is not None:
            pieces = pieces_of(self._recipe.plan, step, slots, rows)
            slots, rows = pieces.documents, np.flatnonzero(~pieces.held)
        out = {}
        for located in self._locate(slots, rows, self._run):
            out.update(by_path(located))
        return dict(sorted(out.items()))


def by_path(located: Located) -> dict[int, dict[str, Extents]]:
    """Return view -> shard path -> ranges of the fields in it."""
    extents_of: dict[int, dict[str, list[Extents]]] = {}
    for at in located.places.fields.values():
        for shard, rows_of_shard in at.by_shard():
            paths = extents_of.setdefault(located.kind.sources[shard.of], {})
            paths.setdefault(shard.path, []).append(
                Extents(at.offset[rows_of_shard], at.nbytes[rows_of_shard])
            )
    return {
        source: {
            path: Extents(*(np.concatenate(column) for column in zip(*extents, strict=True)))
            for path, extents in paths.items()
        }
        for source, paths in extents_of.items()
    }
