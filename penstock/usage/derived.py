"""Bytes of indexes and maps, and the paths from which each object was derived."""

from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass

from loader.dataset.search.segment_reads import read_segment_parts
from loader.errors import Corrupt, FormatTooNew, ObjectNotFound
from loader.storage import Store
from loader.storage.store import ObjectInfo
from loader.storage.threads import DaemonPool

from ..upkeep.gc.derived_segments import FOLDERS, is_record, segment_kind
from ..upkeep.gc.needed import READ_AHEAD


@dataclass(frozen=True, slots=True, kw_only=True)
class DerivedObject:
    """A segment, or a record that segments share."""

    nbytes: int
    sources: Collection[str]
    """Paths of the indexes of the shards from which it was derived: a collector deletes it with the last one."""


def list_derived(store: Store) -> list[DerivedObject]:
    """Return the objects under `search/` and `maps/`. Costs two listings, and a range or two per segment.

    A segment that cannot be read has no sources.
    """
    infos: list[ObjectInfo] = []
    for prefix in FOLDERS:
        infos += store.list(prefix)
    segments = [info for info in infos if segment_kind(info.key) is not None]

    def read(info: ObjectInfo) -> frozenset[str]:
        return _sources(store, info)

    with DaemonPool(READ_AHEAD, "penstock-usage") as pool:
        sources = list(pool.map(read, segments))
    objects = []
    by_folder: dict[str, set[str]] = defaultdict(set)
    for info, own in zip(segments, sources, strict=True):
        by_folder[_folder(info)] |= own
        derived = DerivedObject(nbytes=info.nbytes, sources=own)
        objects.append(derived)
    # A collector deletes a record after the last segment of its folder, so it has the sources of all of them.
    for info in infos:
        if is_record(info.key):
            shared = by_folder[_folder(info)]
            derived = DerivedObject(nbytes=info.nbytes, sources=shared)
            objects.append(derived)
    return objects


def _folder(info: ObjectInfo) -> str:
    folder, _, _ = info.key.rpartition("/")
    return folder


def _sources(store: Store, info: ObjectInfo) -> frozenset[str]:
    """Return the paths from which a segment was derived; none if it cannot be read."""
    kind = segment_kind(info.key)
    if kind is None:
        return frozenset()
    try:
        parts = read_segment_parts(store, info, kind)
    except (Corrupt, FormatTooNew, ObjectNotFound):
        return frozenset()
    return frozenset(part.source for part in parts)
