"""Columns of the documents in packed sequences, and the totals of a step over all ranks.

Totals follow from the plan and the samples tables: no rank asks another one, and a document that cannot be read counts.
"""

from collections.abc import Mapping

import numpy as np

from ...dataset.reading.sample_places import Map
from ...dataset.versions.pack_columns import DocumentColumns
from ...order.slots import Slots
from ...order.sources.packing import COLUMN_TYPES
from ..recipe.document_pieces import SlotPieces, find_pieces
from ..recipe.rank_slots import RankSlots, whole_step
from ..recipe.recipe import Recipe


class PieceColumns:
    """Reads the columns of packed documents; thread-safe. column_types: column -> its Arrow type."""

    def __init__(
        self,
        recipe: Recipe,
        column_types: Mapping[str, str],
        parallel_map: Map,
    ) -> None:
        self._types = dict(column_types)
        self._map = parallel_map
        # Sources of one version share a reader, and its cache.
        readers: dict[str, DocumentColumns] = {}
        self._readers: dict[int, DocumentColumns] = {}  # by the source's index in the plan
        for source, view in recipe.stored.items():
            version = view.version
            if version.id not in readers:
                readers[version.id] = DocumentColumns(version, column_types)
            self._readers[source] = readers[version.id]

    def __call__(self, documents: Slots) -> dict[str, np.ndarray]:
        """Return column -> its values [pieces]. documents: one slot per piece, with the piece's document."""
        if not self._types:
            return {}
        n_pieces = len(documents)
        values: dict[str, np.ndarray] = {}
        for name, kind in self._types.items():
            values[name] = np.empty(n_pieces, COLUMN_TYPES[kind])
        for source in np.unique(documents.source).tolist():
            is_of_source = documents.source == source
            ordinals = documents.ordinal[is_of_source]
            read = self._readers[source]
            source_values = read(ordinals, self._map)
            for name, array in source_values.items():
                all_values = values[name]
                all_values[is_of_source] = array
        return values


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


def text_array(values: np.ndarray) -> np.ndarray:
    """Return texts in an array of fixed width, which has bytes to check; other values unchanged."""
    if not values.dtype.hasobject:
        return values
    for text in values:
        if text.endswith("\0"):  # which numpy would cut off
            return values
    return values.astype(np.str_)
