"""Write the samples of a batch in a read format as parts (tables, records, robot logs).

A unit is a run of neighbouring objects with about a shard's bytes. Units that do not fit the others are read again
under other names.
"""

import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from loader.dataset.columnar.column_agreement import why_other
from loader.dataset.columnar.column_names import Partitions, text_columns
from loader.dataset.columnar.json_members import JsonMembers
from loader.dataset.shards.part import Part, part_rows
from loader.dataset.shards.shard import DEFAULT_SHARD_BYTES
from loader.dataset.tables.parquet import put_table
from loader.dataset.writing.run_tables import part_tables
from loader.errors import FieldMismatch
from loader.storage import Store
from penstock.card.classes import fields_modality
from penstock.compute.job import Job, store_url
from penstock.compute.local_blocks import discard
from penstock.compute.pool import Outcome
from penstock.formats.registration.shard_rows import Rows, field_groups

from ...media.objects import refusal_row
from ...media.unit import rejected
from ...pipeline.stages import BatchSamples, OpenBatch, parse_written_part
from .admission import Admission, NewestVersion, ObjectHistory, newest_version
from .read_work import READ, ReadParts, ReadTask
from .sample_facts import (
    OWN_COLUMNS,
    IngestRules,
    Row,
    missing_result_error,
    unit_outcomes,
    unit_row,
    units_job,
)
from .walked_objects import fresh_objects

_LEAST_BYTES = DEFAULT_SHARD_BYTES // 4096
"""Smallest size counted for an object: a unit has at most 4,096 objects."""
_OBJECT_FAILURES = ("crashed", "memory", "timeout")
"""Failures that do not name the object at fault."""

ReadUnits = tuple[ReadTask, ReadParts]
"""(unit of readable objects, its samples)."""


def write_read(batch: OpenBatch) -> BatchSamples:
    """Write the parts of the admitted objects. Raises: as `write_walked`."""
    infos, refusals = fresh_objects(batch)
    fresh = [batch.raws[info.key] for info in infos]
    newest = newest_version(batch.root, batch.spec, fresh)
    reader = _BatchReader(
        batch=batch,
        newest=newest,
        refusals=refusals,  # to which it adds its own
    )
    tasks = _tasks(batch, fresh, newest)
    units_read = reader.read(tasks)
    # Class names and columns before groups: a refused object's fields do not count for the groups.
    class_names, units_read = reader.agree_on_columns(units_read)
    units_read = reader.agree_on_groups(units_read)

    results = [result for _, result in units_read]
    admission = Admission.of_all(result.admission for result in results)
    parts, rows = _collect_parts(batch, results, admission)
    facts: dict[str, dict[str, Any]] = {}
    for result in results:
        facts.update(result.facts)
    samples = BatchSamples(
        parts=parts,
        rows=rows,
        refusals=refusals,
        labels=class_names,
        facts=facts,
        jobs=reader.jobs,
    )
    # Each node chose the types of columns from JSON for its own unit only.
    if any(result.of_json for result in results):
        samples = _with_common_columns(batch.root.store, samples, results, newest.columns)
    return admission.complete(samples, batch.raws)


def _collect_parts(
    batch: OpenBatch,
    results: Sequence[ReadParts],
    admission: Admission,
) -> tuple[list[tuple[str, Part]], list[Row]]:
    """Return (kind, part) of what the nodes wrote, and the rows of `units`."""
    parts = list[tuple[str, Part]]()
    rows = list[Row]()
    for result in results:
        for body in result.parts:
            part = parse_written_part(body, batch.txn)
            fields = set[str]()
            for shard in part.shards:
                fields.update(shard.field_nbytes)
            kind = fields_modality(fields)
            parts.append((kind, part))
            for row in part_rows(batch.root.store, part):
                key = row["key"]
                content = admission.contents[key]
                rows.append(unit_row(key, kind, part.id, row, content))
    return parts, rows


def _with_common_columns(
    store: Store,
    samples: BatchSamples,
    results: Sequence[ReadParts],
    known: Mapping[str, Mapping[str, Any]],
) -> BatchSamples:
    """Return the batch with common types for its columns from JSON documents.

    A node chose the types of its unit only. Parts whose table differs get a new one. known: the version's columns.
    """
    members = JsonMembers()  # counts the values of all units that became no column
    for result in results:
        for reason, (n, example) in result.notes.items():
            members.count(reason, example, n)

    tables = part_tables(store, [part for _, part in samples.parts])
    from_json = list[pa.Table]()  # each table without the pipeline's own columns
    own_types = list[dict[str, str]]()  # each table's own column -> type
    for table in tables:
        own_columns = OWN_COLUMNS.intersection(table.column_names)
        from_json.append(table.drop_columns(sorted(own_columns)))
        types_of_table: dict[str, str] = {}
        for name in own_columns:
            types_of_table[name] = str(table.schema.field(name).type)
        own_types.append(types_of_table)
    types = members.agreed(from_json, known)

    parts = list[tuple[str, Part]]()
    for (kind, part), table, own in zip(samples.parts, tables, own_types, strict=True):
        # The pipeline's own columns keep their types: a column without one would be dropped.
        agreed = members.as_agreed(table, {**types, **own})
        if agreed.schema != table.schema:
            part = _with_table(store, part, agreed)
        parts.append((kind, part))
    return replace(
        samples,
        parts=parts,
        columns=types,
        notes=members.lines(),
    )


def _with_table(store: Store, part: Part, table: pa.Table) -> Part:
    """Write a new samples table for a part, and return the part with it."""
    assert part.samples is not None, part.id
    folder = part.samples.path.rpartition("/")[0]
    name = secrets.token_hex(8)
    samples = put_table(store, f"{folder}/{name}.samples.parquet", table, "part-samples")
    return replace(part, samples=samples)


def _tasks(
    batch: OpenBatch,
    raws: Sequence[Row],
    newest: NewestVersion,
) -> list[ReadTask]:
    # A column of folder names has one type in the whole batch, so all keys decide which are text.
    keys = (raw["key"] for raw in raws)
    folders = Partitions(keys, texts=text_columns(newest.columns))
    groups: dict[str, list[str]] = {}
    for group, body in newest.groups.items():
        groups[group] = sorted(body["field_nbytes"])
    common = ReadTask(
        landing=store_url(batch.files),
        root=store_url(batch.root.store),
        txn=batch.txn,
        groups=groups,
        rules=IngestRules.of(batch.spec, batch.provenance),
        limit_s=batch.spec.max_work_timeout_s,
        texts=sorted(folders.texts),
    )
    tasks = list[ReadTask]()
    for number, members in enumerate(_runs(raws)):
        earlier: dict[str, ObjectHistory] = {}
        for raw in members:
            key = raw["key"]
            if key in newest.earlier:
                earlier[key] = newest.earlier[key]
        task = replace(common, name=f"{number:05d}", raws=members, earlier=earlier)
        tasks.append(task)
    return tasks


def _runs(raws: Sequence[Row]) -> Iterator[list[Row]]:
    """Yield runs of neighbouring objects with about a shard's bytes."""
    members = list[Row]()
    total = 0
    for raw in raws:
        nbytes = max(raw["nbytes"], _LEAST_BYTES)
        if members and total + nbytes > DEFAULT_SHARD_BYTES:
            yield members
            members = []
            total = 0
        members.append(raw)
        total += nbytes
    if members:
        yield members


@dataclass(frozen=True, slots=True, kw_only=True)
class _BatchReader:
    """Reads a batch's units on nodes, and again where they disagree; collects its refusals and jobs."""

    batch: OpenBatch
    newest: NewestVersion
    refusals: list[Row]
    """Refusals so far, to which each read adds."""
    jobs: list[Job[Any, Any]] = field(default_factory=list)
    """Jobs of all reads."""

    def read(self, tasks: Sequence[ReadTask]) -> list[ReadUnits]:
        """Return the samples of units, in order.

        The object that kills or blocks its worker is found by halving, and refused.
        """
        units_read = list[ReadUnits]()
        pending = list(tasks)
        while pending:
            job = self._job(pending)
            self.jobs.append(job)
            halves = list[ReadTask]()
            for task, outcome in unit_outcomes(self.batch.compute, job, pending):
                if outcome.value is None:
                    halves += self._halves(task, outcome)
                else:
                    unit = self._accept(task, outcome.value)
                    units_read.append(unit)
            pending = halves
        return _sort_units(units_read)

    def _accept(self, task: ReadTask, result: ReadParts) -> ReadUnits:
        """Collect the unit's refusals; return it without the refused objects."""
        self.refusals.extend(result.refusals)
        refused_keys = {row["key"] for row in result.refusals}
        intact = [raw for raw in task.raws if raw["key"] not in refused_keys]
        return replace(task, raws=intact), result

    def _halves(
        self,
        task: ReadTask,
        outcome: Outcome[ReadParts],
    ) -> list[ReadTask]:
        """Return the halves of a unit without a result; refuse its object if it has only one."""
        raws = task.raws
        error = outcome.error
        if error is None or error.code not in _OBJECT_FAILURES:
            self._discard_jobs()
            first_key = raws[0]["key"]
            raise missing_result_error(first_key, outcome)
        if len(raws) == 1:
            self._refuse(raws[0], error.code, error.summary)
            return []
        middle = len(raws) // 2
        first_half = _with_raws(task, "a", raws[:middle])
        second_half = _with_raws(task, "b", raws[middle:])
        return [first_half, second_half]

    def _job(self, tasks: Sequence[ReadTask]) -> Job[ReadTask, ReadParts]:
        decides = list[list[object]]()
        for task in tasks:
            hashes = [raw["sha256"] for raw in task.raws]
            # The version decides only what is admitted beside earlier samples.
            newest = ""
            if task.earlier:
                newest = self.newest.id
            decides.append([task.name, task.groups, hashes, newest])
        txn = tasks[0].txn
        return units_job(READ, self.batch, txn, decides)

    def agree_on_columns(
        self,
        units_read: Sequence[ReadUnits],
    ) -> tuple[list[str], list[ReadUnits]]:
        """Return the class names, and the samples of objects whose class names and columns agree; refuse the others.

        A unit with a refused object is read again without it.
        """
        fields = set[str]()
        for group in self.newest.groups.values():
            fields.update(group["field_nbytes"])
        agreement = _Agreement(
            dataset=self.batch.spec.name,
            fields=fields,
            names=list(self.batch.labels),
        )
        accepted = list[ReadUnits]()
        again = list[ReadTask]()
        for task, result in units_read:
            fitting = list[Row]()
            for raw in task.raws:
                refusal = agreement.join(raw["key"], result)
                if refusal is None:
                    fitting.append(raw)
                else:
                    code, why = refusal
                    self._refuse(raw, code, why)
            if len(fitting) == len(task.raws):
                accepted.append((task, result))
            elif fitting:
                # Its parts contain samples of the refused objects.
                again.append(_with_raws(task, "l", fitting))
        accepted += self.read(again)
        return agreement.names, _sort_units(accepted)

    def agree_on_groups(self, units_read: Sequence[ReadUnits]) -> list[ReadUnits]:
        """Return the samples with each field in one group of the batch.

        A node guesses the groups of new fields. Units that guessed other groups are read again with the batch's.
        """
        examples = _examples(units_read)
        if not examples:
            return [*units_read]
        try:
            group_of = field_groups(examples, self.newest.groups)
        except FieldMismatch:
            self._discard_jobs()
            raise

        groups: dict[str, list[str]] = {}  # group -> its fields
        for name, group in sorted(group_of.items()):
            members = groups.setdefault(group, [])
            members.append(name)
        accepted = list[ReadUnits]()
        again = list[ReadTask]()
        for task, result in units_read:
            if _has_groups(result, group_of):
                accepted.append((task, result))
            else:
                # Its parts have shards of groups that the batch does not have.
                task = _with_raws(task, "s", task.raws)
                again.append(replace(task, groups=groups))
        accepted += self.read(again)
        return _sort_units(accepted)

    def _discard_jobs(self) -> None:
        # Otherwise the next run would find the same results, and fail in the same way.
        for job in self.jobs:
            discard(self.batch.compute, job)

    def _refuse(self, raw: Row, code: str, why: str) -> None:
        refusal = rejected("cut", code, why)
        row = refusal_row(raw["key"], raw["sha256"], refusal)
        self.refusals.append(row)


@dataclass(slots=True, kw_only=True)
class _Agreement:
    """Class names and columns of a batch. The first object in key order decides what the dataset does not."""

    dataset: str
    fields: set[str]
    """Fields of the dataset."""
    names: list[str]
    """Class names by number; the dataset's at first."""
    columns: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Column -> (what it becomes, in which object)."""

    def join(self, key: str, result: ReadParts) -> tuple[str, str] | None:
        """Add an object's class names and columns, and return None; if they disagree, only return (code, reason)."""
        own_names = result.labels.get(key, [])
        shared = min(len(own_names), len(self.names))
        if own_names[:shared] != self.names[:shared]:
            why = f"its class names are {own_names}, the dataset's {self.names}: put it into another dataset"
            return "other_classes", why
        becomes = result.columns.get(key, {})
        why = why_other(becomes, key, self.columns, self.fields, self.dataset)
        if why:
            return "other_columns", why
        if len(own_names) > len(self.names):
            self.names = own_names
        for column, kind in becomes.items():
            self.columns.setdefault(column, (kind, key))
        return None


def _with_raws(
    task: ReadTask,
    suffix: str,
    raws: list[Row],
) -> ReadTask:
    """Return the task for a further read of these objects. suffix: letter of the read."""
    # The name orders units, and names their parts: each further read needs another one.
    return replace(
        task,
        name=f"{task.name}{suffix}",
        raws=raws,
    )


def _examples(units_read: Sequence[ReadUnits]) -> list[Rows]:
    """Return one row per set of fields, sorted by fields: it names the sample and the object in an error."""
    examples: dict[tuple[str, ...], Rows] = {}  # by sorted fields
    for _, result in units_read:
        for names, sample_key, object_key in result.kinds:
            fields = tuple(names)
            example = Rows(
                fields,
                source_keys=[sample_key],
                objects=[object_key],
            )
            examples.setdefault(fields, example)
    return [examples[fields] for fields in sorted(examples)]


def _has_groups(result: ReadParts, group_of: Mapping[str, str]) -> bool:
    """Return whether each field lies in a shard of its group. group_of: field -> group."""
    for part_json in result.parts:
        part = Part.from_json(part_json)
        for shard in part.shards:
            for name in shard.field_nbytes:
                if group_of[name] != shard.group:
                    return False
    return True


def _sort_units(units_read: Sequence[ReadUnits]) -> list[ReadUnits]:
    def unit_name(unit: ReadUnits) -> str:
        task, _ = unit
        return task.name

    return sorted(units_read, key=unit_name)
