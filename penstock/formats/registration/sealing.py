"""Checksums of registered bytes, which are read once: readers of the version are held to them from then on.

A unit is a shard: an object, or a run of files. All fields of it are read together, in the order of the bytes. Seals
that are there are passed over, so that a killed run is finished by doing it again.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import numpy as np

from loader import Version
from loader.dataset.shards.address import UNKNOWN_CRC
from loader.dataset.shards.index import IndexFile, IndexPlace
from loader.dataset.shards.seal import SEALS, Crcs, put_seal, seal_bytes
from loader.dataset.shards.shard import crc32c
from loader.dataset.tables.foreign_objects import is_foreign, place_of
from loader.errors import Changed, InvalidRuntime, ObjectNotFound
from loader.storage import Span
from loader.storage.external_shards import PlacedStore

from ...progress import progress
from ...units import size
from ..unit_threads import in_threads

WORKERS = 4
"""Shards that are read at once, unless told otherwise."""
READ_BYTES = 16 * 2**20
"""Bytes of fields that are read together, or one larger field."""


@dataclass(slots=True, kw_only=True)
class Sealed:
    """The result of a sealing."""

    version: str
    """Name of the version."""
    id: str
    """Id of the version, which stays."""
    shards: int = 0
    """Registered shards of the version that are sealed now."""
    skipped: int = 0
    """Shards of them that were sealed before, or have all checksums."""
    nbytes: int = 0
    """Bytes of fields that were read."""
    failures: list[str] = field(default_factory=list)
    """Errors of shards that could not be read."""

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON."""
        return asdict(self)

    def to_text(self) -> str:
        """Return the lines for people."""
        lines = [
            f"{self.version}  {self.id}",
            f"{self.shards} shards are sealed, {self.skipped} of them were before; {size(self.nbytes)} were read",
            *(f"  failed: {why}" for why in self.failures),
        ]
        if self.failures:
            lines.append(
                "the version is not sealed: restore these, or register again, then run the command again"
            )
        return "\n".join(lines)


class Unit(NamedTuple):
    """A shard, and its parts and groups that have no seal."""

    path: str
    """Path of the shard."""
    rows: Sequence[dict[str, Any]]
    """Rows of the shards table."""
    nbytes: int
    """Bytes of the shard; 0 where nothing is left to do."""


def seal(version: Version, *, workers: int = WORKERS) -> Sealed:
    """Read the registered bytes of a version once, and put the seals of its indexes.

    Objects are held to the sizes and change tokens that were registered. A shard with an object that is another, or
    gone, is named and has no seal; the others go on. Objects of which every sample is left out are not needed. Costs a
    listing of the seals. Memory: an index, and 16 MiB or one larger field, per thread. workers: threads.

    Raises: InvalidRuntime for a version without registered bytes; Forbidden for a place that the caller does not vouch
    for; Corrupt; StoreError.
    """
    if workers < 1:
        raise InvalidRuntime(f"--workers {workers}: a number of threads above 0 is needed")
    placed = version.placed
    if placed is None:
        raise InvalidRuntime(f"{version.name} has no registered bytes: its checksums are known")
    report = Sealed(version=version.name, id=version.id)
    units = units_of(version)
    placed.check_vouched({place_of(unit.path) for unit in units if unit.rows})
    made = in_threads(_Work(version, placed), units, workers, report.failures)
    for _, nbytes in progress(made, "seal", lambda one: one[0].nbytes, sum(unit.nbytes for unit in units)):
        report.shards += 1
        report.skipped += not nbytes
        report.nbytes += nbytes
    return report


def units_of(version: Version) -> list[Unit]:
    """Return the registered shards of a version that have live samples, with the parts and groups to seal."""
    there = {info.key for info in version.store.list(SEALS)}
    shards: dict[str, list[dict[str, Any]]] = {}
    for row in version.parts.shard_rows().to_pylist():
        if is_foreign(row["path"]) and version.parts.live_members(version.parts.position(row["part"])).any():
            shards.setdefault(row["path"], []).append(row)
    out = []
    for path, rows in shards.items():
        left = [row for row in rows if IndexPlace.of(row).seal not in there]
        out.append(Unit(path, left, rows[0]["nbytes"] if left else 0))
    return out


class _Work:
    """Reads the fields of one shard, and puts its seals."""

    def __init__(self, version: Version, placed: PlacedStore) -> None:
        self._version, self._placed = version, placed

    def __call__(self, unit: Unit) -> tuple[Unit, int]:
        """Return the unit, and the bytes that were read. Raises: Changed and others, of the first live sample."""
        indexes = [_Index(self._version, row) for row in unit.rows]
        left = [index for index in indexes if index.unknown.any()]
        nbytes = self._read(unit.path, left)
        for index in left:
            put_seal(self._version.store, index.place.seal, seal_bytes(index.place.seal, index.crcs))
        return unit, nbytes

    def _read(self, path: str, indexes: Sequence["_Index"]) -> int:
        wanted = [want for number, index in enumerate(indexes) for want in index.wanted(number)]
        wanted.sort(key=lambda want: want.span.offset)
        gone = set[str]()
        for some in _windows(wanted):
            try:
                found = self._bytes(path, some)
            except (Changed, ObjectNotFound):
                found = self._each(path, some, indexes, gone)
            for want, data in zip(some, found, strict=True):
                if data is not None:
                    indexes[want.number].crcs[want.field][want.row] = crc32c(data)
        return sum(want.span.nbytes for want in wanted)

    def _bytes(self, path: str, some: Sequence["_Wanted"]) -> Sequence[bytes | None]:
        return [blob.data for blob in self._placed.get_ranges(path, [want.span for want in some])]

    def _each(
        self, path: str, some: Sequence["_Wanted"], indexes: Sequence["_Index"], gone: set[str]
    ) -> Sequence[bytes | None]:
        """Return the bytes by object; None of an object that is another, or gone, and has no live sample."""
        out: list[bytes | None] = []
        for want in some:
            of, _ = self._placed.place(path, want.span.offset)
            is_live = bool(indexes[want.number].live[want.row])
            try:
                out += [None] if of in gone and not is_live else self._bytes(path, [want])
            except (Changed, ObjectNotFound):
                if is_live:
                    raise
                gone.add(of)
                out.append(None)
        return out


class _Wanted(NamedTuple):
    number: int
    field: str
    row: int
    span: Span


class _Index:
    """An index, and the checksums of its rows as far as they are known."""

    def __init__(self, version: Version, row: dict[str, Any]) -> None:
        self.place = IndexPlace.of(row)
        self.live = version.parts.live_members(version.parts.position(row["part"]))
        index, places = IndexFile(version.store, self.place, whole=True), list[Any]()
        at, names = 0, list[str]()
        while at < index.n_rows:
            rows = index.read_row_group(index.row_group_of(at))
            names, at = list(rows.offset), at + len(rows.keys)
            places.append(rows.places)
        self._places, self._names = np.concatenate(places), names
        self.unknown = self._places[:, :, 2] == UNKNOWN_CRC
        self.crcs: Crcs = {name: self._places[:, n, 2].copy() for n, name in enumerate(names)}

    def wanted(self, number: int) -> Iterator[_Wanted]:
        """Yield the fields whose checksums are not known. number: of this index in the unit."""
        for row, n in np.argwhere(self.unknown).tolist():
            offset, nbytes, _ = self._places[row, n].tolist()
            yield _Wanted(number, self._names[n], row, Span(offset, nbytes))


def _windows(wanted: Sequence[_Wanted]) -> Iterator[Sequence[_Wanted]]:
    """Yield neighbours of `READ_BYTES` together, or one with more."""
    start = held = 0
    for at, want in enumerate(wanted):
        if at > start and held + want.span.nbytes > READ_BYTES:
            yield wanted[start:at]
            start, held = at, 0
        held += want.span.nbytes
    if wanted:
        yield wanted[start:]
