"""Read a run log: the run's starts, and a row for every step and recorded rank."""

import logging
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from ...dataset.root import Root
from ...errors import Corrupt, MissingDependency, RunNotFound
from ...storage import Store
from ...storage.mirror import primary_of
from ...storage.store import list_keys
from ...storage.threads import Together
from .row_numbers import MOST_OBJECT_BYTES, row_numbers
from .row_objects import ROWS, RowObjects, no_rows, rows_of_rank
from .step_rows import CRC, NOTE, SCHEMA
from .trail import StartRecord, check_run_name, is_run_name, parse_start, trail_folder

if TYPE_CHECKING:
    import polars as pl

_log = logging.getLogger(__name__)
MOST_CHUNKS = 8
"""Buffers of a column; with more, each of its readers would copy it."""
MOST_GROWN_CHUNKS = 64
"""Buffers of a column of a run that goes on: one more a minute, where joining 1e6 rows takes 100 ms."""
_PLACE = ["step", "rank", "at_us", "world_size"]
_TIMES = {"step": pa.int64(), "at_us": pa.int64()}
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
        return tuple(name.removeprefix(CRC) for name in self.steps.columns if name.startswith(CRC))

    @property
    def whole(self) -> "pl.DataFrame":
        """Steps with all ranks recorded under one plan: the latest row per step and world size.

        Columns: step, world_size, digest (UInt64, of the global batch: the same for every world size), substituted,
        start, at_us.
        """
        import polars as pl

        last = self.steps.sort("at_us").unique(
            ["step", "rank", "world_size"], keep="last", maintain_order=True
        )
        plans = {start.id: start.plan for start in self.starts}
        if len(set(plans.values())) > 1:  # an interrupted try lacks ranks under its plan
            plan = pl.col("start").replace_strict(plans, return_dtype=pl.String)
            last = last.filter(plan == plan.last().over("step", "world_size"))
        sums = (pl.col("digest").sum(), pl.col("substituted").sum())  # uint64 wraps around
        others = (pl.col("start").last(), pl.col("at_us").last())
        rows = last.group_by("step", "world_size").agg(*sums, *others, n=pl.len())
        return rows.filter(rows["n"] == rows["world_size"]).drop("n").sort("step", "world_size")

    @property
    def differing(self) -> tuple[int, ...]:
        """Steps made twice with different digests, ascending.

        Compares repeats of one rank at one world size, and global batches of all world sizes.
        """
        chosen = replace(self, steps=self._repeated())
        steps: set[int] = set()
        for rows, place in ((chosen.steps, ["step", "rank", "world_size"]), (chosen.whole, ["step"])):
            kinds = rows.select(*place, "digest").unique()
            steps.update(kinds.filter(kinds.select(place).is_duplicated())["step"].to_list())
        return tuple(sorted(steps))

    @property
    def differing_notes(self) -> tuple[int, ...]:
        """Steps made twice by a rank at one world size with different metrics, ascending. NaN equals NaN."""
        import polars as pl

        notes = [NOTE + name for name in self.notes]
        several = [pl.col(name).drop_nulls().n_unique() > 1 for name in notes]
        tries = self._repeated().group_by("step", "rank", "world_size").agg(several)
        steps = tries.filter(pl.any_horizontal(notes))["step"] if notes else tries["step"].clear()
        return tuple(steps.unique().sort().to_list())

    def _repeated(self) -> "pl.DataFrame":
        places = self.steps.select(
            "step", "rank"
        ).to_numpy()  # sorted: a rank's tries of a step are neighbours
        twice = places[1:][(places[1:] == places[:-1]).all(axis=1), 0]
        return self.steps.filter(np.isin(places[:, 0], twice))

    def start(self, start_id: str) -> StartRecord:
        return {start.id: start for start in self.starts}[start_id]


def read_trail(root: Root, run: str, known: RunTrail | None = None) -> RunTrail:
    """Return the run log of a run.

    known: an earlier result, whose objects are not read again; returned if nothing is new.

    Costs a listing and one read per object: one per recorded rank and minute. If the root has mirrors, the primary is
    read. Raises: RunNotFound; InvalidName; Corrupt; FormatTooNew; StoreError; MissingDependency if polars is missing.
    """
    store = primary_of(root.store)
    listed = listed_log(store, run, known)
    if known is not None and known.objects == listed.objects:
        return known
    kept = [known.steps] if known is not None and listed.is_grown else []
    steps = read_rows(store, trail_folder(run), listed.new, kept)
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


def listed_log(store: Store, run: str, known: RunTrail | None) -> ListedLog:
    """List a run log. Raises: RunNotFound; InvalidName; StoreError."""
    folder = trail_folder(check_run_name(run))
    keys = [key.removeprefix(folder) for key in list_keys(store, folder)]
    is_grown = known is not None and known.objects.issubset(keys)
    earlier = known.objects if known is not None and is_grown else frozenset[str]()
    later = [key for key in keys if key not in earlier]
    new = [key for key in later if ROWS.fullmatch(key)]
    starts = [key for key in later if START.fullmatch(key)]
    objects = earlier.union(new, starts)
    if not objects:
        raise RunNotFound(
            f"{store.url} has no trail of run {run!r}; it has: {', '.join(trail_runs(store)) or 'none'}. A training "
            "keeps one with loader.Loader(plan, trail=loader.Trail(root, run=...))"
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
    return _starts_of(store, run, named, names)


def read_trail_of(root: Root, run: str, steps: range) -> RunTrail:
    """Return the first recorded rank's rows of some steps.

    Costs a listing, and a read per object that may hold one of the steps: the objects of their minutes, and each
    start's last one. Raises: as `read_trail`.
    """
    folder, store = trail_folder(check_run_name(run)), primary_of(root.store)
    written, starts = _written(store, folder)
    if not written and not starts:
        raise RunNotFound(f"{store.url} has no trail of run {run!r}")
    names = [one.name for ranks in written.values() for one in _holding(ranks[min(ranks)], steps)]
    rows = read_rows(store, folder, names, [])
    rows = rows.filter(rows["step"].is_between(steps.start, steps.stop, closed="left"))
    return RunTrail(
        run=run,
        starts=_starts_of(store, run, rows["start"].unique(), starts),
        steps=rows,
        objects=frozenset([*names, *starts]),
    )


class _Rows(NamedTuple):
    """An object with rows of one rank."""

    at_us: int
    """Time of its write in UTC microseconds; 0 if the store has none."""
    first: int
    """First step."""
    name: str
    """Name in the run's folder."""
    nbytes: int
    """Size in bytes."""


def _written(store: Store, folder: str) -> tuple[dict[int, dict[int, list[_Rows]]], list[str]]:
    """Return world size -> rank -> its objects, by time, and the names of the starts."""
    written: dict[int, dict[int, list[_Rows]]] = {}
    starts = list[str]()
    for info in store.list(folder):
        name = info.key.removeprefix(folder)
        if match := ROWS.fullmatch(name):
            of_rank = written.setdefault(int(match[2]), {}).setdefault(int(match[1]), [])
            of_rank.append(_Rows(info.modified_us or 0, int(match[3]), name, info.nbytes))
        elif START.fullmatch(name):
            starts.append(name)
    for ranks in written.values():
        for of_rank in ranks.values():
            of_rank.sort()
    return written, starts


def _holding(written: list[_Rows], steps: range) -> Iterator[_Rows]:
    for number, rows in enumerate(written):
        following = written[number + 1].first if number + 1 < len(written) and rows.at_us else -1
        # Its last step may be in the next one, too.
        end = following + 1 if following >= rows.first else steps.stop
        if rows.first < steps.stop and end > steps.start:
            yield rows


PART_ROWS, MOST_PARTS = 1_000_000, 64
"""Most rows of a part, unless one step has more, and most parts that are compared."""
NOTES_AT_ONCE = 16
"""Number of objects whose metrics are read together."""


def notes_in_parts(root: Root, first: str, second: str) -> Iterator[tuple[RunTrail, RunTrail]]:
    """Yield the metrics of two runs at the steps of the second one, part by part; nothing if one has no run log.

    The results have step, rank, world_size, at_us and metrics only. Memory: a part of both, not the logs.

    Costs a listing of both logs, and a read per object that may hold a step of the part, of each rank. Stops after 64
    parts, with a warning. Raises: Corrupt, also for an object larger than a run log's; StoreError;
    MissingDependency if polars is missing.
    """
    store = primary_of(root.store)
    logs = [(run, _written(store, trail_folder(check_run_name(run)))[0]) for run in (first, second)]
    begins = sorted({one.first for ranks in logs[1][1].values() for own in ranks.values() for one in own})
    begins = [step for step in begins if step < 2**62]  # a forged one is beyond the numbers of a column
    if not begins or not logs[0][1]:
        return
    n_steps, begin = max(1, PART_ROWS // max(logs[1][1])), begins[0]
    for _ in range(MOST_PARTS):
        steps = range(begin, begin + n_steps)
        original, replay = (_notes_of(store, run, written, steps) for run, written in logs)
        if len(replay.steps):
            yield original, replay
        later = next((step for step in begins if step >= steps.stop), None)
        if len(replay.steps) and replay.steps["step"].max() == steps[-1]:
            begin = steps.stop
        elif later is None:
            return
        else:
            begin = later
    _log.warning("%s is compared with %s up to step %d only", second, first, begin)


def _notes_of(
    store: Store, run: str, written: Mapping[int, Mapping[int, list[_Rows]]], steps: range
) -> RunTrail:
    _check_polars()
    import polars as pl

    folder = trail_folder(run)
    chosen = [one for ranks in written.values() for own in ranks.values() for one in _holding(own, steps)]
    parts = [rows_of_rank(pa.Table.from_batches([], pa.schema(_TIMES)), 0, 0)]
    for start in range(0, len(chosen), NOTES_AT_ONCE):
        group = chosen[start : start + NOTES_AT_ONCE]
        for part in group:
            if part.nbytes > MOST_OBJECT_BYTES:
                raise Corrupt(
                    f"{store.url}/{folder}{part.name} has {part.nbytes:,} bytes; a trail's have fewer"
                )
        with Together(store, [folder + part.name for part in group]) as coming:
            for part in group:
                key = folder + part.name
                place = ROWS.fullmatch(part.name)
                assert place is not None  # only such names are listed
                table = row_numbers(coming.get(key).data, f"{store.url}/{key}", _TIMES)
                rows = rows_of_rank(table, int(place[1]), int(place[2]))
                parts.append(rows.filter(rows["step"].is_between(steps.start, steps.stop, closed="left")))
    rows = pl.concat(parts, how="diagonal")
    return RunTrail(run=run, starts=(), steps=rows, objects=frozenset(one.name for one in chosen))


def _check_polars() -> None:
    try:
        import polars  # noqa: F401
    except ImportError as error:
        raise MissingDependency("a trail is read with polars: pip install 'penstock-data[tables]'") from error


def _starts_of(store: Store, run: str, named: Iterable[str], names: Iterable[str]) -> tuple[StartRecord, ...]:
    named = set(named)
    starts = read_starts(store, run, names)
    if not named <= {
        start.id for start in starts
    }:  # the listing may have begun before the first start was written
        starts = read_starts(store, run)
    if lost := sorted(named - {start.id for start in starts}):
        raise Corrupt(
            f"{store.url}/{trail_folder(run)}start-{lost[0]}.json is not there, and rows of steps name it; restore it"
        )
    return starts


def read_starts(store: Store, run: str, names: Iterable[str] | None = None) -> tuple[StartRecord, ...]:
    """Return a run's starts, by time; () if it has no run log.

    names: names of the objects in its folder; None lists the starts.
    """
    folder = trail_folder(run)
    if names is None:
        names = [key.removeprefix(folder) for key in list_keys(store, f"{folder}start-")]
    keys = [folder + name for name in names if START.fullmatch(name)]
    with Together(store, keys) as coming:
        starts = [parse_start(coming.get(key).data, f"{store.url}/{key}") for key in keys]
    return tuple(sorted(starts, key=lambda start: start.at_us))


def trail_runs(store: Store) -> list[str]:
    """Return the runs with a run log under a root, sorted. Costs a listing of all run logs."""
    names = (key.removeprefix("trails/").partition("/") for key in list_keys(store, "trails/"))
    return sorted(
        {
            run
            for run, _, name in names
            if is_run_name(run) and (ROWS.fullmatch(name) or START.fullmatch(name))
        }
    )


def read_rows(store: Store, folder: str, names: list[str], known: "list[pl.DataFrame]") -> "pl.DataFrame":
    _check_polars()
    new = list(RowObjects(store, folder).frames(names))
    return arranged_rows(known or [no_rows()], new)


def arranged_rows(known: "list[pl.DataFrame]", new: "list[pl.DataFrame]") -> "pl.DataFrame":
    """Return the rows of some frames in the order of `RunTrail.steps`, without repeats.

    known: earlier results, which are ordered. Empties `new`.
    """
    import polars as pl

    parts = [frame for frame in (*known, *new) if len(frame)]
    parts = parts or [*known, *new]
    is_ordered = _follow_each_other(known, new)
    most_chunks = MOST_GROWN_CHUNKS if any(map(len, known)) else MOST_CHUNKS
    new.clear()  # they share the buffers
    steps = pl.concat(parts, how="diagonal")
    parts.clear()
    if not is_ordered:
        steps = _ordered(steps)
    if steps.n_chunks() > most_chunks:
        _make_contiguous(steps)
    pa.default_memory_pool().release_unused()
    notes, crcs = (sorted(name for name in steps.columns if name.startswith(start)) for start in (NOTE, CRC))
    first_columns = ["step", "rank", "world_size"]
    others = [name for name in SCHEMA.names if name in steps.columns and name not in first_columns]
    return steps.select(*first_columns, *others, *notes, *crcs)


def _follow_each_other(known: "list[pl.DataFrame]", new: "list[pl.DataFrame]") -> bool:
    """Return whether the steps of all new rows ascend, and the known ones end before them.

    Most runs record one rank, and repeat no step. Looks at new rows only: 1e6 earlier ones would be copied for it.
    """
    last = max((int(frame["step"][-1]) for frame in known if len(frame)), default=-1)
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


def _ordered(steps: "pl.DataFrame") -> "pl.DataFrame":
    import polars as pl

    places = [steps[name].to_numpy() for name in _PLACE]
    order = np.lexsort(places[::-1])
    if not np.array_equal(order, np.arange(len(order))):
        steps, places = steps[order], [column[order] for column in places]
    same = np.logical_and.reduce([column[1:] == column[:-1] for column in places])
    if not same.any():
        return steps
    # A row is in two objects if it got metrics later, or the response to the first write was lost.
    repeated = np.append(same, False) | np.insert(same, 0, False)
    known = pl.sum_horizontal(pl.all().is_not_null())
    if "largest" in steps.columns:
        known += pl.col("largest").list.len()
    most = steps.filter(repeated).sort(known, descending=True).unique(_PLACE, keep="first")
    return pl.concat([steps.filter(~repeated), most]).sort(_PLACE)
