"""A past training run with its run log (on disk, its trail), or a saved plan."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from copy import copy
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

import loader
from loader.api.decided_plans import DecidedPlans
from loader.errors import InvalidRuntime, RunNotFound
from loader.json_text import parse_json_object
from loader.order.slots import Slots
from loader.run.recipe.recipe import stored_views
from loader.run.replay import Functions
from loader.run.trail.lean_trail import LeanTrail, no_lean_trail, read_lean_trail, read_step_rows
from loader.run.trail.step_rows import CRC, NOTE
from loader.run.trail.trail import StartRecord

from ..lru_cache import LruCache
from .metrics_file import MetricsFile, Spread, value_spread
from .recorded_decoders import comparable_decoders, fields_of_user_code
from .replayed_values import PartDigest, Setting
from .replays import Replays

if TYPE_CHECKING:
    import polars as pl

T = TypeVar("T")
Row = dict[str, Any]
MOST_DIGITS = 18
"""Digits that always fit into 64 bits."""
MOST_STORED = 64
"""Most steps whose rows with all columns stay in memory."""
_DIGEST_COLUMNS = ("rank", "world_size", "digest", "substituted")
_PLAN = re.compile(r"p-[0-9a-f]{64}")


class Training:
    """A run or plan. Methods read only indexes, no media. Thread-safe."""

    root: loader.Root
    """Root with the plan and the run log."""
    name: str
    """Run name or plan hash."""
    trail: LeanTrail | None
    """Its run log, or None."""
    stale: str = ""
    """Why the run log may have grown; "" if just read."""

    def __init__(
        self, root: loader.Root, name: str, replays: Replays | None = None, metrics: MetricsFile | None = None
    ) -> None:
        """Open a run by name, or a plan by hash. Raises: InvalidName; read errors.

        replays: shared, closed by their owner; None creates new ones. metrics: from a file.
        """
        self.root = root
        self.name = name
        self.trail = self._read(None)
        self._file = metrics
        self._own = Replays(root) if replays is None else None
        self._replays: Replays = replays or self._own  # type: ignore[assignment]

    def refresh(self) -> "Training":
        """Return this object, or a copy with newly recorded steps."""
        trail = self._read(self.trail)
        if trail is self.trail:
            return self
        newer = copy(self)
        newer.trail = trail
        for name in ("metrics", "charted", "spreads", "_result_cache", "_numbers", "_starts", "_row_cache"):
            newer.__dict__.pop(name, None)
        return newer

    def _read(self, known: LeanTrail | None) -> LeanTrail | None:
        if not _PLAN.fullmatch(self.name):
            with suppress(RunNotFound):  # if there is no run log, reports and checkpoints name the plan
                return read_lean_trail(self.root, self.name, known)
        return None

    def setting(self, step: int, *, recipe: bool) -> Setting:
        """Return a step's plan and options.

        recipe: False adds the training's decoders, and replaces the framework with numpy if there was a transform.
        """
        start = self.start(step)
        plan_hash = self.plan_hash(step)
        if start is None:
            return Setting(plan=plan_hash)
        if recipe:
            return Setting(plan=plan_hash, framework=start.framework, epochs=start.epochs)
        return Setting(
            plan=plan_hash,
            framework="numpy" if start.transforms else start.framework,
            epochs=start.epochs,
            decoders=comparable_decoders(start.decoders),
        )

    def start(self, step: int) -> StartRecord | None:
        """Return the start that last ran a step or, failing that, an earlier step; None without a run log."""
        if self.trail is None or not self.trail.starts:
            return None
        stop = int(np.searchsorted(self._numbers, step + 1))
        if not stop:
            return self.trail.starts[0]
        last = self._tries(int(self._numbers[stop - 1]))
        return self._starts[last["start"][last["at_us"].arg_max()]]  # type: ignore[index]

    def open_replay(self, step: int) -> AbstractContextManager[loader.Replay]:
        """Provide a replay of a step's plan, for slots and digests."""
        return self._replays.open_replay(self.plan_setting(step))

    def plan_setting(self, step: int) -> Setting:
        """Return a step's plan and epochs, for slots and digests."""
        start = self.start(step)
        return Setting(plan=self.plan_hash(step), epochs=None if start is None else start.epochs)

    @contextmanager
    def settled_replay(self, step: int, rank: int = -1, world_size: int = 0) -> Iterator[loader.Replay]:
        """Provide a replay with only this run's substitutions at a step."""
        digests = self.part_digests(step, rank, world_size)
        with self._replays.settled_replay(self.plan_setting(step), step, digests) as (replay, _):
            yield replay

    def part_digests(self, step: int, rank: int = -1, world_size: int = 0) -> tuple[PartDigest, ...]:
        """Return a step's last digests under its last plan: the part's, or else all ranks'."""
        if self.trail is None:
            return ()
        last: dict[tuple[int, int], PartDigest] = {}
        for _, *row in self._frame(step).select("at_us", *_DIGEST_COLUMNS).sort("at_us").iter_rows():
            last.pop((row[0], row[1]), None)
            last[row[0], row[1]] = row[0], row[1], row[2], row[3]
        if (rank, world_size) in last:
            return (last[rank, world_size],)
        newest = next(reversed(last.values()), None)
        return tuple(one for one in last.values() if newest is not None and one[1] == newest[1])

    def plan(self, step: int) -> loader.Plan:
        with self.open_replay(step) as replay:
            return replay.plan

    def plan_hash(self, step: int) -> str:
        """Return the hash of a step's plan. Raises: InvalidPlan."""
        start = self.start(step)
        if start is not None and start.plan:
            return str(start.plan)
        if start is not None:
            return self._decisions.decision(step).plan
        if _PLAN.fullmatch(self.name):
            return self.name
        return loader.plan_of(self.root, self.name, step).hash

    def plans(self, before: int) -> dict[str, int]:
        """Return plan hash -> one of its steps, for steps 0 ... before - 1."""
        if self.trail is None or not self.trail.starts:
            if before:
                return {self.plan_hash(before - 1): before - 1}
            return {}
        if any(not start.plan for start in self.trail.starts):
            return {one.plan: one.step for one in self._decisions.all() if one.plan and one.step < before}
        plans = {self.plan_hash(0): 0}
        if len(self._starts) > 1:
            tries = self.trail.steps.select("step", "at_us", "start").sort("step", "at_us")
            last = tries.unique("step", keep="last", maintain_order=True)
            steps = last.unique("start", keep="first", maintain_order=True).select("step", "start")
            plans |= {str(self._starts[start].plan): step for step, start in steps.iter_rows()}
        return plans

    def versions(self, start: StartRecord) -> tuple[str, ...]:
        """Return the names of the versions that a start reads; or reads at its last step, if its plans change."""
        plan_hash = start.plan
        if not plan_hash:
            assert self.trail is not None
            steps = self.trail.steps
            of_start = steps.filter(steps["start"] == start.id)["step"]
            if not len(of_start):
                return ()
            plan_hash = self._decisions.decision(int(of_start[-1])).plan
        plan = self._replays.open_plan(plan_hash)
        names = [view.version.name for view in stored_views(plan).values()]
        return tuple(dict.fromkeys(names))

    def slots(self, step: int, rank: int, world_size: int) -> Slots:
        """Return a rank's slots, with this run's substitutes."""
        with self.settled_replay(step, rank, world_size) as replay:
            return replay.slots(step, rank, world_size)

    def digest(self, step: int, rank: int, world_size: int) -> int:
        """Return a rank's digest, recomputed from indexes."""
        with self.settled_replay(step, rank, world_size) as replay:
            return replay.digest(step, rank, world_size)

    def functions(self, step: int) -> Functions:
        """Return facts about the decoders without a recipe."""
        return self._replays.functions(self.setting(step, recipe=False))

    def fields_of_user_code(self, step: int) -> list[str]:
        """Return the fields whose decoders need the recipe, sorted."""
        start = self.start(step)
        if start is None:
            return []
        return fields_of_user_code(comparable_decoders(start.decoders))

    def rows(self, step: int) -> list[Row]:
        """Return the run log's rows for a step under its last plan, by rank and time.

        Without samples and checksums, unless the step's were read. Makes no request.
        """
        if step in self._row_cache:
            return self.stored_rows(step)
        if self.trail is None:
            return []
        return self._frame(step).to_dicts()

    def stored_rows(self, step: int) -> list[Row]:
        """Return the same rows with samples and checksums.

        Costs a read per object that has the step, once. Raises: StoreError; Corrupt.
        """
        trail = self.trail
        if trail is None or not len(self._tries(step)):
            return []
        rows = self._row_cache.get(step, lambda: read_step_rows(self.root, trail, step))
        return self._of_last_plan(step, rows).to_dicts()

    @cached_property
    def _row_cache(self) -> "LruCache[pl.DataFrame]":
        """Step -> its rows with all columns."""
        return LruCache(MOST_STORED)

    def _frame(self, step: int) -> "pl.DataFrame":
        return self._of_last_plan(step, self._tries(step))

    def _of_last_plan(self, step: int, tries: "pl.DataFrame") -> "pl.DataFrame":
        plans = {one: self._starts[one].plan for one in set(tries["start"])}
        if len(set(plans.values())) < 2 or "" in plans.values():  # "": a decision has one plan at a time
            return tries
        now = self.plan_hash(step)
        return tries.filter(tries["start"].is_in([one for one, plan in plans.items() if plan == now]))

    def _tries(self, step: int) -> "pl.DataFrame":
        assert self.trail is not None
        first, stop = np.searchsorted(self._numbers, [step, step + 1]).tolist()
        return self.trail.steps[first:stop]

    def notes(self, step: int) -> dict[str, float]:
        """Return metric -> value, from the first recorded rank and the metrics file."""
        rows = self.rows(step)
        more = {} if self.metrics is None else self.metrics.at(step)
        own = [row for row in rows if row["rank"] == rows[0]["rank"]]
        return {
            name.removeprefix(NOTE): float(value)
            for row in own
            for name, value in row.items()
            if name.startswith(NOTE) and value is not None
        } | more

    def largest(self, step: int) -> dict[int, dict[str, float]]:
        """Return slot -> metric -> value, of the step's largest."""
        return largest_values(self.stored_rows(step))

    @cached_property
    def spreads(self) -> Mapping[str, Spread]:
        """Metrics' spread over all recorded steps."""
        if self.charted is None:
            return {}
        return {name: value_spread(self.charted.steps[NOTE + name].to_numpy()) for name in self.charted.notes}

    def remember(self, count: Callable[["Training"], T]) -> T:
        """Return `count(self)`, computed once until the run log grows."""
        if count not in self._result_cache:
            self._result_cache[count] = count(self)
        value: T = self._result_cache[count]
        return value

    @cached_property
    def _result_cache(self) -> dict[Callable[["Training"], Any], Any]:
        """Function -> its result."""
        return {}

    @cached_property
    def metrics(self) -> MetricsFile | None:
        """Metrics from a file, or None."""
        known = () if self.trail is None else self.trail.notes
        if self._file is None:
            return None
        return self._file.with_file_names(known)

    @cached_property
    def charted(self) -> LeanTrail | None:
        """Run log joined with the file's metrics, whose own steps are rows of rank 0; or None."""
        if self.metrics is None:
            return self.trail
        import polars as pl

        metrics = self.metrics.frame.rename({name: NOTE + name for name in self.metrics.notes})
        trail = _no_log(self.name) if self.trail is None else self.trail
        more = metrics.join(trail.steps, on="step", how="anti").with_columns(
            rank=pl.lit(0, pl.Int64), world_size=pl.lit(1, pl.Int64)
        )
        steps = pl.concat(
            [trail.steps.join(metrics, on="step", how="left", maintain_order="left"), more], how="diagonal"
        )
        return replace(trail, steps=steps.sort("step", maintain_order=True))

    @property
    def last_step(self) -> int:
        """Last in run log or metrics, or -1."""
        trail = -1
        if self.trail is not None and len(self.trail.steps):
            trail = int(self.trail.steps["step"][-1])
        if self.metrics is None:
            return trail
        return max(trail, int(self.metrics.frame["step"][-1]))

    def recorded_steps(self) -> NDArray[np.int64]:
        """Return the run log's steps, ascending."""
        return np.unique(self._numbers)

    def are_recorded(self, steps: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return bool [n]: whether run log or metrics have each step."""
        recorded = np.isin(steps, self._numbers)
        if self.metrics is None:
            return recorded
        return recorded | np.isin(steps, self.metrics.frame["step"].to_numpy())

    def untrained(self, step: int) -> str:
        """Return why no record shows a step was trained; "" if one does."""
        if self.are_recorded(np.array([step]))[0]:
            return ""
        if self.trail is None:
            return f"no trail shows that a training ran step {step}"
        if not len(self._numbers):
            return f"step {step} was not trained: the trail of {self.name} has no step"
        first = int(self._numbers[0])
        last = self.last_step
        if step > last:
            return f"step {step} was not trained: the trail of {self.name} ends at step {last}"
        where = "it has a gap there"
        if step < first:
            where = f"it begins at step {first}"
        return f"the trail of {self.name} does not show that step {step} was trained: {where}"

    def missing(self, what: str) -> str:
        """Return why something is not recorded, and a remedy."""
        if self.trail is None:
            return (
                f"a plan has no record of {what}: train with Loader(plan, trail=loader.Trail(root, run=...))"
            )
        return f"the trail of {self.name} has no record of {what}"

    def close(self) -> None:
        if self._own is not None:
            self._own.close()

    @cached_property
    def _numbers(self) -> NDArray[np.int64]:
        """Run log rows' steps, ascending."""
        if self.trail is None:
            return np.empty(0, np.int64)
        return self.trail.steps["step"].to_numpy()

    @cached_property
    def _decisions(self) -> DecidedPlans:
        return DecidedPlans(self.root, self.name)

    @cached_property
    def _starts(self) -> Mapping[str, StartRecord]:
        assert self.trail is not None
        return {one.id: one for one in self.trail.starts}


def _is_file(text: str) -> bool:
    with suppress(OSError):  # the text is too long for a path
        return Path(text).is_file()
    return False


def _no_log(run: str) -> LeanTrail:
    """Return an empty run log, whose rows are of one rank."""
    import polars as pl

    trail = no_lean_trail(run)
    one_rank = {"rank": pl.lit(0, pl.Int64), "world_size": pl.lit(1, pl.Int64)}
    return replace(trail, steps=trail.steps.with_columns(**one_rank))


def largest_values(rows: Sequence[Row]) -> dict[int, dict[str, float]]:
    """Return slot -> metric -> value, of the largest in a step's rows."""
    by_slot: dict[int, dict[str, float]] = {}
    for row in rows:
        for entry in row.get("largest") or ():
            by_slot.setdefault(entry["slot"], {})[entry["note"]] = float(entry["value"])
    return by_slot


def crcs(row: Row) -> dict[str, int]:
    """Return a row's field -> CRC-32C."""
    return {
        name.removeprefix(CRC): int(value)
        for name, value in row.items()
        if name.startswith(CRC) and value is not None
    }


def resolve_run_step(root: loader.Root, text: str) -> tuple[str, int | None]:
    """Return (run name or plan hash, step or None), given `run`, `run@step`, a plan hash or a state file.

    A state file contains `Loader.state_dict()` as JSON, possibly under "loader". Raises: InvalidRuntime; as `plan_of`.
    """
    if _is_file(text):
        body = parse_json_object(Path(text).read_bytes())
        state = body.get("loader", body)
        plan_hash = loader.plan_of(root, state).hash
        return plan_hash, max(0, int(state["step"]) - 1) if "step" in state else None
    name, at, step = text.rpartition("@")
    if not at:
        return text, None
    if not step.isdecimal() or len(step) > MOST_DIGITS:
        raise InvalidRuntime(
            f"{text[:100]!r}: the step after @ is {step[:100]!r}; accepted: run, run@step (of {MOST_DIGITS} digits at "
            "most), a plan's hash, a state file",
            what="step",
            where=text[:100],
            given=step[:100],
        )
    return name, int(step)
