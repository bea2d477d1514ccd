"""The samples of slots, those of sources that are read alike together, and where they lie."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ...dataset.reading.lookup import Lookup, layout_of
from ...dataset.reading.places import SamplePlaces
from ...dataset.reading.read import Map
from ...dataset.versions.view import View
from ...order.random.keys import I64
from ...order.steps.slots import Slots


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Kind:
    """Sources that are read alike."""

    number: int
    """Number among the kinds."""
    fields: tuple[str, ...]
    """Fields of all its sources."""
    sources: Sequence[int]
    """Numbers of the sources in the plan, by their numbers in `lookup`."""
    lookup: Lookup
    """Index lookup of the sources' versions."""


class Located(NamedTuple):
    """Samples of sources of one kind, numbered from 0."""

    kind: Kind
    """Kind of the sources."""
    source: I64
    """int64 [n]: number of the source in the plan."""
    rows: I64
    """int64 [n]: slot of the sample, which is its row in the batches made."""
    places: SamplePlaces
    """Places of the samples; its `of` is the source's number among those of the kind."""


class Locate:
    """Finds where the samples of slots lie; thread-safe. fields: of each view, those that are read of it, of which
    there may be none; apart: what else must be the same of sources that are read alike."""

    def __init__(
        self, views: Sequence[View], fields: Sequence[tuple[str, ...]], apart: Sequence[Hashable]
    ) -> None:
        alike: dict[Hashable, list[int]] = {}
        for source, (view, some, other) in enumerate(zip(views, fields, apart, strict=True)):
            if some:
                alike.setdefault((some, layout_of(view.version, some), other), []).append(source)
        self.kinds = [
            Kind(
                number=number,
                fields=fields[sources[0]],
                sources=sources,
                lookup=Lookup([views[source].version for source in sources], fields[sources[0]]),
            )
            for number, sources in enumerate(alike.values())
        ]
        self._kind, self._number = np.full((2, len(views)), -1)
        for kind in self.kinds:
            self._kind[kind.sources], self._number[kind.sources] = kind.number, np.arange(len(kind.sources))

    def __call__(self, slots: Slots, wanted: I64, run: Map = map) -> list[Located]:
        """The samples that `wanted` slots hold, by kind: as many look-ups as there are kinds, however many sources.
        `run` may be a thread pool's map. Raises: what `Lookup.places` does."""
        out = []
        source = slots.source[wanted].astype(np.int64)
        for kind in self.kinds:
            all_of_them = len(kind.sources) == len(self._kind)
            mine = slice(None) if all_of_them else np.flatnonzero(self._kind[source] == kind.number)
            of, rows = source[mine], wanted[mine]
            if len(rows):
                places = kind.lookup.places(self._number[of], slots.ordinal[rows], run)
                out.append(Located(kind, of, rows, places))
        return out

    def again(self, slots: Slots, row: int, run: Map = map) -> Located:
        """One sample by itself: the one that a slot holds now."""
        (found,) = self(slots, np.array([row], np.int64), run)
        return found
