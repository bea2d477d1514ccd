"""A run of a training: its notes by step, thinned for a chart, its unusual steps, starts and repeated steps."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from loader.errors import InvalidPlan, RootError, StoreError
from loader.run.trail.start_record import Start
from loader.run.trail.step_rows import NOTE

from ...text import clean
from ..json_record import Record
from ..replays.training import Training
from ..samples.marks import StepMark, note_marks
from .unusual_steps import unusual_steps

if TYPE_CHECKING:
    import polars as pl

MOST_POINTS = 1000
"""Places of a chart along its steps, over all notes; each has the least and the greatest value of a note there."""
LEAST_POINTS = 100
"""Places of a note, however many notes there are."""
MOST_LARGEST = 12
"""Samples that are listed of a note."""
MOST_SPIKES = 20
"""Unusual steps of a page."""
MOST_STRUCK = 2000
"""Unusual steps that a chart strikes: more of them fall onto the same pixels."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartRow(Record):
    """A start of the run."""

    plan: str
    """Hash of the plan."""
    world_size: int
    """Data-parallel ranks."""
    recipe: str
    """Function that gives the training's decoders and transform; "" for none."""
    code: str
    """Text about the training's code."""
    at_us: int
    """Time in UTC microseconds."""
    versions: tuple[str, ...]
    """Names of the versions that the plan reads; none where they cannot be told."""
    error: str = ""
    """The reason why the versions cannot be told, such as deleted data; "" where they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spike(Record):
    """An unusual step."""

    step: int
    """Global step."""
    marks: tuple[StepMark, ...]
    """Marks of its notes, the worst first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LargestNote(Record):
    """A sample with one of the largest values of a note per sample."""

    note: str
    """Name of the note."""
    step: int
    """Global step."""
    slot: int
    """Slot of the global batch."""
    value: float
    """Value, which is finite."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord(Record):
    """A run of a training."""

    run: str
    """Name of the run."""
    n_steps: int
    """Recorded steps, each counted once."""
    first_step: int
    """First recorded step; -1 for none."""
    last_step: int
    """Last recorded step; -1 for none."""
    differing: tuple[int, ...]
    """Steps that a rank got twice with different digests."""
    substituted: tuple[int, ...]
    """Steps with substituted or masked samples."""
    starts: tuple[StartRow, ...]
    """Starts, by time."""
    n_spikes: int
    """Steps with unusual notes."""
    first_spike: int
    """Place of the first of `spikes` among them."""
    spikes: tuple[Spike, ...]
    """Steps with unusual notes, the worst first: those of one page."""
    struck: tuple[int, ...]
    """Steps with unusual notes, ascending; of more than 2,000 some that stand for their neighbours."""
    largest: tuple[LargestNote, ...]
    """Samples with the largest notes, 12 of each note, the largest first."""
    chart: Mapping[str, tuple[float | None, ...]]
    """"step", and by name each note, `wait_ms` and `substituted`; null where a step has none."""
    stale: str = ""
    """The reason why steps may be missing that were recorded since; "" where the trail was just read."""


def run_record(training: Training, first: int = 0, most: int | None = MOST_SPIKES) -> RunRecord:
    """Return the record of a run with a trail or metrics. Costs a pass over its steps.

    first: place of the first unusual step that is listed. most: how many are listed; None for all.
    """
    trail = training.charted
    assert trail is not None
    steps = trail.steps["step"]
    unusual = unusual_steps(training)
    listed = unusual[first : None if most is None else first + most].tolist()
    substituted = steps.filter(trail.steps["substituted"] > 0).unique().sort()
    return RunRecord(
        run=trail.run,
        n_steps=steps.n_unique(),
        first_step=int(steps[0]) if len(steps) else -1,
        last_step=training.last_step,
        differing=trail.differing,
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


def _start_row(training: Training, start: Start) -> StartRow:
    versions: tuple[str, ...] = ()
    error = ""
    try:
        versions = training.versions(start)
    except (RootError, InvalidPlan, StoreError) as told:
        error = clean(told, 400)  # the digests and notes of the trail remain
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
    """Return steps with the marks of their notes, the worst first."""
    found = []
    for step in steps:
        marks = note_marks(step, training.notes(step), training.spreads)
        found.append(Spike(step=step, marks=tuple(sorted(marks, key=lambda one: -one.weight))))
    return tuple(found)


def _thinned(steps: NDArray[np.int64]) -> tuple[int, ...]:
    """Return steps, ascending; of many the first one of each of `MOST_STRUCK` stretches."""
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
    """Return columns of some 2 * MOST_POINTS steps: those of the least and greatest value of each stretch."""
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
        kept = {0, n - 1}
        for column in shown.values():  # one after the other: a column of 1e6 steps is 8 MB
            values = _floats(frame[column])
            for start, stop in pairwise(ends.tolist()):
                some = values[start:stop]
                low, high = np.nan_to_num(some, nan=np.inf), np.nan_to_num(some, nan=-np.inf)
                kept.update((start + int(low.argmin()), start + int(high.argmax())))
        chosen = np.array(sorted(kept))
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
    """Return float64 [n]; null is NaN. The column's own memory where it can be."""
    return column.to_numpy().astype(np.float64, copy=False)
