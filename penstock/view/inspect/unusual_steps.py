"""Steps of a run with unusual notes: those that `note_marks` marks, found in one pass over all of them."""

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from loader.run.trail.step_rows import NOTE

from ..replays.training import Training
from ..samples.marks import MIN_STEPS, SIGMAS

if TYPE_CHECKING:
    import polars as pl


def unusual_steps(training: Training) -> NDArray[np.int64]:
    """Return the steps with a marked note, the worst first: those that are not finite, then the farthest."""
    frame = _last_notes(training)
    steps = frame["step"].to_numpy()
    bad, farthest = np.zeros(len(steps), bool), np.zeros(len(steps))
    for column in frame.columns:
        if column == "step":
            continue
        values = frame[column].to_numpy().astype(np.float64, copy=False)  # null is NaN
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
    """Return a row per step, with the notes that `Training.notes` has of it."""
    import polars as pl

    trail = training.charted
    assert trail is not None
    notes = [name for name in trail.steps.columns if name.startswith(NOTE)]
    frame, numbers = trail.steps, trail.steps["step"].to_numpy()
    if (numbers[1:] > numbers[:-1]).all():
        return frame.select("step", *notes)
    plans = {one.id: one.plan for one in trail.starts}
    if len(set(plans.values())) > 1:  # of a step that was done under several plans the last one counts
        plan = pl.col("start").replace_strict(plans, default=None, return_dtype=pl.String)
        frame = frame.with_columns(plan.alias("plan"))
        frame = frame.filter(pl.col("plan").eq_missing(pl.col("plan").sort_by("at_us").last().over("step")))
    frame = frame.filter(pl.col("rank") == pl.col("rank").first().over("step"))
    return frame.group_by("step", maintain_order=True).agg(pl.col(notes).drop_nulls().last())
