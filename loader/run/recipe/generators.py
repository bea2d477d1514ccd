"""A sample's random generators, keyed by its identity: never by where or when it is read."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ...order.plan import Plan
from ...order.random.generators import field_generator, field_words, sample_generator, sample_words
from ...order.random.keyed_permutation import I64
from ...order.slots import Slots

Place = tuple[int, str, int, int]
"""Key of a sample's generators: seed, source, epoch, version ordinal."""


def slot_position(plan: Plan, slots: Slots, slot: int) -> Place:
    source = plan.source_names[int(slots.source[slot])]
    return plan.seed, source, int(slots.epoch[slot]), int(slots.ordinal[slot])


def for_decoder(place: Place, field: str) -> np.random.Generator:
    return field_generator(*place, field)


def for_transform(place: Place) -> np.random.Generator:
    return sample_generator(*place)


def of_slots(
    plan: Plan, slots: Slots, rows: I64, field: str | None = None
) -> Callable[[int], np.random.Generator]:
    """Return sample number -> generator, for a field's decoder or for the transform.

    rows: int64 [n], each sample's slot.
    """
    # (imports numpy.random, only needed for draws)
    from ...order.random.philox_generators import philox_generator

    source = slots.source[rows]
    epoch = slots.epoch[rows]
    ordinal = slots.ordinal[rows]
    words = dict[int, tuple[int, int]]()
    for which, turn in {*zip(source.tolist(), epoch.tolist(), strict=True)}:
        of_epoch = np.flatnonzero((source == which) & (epoch == turn))
        of = plan.seed, plan.source_names[which], turn, ordinal[of_epoch]
        if field is None:
            drawn = sample_words(*of)
        else:
            drawn = field_words(*of, field)
        words.update(zip(of_epoch.tolist(), drawn, strict=True))

    def generator(number: int) -> np.random.Generator:
        return philox_generator(*words[number])

    return generator
