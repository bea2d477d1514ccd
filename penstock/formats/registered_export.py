"""Export registered objects unchanged, if all of their samples are exported.

An index that accompanies them is copied too, and must list exactly these objects.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow.compute as pc

from loader import Version
from loader.dataset.columnar.choices import NO_OPTIONS, ColumnarOptions
from loader.dataset.tables.foreign_objects import ForeignObject, foreign_objects
from loader.errors import Changed, ObjectNotFound
from loader.json_text import parse_json_object
from loader.storage import ByteRange, ObjectInfo, Store
from loader.storage.external_shards import FOREIGN, PlacedObject, PlacedStore, difference

from .archives.remaining_members import remaining
from .exporter import FOLDER, ExportSelection, Int64s, Loss, Outbox, WorkUnit
from .reading.exported import NOTE
from .reading.object_file import ForwardReader
from .reading.sample import FoundObjects
from .registry import FORMATS, REGISTERED, TABLES, find_registered

READ_BYTES = 8 * 2**20
"""Bytes per read."""
OWN = "megatron"
"""Format whose exporter itself restores the registered objects and their index."""


class ObjectCopy(NamedTuple):
    """Objects of a registered shard to copy."""

    objects: Sequence[PlacedObject]
    ordinals: Int64s
    """Exported samples' live ordinals: int64."""
    keys: frozenset[str] | None = None
    """Samples to keep in an archive; None copies whole objects."""


def registered_objects(selection: ExportSelection, format: str) -> "RegisteredObjects | None":
    """Return an exporter of the registered objects; None if they do not match the export.

    Archives are copied without the samples that are not exported.
    """
    version = selection.version
    manifest = version.manifest
    files = manifest.get("foreign", ())
    objects, facts = foreign_objects(version.store, files)
    registered = parse_json_object(facts.get("registered", "{}"))
    if registered.get("format") != format or format == OWN:
        return None
    if not _has_only_registered(version, registered):
        return None
    is_whole = manifest["n_live"] == manifest["n_rows"] == selection.n_samples
    if format in REGISTERED and FORMATS[format].companions:
        # The index lists all objects, and sample indices would change. Adoption does not copy it.
        placed = _placed_store(version)
        is_adopted = placed.is_adopted(_paths(version)[0])
        if not is_whole or is_adopted:
            return None
    if not is_whole and "source_key" in selection.columns:
        return None  # keys that were made unique would change
    copies = _object_copies(selection, format)
    if copies is None:
        return None
    # A selection of samples takes no object without samples.
    if selection.n_samples == manifest["n_live"]:
        options = NO_OPTIONS
        if format in TABLES:
            options = ColumnarOptions.of_registered(registered)

        def find_objects(store: Store, infos: list[ObjectInfo]) -> FoundObjects:
            readable, _ = find_registered(
                format,
                store,
                infos,
                options,
            )
            return readable

        copies += _objects_without_samples(
            version,
            objects,
            find_objects,
        )
    return RegisteredObjects(format, copies)


def _has_only_registered(version: Version, registered: Mapping[str, Any]) -> bool:
    """Return whether all samples are as their objects have them. registered: the registration's choices."""
    if registered.get("without"):
        return False  # the objects have more fields
    groups = {file["group"] for file in version.manifest["samples"]}
    if not groups <= {"keys", "metadata"}:
        return False  # other groups mean that the version was annotated
    rows = version.parts.shard_rows()
    is_foreign = pc.starts_with(rows["path"], FOREIGN)
    has_all: bool = pc.all(is_foreign).as_py()
    return has_all


def _object_copies(selection: ExportSelection, format: str) -> list[ObjectCopy] | None:
    """Return a copy per shard with exported samples; None if the format cannot leave samples out of an object."""
    version = selection.version
    parts = version.parts
    placed = _placed_store(version)
    first = parts.first_ordinal  # int64 [parts + 1]
    positions_by_path: dict[str, list[int]] = {}
    for position, path in enumerate(_paths(version)):
        positions_by_path.setdefault(path, []).append(position)
    copies: list[ObjectCopy] = []
    for path, positions in positions_by_path.items():
        part_ordinals = []
        n_rows = 0
        for position in positions:
            start = first[position]
            stop = first[position + 1]
            members = selection.members[start:stop]
            rows = np.flatnonzero(members)
            part_ordinals.append(start + rows)
            n_rows += int(parts.n_rows[position])
        ordinals = np.concatenate(part_ordinals)
        if not len(ordinals):
            continue
        objects = placed.objects(path)
        if len(ordinals) == n_rows:
            copies.append(ObjectCopy(objects, ordinals))
        elif format == "files":  # each object is a sample
            raw_key = selection.frame["raw_key"]
            raw_keys = set(raw_key.gather(ordinals))
            chosen = [item for item in objects if _name(item) in raw_keys]
            copies.append(ObjectCopy(chosen, ordinals))
        elif format == "webdataset":
            keys = frozenset(version.keys(ordinals))
            copies.append(
                ObjectCopy(
                    objects,
                    ordinals,
                    keys,
                )
            )
        else:
            return None
    return copies


def _objects_without_samples(
    version: Version,
    objects: Sequence[ForeignObject],
    find_objects: Callable[[Store, list[ObjectInfo]], FoundObjects],
) -> list[ObjectCopy]:
    """Return one copy of the registered objects that never had a sample, [] if there are none.

    objects: all registered ones, earliest first. An object that changed or is missing is left out.
    """
    placed = _placed_store(version)
    # Newest shard of an object that was registered again.
    last_shard = {item.key: item.shard for item in objects}
    shards_of_parts = set(_paths(version))
    shards_of_no_part = set(last_shard.values()) - shards_of_parts
    candidates: list[PlacedObject] = []
    for shard in sorted(shards_of_no_part):
        for item in placed.objects(shard):
            is_adopted = item.modified_us is None
            is_newest = last_shard[_name(item)] == shard
            if is_newest and not is_adopted:
                candidates.append(item)
    chosen: list[PlacedObject] = []
    for store in {item.store for item in candidates}:
        infos = list(store.list())
        info_by_key = {info.key: info for info in infos}
        readable = find_objects(store, infos)
        readable_keys = {info.key for info in readable.infos}
        for item in candidates:
            if item.store is not store or item.key not in readable_keys:
                continue
            info = info_by_key.get(item.key)
            if info is None:
                continue
            changed = difference(
                info,
                item.nbytes,
                item.etag,
                item.modified_us,
            )
            if changed:
                continue
            # A part whose samples were all excluded is gone too; its object has samples.
            samples = iter(readable.samples(info))
            first_sample = next(samples, None)
            if first_sample is None:
                chosen.append(item)
    if not chosen:
        return []
    no_ordinals = np.zeros(0, np.int64)
    return [ObjectCopy(chosen, no_ordinals)]


class RegisteredObjects:
    """Exports registered objects as they are."""

    def __init__(self, format: str, copies: Sequence[ObjectCopy]) -> None:
        self._format = format
        self._copies = copies

    def losses(self, selection: ExportSelection) -> list[Loss]:
        """Return none: bytes are unchanged."""
        return []

    def units(self, selection: ExportSelection) -> list[WorkUnit]:
        """Return a unit per registered shard."""
        return [
            WorkUnit(number=number, fields=(), ordinals=one.ordinals)
            for number, one in enumerate(self._copies)
        ]

    def write(self, selection: ExportSelection, unit: WorkUnit, outbox: Outbox) -> dict[str, Any]:
        placed = _placed_store(selection.version)
        copy = self._copies[unit.number]
        for item in copy.objects:
            spans = [ByteRange(0, item.nbytes)]
            if copy.keys is not None:
                spans = _remaining(placed, item, copy.keys)
            with outbox.file(_name(item)) as file:
                for span in spans:
                    for piece in _pieces(span):
                        data = placed.stored(item, piece)
                        file.write(data)
        objects = [[_name(item), item.nbytes] for item in copy.objects]
        return {"objects": objects}

    def finish(self, selection: ExportSelection, facts: Sequence[dict[str, Any]], outbox: Outbox) -> None:
        """Copy the index, if any. Raises: Changed if it lists other objects."""
        index_names = None
        if self._format in REGISTERED:
            index_names = FORMATS[self._format].companions
        if index_names is None:
            return
        objects: dict[str, int] = {}
        for unit in facts:
            objects.update(unit["objects"])
        source = next(_objects(selection.version)).store
        for info in source.list():
            if index_names.search(info.key):
                _copy(source, info, outbox)
        listed = [info for info in outbox.store.list() if not info.key.startswith(FOLDER)]
        objects_found, _ = find_registered(
            self._format,
            outbox.store,
            listed,
            NO_OPTIONS,
        )
        stated = objects_found.stated
        producer = selection.version.manifest["producer"]
        is_partial = "missing" in producer
        lacks_objects = stated is not None and stated.n > 0 and not is_partial
        objects_listed = {info.key: info.nbytes for info in objects_found.infos}
        if lacks_objects or objects_listed != objects:
            raise Changed(
                f"the index of {source.url} lists other objects than the {len(objects)} that were registered: "
                "register the place again",
                what="index",
                where=source.url,
                accepted=f"the {len(objects)} objects that were registered",
            )


def export_note(version: Version) -> dict[str, Any] | None:
    """Return fields and columns from the source's `export.json`, or None."""
    source = next(_objects(version)).store
    try:
        blob = source.get(NOTE)
        note = parse_json_object(blob.data)
    except ObjectNotFound:
        return None
    return {name: note[name] for name in ("columns", "facts", "fields", "lost") if name in note}


def _copy(source: Store, info: ObjectInfo, outbox: Outbox) -> None:
    whole = ByteRange(0, info.nbytes)
    etag = info.etag or None
    with outbox.file(info.key) as file:
        for piece in _pieces(whole):
            blob = source.get_range(
                info.key,
                piece.offset,
                piece.nbytes,
                etag,
            )
            file.write(blob.data)


def _pieces(span: ByteRange) -> Iterator[ByteRange]:
    """Yield the span in pieces of at most `READ_BYTES`."""
    end = span.offset + span.nbytes
    for offset in range(span.offset, end, READ_BYTES):
        nbytes = min(READ_BYTES, end - offset)
        yield ByteRange(offset, nbytes)


def _paths(version: Version) -> list[str]:
    """Return the path of each part's shard, by position. A registered part has one shard."""
    rows = version.parts.shard_rows()
    parts = rows["part"].to_pylist()
    paths = rows["path"].to_pylist()
    path_by_part = dict(
        zip(
            parts,
            paths,
            strict=True,
        )
    )
    ids = version.parts.ids.to_pylist()
    return [path_by_part[part] for part in ids]


def _remaining(placed: PlacedStore, item: PlacedObject, keys: Collection[str]) -> list[ByteRange]:
    """Return the byte ranges of an archive without its other samples. keys: of the samples that stay."""
    # Raises if the object changed.
    first_byte = ByteRange(0, min(1, item.nbytes))
    placed.stored(item, first_byte)
    info = item.store.head(item.key)
    reader = ForwardReader(item.store, info)
    try:
        return list(remaining(reader, keys))
    finally:
        reader.close()


def _name(item: PlacedObject) -> str:
    """Return an object's key in the store where it was registered."""
    is_adopted = item.modified_us is None
    if is_adopted:
        _, _, name = item.key.split("/", 2)  # foreign/<place>/<key>
        return name
    return item.key


def _objects(version: Version) -> Iterator[PlacedObject]:
    placed = _placed_store(version)
    distinct_paths = dict.fromkeys(_paths(version))
    for path in distinct_paths:
        yield from placed.objects(path)


def _placed_store(version: Version) -> PlacedStore:
    store = version.shard_store
    assert isinstance(store, PlacedStore), version.name
    return store
