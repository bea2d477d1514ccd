"""Registered objects that leave as they came: those whose samples are all exported are copied, byte for byte.

Objects are read as they were registered: one that was written since is `Changed`. An index beside them is copied too,
and the copy is looked at as its format is: it has to tell of these objects.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow.compute as pc

from loader import Version
from loader.dataset.columnar.choices import NO_OPTIONS, Options
from loader.dataset.tables.foreign_objects import ForeignObject, foreign_objects
from loader.errors import Changed, ObjectNotFound
from loader.json_text import parse_json_object
from loader.storage import ObjectInfo, Span, Store
from loader.storage.external_shards import FOREIGN, PlacedObject, PlacedStore, difference

from .archives.tar_export import remaining
from .exporting.export_journal import FOLDER
from .exporting.exporter import Loss
from .exporting.outbox import Outbox
from .exporting.selection import Int64s, Selection, WorkUnit
from .reading.exported import NOTE
from .reading.sample import Found
from .reading.window import Window
from .registration import COMPANIONS, TABLES, look_at

READ_BYTES = 8 * 2**20
"""Bytes of an object that are read at once."""
OWN = "megatron"
"""Format whose exporter makes the same objects again, index and all."""


class Leaving(NamedTuple):
    """Objects that leave together, of one registered shard."""

    objects: Sequence[PlacedObject]
    """The objects."""
    ordinals: Int64s
    """Live ordinals of their samples that are exported, int64."""
    keys: frozenset[str] | None = None
    """Keys of the samples that stay in an archive; None where all do, and the object is copied."""


def registered_objects(selection: Selection, format: str) -> "RegisteredObjects | None":
    """Return the exporter of objects as they were registered; None where they are not what is exported.

    selection: without a field or column left out. Objects of which every sample is exported are copied, and those of
    which none is are left out. Of others archives alone are written anew, without the samples that are not exported.
    """
    version, manifest = selection.version, selection.version.manifest
    objects, facts = foreign_objects(version.store, manifest.get("foreign", ()))
    told = parse_json_object(facts.get("registered", "{}"))
    tables = {file["group"] for file in manifest["samples"]}
    if (
        told.get("format") != format
        or format == OWN
        or told.get("without")
        or not tables <= {"keys", "metadata"}  # somebody annotated it
        or not pc.all(pc.starts_with(version.parts.shard_rows()["path"], FOREIGN)).as_py()
    ):
        return None
    whole = manifest["n_live"] == manifest["n_rows"] == selection.n_samples
    if format in COMPANIONS and (not whole or _placed(version).is_adopted(_paths(version)[0])):
        return None  # the index tells of all, and a sample's number would be another one's
    if not whole and "source_key" in selection.columns:
        return None  # names that repeat, and would not without the others
    leaving = _leaving(selection, format)
    if leaving is None:
        return None
    if selection.n_samples == manifest["n_live"]:
        options = Options.of_registered(told) if format in TABLES else NO_OPTIONS
        leaving += _without_samples(
            version, objects, lambda store, infos: look_at(format, store, infos, options)[0]
        )
    return RegisteredObjects(format, leaving)


def _leaving(selection: Selection, format: str) -> list[Leaving] | None:
    """Return the objects that have samples to export; None where one has others too, and is no archive."""
    version, members = selection.version, selection.members
    placed, first, n_rows = _placed(version), version.parts.first_ordinal, version.parts.n_rows
    positions, out = dict[str, list[int]](), list[Leaving]()
    for position, path in enumerate(_paths(version)):
        positions.setdefault(path, []).append(position)
    for path, own in positions.items():
        live = [np.flatnonzero(members[first[one] : first[one + 1]]) + first[one] for one in own]
        ordinals, objects = np.concatenate(live), placed.objects(path)
        if not len(ordinals):
            continue
        if len(ordinals) == sum(int(n_rows[one]) for one in own):
            out.append(Leaving(objects, ordinals))
        elif format == "files":  # an object is a sample
            chosen = set(selection.frame["raw_key"].gather(ordinals))
            out.append(Leaving([one for one in objects if _name(one) in chosen], ordinals))
        elif format == "webdataset":
            out.append(Leaving(objects, ordinals, frozenset(version.keys(ordinals))))
        else:
            return None
    return out


def _without_samples(
    version: Version, objects: Sequence[ForeignObject], look: Callable[[Store, list[ObjectInfo]], Found]
) -> list[Leaving]:
    """Return the objects that hold no sample, and are as they were. Costs a listing of their place."""
    placed = _placed(version)
    last = {one.key: one.shard for one in objects}  # of one that was registered again
    shards = sorted(set(last.values()) - set(_paths(version)))
    some = [one for shard in shards for one in placed.objects(shard) if last[_name(one)] == shard]
    rest = [one for one in some if one.modified_us is not None]  # none is left in a place that was adopted
    out = list[PlacedObject]()
    for store in {one.store for one in rest}:
        infos = list(store.list())
        there, found = {info.key: info for info in infos}, look(store, infos)
        taken = {info.key for info in found.infos}
        for one in rest:
            info = there.get(one.key) if one.store is store and one.key in taken else None
            if info is None or difference(info, one.nbytes, one.etag, one.modified_us):
                continue
            if next(iter(found.samples(info)), None) is None:
                out.append(one)
    return [Leaving(out, np.zeros(0, np.int64))] if out else []


class RegisteredObjects:
    """An exporter of objects as they were registered."""

    def __init__(self, format: str, leaving: Sequence[Leaving]) -> None:
        self._format, self._leaving = format, leaving

    def losses(self, selection: Selection) -> list[Loss]:
        """Return nothing: the bytes stay."""
        return []

    def units(self, selection: Selection) -> list[WorkUnit]:
        """Return the samples of each registered shard, which is an object or a run of them."""
        return [
            WorkUnit(number=number, fields=(), ordinals=one.ordinals)
            for number, one in enumerate(self._leaving)
        ]

    def write(self, selection: Selection, unit: WorkUnit, outbox: Outbox) -> dict[str, Any]:
        """Put the objects of a shard. Raises: Changed; StoreError."""
        placed, (objects, _, keys) = _placed(selection.version), self._leaving[unit.number]
        for one in objects:
            with outbox.file(_name(one)) as file:
                for start, nbytes in [Span(0, one.nbytes)] if keys is None else _remaining(placed, one, keys):
                    for at in range(start, start + nbytes, READ_BYTES):
                        file.write(placed.stored(one, Span(at, min(READ_BYTES, start + nbytes - at))))
        return {"objects": [[_name(one), one.nbytes] for one in objects]}

    def finish(self, selection: Selection, facts: Sequence[dict[str, Any]], outbox: Outbox) -> None:
        """Put the index of the objects, where the format has one. Raises: Changed where it tells of others."""
        if self._format not in COMPANIONS:
            return
        objects = {key: nbytes for unit in facts for key, nbytes in unit["objects"]}
        source = next(_objects(selection.version)).store
        for info in source.list():
            if COMPANIONS[self._format].search(info.key):
                _copy(source, info, outbox)
        listed = [info for info in outbox.store.list() if not info.key.startswith(FOLDER)]
        found, _ = look_at(self._format, outbox.store, listed, NO_OPTIONS)
        if found.lacking or {info.key: info.nbytes for info in found.infos} != objects:
            raise Changed(
                f"the index of {source.url} tells of other objects than the {len(objects)} that were registered: "
                "register the place again"
            )


def note_of(version: Version) -> dict[str, Any] | None:
    """Return what an export's note says of fields and columns, where the objects are one; else None."""
    source = next(_objects(version)).store
    try:
        note = parse_json_object(source.get(NOTE).data)
    except ObjectNotFound:
        return None
    return {name: note[name] for name in ("columns", "facts", "fields", "lost") if name in note}


def _copy(source: Store, info: ObjectInfo, outbox: Outbox) -> None:
    with outbox.file(info.key) as file:
        for start in range(0, info.nbytes, READ_BYTES):
            nbytes = min(READ_BYTES, info.nbytes - start)
            file.write(source.get_range(info.key, start, nbytes, info.etag or None).data)


def _paths(version: Version) -> list[str]:
    """Return the path of the shard that each part lies in."""
    rows = version.parts.shard_rows()
    found = dict(zip(rows["part"].to_pylist(), rows["path"].to_pylist(), strict=True))
    return [found[part] for part in version.parts.ids.to_pylist()]


def _remaining(placed: PlacedStore, one: PlacedObject, keys: Collection[str]) -> list[Span]:
    """Return the runs of an archive that hold these samples. Raises: as `remaining`; Changed."""
    placed.stored(one, Span(0, min(1, one.nbytes)))  # it is as it was registered
    window = Window(one.store, one.store.head(one.key))
    try:
        return list(remaining(window, keys))
    finally:
        window.close()


def _name(one: PlacedObject) -> str:
    """Return the key that an object has in its place."""
    return one.key if one.modified_us is not None else one.key.split("/", 2)[2]  # adopted: foreign/<place>/


def _objects(version: Version) -> Iterator[PlacedObject]:
    for path in dict.fromkeys(_paths(version)):
        yield from _placed(version).objects(path)


def _placed(version: Version) -> PlacedStore:
    store = version.shard_store
    assert isinstance(store, PlacedStore), version.name
    return store
