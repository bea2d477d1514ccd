"""Condemned segments under `search/` and `maps/`: of parts that no version needs, or merged into larger ones."""

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence

import pyarrow as pa

from loader.dataset.search.index_record import parse_index_record
from loader.dataset.search.segment_reads import read_segment, read_segment_parts
from loader.dataset.search.segments import SegmentKind, SegmentPart, segment_name
from loader.errors import Corrupt, FormatTooNew, ObjectNotFound
from loader.storage import Store
from loader.storage.store import ObjectInfo

from ...search.index_build import record_kind
from ...search.map.stored_fit import FOLDER as MAPS
from ...search.map.version_map import MAP_KIND
from .needed import References

FOLDERS = ("maps/", "search/")
"""Prefixes of segments."""
_KINDS = tuple(
    SegmentKind(
        name=name,
        columns=pa.schema([]),
        most_value_bytes=2**20,
    )
    for name in ("codes", "texts", "")
)
"""Kinds of segments, by their file names only: a collector reads no values."""
_RECORDS = ("how.json", "fit.parquet")
"""Names of the records that a folder's segments share."""


def segment_kind(path: str) -> SegmentKind | None:
    """Return the kind of a segment, without its columns, by its path; None for another object."""
    for kind in _KINDS:
        if segment_name(path, kind) is not None:
            return kind
    return None


def read_kind(store: Store, path: str) -> SegmentKind:
    """Return the kind of a segment, with its columns. Reads its folder's record. Raises: as `parse_index_record`."""
    if path.startswith(MAPS):
        return MAP_KIND
    folder, _, _ = path.rpartition("/")
    how_path = f"{folder}/how.json"
    return record_kind(parse_index_record(store.get(how_path).data, how_path))


def is_record(path: str) -> bool:
    """Return whether a path is of a record that segments share."""
    _, _, name = path.rpartition("/")
    return path.count("/") == 2 and name in _RECORDS


def condemn_segments(
    store: Store,
    infos: Sequence[ObjectInfo],
    live: References,
) -> Iterator[tuple[ObjectInfo, str]]:
    """Yield (object, reason) for derived objects that may be deleted, in key order.

    Costs a range or two per segment. Reads a segment whole before smaller ones with its parts are condemned. All of
    them can be made again.
    """
    folders: dict[str, list[ObjectInfo]] = defaultdict(list)
    for info in infos:
        folder, _, _ = info.key.rpartition("/")
        folders[folder].append(info)
    reasons: dict[str, str] = {}
    for members in folders.values():
        reasons |= _reasons(store, members, live)
    for info in infos:
        if info.key in reasons:
            yield info, reasons[info.key]


def _reasons(
    store: Store,
    infos: Sequence[ObjectInfo],
    live: References,
) -> dict[str, str]:
    """Return path -> reason, for the condemned objects of one folder."""
    reasons: dict[str, str] = {}
    segments: dict[str, tuple[SegmentPart, ...]] = {}
    n_unread = 0
    # The largest first: a merged segment has the parts of the ones before it.
    for info in sorted(infos, key=_size_and_key):
        kind = segment_kind(info.key)
        if kind is None:
            continue
        try:
            segments[info.key] = read_segment_parts(store, info, kind)
        except Corrupt:
            reasons[info.key] = "segment that cannot be read"
        except (FormatTooNew, ObjectNotFound):  # a newer release reads it, or another collector deleted it
            n_unread += 1
    needed = _live_sources(segments, live)
    holders: dict[SegmentPart, str] = {}  # part -> the largest readable segment with it
    for path, parts in segments.items():
        needed_parts = [part for part in parts if part.source in needed]
        if not needed_parts:
            reasons[path] = "segment of no version"
            continue
        if holders.keys() >= set(needed_parts):
            larger = {holders[part] for part in needed_parts}
            # Only a whole segment replaces others, and a footer does not show damage to values.
            damaged = _find_damage(store, larger)
            if not damaged:
                reasons[path] = "segment whose parts are in a larger one"
                continue
            reasons |= dict.fromkeys(damaged, "segment that cannot be read")
            _remove(holders, damaged)
        for part in needed_parts:
            holders.setdefault(part, path)
    n_kept = n_unread + len(segments.keys() - reasons.keys())
    if not n_kept:
        for info in infos:
            if is_record(info.key):
                reasons[info.key] = "record without segments"
    return reasons


def _find_damage(store: Store, paths: Collection[str]) -> set[str]:
    """Return the segments that do not agree with their digests. Reads all of them."""
    damaged = set()
    for path in paths:
        try:
            kind = read_kind(store, path)
            read_segment(store, path, kind)
        except (Corrupt, FormatTooNew, ObjectNotFound):
            damaged.add(path)
    return damaged


def _remove(holders: dict[SegmentPart, str], paths: Collection[str]) -> None:
    """Remove the parts that these segments hold."""
    parts = list(holders)
    for part in parts:
        if holders[part] in paths:
            del holders[part]


def _size_and_key(info: ObjectInfo) -> tuple[int, str]:
    return -info.nbytes, info.key


def _live_sources(
    segments: dict[str, tuple[SegmentPart, ...]],
    live: References,
) -> set[str]:
    """Return the sources that a kept version names."""
    sources = sorted({part.source for parts in segments.values() for part in parts})
    if not sources:
        return set()
    keys = pa.array(sources, pa.large_string())
    is_needed = live.within(keys)
    needed: set[str] = set(keys.filter(is_needed).to_pylist())
    return needed
