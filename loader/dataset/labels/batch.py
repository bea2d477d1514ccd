"""Rows of labels from any source, and the columns to take. Other columns may have any name and kind."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

Int64s = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True, slots=True, kw_only=True)
class RowBatch:
    """Rows of a source."""

    table: pa.Table
    """Key column as text, and other columns."""
    numbers: Int64s
    """int64 [rows]: number of the row's line."""
    nulls: Sequence[Sequence[str]] | None = None
    """Per row the names with an explicit null; None if the source cannot tell null from absence."""
    skipped: frozenset[str] = frozenset()
    """Columns that are there and are not taken."""


@dataclass(frozen=True, slots=True)
class ColumnSelection:
    """Columns to take of a source."""

    key: str
    """Column of keys."""
    columns: frozenset[str] | None = None
    """Columns beside the key; None for all."""

    def of(self, names: Iterable[str]) -> list[str]:
        """Return the selected names, in their order, without the key."""
        return [name for name in names if name != self.key and (self.columns is None or name in self.columns)]

    def skipped(self, names: Iterable[str]) -> frozenset[str]:
        """Return the names that are not taken."""
        return frozenset() if self.columns is None else frozenset(names) - self.columns - {self.key}
