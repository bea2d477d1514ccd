"""A training run: metrics thinned for a chart, unusual steps, starts and repeated steps."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from loader.errors import InvalidPlan, RootError, StoreError
from loader.run.trail.step_rows import NOTE
from loader.run.trail.trail import StartRecord

from ...text import clean
from ..json_record import JsonRecord
from ..marks import StepMark, note_marks
from ..replays.training import Training
from ..runs.log_facts import LargestNote, log_facts
from ..runs.run_chart import chart_columns, chart_values
from ..runs.unusual_steps import UnusualCause

MOST_SPIKES = 20
"""Most unusual steps per page."""
MOST_NEWS = 10_000
"""Most steps of an answer to `?since=`."""
MOST_STRUCK = 2000
"""Most unusual steps marked in a chart; more would share pixels."""


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
    causes: tuple[UnusualCause, ...]
    """Unusual steps by metric and reason."""
    n_spikes: int
    """All unusual steps."""
    first_spike: int
    """Index of this page's first among all unusual steps."""
    spikes: tuple[Spike, ...]
    """This page's unusual steps, worst first."""
    struck: tuple[int, ...]
    """Unusual steps, ascending, thinned to 2,000."""
    not_finite: tuple[int, ...]
    """Those with a metric that is NaN or infinite, ascending, thinned likewise."""
    largest: tuple[LargestNote, ...]
    """Samples: up to 4 per metric whose value is not finite, by step; then up to 12 per metric, largest first."""
    chart: Mapping[str, tuple[float | None, ...]]
    """`step`, each metric, `wait_ms` and `substituted` -> values; None if missing."""
    stale: str = ""
    """Why recent steps may be missing; "" if just read."""


def run_record(training: Training, first: int = 0, most: int | None = MOST_SPIKES) -> TrainingRunRecord:
    """Return the record of a run with a run log or metrics.

    first: index of the first unusual step listed. most: number listed; None for all.
    """
    trail = training.charted
    assert trail is not None
    facts = log_facts(training)
    unusual = facts.unusual
    listed = unusual.steps[first : None if most is None else first + most].tolist()
    return TrainingRunRecord(
        run=trail.run,
        n_steps=facts.n_steps,
        first_step=facts.first_step,
        last_step=training.last_step,
        differing=facts.differing,
        differing_notes=facts.differing_notes,
        substituted=facts.substituted,
        starts=tuple(_start_row(training, start) for start in trail.starts),
        causes=unusual.causes,
        n_spikes=len(unusual.steps),
        first_spike=first,
        spikes=_spikes(training, listed),
        struck=_thin(unusual.steps),
        not_finite=_thin(unusual.steps[: unusual.n_not_finite]),
        largest=facts.largest,
        chart=facts.chart,
        stale=training.stale,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunNews(JsonRecord):
    """Steps of a run since an earlier answer, for a page that follows it."""

    run: str
    last_step: int
    """Last recorded step, or -1."""
    chart: Mapping[str, tuple[float | None, ...]]
    """As a run's: `step`, each metric, `wait_ms` and `substituted` -> values; None if missing or not finite."""
    struck: tuple[int, ...]
    """Steps among them with a metric that is not finite."""


def run_news(training: Training, since: int) -> RunNews:
    """Return the steps after `since`, at most `MOST_NEWS`, the newest. Does not look at the earlier ones."""
    import polars as pl

    trail = training.charted
    assert trail is not None
    numbers = trail.steps["step"]  # ascending, in several buffers, which numpy would copy
    first = int(numbers.search_sorted(since, side="right"))
    first = max(first, len(numbers) - MOST_NEWS)
    columns = chart_columns(trail)
    newest = trail.steps[first:].select("step", *columns.values())
    # Of several ranks often only the first one has a metric.
    rows = newest.group_by("step", maintain_order=True).agg(pl.all().drop_nulls().last())
    struck = set[int]()
    for note in trail.notes:
        values = rows[NOTE + note]
        is_bad = values.is_finite().not_().fill_null(value=False)
        struck.update(rows["step"].filter(is_bad).to_list())
    return RunNews(
        run=trail.run,
        last_step=training.last_step,
        chart=chart_values(rows, columns),
        struck=tuple(sorted(struck)),
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


def _thin(steps: NDArray[np.int64]) -> tuple[int, ...]:
    ordered = np.sort(steps)
    if len(ordered) > MOST_STRUCK:
        ends = np.linspace(float(ordered[0]), float(ordered[-1]), MOST_STRUCK)
        ordered = ordered[np.unique(np.searchsorted(ends, ordered.astype(float)), return_index=True)[1]]
    return tuple(ordered.tolist())
