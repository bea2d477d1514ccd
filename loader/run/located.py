"""The samples of slots, source by source, and where they lie."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ..dataset.read import Map
from ..dataset.sample_places import SamplePlaces
from ..dataset.view import View
from ..order.keys import I64
from ..order.slots import Slots


class Located(NamedTuple):
    """Samples of one source, numbered from 0. source: its number in the plan; slots: of each, its slot's number in the
    global batch; rows: of each, where it goes in the batch of this rank."""

    source: int
    slots: Sequence[int]
    rows: Sequence[int]
    places: SamplePlaces


def located(views: Sequence[View], slots: Slots, wanted: I64, first: int, run: Map) -> list[Located]:
    """The samples that `wanted` slots hold, by source. first: the slot whose row is 0. `run` may be a thread pool's
    map. Raises: what `Version.places` does."""
    out = []
    source = slots.source[wanted]
    for index, view in enumerate(views):
        mine = wanted if len(views) == 1 else wanted[source == index]
        if len(mine):
            places = view.version.places(slots.ordinal[mine], view.fields, run)
            out.append(Located(index, mine.tolist(), (mine - first).tolist(), places))
    return out


def located_again(
    views: Sequence[View], slots: Slots, before: Located, number: int, run: Map = map
) -> Located:
    """One sample by itself: the one that its slot holds now."""
    slot = before.slots[number]
    (found,) = located(views, slots, np.array([slot], np.int64), slot - before.rows[number], run)
    return found
