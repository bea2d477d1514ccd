"""Windows of an episode that a training run took: their rows, steps and losses."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

import loader
from loader.errors import InvalidRuntime, PenstockError
from loader.order.plan import PlannedSource
from loader.order.sources.window_layout import WindowLayout
from loader.order.sources.window_view import WindowView, window_key

from ...text import clean
from ..json_record import JsonRecord
from ..replays.training import Training
from ..shown_values import version_of
from .open_episode import OpenEpisode

SEARCH_S = 2.0
"""Seconds after which a run is searched no further."""
MOST_WINDOWS = 2000
"""Most windows of a run."""
FAR = 4.0
"""Standard deviations above the run's median from which a loss is unusual."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedWindow(JsonRecord):
    """A window of the episode in a recorded step."""

    row: int
    """Row of the anchor; -1 if the whole episode was the sample."""
    first_ns: int
    """Earliest time that the window names, ns (or steps) after the axis's start."""
    last_ns: int
    """Latest such time."""
    step: int
    """Global step."""
    slot: int
    """Global slot."""
    loss: float | None
    """Loss of the slot if it was among the step's largest, else of the step; None without one."""
    is_far: bool
    """True if the loss is not finite, or far above the run's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunWindows(JsonRecord):
    """Windows of the episode that one run took."""

    training: str
    """Run name or plan hash."""
    anchor: str
    """Stream whose rows the windows stand at, or ""."""
    metric: str
    """Metric that colours the windows, or ""."""
    n_searched: int
    """Number of windows that were searched."""
    n_windows: int
    """Number of windows that the episode has in the run's plan."""
    windows: tuple[TrainedWindow, ...]
    """Windows, by step."""
    error: str = ""
    """Error that left windows unknown, or ""."""


def trained_windows(training: Training, episode: OpenEpisode) -> RunWindows:
    """Return the windows of an episode that a run took. Searches for 2 s, in an order that covers the episode."""
    metric = _metric(training)
    found: list[tuple[int, int, int, int, int]] = []
    until, anchor, searched, n = time.monotonic() + SEARCH_S, "", 0, 0
    errors: list[str] = []
    before = training.last_step + 1
    plans = training.plans(before) if before else {}
    for plan_hash, step in plans.items():
        try:
            with training.open_replay(step) as replay:
                for source in _sources(replay.plan, episode):
                    view = source.view
                    layout = view.layout if isinstance(view, WindowView) else None
                    rows = _rows(view, episode) if isinstance(view, WindowView) else [-1]
                    anchor, n = (layout.anchor if layout else anchor), n + len(rows)
                    for row in _spread(rows):
                        if time.monotonic() > until or len(found) >= MOST_WINDOWS:
                            break
                        searched += 1
                        key = episode.address.key
                        held = replay.steps_of(
                            source.source, key if row < 0 else window_key(key, row), before=before
                        )
                        span = _span(episode, layout, row)
                        found += [
                            (one.step, one.slot, row, *span)
                            for one in held
                            if len(plans) == 1 or training.plan_hash(one.step) == plan_hash
                        ]
        except InvalidRuntime:
            continue  # this plan lacks the episode
        except PenstockError as error:
            errors.append(clean(f"{type(error).__name__}: {error}", 400))
    windows = _recorded(training, sorted(set(found))[:MOST_WINDOWS], metric)
    return RunWindows(
        training=training.name,
        anchor=anchor,
        metric=metric,
        n_searched=searched,
        n_windows=n,
        windows=windows,
        error="; ".join(errors[-1:]),
    )


def _sources(plan: loader.Plan, episode: OpenEpisode) -> list[PlannedSource]:
    named = [(one, version_of(plan, name)) for name, one in plan.sources.items()]
    dataset = episode.version.dataset
    return [one for one, version in named if version is not None and version.dataset == dataset]


def _rows(view: WindowView, episode: OpenEpisode) -> list[int]:
    numbers = view.windows_at(episode.address.key) or []
    rows: list[int] = view.rows(np.array(numbers, np.int64)).tolist() if numbers else []
    return rows


def _spread(rows: Sequence[int]) -> list[int]:
    """Return the rows in an order whose every beginning covers the episode evenly."""
    n = len(rows)
    step = max(1, round(n * (math.sqrt(5) - 1) / 2))
    while math.gcd(step, n) > 1:
        step += 1
    return [rows[i * step % n] for i in range(n)]


def _span(episode: OpenEpisode, layout: WindowLayout | None, row: int) -> tuple[int, int]:
    """Return (earliest, latest) time of a window's values, after the axis's start."""
    if layout is None or layout.anchor not in episode.streams:
        return 0, episode.length_ns
    now = episode.time_of(layout.anchor, row)
    times = [now]
    for field, offsets in layout.at.items():
        first, last = min(offsets.values), max(offsets.values)
        if offsets.unit == "ns":
            times += [now + first, now + last]
        elif field in episode.clocks or (episode.is_steps and (field in episode.streams or field in episode.cameras)):
            number = episode.number_at(field, now)
            times += [episode.time_of(field, number + first), episode.time_of(field, number + last)]
    return max(0, min(times)), min(episode.length_ns, max(times))


def _metric(training: Training) -> str:
    return next((name for name in training.spreads if "loss" in name), "")


def _recorded(
    training: Training, found: Sequence[tuple[int, int, int, int, int]], metric: str
) -> tuple[TrainedWindow, ...]:
    if not found:
        return ()
    steps = np.array([one[0] for one in found], np.int64)
    recorded = training.are_recorded(steps)
    spread = training.spreads.get(metric)
    limit = spread.median + FAR * spread.sigma if spread is not None else math.inf
    losses = {step: _losses(training, step, metric) for step in set(steps[recorded].tolist())} if metric else {}
    windows = []
    for (step, slot, row, first, last), is_recorded in zip(found, recorded.tolist(), strict=True):
        if not is_recorded:
            continue
        by_slot, own = losses.get(step, ({}, None))
        loss = by_slot.get(slot, own)
        windows.append(
            TrainedWindow(
                row=row,
                first_ns=first,
                last_ns=last,
                step=step,
                slot=slot,
                loss=loss,
                is_far=loss is not None and (not math.isfinite(loss) or loss > limit),
            )
        )
    return tuple(windows)


def _losses(training: Training, step: int, metric: str) -> tuple[dict[int, float], float | None]:
    by_slot = {slot: notes[metric] for slot, notes in training.largest(step).items() if metric in notes}
    return by_slot, training.notes(step).get(metric)
