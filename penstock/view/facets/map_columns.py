"""Columns of a version that its map adds: the cluster of a sample, how far it lies from its middle, and odd labels.

They are facets and orders of a page, and no columns of the samples table. A map may be fitted anew, and a plan's SQL
must find the same samples for ever.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

import loader
from loader.dataset.search.index_record import similarity_field
from loader.dataset.versions.samples_table import import_polars
from loader.errors import FieldNotFound

from ...search.map.clusters import label_shares
from ...search.map.version_map import VersionMap
from .column_codes import CodedColumn, Int64s

if TYPE_CHECKING:
    import polars

LABEL = "label"
CLUSTER = "cluster"
"""Number of the cluster, from 0, the largest first."""
COSINE = "cluster_cosine"
"""Cosine between a sample and the mean of its cluster; outliers have the lowest."""
SHARE = "label_share"
"""Share of a sample's cluster that has its label; odd labels have the lowest."""
MAP_TYPES = {
    CLUSTER: "int64",
    COSINE: "double",
    SHARE: "double",
}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LabelCodes:
    """Labels of the samples that are counted."""

    codes: Int64s
    """int64 [rows]: index into `names`; -1 without a label."""
    names: Sequence[str]


def map_columns(version: "loader.Version") -> tuple[str, ...]:
    """Return the columns that a version's map has, or would have; a stored column of the same name hides one."""
    try:
        similarity_field(version, None)
    except FieldNotFound:
        return ()
    stored = version.manifest["columns"]
    names = [name for name in MAP_TYPES if name not in stored]
    # Without labels no sample has a share.
    if LABEL not in stored and SHARE in names:
        names.remove(SHARE)
    return tuple(names)


def map_column(
    name: str,
    places: VersionMap,
    ordinals: Int64s | None,
    labels: LabelCodes | None,
) -> "polars.Series":
    """Return a column of the samples that are counted, null without a place.

    ordinals: int64 [rows] of these samples; None for all. labels: theirs, for `label_share`.
    """
    pl = import_polars()
    rows: Int64s | slice = slice(None)
    if ordinals is not None:
        rows = ordinals
    has_place = places.has_place[rows]
    cluster = places.cluster[rows]
    is_null = ~has_place
    values: np.ndarray[Any, Any]
    if name == CLUSTER:
        values = cluster.astype(np.int64)
    elif name == COSINE:
        values = places.cluster_cosine[rows].astype(np.float64)
    else:
        codes = np.full(len(cluster), -1)
        if labels is not None:
            codes = labels.codes
        values = label_shares(
            cluster,
            has_place,
            codes,
        )
        is_null |= codes < 0
    series: polars.Series = pl.from_arrow(pa.array(values, mask=is_null))
    return series.alias(name)


def coded_labels(coded: CodedColumn) -> LabelCodes | None:
    """Return labels from the codes of their column; None if not every label has a code of its own."""
    n_values = len(coded.values)
    if int(coded.all[n_values:].sum()):
        return None
    codes = coded.codes.astype(np.int64)
    # null_code is -1 if no label is missing, and then nothing is changed.
    codes[codes == coded.null_code] = -1
    return LabelCodes(codes=codes, names=[str(one.value) for one in coded.values])


def text_labels(series: "polars.Series") -> LabelCodes | None:
    """Return labels from the values of their column; None if they are not texts."""
    pl = import_polars()
    if series.dtype != pl.String:
        return None
    names = series.drop_nulls().unique().sort()
    if not len(names):
        return None
    codes = series.replace_strict(
        names,
        pl.Series(np.arange(len(names))),
        default=-1,
        return_dtype=pl.Int64,
    )
    return LabelCodes(codes=codes.to_numpy(), names=names.to_list())
