"""The outline of run logs for a list of runs: a loss line, waits and the last step, from some of a run's objects.

One listing of all logs, then at most `MOST_OBJECTS` reads a run, however long the run is: the first recorded rank's
objects evenly spread, and its newest one.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import NDArray

from ...storage import Store
from .read_trail import START, read_rows, read_starts
from .row_objects import ROWS
from .step_rows import NOTE
from .trail import StartRecord, is_run_name, trail_folder

if TYPE_CHECKING:
    import polars as pl

T = TypeVar("T")
Number = TypeVar("Number", np.int64, np.float64)

MOST_OBJECTS = 24
"""Objects read per run. An object holds a minute of one rank."""
MOST_POINTS = 90
"""Points of a line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedRun:
    """A run of the listing. newest_us: UTC microseconds of the newest object; 0 if the store has no times."""

    run: str
    newest_us: int
    rows: tuple[str, ...]
    """Names of the first recorded rank's objects in the run's folder, by first step."""
    starts: tuple[str, ...]
    """Names of the starts' objects."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrailOutline:
    """A run's outline."""

    run: str
    starts: tuple[StartRecord, ...]
    """By time."""
    is_whole: bool
    """False if some of the log's objects were not read."""
    last_step: int
    """-1 without steps."""
    last_us: int
    """When the last step was delivered, in UTC microseconds; 0 without steps."""
    median_step_us: float
    """Median time between two steps; NaN for fewer than two."""
    waiting: float
    """Share of the steps' time that training waited for data; NaN if unknown."""
    metric: str
    """Metric of the line: `loss`, else the first by name; "" without one."""
    line: tuple[tuple[int, float], ...]
    """(step, median of the metric's finite values around it), ascending, up to `MOST_POINTS`."""
    not_finite: tuple[int, ...]
    """Steps with a NaN or infinite metric among those read, ascending."""
    substituted: int
    """Samples that were substituted or masked in the steps read."""


def list_runs(store: Store) -> list[ListedRun]:
    """Return all runs with a run log, newest first. Costs a listing of all run logs."""
    names: dict[str, list[str]] = {}
    newest: dict[str, int] = {}
    for info in store.list("trails/"):
        path = info.key.removeprefix("trails/")
        run, _, name = path.partition("/")
        if not is_run_name(run):
            continue
        if not ROWS.fullmatch(name) and not START.fullmatch(name):
            continue
        own = names.setdefault(run, [])
        own.append(name)
        modified_us = info.modified_us or 0
        earlier_us = newest.get(run, 0)
        newest[run] = max(earlier_us, modified_us)
    listed = [_list_run(run, newest[run], names[run]) for run in names]

    def newest_first(listed_run: ListedRun) -> tuple[int, str]:
        return -listed_run.newest_us, listed_run.run

    return sorted(listed, key=newest_first)


def _list_run(
    run: str,
    newest_us: int,
    names: Sequence[str],
) -> ListedRun:
    starts = list[str]()
    by_rank: dict[int, list[tuple[int, str]]] = {}
    for name in names:
        match = ROWS.fullmatch(name)
        if match is None:
            starts.append(name)
            continue
        rank = int(match[1])
        first_step = int(match[3])
        own = by_rank.setdefault(rank, [])
        own.append((first_step, name))
    first_rank = min(by_rank, default=0)
    rows = by_rank.get(first_rank, [])
    rows.sort()
    return ListedRun(
        run=run,
        newest_us=newest_us,
        rows=tuple(name for _, name in rows),
        starts=tuple(starts),
    )


def trail_outline(
    store: Store,
    listed: ListedRun,
) -> TrailOutline:
    """Return a run's outline. Raises: Corrupt; FormatTooNew; StoreError; MissingDependency without polars."""
    folder = trail_folder(listed.run)
    chosen = evenly_spread(listed.rows, MOST_OBJECTS)
    steps = read_rows(store, folder, chosen, [])
    metrics = list[str]()
    for column in steps.columns:
        if column.startswith(NOTE):
            metric = column.removeprefix(NOTE)
            metrics.append(metric)
    metric = main_metric(metrics)
    line = list[tuple[int, float]]()
    if metric:
        line.extend(_line(steps, metric))
    median_step_us, waiting = step_times(steps)
    last_step = max(steps["step"], default=-1)
    last_us = max(steps["at_us"], default=0)
    return TrailOutline(
        run=listed.run,
        starts=read_starts(store, listed.run, listed.starts),
        is_whole=len(chosen) == len(listed.rows),
        last_step=last_step,
        last_us=last_us,
        median_step_us=median_step_us,
        waiting=waiting,
        metric=metric,
        line=tuple(line),
        not_finite=_not_finite(steps, metrics),
        substituted=int(steps["substituted"].sum()),
    )


def main_metric(metrics: Iterable[str]) -> str:
    """Return the metric that stands for a run: `loss`, else the first by name; "" without one."""
    names = set(metrics)
    if "loss" in names:
        return "loss"
    return min(names, default="")


def evenly_spread(items: Sequence[T], most: int) -> list[T]:
    """Return at most so many items, evenly spread, the first and the last one among them."""
    if len(items) <= most:
        return list(items)
    last = len(items) - 1
    places = np.linspace(0, last, most)
    rounded = places.round().astype(int)
    return [items[place] for place in rounded.tolist()]


def step_times(
    steps: "pl.DataFrame",
) -> tuple[float, float]:
    """Return the median microseconds between two steps of a rank, and the share of that time that training waited.

    steps: rows of a run log. NaN without two steps that follow each other.
    """
    took_us, wait_us = _following_steps(steps)
    if not took_us.any():
        return math.nan, math.nan
    median_us = median_of(took_us)
    waited_us = wait_us.sum()
    whole_us = took_us.sum()
    share = waited_us / whole_us
    share = min(1.0, float(share))
    return median_us, share


def median_of(values: NDArray[Number]) -> float:
    """Return the median, and reorder `values`. `numpy.median` looks for NaN by another partition: five times slower."""
    middle = len(values) // 2
    values.partition(middle)
    upper = values[middle]
    if len(values) % 2:
        return float(upper)
    lower = values[:middle].max()
    return float((lower + upper) / 2)


def _following_steps(
    steps: "pl.DataFrame",
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return for each step right after another one of its start and rank: microseconds since that one; its wait.

    The first wait of a start does not count: it lies before the first step.
    """
    is_one_rank = _is_one_rank_in_order(steps)
    ordered = steps
    if not is_one_rank:
        ordered = steps.sort(
            "start",
            "rank",
            "at_us",
        )
    number = ordered["step"].to_numpy()
    at_us = ordered["at_us"].to_numpy()
    wait_us = ordered["wait_us"].to_numpy()
    took_us = np.diff(at_us)
    # Objects between two others may not have been read, and clocks may go back: only true neighbours count.
    n_steps = np.diff(number)
    follows = n_steps == 1
    follows &= took_us >= 0
    if not is_one_rank:
        for name in ("start", "rank"):
            column = ordered[name]
            before = column.shift(1)
            is_same = column == before
            is_same = is_same.fill_null(value=False)
            is_same_as_before = is_same.to_numpy()
            follows &= is_same_as_before[1:]
    wait_us = wait_us[1:]
    if not follows.all():
        took_us = took_us[follows]
        wait_us = wait_us[follows]
    return took_us, wait_us


def _is_one_rank_in_order(steps: "pl.DataFrame") -> bool:
    """Return whether rows are of one start and rank, by time: sorting 1e6 rows takes 80 ms."""
    if not len(steps):
        return True
    import polars as pl

    places = pl.col("rank", "start")
    # polars stores a column of one value as that value: `steps["start"]` would write it 1e6 times.
    n_values = steps.select(places.n_unique()).row(0)
    return n_values == (1, 1) and steps["at_us"].is_sorted()


def _line(
    steps: "pl.DataFrame",
    metric: str,
) -> Iterator[tuple[int, float]]:
    number, value = _last_values(steps, metric)
    is_finite = np.isfinite(value)
    number = number[is_finite]
    value = value[is_finite]
    n_points = min(MOST_POINTS, len(number))
    n = len(number)
    bounds = np.linspace(0, n, n_points + 1)
    whole_bounds = bounds.astype(int).tolist()
    for first, end in pairwise(whole_bounds):
        middle = (first + end) // 2
        step = int(number[middle])
        around = value[first:end]
        median = np.median(around)
        yield step, float(median)


def _last_values(
    steps: "pl.DataFrame",
    metric: str,
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return the ascending steps that have the metric, and its value when the step was last made."""
    column = NOTE + metric
    rows = steps.select("step", "at_us", column)
    rows = rows.drop_nulls()
    rows = rows.sort("step", "at_us")
    last = rows.unique(
        "step",
        keep="last",
        maintain_order=True,
    )
    number = last["step"].to_numpy()
    value = last[column].to_numpy()
    return number, value.astype(np.float64)


def _not_finite(
    steps: "pl.DataFrame",
    metrics: Sequence[str],
) -> tuple[int, ...]:
    bad = set[int]()
    for metric in metrics:
        number, value = _last_values(steps, metric)
        is_finite = np.isfinite(value)
        not_finite = number[~is_finite]
        bad.update(not_finite.tolist())
    return tuple(sorted(bad))
