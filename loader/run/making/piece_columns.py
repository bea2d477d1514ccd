"""Read metadata columns of the documents in packed sequences."""

from collections.abc import Mapping

import numpy as np

from ...dataset.reading.sample_places import Map
from ...dataset.versions.pack_columns import DocumentColumns
from ...order.slots import Slots
from ...order.sources.packing import COLUMN_TYPES
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


def text_array(values: np.ndarray) -> np.ndarray:
    """Return texts in an array of fixed width, which has bytes to check; other values unchanged."""
    if not values.dtype.hasobject:
        return values
    for text in values:
        if text.endswith("\0"):  # which numpy would cut off
            return values
    return values.astype(np.str_)
