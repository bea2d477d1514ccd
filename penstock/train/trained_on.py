"""Runs and checkpoints that trained on a sample.

Inverts the order of each run's plans: the cost grows with epochs, not with steps. A run's plans are on its trail; a run
without one has them in its checkpoints, its reports, or the events of its record.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

import numpy as np

from loader import Plan, Root, Version
from loader.api.plans import plan_over
from loader.api.report import reports_of
from loader.dataset.tables.parquet import parse_table
from loader.dataset.versions.version import open_record
from loader.errors import InvalidRuntime, ObjectNotFound, PenstockError, VersionRetired
from loader.run.ledger import read_ledger
from loader.run.recipe.recipe import stored_view
from loader.run.trail.read_trail import read_starts, read_trail, trail_runs
from loader.run.trail.start_record import trail_folder
from loader.storage import Store
from loader.storage.mirror.store import primary_of

from ..checkpoints import marker
from .run_folder import RunFolder, runs

NEWEST = 8
"""Objects of a trail, by their first step, that are read for its last step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedRun:
    """A run that trained on samples, or may have."""

    run: str
    """Name of the run."""
    samples: int
    """Number of the samples that it read."""
    steps: tuple[int, ...]
    """Global steps that read one, ascending."""
    checkpoints: tuple[int, ...]
    """Steps of its checkpoints that were saved after the first of `steps`."""
    error: str = ""
    """Reason that its samples are unknown, or ""."""

    def to_json(self) -> dict[str, Any]:
        """Return all fields."""
        return asdict(self)

    def text(self) -> str:
        """Return the run as one line."""
        if self.error:
            return f"{self.run}: unknown ({self.error})"
        saved = f"checkpoints {_numbers(self.checkpoints)}" if self.checkpoints else "no checkpoint"
        return f"{self.run}: {self.samples} samples, {len(self.steps)} steps: {_numbers(self.steps)}; {saved}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _PlannedSteps:
    """Steps that ran under one plan."""

    plan: str
    first: int
    end: int


def trained_on(
    root: Root,
    sources: Callable[[Plan], Iterable[str]],
    keys: Collection[str],
    checkpoints: Root | None = None,
) -> list[TrainedRun]:
    """Return the runs that read samples, by name; a run whose plan cannot be opened has an error.

    sources: sources of a plan to search. keys: of the samples. checkpoints: root of the checkpoints; None: `root`.

    Steps of a killed start that no later start repeated count if they are among the newest objects of the trail.
    Raises: StoreError.
    """
    store, saved = primary_of(root.store), primary_of((checkpoints or root).store)
    open_plan, ledger = cache(lambda plan: _opened(root, plan)), cache(lambda plan: read_ledger(root, plan))
    results = []
    for run in _runs(store, saved):
        steps, read = set[int](), set[str]()
        markers = marker.steps(saved, run) if marker.is_run(run) else []
        try:
            stretches = _stretches(root, saved, run, markers)
            for plan in {stretch.plan for stretch in stretches}:
                own = [stretch for stretch in stretches if stretch.plan == plan]
                before = max(stretch.end for stretch in own)
                opened = open_plan(plan)
                for source in sources(opened):
                    for key in keys:
                        held = _steps(opened, source, key, before, ledger(plan))
                        inside = {n for n in held if any(one.first <= n < one.end for one in own)}
                        steps |= inside
                        read |= {f"{source} {key}"} if inside else set()
        except PenstockError as error:
            text = f"{type(error).__name__}: {error}"
            results.append(TrainedRun(run=run, samples=0, steps=(), checkpoints=tuple(markers), error=text))
            continue
        if steps:
            after = tuple(step for step in markers if step > min(steps))
            results.append(
                TrainedRun(run=run, samples=len(read), steps=tuple(sorted(steps)), checkpoints=after)
            )
    return results


def of_dataset(dataset: str) -> Callable[[Plan], list[str]]:
    """Return a function from a plan to its sources that read a dataset."""

    def sources(plan: Plan) -> list[str]:
        views = {one.source: stored_view(one.view) for one in plan.sources.values()}
        return [name for name, view in views.items() if view is not None and view.version.dataset == dataset]

    return sources


def _runs(store: Store, saved: Store) -> list[str]:
    reported = (info.key.split("/") for info in store.list("reports/training/"))
    named = {words[4] for words in reported if len(words) == 6 and words[3] == "runs"}
    return sorted({*trail_runs(store), *marker.runs(saved), *named, *runs(store)})


def _opened(root: Root, plan: str) -> Plan:
    """Return a plan over its versions, retired and denied ones too: only order and keys are read."""

    def open_version(ref: str) -> Version:
        record = root.record(ref, retired=True)
        try:
            version = open_record(primary_of(root.store), record)
            version.prepare()
        except ObjectNotFound as error:
            raise VersionRetired(
                f"{record.name} is retired, and its data is deleted", dataset=record.dataset
            ) from error
        return version

    return plan_over(root, plan, open_version)


def _steps(plan: Plan, source: str, key: str, before: int, ledger: Any) -> set[int]:
    try:
        return {slot.step for slot in plan.steps_of(source, key, before=before, substitutions=ledger)}
    except InvalidRuntime:  # its view has no such sample
        return set()


def _stretches(root: Root, saved: Store, run: str, markers: list[int]) -> list[_PlannedSteps]:
    store = primary_of(root.store)
    newest = max(markers, default=0)
    plans = {start.plan for start in read_starts(store, run)}
    if len(plans) == 1:
        end = max(_last_step(store, run) + 1, newest)
        return [_PlannedSteps(plan=plans.pop(), first=0, end=end)]
    if plans:
        return list(_of_trail(root, run, newest))
    with_plan = [(step, plan) for step in markers if (plan := marker.read(saved, run, step).plan)]
    firsts = [0, *(step for step, _ in with_plan)]
    stretches = [
        _PlannedSteps(plan=plan, first=first, end=step)
        for first, (step, plan) in zip(firsts, with_plan, strict=False)
    ]
    stretches = stretches or [
        _PlannedSteps(plan=report.plan, first=report.first_step, end=report.last_step + 1)
        for report in reports_of(root, run)
    ]
    return stretches or list(_of_record(store, run))


def _of_record(store: Store, run: str) -> Iterator[_PlannedSteps]:
    """Yield each start's steps, by its events and windows. Raises: Corrupt; InvalidRuntime without a plan."""
    folder, ends = RunFolder(store, run), defaultdict[int, int](int)
    events = folder.events()
    steps = [(event.attempt, event.step) for event in events]
    for attempt, step in (*steps, *((key.attempt, key.end_step) for key in folder.window_keys())):
        ends[attempt] = max(ends[attempt], step)
    for event in events:
        if event.name != "first_batch":
            continue
        if not event.facts.get("plan"):
            raise InvalidRuntime(f"its start {event.attempt} names no plan")
        end = max(ends[event.attempt], event.step + 1)
        yield _PlannedSteps(plan=str(event.facts["plan"]), first=event.step, end=end)


def _last_step(store: Store, run: str) -> int:
    keys = [info.key for info in store.list(trail_folder(run)) if info.key.endswith(".parquet")]
    newest = sorted(keys, key=lambda key: key.rpartition("/")[2])[-NEWEST:]
    tables = (parse_table(store.get(key).data, f"{store.url}/{key}") for key in newest)
    return max((max(table["step"].to_pylist(), default=-1) for table in tables), default=-1)


def _of_trail(root: Root, run: str, newest: int) -> Iterator[_PlannedSteps]:
    """Yield where the plan of the recorded steps changes. Reads the whole trail."""
    trail = read_trail(root, run)
    plans = {start.id: start.plan for start in trail.starts}
    rows = trail.steps.sort("step", "at_us").unique("step", keep="last", maintain_order=True)
    steps, names = rows["step"].to_numpy(), np.array([plans[start] for start in rows["start"]])
    changes = [0, *(np.flatnonzero(names[1:] != names[:-1]) + 1).tolist()]
    ends = [*steps[changes[1:]].tolist(), max(int(steps[-1]) + 1, newest)] if len(steps) else []
    for number, (change, end) in enumerate(zip(changes, ends, strict=False)):
        yield _PlannedSteps(plan=str(names[change]), first=int(steps[change]) if number else 0, end=end)


def _numbers(numbers: tuple[int, ...]) -> str:
    shown = ", ".join(map(str, numbers[:10]))
    return f"{shown} ... {numbers[-1]}" if len(numbers) > 10 else shown
