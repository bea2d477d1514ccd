"""Convert samples tables to the arrays that are compared."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .hamming import Int64s
from .near_pairs import Embeddings, image_hashes_of
from .settle import COLUMNS, Candidates, Strings, classes, measured

if TYPE_CHECKING:
    import polars as pl

_TEXTS = ("key", "kind", "split", "phash", "phash_mirrored")


def schema() -> dict[str, Any]:
    """Return column -> polars type, for the compared columns of a samples table."""
    import polars as pl

    numbers = dict.fromkeys(COLUMNS, pl.Float64)
    return {
        "ordinal": pl.Int64,
        **dict.fromkeys(_TEXTS, pl.String),
        "phash_flat": pl.Boolean,
        "phash_flat_mask": pl.Int64,
        **numbers,
    }


def typed(table: "pl.DataFrame | Mapping[str, Any]") -> "pl.DataFrame":
    """Return the table with every column of `schema`, cast to its type; missing columns are null."""
    import polars as pl

    frame = table if isinstance(table, pl.DataFrame) else pl.DataFrame(dict(table), strict=False)
    columns = [
        (
            frame[name].cast(kind) if name in frame.columns else pl.Series([None] * len(frame), dtype=kind)
        ).alias(name)
        for name, kind in schema().items()
    ]
    return pl.DataFrame(columns)


def table_of(rows: Sequence[Mapping[str, Any]]) -> "pl.DataFrame":
    """Return rows of a samples table as a frame of the compared columns; missing values are null."""
    return typed({name: [row.get(name) for row in rows] for name in schema()} if rows else {})


def candidates_of(
    table: "pl.DataFrame", objects: Sequence[str], embeddings: Embeddings | None = None
) -> Candidates:
    """Return a samples table's rows as candidates, in order. objects: raw object of each row."""
    splits, split = _split(table)
    return Candidates(
        keys=table["key"].to_numpy().astype(object),
        splits=splits[split],
        objects=np.array(objects, object),
        pictures=image_hashes_of(table),
        measured=measured(table),
        embeddings=embeddings,
    )


def _split(table: "pl.DataFrame") -> tuple[Strings, Int64s]:
    """Return (sorted split names, index of each row's split); a row without a split has ""."""
    column = table["split"].fill_null("")
    names = column.unique().sort()
    numbers: Int64s = names.search_sorted(column).to_numpy().astype(np.int64)
    return names.to_numpy().astype(object), numbers


def looks(table: "pl.DataFrame", *, ungrouped: bool) -> tuple[Candidates, "pl.Series"]:
    """Return the best sample of each group, and each group's rows.

    A group has equal hashes (one look), form and split. ungrouped: each sample is its own group.
    """
    import polars as pl

    every = candidates_of(table, [""] * len(table))
    levels = classes(every.measured)
    order = np.lexsort((np.arange(len(every)), *(-level for level in levels.T[::-1])))
    ranked = pl.DataFrame(
        {
            "row": order,
            "form": every.pictures.form[order],
            "split": _split(table)[1][order],
            **{f"h{place}": hashes[order] for place, hashes in enumerate(every.pictures.hashes.T)},
        }
    ).filter(pl.col("form") >= 0)
    by = ["row"] if ungrouped else ["form", "split", "h0", "h1", "h2"]
    groups = ranked.group_by(by, maintain_order=True).agg(pl.col("row").alias("members"))
    first: Int64s = groups["members"].list.first().to_numpy().astype(np.int64)
    return every.take(first), groups["members"]
