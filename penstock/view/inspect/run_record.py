"""A training run: metrics thinned for a chart, unusual steps, starts and repeated steps."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from loader.errors import InvalidPlan, RootError, StoreError
from loader.run.trail.step_rows import NOTE
from loader.run.trail.trail import StartRecord

from ...text import clean
from ..json_record import JsonRecord
from ..marks import MIN_STEPS, SIGMAS, StepMark, note_marks
from ..replays.training import Training

if TYPE_CHECKING:
    import polars as pl


MOST_POINTS = 1000
"""Chart intervals, shared among all metrics. Each keeps a metric's smallest and largest value."""
LEAST_POINTS = 100
"""Fewest intervals per metric."""
MOST_LARGEST = 12
"""Most samples listed per metric."""
MOST_SPIKES = 20
"""Most unusual steps per page."""
MOST_STRUCK = 2000
"""Most unusual steps marked in a chart; more would share pixels."""


def unusual_steps(training: Training) -> NDArray[np.int64]:
    """Return the steps that `note_marks` would mark: first those with non-finite metrics, then by deviation."""
    frame = _last_notes(training)
    steps = frame["step"].to_numpy()
    bad, farthest = np.zeros(len(steps), bool), np.zeros(len(steps))
    for column in frame.columns:
        if column == "step":
            continue
        values = frame[column].to_numpy().astype(np.float64, copy=False)  # null becomes NaN
        finite = np.isfinite(values)
        bad |= ~finite & ~frame[column].is_null().to_numpy()
        spread = training.spreads[column.removeprefix(NOTE)]
        if spread.n >= MIN_STEPS and spread.sigma > 0:
            far = np.abs(np.where(finite, values, spread.median) - spread.median) / spread.sigma
            farthest = np.maximum(farthest, np.where(far > SIGMAS, far, 0))
    marked = np.flatnonzero(bad | (farthest > 0))
    order = np.lexsort((steps[marked], -farthest[marked], ~bad[marked]))
    worst: NDArray[np.int64] = steps[marked[order]]
    return worst


def _last_notes(training: Training) -> "pl.DataFrame":
    import polars as pl

    trail = training.charted
    assert trail is not None
    notes = [name for name in trail.steps.columns if name.startswith(NOTE)]
    frame, numbers = trail.steps, trail.steps["step"].to_numpy()
    if (numbers[1:] > numbers[:-1]).all():
        return frame.select("step", *notes)
    plans = {one.id: one.plan for one in trail.starts}
    if len(set(plans.values())) > 1:  # if a step ran under several plans, keep the last plan's rows
        plan = pl.col("start").replace_strict(plans, default=None, return_dtype=pl.String)
        frame = frame.with_columns(plan.alias("plan"))
        frame = frame.filter(pl.col("plan").eq_missing(pl.col("plan").sort_by("at_us").last().over("step")))
    frame = frame.filter(pl.col("rank") == pl.col("rank").first().over("step"))
    return frame.group_by("step", maintain_order=True).agg(pl.col(notes).drop_nulls().last())


@dataclass(frozen=True, slots=True, kw_only=True)
class StartRow(JsonRecord):
    """One start of a run."""

    plan: str
    """Plan hash."""
    world_size: int
    """Number of ranks."""
    recipe: str
    """Its function, or ""."""
    code: str
    """The training's code."""
    at_us: int
    """UTC microseconds."""
    versions: tuple[str, ...]
    """Names that the plan reads; empty if unknown."""
    error: str = ""
    """Why they are unknown, such as deleted data, or ""."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spike(JsonRecord):
    """An unusual step."""

    step: int
    """Global step."""
    marks: tuple[StepMark, ...]
    """Worst first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LargestNote(JsonRecord):
    """A sample with one of a metric's largest values."""

    note: str
    """Metric name."""
    step: int
    """Global step."""
    slot: int
    """Global slot."""
    value: float
    """Finite value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRunRecord(JsonRecord):
    run: str
    """Run name."""
    n_steps: int
    """Distinct recorded steps."""
    first_step: int
    """First step, or -1."""
    last_step: int
    """Last step, or -1."""
    differing: tuple[int, ...]
    """Steps that a rank received with different digests."""
    differing_notes: tuple[int, ...]
    """Steps that a rank made with different metrics."""
    substituted: tuple[int, ...]
    """Steps with substituted or masked samples."""
    starts: tuple[StartRow, ...]
    """By time."""
    n_spikes: int
    """All unusual steps."""
    first_spike: int
    """Index of this page's first among all unusual steps."""
    spikes: tuple[Spike, ...]
    """This page's unusual steps, worst first."""
    struck: tuple[int, ...]
    """Unusual steps, ascending, thinned to 2,000."""
    largest: tuple[LargestNote, ...]
    """Samples, up to 12 per metric, largest first."""
    chart: Mapping[str, tuple[float | None, ...]]
    """`step`, each metric, `wait_ms` and `substituted` -> values; None if missing."""
    stale: str = ""
    """Why recent steps may be missing; "" if just read."""


def run_record(training: Training, first: int = 0, most: int | None = MOST_SPIKES) -> TrainingRunRecord:
    """Return the record of a run with a run log or metrics. Costs a pass over its steps.

    first: index of the first unusual step listed. most: number listed; None for all.
    """
    trail = training.charted
    assert trail is not None
    steps = trail.steps["step"]
    unusual = unusual_steps(training)
    listed = unusual[first : None if most is None else first + most].tolist()
    substituted = steps.filter(trail.steps["substituted"] > 0).unique().sort()
    return TrainingRunRecord(
        run=trail.run,
        n_steps=steps.n_unique(),
        first_step=int(steps[0]) if len(steps) else -1,
        last_step=training.last_step,
        differing=trail.differing,
        differing_notes=trail.differing_notes,
        substituted=tuple(substituted.to_list()),
        starts=tuple(_start_row(training, one) for one in trail.starts),
        n_spikes=len(unusual),
        first_spike=first,
        spikes=_spikes(training, listed),
        struck=_thinned(unusual),
        largest=_largest(training),
        chart=_chart(training),
        stale=training.stale,
    )


def _start_row(training: Training, start: StartRecord) -> StartRow:
    versions: tuple[str, ...] = ()
    error = ""
    try:
        versions = training.versions(start)
    except (RootError, InvalidPlan, StoreError) as failure:
        error = clean(failure, 400)  # the run log's digests and metrics can still be shown
    return StartRow(
        plan=start.plan,
        world_size=start.world_size,
        recipe=start.recipe,
        code=start.code,
        at_us=start.at_us,
        versions=versions,
        error=error,
    )


def _spikes(training: Training, steps: list[int]) -> tuple[Spike, ...]:
    spikes = []
    for step in steps:
        marks = note_marks(step, training.notes(step), training.spreads)
        spikes.append(Spike(step=step, marks=tuple(sorted(marks, key=lambda mark: -mark.weight))))
    return tuple(spikes)


def _thinned(steps: NDArray[np.int64]) -> tuple[int, ...]:
    ordered = np.sort(steps)
    if len(ordered) > MOST_STRUCK:
        ends = np.linspace(float(ordered[0]), float(ordered[-1]), MOST_STRUCK)
        ordered = ordered[np.unique(np.searchsorted(ends, ordered.astype(float)), return_index=True)[1]]
    return tuple(ordered.tolist())


def _largest(training: Training) -> tuple[LargestNote, ...]:
    assert training.charted is not None
    rows = training.charted.steps.select("step", "largest").explode("largest").unnest("largest")
    rows = rows.filter(rows["value"].is_finite().fill_null(False)).unique(
        ["note", "step", "slot"], keep="last"
    )
    ordered = rows.sort("note", "value", "step", "slot", descending=[False, True, False, False])
    return tuple(
        LargestNote(**row)
        for row in ordered.group_by("note", maintain_order=True).head(MOST_LARGEST).iter_rows(named=True)
    )


def _chart(training: Training) -> dict[str, tuple[float | None, ...]]:
    """Return up to about 2 * MOST_POINTS steps, with intervals' smallest and largest values."""
    assert training.charted is not None
    numbers = training.charted.steps["step"].to_numpy()  # ascending
    last = np.append(numbers[1:] != numbers[:-1], True)[: len(numbers)]
    notes = [NOTE + name for name in training.charted.notes]
    frame = training.charted.steps.select("step", "wait_us", "substituted", *notes)
    frame = frame if last.all() else frame.filter(last)
    shown = {name: NOTE + name for name in training.charted.notes} | {
        "wait_ms": "wait_us",
        "substituted": "substituted",
    }
    n = frame.height
    chosen = np.arange(n)
    if n > 2 * MOST_POINTS:
        ends = np.linspace(0, n, max(LEAST_POINTS, MOST_POINTS // len(shown)) + 1).astype(int)
        indexes = {0, n - 1}
        for column in shown.values():  # one at a time, because a column of 1e6 steps takes 8 MB
            values = _floats(frame[column])
            for start, stop in pairwise(ends.tolist()):
                stretch = values[start:stop]
                low, high = np.nan_to_num(stretch, nan=np.inf), np.nan_to_num(stretch, nan=-np.inf)
                indexes.update((start + int(low.argmin()), start + int(high.argmax())))
        chosen = np.array(sorted(indexes))
    rows = frame[chosen]
    return {
        "step": tuple(rows["step"].to_list()),
        **{
            name: tuple(
                float(one) if np.isfinite(one) else None
                for one in _floats(rows[column]) / (1000 if name == "wait_ms" else 1)
            )
            for name, column in shown.items()
        },
    }


def _floats(column: "pl.Series") -> np.ndarray[Any, np.dtype[np.float64]]:
    return column.to_numpy().astype(np.float64, copy=False)
