"""A metric in rows of characters: each value faint, and the running median on it."""

from collections.abc import Sequence
from dataclasses import dataclass

from .metric_values import Values, cell_ranges, present_values
from .running_median import running_median

TALL_ROWS = 6
_RANGE = "░"
_MEDIAN = "█"
_OUT_OF_SCALE = 0.01
"""Share of the values at either end that do not set the scale, as in a browser."""


@dataclass(frozen=True, slots=True)
class _RowScale:
    low: float
    high: float

    def row_of(self, value: float) -> int:
        """Return a value's row, 0 at the bottom."""
        share = (value - self.low) / (self.high - self.low)
        # Values out of scale are in the first or last row.
        share = max(0.0, share)
        share = min(1.0, share)
        return round(share * (TALL_ROWS - 1))


def tall_lines(
    values: Values,
    cells: Sequence[int],
    n_cells: int,
    margin: int,
) -> list[str]:
    """Return rows from the top, with the ends of their scale; no rows for equal values.

    cells: cell of each value.
    """
    scale = _row_scale(values)
    if scale is None:
        return []
    blank = " " * n_cells
    rows = [list(blank) for _ in range(TALL_ROWS)]
    for each in cell_ranges(values, cells):
        first = scale.row_of(each.low)
        last = scale.row_of(each.high)
        for row in rows[first : last + 1]:
            row[each.cell] = _RANGE
    medians = running_median(values)
    # Of several steps in a cell, the last one has its median drawn.
    last_medians = dict(zip(cells, medians, strict=True))
    for cell, median in last_medians.items():
        if median is None:
            continue
        place = scale.row_of(median)
        rows[place][cell] = _MEDIAN
    names = [""] * TALL_ROWS
    names[0] = f"{scale.low:.4g} "
    names[-1] = f"{scale.high:.4g} "
    lines = []
    for name, row in zip(names, rows, strict=True):
        drawn = "".join(row)
        lines.append(name.rjust(margin) + drawn)
    lines.reverse()
    return lines


def _row_scale(values: Values) -> _RowScale | None:
    known = present_values(values)
    n_outside = round(len(known) * _OUT_OF_SCALE)
    end = len(known) - n_outside
    inside = known[n_outside:end]
    if not inside:
        return None
    low = inside[0]
    high = inside[-1]
    if low == high:
        return None
    return _RowScale(low, high)
