"""The samples of slots, source by source, and where they lie."""

from collections.abc import Sequence
from typing import NamedTuple

from ..dataset.read import Map
from ..dataset.sample_places import SamplePlaces
from ..dataset.view import View
from ..order.keys import I64
from ..order.slots import Slots


class Located(NamedTuple):
    """Samples of one source, numbered from 0. source: its number in the plan; rows: int64, of each the slot it is of,
    which is its row in what is made."""

    source: int
    rows: I64
    places: SamplePlaces


def located(views: Sequence[View], slots: Slots, wanted: I64, run: Map) -> list[Located]:
    """The samples that `wanted` slots hold, by source. `run` may be a thread pool's map. Raises: what `Version.places`
    does."""
    out = []
    source = slots.source[wanted]
    for index, view in enumerate(views):
        mine = wanted if len(views) == 1 else wanted[source == index]
        if len(mine):
            out.append(Located(index, mine, view.version.places(slots.ordinal[mine], view.fields, run)))
    return out


def located_again(
    views: Sequence[View], slots: Slots, before: Located, number: int, run: Map = map
) -> Located:
    """One sample by itself: the one that its slot holds now."""
    (found,) = located(views, slots, before.rows[number : number + 1], run)
    return found
