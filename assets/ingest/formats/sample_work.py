"""The works READ and COPY: a node writes samples of raw objects as parts, by an importer or by copying runs of them."""

import secrets
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, TypeVar, cast

from loader.dataset.columnar.choices import ColumnarOptions
from loader.dataset.columnar.column_names import Partitions, duplicate_key
from loader.dataset.columnar.json_members import JsonMembers
from loader.dataset.names import key_hash
from loader.dataset.shards.shard import DEFAULT_SHARD_BYTES
from loader.dataset.writing.part_writer import write_part
from loader.dataset.writing.spill import Sample
from loader.errors import FieldMismatch, PenstockError
from loader.storage import ObjectInfo, Store
from loader.storage.store import list_place
from penstock.card.classes import modality_of
from penstock.compute.pool import is_fault
from penstock.compute.work import Node, Work
from penstock.formats.importer import Importer, Readable
from penstock.formats.importing.read_units import ReadUnit, Spilled, UnitReader
from penstock.formats.importing.spans import read_fields, samples_in
from penstock.formats.importing.write_parts import PartLayout, write_parts
from penstock.formats.registration.selection import live_files
from penstock.formats.registration.shard_rows import COMMON, shards_of
from penstock.formats.registry import FORMATS, importer_named

from ...joined_objects import JoinedObjects
from ...media.media_table import media_row
from ...media.objects import refusal_row
from ...media.unit import Unusable, dropped
from ...sources import JOINED, companions, read_formats
from .admission import Admission, EarlierSamples
from .sample_facts import OWN_COLUMNS, Row, TakingRules, key_in_dataset, metadata_of, source_of, unit_row
from .walked_objects import (
    landed_info,
    not_of,
    once_a_batch,
    refused_where_unreadable,
    samples_of,
    walked_place,
)


class ReadPlace:
    """Raw objects of a read format, in their source."""

    def __init__(self, files: Store, format: str, options: ColumnarOptions) -> None:
        """Open the source. Costs a listing if other files describe an object."""
        importer = importer_named(format)
        assert importer is not None, format
        self._importer: Importer = importer
        joined = JoinedObjects(files, format, options) if format in JOINED else None
        self.landing = cast(Store, joined or files)
        self._files = files
        self._format = format
        self._options = options
        self.is_partitioned = FORMATS[format].is_partitioned
        self._all: Readable | PenstockError | None = None
        self._keys = frozenset[str]()
        self.has_members = False
        """True once JSON documents become columns."""
        self.members = JsonMembers()
        """JSON values that became no column."""
        if companions(format):
            try:
                if joined is not None:
                    readable = joined.readable()
                else:
                    live = live_files(files, format, list(list_place(files)))
                    readable = self._importer.find_readable(files, live, options)
                self._all = readable
                self._keys = frozenset(info.key for info in readable.infos)
            except PenstockError as error:
                if is_fault(error):
                    raise
                # Raised again for each object, so that each has a refusal with this reason.
                self._all = error

    def readable(self, info: ObjectInfo) -> Readable:
        """Return an object's reader. Raises: Unusable for another format; errors of the format."""
        if isinstance(self._all, PenstockError):
            raise self._all
        if self._all is not None:
            readable = self._all
            is_readable = info.key in self._keys
        else:
            readable = self._importer.find_readable(self._files, [info], self._options)
            is_readable = bool(readable.infos)
        if not is_readable:
            raise not_of(self._format)
        if readable.members is not None:
            self.has_members = True
            readable.members.leave_out(self._options.without, OWN_COLUMNS, self.members)
        return readable

    def has_samples(self, info: ObjectInfo) -> bool:
        """Read an object to its end; return whether it has a sample."""
        return sum(1 for _ in self.samples(info)) > 0  # counted to the end, where damage may be

    def samples(self, info: ObjectInfo, readable: Readable | None = None) -> Iterator[Sample]:
        """Check and yield an object's samples. readable: its reader, if it is open already.

        Raises: Unusable; DuplicateKey; errors of the format.
        """
        if readable is None:
            readable = self.readable(info)
        reader = UnitReader(self._files, readable, self._options, (), [])
        unit = ReadUnit(info.key, list(readable.runs(info)))
        key_hashes = set[bytes]()  # shorter than keys: an object may have millions of samples
        for sample in reader(unit):
            hashed = key_hash(sample.key)
            if hashed in key_hashes:
                raise duplicate_key(sample.key, info.key)
            key_hashes.add(hashed)
            yield sample


read_place = once_a_batch(ReadPlace)


def audit_samples(landing: Store, raw: Row, format: str, choices: Mapping[str, Any], batch: str) -> Row:
    """Return an object's row of `media`, after walking or reading its samples to the end.

    choices: reader options, as `ColumnarOptions.to_json`. batch: id of one audit, which lists a source only once.

    Raises: Unusable; Fault; Throttled; Transient.
    """
    with refused_where_unreadable("probe"):
        place_of = read_place if format in read_formats() else walked_place
        source = place_of(batch, landing, format, ColumnarOptions.from_json(dict(choices)))
        if not source.has_samples(landed_info(source.landing, raw)):
            raise dropped("probe", "no_samples", "it holds no sample")
    facts = {"mime": raw["mime"], "kind": format, "nbytes": raw["nbytes"], "container": format}
    return media_row(facts) | {"key": raw["key"], "sha256": raw["sha256"]}


# Rough rates, for the estimates by which work is divided.
_BYTES_PER_S = 20e6
_COPIED_BYTES_PER_S = 50e6


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleTask:
    """Raw objects whose samples a node writes as parts."""

    landing: str
    """URL of the objects' store."""
    root: str
    """URL of the store for the parts."""
    txn: str
    """Transaction of the parts."""
    raws: list[Row] = field(default_factory=list)
    """Rows of `raw_objects`, in key order."""
    earlier: dict[str, EarlierSamples] = field(default_factory=dict)
    """Key of an object -> its samples in the dataset."""
    rules: TakingRules
    """Rules for ingesting the samples."""
    limit_s: float
    """Time limit in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadTask(SampleTask):
    """Neighbouring raw objects of a batch, to read."""

    name: str = ""
    """Name of the first part in the transaction."""
    groups: dict[str, list[str]]
    """Known group -> its fields."""
    texts: list[str] = field(default_factory=list)
    """Columns from folder names with text values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadParts:
    """Samples read from a unit."""

    parts: list[dict[str, Any]] = field(default_factory=list)
    """Parts as JSON; none if no known group fits."""
    kinds: list[tuple[list[str], str, str]] = field(default_factory=list)
    """(sorted fields, key of the first sample, key of its object)."""
    labels: dict[str, list[str]] = field(default_factory=dict)
    """Key of an object -> its class names."""
    columns: dict[str, dict[str, str]] = field(default_factory=dict)
    """Key of a table -> column -> `ColumnAgreement.becomes`."""
    facts: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Field -> facts from the format."""
    refusals: list[Row] = field(default_factory=list)
    of_json: bool = False
    """True if JSON documents become columns."""
    notes: dict[str, tuple[int, str]] = field(default_factory=dict)
    """Why a JSON value became no column -> (count, example)."""
    admission: Admission = field(default_factory=Admission)
    """Admitted samples."""


def read_samples(task: ReadTask, node: Node) -> ReadParts:
    """Read the samples of raw objects through scratch, and write all readable ones.

    Raises: InvalidSample if no part may hold a sample; StoreError.
    """
    place = read_place(task.txn, node.open(task.landing), task.rules.format, task.rules.options)
    place.members = JsonMembers()
    raws = list(task.raws)
    refusals = list[Row]()
    partitions = Partitions((), task.rules.options.without, task.texts)
    while True:
        result = ReadParts(refusals=refusals)
        with closing(Spilled()) as spilled:
            try:
                for raw in raws:
                    _spill(task, place, raw, partitions, result, spilled)
            except Unusable as unusable:
                raws.remove(raw)
                refusals.append(refusal_row(raw["key"], raw["sha256"], unusable))
                continue  # start over without this object, because scratch has some of its samples
            result = replace(result, of_json=place.has_members, notes=place.members.notes)
            return replace(result, **_written(task, node, spilled, place.has_members))


def _spill(
    task: ReadTask, place: ReadPlace, raw: Row, partitions: Partitions, result: ReadParts, spilled: Spilled
) -> None:
    """Add an object's admitted samples to scratch, and its facts and admission to the result."""
    earlier = task.earlier.get(raw["key"], EarlierSamples())
    known = {**raw, "first_sha256": earlier.first_sha256}
    for sample in _samples(place, raw, result, partitions):
        has_own_split = bool(task.rules.own_split(sample.source))
        # A JSON document's columns are not content: the document itself is a field.
        columns: Mapping[str, Any] = {}
        if place.has_members:
            columns = sample.metadata
        if columns:
            sample = replace(sample, metadata={})
        admitted = result.admission.admit(_for_dataset(task.rules, known, sample), earlier, has_own_split)
        if admitted is None:
            continue
        if columns:
            admitted = replace(admitted, metadata={**admitted.metadata, **columns})
        spilled.add(admitted)


def _samples(place: ReadPlace, raw: Row, result: ReadParts, partitions: Partitions) -> Iterator[Sample]:
    with refused_where_unreadable("cut"):
        info = landed_info(place.landing, raw)
        readable = place.readable(info)
        result.facts.update({name: dict(facts) for name, facts in readable.facts.items()})
        if readable.labels:
            result.labels[info.key] = list(readable.labels)
        for sample in place.samples(info, readable):
            if place.is_partitioned:
                sample = replace(sample, metadata=dict(partitions.joined(info.key, sample.metadata)))
            yield sample
        if readable.columns is not None:
            result.columns[info.key] = readable.columns.becomes


def _written(task: ReadTask, node: Node, spilled: Spilled, any_values: bool) -> dict[str, Any]:
    kinds = [(list(kind), rows.source_keys[0], rows.objects[0]) for kind, rows in spilled.kinds.items()]
    if not kinds:
        return {}
    groups = {group: {"field_nbytes": names} for group, names in task.groups.items()}
    try:
        group_of = spilled.group_of(groups)
    except FieldMismatch:  # the submitter raises it too, unless it leaves the object out
        return {"kinds": kinds}
    layout = PartLayout(
        store=node.open(task.root),
        txn=task.txn,
        group_of=group_of.__getitem__,
        shard_bytes=DEFAULT_SHARD_BYTES,
        folder=secrets.token_hex(8),
        any_values=any_values,
    )
    written = write_parts(spilled.drain(), layout, task.name)
    return {"kinds": kinds, "parts": [part.to_json() for part in written.parts]}


def _for_dataset(rules: TakingRules, raw: Row, sample: Sample) -> Sample:
    source_key = sample.source.get("source_key", sample.key)
    longest_name = max(map(len, sample.fields))
    kind = modality_of(set(sample.fields))
    return replace(
        sample,
        key=key_in_dataset(raw, source_key, longest_name),
        metadata=metadata_of(rules, raw, sample.metadata, kind),
        source={**sample.source, **source_of(rules, raw, source_key, sample.source)},
    )


T = TypeVar("T", bound=SampleTask)


def _alike(task: T) -> T:
    return replace(task, rules=task.rules.of_no_run)


def _limit_s(task: SampleTask) -> float:
    return task.limit_s


def _read_s(task: SampleTask) -> float:
    return float(sum(raw["nbytes"] for raw in task.raws) / _BYTES_PER_S)


def _copy_s(task: SampleTask) -> float:
    return float(sum(raw["nbytes"] for raw in task.raws) / _COPIED_BYTES_PER_S)


READ = Work(
    name="read",
    version="2",
    function=read_samples,
    unit=ReadTask,
    result=ReadParts,
    timeout_s=_limit_s,
    cost_s=_read_s,
    alike=_alike,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyTask(SampleTask):
    """A run of samples with the same fields, of one shard's raw objects, to copy."""

    number: int
    """Number of the part within the batch."""
    run: int
    """Number of the run within the shard."""
    groups: dict[str, str]
    """Field -> group."""
    columns: dict[str, str] = field(default_factory=dict)
    """Column from JSON documents -> its type in this batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CopiedPart:
    """The part copied from a run."""

    part: dict[str, Any] | None
    """Part as JSON; None if every sample is left out."""
    rows: list[Row]
    """Rows of `units`."""
    admission: Admission
    """Admitted samples."""


def copy_run(task: CopyTask, node: Node) -> CopiedPart:
    """Copy a run of samples. Raises: Unusable if an object was replaced; errors of the format; StoreError."""
    landing = node.open(task.landing)
    rules = task.rules
    place = walked_place(task.txn, landing, rules.format, rules.options)
    infos = [landed_info(landing, raw) for raw in task.raws]
    (shard,) = shards_of(infos, len(infos))
    rows = place.rows(shard)[task.run]
    if task.columns:
        table = rows.metadata_table()
        if table is not None:
            rows.metadata = place.members.as_agreed(table, task.columns)
    raws = {raw["key"]: raw for raw in task.raws}
    known_samples = list(samples_of(rules, shard, rows, raws))
    (run,) = samples_in([(shard, rows)], [[known.key for known in known_samples]])
    admission = Admission()
    sources: dict[str, Mapping[str, str]] = {}

    def samples_of_run() -> Iterator[tuple[Any, ...]]:
        for fields, known in zip(read_fields(landing, run), known_samples, strict=True):
            # A JSON document's columns depend on batch and release, so only the document counts as content.
            content = {name: value for name, value in known.metadata.items() if name not in task.columns}
            from_json = {name: value for name, value in known.metadata.items() if name in task.columns}
            sample = Sample(key=known.key, fields=fields, metadata=content, source=known.source)
            earlier = task.earlier.get(known.source["raw_key"], EarlierSamples())
            admitted = admission.admit(sample, earlier, known.has_own_split)
            if admitted is None:
                continue
            sources[admitted.key] = admitted.source
            yield admitted.key, admitted.fields, {**admitted.metadata, **from_json}, admitted.source

    # One sample is read ahead, because a part without samples cannot be written.
    samples = samples_of_run()
    first = next(samples, None)
    if first is None:
        return CopiedPart(part=None, rows=[], admission=admission)
    part = write_part(
        node.open(task.root),
        task.txn,
        chain([first], samples),
        group=COMMON,
        groups=task.groups,
        name=f"{task.number:05d}",
    )
    # Only now: writing the part has filled `sources` and `admission`.
    kind = modality_of(set(rows.fields))
    units = list[Row]()
    for key, source in sources.items():
        units.append(unit_row(key, kind, part.id, source, admission.contents[key]))
    return CopiedPart(part=part.to_json(), rows=units, admission=admission)


COPY = Work(
    name="copy",
    version="3",
    function=copy_run,
    unit=CopyTask,
    result=CopiedPart,
    timeout_s=_limit_s,
    cost_s=_copy_s,
    alike=_alike,
)
