"""Copy registered objects into the root, so that a version no longer needs their owner's store.

    foreign/<place>/<key>       the copies; <place> is the source's id
    places/<place>/<n>.json     url null: the source is in the root; written last

Each object is checked against its seals first. An existing copy is compared and kept, so a killed adoption can be
repeated.
"""

import hashlib
import re
from bisect import bisect_right
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from loader import Root, Version
from loader.dataset.shards.address import UNKNOWN_CRC
from loader.dataset.shards.index import IndexFile, IndexPlace
from loader.dataset.shards.shard import crc32c
from loader.dataset.tables.foreign_objects import foreign_place, is_foreign
from loader.dataset.tables.place_records import place_record, put_place
from loader.errors import AlreadyExists, Changed, Corrupt, Denied, InvalidRuntime, ObjectNotFound
from loader.storage import ByteRange, Store, is_there
from loader.storage.disk.scratch import on_scratch, scratch_file
from loader.storage.external_shards import PlacedObject, PlacedStore
from loader.storage.files import create
from loader.storage.mirror import primary_store

from ...denied.denied_bytes import DeniedBytes, registered_objects
from ...denied.denied_bytes import denial as denied_error
from ...progress import progress
from ...threads import check_workers, in_threads
from ...units import size
from .sealing import seal_units

READ_BYTES = 8 * 2**20
"""Bytes per read."""
Int64s = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(slots=True, kw_only=True)
class AdoptionReport:
    version: str
    """Version name."""
    id: str
    """Version id, unchanged."""
    places: int = 0
    """Sources now in the root; 0 if anything failed."""
    objects: int = 0
    """The sources' objects now in the root."""
    skipped: int = 0
    """Objects that the root already had."""
    nbytes: int = 0
    """Bytes copied."""
    failures: list[str] = field(default_factory=list)
    """One error per shard not copied."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def to_text(self) -> str:
        lines = [
            f"{self.version}  {self.id}",
            f"{self.objects} objects are in the root, {self.skipped} of them from before; {size(self.nbytes)} copied",
            *(f"  failed: {why}" for why in self.failures),
        ]
        if self.failures:
            lines.append(
                "the version is still read from its old place: restore these objects, then run the command again"
            )
        return "\n".join(lines)


_Field = tuple[int, int, int]
"""Offset in the object, nbytes and CRC-32C."""


class _ShardUnit(NamedTuple):
    path: str
    rows: Sequence[tuple[Version, dict[str, Any]]]
    nbytes: int


def adopt(root: Root, ref: str, *, workers: int = 4) -> AdoptionReport:
    """Copy a version's registered objects into the root, where readers find them from then on.

    All versions in the root that share a source adopt it together, and must be sealed. An object that cannot be copied,
    or holds samples that a takedown removed, is reported, and the source stays in use. Memory: a shard's indexes per
    thread. Scratch: one object per thread.

    Raises: InvalidRuntime if the version is not registered or not sealed; Forbidden for a source that the caller does
    not vouch for; Corrupt; the errors of `Root.open`.
    """
    check_workers(workers)
    version = root.open(ref)
    if not (places := _version_places(version)):
        raise InvalidRuntime(f"{version.name} has no registered bytes: all its bytes are in the root")
    report = AdoptionReport(version=version.name, id=version.id)
    known = set[str]()
    counted = dict[str, int]()
    done = dict[str, str]()
    denies = 0
    # Repeated if another process publishes a version, or takes samples down, meanwhile.
    while new := [one for one in _versions(root, version, places) if one.id not in known]:
        _check_readable(new, places)
        denied = DeniedBytes(root.store, root.state.denies)
        denies = root.state.last_deny
        units = _units(new, places)
        finished = in_threads(_AdoptionWork(denied), units, workers, report.failures)
        for unit, n, skipped, nbytes in progress(
            finished, "adopt", lambda copied: copied[0].nbytes, sum(u.nbytes for u in units)
        ):
            report.skipped += skipped if unit.path not in counted else 0
            counted[unit.path] = n
            report.nbytes += nbytes
        if report.failures:
            # An earlier round had switched these sources: readers go back to the owner's store.
            for place, url in done.items():
                put_place(root.store, place, url)
            break
        # Last: from here on, readers look for the objects in the root.
        for place in sorted(places):
            if (record := place_record(root.store, place)) is not None:
                done[place] = record.url
                put_place(root.store, place, None)
        known |= {one.id for one in new}
        # A takedown came meanwhile: all copies are checked against it too.
        if root.log.refresh().last_deny != denies:
            known.clear()
    report.objects = sum(counted.values())
    report.places = 0 if report.failures else len(places)
    return report


def _version_places(version: Version) -> set[str]:
    paths = version.parts.shard_rows()["path"].to_pylist()
    places = {foreign_place(path) for path in paths if is_foreign(path)}
    if strange := sorted(place for place in places if not re.fullmatch("[0-9a-f]{32}", place)):
        raise Corrupt(
            f"{version.name} has a shard in the place {strange[0]!r}, which is not an id: it was damaged or forged"
        )
    return places


def _versions(root: Root, version: Version, places: Collection[str]) -> list[Version]:
    state = root.log.refresh()
    out = [version]
    for records in state.datasets.values():
        for record in records:
            if record.retired is None and record.id != version.id:
                other = root.open(record.id)
                if other.manifest.get("foreign") and not _version_places(other).isdisjoint(places):
                    out.append(other)
    return out


def _check_readable(versions: Sequence[Version], places: Collection[str]) -> None:
    for version in versions:
        if version.placed is not None:
            version.placed.check_vouched(places)
        for unit in seal_units(version):
            for row in unit.rows if foreign_place(unit.path) in places else ():
                if not all(rows.sealed for rows in _index_rows(version, row)):
                    message = (
                        f"{unit.path} of {version.name} has no checksums to check a copy against: "
                        f"penstock seal {version.name} first"
                    )
                    raise InvalidRuntime(message, what="checksums", where=f"{unit.path} of {version.name}")


def _units(versions: Sequence[Version], places: Collection[str]) -> list[_ShardUnit]:
    shards: dict[str, list[tuple[Version, dict[str, Any]]]] = {}
    for version in versions:
        for row in version.parts.shard_rows().to_pylist():
            if is_foreign(row["path"]) and foreign_place(row["path"]) in places:
                shards.setdefault(row["path"], []).append((version, row))
    return [_ShardUnit(path, rows, rows[0][1]["nbytes"]) for path, rows in shards.items()]


@dataclass(frozen=True, slots=True)
class _AdoptionWork:
    denied: DeniedBytes

    def __call__(self, unit: _ShardUnit) -> tuple[_ShardUnit, int, int, int]:
        version = unit.rows[0][0]
        placed = version.placed
        store = primary_store(version.store)
        assert placed is not None
        objects = placed.objects(unit.path)
        rows = registered_objects(version)[unit.path]
        fields, live = _fields(unit, objects)
        denied = self.denied.in_shard(unit.rows, rows)
        n = skipped = copied = 0
        for number, placed_object in enumerate(objects):
            name = f"{placed_object.store.url}/{placed_object.key}"
            key = rows[number].path
            try:
                if number in denied:
                    raise denied_error(name)
                is_new = _adopt(placed, placed_object, store, key, fields[number], rows[number].sha256)
            except (Changed, ObjectNotFound, Denied):
                if live[number]:
                    raise
                continue  # its samples are excluded, and its bytes changed, are gone, or are denied
            n = n + 1
            skipped = skipped + (not is_new)
            copied = copied + is_new * placed_object.nbytes
        return unit, n, skipped, copied


def _adopt(
    placed: PlacedStore,
    placed_object: PlacedObject,
    store: Store,
    key: str,
    fields: Sequence[_Field],
    sha256: str,
) -> bool:
    """Copy an object, or compare an existing copy and return False. sha256: "" if unknown."""
    here = placed_object._replace(store=store, key=key, etag="", modified_us=None)
    if placed_object.is_adopted or is_there(store, key):
        with _scratch_copy(placed, here) as path:
            _check(path, here, fields, sha256)
            # Checksums of fields leave gaps between them.
            if placed_object.modified_us is not None and not sha256:
                _compare(path, placed, placed_object, f"{store.url}/{key}")
        return False
    with _scratch_copy(placed, placed_object) as path:
        _check(path, placed_object, fields, sha256)
        try:
            create(store, path, key)
        except AlreadyExists as error:
            raise _others(f"{store.url}/{key}", placed_object) from error
    return True


def _compare(path: Path, placed: PlacedStore, placed_object: PlacedObject, name: str) -> None:
    """Raise Corrupt if a copy differs from its object, which may be missing."""
    try:
        with path.open("rb") as copy:
            for start in range(0, placed_object.nbytes, READ_BYTES):
                data = placed.stored(
                    placed_object, ByteRange(start, min(READ_BYTES, placed_object.nbytes - start))
                )
                if copy.read(len(data)) != data:
                    raise _others(name, placed_object)
    # Its owner may have changed or deleted it since the copy.
    except (Changed, ObjectNotFound):
        return


def _others(name: str, placed_object: PlacedObject) -> Corrupt:
    return Corrupt(
        f"{name} exists with other bytes than {placed_object.store.url}/{placed_object.key}: it was damaged, or "
        "another program wrote it. Delete it, then run the command again"
    )


def _fields(unit: _ShardUnit, objects: Sequence[PlacedObject]) -> tuple[list[list[_Field]], list[bool]]:
    checked: list[set[_Field]] = [set() for _ in objects]
    live = [False] * len(objects)
    starts = [one.offset for one in objects]
    for version, shard in unit.rows:
        members = version.parts.live_members(version.parts.position(shard["part"]))
        for rows in _index_rows(version, shard):
            for row, fields in enumerate(rows.places.tolist()):
                for offset, nbytes, crc in fields:
                    if not 0 <= offset <= offset + nbytes <= shard["nbytes"]:
                        raise Corrupt(
                            f"the index {shard['index_path']} has bytes [{offset}:{offset + nbytes}] for "
                            f"{rows.keys[row]!r}, which {unit.path} does not have: it was damaged or forged"
                        )
                    at = 0
                    if nbytes:
                        at = bisect_right(starts, offset) - 1
                    live[at] |= bool(nbytes and members[rows.first_row + row])
                    if nbytes and crc != UNKNOWN_CRC:
                        checked[at].add((offset - starts[at], nbytes, crc))
    return [sorted(one) for one in checked], live


def _index_rows(version: Version, shard: dict[str, Any]) -> Iterator[Any]:
    index = IndexFile(version.store, IndexPlace.of(shard), whole=True)
    at = 0
    while at < index.n_rows:
        rows = index.read_group(index.row_group_number(at))
        yield rows
        at += len(rows.keys)


@contextmanager
def _scratch_copy(placed: PlacedStore, placed_object: PlacedObject) -> Iterator[Path]:
    meanwhile = "while registered objects were copied; the version is still read from its old place"
    with (
        on_scratch(None, meanwhile, room_for="the largest object", again="adopt again"),
        scratch_file("adopt") as out,
    ):
        placed.stored(placed_object, ByteRange(0, 0))  # an empty object must be unchanged too
        for start in range(0, placed_object.nbytes, READ_BYTES):
            out.write(
                placed.stored(placed_object, ByteRange(start, min(READ_BYTES, placed_object.nbytes - start)))
            )
        out.flush()
        yield Path(out.name)


def _check(path: Path, placed_object: PlacedObject, fields: Sequence[_Field], sha256: str) -> None:
    name = f"{placed_object.store.url}/{placed_object.key}"
    if sha256:
        with path.open("rb") as copy:
            sha256_now = hashlib.file_digest(copy, "sha256").hexdigest()
        if sha256_now != sha256:
            raise _damage_error(f"{name} has the SHA-256 {sha256_now}, {sha256} was registered")
    if not fields:
        return
    # Mapped, since an object may be larger than memory.
    data = np.memmap(path, np.uint8, "r")

    def stored(spans: Sequence[ByteRange]) -> list[bytes]:
        return [data[offset : offset + nbytes].tobytes() for offset, nbytes in spans]

    read = (
        stored if placed_object.decoded is None else partial(placed_object.decoded.apart().read, raw=stored)
    )
    for offset, nbytes, crc in fields:
        if (found_crc := crc32c(read([ByteRange(offset, nbytes)])[0])) != crc:
            raise _damage_error(
                f"{name}, bytes [{offset}:{offset + nbytes}] have the CRC-32C {found_crc:08x}, {crc:08x} was sealed"
            )


def _damage_error(what: str) -> Corrupt:
    return Corrupt(
        f"{what}: they were damaged since, or in transit. Run the command again, or restore the object; delete "
        "a damaged copy in the root first"
    )
