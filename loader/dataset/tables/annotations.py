"""Read columns of the samples table with annotations applied.

An annotation (a samples file with an `author`) has values for (part, row). A null leaves the cell unchanged;
`annotated_removed` names columns whose value the row removes. A cell's last value in manifest order applies.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...storage import Store
from .columns import is_annotation
from .parquet import TableFile, get_tables

if TYPE_CHECKING:
    import polars

BY, AT_US, REMOVED = "annotated_by", "annotated_at_us", "annotated_removed"
EDIT_COLUMNS = frozenset((BY, AT_US, REMOVED))
"""Columns of an annotation's file: author and time per row, and the columns whose value it removes."""

PLACE = ("part", "row")
Entry = Mapping[str, Any]


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


def annotations(entries: Sequence[Entry]) -> list[Annotation]:
    together: dict[tuple[str, str, int], list[Entry]] = {}
    for entry in entries:
        if is_annotation(entry):
            together.setdefault((entry["group"], entry["author"], entry["at_us"]), []).append(entry)
    return [
        Annotation(
            name=files[0]["group"],
            author=files[0]["author"],
            at_us=files[0]["at_us"],
            columns=tuple(sorted({name for entry in files for name in entry["columns"]})),
            n_samples=sum(entry["n_rows"] for entry in files),
        )
        for files in together.values()
    ]


def files_of(entries: Sequence[Entry], names: Sequence[str] | None, *, annotations: bool) -> list[Entry]:
    """Return the annotations, or all other files, with one of these columns (None: any)."""
    return [
        entry
        for entry in entries
        if is_annotation(entry) is annotations
        and (names is None or not set(names).isdisjoint(entry["columns"]))
    ]


def with_edits(
    store: Store, entries: Sequence[Entry], frame: "polars.DataFrame", names: Sequence[str] | None
) -> "polars.DataFrame":
    """Return the frame, which has part and row, with annotations applied to columns `names` (None: all).

    O(rows + cells).
    """
    import polars as pl

    together: dict[tuple[int, ...], list[str]] = {}
    files = files_of(entries, names, annotations=True)
    for name in dict.fromkeys(name for entry in files for name in entry["columns"]):
        if names is None or name in names:
            which = tuple(i for i, entry in enumerate(files) if name in entry["columns"])
            together.setdefault(which, []).append(name)
    for which, columns in together.items():
        edits = last_said(store, [files[i] for i in which], columns).rename({c: _new(c) for c in columns})
        frame = frame.join(edits, on=PLACE, how="left", maintain_order="left")
        for name in columns:
            there = pl.col(name) if name in frame.columns else None
            frame = frame.with_columns(pl.when(_is_set(name)).then(_new(name)).otherwise(there).alias(name))
        frame = frame.drop([mark for name in columns for mark in (_new(name), _is_set(name))])
    return frame


def cells(store: Store, entries: Sequence[Entry], name: str) -> "polars.DataFrame":
    """Return a table of part, row and one column, with each cell's last value in any file."""
    files = [entry for entry in entries if name in entry["columns"]]
    if not files:
        return _nothing(name)
    return last_said(store, files, [name]).drop(_is_set(name))


def edits_of(store: Store, entries: Sequence[Entry], name: str) -> "polars.DataFrame":
    """Return every edit of a column, oldest first: part, row, the column, removed and the annotation's facts.

    The facts are annotation, annotated_by and annotated_at (UTC).
    """
    import polars as pl

    def fact(what: str) -> str:
        return f"edit_{what}" if what == name else what

    files = files_of(entries, [name], annotations=True)
    frames = []
    for entry, frame in zip(files, _frames(store, files, [name]), strict=True):
        previous = {
            column: pl.col(column) if column in frame.columns else pl.lit(None) for column in (BY, AT_US)
        }
        frames.append(
            frame.filter(_says(frame, name)).select(
                *PLACE,
                name,
                pl.col(name).is_null().alias(fact("removed")),
                pl.lit(entry["group"]).alias(fact("annotation")),
                pl.coalesce(previous[BY], pl.lit(entry["author"])).alias(BY),
                pl.coalesce(previous[AT_US], pl.lit(entry["at_us"]))
                .cast(pl.Datetime("us", "UTC"))
                .alias(fact("annotated_at")),
            )
        )
    return pl.concat([_nothing(name), *frames], how="diagonal_relaxed")


def last_said(store: Store, files: Sequence[Entry], names: Sequence[str]) -> "polars.DataFrame":
    """Return one row per sample: part, row, each column, and in `<column> said` whether a file has the cell."""
    import polars as pl

    layers = [
        frame.select(
            *PLACE,
            *(e for n in names if n in frame.columns for e in (pl.col(n), _says(frame, n).alias(_is_set(n)))),
        )
        for frame in _frames(store, files, names)
    ]
    if len(layers) == 1:
        return layers[0]
    # Rows of a group keep manifest order.
    return (
        pl.concat(layers, how="diagonal_relaxed")
        .group_by(PLACE)
        .agg(
            *(
                e
                for n in names
                for e in (pl.col(n).filter(pl.col(_is_set(n))).last(), pl.col(_is_set(n)).any())
            )
        )
    )


def _frames(store: Store, files: Sequence[Entry], names: Sequence[str]) -> "list[polars.DataFrame]":
    import polars as pl

    columns = [*PLACE, *names, *sorted(EDIT_COLUMNS)]
    tables = get_tables(store, [TableFile.from_json(dict(entry)) for entry in files], columns)
    frames = [pl.DataFrame(table) for table in tables]
    # Original metadata may have columns with these names, which do not refer to other columns.
    return [
        frame if is_annotation(entry) else frame.drop(EDIT_COLUMNS - {*names}, strict=False)
        for entry, frame in zip(files, frames, strict=True)
    ]


def _nothing(name: str) -> "polars.DataFrame":
    import polars as pl

    return pl.DataFrame(schema={"part": pl.String, "row": pl.Int64, name: pl.Null})


def _says(frame: "polars.DataFrame", name: str) -> "polars.Expr":
    import polars as pl

    value = pl.col(name).is_not_null()
    return value | pl.col(REMOVED).list.contains(name).fill_null(False) if REMOVED in frame.columns else value


def _is_set(name: str) -> str:
    return f"{name} said"  # column names contain no spaces


def _new(name: str) -> str:
    return f"{name} new"
