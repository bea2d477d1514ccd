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
from loader.api.report import reports_of
from loader.dataset.log.entries import DAMAGED
from loader.dataset.tables.parquet import parse_table
from loader.errors import Corrupt, InvalidRuntime
from loader.json_text import parse_json_object
from loader.run.trail.read_trail import read_starts, read_trail
from loader.run.trail.trail import trail_folder
from loader.storage import Store
from loader.storage.mirror import primary_of

from . import marker
from .ranks import several

RECORDS = "trainings/"
"""Folder of runs' records."""
NEWEST = 8
"""Newest trail objects, by first step, read for the last step."""
_EVENT = re.compile(r"trainings/[^/]+/events/([0-9]{6})-([0-9]{6})\.json")
_WINDOW = re.compile(r"trainings/[^/]+/windows/([0-9]{6})-([0-9]{12})\.parquet")
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
        at = int(np.searchsorted(self.without, step))
        return at == len(self.without) or self.without[at] != step


def planned_steps(root: Root, saved: Store, run: str, markers: Sequence[int]) -> list[PlannedSteps]:
    """Return a run's plans. saved: store of its checkpoints. markers: steps with a marker.

    Raises: Corrupt; StoreError; InvalidRuntime if no source names a plan.
    """
    store, others = primary_of(root.store), list(_others(root, saved, run, markers))
    newest = max([*markers, *(one.end for one in others)], default=0)  # a trail may lack a start's end
    plans = {start.plan for start in read_starts(store, run)}
    if "" in plans:
        return _of_decisions(root, store, run, newest)
    if not plans:
        if any(not one.plan for one in others):
            raise InvalidRuntime("a start names no plan")
        return others
    further = [one for one in others if one.plan and one.plan not in plans]
    if len(plans) == 1 and not further:
        end = max(_last_step(store, run) + 1, newest)
        return [PlannedSteps(plan=plans.pop(), first=0, end=end)]
    trail, steps = _of_trail(root, run)
    if trail and not further:
        trail[0], trail[-1] = replace(trail[0], first=0), replace(trail[-1], end=max(trail[-1].end, newest))
    named = [one for one in others if one.plan] if further else []
    return [*trail, *(replace(one, without=steps) for one in named)]


def _of_decisions(root: Root, store: Store, run: str, newest: int) -> list[PlannedSteps]:
    """Return the plans of a run that decides its steps, as far as it trained. newest: step after the last known one."""
    trained_end = max(_last_step(store, run) + 1, newest)
    planned = []
    for decision in DecidedPlans(root, run).all():
        end = min(decision.end, trained_end)
        if decision.plan and decision.step < end:
            planned.append(PlannedSteps(plan=decision.plan, first=decision.step, end=end))
    return planned


def _others(root: Root, saved: Store, run: str, markers: Sequence[int]) -> Iterator[PlannedSteps]:
    plans = several(lambda step: marker.read(saved, run, step).plan, markers)
    with_plan = [(step, plan) for step, plan in zip(markers, plans, strict=True) if plan]
    firsts = [0, *(step for step, _ in with_plan)]
    for first, (step, plan) in zip(firsts, with_plan, strict=False):
        yield PlannedSteps(plan=plan, first=first, end=step)
    for report in reports_of(root, run):
        yield PlannedSteps(plan=report.plan, first=report.first_step, end=report.last_step + 1)
    yield from _of_record(primary_of(root.store), run)


def _of_record(store: Store, run: str) -> Iterator[PlannedSteps]:
    """Yield each start's steps, by its first and last events and its windows. Raises: Corrupt."""
    ends: dict[str, int] = {}
    events: dict[str, list[tuple[int, str]]] = {}
    for info in store.list(f"{RECORDS}{run}/events/"):
        if match := _EVENT.fullmatch(info.key):
            events.setdefault(match[1], []).append((int(match[2]), info.key))
    for info in store.list(f"{RECORDS}{run}/windows/"):
        if match := _WINDOW.fullmatch(info.key):
            ends[match[1]] = max(ends.get(match[1], 0), int(match[2]))
    for attempt, numbered in sorted(events.items()):
        keys = [key for _, key in sorted(numbered)]
        bodies = [_event(store, key) for key in dict.fromkeys([*keys[:FIRST_EVENTS], keys[-1]])]
        began = next((body for body in bodies if body["event"] == "first_batch"), None)
        if began is not None:
            first = int(began["step"])
            end = max(first + 1, ends.get(attempt, 0), *(int(body["step"]) for body in bodies))
            yield PlannedSteps(plan=str(began.get("plan", "")), first=first, end=end)


def _event(store: Store, key: str) -> dict[str, Any]:
    try:
        body = parse_json_object(store.get(key).data)
        return {**body, "event": str(body["event"]), "step": int(body["step"])}
    except DAMAGED as error:
        raise Corrupt(f"{store.url}/{key} is no event: {error}") from error


def _last_step(store: Store, run: str) -> int:
    keys = [info.key for info in store.list(trail_folder(run)) if info.key.endswith(".parquet")]
    newest = sorted(keys, key=lambda key: key.rpartition("/")[2])[-NEWEST:]
    tables = (parse_table(store.get(key).data, f"{store.url}/{key}") for key in newest)
    return max((max(table["step"].to_pylist(), default=-1) for table in tables), default=-1)


def _of_trail(root: Root, run: str) -> tuple[list[PlannedSteps], NDArray[np.int64]]:
    """Return where the plan changes, and the recorded steps. Reads the whole trail."""
    trail = read_trail(root, run)
    plans = {start.id: start.plan for start in trail.starts}
    rows = trail.steps.sort("step", "at_us").unique("step", keep="last", maintain_order=True)
    steps, names = rows["step"].to_numpy(), np.array([plans[start] for start in rows["start"]])
    changes = [0, *(np.flatnonzero(names[1:] != names[:-1]) + 1).tolist()] if len(steps) else []
    ends = [*steps[changes[1:]].tolist(), int(steps[-1]) + 1] if len(steps) else []
    planned = [
        PlannedSteps(plan=str(names[change]), first=int(steps[change]), end=end)
        for change, end in zip(changes, ends, strict=True)
    ]
    return planned, steps
