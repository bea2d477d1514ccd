"""Evenly spread rows of a version that is too large to count: stretches of its samples table, with their ordinals.

A stretch is as long as a row group, so that reading it costs its own bytes. Neighbouring samples often share a source:
many short stretches would estimate better, and read the whole table.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

import loader
from loader.dataset.tables.annotations import with_edits
from loader.dataset.tables.parquet import ROW_GROUP_ROWS, TableFile
from loader.dataset.tables.table_rows import get_rows
from loader.dataset.versions.samples_table import import_polars, join_group, other_groups, read_group

if TYPE_CHECKING:
    import polars

WHOLE_UP_TO = 20_000_000
"""Samples up to which every one is counted."""
SPREAD_ROWS = 4_000_000
"""Rows that are counted of a larger version."""
Int64s = np.ndarray[Any, np.dtype[np.int64]]
Stretches = Sequence[tuple[int, Int64s]]
"""(number of a keys file, its rows) pairs."""


def is_spread(version: "loader.Version") -> bool:
    """Return whether a version is counted by some of its rows."""
    return len(version) > WHOLE_UP_TO


def spread_samples(version: "loader.Version", columns: Sequence[str]) -> "polars.DataFrame":
    """Return ordinal and these columns of evenly spread live samples, the same each time, in version order."""
    pl = import_polars()
    entries = version.manifest["samples"]
    key_files = [entry for entry in entries if entry["group"] == "keys"]
    stretches = _stretches([file["n_rows"] for file in key_files])
    frame = _read_stretches(
        pl,
        version,
        key_files,
        stretches,
        columns,
    )
    for group in other_groups(entries, columns):
        files = [entry for entry in entries if entry["group"] == group and "author" not in entry]
        if [file["n_rows"] for file in files] == [file["n_rows"] for file in key_files]:
            extra = _read_stretches(
                pl,
                version,
                files,
                stretches,
                columns,
            )
        else:
            # The group has rows of some parts only: its tables do not match the keys row by row.
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
    ordinals = _ordinals(version, frame)
    frame = frame.with_columns(pl.Series("ordinal", ordinals)).filter(pl.col("ordinal") >= 0)
    return frame.select(["ordinal", *columns]).sort("ordinal")


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
        stretches.append((number, np.arange(first, stop)))
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
        chosen = [rows for stretch_file, rows in stretches if stretch_file == number]
        if not chosen:
            continue
        names = ["part", "row", *(name for name in file["columns"] if name in columns)]
        table = get_rows(
            version.store,
            TableFile.from_json(dict(file)),
            np.concatenate(chosen),
            names,
        )
        frames.append(pl.from_arrow(table))
    return pl.concat(frames, how="diagonal_relaxed")


def _ordinals(version: "loader.Version", frame: "polars.DataFrame") -> Int64s:
    """Return int64 [rows]: each row's live ordinal, -1 for an excluded row."""
    parts = version.parts
    runs = frame["part"].rle().struct
    positions = parts.positions(runs.field("value").to_list())
    lengths = runs.field("len").to_list()
    rows = frame["row"].to_numpy()
    ordinals = np.full(
        len(rows),
        -1,
        np.int64,
    )
    first = 0
    for position, length in zip(
        positions.tolist(),
        lengths,
        strict=True,
    ):
        run = slice(first, first + length)
        members = parts.live_members(position)
        live_before = np.cumsum(members) - 1  # [rows of the part]: live rows before a live row
        is_live = members[rows[run]]
        numbers = parts.first_ordinal[position] + live_before[rows[run]]
        ordinals[run] = np.where(
            is_live,
            numbers,
            -1,
        )
        first += length
    return ordinals
