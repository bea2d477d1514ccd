"""Find the samples of a transaction that share a value of a column, such as the rollouts of a group.

The parts of a transaction are neighbours in a version. Only the files of the samples table that have their rows are
read: the cost does not grow with the steps of a run.
"""

import io
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

import loader
from loader.dataset.tables.annotations import with_edits
from loader.dataset.tables.columns import is_annotation
from loader.dataset.tables.parquet import TableFile, get_table_bytes
from loader.dataset.versions.samples_table import import_polars
from loader.errors import InvalidRuntime
from loader.rollouts.undecided import part_transaction

if TYPE_CHECKING:
    import polars

MOST_MEMBERS = 64
"""Most samples of a group that are shown."""
MOST_ROWS = 2**22
"""Most rows of the samples table that are searched."""
MOST_PARTS = 2**14
"""Most parts of a transaction that are searched."""


class GroupMembers(NamedTuple):
    ordinals: list[int]
    """Live samples in the version's order, up to MOST_MEMBERS."""
    columns: list[dict[str, Any]]
    """Column -> value of each."""
    n_samples: int
    """Also those beyond MOST_MEMBERS."""


def group_members(
    version: loader.Version,
    ordinal: int,
    column: str,
    value: object,
    names: Collection[str],
) -> GroupMembers:
    """Return the samples of this sample's transaction with the same value. names: columns to read.

    Raises: InvalidRuntime if too many rows would be searched; Corrupt; StoreError.
    """
    parts = version.parts
    positions = _parts_of_transaction(
        version,
        ordinal,
    )
    searched = parts.ids[positions.start : positions.stop].to_pylist()
    pl = import_polars()
    has_value = pl.col(column) == value
    is_searched = pl.col("part").is_in(searched)
    frame = _rows(
        version,
        positions,
        [column],
        has_value & is_searched,
    )

    live: list[tuple[int, str, int]] = []  # (ordinal, part, row)
    for part, row in frame.select(
        "part",
        "row",
    ).rows():
        position = parts.position(part)
        is_live = parts.live_members(position)
        if not is_live[row]:
            continue  # excluded from this version
        first_ordinal = int(parts.first_ordinal[position])
        live_before = int(is_live[:row].sum())
        live.append((first_ordinal + live_before, part, row))
    live.sort()
    shown = live[:MOST_MEMBERS]
    places = [(part, row) for _, part, row in shown]
    columns = _columns(
        version,
        positions,
        places,
        names,
    )
    return GroupMembers(
        ordinals=[number for number, _, _ in shown],
        columns=columns,
        n_samples=len(live),
    )


def _parts_of_transaction(version: loader.Version, ordinal: int) -> range:
    """Return the positions of the parts that one transaction wrote. Raises: InvalidRuntime."""
    parts = version.parts
    (located,), _ = parts.locate(np.array([ordinal]))
    begin = int(located)
    end = begin + 1
    transaction = part_transaction(parts, begin)
    while begin and part_transaction(parts, begin - 1) == transaction:
        begin -= 1
        _check_parts(version, end - begin)
    while end < len(parts) and part_transaction(parts, end) == transaction:
        end += 1
        _check_parts(version, end - begin)
    return range(begin, end)


def _check_parts(
    version: loader.Version,
    n: int,
) -> None:
    if n > MOST_PARTS:
        raise InvalidRuntime(
            f"the transaction of this sample wrote more than {MOST_PARTS:,} parts of {version.name}; filter its page "
            "by group_id instead"
        )


def _columns(
    version: loader.Version,
    positions: range,
    places: Sequence[tuple[str, int]],
    names: Collection[str],
) -> list[dict[str, Any]]:
    """Return column -> value for each (part, row), edits included."""
    pl = import_polars()
    known = version.manifest["columns"]
    by_group: dict[str, list[str]] = {}
    for name in names:
        if name in known and name != "key":
            by_group.setdefault(
                known[name]["group"],
                [],
            ).append(name)
    # A superset of the places, which one comparison each finds; the rest is dropped below.
    shown_parts = sorted({part for part, _ in places})
    shown_rows = sorted({row for _, row in places})
    has_part = pl.col("part").is_in(shown_parts)
    has_row = pl.col("row").is_in(shown_rows)
    columns: list[dict[str, Any]] = [{} for _ in places]
    numbers = {place: number for number, place in enumerate(places)}
    for group_names in by_group.values():
        frame = _rows(
            version,
            positions,
            group_names,
            has_part & has_row,
        )
        frame = with_edits(
            version.store,
            version.manifest["samples"],
            frame,
            group_names,
        )
        for row in frame.iter_rows(named=True):
            number = numbers.get((row.pop("part"), row.pop("row")))
            if number is not None:
                columns[number].update(row)
    return columns


def _rows(
    version: loader.Version,
    positions: range,
    names: Sequence[str],
    where: Any,
) -> "polars.DataFrame":
    """Return part, row and columns of one group of columns, of rows that satisfy `where`. Raises: InvalidRuntime."""
    pl = import_polars()
    group = version.manifest["columns"][names[0]]["group"]
    selected = ["part", "row", *names]
    frames = []
    for entry in _files(
        version,
        group,
        positions,
    ):
        file = TableFile.from_json(dict(entry))
        data = get_table_bytes(
            version.store,
            file,
        )
        lazy = pl.scan_parquet(io.BytesIO(data))
        missing = [name for name in names if name not in entry["columns"]]
        lazy = lazy.with_columns(pl.lit(None).alias(name) for name in missing)
        frames.append(lazy.filter(where).select(selected).collect())
    if not frames:
        frames.append(pl.DataFrame({name: [] for name in selected}))
    rows: polars.DataFrame = pl.concat(
        frames,
        how="diagonal_relaxed",
    )
    return rows


def _files(
    version: loader.Version,
    group: str,
    positions: range,
) -> list[Mapping[str, Any]]:
    """Return the files with the rows of these parts; all files of the group if not every part has it."""
    n_rows = version.parts.n_rows
    entries = version.manifest["samples"]
    files = [entry for entry in entries if entry["group"] == group and not is_annotation(entry)]
    file_rows = np.array(
        [entry["n_rows"] for entry in files],
        np.int64,
    )
    ends = np.cumsum(file_rows)  # [files]: row after the last one of each, over all files
    begins = ends - file_rows
    chosen = files
    has_all_rows = int(file_rows.sum()) == int(n_rows.sum())
    if has_all_rows:  # then the rows of the tables are in the order of the parts
        before = n_rows[: positions.start]
        own = n_rows[positions.start : positions.stop]
        first_row = int(before.sum())
        stop_row = first_row + int(own.sum())
        is_needed = (begins < stop_row) & (ends > first_row)
        numbers = np.flatnonzero(is_needed)
        chosen = [files[number] for number in numbers.tolist()]
    total = sum(entry["n_rows"] for entry in chosen)
    if total > MOST_ROWS:
        raise InvalidRuntime(
            f"{version.name}: the samples table of this transaction has {total:,} rows; up to {MOST_ROWS:,} are "
            "searched for a group. Filter the version's page by the column instead",
            what="rows",
            where=version.name,
            given=total,
            accepted=MOST_ROWS,
        )
    return chosen
