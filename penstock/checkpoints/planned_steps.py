"""Plans of a run's steps, by trail, checkpoints, reports, and events of its record.

The trail decides for its own steps. It is read whole only if another source names a further plan.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loader import Root
from loader.api.decided_plans import DecidedPlans
from loader.api.report import run_reports
from loader.dataset.log.entries import DAMAGED
from loader.dataset.tables.parquet import parse_table
from loader.errors import Corrupt, InvalidRuntime
from loader.json_text import parse_json_object
from loader.run.trail.read_trail import read_starts, read_trail
from loader.run.trail.trail import trail_folder
from loader.storage import Store
from loader.storage.mirror import primary_store

from . import marker
from .ranks import map_in_order

RECORDS = "trainings/"
"""Folder of runs' records."""
NEWEST = 8
"""Newest trail objects, by first step, read for the last step."""
_EVENT = re.compile(r"trainings/[^/]+/events/([0-9]{6})-([0-9]{6})\.json")
_INTERVAL = re.compile(r"trainings/[^/]+/windows/([0-9]{6})-([0-9]{12})\.parquet")
FIRST_EVENTS = 4
"""A start's first events, with its first batch."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PlannedSteps:
    """Steps run under one plan."""

    plan: str
    """Hash; "" if not named."""
    first: int
    end: int
    """Step after the last."""
    without: NDArray[np.int64] | None = None
    """Steps of the trail that are not among these, ascending; or None."""

    def __contains__(self, step: int) -> bool:
        if not self.first <= step < self.end:
            return False
        if self.without is None:
            return True
        position = int(np.searchsorted(self.without, step))
        if position == len(self.without):
            return True
        return bool(self.without[position] != step)


def run_plans(root: Root, saved: Store, run: str, markers: Sequence[int]) -> list[PlannedSteps]:
    """Return a run's plans. saved: store of its checkpoints. markers: steps with a marker.

    Raises: Corrupt; StoreError; InvalidRuntime if no source names a plan.
    """
    store = primary_store(root.store)
    others = list(_other_sources(root, saved, run, markers))
    ends = [planned.end for planned in others]
    # A trail may lack the end of a start.
    newest = max([*markers, *ends], default=0)
    trail_plans = {start.plan for start in read_starts(store, run)}
    if "" in trail_plans:
        return _decision_plans(root, store, run, newest)
    if not trail_plans:
        if any(not planned.plan for planned in others):
            raise InvalidRuntime("a start names no plan")
        return others
    named = [planned for planned in others if planned.plan]
    has_further_plans = any(planned.plan not in trail_plans for planned in named)
    if len(trail_plans) == 1 and not has_further_plans:
        end = max(_last_step(store, run) + 1, newest)
        return [PlannedSteps(plan=trail_plans.pop(), first=0, end=end)]
    trail, steps = _trail_plans(root, run)
    if has_further_plans:
        # The trail decides for its steps, so the other sources get the rest.
        return [*trail, *(replace(planned, without=steps) for planned in named)]
    if trail:
        trail[0] = replace(trail[0], first=0)
        trail[-1] = replace(trail[-1], end=max(trail[-1].end, newest))
    return trail


def _decision_plans(root: Root, store: Store, run: str, newest: int) -> list[PlannedSteps]:
    """Return the plans of a run that decides its steps, as far as it trained. newest: step after the last known one."""
    trained_end = max(_last_step(store, run) + 1, newest)
    planned = []
    for decision in DecidedPlans(root, run).all():
        end = min(decision.end, trained_end)
        if decision.plan and decision.step < end:
            planned.append(PlannedSteps(plan=decision.plan, first=decision.step, end=end))
    return planned


def _other_sources(root: Root, saved: Store, run: str, markers: Sequence[int]) -> Iterator[PlannedSteps]:
    """Yield the steps that markers, reports and the run's record name."""
    plans = map_in_order(lambda step: marker.read(saved, run, step).plan, markers)
    first = 0
    for step, plan in zip(markers, plans, strict=True):
        # A marker ends a span: its plan trained the steps since the marker before.
        if plan:
            yield PlannedSteps(plan=plan, first=first, end=step)
            first = step
    for report in run_reports(root, run):
        yield PlannedSteps(plan=report.plan, first=report.first_step, end=report.last_step + 1)
    yield from _start_plans(primary_store(root.store), run)


def _start_plans(store: Store, run: str) -> Iterator[PlannedSteps]:
    """Yield each start's steps, by its first and last events and its intervals. Raises: Corrupt."""
    ends: dict[str, int] = {}
    events: dict[str, list[tuple[int, str]]] = {}
    for info in store.list(f"{RECORDS}{run}/events/"):
        match = _EVENT.fullmatch(info.key)
        if match:
            attempt = match[1]
            number = int(match[2])
            events.setdefault(attempt, []).append((number, info.key))
    for info in store.list(f"{RECORDS}{run}/windows/"):
        match = _INTERVAL.fullmatch(info.key)
        if match:
            attempt = match[1]
            end = int(match[2])
            ends[attempt] = max(end, ends.get(attempt, 0))
    for attempt, numbered in sorted(events.items()):
        keys = [key for _, key in sorted(numbered)]
        # A start of weeks has many events. dict.fromkeys drops the last key if it is among the first.
        first_and_last = dict.fromkeys([*keys[:FIRST_EVENTS], keys[-1]])
        bodies = [_event(store, key) for key in first_and_last]
        first_batch = next((body for body in bodies if body["event"] == "first_batch"), None)
        if first_batch is None:
            continue
        first = int(first_batch["step"])
        last_event = max(int(body["step"]) for body in bodies)
        last_interval = ends.get(attempt, 0)
        end = max(first + 1, last_interval, last_event)
        yield PlannedSteps(plan=str(first_batch.get("plan", "")), first=first, end=end)


def _event(store: Store, key: str) -> dict[str, Any]:
    try:
        body = parse_json_object(store.get(key).data)
        return {**body, "event": str(body["event"]), "step": int(body["step"])}
    except DAMAGED as error:
        raise Corrupt(f"{store.url}/{key} is not an event: {error}") from error


def _last_step(store: Store, run: str) -> int:
    """Return the last step in a run's trail; -1 without one."""
    keys = [info.key for info in store.list(trail_folder(run)) if info.key.endswith(".parquet")]
    # Names begin with the first step of a file. Files of several ranks overlap, hence not only the last.
    newest = sorted(keys, key=lambda key: key.rpartition("/")[2])[-NEWEST:]
    last = -1
    for key in newest:
        table = parse_table(store.get(key).data, f"{store.url}/{key}")
        last = max([last, *table["step"].to_pylist()])
    return last


def _trail_plans(root: Root, run: str) -> tuple[list[PlannedSteps], NDArray[np.int64]]:
    """Return where the plan changes, and the recorded steps. Reads the whole trail."""
    trail = read_trail(root, run)
    plans = {start.id: start.plan for start in trail.starts}
    # A step that a restart repeated has two rows: the later one trained the model that went on.
    rows = trail.steps.sort("step", "at_us").unique("step", keep="last", maintain_order=True)
    steps = rows["step"].to_numpy()
    if not len(steps):
        return [], steps
    names = np.array([plans[start] for start in rows["start"]])
    # Rows, ascending, whose plan differs from the previous row.
    changes = (np.flatnonzero(names[1:] != names[:-1]) + 1).tolist()
    firsts = [0, *changes]
    ends = [*steps[changes].tolist(), int(steps[-1]) + 1]
    planned = [
        PlannedSteps(plan=str(names[row]), first=int(steps[row]), end=end)
        for row, end in zip(firsts, ends, strict=True)
    ]
    return planned, steps
