"""Columns that are computed on demand: consecutive numbers, one repeated value, rows of a table."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, overload

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_AT_ONCE = 1024
"""Rows of a table converted to mappings at once."""


@dataclass(frozen=True, slots=True)
class NumberedKeys(Sequence[str]):
    """The keys `<prefix><first>`, `<prefix><first + 1>` ..."""

    prefix: str
    """Text in front of each number."""
    first: int
    """First number."""
    n: int
    """Number of keys."""

    def __len__(self) -> int:
        return self.n

    @overload
    def __getitem__(self, at: int) -> str: ...
    @overload
    def __getitem__(self, at: slice) -> list[str]: ...
    def __getitem__(self, at: int | slice) -> str | list[str]:
        numbers = range(self.first, self.first + self.n)
        if isinstance(at, slice):
            return [f"{self.prefix}{number}" for number in numbers[at]]
        return f"{self.prefix}{numbers[at]}"


@dataclass(frozen=True, slots=True)
class Repeated(Sequence[Any]):
    """One value, repeated in each row."""

    value: Any
    """The value."""
    n: int
    """Number of rows."""

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, at: int | slice) -> Any:
        selected = range(self.n)[at]
        return self.value if isinstance(selected, int) else [self.value] * len(selected)


@dataclass(frozen=True, slots=True)
class TableRows(Sequence[Mapping[str, Any]]):
    """The rows of a table as mappings."""

    table: pa.Table
    """The table."""

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for start in range(0, len(self), _AT_ONCE):
            yield from self.table.slice(start, _AT_ONCE).to_pylist()

    @overload
    def __getitem__(self, at: int) -> Mapping[str, Any]: ...
    @overload
    def __getitem__(self, at: slice) -> "TableRows": ...
    def __getitem__(self, at: int | slice) -> "Mapping[str, Any] | TableRows":
        rows = range(len(self))[at]
        if isinstance(rows, int):
            row: dict[str, Any] = self.table.slice(rows, 1).to_pylist()[0]
            return row
        return TableRows(
            self.table.slice(rows.start, len(rows)) if rows.step == 1 else self.table.take([*rows])
        )


def text_array(texts: Sequence[str]) -> pa.Array:
    """Return strings as an Arrow array."""
    if isinstance(texts, Repeated):
        return pa.repeat(texts.value, len(texts))
    if not isinstance(texts, NumberedKeys):
        return pa.array(texts, pa.string())
    numbers = pc.cast(pa.array(np.arange(texts.first, texts.first + texts.n)), pa.string())
    return pc.binary_join_element_wise(texts.prefix, numbers, "") if texts.prefix else numbers


def overlap(ranges: Sequence[NumberedKeys]) -> bool:
    """Return whether two ranges share a key. Prefixes are "" or end with "/"."""
    ends: dict[str, int] = {}
    for keys in sorted(ranges, key=lambda keys: (keys.prefix, keys.first)):
        if keys.first < ends.get(keys.prefix, 0):
            return True
        ends[keys.prefix] = keys.first + keys.n
    return False
