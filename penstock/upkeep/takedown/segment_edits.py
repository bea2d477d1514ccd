"""Edits of segments under `search/` and `maps/` that have values of denied samples, and their index again.

A takedown writes the parts of denied samples again, and records the paths of the parts' former indexes. A segment names
the indexes from which it was derived. So a segment that names a recorded path may have values of a denied sample.
"""

import logging
from collections.abc import Collection

import pyarrow as pa

from loader import Root
from loader.dataset.search.how import FOLDER, How, parse_how
from loader.dataset.search.segment_reads import read_segment, read_segment_parts
from loader.dataset.search.segments import SegmentKind, SegmentPart, segment_bytes
from loader.errors import Corrupt, FieldMismatch, FieldNotFound, FormatTooNew, ObjectNotFound
from loader.storage import Store

from ...denied.record import TakedownRecord
from ...search.make import kind_of, make_index
from ...search.map.stored_fit import FOLDER as MAPS
from ...search.map.stored_fit import fitted_version
from ...search.map.stored_map import make_map
from ..gc.derived_segments import FOLDERS, is_record, segment_kind
from .derived import Edits

logger = logging.getLogger(__name__)


def denied_sources(record: TakedownRecord) -> frozenset[str]:
    """Return the paths of objects that a takedown deletes: the sources of segments that must not stay."""
    return frozenset(place["path"] for place in record.having("absent"))


def segment_edits(root: Root, record: TakedownRecord) -> Edits:
    """Return the edits that leave no value of a denied sample in a segment. Reads the footer of each, and each fit.

    Segments of embeddings and texts keep their other parts. Unreadable ones go whole, and so does a map: the anchors of
    its fit may be the vectors of denied samples.
    """
    store = root.store
    sources = denied_sources(record)
    hows = _hows(store)
    puts: dict[str, bytes] = {}
    deletes: list[str] = []
    remade: list[str] = []
    for prefix in FOLDERS:
        for info in store.list(prefix):
            kind = segment_kind(info.key)
            try:
                is_denied = segment_is_denied(root, record, info.key)
            except ObjectNotFound:
                continue
            except (Corrupt, FormatTooNew):
                remade.append(info.key)
                continue
            if not is_denied:
                continue
            folder, _, _ = info.key.rpartition("/")
            if prefix == MAPS:
                remade += [each.key for each in store.list(f"{folder}/")]
                continue
            deletes.append(info.key)
            how = hows.get(f"{folder}/")
            if how is not None and kind is not None:
                puts |= _without(store, info.key, how, kind_of(how), sources)
    # The next index may make an unreadable one or a fit again, at the same path.
    return Edits(
        puts=puts,
        deletes=tuple(deletes),
        remade=tuple(dict.fromkeys(remade)),
    )


def names_source(parts: Collection[SegmentPart], sources: Collection[str]) -> bool:
    """Return whether a part was derived from one of these sources."""
    return any(part.source in sources for part in parts)


def segment_is_denied(
    root: Root,
    record: TakedownRecord,
    path: str,
) -> bool:
    """Return whether a derived object may have values of denied samples. Raises: Corrupt; FormatTooNew."""
    store = root.store
    kind = segment_kind(path)
    if kind is not None:
        parts = read_segment_parts(store, store.head(path), kind)
        return names_source(parts, denied_sources(record))
    if not is_map(path):
        return False  # ranges of codes, which name no sample
    return _fit_is_denied(root, record, path)


def _fit_is_denied(
    root: Root,
    record: TakedownRecord,
    path: str,
) -> bool:
    """Return whether the anchors of a fit may be vectors of denied samples, because its version is not redacted."""
    version_id = fitted_version(root.store.get(path).data, path)
    version = root.state.by_id(version_id)
    if version is None:
        return True
    # A version that was collected before the takedown has no findings, so its dataset counts.
    datasets = {place["of"] for place in record.having("retired")}
    return version.dataset in datasets and version.denies < record.n


def _hows(store: Store) -> dict[str, How]:
    """Return folder -> record of each readable index."""
    hows: dict[str, How] = {}
    for info in store.list(FOLDER):
        if not is_record(info.key):
            continue
        try:
            how = parse_how(store.get(info.key).data, info.key)
        except (Corrupt, FormatTooNew, ObjectNotFound):
            continue
        hows[how.folder] = how
    return hows


def _without(
    store: Store,
    path: str,
    how: How,
    kind: SegmentKind,
    sources: Collection[str],
) -> dict[str, bytes]:
    """Return path -> bytes of a segment with the other parts; empty if none remain, or it cannot be read."""
    try:
        segment = read_segment(store, path, kind)
    except (Corrupt, FormatTooNew, ObjectNotFound):
        return {}
    starts = segment.starts
    parts = []
    tables = []
    for number, part in enumerate(segment.parts):
        if part.source not in sources:
            parts.append(part)
            tables.append(segment.values.slice(int(starts[number]), part.n_rows))
    if not parts:
        return {}
    new_path, data = segment_bytes(
        how.folder,
        kind,
        parts,
        pa.concat_tables(tables),
    )
    return {new_path: data}


def index_again(
    root: Root,
    dataset: str,
    record: TakedownRecord,
) -> list[str]:
    """Index the dataset's newest version in each field that had an index, and make its deleted map again.

    Returns the fields. A field that the version lacks is left out. Errors of single fields are logged: an index can be
    made at any time.
    """
    newest = root.state.newest(dataset)
    if newest is None or newest.retired is not None:
        return []
    # Of a killed run too, whose record names what it deleted.
    deleted_maps = {place["path"].split("/")[1] for place in record.having("remade") if is_map(place["path"])}
    fields = []
    for how in _hows(root.store).values():
        if how.dataset != dataset:
            continue
        try:
            make_index(root, newest.name, how.field)
            if how.name in deleted_maps:
                # The verb and the asset make an index with each map, of the same name.
                make_map(root, newest.name, how.field)
        except (FieldNotFound, FieldMismatch, Corrupt) as error:
            logger.warning("%s was not indexed again: %s", how.field, error)
            continue
        fields.append(how.field)
    return fields


def is_map(path: str) -> bool:
    """Return whether a path is of a map's fit."""
    return path.startswith(MAPS) and is_record(path)
