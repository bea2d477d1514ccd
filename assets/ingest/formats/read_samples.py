"""Samples of a batch whose raw objects an importer reads: tables, records, logs of robots. They are copied.

Each object is read to its end at the audit, in a worker: an object that kills or holds its reader costs itself alone.
"""

import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import loader
from loader.dataset.columnar.choices import Options
from loader.dataset.columnar.column_names import duplicate_key
from loader.dataset.names import key_hash
from loader.dataset.shards.part import part_rows
from loader.dataset.shards.shard import DEFAULT_SHARD_BYTES
from loader.dataset.writing.spill import Sample
from loader.errors import Changed, PenstockError, StoreError, Throttled, Transient
from loader.storage import ObjectInfo, Store
from penstock.card.counting.classes import modality_of
from penstock.compute.pool import Compute, Outcome, Progress
from penstock.compute.pool.store_variables import store_variables
from penstock.sources import importer_named
from penstock.sources.importing.importer import Importer, Readable
from penstock.sources.importing.read_units import ReadUnit, UnitReader
from penstock.sources.importing.spilled import Spilled, SpilledUnit
from penstock.sources.importing.unit_writer import UnitWriter

from ...joined_objects import JoinedObjects
from ...media.media_table import media_row
from ...media.objects import refusal_row
from ...media.unit import Unusable, dropped, rejected
from ...source_formats import companions
from ...spec import DatasetSpec
from .foreign_samples import fresh_objects, landed_info, not_of
from .sample_facts import Row, Taken, key_in_dataset, metadata_of, source_of, unit_row

_NOT_THE_OBJECTS_FAULT = (Throttled, Transient)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadRequest:
    """One object to be read to its end."""

    store: Store
    """Store of the object."""
    row: Row
    """Its row of the table of raw objects."""
    format: str
    """Format of the object."""
    choices: dict[str, Any]
    """Choices of the reader, as `Options.to_json`."""
    batch: str
    """Text that differs between two audits: a place is listed once for each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadResult:
    """Result of reading an object: neither refusal nor fault where it is sound."""

    refusal: Row | None = None
    """Row of the `refusals` table; None for none."""
    fault: str = ""
    """Fault of this machine or the store, not of the object; "" for none."""


class _Place:
    """Raw objects of one format where they landed."""

    def __init__(self, landing: Store, format: str, options: Options) -> None:
        """Costs a listing where others of the place tell of an object. Raises: StoreError."""
        found = importer_named(format)
        assert found is not None, format
        self._importer: Importer = found
        self.landing, self._format, self._options = landing, format, options
        self._files = landing.place if isinstance(landing, JoinedObjects) else landing
        self._all: Readable | PenstockError | None = None
        self._keys = frozenset[str]()
        if companions(format):
            try:
                if isinstance(landing, JoinedObjects):
                    self._all = landing.readable()
                else:
                    self._all = self._importer.look(landing, list(landing.list()), options)
                self._keys = frozenset(info.key for info in self._all.infos)
            except _NOT_THE_OBJECTS_FAULT:
                raise
            except PenstockError as error:
                self._all = error

    def readable(self, info: ObjectInfo) -> Readable:
        """Return the reader of an object. Raises: as the format; Unusable where it is not of the format."""
        if isinstance(self._all, PenstockError):
            raise self._all
        found = self._all or self._importer.look(self._files, [info], self._options)
        if not (info.key in self._keys if self._all else found.infos):
            raise not_of(self._format)
        return found

    def samples(self, info: ObjectInfo) -> Iterator[Sample]:
        """Yield the samples of an object, checked. Raises: as the format; Unusable; DuplicateKey."""
        readable, seen = self.readable(info), set[bytes]()
        reader = UnitReader(self._files, readable, self._options, (), [])
        for sample in reader(ReadUnit(info.key, list(readable.runs(info)))):
            if (hashed := key_hash(sample.key)) in seen:
                raise duplicate_key(sample.key, info.key)
            seen.add(hashed)
            yield sample


_places: dict[str, _Place] = {}
"""Batch -> its place: of one batch, in each worker."""


def read_object(request: ReadRequest) -> ReadResult:
    """Read an object to its end. It runs in a worker, where formats' libraries are imported."""
    row = request.row
    try:
        if request.batch not in _places:
            _places.clear()
            options = Options.from_json(request.choices)
            _places[request.batch] = _Place(request.store, request.format, options)
        place = _places[request.batch]
        n_samples = sum(1 for _ in place.samples(landed_info(place.landing, row)))
        if not n_samples:
            raise dropped("probe", "no_samples", "it holds no sample")
    except _NOT_THE_OBJECTS_FAULT as error:
        return ReadResult(fault=f"{type(error).__name__}: {error}")
    except Changed as error:
        replaced = dropped("fetch", Changed.__name__, error)
        return ReadResult(refusal=refusal_row(row["key"], row["sha256"], replaced))
    except Unusable as unusable:
        return ReadResult(refusal=refusal_row(row["key"], row["sha256"], unusable))
    except PenstockError as error:
        damaged = rejected("probe", type(error).__name__, error)
        return ReadResult(refusal=refusal_row(row["key"], row["sha256"], damaged))
    return ReadResult()


def audit_read(
    landing: Store,
    compute: Compute,
    spec: DatasetSpec,
    landed: Sequence[Row],
    progress: Progress | None = None,
) -> tuple[list[Row], list[Row]]:
    """Read every object once, and return (media rows, refusal rows), in landing order. Raises: StoreError."""
    batch, choices = secrets.token_hex(8), spec.sources[0].choices.to_json()
    work = [
        ReadRequest(store=landing, row=row, format=spec.format, choices=choices, batch=batch)
        for row in landed
    ]
    outcomes = compute.map(
        read_object,
        work,
        timeout_s=spec.max_work_timeout_s,
        progress=progress,
        variables=store_variables(landing),
    )
    admitted, refusals = list[Row](), list[Row]()
    for row, outcome in zip(landed, outcomes, strict=True):
        if (refusal := _refusal(row, outcome)) is not None:
            refusals.append(refusal)
            continue
        facts = {"mime": row["mime"], "kind": spec.format, "nbytes": row["nbytes"], "container": spec.format}
        admitted.append(media_row(facts) | {"key": row["key"], "sha256": row["sha256"]})
    return admitted, refusals


def _refusal(row: Row, outcome: Outcome[ReadResult]) -> Row | None:
    """Return the refusal of an object; None for a sound one. Raises: StoreError for a fault."""
    if outcome.value is None:
        error = outcome.error
        code, reason = (error.code, error.summary) if error else ("exception", "no result")
        return refusal_row(row["key"], row["sha256"], rejected("probe", code, reason))
    if outcome.value.fault:
        raise StoreError(f"{row['key']!r} could not be audited: {outcome.value.fault}")
    return outcome.value.refusal


def write_read(
    root: loader.Root,
    landing: Store,
    spec: DatasetSpec,
    txn: str,
    audits: Sequence[Row],
    raws: Mapping[str, Row],
    published: Mapping[str, str],
    provenance: Mapping[str, str],
    labels: Sequence[str],
) -> Taken:
    """Write the parts of the admitted objects.

    published: sha256 -> where these bytes are in the dataset. labels: class names of the dataset, in the order of their
    numbers; empty for none. Scratch holds all samples.

    Raises: FieldMismatch for samples without a field that all of the
    dataset have; as the format; StoreError.
    """
    infos, refusals = fresh_objects(landing, audits, raws, published)
    place, names = _Place(landing, spec.format, spec.sources[0].choices), list(labels)
    newest = root.state.newest(spec.name)
    known = root.open(newest.id).manifest["groups"] if newest else {}
    facts = dict[str, Mapping[str, Any]]()
    with closing(Spilled()) as spilled:
        for info in infos:
            readable = place.readable(info)
            facts.update(readable.facts)
            found = readable.labels or ()
            if list(found[: len(names)]) != names[: len(found)]:
                why = f"its class names are {list(found)}, the dataset's {names}: make another dataset of it"
                raw = raws[info.key]
                refusals.append(refusal_row(info.key, raw["sha256"], rejected("cut", "other_classes", why)))
                continue
            names = max(names, list(found), key=len)
            for sample in place.samples(info):
                spilled.add(_taken(spec, raws[info.key], sample, provenance))
        if not spilled.kinds:
            return Taken(refusals=refusals, labels=names)
        group_of = spilled.group_of(known).__getitem__
        write = UnitWriter[SpilledUnit](
            root.store, txn, _drained, group_of, DEFAULT_SHARD_BYTES, secrets.token_hex(8)
        )
        written = write(SpilledUnit(spilled))
    parts, rows = list[tuple[str, loader.Part]](), list[Row]()
    for part in written.parts:
        kind = modality_of({name for shard in part.shards for name in shard.field_nbytes})
        parts.append((kind, part))
        rows += (unit_row(row["key"], kind, part.id, row) for row in part_rows(root.store, part))
    return Taken(parts=parts, rows=rows, refusals=refusals, labels=names, facts=facts)


def _drained(unit: SpilledUnit) -> Iterator[Sample]:
    return unit.spilled.drain()


def _taken(spec: DatasetSpec, raw: Row, sample: Sample, provenance: Mapping[str, str]) -> Sample:
    """Return a sample as the dataset takes it."""
    source_key = sample.source.get("source_key", sample.key)
    return replace(
        sample,
        key=key_in_dataset(raw, source_key, max(map(len, sample.fields))),
        metadata=metadata_of(raw, sample.metadata, modality_of(set(sample.fields))),
        source={**sample.source, **source_of(spec, raw, source_key, sample.source, provenance)},
    )
