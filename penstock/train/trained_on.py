"""Runs and checkpoints that trained on a sample.

Inverts the order of each run's plans: the cost grows with epochs, not with steps.
"""

from collections.abc import Callable, Collection, Iterable
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

from loader import Plan, Root, Version
from loader.api.plans import open_saved_plan
from loader.errors import InvalidRuntime, ObjectNotFound, PenstockError, VersionRetired
from loader.run.ledger import read_ledger
from loader.run.recipe.recipe import stored_view
from loader.run.trail.read_trail import trail_runs
from loader.storage import Store
from loader.storage.mirror import primary_store

from ..checkpoints import marker
from ..checkpoints.planned_steps import run_plans
from .run_folder import runs


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
        saved = "no checkpoint"
        if self.checkpoints:
            saved = f"checkpoints {_numbers(self.checkpoints)}"
        return f"{self.run}: {self.samples} samples, {len(self.steps)} steps: {_numbers(self.steps)}; {saved}"


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
    store = primary_store(root.store)
    saved = primary_store((checkpoints or root).store)
    open_plan = cache(lambda plan: _open_plan(root, plan))
    ledger = cache(lambda plan: read_ledger(root, plan))
    results = []
    for run in _runs(store, saved):
        steps = set[int]()
        read = set[str]()
        markers = marker.steps(saved, run) if marker.is_run(run) else []
        try:
            planned = run_plans(root, saved, run, markers)
            for plan in {one.plan for one in planned}:
                own = [one for one in planned if one.plan == plan]
                before = max(one.end for one in own)
                opened = open_plan(plan)
                for source in sources(opened):
                    for key in keys:
                        held = _steps(opened, source, key, before, ledger(plan))
                        inside = {step for step in held if any(step in one for one in own)}
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
    """Return all runs of a root, by name: with a trail, checkpoints, a report or a record."""
    reported = (info.key.split("/") for info in store.list("reports/training/"))
    named = {words[4] for words in reported if len(words) == 6 and words[3] == "runs"}
    return sorted({*trail_runs(store), *marker.runs(saved), *named, *runs(store)})


def _open_plan(root: Root, plan: str) -> Plan:
    """Return a plan over its versions, retired and denied ones too: only order and keys are read."""

    def open_version(ref: str) -> Version:
        record = root.record(ref, retired=True)
        try:
            version = Version.of_record(primary_store(root.store), record)
            version.prepare()  # reads the manifest, which may be deleted
        except ObjectNotFound as error:
            raise VersionRetired(
                f"{record.name} is retired, and its data is deleted", dataset=record.dataset
            ) from error
        return version

    return open_saved_plan(root, plan, open_version)


def _steps(plan: Plan, source: str, key: str, before: int, ledger: Any) -> set[int]:
    """Return the steps of a plan below `before` that read a sample, substitutions included."""
    try:
        return {slot.step for slot in plan.steps_of(source, key, before=before, substitutions=ledger)}
    except InvalidRuntime:  # its view has no such sample
        return set()


def _numbers(numbers: tuple[int, ...]) -> str:
    """Return the first ten numbers and the last one as text."""
    shown = ", ".join(map(str, numbers[:10]))
    if len(numbers) > 10:
        return f"{shown} ... {numbers[-1]}"
    return shown
