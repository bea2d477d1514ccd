"""Windows of an episode that a training run took: rows, steps and losses."""

import math
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np

import loader
from loader.errors import InvalidRuntime, PenstockError
from loader.order.plan import PlannedSource
from loader.order.random.keyed_permutation import I64
from loader.order.sources.window_layout import WindowLayout
from loader.order.sources.window_view import WindowView, window_key

from ...text import clean
from ..json_record import JsonRecord
from ..replays.training import Training
from ..shown_values import version_of
from .open_episode import OpenEpisode

SEARCH_S = 4.0
"""Most seconds to search a run."""
WINDOW_S = 1e-3
ROW_S = 1e-7
STEP_S = 4e-4
"""Approximate seconds to search a window, in addition per row of its episode, and to search a step."""
MOST_WINDOWS = 2000
"""Most windows of a run."""
FAR = 4.0
"""Standard deviations above the run's median from which a loss is unusual."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedWindow(JsonRecord):
    row: int
    """Anchor's row; -1 if the sample is the whole episode."""
    at_ns: int
    """Row's time, ns (or steps) after the axis's start."""
    first_ns: int
    """Earliest time that the window names, likewise."""
    last_ns: int
    """Latest such time."""
    step: int
    """Global step."""
    slot: int
    """Global slot."""
    loss: float | None
    """Slot's if among the step's largest, else the step's, or None."""
    is_far: bool
    """True if the loss is not finite, or far above the run's."""
    level: int = 0
    """Line of a drawing in which no windows overlap, from 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunWindows(JsonRecord):
    """An episode's windows in one run."""

    training: str
    """Run name or plan hash."""
    anchor: str
    """Stream whose rows are meant, or ""."""
    metric: str
    """Metric that colours them, or ""."""
    searched: str
    """Such as "the last 900 of 40,000 steps"; "" for all."""
    windows: tuple[TrainedWindow, ...]
    """By step."""
    error: str = ""
    """Why some are unknown, or ""."""


class _WindowSearch:
    """Search of one run, until a time."""

    def __init__(self, training: Training, episode: OpenEpisode) -> None:
        self.training = training
        self.episode = episode
        self.until = time.monotonic() + SEARCH_S
        self.places: set[tuple[int, int, int, int, int, int]] = set()
        self.searched = ""
        self.anchor = ""

    @property
    def is_over(self) -> bool:
        return time.monotonic() > self.until or len(self.places) >= MOST_WINDOWS

    def add(self, layout: WindowLayout | None, row: int, step: int, slot: int) -> None:
        if layout is not None:
            self.anchor = layout.anchor
        self.places.add((step, slot, row, *_span(self.episode, layout, row)))

    def by_windows(
        self, replay: loader.Replay, source: PlannedSource, plan_hash: str, one_plan: bool
    ) -> None:
        view = source.view
        key = self.episode.address.key
        layout = None
        if isinstance(view, WindowView):
            layout = view.layout
        rows = _rows(view, self.episode) if isinstance(view, WindowView) else [-1]
        for number, row in enumerate(_spread(rows)):
            if self.is_over:
                self.searched = f"{number:,} of {len(rows):,} windows"
                return
            name = key if row < 0 else window_key(key, row)
            for held in replay.steps_of(source.source, name, before=self.training.last_step + 1):
                # With several plans a step belongs to the one that last trained it.
                if one_plan or self.training.plan_hash(held.step) == plan_hash:
                    self.add(layout, row, held.step, held.slot)

    def by_steps(self, steps: I64) -> None:
        plans: dict[str, list[tuple[int, WindowView, list[int]]]] = {}
        for number, step in enumerate(reversed(steps.tolist())):
            if self.is_over:
                self.searched = f"the last {number:,} of {len(steps):,} steps"
                return
            plan_hash = self.training.plan_hash(step)
            if plan_hash not in plans:
                plans[plan_hash] = _views(self.training.plan(step), self.episode)
            slots = self.training.slots(step, 0, 1)
            for source, view, numbers in plans[plan_hash]:
                # An episode's windows are consecutive ordinals of the view.
                inside = (slots.ordinal >= numbers[0]) & (slots.ordinal <= numbers[-1])
                places = np.flatnonzero((slots.source == source) & inside)
                for slot, row in zip(places.tolist(), view.rows(slots.ordinal[places]).tolist(), strict=True):
                    self.add(view.layout, row, step, slot)


def trained_windows(training: Training, episode: OpenEpisode) -> RunWindows:
    """Return the windows of an episode that a run took.

    Searches for some seconds: window by window, in an order that covers the episode, or step by step backwards,
    whichever costs less.
    """
    search = _WindowSearch(training, episode)
    error = ""
    steps = training.recorded_steps()
    plans = training.plans(training.last_step + 1) if len(steps) else {}
    try:
        views = [one for step in plans.values() for one in _views(training.plan(step), episode)]
        n_windows = sum(len(numbers) for _, _, numbers in views)
        # An episode of many windows is cheaper by steps; a long run with few windows is cheaper by windows.
        if n_windows * (WINDOW_S + n_windows * ROW_S) > len(steps) * STEP_S:
            search.by_steps(steps)
        else:
            for plan_hash, step in plans.items():
                with training.open_replay(step) as replay:
                    for source in _sources(replay.plan, episode):
                        with suppress(InvalidRuntime):  # this source lacks the episode
                            search.by_windows(replay, source, plan_hash, len(plans) == 1)
    except PenstockError as failed:
        error = clean(f"{type(failed).__name__}: {failed}", 400)
    metric = _metric(training)
    return RunWindows(
        training=training.name,
        anchor=search.anchor,
        metric=metric,
        searched=search.searched,
        windows=_read_windows(training, sorted(search.places)[:MOST_WINDOWS], metric),
        error=error,
    )


def _views(plan: loader.Plan, episode: OpenEpisode) -> list[tuple[int, WindowView, list[int]]]:
    """Return (source, view, the episode's windows) of each source with windows."""
    views = [
        (
            plan.source_names.index(source.name),
            source.view,
            source.view.key_windows(episode.address.key) or [],
        )
        for source in _sources(plan, episode)
        if isinstance(source.view, WindowView)
    ]
    return [one for one in views if one[2]]


def _sources(plan: loader.Plan, episode: OpenEpisode) -> list[PlannedSource]:
    named = [(one, version_of(plan, name)) for name, one in plan.sources.items()]
    dataset = episode.version.dataset
    return [one for one, version in named if version is not None and version.dataset == dataset]


def _rows(view: WindowView, episode: OpenEpisode) -> list[int]:
    numbers = view.key_windows(episode.address.key) or []
    rows: list[int] = view.rows(np.array(numbers, np.int64)).tolist() if numbers else []
    return rows


def _spread(rows: Sequence[int]) -> list[int]:
    """Return the rows in an order whose every prefix covers the episode evenly."""
    n = len(rows)
    # Multiples of the golden ratio spread evenly at any length; coprime with n, they visit each row once.
    step = max(1, round(n * (math.sqrt(5) - 1) / 2))
    while math.gcd(step, n) > 1:
        step += 1
    return [rows[i * step % n] for i in range(n)]


def _span(episode: OpenEpisode, layout: WindowLayout | None, row: int) -> tuple[int, int, int]:
    """Return (row's time, a window's earliest and latest), after the axis's start."""
    if layout is None or layout.anchor not in episode.streams:
        return 0, 0, episode.length_ns
    now = episode.time_of(layout.anchor, row)
    times = [now]
    for field, offsets in layout.at.items():
        first = min(offsets.values)
        last = max(offsets.values)
        if offsets.unit == "ns":
            times += [now + first, now + last]
        elif field in episode.clocks or (
            episode.is_steps and (field in episode.streams or field in episode.cameras)
        ):
            number = episode.row_number(field, now)
            times += [episode.time_of(field, number + first), episode.time_of(field, number + last)]
    return now, max(0, min(times)), min(episode.length_ns, max(times))


def _metric(training: Training) -> str:
    return next((name for name in training.spreads if "loss" in name), "")


def _read_windows(
    training: Training, places: Sequence[tuple[int, int, int, int, int, int]], metric: str
) -> tuple[TrainedWindow, ...]:
    if not places:
        return ()
    steps = np.array([one[0] for one in places], np.int64)
    # A plan goes on after the last recorded step, but trained nothing there.
    recorded = training.are_recorded(steps)
    spread = training.spreads.get(metric)
    limit = spread.median + FAR * spread.sigma if spread is not None else math.inf
    losses = (
        {step: _losses(training, step, metric) for step in set(steps[recorded].tolist())} if metric else {}
    )
    windows = []
    for (step, slot, row, now, first, last), is_recorded in zip(places, recorded.tolist(), strict=True):
        if not is_recorded:
            continue
        by_slot, own = losses.get(step, ({}, None))
        # The run log has losses of each step's largest slots, and the step's own for the others.
        loss = by_slot.get(slot, own)
        windows.append(
            TrainedWindow(
                row=row,
                at_ns=now,
                first_ns=first,
                last_ns=last,
                step=step,
                slot=slot,
                loss=loss,
                is_far=loss is not None and (not math.isfinite(loss) or loss > limit),
            )
        )
    return tuple(_stack(windows))


def _stack(windows: Sequence[TrainedWindow]) -> list[TrainedWindow]:
    """Return the windows with levels: each on the first line whose last window has ended."""
    ends = list[int]()
    levels = dict[int, int]()
    order = sorted(range(len(windows)), key=lambda i: windows[i].first_ns)
    for i in order:
        first_ns = windows[i].first_ns
        level = next((level for level, end_ns in enumerate(ends) if end_ns <= first_ns), len(ends))
        if level == len(ends):
            ends.append(0)
        ends[level] = windows[i].last_ns
        levels[i] = level
    return [replace(window, level=levels[i]) for i, window in enumerate(windows)]


def _losses(training: Training, step: int, metric: str) -> tuple[dict[int, float], float | None]:
    by_slot = {slot: notes[metric] for slot, notes in training.largest(step).items() if metric in notes}
    return by_slot, training.notes(step).get(metric)
