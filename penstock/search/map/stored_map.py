"""Make and extend the map of a version's field: `maps/<how>/`.

The first `penstock index REF --map` fits; every later one, of any version, places the parts that no segment has on the
same fit. A segment has for each row x, y, cluster and cluster_cosine, or nulls where the row has no usable vector.
"""

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from loader import Root, Version
from loader.dataset.search.index_record import IndexRecord, similarity_field
from loader.dataset.search.segments import (
    VersionPart,
)
from loader.dataset.search.vectors import UnitVectors, VectorReader, field_ordinals
from loader.dataset.shards.bitmap import Bools
from loader.errors import FieldMismatch

from ...progress import progress
from ..index_build import check_writable
from ..missing_parts import put_missing
from .centres import Floats
from .fit import SAMPLED, MapFit, fit_map
from .placement import place
from .stored_fit import map_folder, put_fit, read_fit
from .version_map import MAP_KIND, map_field_record, map_index_record, read_map


@dataclass(frozen=True, slots=True, kw_only=True)
class MapReport:
    """A map that was made or extended."""

    field: str
    folder: str
    """Folder of its objects in the root."""
    n_samples: int
    """Samples of the version that have a place."""
    n_new: int
    """Rows that were placed now."""
    n_anchors: int
    n_clusters: int
    nbytes: int
    """Bytes of all objects of the folder."""
    seconds: float
    damaged: dict[str, str]
    """Path of a segment that is left out -> what is wrong with it."""

    def to_json(self) -> dict[str, Any]:
        return {
            "field": self.field,
            "folder": self.folder,
            "n_samples": self.n_samples,
            "n_new": self.n_new,
            "n_anchors": self.n_anchors,
            "n_clusters": self.n_clusters,
            "nbytes": self.nbytes,
            "seconds": round(self.seconds, 3),
            "damaged": self.damaged,
        }


def make_map(root: Root, ref: str, field: str | None = None) -> MapReport:
    """Fit the map of a field, unless it is stored, and place the parts of a version that have no segment yet.

    Raises: FieldNotFound; FieldMismatch without a usable vector; Corrupt for a damaged fit; Conflict in a mirror.
    """
    started_s = time.monotonic()
    version = root.open(ref)
    check_writable(root)
    name = similarity_field(version, field)
    reader = VectorReader(version, name)
    try:
        record = map_field_record(
            version,
            reader,
            name,
        )
        fit = read_fit(version.store, record)
        if fit is None:
            vectors = _sample_vectors(
                version,
                reader,
                record,
            )
            fit = put_fit(
                version.store,
                fit_map(vectors),
                record,
                version.id,
            )
        n_new = _place_missing(
            version,
            reader,
            record,
            fit,
        )
    finally:
        reader.close()
    # Read back, so that the report has what a page shows.
    placed = read_map(version, name)
    return MapReport(
        field=name,
        folder=map_folder(record),
        n_samples=int(np.count_nonzero(placed.has_place)),
        n_new=n_new,
        n_anchors=len(fit.anchors),
        n_clusters=len(fit.cluster_means),
        nbytes=sum(info.nbytes for info in version.store.list(map_folder(record))),
        seconds=time.monotonic() - started_s,
        damaged=placed.damaged,
    )


def drop_map(root: Root, ref: str, field: str | None = None) -> list[str]:
    """Delete the map of a field, of all versions, and return the deleted paths. Raises: FieldNotFound; Forbidden."""
    version = root.open(ref)
    check_writable(root)
    record = map_index_record(version, field)
    if record is None:
        return []
    paths = [info.key for info in root.store.list(map_folder(record))]
    # The fit last: a new fit must not find segments of the old one.
    paths.sort(key=_is_fit)
    root.store.delete_many(paths)
    return paths


def _is_fit(path: str) -> bool:
    return path.endswith("/fit.parquet")


def _sample_vectors(
    version: Version,
    reader: VectorReader,
    record: IndexRecord,
) -> Floats:
    """Return up to `SAMPLED` unit vectors, evenly spread over the version. Raises: FieldMismatch without any."""
    ordinals = field_ordinals(version, record.field)
    n = min(SAMPLED, len(ordinals))
    spread = np.linspace(0, len(ordinals) - 1, n)
    ordinals = ordinals[spread.round().astype(np.int64)]
    blocks = []
    for _, vectors in progress(reader.blocks(ordinals), "read vectors", _block_size, n):
        blocks.append(vectors.rows[vectors.is_valid])
    sampled = np.concatenate(blocks)
    if not len(sampled):
        raise FieldMismatch(
            f"{version.name} has no usable vector in {record.field!r}: all are zero or not finite",
            what=record.field,
            where=version.name,
            accepted="vectors that are finite and not zero",
        )
    return sampled


def _block_size(block: tuple[Any, UnitVectors]) -> int:
    return len(block[0])


def _place_missing(
    version: Version,
    reader: VectorReader,
    record: IndexRecord,
    fit: MapFit,
) -> int:
    """Store segments of the parts that have none, and return how many rows they have."""

    def values(part: VersionPart, is_placed: Bools) -> pa.Table:
        blocks = reader.part(part.position)
        return _part_table(
            blocks,
            record,
            fit,
            is_placed,
        )

    n_new, _ = put_missing(
        version,
        record.field,
        map_folder(record),
        MAP_KIND,
        values,
        "place samples",
    )
    return n_new


def _part_table(
    blocks: Iterable[UnitVectors],
    record: IndexRecord,
    fit: MapFit,
    is_placed: Bools,
) -> pa.Table:
    """Return the columns of a part's rows, null where `is_placed`, bool [rows], is False or a vector is unusable."""
    tables = []
    start = 0
    for vectors in blocks:
        n = len(vectors.rows)
        rows = vectors.rows
        has_place = vectors.is_valid & is_placed[start : start + n]
        # A block has another width if none of its vectors is readable.
        if rows.shape[1] != record.numbers:
            rows = np.zeros((n, record.numbers), np.float32)
            has_place = np.zeros(n, bool)
        placed = place(fit, rows)
        start += n
        arrays = [pa.array(values, mask=~has_place) for values in placed]  # x, y, cluster, cluster_cosine
        tables.append(pa.table(arrays, schema=MAP_KIND.columns))
    if not tables:
        return MAP_KIND.columns.empty_table()
    return pa.concat_tables(tables)
