"""Small drawings of a rollout's tokens: what the policy sampled, and one value, in a view box of 1,000 units."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..json_record import JsonRecord

WIDTH = 1000.0
"""Units of a drawing."""
MOST_COLUMNS = 500
"""Most columns; a column stands for several tokens of a longer rollout."""
HEIGHT = 40.0
"""Units of a line's drawing."""
MOST_VALUE = 1e30
"""Largest magnitude drawn."""


@dataclass(
    frozen=True,
    slots=True,
    kw_only=True,
)
class Stripe(JsonRecord):
    """A rectangle over a stretch of tokens."""

    x: float
    width: float


@dataclass(
    frozen=True,
    slots=True,
    kw_only=True,
)
class ValueLine(JsonRecord):
    """A line of one value over all tokens: per column the value farthest from 0."""

    path: str
    """SVG path; "" without a finite value."""
    low: float
    high: float


def stripes(is_sampled: NDArray[np.bool_], n_tokens: int | None = None) -> tuple[Stripe, ...]:
    """Return the stretches of True. n_tokens: tokens of the whole width; None for the array's."""
    n_columns = min(len(is_sampled), MOST_COLUMNS)
    if not n_columns:
        return ()
    starts = _column_starts(len(is_sampled), n_columns)
    # A column counts if it has any sampled token: a short answer in a long rollout stays visible.
    is_marked = np.logical_or.reduceat(is_sampled, starts)
    edges = np.flatnonzero(np.diff(np.concatenate([[False], is_marked, [False]]).astype(np.int8)))
    ends = np.append(starts, len(is_sampled))
    unit = WIDTH / (n_tokens or len(is_sampled))
    rectangles = []
    for first, stop in edges.reshape(-1, 2).tolist():
        x = float(ends[first]) * unit
        rectangles.append(Stripe(x=round(x, 2), width=round(float(ends[stop]) * unit - x, 2)))
    return tuple(rectangles)


def value_line(values: NDArray[Any], is_shown: NDArray[np.bool_]) -> ValueLine:
    """Return the line of a value. is_shown: bool [n]; the line has gaps elsewhere."""
    # Beyond `MOST_VALUE` the difference of two values could be infinite, which no path can hold.
    safe = np.clip(
        values.astype(np.float64),
        -MOST_VALUE,
        MOST_VALUE,
    )
    is_drawn = is_shown & np.isfinite(values)
    if not is_drawn.any():
        return ValueLine(
            path="",
            low=0.0,
            high=0.0,
        )
    n_columns = min(len(safe), MOST_COLUMNS)
    starts = _column_starts(len(safe), n_columns)
    lowest = np.minimum.reduceat(
        np.where(
            is_drawn,
            safe,
            np.inf,
        ),
        starts,
    )  # [columns]
    highest = np.maximum.reduceat(
        np.where(
            is_drawn,
            safe,
            -np.inf,
        ),
        starts,
    )
    has_value = np.logical_or.reduceat(is_drawn, starts)
    farthest = np.where(
        -lowest > highest,
        lowest,
        highest,
    )
    low = min(0.0, float(farthest[has_value].min()))
    high = max(0.0, float(farthest[has_value].max()))
    x = (starts + 0.5) * WIDTH / len(safe)
    y = HEIGHT - 2 - (farthest - low) / ((high - low) or 1.0) * (HEIGHT - 4)
    return ValueLine(
        path=_path(
            x,
            y,
            has_value,
        ),
        low=low,
        high=high,
    )


def _column_starts(n: int, n_columns: int) -> NDArray[np.int64]:
    """Return int64 [columns]: the first token of each; n_columns is at most n, so no column is empty."""
    return np.arange(n_columns, dtype=np.int64) * n // n_columns


def _path(
    x: Sequence[float] | NDArray[Any],
    y: NDArray[Any],
    has_value: NDArray[np.bool_],
) -> str:
    words = []
    joins = False  # whether the line goes on from the column before
    for place, is_there in enumerate(has_value.tolist()):
        if is_there:
            point = f"{x[place]:.1f} {y[place]:.1f}"
            # A value without a neighbour is a dot: a line of no length with round ends.
            words.append(f"L{point}" if joins else f"M{point}h0")
        joins = is_there
    return " ".join(words)
