"""The trainings that used a slice, by the plans of the newest runs.

Starts and plans never change, so each is read once. Nothing of a version is opened.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import loader
from loader.errors import ObjectNotFound, PenstockError, StoreError
from loader.json_text import parse_json_object
from loader.run.trail.read_trail import read_starts
from loader.run.trail.trail_outline import ListedRun, list_runs
from loader.storage import Store
from loader.storage.mirror import primary_store
from loader.storage.threads import DaemonPool

from ...text import clean
from ..json_record import JsonRecord
from ..lru_cache import LruCache

MOST_RUNS = 48
"""Runs whose plans are read: the newest ones."""
MOST_STARTS = 16
"""Starts read per run; a run has one per restart, mostly of one plan."""
MOST_PARTS = 10_000
"""Parts of a plan's JSON looked at; a plan has a few per source."""
_AT_ONCE = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedSlices(JsonRecord):
    """Slices in the plans of runs."""

    runs: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Slice, such as `photos/cups` -> runs with it, newest first."""
    n_unread: int = 0
    """Earlier runs that were not looked at."""
    problem: str = ""
    """Why runs are missing; "" if none is."""


class SliceTrainings:
    """Finds the runs that used slices. Thread-safe."""

    def __init__(self) -> None:
        self._slices = LruCache[frozenset[str]](8 * MOST_RUNS)

    def trained(self, root: loader.Root) -> TrainedSlices:
        """Return the slices of the newest runs. Costs a listing, and up to 32 requests for a run that is new."""
        store = primary_store(root.store)
        try:
            listed = list_runs(store)
        except StoreError as error:
            problem = f"{type(error).__name__}: {error}"
            return TrainedSlices(problem=clean(problem, 300))
        newest = listed[:MOST_RUNS]

        def read(run: ListedRun) -> frozenset[str] | PenstockError:
            # A new version may have the id that a plan names.
            key = (run.run, run.starts, root.state.n)
            make = partial(_run_slices, root, store, run)
            try:
                return self._slices.get(key, make)
            except PenstockError as error:  # one damaged run hides no other
                return error

        with DaemonPool(_AT_ONCE, "penstock-slices") as pool:
            answers = pool.map(read, newest)
            results = list(answers)
        runs: dict[str, tuple[str, ...]] = {}
        problems = list[str]()
        for run, result in zip(newest, results, strict=True):
            if isinstance(result, PenstockError):
                problems.append(f"{run.run}: {result}")
                continue
            for name in result:
                earlier = runs.get(name, ())
                runs[name] = (*earlier, run.run)
        problem = "; ".join(problems)
        n_unread = len(listed) - len(newest)
        return TrainedSlices(
            runs=runs,
            n_unread=n_unread,
            problem=clean(problem, 400),
        )


def _run_slices(root: loader.Root, store: Store, run: ListedRun) -> frozenset[str]:
    read_names = run.starts[:MOST_STARTS]
    starts = read_starts(store, run.run, read_names)
    plans = {start.plan for start in starts if start.plan}
    names = set[str]()
    for plan in plans:
        path = f"plans/{plan}.json"
        try:
            stored = store.get(path)
            body = parse_json_object(stored.data)
        except (ObjectNotFound, ValueError):  # collected, or damaged: the run's own page shows it
            continue
        slices = _plan_slices(root, body)
        names.update(slices)
    return frozenset(names)


def _plan_slices(root: loader.Root, body: Mapping[str, Any]) -> Iterator[str]:
    """Yield the slices of a plan's views, which may be packed, listed or cut into windows."""
    parts: list[object] = [body.get("sources")]
    n_parts = 0
    # A stack instead of recursion: another program may have written the plan.
    while parts and n_parts < MOST_PARTS:
        part = parts.pop()
        n_parts += 1
        if isinstance(part, Mapping):
            inner = part.values()
            parts.extend(inner)
            yield from _view_slices(root, part)
        elif isinstance(part, list):
            parts.extend(part)


def _view_slices(root: loader.Root, view: Mapping[str, Any]) -> Iterator[str]:
    terms = view.get("slices")
    version_id = view.get("version")
    is_view = isinstance(terms, list) and isinstance(version_id, str)
    if not is_view:
        return
    version = root.state.by_id(str(version_id))
    if version is None:  # of another root, or forged
        return
    for term in terms or ():
        if isinstance(term, Mapping):
            name = term.get("name")
            yield f"{version.dataset}/{name}"
