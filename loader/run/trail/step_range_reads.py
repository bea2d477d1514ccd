"""Read some steps of a run log: only the objects that may hold one of them."""

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from ...dataset.root import Root
from ...errors import Corrupt, RunNotFound
from ...storage import Store
from ...storage.mirror import primary_store
from ...storage.threads import Together
from .read_trail import START, RunTrail, check_polars, named_starts, read_rows
from .row_numbers import MOST_OBJECT_BYTES, row_numbers
from .row_objects import ROWS, rows_of_rank
from .trail import check_run_name, trail_folder

if TYPE_CHECKING:
    import polars as pl

_log = logging.getLogger(__name__)
_TIMES = {"step": pa.int64(), "at_us": pa.int64()}


def read_rank_trail(root: Root, run: str, steps: range) -> RunTrail:
    """Return the first recorded rank's rows of some steps.

    Costs a listing, and a read per object that may hold one of the steps: the objects of their minutes, and each
    start's last one. Raises: as `read_trail`.
    """
    folder = trail_folder(check_run_name(run))
    store = primary_store(root.store)
    written, starts = _list_rows(store, folder)
    if not written and not starts:
        raise RunNotFound(f"{store.url} has no trail of run {run!r}", what="run", where=store.url, given=run)
    names = []
    for ranks in written.values():
        first_rank = ranks[min(ranks)]
        names += [rows.name for rows in _holding(first_rank, steps)]
    all_rows = read_rows(store, folder, names, [])
    rows = _within(all_rows, steps)
    start_ids = rows["start"].unique()
    return RunTrail(
        run=run,
        starts=named_starts(store, run, start_ids, starts),
        steps=rows,
        objects=frozenset([*names, *starts]),
    )


def _within(rows: "pl.DataFrame", steps: range) -> "pl.DataFrame":
    numbers = rows["step"]
    is_within = numbers.is_between(steps.start, steps.stop, closed="left")
    return rows.filter(is_within)


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


_Written = dict[int, dict[int, list[_Rows]]]
"""World size -> rank -> its objects, by time."""


def _list_rows(store: Store, folder: str) -> tuple[_Written, list[str]]:
    """Return the objects with rows, and the names of the starts."""
    written: _Written = {}
    starts = list[str]()
    for info in store.list(folder):
        name = info.key.removeprefix(folder)
        match = ROWS.fullmatch(name)
        if match:
            rank = int(match[1])
            world_size = int(match[2])
            rows = _Rows(
                at_us=info.modified_us or 0,
                first=int(match[3]),
                name=name,
                nbytes=info.nbytes,
            )
            ranks = written.setdefault(world_size, {})
            ranks.setdefault(rank, []).append(rows)
        elif START.fullmatch(name):
            starts.append(name)
    for ranks in written.values():
        for of_rank in ranks.values():
            of_rank.sort()
    return written, starts


def _holding(written: list[_Rows], steps: range) -> list[_Rows]:
    """Return the objects of one rank that may hold one of the steps."""
    following = None
    holding = []
    for rows in reversed(written):
        end = steps.stop
        # An object without a time is in no order, and its last step unknown.
        if rows.at_us and following is not None and following.first >= rows.first:
            end = following.first + 1  # its last step may be in the next one, too
        following = rows
        if rows.first < steps.stop and end > steps.start:
            holding.append(rows)
    holding.reverse()
    return holding


PART_ROWS = 1_000_000
"""Most rows of a part, unless one step has more."""
MOST_PARTS = 64
"""Most parts that are compared."""
NOTES_AT_ONCE = 16
"""Number of objects whose metrics are read together."""


def notes_in_parts(
    root: Root,
    first: str,
    second: str,
) -> Iterator[tuple[RunTrail, RunTrail]]:
    """Yield the metrics of two runs at the steps of the second one, part by part; nothing if one has no run log.

    The results have step, rank, world_size, at_us and metrics only. Memory: a part of both, not the logs.

    Costs a listing of both logs, and a read per object that may hold a step of the part, of each rank. Stops after 64
    parts, with a warning. Raises: Corrupt, also for an object larger than a run log's; StoreError;
    MissingDependency if polars is missing.
    """
    store = primary_store(root.store)
    first_folder = trail_folder(check_run_name(first))
    second_folder = trail_folder(check_run_name(second))
    first_written, _ = _list_rows(store, first_folder)
    second_written, _ = _list_rows(store, second_folder)
    begins = _first_steps(second_written)
    if not begins or not first_written:
        return
    largest_world = max(second_written)
    n_steps = max(1, PART_ROWS // largest_world)
    begin = begins[0]
    for _ in range(MOST_PARTS):
        steps = range(begin, begin + n_steps)
        original = _read_notes(store, first, first_written, steps)
        replay = _read_notes(store, second, second_written, steps)
        if len(replay.steps):
            yield original, replay
        goes_on = False  # whether the log has the part's last step, so perhaps the next one
        if len(replay.steps):
            last_step = replay.steps["step"].max()
            goes_on = last_step == steps[-1]
        later = [step for step in begins if step >= steps.stop]
        if goes_on:
            begin = steps.stop
        elif later:
            begin = later[0]
        else:
            return
    _log.warning("%s is compared with %s up to step %d only", second, first, begin)


def _first_steps(written: _Written) -> list[int]:
    """Return the first steps of all objects, ascending."""
    begins = set[int]()
    for ranks in written.values():
        for of_rank in ranks.values():
            for rows in of_rank:
                begins.add(rows.first)
    # A forged one is beyond the numbers of a column.
    countable = [step for step in begins if step < 2**62]
    return sorted(countable)


def _read_notes(
    store: Store,
    run: str,
    written: _Written,
    steps: range,
) -> RunTrail:
    check_polars()
    import polars as pl

    folder = trail_folder(run)
    chosen = list[_Rows]()
    for ranks in written.values():
        for of_rank in ranks.values():
            chosen += _holding(of_rank, steps)
    schema = pa.schema(_TIMES)
    empty = pa.Table.from_batches([], schema)
    parts = [rows_of_rank(empty, 0, 0)]
    for start in range(0, len(chosen), NOTES_AT_ONCE):
        group = chosen[start : start + NOTES_AT_ONCE]
        parts += _read_group(store, folder, group, steps)
    names = frozenset(rows.name for rows in chosen)
    return RunTrail(
        run=run,
        starts=(),
        steps=pl.concat(parts, how="diagonal"),
        objects=names,
    )


def _read_group(
    store: Store,
    folder: str,
    group: list[_Rows],
    steps: range,
) -> "list[pl.DataFrame]":
    """Return the rows of some objects within `steps`, one frame per object. Reads the objects together."""
    # Before any read: one forged object could fill the memory.
    for part in group:
        if part.nbytes > MOST_OBJECT_BYTES:
            raise Corrupt(
                f"{store.url}/{folder}{part.name} has {part.nbytes:,} bytes; a trail's have fewer",
                what=part.name,
                where=f"{store.url}/{folder}",
                given=part.nbytes,
                accepted=f"up to {MOST_OBJECT_BYTES} bytes",
            )
    frames = []
    keys = [folder + part.name for part in group]
    with Together(store, keys) as coming:
        for part, key in zip(group, keys, strict=True):
            match = ROWS.fullmatch(part.name)
            assert match is not None  # only such names are listed
            rank = int(match[1])
            world_size = int(match[2])
            data = coming.get(key).data
            table = row_numbers(data, f"{store.url}/{key}", _TIMES)
            rows = rows_of_rank(table, rank, world_size)
            frames.append(_within(rows, steps))
    return frames
