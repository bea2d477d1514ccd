"""Write the samples of datasets into a batch's columns, with substitutes for damaged items."""

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np

from ...dataset.shards.address import SampleAddress
from ...errors import Corrupt, DecodeFailed
from ...order.random.keyed_permutation import I64
from ..batch.batch import Batch
from ..batch.columns import Columns
from ..batch.finish import DeliveredSamples
from ..batch.nested_values import nested_nbytes
from ..batch.substitution import Substitution, find_substitute, mask_row
from ..recipe.rank_slots import RankSlots
from ..recipe.recipe import Recipe
from .item_collate import item_collate
from .item_samples import DeliveredItems, ItemSample, SourceItems, SourceSamples
from .uniform_items import UniformItems


class ItemRows:
    """Makes the rows of a batch whose sources are datasets."""

    def __init__(self, recipe: Recipe, makers: Mapping[int, SourceItems]) -> None:
        self._recipe = recipe
        self._makers = makers
        self._collate = item_collate(recipe)

    def __call__(
        self, rank_slots: RankSlots, columns: Columns
    ) -> tuple[list[SourceSamples], list[Substitution]]:
        """Store the samples in the columns; return them, and the substitutions tried.

        Raises: as `SourceItems`; Corrupt for a damaged item without a readable or allowed substitute.
        """
        delivered: list[SourceSamples] = []
        substitutions: list[Substitution] = []
        real_rows = rank_slots.real_rows
        source_of_row = rank_slots.slots.source[real_rows]
        for source, maker in self._makers.items():
            rows = real_rows[source_of_row == source]
            if not len(rows):
                continue
            results = maker.uniform(rank_slots.slots, rows)
            if isinstance(results, UniformItems):
                results.put(columns)
                delivered.append(results)
                continue
            samples: list[ItemSample] = []
            sample_rows: list[int] = []
            for row, result in zip(rows.tolist(), results, strict=True):
                sample: ItemSample | None
                if isinstance(result, Corrupt):
                    sample, tried = self._instead(maker, rank_slots, row, result)
                    substitutions += tried
                else:
                    sample = result
                if sample is not None:
                    samples.append(sample)
                    sample_rows.append(row)
            _put(columns, sample_rows, samples)
            rows_of_samples = np.array(sample_rows, np.int64)
            items = DeliveredItems(rows_of_samples, samples)
            delivered.append(items)
        return delivered, substitutions

    def complete(
        self,
        batches: Sequence[Batch],
        rank_slots: RankSlots,
        delivered: Sequence[SourceSamples],
    ) -> None:
        """Set what only batches of datasets have."""
        has_tuples = any(items.are_tuples for items in delivered)
        for batch in batches:
            batch.tuple_items = has_tuples
        if self._collate is None:
            return
        (items,) = delivered  # of the only source
        for batch, (step, rows) in zip(batches, rank_slots.parts(), strict=True):
            # A part that is all padding has one item of another rank, and weight 0.
            items_of_step = items.item_range(rows)
            first_slot = int(rank_slots.number[rows.start])
            batch.collated = self._collate(step, first_slot, items_of_step)
            batch.nbytes += nested_nbytes(batch.collated)

    def close(self) -> None:
        for maker in self._makers.values():
            maker.close()

    def each(
        self,
        rank_slots: RankSlots,
        take: Callable[[int, dict[str, Any]], object],
        *,
        skip_missing: bool = False,
    ) -> DeliveredSamples:
        """Pass every item in the slots to `take`, as `each_item` does."""
        from .each_item import each_item  # only for replays

        return each_item(self._recipe, self._makers, rank_slots, take, skip_missing=skip_missing)

    def crcs(self, rank_slots: RankSlots) -> I64:
        """Return int64 [rows]: the CRC-32C of each item, and 0 at other rows. Raises: Corrupt for a damaged item."""
        delivered = self.each(rank_slots, lambda row, sample: None)
        for substitution in delivered.substitutions:
            raise DecodeFailed(substitution.error)
        return delivered.crcs

    def _instead(
        self,
        maker: SourceItems,
        rank_slots: RankSlots,
        row: int,
        error: Corrupt,
    ) -> tuple[ItemSample | None, list[Substitution]]:
        """Return the sample that stands for a damaged item, None if the row is masked, and the substitutions tried.

        Writes the substitute into `rank_slots`.
        """
        recipe = self._recipe
        plan = recipe.plan
        slots = rank_slots.slots
        step = rank_slots.step_of(row)
        slot = int(rank_slots.number[row])
        bad = maker.address(int(slots.ordinal[row]))
        if recipe.recorded is not None:  # a replay substitutes nothing that the run did not
            entry = mask_row(
                plan,
                rank_slots,
                row,
                bad,
                error,
            )
            return None, [entry]
        if not recipe.substitute:
            raise error

        def make() -> tuple[ItemSample | Corrupt, SampleAddress]:
            this_row = np.array([row], np.int64)
            (sample,) = maker(slots, this_row)
            return sample, maker.address(int(slots.ordinal[row]))

        return find_substitute(
            plan,
            step,
            slot,
            slots,
            row,
            bad,
            error,
            make,
        )


def _put(
    columns: Columns,
    rows: Sequence[int],
    samples: Sequence[ItemSample],
) -> None:
    # Mostly all samples have the same fields, and one run holds them all.
    names = [tuple(sample.values) for sample in samples]
    for names_of_run, numbers in groupby(range(len(rows)), key=names.__getitem__):
        listed = list(numbers)
        rows_listed = [rows[number] for number in listed]
        for field in names_of_run:
            values = [samples[number].values[field] for number in listed]
            columns.put_each(rows_listed, field, values)
        rows_of_run: I64 = np.array(rows_listed, np.int64)
        columns.put_names(rows_of_run, names_of_run)
