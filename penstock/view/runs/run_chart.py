"""A run's lines, thinned: of each interval of steps a metric's smallest and largest value."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from loader.run.trail.read_trail import RunTrail
from loader.run.trail.step_rows import NOTE

if TYPE_CHECKING:
    import polars as pl

Chart = dict[str, tuple[float | None, ...]]
"""`step`, each metric, `wait_ms` and `substituted` -> values; None if missing or not finite."""
MOST_POINTS = 1000
"""Chart intervals, shared among all metrics. Each keeps a metric's smallest and largest value."""
LEAST_POINTS = 100
"""Fewest intervals per metric."""


def run_chart(
    trail: RunTrail,
    metrics: "pl.DataFrame",
) -> Chart:
    """Return up to about 2 * MOST_POINTS steps. metrics: of `step_metrics`."""
    frame = _last_rows(trail)
    if frame["step"].equals(metrics["step"]):  # a join of 1e6 steps takes 40 ms
        frame = frame.with_columns(metrics.drop("step"))
    else:
        # Of several ranks often only the first one has a metric, such as an evaluation's.
        frame = frame.join(
            metrics,
            on="step",
            how="left",
            maintain_order="left",
        )
    columns = chart_columns(trail)
    if frame.height > 2 * MOST_POINTS:
        chosen = _choose_rows(frame, columns)
        frame = frame[chosen]
    return chart_values(frame, columns)


def chart_columns(trail: RunTrail) -> dict[str, str]:
    """Return name in the chart -> column of the run log."""
    columns = {name: NOTE + name for name in trail.notes}
    columns["wait_ms"] = "wait_us"
    columns["substituted"] = "substituted"
    return columns


def chart_values(
    rows: "pl.DataFrame",
    columns: Mapping[str, str],
) -> Chart:
    """Return the lines of few rows. columns: name in the chart -> column."""
    steps = rows["step"].to_list()
    chart: Chart = {"step": tuple(steps)}
    for name, column in columns.items():
        values = _floats(rows[column])
        if name == "wait_ms":
            values = values / 1000
        line = list[float | None]()
        for value in values.tolist():
            is_finite = abs(value) < np.inf  # False for NaN
            line.append(value if is_finite else None)
        chart[name] = tuple(line)
    return chart


def _last_rows(trail: RunTrail) -> "pl.DataFrame":
    """Return waits and substitutes of each step, when it was last made."""
    frame = trail.steps.select(
        "step",
        "wait_us",
        "substituted",
    )
    numbers = frame["step"].to_numpy()  # ascending
    is_last = np.ones(len(numbers), bool)
    is_last[:-1] = numbers[1:] != numbers[:-1]
    if is_last.all():
        return frame
    return frame.filter(is_last)


def _choose_rows(
    frame: "pl.DataFrame",
    columns: Mapping[str, str],
) -> NDArray[np.int64]:
    """Return the rows to show, ascending: the first, the last, and the extremes of each column's intervals."""
    n = frame.height
    n_intervals = MOST_POINTS // len(columns)
    n_intervals = max(LEAST_POINTS, n_intervals)
    chosen = [np.array([0, n - 1])]
    for column in columns.values():
        values = _floats(frame[column])
        chosen += _extremes(values, n_intervals)
    rows = np.concatenate(chosen)
    return np.unique(rows)


def _extremes(
    values: NDArray[np.float64],
    n_intervals: int,
) -> list[NDArray[np.int64]]:
    """Return the indexes of the smallest and the largest values of intervals; their first if all are missing."""
    n = len(values)
    width = -(-n // n_intervals)
    n_whole = n // width
    end = n_whole * width
    low = values
    high = values
    is_missing = np.isnan(values)
    if is_missing.any():
        low = np.where(is_missing, np.inf, values)
        high = np.where(is_missing, -np.inf, values)
    starts = np.arange(n_whole) * width
    whole_low = low[:end].reshape(n_whole, width)
    whole_high = high[:end].reshape(n_whole, width)
    indexes = [
        starts + whole_low.argmin(axis=1),
        starts + whole_high.argmax(axis=1),
    ]
    if end < n:  # the last interval is shorter
        smallest = low[end:].argmin()
        largest = high[end:].argmax()
        indexes.append(end + np.array([smallest, largest]))
    return indexes


def _floats(column: "pl.Series") -> NDArray[np.float64]:
    values = column.to_numpy()
    return values.astype(np.float64, copy=False)
