"""Items of one form, kept field by field.

An object and a dict for each item cost twice: to make, and to collect. In a loop over small items the garbage collector
took 4 of 9 us an item.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from ...order.random.keyed_permutation import I64
from ..batch.columns import Columns
from .framework_values import column_with_arrays
from .item_digest import column_crcs


class UniformItems:
    """Samples of one source that have the same fields. Has the methods of `DeliveredItems`."""

    def __init__(
        self,
        rows: I64,
        keys: list[str],
        items: list[Any],
        columns: dict[str, list[Any]],
    ) -> None:
        """Keep the items. rows: int64 [n], row of each in the batch. columns: field -> its values, [n] each."""
        self.rows = rows
        self._keys = keys
        self._items = items
        self._columns = columns
        self._crcs: dict[str, I64] = {}
        for name, values in columns.items():
            crcs = column_crcs(values, keys)
            self._crcs[name] = np.array(crcs, np.int64)

    @property
    def are_tuples(self) -> bool:
        first_item = self._items[0]
        return isinstance(first_item, tuple)

    def item_range(self, rows: slice) -> list[Any]:
        bounds = [rows.start, rows.stop]
        first, stop = np.searchsorted(self.rows, bounds)
        return self._items[first:stop]

    def keys(self) -> list[str]:
        return self._keys

    def field_crcs(self) -> Iterator[tuple[I64, dict[str, I64]]]:
        """Yield (numbers, field -> int64 CRC-32C of each) of all items at once."""
        numbers = np.arange(len(self.rows))
        yield numbers, self._crcs

    def use_arrays(self) -> None:
        """Put numpy arrays in the place of torch tensors. The checksums do not change."""
        for name, values in self._columns.items():
            self._columns[name] = column_with_arrays(values)

    def put(
        self,
        columns: Columns,
    ) -> None:
        """Store the values in a batch's columns."""
        rows = self.rows.tolist()
        for name, values in self._columns.items():
            columns.put_each(rows, name, values)
        names = tuple(self._columns)
        columns.put_names(self.rows, names)
