"""Keys that are consecutive numbers behind one prefix: made when they are asked for, never held."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import overload

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


def key_array(keys: Sequence[str]) -> pa.Array:
    """Return keys as an Arrow array of text."""
    if not isinstance(keys, NumberedKeys):
        return pa.array(keys, pa.string())
    numbers = pc.cast(pa.array(np.arange(keys.first, keys.first + keys.n)), pa.string())
    return pc.binary_join_element_wise(keys.prefix, numbers, "") if keys.prefix else numbers


def overlap(some: Sequence[NumberedKeys]) -> bool:
    """Return whether two of them have a key in common. Prefixes are "" or end with "/"."""
    ends: dict[str, int] = {}
    for keys in sorted(some, key=lambda keys: (keys.prefix, keys.first)):
        if keys.first < ends.get(keys.prefix, 0):
            return True
        ends[keys.prefix] = keys.first + keys.n
    return False
