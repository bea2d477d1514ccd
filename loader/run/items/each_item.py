"""Make the items of a stretch of slots for a replay, a few at a time: memory does not grow with the stretch."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from ...errors import Corrupt
from ...order.random.keyed_permutation import I64
from ..batch.finish import DeliveredSamples, build_delivered
from ..batch.slot_ids import Keys
from ..batch.substitution import Substitution, in_order, mask_row
from ..recipe.rank_slots import RankSlots
from ..recipe.recipe import Recipe
from .item_samples import DeliveredItems, ItemSample, SourceItems

ITEMS_TOGETHER = 16
"""Items that are made by one call, and lie in memory at once."""


def each_item(
    recipe: Recipe,
    makers: Mapping[int, SourceItems],
    rank_slots: RankSlots,
    take: Callable[[int, dict[str, Any]], object],
    *,
    skip_missing: bool,
) -> DeliveredSamples:
    """Pass every item in the slots to `take`, and return the samples delivered, damaged ones masked.

    skip_missing: True masks the rows of a dataset that the plan was opened without.

    Raises: as `SourceItems`; Corrupt if the part's last item is damaged; errors of `take`.
    """
    delivered: list[DeliveredItems] = []
    substitutions: list[Substitution] = []
    real_rows = rank_slots.real_rows
    source_of_row = rank_slots.slots.source[real_rows]
    for source, maker in makers.items():
        rows = real_rows[source_of_row == source]
        if skip_missing and maker.is_missing:
            rank_slots.valid[rows] = False
            continue
        for start in range(0, len(rows), ITEMS_TOGETHER):
            next_rows = rows[start : start + ITEMS_TOGETHER]
            items, masked_items = _some_items(recipe, maker, rank_slots, next_rows, take)
            delivered.append(items)
            substitutions += masked_items
    return build_delivered(len(rank_slots), delivered, substitutions)


def merge_samples(first: DeliveredSamples, second: DeliveredSamples) -> DeliveredSamples:
    """Return the samples of both, which lie in different rows."""

    def keys() -> list[str]:
        pairs = zip(first.keys(), second.keys(), strict=True)
        return [key or other_key for key, other_key in pairs]

    return DeliveredSamples(
        keys=Keys(keys),
        crcs=first.crcs + second.crcs,
        substitutions=in_order([*first.substitutions, *second.substitutions]),
    )


def _some_items(
    recipe: Recipe,
    maker: SourceItems,
    rank_slots: RankSlots,
    rows: I64,
    take: Callable[[int, dict[str, Any]], object],
) -> tuple[DeliveredItems, list[Substitution]]:
    samples: list[ItemSample] = []
    sample_rows: list[int] = []
    substitutions: list[Substitution] = []
    results = maker(rank_slots.slots, rows)
    for row, result in zip(rows.tolist(), results, strict=True):
        if isinstance(result, Corrupt):
            ordinal = int(rank_slots.slots.ordinal[row])
            # A replay substitutes nothing that the run did not.
            substitution = mask_row(
                recipe.plan,
                rank_slots,
                row,
                maker.address(ordinal),
                result,
            )
            substitutions.append(substitution)
            continue
        take(row, result.values)
        named = replace(result, values={}, item=None)  # names and digest need no values, which may be large
        samples.append(named)
        sample_rows.append(row)
    rows_of_samples = np.array(sample_rows, np.int64)
    return DeliveredItems(rows_of_samples, samples), substitutions
