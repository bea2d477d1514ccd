"""Read the map of a version's field: the place of each live sample, from the segments of the version's parts."""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from loader import Version
from loader.dataset.search.index_record import SQ8, IndexRecord, field_index_record, similarity_field
from loader.dataset.search.segment_reads import SegmentCoverage, coverage, read_segment
from loader.dataset.search.segments import SegmentKind, SegmentPart, StoredSegment, version_parts
from loader.dataset.search.vectors import VectorReader, field_ordinals
from loader.dataset.shards.bitmap import Bools
from loader.errors import Corrupt, FieldMismatch, FormatTooNew, NotIndexed, ObjectNotFound

from .lasso import Places, in_lasso, lasso_grid, parse_lasso
from .placement import Halves
from .stored_fit import map_folder, read_fit

MAP_KIND = SegmentKind(
    name="",
    columns=pa.schema(
        [
            ("x", pa.uint16()),
            ("y", pa.uint16()),
            ("cluster", pa.uint16()),
            ("cluster_cosine", pa.float16()),
        ]
    ),
    most_value_bytes=8,
)
_FIRST_READS = 16
"""Samples that are read at once until one has a readable vector."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionMap:
    """Places of a version's samples."""

    field: str
    x: Places
    """uint16 [len(version)]; 0 without a place."""
    y: Places
    """uint16 [len(version)]."""
    cluster: Places
    """uint16 [len(version)]."""
    cluster_cosine: Halves
    """float16 [len(version)]."""
    has_place: Bools
    """bool [len(version)]: True for live samples with a place."""
    damaged: dict[str, str]
    """Path of a segment that is left out -> what is wrong with it."""

    @property
    def nbytes(self) -> int:
        return 9 * len(self.x)

    def lasso_members(self, text: str) -> Bools:
        """Return bool [len(version)]: the samples inside a lasso. Raises: InvalidRuntime."""
        grid = lasso_grid(parse_lasso(text))
        inside = in_lasso(
            grid,
            self.x,
            self.y,
        )
        inside &= self.has_place
        return inside


def read_map(version: Version, field: str | None = None) -> VersionMap:
    """Return the places of a version's samples. Reads all segments of its parts: 15 bytes a sample.

    Raises: FieldNotFound; NotIndexed without a map; Corrupt for a damaged fit.
    """
    name = similarity_field(version, field)
    record = map_index_record(version, name)
    if record is None or read_fit(version.store, record) is None:
        message = (
            f"{version.name} has no map of {name!r}: run penstock index {version.name} --map (35 s per million "
            "samples, and 30 s for the first)"
        )
        raise NotIndexed(message, what=name, where=version.name)
    n = len(version)
    places = VersionMap(
        field=name,
        x=np.zeros(n, np.uint16),
        y=np.zeros(n, np.uint16),
        cluster=np.zeros(n, np.uint16),
        cluster_cosine=np.zeros(n, np.float16),
        has_place=np.zeros(n, bool),
        damaged={},
    )
    parts = version_parts(version, name)
    # A segment that turns out to be damaged may have the only copy of a part, or another one may have it too: choose
    # segments again, without damaged ones, until all chosen ones are readable.
    while True:
        covered = coverage(
            version.store,
            map_folder(record),
            MAP_KIND,
            parts,
            places.damaged,
        )
        places.damaged.update(covered.damaged)
        segments = _read_segments(
            version,
            covered,
            places.damaged,
        )
        if len(segments) == len(covered.segments):
            break
    # Segments may overlap after a merge: the first one with a part counts.
    remaining = {part.own: part.position for part in parts}
    for segment in segments:
        _copy_segment(
            version,
            places,
            segment,
            remaining,
        )
    return places


def lasso_members(version: Version, text: str) -> Bools:
    """Return bool [len(version)]: the samples inside a lasso. Raises: InvalidRuntime; as `read_map`."""
    parse_lasso(text)  # before the map is read
    places = read_map(version)
    return places.lasso_members(text)


def _read_segments(
    version: Version,
    covered: SegmentCoverage,
    damaged: dict[str, str],
) -> list[StoredSegment]:
    """Return the readable segments; add the others to `damaged`."""
    segments = []
    for path in covered.segments:
        try:
            segments.append(
                read_segment(
                    version.store,
                    path,
                    MAP_KIND,
                )
            )
        except (Corrupt, FormatTooNew, ObjectNotFound) as error:
            damaged[path] = str(error)
    return segments


def _copy_segment(
    version: Version,
    places: VersionMap,
    segment: StoredSegment,
    remaining: dict[SegmentPart, int],
) -> None:
    """Copy a segment's places to the live samples of its parts.

    remaining: part that no segment had so far -> its position in the version. Loses the segment's parts.
    """
    starts = segment.starts
    is_valid = segment.values["x"].is_valid().to_numpy()
    columns = {}
    for name in MAP_KIND.columns.names:
        filled = segment.values[name].fill_null(0)  # else numpy would make floats of it
        columns[name] = filled.to_numpy()
    for number, own in enumerate(segment.parts):
        position = remaining.pop(own, None)
        if position is None:  # of another version, or of a segment before
            continue
        row = np.arange(own.n_rows)
        live = version.parts.live_ordinals(np.full(own.n_rows, position), row)  # [rows], -1 if excluded
        is_shown = live >= 0
        is_shown &= is_valid[starts[number] : starts[number + 1]]
        source = row[is_shown] + starts[number]
        target = live[is_shown]
        places.x[target] = columns["x"][source]
        places.y[target] = columns["y"][source]
        places.cluster[target] = columns["cluster"][source]
        places.cluster_cosine[target] = columns["cluster_cosine"][source]
        places.has_place[target] = True


def map_index_record(version: Version, field: str | None) -> IndexRecord | None:
    """Return what identifies the map of a version's field; None without a readable vector. Raises: FieldNotFound."""
    name = similarity_field(version, field)
    reader = VectorReader(version, name)
    try:
        return map_field_record(
            version,
            reader,
            name,
        )
    except FieldMismatch:
        return None
    finally:
        reader.close()


def map_field_record(
    version: Version,
    reader: VectorReader,
    field: str,
) -> IndexRecord:
    """Return what identifies a field's map. Raises: FieldMismatch without a readable vector."""
    # The facts of a field do not state its width.
    ordinals = field_ordinals(version, field)
    for start in range(0, len(ordinals), _FIRST_READS):
        reader.samples(ordinals[start : start + _FIRST_READS])
        if reader.width:
            break
    if not reader.width:
        raise FieldMismatch(
            f"{version.name} has no readable vector in {field!r}: a map needs arrays of floats with one dimension"
        )
    return field_index_record(
        version,
        field,
        SQ8,
        reader.width,
    )
