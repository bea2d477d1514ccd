"""Registered objects copied into the root, which then needs nobody else's place.

    foreign/<place>/<key>       the objects, as they were registered
    places/<place>/<n>.json     url null: the place is in the root

A unit is a shard: an object, or a run of files. Each object is held against the seals before it is put, and one that
is there is passed over, so that a killed run is finished by doing it again. The record of the place comes last.
"""

import tempfile
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
from loader.dataset.tables.foreign_objects import is_foreign, put_place
from loader.errors import Changed, Corrupt, InvalidRuntime, ObjectNotFound
from loader.storage import Span
from loader.storage.disk.scratch import on_scratch
from loader.storage.placed import FOREIGN, PlacedObject, PlacedStore

from ..progress import progress
from ..sources.unit_threads import in_threads
from ..units import size
from .sealing import units_of

READ_BYTES = 8 * 2**20
"""Bytes of an object that are read at once."""
Int64s = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(slots=True, kw_only=True)
class Adopted:
    """The result of an adoption."""

    version: str
    """Name of the version."""
    id: str
    """Id of the version, which stays."""
    places: int = 0
    """Places that are in the root now; 0 after failures."""
    objects: int = 0
    """Objects of the places that are in the root now."""
    skipped: int = 0
    """Objects of them that were there."""
    nbytes: int = 0
    """Bytes that were copied."""
    failures: list[str] = field(default_factory=list)
    """Errors of shards that could not be copied."""

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON."""
        return asdict(self)

    def to_text(self) -> str:
        """Return the lines for people."""
        lines = [
            f"{self.version}  {self.id}",
            f"{self.objects} objects are in the root, {self.skipped} of them were; {size(self.nbytes)} were copied",
            *(f"  failed: {why}" for why in self.failures),
        ]
        if self.failures:
            lines.append("the version is read from where it lay: restore these, then run the command again")
        return "\n".join(lines)


class _Unit(NamedTuple):
    """A shard, in the versions that have it."""

    path: str
    rows: Sequence[tuple[Version, dict[str, Any]]]
    nbytes: int


def adopt(root: Root, ref: str, *, workers: int = 4) -> Adopted:
    """Copy the registered objects of a version into the root, and read them there from then on.

    A place is copied for all versions of the root that have it, and all have to be sealed. Objects of which every
    sample is left out are copied where they are as they were. One that cannot be copied is named, the others go on,
    and the places stay where they are. Memory: the indexes of a shard per thread; scratch: an object per thread.

    workers: threads. Raises: InvalidRuntime for a version without registered bytes, and for one that is not sealed;
    as `Root.open`; Corrupt; StoreError.
    """
    if workers < 1:
        raise InvalidRuntime(f"--workers {workers}: a number of threads above 0 is needed")
    version = root.open(ref)
    if not (places := _places_of(version)):
        raise InvalidRuntime(f"{version.name} has no registered bytes: all of it lies in the root")
    report, known = Adopted(version=version.name, id=version.id), set[str]()
    counted = dict[str, int]()
    while new := [one for one in _versions(root, version, places) if one.id not in known]:
        _check_sealed(new, places)
        units = _units(new, places)
        made = in_threads(_copied, units, workers, report.failures)
        for unit, n, skipped, nbytes in progress(
            made, "adopt", lambda one: one[0].nbytes, sum(u.nbytes for u in units)
        ):
            report.skipped += skipped if unit.path not in counted else 0
            counted[unit.path] = n
            report.nbytes += nbytes
        if report.failures:
            break
        for place in sorted(places):
            put_place(root.store, place, None)
        known |= {one.id for one in new}  # and once more: somebody may have published meanwhile
    report.objects = sum(counted.values())
    report.places = 0 if report.failures else len(places)
    return report


def _places_of(version: Version) -> set[str]:
    """Return the places of the shards that a version has."""
    paths = version.parts.shard_rows()["path"].to_pylist()
    return {path.split("/")[1] for path in paths if is_foreign(path)}


def _versions(root: Root, version: Version, places: Collection[str]) -> list[Version]:
    """Return the versions that are not retired and have one of these places, and the version itself."""
    state, out = root.log.refresh(), [version]
    for records in state.datasets.values():
        for record in records:
            if record.retired is None and record.id != version.id:
                other = root.open(record.id)
                if other.manifest.get("foreign") and not _places_of(other).isdisjoint(places):
                    out.append(other)
    return out


def _check_sealed(versions: Sequence[Version], places: Collection[str]) -> None:
    """Raise InvalidRuntime for a version of which checksums are not known."""
    for version in versions:
        for unit in units_of(version):
            for row in unit.rows if unit.path.split("/")[1] in places else ():
                if not all(rows.sealed for rows in _index_rows(version, row)):
                    raise InvalidRuntime(
                        f"{unit.path} of {version.name} has no checksums, and a copy is held to nothing else: "
                        f"penstock seal {version.name} first"
                    )


def _units(versions: Sequence[Version], places: Collection[str]) -> list[_Unit]:
    shards: dict[str, list[tuple[Version, dict[str, Any]]]] = {}
    for version in versions:
        for row in version.parts.shard_rows().to_pylist():
            if is_foreign(row["path"]) and row["path"].split("/")[1] in places:
                shards.setdefault(row["path"], []).append((version, row))
    return [_Unit(path, rows, rows[0][1]["nbytes"]) for path, rows in shards.items()]


def _copied(unit: _Unit) -> tuple[_Unit, int, int, int]:
    """Copy the objects of a shard that the root lacks. Returns the unit, objects there now, before, and bytes copied.

    Raises: Changed, ObjectNotFound of an object with live samples; Corrupt where its bytes are not those of the seal.
    """
    version = unit.rows[0][0]
    placed, store = version.placed, version.store
    assert placed is not None
    objects = placed.objects(unit.path)
    fields, live = _fields(unit, objects)
    n = skipped = copied = 0
    for number, one in enumerate(objects):
        key = one.key if one.modified_us is None else f"{FOREIGN}{unit.path.split('/')[1]}/{one.key}"
        try:
            there = store.head(key).nbytes == one.nbytes
        except ObjectNotFound:
            there = False
        if not there:
            try:
                with _scratch_copy(placed, one) as path:
                    _check(path, one, fields[number], f"{one.store.url}/{one.key}")
                    store.put_file(key, str(path))
            except (Changed, ObjectNotFound):
                if live[number]:
                    raise
                continue  # its samples are left out, and its bytes are others by now
            copied += one.nbytes
        n, skipped = n + 1, skipped + there
    return unit, n, skipped, copied


def _fields(
    unit: _Unit, objects: Sequence[PlacedObject]
) -> tuple[list[list[tuple[int, int, int]]], list[bool]]:
    """Return the fields of each object: offset in it, nbytes and CRC-32C; and whether one of its samples is live."""
    found: list[set[tuple[int, int, int]]] = [set() for _ in objects]
    live = [False] * len(objects)
    starts = [one.offset for one in objects]
    for version, shard in unit.rows:
        members = version.parts.live_members(version.parts.position(shard["part"]))
        for rows in _index_rows(version, shard):
            for row, fields in enumerate(rows.places.tolist()):
                for offset, nbytes, crc in fields:
                    at = bisect_right(starts, offset) - 1 if nbytes else 0
                    live[at] |= bool(nbytes and members[rows.first_row + row])
                    if nbytes and crc != UNKNOWN_CRC:
                        found[at].add((offset - starts[at], nbytes, crc))
    return [sorted(one) for one in found], live


def _index_rows(version: Version, shard: dict[str, Any]) -> Iterator[Any]:
    index, at = IndexFile(version.store, IndexPlace.of(shard), whole=True), 0
    while at < index.n_rows:
        rows = index.read_row_group(index.row_group_of(at))
        yield rows
        at += len(rows.keys)


@contextmanager
def _scratch_copy(placed: PlacedStore, one: PlacedObject) -> Iterator[Path]:
    """Yield a copy of an object on this machine's disk, as it was registered. Raises: Changed; ObjectNotFound."""
    meanwhile = "while registered objects were copied; the version is read from where it lay"
    with (
        on_scratch(None, meanwhile, room_for="the largest object", again="adopt again"),
        tempfile.NamedTemporaryFile(prefix="penstock-adopt-") as out,
    ):
        for start in range(0, one.nbytes, READ_BYTES):
            out.write(placed.stored(one, Span(start, min(READ_BYTES, one.nbytes - start))))
        out.flush()
        yield Path(out.name)


def _check(path: Path, one: PlacedObject, fields: Sequence[tuple[int, int, int]], name: str) -> None:
    """Raise Corrupt where the copy's fields do not have the checksums that were sealed."""
    if not fields:
        return
    data = np.memmap(path, np.uint8, "r")

    def stored(spans: Sequence[Span]) -> list[bytes]:
        return [data[offset : offset + nbytes].tobytes() for offset, nbytes in spans]

    read = stored if one.decoded is None else partial(one.decoded.apart().read, raw=stored)
    for offset, nbytes, crc in fields:
        if (found := crc32c(read([Span(offset, nbytes)])[0])) != crc:
            raise Corrupt(
                f"{name}, bytes [{offset}:{offset + nbytes}] have the CRC-32C {found:08x}, {crc:08x} was sealed: they "
                "were damaged since, or on the way; run it again, or restore the object"
            )
