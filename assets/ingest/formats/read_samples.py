"""Samples of a batch whose raw objects an importer reads: tables, records, logs of robots. They are copied."""

import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any

import loader
from loader.dataset.columnar.choices import Options
from loader.dataset.columnar.column_names import duplicate_key
from loader.dataset.names import key_hash
from loader.dataset.shards.part import part_rows
from loader.dataset.shards.shard import DEFAULT_SHARD_BYTES
from loader.dataset.writing.spill import Sample
from loader.errors import PenstockError, Throttled, Transient
from loader.storage import ObjectInfo, Store
from penstock.card.counting.classes import modality_of
from penstock.sources import importer_named
from penstock.sources.importing.importer import Importer, Readable
from penstock.sources.importing.read_units import ReadUnit, UnitReader
from penstock.sources.importing.spilled import Spilled, SpilledUnit
from penstock.sources.importing.unit_writer import UnitWriter

from ...joined_objects import JoinedObjects
from ...media.objects import refusal_row
from ...media.unit import rejected
from ...source_formats import companions
from ...spec import DatasetSpec
from .sample_facts import Row, Taken, Taking, key_in_dataset, metadata_of, source_of, unit_row
from .walked_objects import fresh_objects, not_of


class ReadPlace:
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
            except (Throttled, Transient):
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

    def has_samples(self, info: ObjectInfo) -> bool:
        """Read an object to its end; return whether it holds a sample. Raises: as `samples`."""
        return sum(1 for _ in self.samples(info)) > 0

    def samples(self, info: ObjectInfo) -> Iterator[Sample]:
        """Yield the samples of an object, checked. Raises: as the format; Unusable; DuplicateKey."""
        readable, seen = self.readable(info), set[bytes]()
        reader = UnitReader(self._files, readable, self._options, (), [])
        for sample in reader(ReadUnit(info.key, list(readable.runs(info)))):
            if (hashed := key_hash(sample.key)) in seen:
                raise duplicate_key(sample.key, info.key)
            seen.add(hashed)
            yield sample


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
    place, names = ReadPlace(landing, spec.format, spec.sources[0].choices), list(labels)
    taking = Taking.of(spec, provenance)
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
                spilled.add(_taken(taking, raws[info.key], sample))
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


def _taken(taking: Taking, raw: Row, sample: Sample) -> Sample:
    """Return a sample as the dataset takes it."""
    source_key = sample.source.get("source_key", sample.key)
    return replace(
        sample,
        key=key_in_dataset(raw, source_key, max(map(len, sample.fields))),
        metadata=metadata_of(raw, sample.metadata, modality_of(set(sample.fields))),
        source={**sample.source, **source_of(taking, raw, source_key, sample.source)},
    )
