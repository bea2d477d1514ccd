"""Export a version to another format, unit by unit; a killed export can be repeated.

Registered objects are copied unchanged if all of their samples are exported. An index that accompanies them is copied
too, and must list exactly these objects.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import pyarrow.compute as pc

from loader import Version
from loader.dataset.columnar.choices import NO_OPTIONS, ColumnarOptions
from loader.dataset.tables.foreign_objects import ForeignObject, foreign_objects
from loader.dataset.versions.slice_members import slice_term
from loader.errors import Changed, InvalidRuntime, ObjectNotFound
from loader.json_text import parse_json_object
from loader.storage import ByteRange, ObjectInfo, Store
from loader.storage.external_shards import FOREIGN, PlacedObject, PlacedStore, difference

from ..places import check_apart
from ..progress import progress
from ..threads import check_workers, in_threads
from ..units import size
from .archives.remaining_members import remaining
from .exporter import (
    FOLDER,
    Exporter,
    ExportJournal,
    ExportSelection,
    Int64s,
    Loss,
    Outbox,
    WorkUnit,
    refuse,
    select,
)
from .lerobot.row_statistics import read_norm
from .reading.exported import NOTE
from .reading.object_file import ForwardReader
from .reading.sample import FoundObjects
from .registry import FORMATS, REGISTERED, TABLES, exporter_named, find_registered

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
    version, manifest = selection.version, selection.version.manifest
    objects, facts = foreign_objects(version.store, manifest.get("foreign", ()))
    registered = parse_json_object(facts.get("registered", "{}"))
    tables = {file["group"] for file in manifest["samples"]}
    if (
        registered.get("format") != format
        or format == OWN
        or registered.get("without")
        or not tables <= {"keys", "metadata"}  # other groups mean that the version was annotated
        or not pc.all(pc.starts_with(version.parts.shard_rows()["path"], FOREIGN)).as_py()
    ):
        return None
    whole = manifest["n_live"] == manifest["n_rows"] == selection.n_samples
    if (
        format in REGISTERED
        and FORMATS[format].companions
        and (not whole or _placed_store(version).is_adopted(_paths(version)[0]))
    ):
        return None  # the index lists all objects, and sample indices would change
    if not whole and "source_key" in selection.columns:
        return None  # keys that were made unique would change
    copies = _object_copies(selection, format)
    if copies is None:
        return None
    if selection.n_samples == manifest["n_live"]:
        options = ColumnarOptions.of_registered(registered) if format in TABLES else NO_OPTIONS
        copies += _without_samples(
            version, objects, lambda store, infos: find_registered(format, store, infos, options)[0]
        )
    return RegisteredObjects(format, copies)


def _object_copies(selection: ExportSelection, format: str) -> list[ObjectCopy] | None:
    version, members = selection.version, selection.members
    placed, first, n_rows = _placed_store(version), version.parts.first_ordinal, version.parts.n_rows
    positions, out = dict[str, list[int]](), list[ObjectCopy]()
    for position, path in enumerate(_paths(version)):
        positions.setdefault(path, []).append(position)
    for path, own in positions.items():
        live = [np.flatnonzero(members[first[one] : first[one + 1]]) + first[one] for one in own]
        ordinals, objects = np.concatenate(live), placed.objects(path)
        if not len(ordinals):
            continue
        if len(ordinals) == sum(int(n_rows[one]) for one in own):
            out.append(ObjectCopy(objects, ordinals))
        elif format == "files":  # each object is a sample
            chosen = set(selection.frame["raw_key"].gather(ordinals))
            out.append(ObjectCopy([one for one in objects if _name(one) in chosen], ordinals))
        elif format == "webdataset":
            out.append(ObjectCopy(objects, ordinals, frozenset(version.keys(ordinals))))
        else:
            return None
    return out


def _without_samples(
    version: Version,
    objects: Sequence[ForeignObject],
    find_objects: Callable[[Store, list[ObjectInfo]], FoundObjects],
) -> list[ObjectCopy]:
    placed = _placed_store(version)
    last = {one.key: one.shard for one in objects}  # newest shard of an object that was registered again
    shards = sorted(set(last.values()) - set(_paths(version)))
    placed_objects = [one for shard in shards for one in placed.objects(shard) if last[_name(one)] == shard]
    rest = [one for one in placed_objects if one.modified_us is not None]  # adopted objects have no time
    out = list[PlacedObject]()
    for store in {one.store for one in rest}:
        infos = list(store.list())
        there, objects_there = {info.key: info for info in infos}, find_objects(store, infos)
        keys = {info.key for info in objects_there.infos}
        for item in rest:
            info = there.get(item.key) if item.store is store and item.key in keys else None
            if info is None or difference(info, item.nbytes, item.etag, item.modified_us):
                continue
            if next(iter(objects_there.samples(info)), None) is None:
                out.append(item)
    return [ObjectCopy(out, np.zeros(0, np.int64))] if out else []


class RegisteredObjects:
    """Exports registered objects as they are."""

    def __init__(self, format: str, copies: Sequence[ObjectCopy]) -> None:
        self._format, self._copies = format, copies

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
        placed, (objects, _, keys) = _placed_store(selection.version), self._copies[unit.number]
        for item in objects:
            with outbox.file(_name(item)) as file:
                for start, nbytes in (
                    [ByteRange(0, item.nbytes)] if keys is None else _remaining(placed, item, keys)
                ):
                    for at in range(start, start + nbytes, READ_BYTES):
                        file.write(placed.stored(item, ByteRange(at, min(READ_BYTES, start + nbytes - at))))
        return {"objects": [[_name(one), one.nbytes] for one in objects]}

    def finish(self, selection: ExportSelection, facts: Sequence[dict[str, Any]], outbox: Outbox) -> None:
        """Copy the index, if any. Raises: Changed if it lists other objects."""
        index_names = FORMATS[self._format].companions if self._format in REGISTERED else None
        if index_names is None:
            return
        objects = {key: nbytes for unit in facts for key, nbytes in unit["objects"]}
        source = next(_objects(selection.version)).store
        for info in source.list():
            if index_names.search(info.key):
                _copy(source, info, outbox)
        listed = [info for info in outbox.store.list() if not info.key.startswith(FOLDER)]
        objects_found, _ = find_registered(self._format, outbox.store, listed, NO_OPTIONS)
        stated = objects_found.stated
        is_partial = "missing" in selection.version.manifest["producer"]
        lacks_objects = stated is not None and stated.n > 0 and not is_partial
        if lacks_objects or {info.key: info.nbytes for info in objects_found.infos} != objects:
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
    rows = version.parts.shard_rows()
    path_of = dict(zip(rows["part"].to_pylist(), rows["path"].to_pylist(), strict=True))
    return [path_of[part] for part in version.parts.ids.to_pylist()]


def _remaining(placed: PlacedStore, item: PlacedObject, keys: Collection[str]) -> list[ByteRange]:
    placed.stored(item, ByteRange(0, min(1, item.nbytes)))  # raises if the object changed
    reader = ForwardReader(item.store, item.store.head(item.key))
    try:
        return list(remaining(reader, keys))
    finally:
        reader.close()


def _name(item: PlacedObject) -> str:
    return (
        item.key if item.modified_us is not None else item.key.split("/", 2)[2]
    )  # adopted: without foreign/<place>/


def _objects(version: Version) -> Iterator[PlacedObject]:
    for path in dict.fromkeys(_paths(version)):
        yield from _placed_store(version).objects(path)


def _placed_store(version: Version) -> PlacedStore:
    store = version.shard_store
    assert isinstance(store, PlacedStore), version.name
    return store


LEROBOT = "lerobot"
WORKERS = 4
"""Units written concurrently, by default."""


@dataclass(slots=True, kw_only=True)
class ExportReport:
    format: str
    """Format name."""
    url: str
    """Target."""
    version: str
    """Version name."""
    id: str
    """Version id."""
    samples: int = 0
    """Samples now in the target."""
    objects: int = 0
    """Objects now in the target."""
    nbytes: int = 0
    """Bytes of these objects."""
    skipped: int = 0
    """Objects that an earlier run wrote."""
    lost: list[dict[str, str]] = field(default_factory=list)
    """Name and reason (`why`) of each field or column that the format cannot represent."""
    failures: list[str] = field(default_factory=list)
    """One error per unit not written."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def to_text(self) -> str:
        lines = [
            f"{self.version}  {self.id}",
            f"{self.url}: {self.samples} samples as {self.format} in {self.objects} objects ({size(self.nbytes)}), "
            f"{self.skipped} of them were there",
            *(f"  lost: {one['name']}: {one['why']}" for one in self.lost),
            *(f"  failed: {why}" for why in self.failures),
        ]
        if self.failures:
            lines.append("the export is not complete: run the same command again")
        return "\n".join(lines)


class _ExportedUnit(NamedTuple):
    unit: WorkUnit
    note: dict[str, Any]
    was_there: bool


def export(
    version: Version,
    format: str,
    store: Store,
    *,
    where: str | None = None,
    without: Collection[str] = (),
    lossy: bool = False,
    workers: int = WORKERS,
    norm: str = "",
    slice_name: str | None = None,
) -> ExportReport:
    """Write a version's live samples into an empty store, or resume the same export. The report names units that fail.

    Objects of the registered format are copied unchanged if all their samples are exported. Memory: 32 MiB or one
    larger field per thread; one row of the samples table per sample.

    where: SQL expression that selects samples.
    without: fields and columns to leave out.
    slice_name: exports only the samples of this slice.
    norm: path of a norm in the root, whose mean, std and quantiles LeRobot's metadata then has.
    lossy: True to leave out what the format cannot represent; False to raise.

    Raises: LossyExport; Conflict if the target has other objects; InvalidRuntime; InvalidStore for an unknown format,
    or if target and root contain one another; the errors of `select`.
    """
    check_workers(workers)
    check_apart(version.store, store, "Choose a target beside the root")
    term = None if slice_name is None else slice_term(version, slice_name, None, without=False)
    exporter, selection = exporter_named(format), select(version, where, without, term)
    if norm:
        selection = _with_norm(selection, format, norm)
    registered = None if without or norm else registered_objects(selection, format)
    exporter = registered or exporter
    losses = exporter.losses(selection)
    if not lossy:
        refuse(format, version.name, losses)
    report = ExportReport(format=format, url=store.url, version=version.name, id=version.id)
    report.lost = [loss._asdict() for loss in losses]
    identity = _identity(version, format, where, without, losses) | ({"norm": norm} if norm else {})
    identity |= {} if term is None else {"slice": term.to_json()}
    # Copied and written exports have different units, so neither can resume the other.
    journal = ExportJournal(store, identity | ({"copied": True} if registered else {}))
    units, facts = exporter.units(selection), dict[int, dict[str, Any]]()
    work = _ExportWork(exporter, selection, store, journal)
    finished = in_threads(work, units, workers, report.failures)
    for done in progress(finished, "export", lambda written: len(written.unit.ordinals), selection.n_samples):
        facts[done.unit.number] = done.note["facts"]
        _count(report, done.note["objects"], done.was_there)
        report.samples += len(done.unit.ordinals)
    if not report.failures:
        outbox = Outbox(store)
        exporter.finish(selection, [facts[unit.number] for unit in units], outbox)
        _count(report, outbox.objects, was_there=False)
        summary = _summary(selection, report, outbox)
        # Registered objects may themselves be an export of penstock.
        note = export_note(version) if registered else summary
        journal.finish({**summary, **(note or {})}, is_ours=note is not None)
    return report


def _with_norm(selection: ExportSelection, format: str, norm: str) -> ExportSelection:
    if format != LEROBOT:
        message = f"--norm {norm}: {format} has no statistics; {LEROBOT} has"
        raise InvalidRuntime(message, what="--norm", given=format, accepted=LEROBOT)
    return replace(selection, norm=read_norm(selection.version, norm))


class _ExportWork:
    def __init__(
        self, exporter: Exporter, selection: ExportSelection, store: Store, journal: ExportJournal
    ) -> None:
        self._exporter, self._selection, self._store, self._journal = exporter, selection, store, journal

    def __call__(self, unit: WorkUnit) -> _ExportedUnit:
        if (note := self._journal.find(unit.number)) is not None:
            return _ExportedUnit(unit, note, was_there=True)
        outbox = Outbox(self._store)
        facts = self._exporter.write(self._selection, unit, outbox)
        note = {"facts": facts, "n_samples": len(unit.ordinals), "objects": outbox.objects}
        self._journal.add(unit.number, note)
        return _ExportedUnit(unit, note, was_there=False)


def _identity(
    version: Version, format: str, where: str | None, without: Collection[str], losses: list[Loss]
) -> dict[str, Any]:
    return {
        "penstock_export": 1,
        "format": format,
        "version": version.name,
        "id": version.id,
        "where": where,
        "without": sorted(set(without)),
        "lost": [loss.name for loss in losses],
    }


def _summary(selection: ExportSelection, report: ExportReport, outbox: Outbox) -> dict[str, Any]:
    return {
        "columns": selection.columns,
        "facts": {name: fact for name, fact in selection.version.facts.items() if name in selection.fields},
        "fields": list(selection.fields),
        "n_samples": report.samples,
        "n_objects": report.objects,
        "nbytes": report.nbytes,
        "objects": outbox.objects,
    }


def _count(report: ExportReport, objects: list[dict[str, Any]], was_there: bool) -> None:
    report.objects += len(objects)
    report.nbytes += sum(one["nbytes"] for one in objects)
    report.skipped += len(objects) if was_there else 0
