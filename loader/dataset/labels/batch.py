"""Rows of labels as they are read from any source, and which of their columns are looked at: others may be of any name
and kind."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

Int64s = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True, slots=True, kw_only=True)
class RowBatch:
    """Rows of a source. table: the key column as text, and others; numbers: int64 [rows], of their lines; nulls: per
    row the names that it gives a null for, where the source tells a null from nothing at all; left: columns that are
    there and are not taken."""

    table: pa.Table
    numbers: Int64s
    nulls: Sequence[Sequence[str]] | None = None
    left: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Taken:
    """key: the column of keys; columns: those to take beside it, None for all."""

    key: str
    columns: frozenset[str] | None = None

    def of(self, names: Iterable[str]) -> list[str]:
        """Those of these names that are taken, in their order, without the key."""
        return [name for name in names if name != self.key and (self.columns is None or name in self.columns)]

    def left(self, names: Iterable[str]) -> frozenset[str]:
        """Those that are not."""
        return frozenset() if self.columns is None else frozenset(names) - self.columns - {self.key}
