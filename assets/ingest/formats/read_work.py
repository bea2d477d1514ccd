"""The work READ: a node reads samples of raw objects through an importer, and writes them as parts."""

import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar, cast

from loader.dataset.columnar.choices import ColumnarOptions
from loader.dataset.columnar.column_names import Partitions, duplicate_key
from loader.dataset.columnar.json_members import JsonMembers
from loader.dataset.names import key_hash
from loader.dataset.shards.shard import DEFAULT_SHARD_BYTES
from loader.dataset.writing.spill import Sample
from loader.errors import FieldMismatch, PenstockError
from loader.storage import ObjectInfo, Store
from loader.storage.store import list_place
from penstock.card.classes import fields_modality
from penstock.compute.pool import is_fault
from penstock.compute.work import Node, Work
from penstock.formats.importer import Importer, Readable
from penstock.formats.importing.read_units import ReadUnit, Spilled, UnitReader
from penstock.formats.importing.write_parts import PartLayout, write_parts
from penstock.formats.registration.selection import live_files
from penstock.formats.registry import FORMATS, importer_named

from ...arrivals.joined_objects import JoinedObjects
from ...media.media_table import media_row
from ...media.objects import refusal_row
from ...media.unit import Unusable, dropped
from ...sources import JOINED, companions, read_formats
from .admission import Admission, ObjectHistory
from .sample_facts import (
    OWN_COLUMNS,
    IngestRules,
    Row,
    key_in_dataset,
    sample_metadata,
    sample_provenance,
)
from .walked_objects import (
    WalkedPlace,
    cache_sources,
    object_info,
    refuse_unreadable,
    walked_place,
    wrong_format,
)


class ReadPlace:
    """Raw objects of a read format, in their source."""

    def __init__(
        self,
        files: Store,
        format: str,
        options: ColumnarOptions,
    ) -> None:
        """Open the source. Costs a listing if other files describe an object."""
        importer = importer_named(format)
        assert importer is not None, format
        self._importer: Importer = importer
        self._joined: JoinedObjects | None = None
        self.landing = files
        """Store of the raw objects, each with all its files."""
        if format in JOINED:
            self._joined = JoinedObjects(files, format, options)
            self.landing = cast(Store, self._joined)
        self._files = files
        self._format = format
        self._options = options
        self.is_partitioned = FORMATS[format].is_partitioned
        # The reader of all objects, or why there is none; None if each object describes itself.
        self._all: Readable | PenstockError | None = None
        self._keys = frozenset[str]()  # of the objects that `_all` reads
        self.has_members = False
        """True once JSON documents become columns."""
        self.members = JsonMembers()
        """JSON values that became no column."""
        if companions(format):
            self._find_all()

    def _find_all(self) -> None:
        """Open one reader for all objects, and set `_all` and `_keys`.

        Other files describe these objects, so an object cannot be opened by itself.
        """
        try:
            if self._joined is not None:
                readable = self._joined.readable()  # it lists and joins the objects' files itself
            else:
                listed = list(list_place(self._files))
                # Files that a table's log removed are left out.
                live = live_files(self._files, self._format, listed)
                readable = self._importer.find_readable(self._files, live, self._options)
        except PenstockError as error:
            if is_fault(error):
                raise
            # Raised again for each object, so that each has a refusal with this reason.
            self._all = error
            return
        self._all = readable
        self._keys = frozenset(info.key for info in readable.infos)

    def reader_of(self, info: ObjectInfo) -> Readable:
        """Return the reader of an object, which adds to `members`.

        Raises: Unusable for another format; errors of the format.
        """
        if isinstance(self._all, PenstockError):
            raise self._all
        if self._all is None:
            readable = self._importer.find_readable(self._files, [info], self._options)
            is_readable = bool(readable.infos)
        else:
            readable = self._all
            is_readable = info.key in self._keys
        if not is_readable:
            raise wrong_format(self._format)
        if readable.members is not None:
            self.has_members = True
            readable.members.leave_out(self._options.without, OWN_COLUMNS, self.members)
        return readable

    def has_samples(self, info: ObjectInfo) -> bool:
        """Read an object to its end; return whether it has a sample."""
        n_samples = 0
        for _ in self.samples(info):  # to the end, where damage may be
            n_samples += 1
        return n_samples > 0

    def samples(
        self,
        info: ObjectInfo,
        readable: Readable | None = None,
    ) -> Iterator[Sample]:
        """Check and yield an object's samples. readable: its reader, if it is open already.

        Raises: Unusable; DuplicateKey; errors of the format.
        """
        if readable is None:
            readable = self.reader_of(info)
        reader = UnitReader(
            self._files,
            readable,
            self._options,
            in_use=(),  # `Admission` compares with the dataset instead
            failures=[],  # only for units of several objects
        )
        # One unit for all runs, because a key may occur only once in the whole object.
        runs = list(readable.runs(info))
        unit = ReadUnit(info.key, runs)
        key_hashes = set[bytes]()  # shorter than keys: an object may have millions of samples
        for sample in reader(unit):
            hashed = key_hash(sample.key)
            if hashed in key_hashes:
                raise duplicate_key(sample.key, info.key)
            key_hashes.add(hashed)
            yield sample


read_place = cache_sources(ReadPlace)


def audit_samples(
    landing: Store,
    raw: Row,
    format: str,
    choices: Mapping[str, Any],
    audit_id: str,
) -> Row:
    """Return an object's row of `media`, after walking or reading its samples to the end, where damage may be.

    choices: reader options, as `ColumnarOptions.to_json`. audit_id: random id of the batch's audit, for which this
    process opens the source only once.

    Raises: Unusable; Fault; Throttled; Transient.
    """
    open_source: Callable[..., ReadPlace | WalkedPlace] = walked_place
    if format in read_formats():  # an importer reads its samples; others are walked as archives
        open_source = read_place
    with refuse_unreadable("probe"):
        options = ColumnarOptions.from_json(dict(choices))
        source = open_source(audit_id, landing, format, options)
        info = object_info(source.landing, raw)
        if not source.has_samples(info):
            raise dropped("probe", "no_samples", "it holds no sample")
    facts = {
        "mime": raw["mime"],
        "kind": format,
        "nbytes": raw["nbytes"],
        "container": format,
    }
    row = media_row(facts)
    row["key"] = raw["key"]
    row["sha256"] = raw["sha256"]
    return row


_BYTES_PER_S = 20e6
"""Rough rate, for the estimates by which work is divided."""


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
    earlier: dict[str, ObjectHistory] = field(default_factory=dict)
    """Key of an object -> its samples in the dataset."""
    rules: IngestRules
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
    """(sorted fields, source key of the first sample, key of its object) per set of fields."""
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
    rules = task.rules
    place = read_place(task.txn, node.open(task.landing), rules.format, rules.options)
    # The place may be cached from the task before. Only this task's values are counted.
    place.members = JsonMembers()
    raws = list(task.raws)
    refusals = list[Row]()
    partitions = Partitions((), rules.options.without, task.texts)
    while True:  # until no object is refused
        result = ReadParts(refusals=refusals)
        with closing(Spilled()) as spilled:
            try:
                for raw in raws:
                    _spill(task, place, raw, partitions, result, spilled)
            except Unusable as unusable:
                raws.remove(raw)
                refusals.append(refusal_row(raw["key"], raw["sha256"], unusable))
                continue  # start over without this object, because scratch has some of its samples
            kinds = _sample_kinds(spilled)
            parts = _write_samples(task, node, spilled, place.has_members)
            return replace(
                result,
                kinds=kinds,
                parts=parts,
                of_json=place.has_members,
                notes=place.members.notes,
            )


def _spill(
    task: ReadTask,
    place: ReadPlace,
    raw: Row,
    partitions: Partitions,
    result: ReadParts,
    spilled: Spilled,
) -> None:
    """Add an object's admitted samples to `spilled` (scratch), and its facts and admission to `result`."""
    earlier = task.earlier.get(raw["key"], ObjectHistory())
    raw = dict(raw)
    raw["first_sha256"] = earlier.first_sha256  # decides the split: see `sample_provenance`
    for sample in _samples(place, raw, result, partitions):
        has_own_split = bool(task.rules.own_split(sample.source))
        # A JSON document's columns are not content: the document itself is a field.
        from_json: Mapping[str, Any] = {}
        if place.has_members and sample.metadata:
            from_json = sample.metadata
            sample = replace(sample, metadata={})
        sample = _for_dataset(task.rules, raw, sample)
        admitted = result.admission.admit(sample, earlier, has_own_split)
        if admitted is None:
            continue
        if from_json:
            metadata = {**admitted.metadata, **from_json}
            admitted = replace(admitted, metadata=metadata)
        spilled.add(admitted)


def _samples(
    place: ReadPlace,
    raw: Row,
    result: ReadParts,
    partitions: Partitions,
) -> Iterator[Sample]:
    """Yield an object's samples, and add its facts to `result`, all of them only after the last sample."""
    with refuse_unreadable("cut"):
        info = object_info(place.landing, raw)
        readable = place.reader_of(info)
        for name, facts in readable.facts.items():
            result.facts[name] = dict(facts)
        if readable.labels:
            result.labels[info.key] = list(readable.labels)
        for sample in place.samples(info, readable):
            if place.is_partitioned:
                metadata = partitions.joined(info.key, sample.metadata)
                sample = replace(sample, metadata=dict(metadata))
            yield sample
        if readable.columns is not None:  # complete only after the last sample
            result.columns[info.key] = readable.columns.becomes


def _sample_kinds(spilled: Spilled) -> list[tuple[list[str], str, str]]:
    """Return (fields, source key of the first sample, key of its object) for each set of fields in scratch."""
    kinds = list[tuple[list[str], str, str]]()
    for fields, rows in spilled.kinds.items():
        kinds.append((list(fields), rows.source_keys[0], rows.objects[0]))
    return kinds


def _write_samples(
    task: ReadTask,
    node: Node,
    spilled: Spilled,
    any_values: bool,
) -> list[dict[str, Any]]:
    """Write the samples in scratch as parts; return the parts as JSON, none if no known group fits.

    any_values: as in `PartLayout`.
    """
    if not spilled.kinds:
        return []
    # In the form of a manifest's groups.
    groups: dict[str, dict[str, list[str]]] = {}
    for group, names in task.groups.items():
        groups[group] = {"field_nbytes": names}
    try:
        group_of = spilled.group_of(groups)
    except FieldMismatch:  # the submitter raises it too, unless it leaves the object out
        return []
    layout = PartLayout(
        store=node.open(task.root),
        txn=task.txn,
        group_of=group_of.__getitem__,
        shard_bytes=DEFAULT_SHARD_BYTES,
        folder=secrets.token_hex(8),
        any_values=any_values,
    )
    written = write_parts(spilled.drain(), layout, task.name)
    return [part.to_json() for part in written.parts]


def _for_dataset(rules: IngestRules, raw: Row, sample: Sample) -> Sample:
    """Return the sample with key, metadata and provenance as the dataset has them."""
    source_key = sample.source.get("source_key", sample.key)
    longest_name = max(map(len, sample.fields))
    kind = fields_modality(set(sample.fields))
    source = dict(sample.source)
    source.update(sample_provenance(rules, raw, source_key, sample.source))
    return replace(
        sample,
        key=key_in_dataset(raw, source_key, longest_name),
        metadata=sample_metadata(rules, raw, sample.metadata, kind),
        source=source,
    )


T = TypeVar("T", bound=SampleTask)


def without_run(task: T) -> T:
    """Return the task as any run has it, so that a repeated run finds the results of the last one."""
    return replace(task, rules=task.rules.without_run_id())


def limit_s(task: SampleTask) -> float:
    """Return the time limit in seconds."""
    return task.limit_s


def _read_s(task: SampleTask) -> float:
    return task_nbytes(task) / _BYTES_PER_S


def task_nbytes(task: SampleTask) -> int:
    """Return the total size of the raw objects in bytes."""
    nbytes = 0
    for raw in task.raws:
        nbytes += raw["nbytes"]
    return nbytes


READ = Work(
    name="read",
    version="2",
    function=read_samples,
    unit=ReadTask,
    result=ReadParts,
    timeout_s=limit_s,
    cost_s=_read_s,
    alike=without_run,
)
