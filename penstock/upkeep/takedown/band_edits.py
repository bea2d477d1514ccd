"""Delete bands of denied documents: the hashes under `tables/<dataset>/bands/` by which a pipeline finds copies.

A segment of bands names the indexes of the signatures from which it was derived, as a segment of a search does. One
that names an index which the takedown deletes goes whole: the next batch makes the other documents' bands again.
"""

import re
from collections import defaultdict
from collections.abc import Collection

from loader.errors import ObjectNotFound, PenstockError
from loader.json_text import parse_json_object
from loader.storage import Store

from ...denied.record import TakedownRecord
from .derived import Edits
from .segment_edits import deleted_sources

RECORD = "segment.json"
_BANDS = re.compile(r"tables/[^/]+/bands/[^/]+/[^/]+")
_UNREADABLE = (PenstockError, ValueError, TypeError, LookupError)


def is_of_bands(path: str) -> bool:
    """Return whether a path is of a segment of bands."""
    return _BANDS.fullmatch(path) is not None


def band_edits(
    store: Store,
    dataset: str,
    record: TakedownRecord,
) -> Edits:
    """Return the edits that leave no band of a denied document. Reads the record of each segment."""
    sources = deleted_sources(record)
    paths_by_folder: dict[str, list[str]] = defaultdict(list)
    for info in store.list(f"tables/{dataset}/bands/"):
        folder, _, _ = info.key.rpartition("/")
        paths_by_folder[folder].append(info.key)
    deletes: list[str] = []
    remade: list[str] = []
    for folder, paths in paths_by_folder.items():
        try:
            is_denied = names_source(store, folder, sources)
        except _UNREADABLE:  # damaged, or without a record: the next batch may make it again
            remade += paths
            continue
        if is_denied:
            deletes += paths
    return Edits(deletes=tuple(deletes), remade=tuple(remade))


def names_source(
    store: Store,
    folder: str,
    sources: Collection[str],
) -> bool:
    """Return whether a segment was derived from one of these indexes. Raises: ObjectNotFound, ValueError and others."""
    body = parse_json_object(store.get(f"{folder}/{RECORD}").data)
    # Of a part: id, path of the index it was derived from, rows, excluded rows.
    named = {part[1] for part in body["parts"]}
    return not named.isdisjoint(sources)


def bands_are_denied(
    store: Store,
    path: str,
    record: TakedownRecord,
) -> bool:
    """Return whether an object of a segment may have bands of a denied document, by the segment's record."""
    folder, _, name = path.rpartition("/")
    try:
        is_denied = names_source(store, folder, deleted_sources(record))
    except ObjectNotFound:
        # Bands without a record may be any document's. A record that is gone has none.
        return name != RECORD
    return is_denied
