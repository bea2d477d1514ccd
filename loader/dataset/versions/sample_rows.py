"""Read the rows of single samples from the samples table: one row group per table, not whole tables."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from ...errors import Corrupt
from ...storage.threads import DaemonPool
from ..shards.address import SampleAddress
from ..shards.parts_table import MISSING
from ..tables.annotations import with_edits
from ..tables.columns import is_annotation
from ..tables.parquet import READ_AHEAD, Int64s, TableFile, integers
from ..tables.table_rows import distinct, get_rows, run_codes
from .samples_table import import_polars, join_group, other_groups, read_group

if TYPE_CHECKING:
    from ..reading.sample_places import VersionData


def live_row(version: "VersionData", ordinal: int) -> dict[str, Any]:
    """Return column -> value for one sample, as in `scan_samples`, reading one row group per table.

    Raises: InvalidRuntime for an unknown ordinal; Corrupt.
    """
    pl = import_polars()
    parts = version.parts
    (position,), (row,) = parts.locate(np.array([ordinal]))
    part = parts.ids[int(position)].as_py()
    place = (part, int(row))
    rows_before = int(parts.n_rows[: int(position)].sum())
    table_row = rows_before + int(row)  # as if the group's tables were one, in the order of the parts
    entries = version.manifest["samples"]
    frame = _group_row(
        pl,
        version,
        "keys",
        place,
        table_row,
    )
    for group in other_groups(entries, None):
        frame = join_group(
            frame,
            _group_row(
                pl,
                version,
                group,
                place,
                table_row,
            ),
        )
    frame = with_edits(
        version.store,
        entries,
        frame,
        None,
    )
    if frame.height != 1:
        raise Corrupt(
            f"{version.name}: its keys tables have {frame.height} rows of sample {ordinal}; run penstock verify "
            f"{version.name}, and restore what it names from a mirror",
            what=f"sample {ordinal}",
            where=version.name,
            given=frame.height,
            accepted=1,
        )
    return {"ordinal": ordinal, **frame.row(0, named=True)}


def sample_rows(
    version: "VersionData",
    addresses: Sequence[SampleAddress],
    group: str,
    columns: Collection[str],
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (index in `addresses`, column -> value) for a column group, without annotations.

    Reads only the needed row groups of large tables. Columns that a file lacks are left out.

    Raises: Corrupt if tables are damaged, or not in part order.
    """
    parts = version.parts
    first_row = np.concatenate([np.zeros(1, np.int64), np.cumsum(parts.n_rows)])
    positions = parts.positions([address.part for address in addresses])
    rows = np.array([address.row for address in addresses], np.int64)
    table_rows = first_row[positions] + rows  # [addresses]: row of all tables of the group, one after another

    place_columns = ["part", "row"]
    if group == "keys":
        place_columns.append("key")
    start = 0
    for entry in version.manifest["samples"]:
        if entry["group"] != group or is_annotation(entry):
            continue
        stop = start + entry["n_rows"]
        numbers = np.flatnonzero((start <= table_rows) & (table_rows < stop))  # addresses in this file
        if len(numbers):
            file_rows = table_rows[numbers] - start
            names = [*place_columns, *(name for name in columns if name in entry["columns"])]
            table = get_rows(
                version.store,
                TableFile.from_json(entry),
                file_rows,
                names,
            )
            for number, file_row, values in zip(
                numbers.tolist(),
                file_rows.tolist(),
                table.to_pylist(),
                strict=True,
            ):
                place = [values.pop(name) for name in place_columns]
                address = addresses[number]
                if place != [address.part, address.row, address.key][: len(place)]:
                    raise _out_of_order(
                        version,
                        f"{entry['path']} row {file_row}",
                        place,
                        address,
                    )
                yield number, values
        start = stop


def columns_of_rows(
    version: "VersionData",
    positions: Int64s,
    rows: Int64s,
    columns: Sequence[str],
) -> pa.Table:
    """Return these columns of one column group for rows of parts, live or not, without annotations.

    Reads only the needed row groups of large tables. A column is null where its file lacks it. positions, rows: int64
    [n], part and row of each, in ascending order.

    Raises: Corrupt if tables are damaged, or not in part order.
    """
    n_rows = version.parts.n_rows
    first_row = np.cumsum(n_rows) - n_rows  # [parts]
    # [n], ascending: row of all tables of the group, one after another
    table_rows = first_row[positions] + rows
    group = version.manifest["columns"][columns[0]]["group"]
    pieces = []
    start = 0
    for entry in version.manifest["samples"]:
        if entry["group"] != group or is_annotation(entry):
            continue
        stop = start + entry["n_rows"]
        first, last = np.searchsorted(table_rows, [start, stop]).tolist()
        if first < last:
            pieces.append(_FileRows(entry, table_rows[first:last] - start, slice(first, last)))
        start = stop
    if len(table_rows) and int(table_rows[-1]) >= start:
        raise Corrupt(
            f"{version.name}: its tables of {group} have {start} rows, fewer than its parts; run penstock verify "
            f"{version.name}"
        )

    read = partial(_read_file, version, columns, positions, rows)
    if len(pieces) < 2:
        tables = list(map(read, pieces))  # starting a thread costs more than it saves
    else:
        with DaemonPool(min(len(pieces), READ_AHEAD), "penstock-table") as pool:
            tables = list(pool.map(read, pieces))
    if not tables:
        return pa.table({name: pa.nulls(0) for name in columns})
    return pa.concat_tables(tables, promote_options="permissive")


class _FileRows(NamedTuple):
    """Rows of one table file."""

    entry: Mapping[str, Any]
    """The file's entry in the manifest."""
    rows: Int64s
    """[n], rows in the file."""
    numbers: slice
    """Their slice of all rows that are read."""


def _read_file(
    version: "VersionData",
    columns: Sequence[str],
    positions: Int64s,
    rows: Int64s,
    file: _FileRows,
) -> pa.Table:
    """Return the columns of the rows in one file. positions, rows: of all rows that are read."""
    entry = file.entry
    stored = [name for name in columns if name in entry["columns"]]
    table = get_rows(
        version.store,
        TableFile.from_json(dict(entry)),
        file.rows,
        ["part", "row", *stored],
    )
    stored_parts, part_codes = run_codes(table["part"])
    # By the ids of the expected parts: to find the positions of the stored ones would load the ids of all parts.
    expected = positions[file.numbers]
    distinct_expected = distinct(expected).tolist()
    expected_ids = version.parts.part_ids(distinct_expected)
    position_by_id = dict(
        zip(
            expected_ids,
            distinct_expected,
            strict=True,
        )
    )
    distinct_positions = [position_by_id.get(part, MISSING) for part in stored_parts.to_pylist()]
    position_by_code = np.array(distinct_positions, np.int64)
    is_other_part = position_by_code[part_codes] != expected
    is_other_row = integers(table["row"]) != rows[file.numbers]
    is_wrong = is_other_part | is_other_row
    if is_wrong.any():
        version.parts.positions(stored_parts)  # raises for a part that the version lacks
        raise Corrupt(
            f"{version.store.url}/{entry['path']} is not in the order of the parts of {version.name}: run penstock "
            f"verify {version.name}"
        )
    arrays = {}
    for name in columns:
        arrays[name] = table[name] if name in stored else pa.nulls(len(file.rows))
    return pa.table(arrays)


def _out_of_order(
    version: "VersionData",
    stored: str,
    place: Sequence[Any],
    address: SampleAddress,
) -> Corrupt:
    """Return the error for a stored row of another sample. place: (part, row[, key]) that the row has."""
    subject = "columns are"
    if len(place) == 3:
        subject = "provenance is"
    return Corrupt(
        f"{version.store.url}/{stored} is {place[-1]!r}, row {place[1]} of part {place[0]}; in the order of the parts "
        f"it is of {address.describe()}, so its {subject} not told: run penstock verify {version.name}",
        what="row",
        where=f"{version.store.url}/{stored}",
        given=list(place),
        accepted=address.describe(),
    )


def _group_row(
    pl: Any,
    version: "VersionData",
    group: str,
    place: tuple[str, int],
    table_row: int,
) -> Any:
    """Return one row of a column group. place: (part, row). table_row: the row's number in part order."""
    entries = version.manifest["samples"]
    files = [entry for entry in entries if entry["group"] == group and not is_annotation(entry)]
    ends = np.cumsum([file["n_rows"] for file in files])
    has_all_rows = ends[-1] == int(version.parts.n_rows.sum())
    if has_all_rows and table_row < ends[-1]:
        number = int(np.searchsorted(ends, table_row, side="right"))
        file = files[number]
        file_start = int(ends[number]) - file["n_rows"]
        table = get_rows(version.store, TableFile.from_json(dict(file)), np.array([table_row - file_start]))
        frame = pl.DataFrame(table)
        # Earlier releases merged some tables out of order: the row may be of another sample.
        if frame.select("part", "row").rows() == [place]:
            names = dict.fromkeys(name for file in files for name in file["columns"])
            missing = [name for name in names if name not in frame.columns]
            return frame.with_columns(pl.lit(None).alias(name) for name in missing)
    part, row = place
    is_row = (pl.col("part") == part) & (pl.col("row") == row)
    return read_group(
        pl,
        version,
        group,
        None,
        is_row,
    )
