"""Columns of neighbours, made when they are asked for, never held: keys that are consecutive numbers; one value."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, overload

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc


@dataclass(frozen=True, slots=True)
class NumberedKeys(Sequence[str]):
    """The keys `<prefix><first>`, `<prefix><first + 1>` ..."""

    prefix: str
    """Text in front of each number."""
    first: int
    """The first number."""
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
    """One value, that of each row."""

    value: Any
    """The value."""
    n: int
    """Number of rows."""

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, at: int | slice) -> Any:
        found = range(self.n)[at]
        return self.value if isinstance(found, int) else [self.value] * len(found)


def text_array(texts: Sequence[str]) -> pa.Array:
    """Return texts as an Arrow array."""
    if isinstance(texts, Repeated):
        return pa.repeat(texts.value, len(texts))
    if not isinstance(texts, NumberedKeys):
        return pa.array(texts, pa.string())
    numbers = pc.cast(pa.array(np.arange(texts.first, texts.first + texts.n)), pa.string())
    return pc.binary_join_element_wise(texts.prefix, numbers, "") if texts.prefix else numbers


def overlap(some: Sequence[NumberedKeys]) -> bool:
    """Return whether two of them have a key in common. Prefixes are "" or end with "/"."""
    ends: dict[str, int] = {}
    for keys in sorted(some, key=lambda keys: (keys.prefix, keys.first)):
        if keys.first < ends.get(keys.prefix, 0):
            return True
        ends[keys.prefix] = keys.first + keys.n
    return False
