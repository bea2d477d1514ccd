"""Import a version from another format, unit by unit; a killed import can be repeated.

`REGISTERED` formats are copied by byte range; importers decode the others. The version's id follows from dataset name,
options, and the objects' keys, sizes and change tokens.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice
from typing import Any

import pyarrow as pa

from loader import Root, Version
from loader.dataset.columnar.column_names import Partitions, text_columns
from loader.dataset.columnar.json_members import JsonMembers
from loader.dataset.names import check_dataset_name
from loader.dataset.publishing.publish import publish_registered, publish_without
from loader.dataset.shards.part import Part
from loader.dataset.shards.shard import DEFAULT_SHARD_BYTES
from loader.dataset.tables.foreign_objects import place_id
from loader.dataset.writing.part_writer import SampleBlock
from loader.dataset.writing.run_tables import part_tables
from loader.dataset.writing.spill import Sample
from loader.errors import Conflict, EmptyVersion
from loader.storage import ObjectInfo, Store

from ..class_names import find_class_names
from ..exclusion_records import standing_exclusions
from ..places import check_apart
from ..progress import progress
from ..threads import check_workers, in_threads
from .importer import NO_OPTIONS, ColumnarOptions, Importer, Readable, check_options
from .importing.import_report import ImportReport
from .importing.read_units import (
    ReadUnit,
    UnitReader,
    check_unique,
    in_workers,
    read_units,
    settle_units,
    spill_units,
)
from .importing.spans import sample_blocks
from .importing.walk import UnitsAhead, Walk
from .importing.write_parts import (
    FOLDER,
    MISSING,
    RENAMED,
    PartLayout,
    Unit,
    WrittenUnit,
    delete_units,
    in_order,
    write_parts,
)
from .reading.sample import FoundObjects, object_shards
from .reading.stated_counts import WAY_OUT, StatedCounts
from .registration.file_labels import NO_LABELS, FileLabels, LabelOptions, read_labels, relabel, without_table
from .registration.register import APART, transaction
from .registration.selection import EVERYTHING, ListedObjects, Selection, list_selected
from .registration.shard_rows import group_guessed
from .registration.source_difference import PlaceDifference, import_difference, live_samples
from .registration.taken_down import TakenDown
from .registration.unread_files import unread_files
from .registry import FORMATS, check_allow_missing, importer_named, registered_named

_ENDINGS = {"json": ".json", "jsonl": ".jsonl"}
"""Text formats that users confuse -> ending of object names."""
WORKERS = 8
"""Units copied concurrently, by default; half of them wait for the disk."""


def import_place(
    root: Root,
    format: str,
    store: Store,
    dataset: str,
    *,
    options: ColumnarOptions = NO_OPTIONS,
    shuffle: bool | None = None,
    workers: int = WORKERS,
    shard_bytes: int = DEFAULT_SHARD_BYTES,
    selection: Selection = EVERYTHING,
    label_options: LabelOptions = NO_LABELS,
) -> ImportReport:
    """Publish a version with copies of a source's samples, or the next version with its new objects.

    Samples of changed objects are replaced; removed objects have no effect. Excluded and taken-down samples stay out.
    Memory: 1 KB per sample of a registered format, or the keys of other formats; 8 MiB or one larger sample per thread.

    options: key column, columns that become fields, fields and columns to leave out.
    shuffle: order samples by key hash; None does so if each file is a sample.
    workers: threads, each of which writes its own part.
    label_options: labels of plain files. An annotation changes the labels of unchanged files.

    Raises: InvalidStore; InvalidKey for rows of labels that no file has; InvalidRuntime; Conflict if `dataset` has
    another source or changed meanwhile; EmptyVersion; Denied if takedowns deny all of a new dataset; FieldMismatch.
    """
    check_dataset_name(dataset)
    importer = importer_named(format)
    _check_options(format, importer, options, workers)
    check_apart(root.store, store, APART)
    root.create()
    parent = root.open(newest.id) if (newest := root.state.newest(dataset)) else None
    if options.episodes and parent is not None:
        options = options._replace(earlier=frozenset(one.key for one in live_samples(parent, "raw_key")))
    listed = without_table(store, list_selected(store, format, selection), label_options)
    objects = _find_objects(format, importer, store, listed, options, parent)
    labels = read_labels(format, label_options, objects.infos, parent, options.without)
    objects = objects if labels is None else objects.with_columns(labels)
    taken_down = TakenDown(root, dataset, store)
    changes = taken_down.without_objects(import_difference(parent, store, objects.infos))
    report = ImportReport.of_objects(changes, listed.n - len(objects.infos), listed.refusals)
    stated = _count_stated(format, listed, objects, changes, taken_down, options)
    if not options.allow_missing:
        # The rest is read too, so that the report also names what is damaged.
        report.failures = [f"{text}; {WAY_OUT}" for text in stated.lines()]
    version = parent
    if changes.fresh:
        chosen = (
            _choose_options(format, importer, options, shuffle, shard_bytes, labels) | selection.to_json()
        )
        work = _Import(root, dataset, store, parent, changes, taken_down, chosen, workers, report, stated)
        version = work.of_objects(objects, importer, options)
    elif parent is not None and not report.failures:
        stands = standing_exclusions(root.store, dataset)
        version = publish_without(root, parent, exclusions=stands)
    report.notes += _notes(format, listed, objects)
    if version is not None and not report.failures:
        version = _relabel(report, root, version, labels, objects.infos, changes)
        report.describe(version, parent, stated.lines())
    return report


def _check_options(
    format: str,
    importer: Importer | None,
    options: ColumnarOptions,
    workers: int,
) -> None:
    check_workers(workers)
    check_options(format, importer, options)
    check_allow_missing(format, options.allow_missing)


def _count_stated(
    format: str,
    listed: ListedObjects,
    objects: FoundObjects | Readable,
    changes: PlaceDifference,
    taken_down: TakenDown,
    options: ColumnarOptions,
) -> StatedCounts:
    """Return what the source states and lacks, without what patterns, takedowns and earlier imports account for."""
    stated = objects.stated or StatedCounts()

    def is_left_out(key: str) -> bool:
        return key in changes.earlier or bool(listed.why_left_out(key)) or taken_down.has_object(key)

    keys = [info.key for info in objects.infos] if FORMATS[format].is_sharded else []
    stated.settle(taken_down.url, keys, is_left_out)
    if options.allow_missing:
        stated.allow()
    return stated


def _relabel(
    report: ImportReport,
    root: Root,
    version: Version,
    labels: FileLabels | None,
    infos: Sequence[ObjectInfo],
    changes: PlaceDifference,
) -> Version:
    if labels is None:
        return version
    version, report.relabelled = relabel(root, version, labels, infos, changes.fresh)
    report.notes += labels.notes
    return version


def _find_objects(
    format: str,
    importer: Importer | None,
    store: Store,
    listed: ListedObjects,
    options: ColumnarOptions,
    parent: Version | None,
) -> FoundObjects | Readable:
    objects: FoundObjects | Readable
    if importer is None:
        objects = registered_named(format).find_objects(store, listed.infos)
    else:
        objects = importer.find_readable(store, listed.infos, options)
        if FORMATS[format].is_partitioned:
            texts = text_columns(parent.manifest["columns"]) if parent else ()
            keys = (info.key for info in objects.infos)
            objects = objects.with_columns(Partitions(keys, options.without, texts))
    states_more = objects.stated is not None and objects.stated.n > 0
    if not objects.infos and (options.allow_missing or not states_more):
        why = f"{listed.why_none(store.url, format)}; nothing was imported"
        for other, ending in _ENDINGS.items():
            is_there = any(info.key.lower().endswith(ending) for info in listed.infos)
            if format in _ENDINGS and other != format and is_there:
                why += f": penstock import {other} reads its objects *{ending}"
        raise EmptyVersion(why, what=format, where=store.url)
    return objects


def _notes(format: str, listed: ListedObjects, objects: FoundObjects | Readable) -> list[str]:
    if isinstance(objects, FoundObjects):
        return unread_files(format, listed.infos, objects.infos)
    notes = objects.notes() if objects.notes is not None else ()
    return [*notes, *unread_files(format, listed.infos, objects.infos, objects.known)]


def _choose_options(
    format: str,
    importer: Importer | None,
    options: ColumnarOptions,
    shuffle: bool | None,
    shard_bytes: int,
    labels: FileLabels | None,
) -> dict[str, Any]:
    if shuffle is None:
        shuffle = importer is None and registered_named(format).OBJECTS_PER_SHARD > 1
    chosen: dict[str, Any] = {
        "format": format,
        "without": sorted(options.without),
        "shuffle": shuffle,
        "shard_bytes": shard_bytes,
    }
    if labels is not None:
        chosen |= labels.to_json()
    if importer is not None:
        chosen |= {"key": options.key, "fields": dict(sorted(options.fields.items()))}
    return chosen | options.episodes_json() | options.clocks_json()


@dataclass(frozen=True, slots=True)
class _Import:
    root: Root
    dataset: str
    store: Store
    parent: Version | None
    changes: PlaceDifference
    taken_down: TakenDown
    chosen: dict[str, Any]
    workers: int
    report: ImportReport
    stated: StatedCounts

    @property
    def groups(self) -> Mapping[str, Mapping[str, Any]]:
        if self.parent is None:
            return {}
        groups: Mapping[str, Mapping[str, Any]] = self.parent.manifest["groups"]
        return groups

    def of_objects(
        self, objects: FoundObjects | Readable, importer: Importer | None, options: ColumnarOptions
    ) -> Version | None:
        """Publish the samples of new objects; None if anything failed."""
        if isinstance(objects, FoundObjects):
            return self.of_spans(objects)
        if importer is not None and FORMATS[self.chosen["format"]].is_isolated:
            find = importer.find_readable
            with in_workers(objects, find, self.store, options, self.workers) as isolated:
                return self.of_samples(isolated, options)
        return self.of_samples(objects, options)

    def of_spans(self, objects: FoundObjects) -> Version | None:
        shards = object_shards(self.changes.fresh, registered_named(self.chosen["format"]).OBJECTS_PER_SHARD)
        blocks = partial(sample_blocks, self.store)
        columns = self.parent.manifest["columns"] if self.parent else {}
        objects = objects.reading(self.chosen["without"])
        without = self.chosen["without"]
        with Walk(objects, shards, without, self.changes, self.groups, columns, self.taken_down) as walk:
            ahead = UnitsAhead(walk, self.groups, self.chosen["shard_bytes"])
            units = iter(() if self.chosen["shuffle"] else ahead)
            first = [*islice(units, 1)]  # a transaction starts only if there are samples
            if not first and (walk.failed() or not walk.walked):
                self.report.failures += walk.failed()
                return self._publish("", [])
            txn = self._begin()
            with self.root.heartbeat(txn):
                if self.chosen["shuffle"]:
                    shuffled = walk.shuffled(self.chosen["shard_bytes"])
                    group_of = walk.layout.group_of
                    written = self._write(txn, shuffled, blocks, group_of.__getitem__)
                    return self._publish(txn, written, members=objects.members)
                written = self._write(txn, chain(first, units), blocks, ahead.group_of, walk.nbytes)
                self.report.failures += walk.failed()
                if not self.report.failures:
                    written += self._write(txn, ahead.others(), blocks, walk.layout.group_of.__getitem__)
                return self._publish(txn, in_order(written), members=objects.members)

    def of_samples(self, readable: Readable, options: ColumnarOptions) -> Version | None:
        failures = self.report.failures
        self._check_labels(readable.labels)
        units = read_units(readable, self.changes.fresh, self.chosen["shard_bytes"], failures)
        if not units and not failures:
            raise self._empty()
        self._check_columns(readable)  # footers have the columns: fail before copying
        in_use = self.changes.keys
        reader = UnitReader(self.store, readable, options, in_use, failures, taken_down=self.taken_down)
        txn = self._begin()
        of_json = readable.members is not None
        with self.root.heartbeat(txn):
            if self.chosen["shuffle"]:
                with closing(spill_units(reader, units, self.workers, failures)) as samples:
                    if failures or not samples.kinds:
                        return self._publish(txn, [])
                    group_of = samples.group_of(self.groups).__getitem__
                    every = [ReadUnit("00000", [run for unit in units for run in unit.runs])]
                    drained = self._write(txn, every, lambda _: samples.drain(), group_of, any_values=of_json)
                return self._publish(txn, drained, readable)
            written = self._write(txn, units, reader, group_guessed(self.groups), any_values=of_json)
            if failures or not any(unit.parts for unit in written):
                return self._publish(txn, [])
            self._check_columns(readable)
            facts = settle_units(self.root.store, written, self.groups)
            if facts.again:
                reader = replace(reader, twice=facts.twice)
                group_of = facts.group_of.__getitem__
                again = self._write(txn, facts.again, reader, group_of, any_values=of_json)
                written = in_order(written + again)
                if not failures:
                    check_unique(self.root.store, written)
            return self._publish(txn, written, readable)

    def _check_columns(self, readable: Readable) -> None:
        if readable.columns is not None and self.parent is not None:
            fields = {name for group in self.groups.values() for name in group["field_nbytes"]}
            readable.columns.check_known(fields, self.parent.name)

    def _check_labels(self, labels: Sequence[str] | None) -> None:
        before = None
        if self.parent:
            before = find_class_names(self.parent)
        if labels is not None and before is not None and list(labels) != before:
            raise Conflict(
                f"class names of {self.parent.name if self.parent else ''} are {before}, and {self.store.url} has "
                f"{list(labels)}; choose another name",
                what="class names",
                where=self.store.url,
                given=list(labels),
                accepted=before,
            )

    def _begin(self) -> str:
        place = place_id(self.store, self.changes.fresh)
        txn = transaction(self.root, self.dataset, place, {"imported": self.chosen}, self.parent)
        if self.stated.is_allowed:
            self.stated.store_counts(self.root.store, f"data/{txn}/{FOLDER}/{MISSING}")
        return txn

    def _write(
        self,
        txn: str,
        units: Iterable[Unit],
        samples: Callable[[Unit], Iterator[Sample | SampleBlock]],
        group_of: Callable[[str], str],
        size: int | None = None,
        any_values: bool = False,
    ) -> list[WrittenUnit[Unit]]:
        """Return the written units in order, without failed ones. size: total if `units` is an iterator."""
        done = list[WrittenUnit[Unit]]()
        if size is None:
            units = [*units]
            size = sum(unit.size for unit in units)
        layout = PartLayout(
            store=self.root.store,
            txn=txn,
            group_of=group_of,
            shard_bytes=self.chosen["shard_bytes"],
            any_values=any_values,
        )

        def write(unit: Unit) -> WrittenUnit[Unit]:
            return WrittenUnit(unit, write_parts(samples(unit), layout, unit.name))

        finished = in_threads(write, units, self.workers, self.report.failures)
        for unit, written in progress(finished, "import", lambda item: item.unit.size, size):
            done.append(WrittenUnit(unit, written))
            self.report.nbytes += written.nbytes
            self.report.skipped += written.skipped
        return in_order(done)

    def _publish(
        self,
        txn: str,
        written: Sequence[WrittenUnit[Any]],
        readable: Readable | None = None,
        members: JsonMembers | None = None,
    ) -> Version | None:
        self.report.failures.sort()
        parts = [part for unit in written for part in unit.parts]
        if self.report.failures:
            return None
        if not parts:
            return self._without_samples()
        names = [unit.unit.name for unit in written]
        if again := {name.removesuffix(RENAMED) for name in names if name.endswith(RENAMED)}:
            delete_units(self.root.store, txn, again)
        labels, members = (readable.labels, readable.members) if readable else (None, members)
        producer = {"imported": self.chosen, "place": place_id(self.store, self.changes.fresh)}
        producer |= self.stated.to_json(self.store.url)
        return publish_registered(
            self.root,
            self.dataset,
            txn,
            f"data/{txn}/{FOLDER}",
            parts,
            self._agree(parts, members) if members else None,
            objects=None,
            parent=self.parent,
            to_exclude=self.changes.left_out(self.parent),
            producer=producer if labels is None else {**producer, "labels": list(labels)},
            exclusions=standing_exclusions(self.root.store, self.dataset),
            created_us=max(info.modified_us or 0 for info in self.changes.fresh),
            field_facts=readable.facts if readable else None,
        )

    def _without_samples(self) -> Version:
        if not self.taken_down.has_left_out:
            raise self._empty()
        if self.parent is None:
            raise self.taken_down.all_denied_error("every sample")
        # Changed objects may have lost all samples to a takedown: their earlier samples go too.
        left_out = self.changes.left_out(self.parent)
        stands = standing_exclusions(self.root.store, self.dataset)
        return publish_without(self.root, self.parent, left_out, exclusions=stands)

    def _agree(self, parts: Sequence[Part], members: JsonMembers) -> list[pa.Table]:
        tables = part_tables(self.root.store, parts)
        types = members.agreed(tables, self.parent.manifest["columns"] if self.parent else {})
        tables_agreed = [members.as_agreed(table, types) for table in tables]
        self.report.notes += members.lines()
        return tables_agreed

    def _empty(self) -> EmptyVersion:
        return EmptyVersion(
            f"the {len(self.changes.fresh)} objects of {self.store.url} hold no samples; nothing was imported"
        )
