"""Read a run log: the run's starts, and a row for every step and recorded rank."""

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from ...dataset.root import Root
from ...errors import Corrupt, MissingDependency, RunNotFound
from ...storage import Store
from ...storage.mirror import primary_store
from ...storage.store import list_keys
from ...storage.threads import Together
from .row_objects import ROWS, RowObjects, no_rows
from .step_rows import CRC, NOTE, SCHEMA
from .trail import StartRecord, check_run_name, is_run_name, parse_start, trail_folder

if TYPE_CHECKING:
    import polars as pl

MOST_CHUNKS = 8
"""Buffers of a column; with more, each of its readers would copy it."""
MOST_GROWN_CHUNKS = 64
"""Buffers of a column of a run that goes on: one more a minute, where joining 1e6 rows takes 100 ms."""
_PLACE_OF_TRY = ["step", "rank", "world_size"]
_PLACE = ["step", "rank", "at_us", "world_size"]
START = re.compile(r"start-[0-9a-f]{16}\.json")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RunTrail:
    """A run's starts and steps."""

    run: str
    """Name of the run."""
    starts: tuple[StartRecord, ...]
    """Starts of the run, by time; starts with equal code, plan and world size are merged."""
    steps: "pl.DataFrame"
    """One row per step, rank and delivery, in this order.

    Columns: step, rank, world_size, at_us (UTC), digest (UInt64), substituted (slots), wait_us, and start (id of one of
    `starts`).

    largest: list of {note, slot, value}, with the slot in the global batch. `note.<name>`: Float64, for each metric.
    `crc.<field>`: UInt32, for each field with checksums; null in steps without.
    """
    objects: frozenset[str]
    """Names of the log's objects in the run's folder."""

    @property
    def notes(self) -> tuple[str, ...]:
        """Names of numeric metrics; the column is `note.<name>`."""
        return tuple(name.removeprefix(NOTE) for name in self.steps.columns if name.startswith(NOTE))

    @property
    def fields(self) -> tuple[str, ...]:
        """Names of fields with checksums; the column is `crc.<name>`."""
        columns = [name for name in self.steps.columns if name.startswith(CRC)]
        return tuple(name.removeprefix(CRC) for name in columns)

    @property
    def whole(self) -> "pl.DataFrame":
        """Steps with all ranks recorded under one plan: the latest row per step and world size.

        Columns: step, world_size, digest (UInt64, of the global batch: the same for every world size), substituted,
        start, at_us.
        """
        import polars as pl

        by_time = self.steps.sort("at_us")
        last = by_time.unique(_PLACE_OF_TRY, keep="last", maintain_order=True)
        plans = {start.id: start.plan for start in self.starts}
        # Ranks of an interrupted start may have recorded a step under another plan, whose batch is not whole. Rows
        # under the plan of the step's newest row count, from whichever start they are.
        if len(set(plans.values())) > 1:
            plan = pl.col("start").replace_strict(plans, return_dtype=pl.String)
            last_plan = plan.last().over("step", "world_size")
            last = last.filter(plan == last_plan)
        rows = last.group_by("step", "world_size").agg(
            pl.col("digest").sum(),  # uint64 wraps around
            pl.col("substituted").sum(),
            pl.col("start").last(),
            pl.col("at_us").last(),
            n=pl.len(),
        )
        complete = rows.filter(rows["n"] == rows["world_size"])
        return complete.drop("n").sort("step", "world_size")

    @property
    def differing(self) -> tuple[int, ...]:
        """Steps made twice with different digests, ascending.

        Compares repeats of one rank at one world size, and global batches of all world sizes.
        """
        chosen = replace(self, steps=self._repeats())
        of_ranks = _steps_of_two_digests(chosen.steps, _PLACE_OF_TRY)
        of_batches = _steps_of_two_digests(chosen.whole, ["step"])
        return tuple(sorted(of_ranks | of_batches))

    @property
    def differing_notes(self) -> tuple[int, ...]:
        """Steps made twice by a rank at one world size with different metrics, ascending. NaN equals NaN."""
        import polars as pl

        notes = [NOTE + name for name in self.notes]
        if not notes:
            return ()
        several = [pl.col(name).drop_nulls().n_unique() > 1 for name in notes]
        tries = self._repeats().group_by(_PLACE_OF_TRY).agg(several)
        steps = tries.filter(pl.any_horizontal(notes))["step"]
        return tuple(steps.unique().sort().to_list())

    def _repeats(self) -> "pl.DataFrame":
        """Return all rows of the steps that a rank made twice."""
        # [rows, 2], sorted: a rank's tries of a step are neighbours.
        places = self.steps.select("step", "rank").to_numpy()
        is_repeat = (places[1:] == places[:-1]).all(axis=1)
        repeated = places[1:][is_repeat, 0]
        return self.steps.filter(np.isin(places[:, 0], repeated))

    def start(self, start_id: str) -> StartRecord:
        starts = {start.id: start for start in self.starts}
        return starts[start_id]


def _steps_of_two_digests(rows: "pl.DataFrame", place: list[str]) -> set[int]:
    """Return the steps with different digests at one place."""
    kinds = rows.select(*place, "digest").unique()
    has_others = kinds.select(place).is_duplicated()
    return set(kinds.filter(has_others)["step"].to_list())


def read_trail(root: Root, run: str, known: RunTrail | None = None) -> RunTrail:
    """Return the run log of a run.

    known: an earlier result, whose objects are not read again; returned if nothing is new.

    Costs a listing and one read per object: one per recorded rank and minute. If the root has mirrors, the primary is
    read. Raises: RunNotFound; InvalidName; Corrupt; FormatTooNew; StoreError; MissingDependency if polars is missing.
    """
    store = primary_store(root.store)
    listed = list_log(store, run, known)
    if known is not None and known.objects == listed.objects:
        return known
    earlier = []
    if known is not None and listed.is_grown:
        earlier.append(known.steps)
    steps = read_rows(store, trail_folder(run), listed.new, earlier)
    named = steps["start"].unique().to_list()
    return RunTrail(
        run=run,
        starts=log_starts(store, run, named, listed, known),
        steps=steps,
        objects=listed.objects,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedLog:
    """Objects of a run log."""

    objects: frozenset[str]
    """Their names in the run's folder."""
    is_grown: bool
    """False if a known object was deleted: then all are read. Objects are immutable."""
    new: list[str]
    """Those with rows to read."""


def list_log(store: Store, run: str, known: RunTrail | None) -> ListedLog:
    """List a run log. Raises: RunNotFound; InvalidName; StoreError."""
    folder = trail_folder(check_run_name(run))
    keys = [key.removeprefix(folder) for key in list_keys(store, folder)]
    is_grown = known is not None and known.objects.issubset(keys)
    earlier = frozenset[str]()
    if known is not None and is_grown:
        earlier = known.objects
    later = [key for key in keys if key not in earlier]
    new = [key for key in later if ROWS.fullmatch(key)]
    starts = [key for key in later if START.fullmatch(key)]
    objects = earlier.union(new, starts)
    if not objects:
        recorded = list(trail_runs(store))
        runs = ", ".join(recorded) or "none"
        raise RunNotFound(
            f"{store.url} has no trail of run {run!r}; it has: {runs}. A training "
            "keeps one with loader.Loader(plan, trail=loader.Trail(root, run=...))",
            what="run",
            where=store.url,
            given=run,
            accepted=recorded,
        )
    return ListedLog(objects=objects, is_grown=is_grown, new=new)


def log_starts(
    store: Store,
    run: str,
    named: Collection[str],
    listed: ListedLog,
    known: RunTrail | None,
) -> tuple[StartRecord, ...]:
    """Return the starts of a log, from `known` if it has all. named: ids in rows that were just read.

    Raises: Corrupt; StoreError.
    """
    names = {name for name in listed.objects if START.fullmatch(name)}
    if known is not None and listed.is_grown and names <= known.objects:
        ids = {start.id for start in known.starts}
        if ids.issuperset(named):
            return known.starts
    return named_starts(store, run, named, names)


def check_polars() -> None:
    try:
        import polars  # noqa: F401
    except ImportError as error:
        raise MissingDependency(
            "a trail is read with polars: pip install 'penstock-data[tables]'",
            what="polars",
            accepted="pip install 'penstock-data[tables]'",
        ) from error


def named_starts(
    store: Store, run: str, named: Iterable[str], names: Iterable[str]
) -> tuple[StartRecord, ...]:
    named = set(named)
    starts = read_starts(store, run, names)
    lost = named - {start.id for start in starts}
    if lost:  # the listing may have begun before the first start was written
        starts = read_starts(store, run)
        lost = named - {start.id for start in starts}
    if lost:
        folder = f"{store.url}/{trail_folder(run)}"
        name = f"start-{min(lost)}.json"
        message = f"{folder}{name} is not there, and rows of steps name it; restore it"
        raise Corrupt(message, what=name, where=folder)
    return starts


def read_starts(store: Store, run: str, names: Iterable[str] | None = None) -> tuple[StartRecord, ...]:
    """Return a run's starts, by time; () if it has no run log.

    names: names of the objects in its folder; None lists the starts.
    """
    folder = trail_folder(run)
    if names is None:
        names = [key.removeprefix(folder) for key in list_keys(store, f"{folder}start-")]
    keys = [folder + name for name in names if START.fullmatch(name)]
    starts = []
    with Together(store, keys) as coming:
        for key in keys:
            data = coming.get(key).data
            starts.append(parse_start(data, f"{store.url}/{key}"))
    return tuple(sorted(starts, key=lambda start: start.at_us))


def trail_runs(store: Store) -> list[str]:
    """Return the runs with a run log under a root, sorted. Costs a listing of all run logs."""
    runs = set[str]()
    for key in list_keys(store, "trails/"):
        run, _, name = key.removeprefix("trails/").partition("/")
        is_object = ROWS.fullmatch(name) or START.fullmatch(name)
        if is_object and is_run_name(run):
            runs.add(run)
    return sorted(runs)


def read_rows(store: Store, folder: str, names: list[str], known: "list[pl.DataFrame]") -> "pl.DataFrame":
    check_polars()
    new = list(RowObjects(store, folder).frames(names))
    return arrange_rows(known or [no_rows()], new)


def arrange_rows(known: "list[pl.DataFrame]", new: "list[pl.DataFrame]") -> "pl.DataFrame":
    """Return the rows of some frames in the order of `RunTrail.steps`, without repeats.

    known: earlier results, which are ordered. Empties `new`.
    """
    import polars as pl

    parts = [frame for frame in (*known, *new) if len(frame)]
    parts = parts or [*known, *new]
    is_ordered = _follow_each_other(known, new)
    most_chunks = MOST_CHUNKS
    if any(map(len, known)):
        most_chunks = MOST_GROWN_CHUNKS
    new.clear()  # they share the buffers
    steps = pl.concat(parts, how="diagonal")
    parts.clear()
    if not is_ordered:
        steps = _sort_steps(steps)
    if steps.n_chunks() > most_chunks:
        _make_contiguous(steps)
    pa.default_memory_pool().release_unused()
    notes = sorted(name for name in steps.columns if name.startswith(NOTE))
    crcs = sorted(name for name in steps.columns if name.startswith(CRC))
    present = [name for name in SCHEMA.names if name in steps.columns]
    others = [name for name in present if name not in _PLACE_OF_TRY]
    return steps.select(*_PLACE_OF_TRY, *others, *notes, *crcs)


def _follow_each_other(known: "list[pl.DataFrame]", new: "list[pl.DataFrame]") -> bool:
    """Return whether the steps of all new rows ascend, and the known ones end before them.

    Most runs record one rank, and repeat no step. Looks at new rows only: 1e6 earlier ones would be copied for it.
    """
    last_steps = [int(frame["step"][-1]) for frame in known if len(frame)]
    last = max(last_steps, default=-1)
    for frame in new:
        if not len(frame):
            continue
        numbers = frame["step"].to_numpy()
        if numbers[0] <= last or not (numbers[1:] > numbers[:-1]).all():
            return False
        last = int(numbers[-1])
    return True


def _make_contiguous(steps: "pl.DataFrame") -> None:
    """Give each column one buffer, which numpy shares. By column, as a second copy of all would double the memory."""
    for number, column in enumerate(steps.columns):
        steps.replace_column(number, steps[column].rechunk())


def _sort_steps(steps: "pl.DataFrame") -> "pl.DataFrame":
    import polars as pl

    places = [steps[name].to_numpy() for name in _PLACE]
    order = np.lexsort(places[::-1])
    if not np.array_equal(order, np.arange(len(order))):
        steps = steps[order]
        places = [column[order] for column in places]
    # [rows - 1]: whether the next row has the same place
    same = np.logical_and.reduce([column[1:] == column[:-1] for column in places])
    if not same.any():
        return steps
    # A row is in two objects if it got metrics later, or the response to the first write was lost.
    repeated = np.append(same, False) | np.insert(same, 0, False)
    n_known = pl.sum_horizontal(pl.all().is_not_null())
    if "largest" in steps.columns:
        n_known += pl.col("largest").list.len()
    by_known = steps.filter(repeated).sort(n_known, descending=True)
    fullest = by_known.unique(_PLACE, keep="first")
    single = steps.filter(~repeated)
    return pl.concat([single, fullest]).sort(_PLACE)
