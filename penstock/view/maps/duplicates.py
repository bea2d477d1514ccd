"""Groups of near-duplicates of a version: by the column `dup_of`, or else by the cosine of vectors.

All pairs of up to 20,000 samples are compared. A larger version compares the samples in the fullest cells of its map.
Copies lie in one cell or in the next. All pairs of 1e6 samples would take an hour.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

import loader
from loader.dataset.search.vectors import VectorReader, field_ordinals
from loader.dataset.versions.samples_table import import_polars, live_ordinals
from loader.errors import NotIndexed

from ...search.map.centres import Floats
from ...search.map.clusters import copy_groups, near_duplicate_groups
from ...search.map.lasso import GRID, MAP_UNITS
from ...search.map.version_map import VersionMap
from ..facets.column_codes import Bools, Int64s
from ..facets.version_columns import VersionColumns

COPY_COLUMN = "dup_of"
MOST_COMPARED = 20_000
"""Samples of which all pairs are compared: 2 s, and 26 MB of 320 numbers."""
MOST_COPIES = 100_000
"""Copies of the column that are grouped."""
_CELL = MAP_UNITS // GRID


@dataclass(frozen=True, slots=True, kw_only=True)
class Duplicates:
    """Groups of two samples or more."""

    column: str
    """Column that names the originals; "" if vectors were compared."""
    n_compared: int
    """Samples that could be in a group."""
    n_left_out: int = 0
    """Copies beyond the first ones, which are in no group."""
    groups: tuple[Int64s, ...]
    """int64 [samples] each: live ordinals, ascending. The largest group comes first."""


def duplicates(
    version: "loader.Version",
    field: str,
    least_cosine: float,
    columns: VersionColumns,
) -> Duplicates:
    """Return a version's groups of near-duplicates. field: vectors to compare; "" for none.

    Raises: NotIndexed if the version is too large to compare and has no map; Corrupt.
    """
    ordinals, originals, n_left_out = _copies(version, columns)
    if len(ordinals):
        by_column = _by_column(version, ordinals, originals)
        return replace(
            by_column,
            n_left_out=n_left_out,
        )
    if not field:
        return Duplicates(column="", n_compared=0, groups=())
    ordinals = field_ordinals(version, field)
    if len(ordinals) > MOST_COMPARED:
        try:
            places = columns.places(version)
        except NotIndexed as error:
            raise NotIndexed(
                f"{version.name} has {len(ordinals):,} samples, of which up to {MOST_COMPARED:,} are compared without "
                f"a map: {error}"
            ) from error
        ordinals = _in_full_cells(places, MOST_COMPARED)
    vectors, is_valid = _vectors(version, field, ordinals)
    compared = ordinals[is_valid]
    usable = vectors[is_valid]
    group = near_duplicate_groups(usable, least_cosine)
    return Duplicates(
        column="",
        n_compared=len(compared),
        groups=_groups(compared, group),
    )


def _copies(
    version: "loader.Version",
    columns: VersionColumns,
) -> tuple[Int64s, list[str], int]:
    """Return (live ordinals of up to `MOST_COPIES` copies, keys of their originals, the count of other copies)."""
    none = np.zeros(0, np.int64)
    if COPY_COLUMN not in version.manifest["columns"]:
        return none, [], 0
    series = columns.values(version, [COPY_COLUMN])[COPY_COLUMN]
    if series.dtype != import_polars().String:
        return none, [], 0
    n_bytes = series.str.len_bytes()
    # "" and null both mean that a sample is not a copy.
    is_copy = (n_bytes > 0).fill_null(False)
    copies = is_copy.arg_true()
    first = copies.head(MOST_COPIES)
    rows = first.to_numpy().astype(np.int64)
    counted = columns.ordinals(version)
    ordinals = rows
    if counted is not None:
        ordinals = counted[rows]
    originals = series.gather(rows)
    n_left_out = len(copies) - len(first)
    return ordinals, originals.to_list(), n_left_out


def _by_column(
    version: "loader.Version",
    ordinals: Int64s,
    originals: Sequence[str],
) -> Duplicates:
    distinct = sorted(set(originals))
    live = live_ordinals(version, distinct)
    is_live = live >= 0
    # int64 [copies and originals], ascending; an original that is no longer live has no position.
    every = np.union1d(ordinals, live[is_live])
    # [copies]: position of each copy in `every`.
    positions = np.searchsorted(every, ordinals)
    original_of = dict(zip(positions.tolist(), originals, strict=True))
    copy_of = [original_of.get(position) for position in range(len(every))]
    group = copy_groups(version.keys(every), copy_of)
    return Duplicates(
        column=COPY_COLUMN,
        n_compared=len(version),
        groups=_groups(every, group),
    )


def _in_full_cells(places: VersionMap, most: int) -> Int64s:
    """Return the ordinals of up to `most` samples in the cells of the map with most samples, ascending."""
    placed = np.flatnonzero(places.has_place)
    x = places.x[placed].astype(np.int64)
    y = places.y[placed]
    column = x // _CELL
    row = y // _CELL
    # int64 [placed]: number of each sample's cell.
    cell = column * GRID + row
    counts = np.bincount(cell, minlength=GRID * GRID)
    # Whole cells, the fullest first: half of a cell would lose pairs.
    by_size = np.argsort(-counts, kind="stable")
    rank = np.empty(GRID * GRID, np.int64)
    # The inverse permutation: cell -> its place in the order of sizes.
    rank[by_size] = np.arange(GRID * GRID)
    cell_rank = rank[cell]
    order = np.argsort(cell_rank, kind="stable")
    chosen = placed[order[:most]]
    chosen.sort()
    return chosen


def _vectors(
    version: "loader.Version",
    field: str,
    ordinals: Int64s,
) -> tuple[Floats, Bools]:
    """Return (unit vectors, float32 [n, numbers], and bool [n]: which are usable)."""
    reader = VectorReader(version, field)
    rows = []
    is_valid = []
    try:
        for _, vectors in reader.blocks(ordinals):
            rows.append(vectors.rows)
            is_valid.append(vectors.is_valid)
    finally:
        reader.close()
    if not rows:
        empty = np.zeros((0, 1), np.float32)
        return empty, np.zeros(0, bool)
    widths = [block.shape[1] for block in rows]
    width = max(widths)
    for number, block in enumerate(rows):
        if block.shape[1] != width:
            # None of a block's vectors is readable: its width is not known.
            n = len(block)
            rows[number] = np.zeros((n, width), np.float32)
            is_valid[number] = np.zeros(n, bool)
    return np.concatenate(rows), np.concatenate(is_valid)


def _groups(ordinals: Int64s, group: Int64s) -> tuple[Int64s, ...]:
    """Return the groups of two and more. group: int64 [n], equal for the samples of one group."""
    # Stable: members of a group stay in ascending order.
    order = np.argsort(group, kind="stable")
    _, starts = np.unique(
        group[order],
        return_index=True,
    )
    # starts[0] is 0, at which nothing is split.
    members = np.split(ordinals[order], starts[1:])
    several = [one for one in members if len(one) > 1]
    several.sort(key=_by_size)
    return tuple(several)


def _by_size(ordinals: Int64s) -> tuple[int, int]:
    return -len(ordinals), int(ordinals[0])
