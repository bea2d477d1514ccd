"""Facts of a run's whole log, for its page: counted once for all of its requests."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from loader.run.trail.lean_trail import LeanTrail
from loader.run.trail.trail_outline import step_times

from ..json_record import JsonRecord
from ..replays.training import Training
from .run_chart import Chart, run_chart
from .unusual_steps import (
    UnusualSteps,
    has_single_rows,
    step_metrics,
    unusual_steps,
)

if TYPE_CHECKING:
    import polars as pl

MOST_LARGEST = 12
"""Most samples listed per metric."""
MOST_NOT_FINITE = 4
"""Samples listed before them per metric, whose value is not finite."""


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
    """Value, NaN and the infinities too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFacts:
    """Counts and lines of a whole run log."""

    n_steps: int
    """Distinct recorded steps."""
    first_step: int
    """-1 without steps."""
    differing: tuple[int, ...]
    """Steps that a rank received with different digests."""
    differing_notes: tuple[int, ...]
    """Steps that a rank made with different metrics."""
    substituted: tuple[int, ...]
    """Steps with substituted or masked samples."""
    unusual: UnusualSteps
    largest: tuple[LargestNote, ...]
    """Samples: up to 4 per metric whose value is not finite, by step; then up to 12 per metric, largest first."""
    chart: Chart
    last_us: int
    """Time when the newest step was delivered, in UTC microseconds; 0 without steps."""
    median_step_us: float
    """Median time between two steps; NaN if unknown."""
    waiting: float
    """Share of the log's time that training waited for data; NaN if unknown."""


def log_facts(training: Training) -> LogFacts:
    """Return the facts of a run with a log or metrics. Costs a few passes over its steps, once."""
    return training.remember(_count)


def _count(training: Training) -> LogFacts:
    trail = training.charted
    assert trail is not None
    steps = trail.steps["step"]
    metrics = step_metrics(trail)
    differing: tuple[int, ...] = ()
    differing_notes: tuple[int, ...] = ()
    if not has_single_rows(trail):
        differing = trail.differing
        differing_notes = trail.differing_notes
    median_step_us, waiting = step_times(trail.steps)
    first_step = -1
    if len(steps):
        first_step = int(steps[0])
    return LogFacts(
        n_steps=metrics.height,
        first_step=first_step,
        differing=differing,
        differing_notes=differing_notes,
        substituted=_substituted_steps(trail),
        unusual=unusual_steps(metrics, training.spreads),
        largest=_largest(trail),
        chart=run_chart(trail, metrics),
        last_us=_last_us(trail),
        median_step_us=median_step_us,
        waiting=waiting,
    )


def _last_us(trail: LeanTrail) -> int:
    at_us = trail.steps["at_us"].drop_nulls()  # another tool's metrics have no times
    if not len(at_us):
        return 0
    return int(at_us.to_numpy().max())


def _substituted_steps(trail: LeanTrail) -> tuple[int, ...]:
    is_substituted = trail.steps["substituted"] > 0
    steps = trail.steps["step"].filter(is_substituted)
    distinct = steps.unique().sort()
    return tuple(distinct.to_list())


def _largest(trail: LeanTrail) -> tuple[LargestNote, ...]:
    rows = trail.largest
    if not has_single_rows(trail):
        rows = rows.filter(_are_last(trail, rows))
    rows = rows.sort("at_us").unique(["note", "step", "slot"], keep="last")
    is_finite = rows["value"].is_finite()
    # One broken sample may come back in every epoch: it does not fill the list.
    not_finite = rows.filter(~is_finite)
    not_finite = not_finite.sort("note", "step", "slot")
    finite = rows.filter(is_finite)
    finite = finite.sort(
        *("note", "value", "step", "slot"),
        descending=[False, True, False, False],
    )
    return (
        *_first_samples(not_finite, MOST_NOT_FINITE),
        *_first_samples(finite, MOST_LARGEST),
    )


def _are_last(trail: LeanTrail, samples: "pl.DataFrame") -> list[bool]:
    """Return whether each sample's rank has made its step for the last time. samples: a few candidates."""
    numbers = trail.steps["step"].to_numpy()
    are_last = []
    for step, rank, at_us in samples.select("step", "rank", "at_us").iter_rows():
        first = int(numbers.searchsorted(step))
        end = int(numbers.searchsorted(step, side="right"))
        tries = trail.steps[first:end].filter(rank=rank)
        are_last.append(at_us == tries["at_us"].max())
    return are_last


def _first_samples(
    rows: "pl.DataFrame",
    most: int,
) -> list[LargestNote]:
    """Return the first rows of each metric."""
    by_note = rows.group_by("note", maintain_order=True)
    first = by_note.head(most).select("note", "step", "slot", "value")
    return [LargestNote(**row) for row in first.iter_rows(named=True)]
