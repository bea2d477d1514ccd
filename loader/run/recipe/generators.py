"""The generators of a sample: keyed by what it is, never by where or when it is read."""

from __future__ import annotations

import numpy as np

from ...order.plan import Plan
from ...order.random.generators import field_rng_key, sample_rng_key
from ...order.steps.slots import Slots

Place = tuple[int, str, int, int]
"""Key of a sample's generators: seed, source, epoch, version ordinal."""


def place_of(plan: Plan, slots: Slots, slot: int) -> Place:
    """Return the place of the sample that a slot holds."""
    source = plan.source_names[int(slots.source[slot])]
    return plan.seed, source, int(slots.epoch[slot]), int(slots.ordinal[slot])


def for_decoder(place: Place, field: str) -> np.random.Generator:
    """Return a fresh generator for the decoder of one field."""
    return field_rng_key(*place, field)


def for_transform(place: Place) -> np.random.Generator:
    """Return a fresh generator for the transform."""
    return sample_rng_key(*place)
