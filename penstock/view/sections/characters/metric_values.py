"""Values of a metric, and their range in each cell of a line."""

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

Values: TypeAlias = Sequence[float | None]
"""A value a step; None if missing."""


class CellRange(NamedTuple):
    cell: int
    low: float
    high: float


def present_values(values: Values) -> list[float]:
    """Return the values that are not missing, ascending."""
    known = [value for value in values if value is not None]
    known.sort()
    return known


def cell_ranges(values: Values, cells: Sequence[int]) -> list[CellRange]:
    """Return the range of each cell with a value. cells: cell of each value."""
    ranges: dict[int, CellRange] = {}
    for cell, value in zip(cells, values, strict=True):
        if value is None:
            continue
        before = ranges.get(cell)
        if before is None:
            before = CellRange(cell, value, value)
        low = min(value, before.low)
        high = max(value, before.high)
        ranges[cell] = CellRange(cell, low, high)
    return list(ranges.values())
