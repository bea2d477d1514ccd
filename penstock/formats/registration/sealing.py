"""Seal registered shards: read them once, and store each index's checksums in a file, its seal, for all readers."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import numpy as np

from loader import Version
from loader.dataset.shards.address import UNKNOWN_CRC
from loader.dataset.shards.index import IndexFile, IndexPlace
from loader.dataset.shards.seals import SEALS, Crcs, put_seal, seal_bytes
from loader.dataset.shards.shard import crc32c
from loader.dataset.tables.foreign_objects import foreign_place, is_foreign
from loader.errors import Changed, InvalidRuntime, ObjectNotFound
from loader.storage import ByteRange
from loader.storage.external_shards import PlacedStore

from ...progress import progress
from ...threads import check_workers, in_threads
from ...units import size

WORKERS = 4
"""Shards read concurrently, by default."""
READ_BYTES = 16 * 2**20
"""Bytes per read, unless one field is larger."""


@dataclass(slots=True, kw_only=True)
class SealReport:
    version: str
    """Version name."""
    id: str
    """Version id, unchanged."""
    shards: int = 0
    """Registered shards now sealed."""
    skipped: int = 0
    """Shards that were sealed already."""
    nbytes: int = 0
    """Bytes of fields read."""
    failures: list[str] = field(default_factory=list)
    """One error per unreadable shard."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def to_text(self) -> str:
        lines = [
            f"{self.version}  {self.id}",
            f"{self.shards} shards are sealed, {self.skipped} of them from before; {size(self.nbytes)} read",
            *(f"  failed: {why}" for why in self.failures),
        ]
        if self.failures:
            lines.append(
                "the version is not sealed: restore these, or register again, then run the command again"
            )
        return "\n".join(lines)


class SealUnit(NamedTuple):
    """One shard, and its indexes without a seal."""

    path: str
    """Shard path."""
    rows: Sequence[dict[str, Any]]
    """Shards table rows without a seal, one per part and group."""
    nbytes: int
    """Bytes of the shard; 0 if sealed."""


def seal(version: Version, *, workers: int = WORKERS) -> SealReport:
    """Read a version's registered bytes once, and write the seals of its indexes; skips existing seals.

    The report names shards with changed or missing objects, which get no seal. Memory per thread: one index, and 16 MiB
    or one larger field.

    Raises: InvalidRuntime if there are no registered bytes; Forbidden for a source that the caller does not vouch for;
    Corrupt.
    """
    check_workers(workers)
    placed = version.placed
    if placed is None:
        raise InvalidRuntime(f"{version.name} has no registered bytes: its checksums are known")
    report = SealReport(version=version.name, id=version.id)
    units = seal_units(version)
    placed.check_vouched({foreign_place(unit.path) for unit in units if unit.rows})
    total_bytes = sum(unit.nbytes for unit in units)
    finished = in_threads(_SealWork(version, placed), units, workers, report.failures)
    for _, nbytes in progress(finished, "seal", lambda sealed: sealed[0].nbytes, total_bytes):
        report.shards += 1
        report.skipped += not nbytes
        report.nbytes += nbytes
    return report


def seal_units(version: Version) -> list[SealUnit]:
    """Return the registered shards with live samples."""
    seals = {info.key for info in version.store.list(SEALS)}
    rows_by_path: dict[str, list[dict[str, Any]]] = {}
    for row in version.parts.shard_rows().to_pylist():
        if is_foreign(row["path"]) and _live_members(version, row).any():
            rows_by_path.setdefault(row["path"], []).append(row)
    units = []
    for path, rows in rows_by_path.items():
        unsealed = [row for row in rows if IndexPlace.of(row).seal not in seals]
        nbytes = 0
        if unsealed:
            nbytes = rows[0]["nbytes"]
        units.append(SealUnit(path, unsealed, nbytes))
    return units


def _live_members(version: Version, row: dict[str, Any]) -> Any:
    """Return bool [rows of the shard's part]: True for live samples."""
    return version.parts.live_members(version.parts.position(row["part"]))


class _SealWork:
    def __init__(self, version: Version, placed: PlacedStore) -> None:
        self._version = version
        self._placed = placed

    def __call__(self, unit: SealUnit) -> tuple[SealUnit, int]:
        indexes = [_SealIndex(self._version, row) for row in unit.rows]
        incomplete = [index for index in indexes if index.unknown.any()]
        nbytes = self._read(unit.path, incomplete)
        for index in incomplete:
            put_seal(self._version.store, index.place.seal, seal_bytes(index.place.seal, index.crcs))
        return unit, nbytes

    def _read(self, path: str, indexes: Sequence["_SealIndex"]) -> int:
        """Checksum the indexes' unsealed fields; return the bytes that were read."""
        fields: list[_UnsealedField] = []
        for number, index in enumerate(indexes):
            fields += index.unsealed(number)
        # In the order of the bytes, so that a block is one large read.
        fields.sort(key=lambda value: value.span.offset)
        missing: set[str] = set()
        for block in _blocks(fields):
            try:
                contents = self._bytes(path, block)
            except (Changed, ObjectNotFound):
                # An object is gone: only excluded samples may lack their bytes.
                contents = self._each(path, block, indexes, missing)
            for value, data in zip(block, contents, strict=True):
                if data is not None:
                    indexes[value.number].crcs[value.name][value.row] = crc32c(data)
        return sum(value.span.nbytes for value in fields)

    def _bytes(self, path: str, fields: Sequence["_UnsealedField"]) -> Sequence[bytes | None]:
        return [blob.data for blob in self._placed.get_ranges(path, [value.span for value in fields])]

    def _each(
        self,
        path: str,
        fields: Sequence["_UnsealedField"],
        indexes: Sequence["_SealIndex"],
        missing: set[str],
    ) -> Sequence[bytes | None]:
        """Return the fields' bytes, read one by one; None if the object is gone and the sample excluded."""
        contents: list[bytes | None] = []
        for value in fields:
            object_key, _ = self._placed.place(path, value.span.offset)
            is_live = bool(indexes[value.number].live[value.row])
            if object_key in missing and not is_live:
                contents.append(None)
                continue
            try:
                contents += self._bytes(path, [value])
            except (Changed, ObjectNotFound):
                if is_live:
                    raise
                missing.add(object_key)
                contents.append(None)
        return contents


class _UnsealedField(NamedTuple):
    number: int
    """Index's number."""
    name: str
    row: int
    span: ByteRange


class _SealIndex:
    """An index, read whole."""

    def __init__(self, version: Version, row: dict[str, Any]) -> None:
        self.place = IndexPlace.of(row)
        self.live = _live_members(version, row)
        index = IndexFile(version.store, self.place, whole=True)
        places: list[Any] = []
        names: list[str] = []
        start = 0
        while start < index.n_rows:
            rows = index.read_group(index.row_group_number(start))
            names = list(rows.offset)
            places.append(rows.places)
            start += len(rows.keys)
        self._names = names
        self._places = np.concatenate(places)  # [rows, fields, 3]: offset, nbytes, CRC-32C
        # bool [rows, fields].
        self.unknown = self._places[:, :, 2] == UNKNOWN_CRC
        self.crcs: Crcs = {name: self._places[:, column, 2].copy() for column, name in enumerate(names)}

    def unsealed(self, number: int) -> Iterator[_UnsealedField]:
        """Yield the fields without a checksum. number: the index's."""
        for row, column in np.argwhere(self.unknown).tolist():
            offset, nbytes, _ = self._places[row, column].tolist()
            yield _UnsealedField(number, self._names[column], row, ByteRange(offset, nbytes))


def _blocks(fields: Sequence[_UnsealedField]) -> Iterator[Sequence[_UnsealedField]]:
    """Yield consecutive fields of at most `READ_BYTES`; a larger field is a block by itself."""
    start = 0
    block_bytes = 0
    for number, value in enumerate(fields):
        nbytes = value.span.nbytes
        if number > start and block_bytes + nbytes > READ_BYTES:
            yield fields[start:number]
            start = number
            block_bytes = 0
        block_bytes += nbytes
    if fields:
        yield fields[start:]
