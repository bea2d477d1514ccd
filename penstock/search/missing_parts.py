"""Store segments of the parts of a version that have none, and merge small segments.

A damaged segment is replaced if its parts make a segment of the same name, as they mostly do. No other segment is
replaced, and none is deleted: a collector deletes a segment if a larger one covers it.
"""

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress

import numpy as np
import pyarrow as pa

from loader import Version
from loader.dataset.search.segment_reads import (
    SegmentCoverage,
    check_coverage,
    coverage,
    merge_segments,
    read_segment,
)
from loader.dataset.search.segments import (
    MAX_SEGMENT_PARTS,
    MAX_SEGMENT_ROWS,
    MERGE_AT,
    SegmentKind,
    SegmentPart,
    VersionPart,
    put_segment,
    transaction,
    version_parts,
)
from loader.dataset.shards.bitmap import Bools
from loader.errors import AlreadyExists, Corrupt, FormatTooNew, ObjectNotFound

from ..progress import progress

PartValues = Callable[[VersionPart, Bools], pa.Table]
"""(part, bool [rows]: rows that may have a value) -> the value columns of all its rows."""


def put_missing(
    version: Version,
    field: str,
    folder: str,
    kind: SegmentKind,
    values: PartValues,
    text: str,
) -> tuple[int, SegmentCoverage]:
    """Store segments of the missing parts; return (their rows, segments to read now). text: of the progress bar.

    Reads all segments of the version: a part whose segment is damaged is missing too.
    """
    parts = version_parts(version, field)
    covered = check_coverage(
        version.store,
        folder,
        kind,
        parts,
    )
    n_new = sum(part.own.n_rows for part in covered.missing)
    todo = progress(
        covered.missing,
        text,
        _n_rows,
        n_new,
    )
    damaged = dict(covered.damaged)
    # A segment has parts of one transaction, whose name it has.
    batch: list[VersionPart] = []
    for part in todo:
        if batch and not _fits(batch, part):
            damaged.pop(_put(version, folder, kind, batch, values, damaged), None)
            batch = []
        batch.append(part)
    if batch:
        damaged.pop(_put(version, folder, kind, batch, values, damaged), None)
    if covered.missing:
        covered = coverage(
            version.store,
            folder,
            kind,
            parts,
            damaged,
        )
    covered = _merge_small(
        version,
        folder,
        kind,
        parts,
        covered,
        damaged,
    )
    return n_new, covered


def _n_rows(part: VersionPart) -> int:
    return part.own.n_rows


def _fits(batch: Sequence[VersionPart], part: VersionPart) -> bool:
    """Return whether a part belongs in the segment of a batch of parts."""
    n_rows = part.own.n_rows + sum(each.own.n_rows for each in batch)
    is_same = transaction(part.own.source) == transaction(batch[0].own.source)
    return is_same and n_rows <= MAX_SEGMENT_ROWS and len(batch) < MAX_SEGMENT_PARTS


def _put(
    version: Version,
    folder: str,
    kind: SegmentKind,
    batch: Sequence[VersionPart],
    values: PartValues,
    damaged: Collection[str],
) -> str:
    """Store the segment of some parts, and return its path."""
    tables = []
    for part in batch:
        may_have_value = np.ones(part.own.n_rows, bool)
        if version.manifest["denies"]:
            # Denied samples get no value, even if their bytes are registered and still there.
            may_have_value = version.parts.live_members(part.position)
        tables.append(values(part, may_have_value))
    joined = pa.concat_tables(tables).combine_chunks()
    tables.clear()  # otherwise the values stay twice while their file is made
    return put_segment(
        version.store,
        folder,
        kind,
        [part.own for part in batch],
        joined,
        damaged,
    )


def _merge_small(
    version: Version,
    folder: str,
    kind: SegmentKind,
    parts: Sequence[VersionPart],
    covered: SegmentCoverage,
    damaged: dict[str, str],
) -> SegmentCoverage:
    """Merge the segments below half of `MAX_SEGMENT_ROWS` that have these parts, if there are `MERGE_AT` or more.

    covered: segments that have these parts. damaged: path of a segment that is left out -> what is wrong with it.
    Returns the segments to read now. A collector deletes the merged ones, which a reader may have listed.
    """
    store = version.store
    small = [path for path, stated in covered.segments.items() if _total_rows(stated) < MAX_SEGMENT_ROWS // 2]
    if len(small) >= MERGE_AT:
        segments = []
        # In the order of their names: makers that merge the same segments at once make equal ones.
        for path in sorted(small):
            with suppress(Corrupt, FormatTooNew, ObjectNotFound):  # damaged since it was checked
                segments.append(read_segment(store, path, kind))
        for path, data in merge_segments(segments, folder, kind):
            with suppress(AlreadyExists):
                store.put_if_absent(path, data)
        covered = coverage(
            store,
            folder,
            kind,
            parts,
            damaged,
        )
    return SegmentCoverage(
        segments=covered.segments,
        missing=covered.missing,
        damaged=damaged | covered.damaged,
    )


def _total_rows(parts: Sequence[SegmentPart]) -> int:
    return sum(part.n_rows for part in parts)
