"""The exporter interface, the samples to export, and an export's outbox and journal.

The journal is a folder in the target, which readers skip:

- `.penstock/begun.json`: canonical JSON of the export's identity; written first.
- `.penstock/units/<n>.json`: a unit's facts, n_samples and objects; written after its objects.
- `.penstock/export.json`: begun.json plus counts, column types and facts; written last.
- `.penstock/copied.json`: written instead if registered objects were copied unchanged.
"""

import hashlib
import json
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, Protocol

import numpy as np

from loader import Version
from loader.dataset.reading.verified_bucket_reads import read_fields
from loader.dataset.shards.address import SampleAddress
from loader.dataset.tables.columns import SOURCE_COLUMNS
from loader.dataset.versions.samples_table import import_polars, live_where
from loader.dataset.versions.slice_members import SliceTerm, term_members
from loader.errors import (
    AlreadyExists,
    Conflict,
    EmptyVersion,
    FieldNotFound,
    InvalidSample,
    LossyExport,
    ObjectNotFound,
)
from loader.json_text import DamagedJson, canonical_json, parse_json_object
from loader.keywords import did_you_mean
from loader.storage import Store, is_local
from loader.storage.disk.scratch import on_scratch, scratch_file, scratch_folder
from loader.storage.disk.unlisted_files import list_in_place

if TYPE_CHECKING:  # a registration loads this module, and no norms
    from loader.dataset.statistics.norm import Norm

Int64s = np.ndarray[Any, np.dtype[np.int64]]
Bools = np.ndarray[Any, np.dtype[np.bool_]]
READ_BYTES = 32 * 2**20
"""Payloads read at once, in bytes, unless one field is larger."""
ADDRESSES = 2048
"""Samples per address lookup: one row group of an index."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkUnit:
    """Samples of one part, exported together."""

    number: int
    """Index in the export."""
    fields: tuple[str, ...]
    """Sorted names."""
    ordinals: Int64s
    """Live ordinals: int64, ascending."""


class ExportSample(NamedTuple):
    key: str
    fields: dict[str, bytes]
    """Field name -> bytes, sorted by name."""
    columns: dict[str, Any]
    """Column -> value, sorted by name, without nulls."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportSelection:
    """Samples, fields and columns to export; immutable and thread-safe."""

    version: Version
    """The samples' version."""
    fields: tuple[str, ...]
    """Sorted names."""
    columns: dict[str, str]
    """Column with any value -> type."""
    members: Bools
    """Mask by live ordinal: bool [len(version)]."""
    frame: Any
    """polars table of the columns, one row per live ordinal; None without columns."""
    norm: "Norm | None" = None
    """Norm whose statistics LeRobot's metadata has, instead of the exported rows'."""

    @property
    def n_samples(self) -> int:
        return int(np.count_nonzero(self.members))

    @property
    def partial(self) -> dict[str, int]:
        """Field -> number of parts without it."""
        parts = self.version.parts
        has_field = {name: parts.has_group(self.version.group_of(name)) for name in self.fields}
        is_live = parts.n_live > 0  # [parts]; `reduceat` would count a neighbour's samples for an empty part
        is_exported = np.zeros(len(parts), bool)  # [parts]: has a selected sample
        is_exported[is_live] = np.add.reduceat(self.members, parts.first_ordinal[:-1][is_live]) > 0
        lacking = {name: int((is_exported & ~has_field[name]).sum()) for name in self.fields}
        return {name: n for name, n in lacking.items() if n}

    def by_part(self, most: int | None = None) -> list[WorkUnit]:
        """Return a unit per part, or per `most` samples of it, in order; a part without samples has none."""
        parts = self.version.parts
        units = list[WorkUnit]()
        has_field = {name: parts.has_group(self.version.group_of(name)) for name in self.fields}
        for position in range(len(parts)):
            first, end = parts.first_ordinal[position : position + 2].tolist()
            ordinals = np.flatnonzero(self.members[first:end]) + first
            fields = tuple(name for name in self.fields if has_field[name][position])
            for start in range(0, len(ordinals), most or max(1, len(ordinals))):
                chosen = ordinals[start : start + most] if most else ordinals
                units.append(WorkUnit(number=len(units), fields=fields, ordinals=chosen))
        return units

    def samples(self, unit: WorkUnit) -> Iterator[ExportSample]:
        """Yield a unit's samples in order, each field verified."""
        pins: dict[str, str] = {}
        for start in range(0, len(unit.ordinals), ADDRESSES):
            ordinals = unit.ordinals[start : start + ADDRESSES]
            rows = self.rows(ordinals)
            done = 0
            for batch in _batches(self.version.address(ordinals, unit.fields)):
                read = read_fields(self.version.shard_store, batch, pins=pins)
                for address, fields in zip(batch, read, strict=True):
                    yield ExportSample(address.key, dict(sorted(fields.items())), rows[done])
                    done += 1

    def rows(self, ordinals: Int64s) -> list[dict[str, Any]]:
        """Return each live ordinal's columns without nulls."""
        if self.frame is None:
            return [{} for _ in ordinals]
        return [
            {name: value for name, value in row.items() if value is not None}
            for row in self.frame[ordinals].to_dicts()
        ]


def select(
    version: Version,
    where: str | None = None,
    without: Collection[str] = (),
    term: SliceTerm | None = None,
) -> ExportSelection:
    """Return the live samples to export.

    where: SQL expression. without: fields and columns to leave out. term: slice of the version.

    Raises: FieldNotFound for an unknown name; EmptyVersion if nothing is selected.
    """
    columns = _columns(version)
    if unknown := sorted(set(without) - {*version.fields, *columns}):
        raise FieldNotFound(
            f"--without {unknown[0]}: {version.name} has no such field or column"
            f"{did_you_mean(unknown[0], [*version.fields, *columns]) or ';'} it has the fields "
            f"{', '.join(version.fields)} and the columns {', '.join(columns) or 'none'}"
        )
    fields = tuple(name for name in version.fields if name not in without)
    members = np.ones(len(version), bool) if where is None else live_where(version, where)
    if term is not None:
        members = members & term_members(version, term)
    if not members.any() or not fields:
        which = where if term is None else f"in the slice {term.name}, and {where or 'live'}"
        why = "every field of it is left out"
        if fields:
            why = f"no sample of it is {which}"
        raise EmptyVersion(f"nothing of {version.name} is to be exported: {why}")
    columns = {name: kind for name, kind in columns.items() if name not in without}
    frame = _frame(version, columns)
    if frame is not None:
        columns = {name: columns[name] for name in frame.columns}
    return ExportSelection(
        version=version,
        fields=fields,
        columns=columns if frame is not None else {},
        members=members,
        frame=frame,
    )


def _columns(version: Version) -> dict[str, str]:
    types = {name: str(body["type"]) for name, body in version.manifest["columns"].items()}
    return {name: types[name] for name in sorted({*types, *SOURCE_COLUMNS} & set(types)) if name != "key"}


def _frame(version: Version, columns: Collection[str]) -> Any:
    if not columns:
        return None
    pl = import_polars()
    frame = version.samples().select(sorted(columns)).collect()
    empty = [one.name for one in frame if one.null_count() == frame.height or one.dtype == pl.Null]
    frame = frame.drop(empty)
    if frame.width:
        return frame
    return None


def _batches(addresses: Sequence[SampleAddress]) -> Iterator[list[SampleAddress]]:
    batch = list[SampleAddress]()
    held = 0
    for address in addresses:
        nbytes = sum(place.nbytes for place in address.fields.values())
        if batch and held + nbytes > READ_BYTES:
            yield batch
            batch = []
            held = 0
        batch.append(address)
        held += nbytes
    if batch:
        yield batch


def metadata_json(columns: Mapping[str, Any]) -> bytes:
    """Return columns as JSON, sorted by name. Times are in ISO 8601; NaN is written as `NaN`."""
    text = json.dumps(columns, ensure_ascii=False, sort_keys=True, separators=(",", ":"), default=_text)
    return text.encode()


def _text(value: object) -> str:
    if isinstance(value, datetime):
        return value.isoformat()
    raise TypeError(f"a {type(value).__name__} is in no column of a samples table")


FOLDER = ".penstock/"
_BEGUN, _DONE, _COPIED = (f"{FOLDER}{name}.json" for name in ("begun", "export", "copied"))


class HashedFile:
    """Hashes a file as it is written."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._sha256 = hashlib.sha256()
        self.nbytes = 0

    def write(self, data: bytes | memoryview) -> int:
        self._file.write(data)
        self._sha256.update(data)
        self.nbytes += len(data)
        return len(data)

    @property
    def sha256(self) -> str:
        """Hex SHA-256 of the bytes so far."""
        return self._sha256.hexdigest()


class Outbox:
    """Writes objects to the target, and lists them. Not thread-safe."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.objects: list[dict[str, Any]] = []

    def put(self, key: str, data: bytes) -> None:
        self.store.put(key, data)
        self._note(key, len(data), hashlib.sha256(data).hexdigest())

    @contextmanager
    def file(self, key: str) -> Iterator[HashedFile]:
        """Write an object from the block's bytes, unless the block raises."""
        with (
            on_scratch(
                None,  # in TMPDIR, as `scratch_file`
                f"when {key} was written; what was exported before is there",
                room_for="the objects that are written at once",
                again="run the same command again",
            ),
            scratch_file("export") as raw,
        ):
            file = HashedFile(raw)
            yield file
            raw.flush()
            self.store.put_file(key, raw.name)
        self._note(key, file.nbytes, file.sha256)

    @contextmanager
    def path(self, key: str) -> Iterator[str]:
        """Write an object from the file at the yielded path, unless the block raises."""
        with self.file(key) as file, scratch_folder("export") as folder:
            path = os.path.join(folder, "file")
            yield path
            with open(path, "rb") as written:
                while piece := written.read(2**20):
                    file.write(piece)

    def _note(self, key: str, nbytes: int, sha256: str) -> None:
        self.objects.append({"path": key, "nbytes": nbytes, "sha256": sha256})


class ExportJournal:
    """A target's export journal; thread-safe."""

    def __init__(self, store: Store, of: dict[str, Any]) -> None:
        """Start or resume an export. of: its identity, as JSON.

        Raises: Conflict if the target has other objects, another export, or a symbolic link.
        """
        self._store = store
        self._of = of
        self._check_without_links()
        self._there: dict[str, int] = {}  # key -> nbytes of what an earlier try wrote
        try:
            begun = parse_json_object(store.get(_BEGUN).data)
        except ObjectNotFound:
            begun = None
            if (other := next(store.list(), None)) is not None:
                raise Conflict(
                    f"{store.url} is not empty: it has {other.key!r}; export into an empty folder or prefix",
                    what=other.key,
                    where=store.url,
                    accepted="an empty folder or prefix",
                ) from None
            try:
                store.put_if_absent(_BEGUN, canonical_json(of))
            except AlreadyExists:  # another export created it first
                begun = parse_json_object(store.get(_BEGUN).data)
        except DamagedJson as error:
            raise self._other("something damaged") from error
        if begun is not None and begun != of:
            differs = sorted(name for name in {*begun, *of} if begun.get(name) != of.get(name))
            raise self._other(
                ", ".join(f"{name} {begun.get(name)!r} (now {of.get(name)!r})" for name in differs),
                differs,
            )
        if begun is not None:
            self._there = {info.key: info.nbytes for info in store.list()}

    def _check_without_links(self) -> None:
        if not is_local(self._store):
            return
        for info, is_link in list_in_place(self._store, ""):
            if is_link:
                message = (
                    f"{self._store.url} has the symbolic link {info.key!r}, through which an export would write "
                    "elsewhere; remove the link, or export into an empty folder"
                )
                raise Conflict(message, what="symbolic link", where=self._store.url, given=info.key)

    def find(self, number: int) -> dict[str, Any] | None:
        """Return a unit's record if all its objects exist, else None."""
        if (key := _unit(number)) not in self._there:
            return None
        try:
            note = parse_json_object(self._store.get(key).data)
        except (DamagedJson, ObjectNotFound):
            return None  # the unit is exported again
        objects = note.get("objects", ())
        if all(self._there.get(one["path"]) == one["nbytes"] for one in objects):
            return note
        return None

    def add(self, number: int, note: dict[str, Any]) -> None:
        """Record a unit whose objects are written."""
        self._store.put(_unit(number), canonical_json(note))

    def finish(self, facts: dict[str, Any], *, is_ours: bool) -> None:
        """Record the end of the export. is_ours: True if an import can restore the columns."""
        self._store.put(_DONE if is_ours else _COPIED, canonical_json({**self._of, **facts}))

    def _other(self, export: str, differing: Sequence[str] = ()) -> Conflict:
        message = (
            f"{self._store.url} holds an export of {export}; repeat that one, or export into "
            "an empty folder or prefix"
        )
        return Conflict(message, what="export", where=self._store.url, given=list(differing))


def _unit(number: int) -> str:
    return f"{FOLDER}units/{number:06d}.json"


class Loss(NamedTuple):
    name: str
    """Such as "field 'Jpg'"."""
    why: str
    """Reason, and what the export does instead."""


class Exporter(Protocol):
    """A module that exports a format."""

    def losses(self, selection: ExportSelection) -> list[Loss]:
        """Return everything that the format cannot represent."""

    def units(self, selection: ExportSelection) -> list[WorkUnit]:
        """Return the units, each written as whole objects; deterministic."""

    def write(self, selection: ExportSelection, unit: WorkUnit, outbox: Outbox) -> dict[str, Any]:
        """Write a unit's objects; return its facts for `finish`. Raises: Corrupt."""

    def finish(self, selection: ExportSelection, facts: Sequence[dict[str, Any]], outbox: Outbox) -> None:
        """Write the objects that describe the whole export. facts: by unit, in order."""


def refuse(format: str, name: str, losses: Sequence[Loss]) -> None:
    """Raise LossyExport with each loss. name: version name."""
    if not losses:
        return
    lines = [f"  {loss.name}: {loss.why}" for loss in losses]
    remedy = "leave it out with --without NAME, or accept the loss with --lossy"
    message = "\n".join([f"{format} cannot hold all of {name}:", *lines, remedy])
    raise LossyExport(message, what=[loss.name for loss in losses], where=name, given=format)


def in_parcels(samples: Iterable[bytes], most: int) -> Iterator[list[bytes]]:
    """Yield encoded samples, together at most `most` bytes unless one is larger."""
    parcel = list[bytes]()
    nbytes = 0
    for data in samples:
        if parcel and nbytes + len(data) > most:
            yield parcel
            parcel = []
            nbytes = 0
        parcel.append(data)
        nbytes += len(data)
    yield parcel


def put_parcel(outbox: Outbox, key: str, samples: Sequence[bytes], config: bytes = b"") -> int:
    """Write the number of samples, uint32 offsets, `config` and samples, as MDS and LitData do; return the size."""
    offsets = np.cumsum([4 * (len(samples) + 2) + len(config), *map(len, samples)])
    with outbox.file(key) as file:
        file.write(np.array([len(samples), *offsets], "<u4").tobytes())
        file.write(config)
        for data in samples:
            file.write(data)
        return file.nbytes


def check_value(sample: ExportSample, name: str, format: str, *, is_text: bool, item: int = 1) -> bytes:
    """Return a field. Raises: InvalidSample if it is not UTF-8 text, or no whole values of `item` bytes."""
    data = sample.fields[name]
    if is_text:
        try:
            data.decode()
        except UnicodeDecodeError as error:
            raise InvalidSample(
                f"sample {sample.key!r}: {name} is not UTF-8 ({error}), which {format} needs; leave it out (--without)"
            ) from error
    elif len(data) % item:
        raise InvalidSample(
            f"sample {sample.key!r}: {name} has {len(data)} bytes, no whole values; leave it out (--without)"
        )
    return data
