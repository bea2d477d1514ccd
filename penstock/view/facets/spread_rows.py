"""Evenly spread rows of a version that is too large to count: stretches of its samples table, with their ordinals.

A stretch is as long as a row group, so that reading it costs its own bytes. Neighbouring samples often share a source:
many short stretches would estimate better, and read the whole table.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

import loader
from loader.dataset.tables.annotations import select_files, with_edits
from loader.dataset.tables.parquet import ROW_GROUP_ROWS, TableFile
from loader.dataset.tables.table_rows import get_rows
from loader.dataset.versions.samples_table import import_polars, join_group, other_groups, read_group

if TYPE_CHECKING:
    import polars

WHOLE_UP_TO = 20_000_000
"""Samples up to which every one is counted."""
SPREAD_ROWS = 4_000_000
"""Rows that are counted of a larger version."""
_PLACE = ["part", "row"]
Int64s = np.ndarray[Any, np.dtype[np.int64]]
Stretches = Sequence[tuple[int, int, int]]
"""(number of a keys file, its first row, the row after its last one)."""


def is_spread(version: "loader.Version") -> bool:
    """Return whether a version is so large that some of its rows, spread over it, are counted for all."""
    return len(version) > WHOLE_UP_TO


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Runs:
    """Places of rows, as runs of rows that follow each other in a part. All arrays: int64 [runs]."""

    parts: Sequence[str]
    """[runs]: ids."""
    first_rows: Int64s
    """First row in the part."""
    lengths: Int64s

    def is_same(self, other: "_Runs") -> bool:
        return (
            self.parts == other.parts
            and np.array_equal(self.first_rows, other.first_rows)
            and np.array_equal(self.lengths, other.lengths)
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SpreadRows:
    """The rows that are counted of a large version: read once, however many of its columns are."""

    stretches: Stretches
    runs: _Runs
    """Places of the rows of the stretches."""
    order: Int64s | None
    """int64 [counted samples]: their rows, by ordinal; None if all rows are live and in order."""
    ordinals: Int64s
    """int64 [counted samples]: live ordinals, ascending."""
    groups_alike: set[str] = field(default_factory=set)
    """Column groups whose tables were seen to have the same rows as the keys."""


def spread_rows(version: "loader.Version") -> SpreadRows:
    """Return evenly spread rows of a version, the same each time. Reads their places from the keys tables."""
    pl = import_polars()
    files = _key_files(version)
    stretches = _stretches([file["n_rows"] for file in files])
    places = _read_stretches(
        pl,
        version,
        files,
        stretches,
        _PLACE,
    )
    runs = _runs(places)
    ordinals = _ordinals(version, runs)
    order = None
    is_live = ordinals >= 0
    # Most versions have no exclusions, and their keys are in order: rows are then taken as they are.
    if not is_live.all() or np.any(ordinals[1:] < ordinals[:-1]):
        order = np.flatnonzero(is_live)
        by_ordinal = np.argsort(ordinals[order], kind="stable")
        order = order[by_ordinal]
        ordinals = ordinals[order]
    return SpreadRows(
        stretches=stretches,
        runs=runs,
        order=order,
        ordinals=ordinals,
    )


def spread_samples(
    version: "loader.Version",
    spread: SpreadRows,
    columns: Sequence[str],
) -> "polars.DataFrame":
    """Return these columns of the counted samples, by ordinal. Decodes nothing else of tables that match the keys."""
    pl = import_polars()
    entries = version.manifest["samples"]
    key_files = _key_files(version)
    n_rows = [file["n_rows"] for file in key_files]
    matching = [key_files]
    others = []
    for group in other_groups(entries, columns):
        files = [entry for entry in entries if entry["group"] == group and "author" not in entry]
        if [file["n_rows"] for file in files] == n_rows and _is_alike(pl, version, spread, group, files):
            matching.append(files)
        else:
            # The group has rows of some parts only, or in another order: they do not match the keys row by row.
            others.append(group)
    frames = []
    for files in matching:
        names = [name for name in columns if any(name in file["columns"] for file in files)]
        if names:
            frame = _read_stretches(
                pl,
                version,
                files,
                spread.stretches,
                names,
            )
            frames.append(frame)
    if others or select_files(entries, columns, annotations=True):
        frame = pl.concat([_places(pl, spread.runs), *frames], how="horizontal")
        for group in others:
            extra = read_group(
                pl,
                version,
                group,
                columns,
            )
            frame = join_group(frame, extra)
        frame = with_edits(
            version.store,
            entries,
            frame,
            columns,
        )
    else:
        frame = pl.concat(frames, how="horizontal")
    if spread.order is not None:
        frame = frame[spread.order]
    selected: polars.DataFrame = frame.select(columns)
    return selected


def _key_files(version: "loader.Version") -> list[Mapping[str, Any]]:
    return [entry for entry in version.manifest["samples"] if entry["group"] == "keys"]


def _is_alike(
    pl: Any,
    version: "loader.Version",
    spread: SpreadRows,
    group: str,
    files: Sequence[Mapping[str, Any]],
) -> bool:
    """Return whether the tables of a group have the same rows as the keys. Decodes their places once."""
    if group not in spread.groups_alike:
        places = _read_stretches(
            pl,
            version,
            files,
            spread.stretches,
            _PLACE,
        )
        if _runs(places).is_same(spread.runs):
            spread.groups_alike.add(group)
    return group in spread.groups_alike


def _runs(places: "polars.DataFrame") -> _Runs:
    """Return the runs of rows. places: part, row."""
    import polars as pl

    rows = places["row"].to_numpy()
    part_lengths = places["part"].rle().struct.field("len")
    # [parts]: row after the last one of each stretch of equal part ids.
    part_ends = part_lengths.cum_sum().to_numpy()
    is_first = np.ones(len(rows), bool)
    # A run ends where rows do not follow each other, or the part changes.
    is_first[1:] = np.diff(rows) != 1
    is_first[part_ends[:-1]] = True
    firsts = np.flatnonzero(is_first)
    ends = np.append(firsts[1:], len(rows))
    parts = places["part"].gather(pl.Series(firsts))
    return _Runs(
        parts=parts.to_list(),
        first_rows=rows[firsts],
        lengths=ends - firsts,
    )


def _places(pl: Any, runs: _Runs) -> "polars.DataFrame":
    """Return part and row of each row of the runs."""
    parts = pl.Series("part", runs.parts, pl.String)
    run_of_row = np.repeat(np.arange(len(runs.lengths)), runs.lengths)
    # [runs]: rows of all earlier runs.
    rows_before = runs.lengths.cumsum() - runs.lengths
    in_run = np.arange(len(run_of_row)) - rows_before[run_of_row]
    rows = pl.Series("row", runs.first_rows[run_of_row] + in_run)
    frame: polars.DataFrame = pl.DataFrame([parts.gather(run_of_row), rows])
    return frame


def _stretches(n_rows: Sequence[int]) -> Stretches:
    """Return evenly spread stretches of files of these sizes, of SPREAD_ROWS rows together."""
    every = []
    for number, n in enumerate(n_rows):
        every += [
            (number, first)
            for first in range(
                0,
                n,
                ROW_GROUP_ROWS,
            )
        ]
    n_chosen = min(len(every), max(1, SPREAD_ROWS // ROW_GROUP_ROWS))
    # The middle of each of n equal pieces.
    middles = (np.arange(n_chosen) + 0.5) * len(every) / n_chosen
    stretches = []
    for position in middles.astype(int).tolist():
        number, first = every[position]
        stop = min(first + ROW_GROUP_ROWS, n_rows[number])
        stretches.append((number, first, stop))
    return stretches


def _read_stretches(
    pl: Any,
    version: "loader.Version",
    files: Sequence[Mapping[str, Any]],
    stretches: Stretches,
    columns: Sequence[str],
) -> Any:
    frames = []
    for number, file in enumerate(files):
        chosen = [np.arange(first, stop) for stretch_file, first, stop in stretches if stretch_file == number]
        if not chosen:
            continue
        names = [name for name in columns if name in (*_PLACE, *file["columns"])]
        if not names:
            names = ["row"]  # for the number of rows
        table = get_rows(
            version.store,
            TableFile.from_json(dict(file)),
            np.concatenate(chosen),
            names,
        )
        frames.append(pl.from_arrow(table))
    together = pl.concat(frames, how="diagonal_relaxed")
    return together.select(columns)


def _ordinals(version: "loader.Version", runs: _Runs) -> Int64s:
    """Return int64 [rows]: each row's live ordinal, -1 for an excluded row."""
    parts = version.parts
    positions = parts.positions(runs.parts)
    ordinals = [np.empty(0, np.int64)]  # `concatenate` needs an array
    for position, first, length in zip(
        positions.tolist(),
        runs.first_rows.tolist(),
        runs.lengths.tolist(),
        strict=True,
    ):
        rows = np.arange(first, first + length)
        of_part = np.full(length, position)
        ordinals.append(parts.live_ordinals(of_part, rows))
    return np.concatenate(ordinals)
