"""Read columns of the samples table with annotations applied.

An annotation (a samples file with an `author`) has values for (part, row). A null leaves the cell unchanged;
`annotated_removed` names columns whose value the row removes. A cell's last value in manifest order applies.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...storage import Store
from .columns import is_annotation
from .parquet import TableFile, get_tables

if TYPE_CHECKING:
    import polars

BY = "annotated_by"
AT_US = "annotated_at_us"
REMOVED = "annotated_removed"
EDIT_COLUMNS = frozenset((BY, AT_US, REMOVED))
"""Columns of an annotation's file: author and time per row, and the columns whose value it removes."""

PLACE = ("part", "row")
TableEntry = Mapping[str, Any]
"""Entry of a manifest's list `samples`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Annotation:
    name: str
    """Name of the column group."""
    author: str
    """Author of rows without `annotated_by`."""
    at_us: int
    """Time of rows without their own, UTC microseconds."""
    columns: tuple[str, ...]
    """Names of the annotated columns."""
    n_samples: int
    """Number of annotated samples."""


def annotations(entries: Sequence[TableEntry]) -> list[Annotation]:
    """Return the annotations among these entries, in manifest order."""
    # An annotation of many runs has a file for each of them.
    files_of_annotation: dict[tuple[str, str, int], list[TableEntry]] = defaultdict(list)
    for entry in entries:
        if is_annotation(entry):
            identity = (
                entry["group"],
                entry["author"],
                entry["at_us"],
            )
            files_of_annotation[identity].append(entry)

    out = []
    for (group, author, at_us), files in files_of_annotation.items():
        columns: set[str] = set()
        n_samples = 0
        for entry in files:
            columns.update(entry["columns"])
            n_samples += entry["n_rows"]
        sorted_columns = sorted(columns)
        annotation = Annotation(
            name=group,
            author=author,
            at_us=at_us,
            columns=tuple(sorted_columns),
            n_samples=n_samples,
        )
        out.append(annotation)
    return out


def select_files(
    entries: Sequence[TableEntry],
    names: Sequence[str] | None,
    *,
    annotations: bool,
) -> list[TableEntry]:
    """Return the annotations, or all other files, with one of these columns (None: any)."""
    files = []
    for entry in entries:
        has_column = names is None or not set(names).isdisjoint(entry["columns"])
        if has_column and is_annotation(entry) is annotations:
            files.append(entry)
    return files


def with_edits(
    store: Store,
    entries: Sequence[TableEntry],
    frame: "polars.DataFrame",
    names: Sequence[str] | None,
) -> "polars.DataFrame":
    """Return the frame, which has part and row, with annotations applied to columns `names` (None: all).

    O(rows + cells).
    """
    files = select_files(entries, names, annotations=True)
    for numbers, columns in _columns_by_files(files, names).items():
        files_with_columns = [files[number] for number in numbers]
        edits = last_values(store, files_with_columns, columns)  # one row per annotated sample
        frame = _apply_edits(frame, edits, columns)
    return frame


def _columns_by_files(
    files: Sequence[TableEntry],
    names: Sequence[str] | None,
) -> dict[tuple[int, ...], list[str]]:
    """Return numbers of files -> the columns that exactly these files have: such columns are read together."""
    file_numbers: dict[str, list[int]] = defaultdict(list)  # column -> its files
    for number, entry in enumerate(files):
        for name in entry["columns"]:
            if names is None or name in names:
                file_numbers[name].append(number)

    columns: dict[tuple[int, ...], list[str]] = defaultdict(list)
    for name, numbers in file_numbers.items():
        own_files = tuple(numbers)
        columns[own_files].append(name)
    return columns


def _apply_edits(
    frame: "polars.DataFrame",
    edits: "polars.DataFrame",
    columns: Sequence[str],
) -> "polars.DataFrame":
    """Return the frame with these columns replaced where an edit sets the cell. edits: from `last_values`."""
    import polars as pl

    new_names = {name: _value_name(name) for name in columns}
    edits = edits.rename(new_names)
    # The frame's order is the version's: polars promises it only if asked.
    frame = frame.join(edits, on=PLACE, how="left", maintain_order="left")
    for name in columns:
        new = _value_name(name)
        is_set = _flag_name(name)
        # A column that only annotations have is null elsewhere. A sample without an edit has null for `is_set`.
        earlier = None
        if name in frame.columns:
            earlier = pl.col(name)
        value = pl.when(is_set).then(new).otherwise(earlier)
        frame = frame.with_columns(value.alias(name))
        frame = frame.drop(new, is_set)
    return frame


def cells(
    store: Store,
    entries: Sequence[TableEntry],
    name: str,
) -> "polars.DataFrame":
    """Return a table of part, row and one column, with each cell's last value in any file."""
    files = [entry for entry in entries if name in entry["columns"]]
    if not files:
        return _empty_frame(name)
    frame = last_values(store, files, [name])
    return frame.drop(_flag_name(name))


def read_edits(
    store: Store,
    entries: Sequence[TableEntry],
    name: str,
) -> "polars.DataFrame":
    """Return every edit of a column, oldest first: part, row, the column, removed and the annotation's facts.

    The facts are annotation, annotated_by and annotated_at (UTC).
    """
    import polars as pl

    def fact_name(fact: str) -> str:
        if fact == name:  # the edited column itself may be named "removed"
            return f"edit_{fact}"
        return fact

    files = select_files(entries, [name], annotations=True)
    frames = [_empty_frame(name)]  # the result has its columns even if there is no edit
    for entry, frame in zip(files, _frames(store, files, [name]), strict=True):
        # A row's own author and time replace its file's.
        author = pl.lit(entry["author"])
        if BY in frame.columns:
            author = pl.coalesce(pl.col(BY), author)
        at_us = pl.lit(entry["at_us"])
        if AT_US in frame.columns:
            at_us = pl.coalesce(pl.col(AT_US), at_us)
        is_edit = _sets_cell(frame, name)
        is_removed = pl.col(name).is_null()
        annotation = pl.lit(entry["group"])
        at = at_us.cast(pl.Datetime("us", "UTC"))
        edits = frame.filter(is_edit)
        edits = edits.select(
            *PLACE,
            name,
            is_removed.alias(fact_name("removed")),
            annotation.alias(fact_name("annotation")),
            author.alias(BY),
            at.alias(fact_name("annotated_at")),
        )
        frames.append(edits)
    return pl.concat(frames, how="diagonal_relaxed")


def last_values(
    store: Store,
    files: Sequence[TableEntry],
    names: Sequence[str],
) -> "polars.DataFrame":
    """Return one row per sample: part, row, and each column with its last value.

    A column named by `_flag_name` has whether any file sets the cell: a removed value is null, and set. files: in
    manifest order.
    """
    import polars as pl

    layers = []
    for frame in _frames(store, files, names):
        columns = []
        for name in names:
            if name in frame.columns:
                is_set = _sets_cell(frame, name)
                columns.append(pl.col(name))
                columns.append(is_set.alias(_flag_name(name)))
        layer = frame.select(*PLACE, *columns)
        layers.append(layer)
    if len(layers) == 1:  # no sample has two rows
        return layers[0]

    # `group_by` keeps the order of a sample's rows, which is the manifest's: the last one applies.
    cells_of_samples = []
    for name in names:
        is_set = pl.col(_flag_name(name))
        last_value = pl.col(name).filter(is_set).last()
        cells_of_samples.append(last_value)
        cells_of_samples.append(is_set.any())
    rows = pl.concat(layers, how="diagonal_relaxed")
    return rows.group_by(PLACE).agg(*cells_of_samples)


def _frames(
    store: Store,
    files: Sequence[TableEntry],
    names: Sequence[str],
) -> "list[polars.DataFrame]":
    """Return one frame per file: part, row, these columns, and the edit columns of an annotation."""
    import polars as pl

    edit_columns = sorted(EDIT_COLUMNS)
    columns = [*PLACE, *names, *edit_columns]
    table_files = []
    for entry in files:
        table_file = TableFile.from_json(dict(entry))
        table_files.append(table_file)
    tables = get_tables(store, table_files, columns)
    frames = []
    for entry, table in zip(files, tables, strict=True):
        frame = pl.DataFrame(table)
        # In a file that is not an annotation, columns with these names are ordinary metadata.
        if not is_annotation(entry):
            others = EDIT_COLUMNS.difference(names)
            frame = frame.drop(others, strict=False)
        frames.append(frame)
    return frames


def _empty_frame(name: str) -> "polars.DataFrame":
    import polars as pl

    schema = {
        "part": pl.String,
        "row": pl.Int64,
        name: pl.Null,
    }
    return pl.DataFrame(schema=schema)


def _sets_cell(frame: "polars.DataFrame", name: str) -> "polars.Expr":
    """Return an expression: whether each row sets the cell, or removes its value."""
    import polars as pl

    has_value = pl.col(name).is_not_null()
    if REMOVED not in frame.columns:
        return has_value
    is_removed = pl.col(REMOVED).list.contains(name).fill_null(False)
    return has_value | is_removed


def _flag_name(name: str) -> str:
    """Return the name of the helper column that has whether a file sets the cell."""
    return f"{name} said"  # column names contain no spaces


def _value_name(name: str) -> str:
    """Return the name of a column's new values while the earlier ones are in the same frame."""
    return f"{name} new"
