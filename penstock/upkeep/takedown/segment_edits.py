"""Edits of segments under `search/` and `maps/` that have values of denied samples, and their index again.

A takedown writes the parts of denied samples again, and records the paths of the parts' former indexes. A segment names
the indexes from which it was derived. So a segment that names a recorded path may have values of a denied sample.
"""

import logging
from collections import defaultdict
from collections.abc import Collection

import pyarrow as pa

from loader import Root, Version
from loader.dataset.search.field_texts import is_text_field
from loader.dataset.search.index_record import (
    FOLDER,
    SQ8,
    TEXTS,
    IndexRecord,
    field_index_record,
    parse_index_record,
)
from loader.dataset.search.segment_reads import read_segment, read_segment_parts
from loader.dataset.search.segments import SegmentKind, SegmentPart, segment_bytes
from loader.dataset.search.vectors import VectorReader, field_ordinals
from loader.errors import Corrupt, FieldMismatch, FieldNotFound, FormatTooNew, ObjectNotFound
from loader.storage import Store, is_there

from ...denied.record import TakedownRecord
from ...search.index_build import make_index, record_kind
from ...search.map.stored_fit import FOLDER as MAPS
from ...search.map.stored_fit import fit_version_id
from ...search.map.stored_map import make_map
from ..gc.derived_segments import FOLDERS, is_record, segment_kind
from .derived import Edits

logger = logging.getLogger(__name__)
_FIRST_READS = 16
"""Samples of a field of which one should be a readable vector."""


def deleted_sources(record: TakedownRecord) -> frozenset[str]:
    """Return the paths of objects that a takedown deletes: the sources of segments that must not stay."""
    return frozenset(place["path"] for place in record.having("absent"))


def segment_edits(root: Root, record: TakedownRecord) -> Edits:
    """Return the edits that leave no value of a denied sample in a segment. Reads the footer of each, and each record.

    Segments of texts keep their other parts. Unreadable ones go whole. Codes go with their ranges, and maps with their
    fit: the ranges' ends are numbers of single samples, and anchors may be whole vectors of them.
    """
    store = root.store
    sources = deleted_sources(record)
    index_records = _index_records(store)
    puts: dict[str, bytes] = {}
    deletes: list[str] = []
    remade: list[str] = []
    for prefix in FOLDERS:
        paths_by_folder: dict[str, list[str]] = defaultdict(list)
        for info in store.list(prefix):
            folder, _, _ = info.key.rpartition("/")
            paths_by_folder[f"{folder}/"].append(info.key)
        for folder, paths in paths_by_folder.items():
            denied, unreadable = _find_members(root, record, paths)
            has_record = any(is_record(path) for path in paths)
            has_damaged_record = any(is_record(path) for path in (*denied, *unreadable))
            if not has_record or has_damaged_record or (prefix == MAPS and denied):
                # The record last: a new one must not find segments of the old one after a kill.
                remade += sorted(paths, key=is_record)
                continue
            remade += unreadable
            deletes += denied
            field_record = index_records.get(folder)
            if field_record is None:
                continue
            for path in denied:
                puts |= _scrub_segment(store, path, field_record, record_kind(field_record), sources)
    # The next index may make an unreadable one or a fit again, at the same path.
    return Edits(
        puts=puts,
        deletes=tuple(deletes),
        remade=tuple(dict.fromkeys(remade)),
    )


def _find_members(
    root: Root,
    record: TakedownRecord,
    paths: Collection[str],
) -> tuple[list[str], list[str]]:
    """Return (objects of a folder with values of denied samples, objects that cannot be read)."""
    denied: list[str] = []
    unreadable: list[str] = []
    for path in paths:
        try:
            is_denied = segment_is_denied(root, record, path)
        except ObjectNotFound:
            continue
        except (Corrupt, FormatTooNew):
            unreadable.append(path)
            continue
        if is_denied:
            denied.append(path)
    return denied, unreadable


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
        return names_source(parts, deleted_sources(record))
    data = root.store.get(path).data
    # A version that was collected before the takedown has no findings, so its dataset counts.
    datasets = {place["of"] for place in record.having("retired")}
    if is_map(path):
        version_id = fit_version_id(data, path)
    else:
        field_record = parse_index_record(data, path)
        if field_record.code == TEXTS:
            return False
        version_id = field_record.version
        if not version_id:  # of an earlier release
            return field_record.dataset in datasets
    version = root.state.by_id(version_id)
    if version is None:
        return True
    return version.dataset in datasets and version.denies < record.n


def deleted_codes(root: Root, record: TakedownRecord) -> frozenset[str]:
    """Return the paths of code segments that went with their ranges, and were not made again."""
    deleted = set()
    for place in record.having("remade"):
        path = place["path"]
        is_segment = path.startswith(FOLDER) and not is_record(path)
        if is_segment and not is_there(root.store, path):
            deleted.add(path)
    return frozenset(deleted)


def _index_records(store: Store) -> dict[str, IndexRecord]:
    """Return folder -> record of each readable index."""
    index_records: dict[str, IndexRecord] = {}
    for info in store.list(FOLDER):
        if not is_record(info.key):
            continue
        try:
            field_record = parse_index_record(store.get(info.key).data, info.key)
        except (Corrupt, FormatTooNew, ObjectNotFound):
            continue
        index_records[field_record.folder] = field_record
    return index_records


def _scrub_segment(
    store: Store,
    path: str,
    field_record: IndexRecord,
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
        field_record.folder,
        kind,
        parts,
        pa.concat_tables(tables),
    )
    return {new_path: bytes(data)}


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
    maps: set[str] = set()
    indexes: set[str] = set()
    for place in record.having("remade"):
        path = place["path"]
        if is_map(path):
            maps.add(_how_name(path))
        elif is_record(path):
            indexes.add(_how_name(path))
    names: dict[str, set[str]] = defaultdict(set)  # field -> names that its index and its map have
    for field_record in _index_records(root.store).values():
        if field_record.dataset == dataset:
            names[field_record.field].add(field_record.name)
            indexes.add(field_record.name)
    if not (maps | indexes) <= set().union(*names.values()):
        for field, name in _field_names(root.open(newest.name)).items():
            names[field].add(name)
    fields = []
    for field, own in names.items():
        has_index = not own.isdisjoint(indexes)
        has_map = not own.isdisjoint(maps)
        try:
            if has_index:
                make_index(root, newest.name, field)
            if has_map:
                make_map(root, newest.name, field)
        except (FieldNotFound, FieldMismatch, Corrupt) as error:
            logger.warning("%s was not indexed again: %s", field, error)
            continue
        if has_index or has_map:
            fields.append(field)
    return fields


def _field_names(version: Version) -> dict[str, str]:
    """Return field -> name that its index and its map have. Reads 16 samples of each array at most.

    A deleted record is known by its path only, which is a hash of the field and its width.
    """
    names: dict[str, str] = {}
    for field in version.fields:
        if is_text_field(field):
            names[field] = field_index_record(version, field, TEXTS).name
        elif field.endswith(".npy"):
            reader = VectorReader(version, field)
            try:
                first = field_ordinals(version, field)[:_FIRST_READS]
                reader.samples(first)
                field_record = field_index_record(version, field, SQ8, reader.width)
            finally:
                reader.close()
            names[field] = field_record.name
    return names


def _how_name(path: str) -> str:
    return path.split("/")[1]


def is_map(path: str) -> bool:
    """Return whether a path is of a map's fit."""
    return path.startswith(MAPS) and is_record(path)
