"""Coverage of a version by segments of bands, and the ordinals of their documents."""

import logging
import time
from dataclasses import dataclass

import numpy as np

import loader
from loader.dataset.search.segments import SegmentPart, VersionPart, version_parts
from loader.errors import Corrupt, FormatTooNew

from .band_segments import RECORD, BandSegment, IndexedPart, list_segments, read_segment
from .bands import UInt32s
from .hamming import Int64s

logger = logging.getLogger(__name__)

KEPT_S = 86_400.0
"""Age in seconds up to which a segment without a part of the version stays: a newer version may need it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """Segments that cover a version, and objects that are not needed."""

    segments: tuple[BandSegment, ...]
    """Segments, the largest first."""
    parts: dict[SegmentPart, VersionPart]
    """Parts of the version that have the field."""
    missing: tuple[VersionPart, ...]
    """Parts without a segment."""
    superseded: tuple[str, ...]
    """Folders of segments that no version needs any more, and of damaged ones."""


def coverage(
    version: "loader.Version",
    field: str,
) -> Coverage:
    """Return how stored segments cover a version's parts with a field. Reads the records; changes nothing."""
    store = version.store
    parts = {part.own: part for part in version_parts(version, field)}
    uncovered = dict(parts)
    stored: list[BandSegment] = []
    superseded: list[str] = []
    old: set[str] = set()  # folders whose newest object is older than `KEPT_S`
    for folder, objects in list_segments(store, version.dataset).items():
        newest_us = max(info.modified_us or 0 for info in objects.values())
        if newest_us < (time.time() - KEPT_S) * 1e6:
            old.add(folder)
        if RECORD in objects:
            try:
                stored.append(read_segment(store, folder))
            except FormatTooNew:  # another release's, which runs beside this one
                continue
            except Corrupt as error:
                logger.warning("%s", error)
                superseded.append(folder)
        elif folder in old:  # the rest of a killed run; a young one may be in the making
            superseded.append(folder)
    # The largest first: a part is read from the largest segment that has it.
    stored.sort(key=lambda segment: (-segment.n_bands, segment.folder))
    segments: list[BandSegment] = []
    for segment in stored:
        useful = [part for part in segment.parts if part.own in uncovered and covers(version, parts, part)]
        if useful:
            segments.append(segment)
            for part in useful:
                del uncovered[part.own]
        # A young segment with an unknown part may be another run's, over a newer version.
        elif segment.folder in old or all(part.own in parts for part in segment.parts):
            superseded.append(segment.folder)
    return Coverage(
        segments=tuple(segments),
        parts=parts,
        missing=tuple(uncovered.values()),
        superseded=tuple(superseded),
    )


def covers(
    version: "loader.Version",
    parts: dict[SegmentPart, VersionPart],
    part: IndexedPart,
) -> bool:
    """Return whether a segment has all rows of a part that the version has. One of a newer version may lack some."""
    if not part.excluded:
        return True
    members = version.parts.live_members(parts[part.own].position)
    excluded = np.array(part.excluded, np.int64)
    return not members[excluded].any()


def live_ordinals(
    version: "loader.Version",
    covered: Coverage,
    segment: BandSegment,
    documents: UInt32s,
) -> Int64s:
    """Return int64 [n]: ordinal of each document, -1 if it is not in the version."""
    starts = segment.starts
    number = np.searchsorted(starts, documents, side="right") - 1  # [n]: part of the segment
    positions = _positions(covered, segment)[number]
    rows = documents - starts[number]
    ordinals = np.full(len(documents), -1, np.int64)
    is_known = positions >= 0
    ordinals[is_known] = version.parts.live_ordinals(positions[is_known], rows[is_known])
    return ordinals


def _positions(
    covered: Coverage,
    segment: BandSegment,
) -> Int64s:
    """Return int64 [parts of the segment]: position in the version, -1 for a part that it has not."""
    positions = np.full(len(segment.parts), -1, np.int64)
    for number, part in enumerate(segment.parts):
        known = covered.parts.get(part.own)
        if known is not None:
            positions[number] = known.position
    return positions
