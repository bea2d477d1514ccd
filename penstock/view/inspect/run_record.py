"""A run of a training: its notes by step, thinned for a chart, its unusual steps, starts and repeated steps."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from loader.errors import InvalidPlan, RootError, StoreError
from loader.run.trail.start_record import Start
from loader.run.trail.step_rows import NOTE
from penstock.card.rendering.escape import clean

from ..replays.training import Training
from .json_record import Record
from .marks import StepMark, note_marks

if TYPE_CHECKING:
    import polars as pl

MOST_POINTS = 1000
"""Places of a chart along its steps, over all notes; each has the least and the greatest value of a note there."""
LEAST_POINTS = 100
"""Places of a note, however many notes there are."""
MOST_LARGEST = 12
"""Samples that are listed of a note."""
MOST_SPIKES = 20
"""Unusual steps that are listed."""


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
    spikes: tuple[Spike, ...]
    """Steps with unusual notes, the worst first."""
    largest: tuple[LargestNote, ...]
    """Samples with the largest notes, the largest of each note first."""
    chart: Mapping[str, tuple[float | None, ...]]
    """"step", and by name each note, `wait_ms` and `substituted`; null where a step has none."""
    stale: str = ""
    """The reason why steps may be missing that were recorded since; "" where the trail was just read."""


def run_record(training: Training) -> RunRecord:
    """Return the record of a run with a trail or metrics. Costs a pass over its steps."""
    trail = training.charted
    assert trail is not None
    steps = trail.steps["step"]
    substituted = steps.filter(trail.steps["substituted"] > 0).unique().sort()
    return RunRecord(
        run=trail.run,
        n_steps=steps.n_unique(),
        first_step=int(steps[0]) if len(steps) else -1,
        last_step=training.last_step,
        differing=trail.differing,
        substituted=tuple(substituted.to_list()),
        starts=tuple(_start_row(training, one) for one in trail.starts),
        spikes=_spikes(training),
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


def _spikes(training: Training) -> tuple[Spike, ...]:
    """Return the steps with marked notes. Only values far from the middle are looked at one by one."""
    assert training.charted is not None
    steps = training.charted.steps["step"].to_numpy()
    suspects: set[int] = set()
    for name in training.charted.notes:
        values = _floats(training.charted.steps[NOTE + name])
        there = ~training.charted.steps[NOTE + name].is_null().to_numpy()
        suspects.update(steps[there & ~np.isfinite(values)][:MOST_SPIKES].tolist())
        far = np.abs(values - training.spreads[name].median)
        np.nan_to_num(far, copy=False, nan=-1.0, posinf=-1.0)
        if len(far) > 2 * MOST_SPIKES:
            steps_far = np.flatnonzero(far >= np.partition(far, -2 * MOST_SPIKES)[-2 * MOST_SPIKES])
        else:
            steps_far = np.arange(len(far))
        suspects.update(
            steps[steps_far[np.argsort(-far[steps_far], kind="stable")][: 2 * MOST_SPIKES]].tolist()
        )
    found = [
        Spike(step=step, marks=tuple(marks))
        for step in sorted(suspects)
        if (marks := note_marks(step, training.notes(step), training.spreads))
    ]
    return tuple(
        sorted(found, key=lambda one: (-one.marks[0].weight, -_distance(one), one.step))[:MOST_SPIKES]
    )


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


def _distance(spike: Spike) -> float:
    words = spike.marks[0].text.split()
    return next((float(words[i - 1]) for i, word in enumerate(words) if word == "sigma"), 0.0)


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
