"""Reading of samples as a work: a node reads neighbouring raw objects, and writes their samples as parts."""

import secrets
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any

from loader.dataset.columnar.column_names import Partitions
from loader.dataset.columnar.json_members import JsonMembers
from loader.dataset.shards.shard import DEFAULT_SHARD_BYTES
from loader.dataset.writing.spill import Sample
from loader.errors import FieldMismatch
from penstock.card.classes import modality_of
from penstock.compute.work import Node, Work
from penstock.formats.importing.read_units import Spilled
from penstock.formats.importing.write_parts import PartLayout, write_parts

from ...media.objects import refusal_row
from ...media.unit import Unusable
from .known_samples import Beside, EarlierSamples
from .read_place import ReadPlace, read_place
from .sample_facts import Row, Taking, key_in_dataset, metadata_of, source_of
from .walked_objects import landed_info, refused_where_unreadable

_BYTES_PER_S = 20e6
"""Bytes that are read in a second, about."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadTask:
    """Neighbouring raw objects of a batch."""

    landing: str
    """URL of their store."""
    root: str
    """URL of the store that takes the parts."""
    txn: str
    """Transaction of the parts."""
    name: str = ""
    """Name of the first part in its transaction."""
    raws: list[Row] = field(default_factory=list)
    """Rows of the landed objects, by key."""
    earlier: dict[str, EarlierSamples] = field(default_factory=dict)
    """Key of an object -> samples that the dataset has of it, of those that it has some of."""
    groups: dict[str, list[str]]
    """Group -> its fields, of those that are known."""
    taking: Taking
    """Rules by which the dataset takes the samples."""
    limit_s: float
    """Seconds that the unit may take."""
    texts: list[str] = field(default_factory=list)
    """Columns that folders name whose values are text, in this batch or in the dataset."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadParts:
    """Samples of a unit."""

    parts: list[dict[str, Any]] = field(default_factory=list)
    """The parts as JSON; none where the samples do not fit the known groups."""
    kinds: list[tuple[list[str], str, str]] = field(default_factory=list)
    """Fields, sorted, of samples, and the key of the first one with these, and of its object."""
    labels: dict[str, list[str]] = field(default_factory=dict)
    """Key of an object -> its class names, of those that have some."""
    columns: dict[str, dict[str, str]] = field(default_factory=dict)
    """Key of a table -> column -> what it becomes, as `ColumnAgreement.becomes`."""
    facts: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Field -> facts of it that the format tells."""
    refusals: list[Row] = field(default_factory=list)
    """Rows of refused objects."""
    of_json: bool = False
    """True where values of JSON documents become columns, whose types all of the batch decide."""
    notes: dict[str, tuple[int, str]] = field(default_factory=dict)
    """Why values of JSON documents became no column -> how many, and one of them."""
    beside: Beside = field(default_factory=Beside)
    """The samples beside those that the dataset has."""


def read_samples(task: ReadTask, node: Node) -> ReadParts:
    """Read the samples of raw objects, and write those of all that can be read. Scratch holds them.

    Raises: InvalidSample for what no part may hold; StoreError.
    """
    place = read_place(task.txn, node.open(task.landing), task.taking.format, task.taking.options)
    place.members = JsonMembers()
    raws, refusals = list(task.raws), list[Row]()
    partitions = Partitions((), task.taking.options.without, task.texts)
    while True:
        made = ReadParts(refusals=refusals)
        with closing(Spilled()) as spilled:
            try:
                for raw in raws:
                    before = task.earlier.get(raw["key"], EarlierSamples())
                    known = {**raw, "first_sha256": before.first_sha256}
                    for sample in _samples(place, raw, made, partitions):
                        own = bool(task.taking.own_split(sample.source))
                        # Of a JSON document columns are no content: the document is a field.
                        columns = sample.metadata if place.has_members else {}
                        content = replace(sample, metadata={}) if columns else sample
                        if new := made.beside.taken(_taken(task.taking, known, content), before, own):
                            spilled.add(
                                replace(new, metadata={**new.metadata, **columns}) if columns else new
                            )
            except Unusable as unusable:
                raws.remove(raw)
                refusals.append(refusal_row(raw["key"], raw["sha256"], unusable))
                continue  # without it: some of its samples are there by now
            made = replace(made, of_json=place.has_members, notes=place.members.notes)
            return replace(made, **_written(task, node, spilled, place.has_members))


def _samples(place: ReadPlace, raw: Row, made: ReadParts, partitions: Partitions) -> Iterator[Sample]:
    """Yield the samples of an object; tell its class names, columns and facts.

    Raises: Unusable; Fault; Throttled; Transient.
    """
    with refused_where_unreadable("cut"):
        info = landed_info(place.landing, raw)
        readable = place.readable(info)
        made.facts.update({name: dict(facts) for name, facts in readable.facts.items()})
        if readable.labels:
            made.labels[info.key] = list(readable.labels)
        for sample in place.samples(info, readable):
            if place.is_partitioned:
                sample = replace(sample, metadata=dict(partitions.joined(info.key, sample.metadata)))
            yield sample
        if readable.columns is not None:
            made.columns[info.key] = readable.columns.becomes


def _written(task: ReadTask, node: Node, spilled: Spilled, any_values: bool) -> dict[str, Any]:
    """Write the parts; return them, and the kinds of samples. any_values: as `PartLayout` has it."""
    kinds = [(list(kind), rows.source_keys[0], rows.objects[0]) for kind, rows in spilled.kinds.items()]
    if not kinds:
        return {}
    try:
        group_of = spilled.group_of({group: {"field_nbytes": names} for group, names in task.groups.items()})
    except FieldMismatch:  # whoever waits finds it too, unless it leaves the object out
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


def _taken(taking: Taking, raw: Row, sample: Sample) -> Sample:
    """Return a sample as the dataset takes it."""
    source_key = sample.source.get("source_key", sample.key)
    return replace(
        sample,
        key=key_in_dataset(raw, source_key, max(map(len, sample.fields))),
        metadata=metadata_of(raw, sample.metadata, modality_of(set(sample.fields))),
        source={**sample.source, **source_of(taking, raw, source_key, sample.source)},
    )


def _alike(task: ReadTask) -> ReadTask:
    return replace(task, taking=task.taking.of_no_run)


def _limit_s(task: ReadTask) -> float:
    return task.limit_s


def _cost_s(task: ReadTask) -> float:
    return float(sum(raw["nbytes"] for raw in task.raws) / _BYTES_PER_S)


READ = Work(
    name="read",
    version="2",
    function=read_samples,
    unit=ReadTask,
    result=ReadParts,
    timeout_s=_limit_s,
    cost_s=_cost_s,
    alike=_alike,
)
