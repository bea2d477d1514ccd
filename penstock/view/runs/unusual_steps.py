"""Unusual steps of a run: those with a metric that is not finite, or far from the run's median."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from loader.run.trail.read_trail import RunTrail
from loader.run.trail.step_rows import NOTE

from ..json_record import JsonRecord
from ..marks import MIN_STEPS, SIGMAS
from ..replays.metrics_file import Spread

if TYPE_CHECKING:
    import polars as pl

MOST_CAUSE_STEPS = 6
"""Most steps named per cause."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnusualCause(JsonRecord):
    """Steps that are unusual for one reason."""

    note: str
    """Metric name."""
    is_finite: bool
    """False for NaN and infinite values; True for values far from the run's median."""
    n_steps: int
    """Such steps."""
    steps: tuple[int, ...]
    """The first of them, ascending."""
    worst: int
    """The step with the farthest value; the first one if none is finite."""


@dataclass(frozen=True, slots=True)
class UnusualSteps:
    """The steps that `note_marks` marks."""

    steps: NDArray[np.int64]
    """First those with a metric that is not finite, then by deviation."""
    n_not_finite: int
    """Number of those with a metric that is not finite."""
    causes: tuple[UnusualCause, ...]
    """First values that are not finite, then distant ones."""


def step_metrics(trail: RunTrail) -> "pl.DataFrame":
    """Return step and metrics, a row a step, ascending: a step's last values under its last plan."""
    import polars as pl

    notes = [NOTE + name for name in trail.notes]
    frame = trail.steps
    if has_single_rows(trail):
        return frame.select("step", *notes)
    plans = {start.id: start.plan for start in trail.starts}
    distinct_plans = set(plans.values())
    if len(distinct_plans) > 1:  # if a step ran under several plans, keep the last plan's rows
        start = pl.col("start")
        plan = start.replace_strict(
            plans,
            default=None,
            return_dtype=pl.String,
        )
        frame = frame.with_columns(plan.alias("plan"))
        by_time = pl.col("plan").sort_by("at_us")
        last_plan = by_time.last().over("step")
        frame = frame.filter(pl.col("plan").eq_missing(last_plan))
    rank = pl.col("rank")
    first_rank = rank.first().over("step")
    frame = frame.filter(rank == first_rank)
    by_step = frame.group_by("step", maintain_order=True)
    last_values = pl.col(notes).drop_nulls().last()
    return by_step.agg(last_values)


def has_single_rows(trail: RunTrail) -> bool:
    """Return whether each step has one row: one recorded rank, and no step made again."""
    numbers = trail.steps["step"].to_numpy()
    is_larger = numbers[1:] > numbers[:-1]
    return bool(is_larger.all())


def unusual_steps(
    metrics: "pl.DataFrame",
    spreads: Mapping[str, Spread],
) -> UnusualSteps:
    """Return the unusual steps. metrics: of `step_metrics`. Costs one pass over each metric."""
    steps = metrics["step"].to_numpy()
    n = len(steps)
    is_bad = np.zeros(n, bool)
    farthest = np.zeros(n)  # in sigmas; 0 for steps that are not far
    causes = list[UnusualCause]()
    for name, spread in spreads.items():
        column = metrics[NOTE + name]
        bad = _not_finite(column)
        if len(bad):
            is_bad[bad] = True
            causes.append(_cause(name, steps[bad], is_finite=False))
        far, distance = _distant(column, spread)
        if len(far):
            farthest[far] = np.maximum(farthest[far], distance)
            worst = far[distance.argmax()]
            cause = _cause(
                name,
                steps[far],
                is_finite=True,
                worst=int(steps[worst]),
            )
            causes.append(cause)
    marked = np.flatnonzero(is_bad | (farthest > 0))
    marked_steps = steps[marked]
    order = np.lexsort(
        (
            marked_steps,
            -farthest[marked],
            ~is_bad[marked],
        )
    )

    def frequent_first(cause: UnusualCause) -> tuple[bool, int, str]:
        return cause.is_finite, -cause.n_steps, cause.note

    causes.sort(key=frequent_first)
    return UnusualSteps(
        steps=marked_steps[order],
        n_not_finite=int(is_bad.sum()),
        causes=tuple(causes),
    )


def _not_finite(column: "pl.Series") -> NDArray[np.int64]:
    """Return the rows whose value is NaN or infinite, ascending. A null is a missing value."""
    values = column.to_numpy()  # null becomes NaN
    is_finite = np.isfinite(values)
    if is_finite.all():
        return np.empty(0, np.int64)
    is_null = column.is_null().to_numpy()
    return np.flatnonzero(~is_finite & ~is_null)


def _distant(
    column: "pl.Series",
    spread: Spread,
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return (rows far from the median, ascending; their distances in sigmas)."""
    if spread.n < MIN_STEPS or not spread.sigma > 0:
        return np.empty(0, np.int64), np.empty(0)
    values = column.to_numpy()
    # Two comparisons find nearly the right rows in a tenth of the time of all distances.
    least = 0.999 * SIGMAS * spread.sigma
    is_near_far = values > spread.median + least
    is_near_far |= values < spread.median - least
    rows = np.flatnonzero(is_near_far)
    distance = np.abs(values[rows] - spread.median)
    distance /= spread.sigma
    is_far = (distance > SIGMAS) & np.isfinite(distance)
    return rows[is_far], distance[is_far]


def _cause(
    note: str,
    steps: NDArray[np.int64],
    *,
    is_finite: bool,
    worst: int | None = None,
) -> UnusualCause:
    first_steps = steps[:MOST_CAUSE_STEPS].tolist()
    if worst is None:
        worst = first_steps[0]
    return UnusualCause(
        note=note,
        is_finite=is_finite,
        n_steps=len(steps),
        steps=tuple(first_steps),
        worst=worst,
    )
