"""Key the random generators of a slot's sample by its identity: never by where or when it is read."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ...order.plan import Plan
from ...order.random.generators import field_generator, field_words, sample_generator, sample_words
from ...order.random.keyed_permutation import I64
from ...order.slots import Slots

GeneratorKey = tuple[int, str, int, int]
"""Seed, source, epoch, version ordinal."""


def generator_key(plan: Plan, slots: Slots, slot: int) -> GeneratorKey:
    source = plan.source_names[int(slots.source[slot])]
    return plan.seed, source, int(slots.epoch[slot]), int(slots.ordinal[slot])


def decoder_generator(key: GeneratorKey, field: str) -> np.random.Generator:
    return field_generator(*key, field)


def transform_generator(key: GeneratorKey) -> np.random.Generator:
    return sample_generator(*key)


def sample_generators(
    plan: Plan, slots: Slots, rows: I64, field: str | None = None
) -> Callable[[int], np.random.Generator]:
    """Return sample number -> generator, for a field's decoder or for the transform.

    rows: int64 [n], each sample's slot.
    """
    # Here, because the module imports numpy.random: only draws pay for it.
    from ...order.random.philox_generators import philox_generator

    source = slots.source[rows]  # [n], as `epoch` and `ordinal`
    epoch = slots.epoch[rows]
    ordinal = slots.ordinal[rows]
    words = dict[int, tuple[int, int]]()
    # One hash call for all samples of a source's epoch, which share the head of the hashed key.
    epochs = set(zip(source.tolist(), epoch.tolist(), strict=True))
    for source_number, epoch_number in epochs:
        is_of_epoch = (source == source_number) & (epoch == epoch_number)
        numbers = np.flatnonzero(is_of_epoch)
        head = (plan.seed, plan.source_names[source_number], epoch_number)
        if field is None:
            drawn = sample_words(*head, ordinal[numbers])
        else:
            drawn = field_words(*head, ordinal[numbers], field)
        words.update(zip(numbers.tolist(), drawn, strict=True))

    def generator(number: int) -> np.random.Generator:
        return philox_generator(*words[number])

    return generator
