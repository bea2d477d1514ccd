"""The metrics of a run along its steps, a line of a terminal each: every line has a scale of its own, and names it."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from ...text import clean

_HEIGHTS = "▁▂▃▄▅▆▇█"
_NAME = 20
"""Letters of a name."""
_LEAST_CELLS = 8


def chart_lines(
    chart: Mapping[str, Sequence[float | None]], struck: Sequence[int], columns: int
) -> list[str]:
    """Return a line per metric: its name, its least and largest value, and eight heights; then the steps below them.

    chart: as of `RunRecord`. struck: steps with unusual notes, which have a line of their own. Values at one place of
    the screen are of the same steps in every line.
    """
    steps = np.array(chart["step"], np.float64)
    metrics = {name: values for name, values in chart.items() if name != "step"}
    if not len(steps):
        return []
    heads = {name: _head(name, values) for name, values in metrics.items()}
    margin = max(len(one) for one in [*heads.values(), "unusual steps"]) + 1
    cells = max(_LEAST_CELLS, columns - margin)
    first, last = steps[0], max(steps[-1], *struck) if struck else steps[-1]

    def places(some: NDArray[np.float64]) -> NDArray[np.int64]:
        cell = (some - first) * cells // max(1.0, last - first)
        found: NDArray[np.int64] = np.minimum(cell, cells - 1).astype(np.int64)
        return found

    at = places(steps)
    lines = [f"{heads[name]:<{margin}}{_bars(values, at, cells)}" for name, values in metrics.items()]
    if struck:
        marks = [" "] * cells
        for place in places(np.array(struck, np.float64)).tolist():
            marks[place] = "!"
        lines.append(f"{'unusual steps':<{margin}}{''.join(marks)}")
    ends = f"{int(first):,}", f"{int(last):,}"
    lines.append(f"{'step':<{margin}}{ends[0]:<{max(1, cells - len(ends[1]))}}{ends[1]}")
    return lines


def _head(name: str, values: Sequence[float | None]) -> str:
    known = [one for one in values if one is not None]
    told = f"{min(known):.4g} to {max(known):.4g}" if known else "no finite value"
    return f"{clean(name, _NAME):<16} {told}"


def _bars(values: Sequence[float | None], at: NDArray[np.int64], cells: int) -> str:
    """Return the largest value of each cell as a height; a blank where it has none."""
    tops: dict[int, float] = {}
    for place, value in zip(at.tolist(), values, strict=True):
        if value is not None:
            tops[place] = max(value, tops.get(place, value))
    if not tops:
        return " " * cells
    low, high = min(one for one in values if one is not None), max(tops.values())
    scale = (len(_HEIGHTS) - 1) / (high - low) if high > low else 0.0
    return "".join(_HEIGHTS[round((tops[i] - low) * scale)] if i in tops else " " for i in range(cells))
