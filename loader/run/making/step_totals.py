"""Sum documents, tokens and columns of a packed step over all ranks.

Totals follow from the plan and the samples tables: no rank asks another one, and a document that cannot be read counts.
"""

import numpy as np

from ...dataset.reading.sample_places import Map
from ..recipe.document_pieces import SlotPieces, find_pieces
from ..recipe.rank_slots import RankSlots, whole_step
from ..recipe.recipe import Recipe
from .piece_columns import PieceColumns


class StepTotals:
    """Computes `Batch.totals` of packed steps; thread-safe."""

    def __init__(self, recipe: Recipe, parallel_map: Map) -> None:
        packing = recipe.plan.pack
        assert packing is not None
        self._recipe = recipe
        summed = packing.sum_columns
        summed_types = {name: kind for name, kind in packing.columns if name in summed}
        self._read_columns = PieceColumns(
            recipe,
            summed_types,
            parallel_map,
        )

    def __call__(self, rank_slots: RankSlots, rank_pieces: SlotPieces) -> dict[str, int]:
        """Return the totals of one step. rank_pieces: of this rank's slots, masked only if they are quarantined.

        A document counts as often as the step has pieces of it. Quarantined ones do not: the plan leaves them out.
        """
        pieces = rank_pieces
        if self._recipe.world.world_size > 1:
            (step,) = rank_slots.steps
            slots, rows = whole_step(self._recipe, step)
            pieces = find_pieces(
                self._recipe.plan,
                step,
                slots,
                rows,
            )
        counts = ~pieces.is_masked  # [pieces]
        lengths = pieces.positions.length[counts]
        totals = {
            "documents": int(counts.sum()),
            "tokens": int(lengths.sum()),
        }
        column_values = self._read_columns(pieces.documents)
        for name, values in column_values.items():
            totals[name] = _exact_sum(values[counts])
        return totals


def _exact_sum(values: np.ndarray) -> int:
    """Return the sum of whole numbers or truth values, which may exceed int64."""
    if not len(values):
        return 0
    highest = int(values.max())
    lowest = int(values.min())
    largest = max(abs(highest), abs(lowest))
    if largest * len(values) < 2**63:
        total = values.sum(dtype=np.int64)
        return int(total)
    numbers: list[int] = values.tolist()
    return sum(numbers)
