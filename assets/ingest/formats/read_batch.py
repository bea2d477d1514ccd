"""Write the samples of a batch in a read format as parts (tables, records, robot logs).

A unit is a run of neighbouring objects with about a shard's bytes. Units that do not fit the others are read again
under other names.
"""

import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import loader
from loader.dataset.columnar.column_agreement import why_other
from loader.dataset.columnar.column_names import Partitions, text_columns
from loader.dataset.columnar.json_members import JsonMembers
from loader.dataset.shards.part import Part, part_rows
from loader.dataset.shards.shard import DEFAULT_SHARD_BYTES
from loader.dataset.tables.parquet import put_table
from loader.dataset.writing.run_tables import part_tables
from loader.errors import FieldMismatch
from loader.storage import Store
from penstock.card.classes import modality_of
from penstock.compute.job import Job, store_url
from penstock.compute.local_blocks import discard
from penstock.compute.pool import Compute
from penstock.formats.registration.shard_rows import Rows, groups_of

from ...joined_objects import JoinedObjects
from ...media.objects import refusal_row
from ...media.unit import rejected
from ...spec import DatasetSpec
from ...stages import BatchSamples, written_part
from .admission import Admission, EarlierSamples, newest_version
from .sample_facts import OWN_COLUMNS, Row, TakingRules, not_written, outcomes_of, unit_row, units_job
from .sample_work import READ, ReadParts, ReadTask
from .walked_objects import fresh_objects

_LEAST_BYTES = DEFAULT_SHARD_BYTES // 4096
"""Smallest size counted for an object: a unit has at most 4,096 objects."""
_OF_THE_OBJECT = ("crashed", "memory", "timeout")
"""Failures without the object at fault."""

ReadUnits = tuple[ReadTask, ReadParts]
"""(unit of readable objects, its samples)."""


def write_read(
    root: loader.Root,
    landing: Store,
    compute: Compute,
    spec: DatasetSpec,
    txn: str,
    audits: Sequence[Row],
    raws: Mapping[str, Row],
    published: Mapping[str, str],
    provenance: Mapping[str, str],
    labels: Sequence[str],
) -> BatchSamples:
    """Write the parts of the admitted objects. labels: class names by number.

    Raises: as `write_walked`.
    """
    infos, refusals = fresh_objects(landing, audits, raws, published)
    files = landing.place if isinstance(landing, JoinedObjects) else landing  # workers join files themselves
    fresh = [raws[info.key] for info in infos]
    newest = newest_version(root, spec, fresh)
    # A column of folder names has one type in the whole batch, so all keys decide which are text.
    folders = Partitions((raw["key"] for raw in fresh), texts=text_columns(newest.columns))
    task = ReadTask(
        landing=store_url(files),
        root=store_url(root.store),
        txn=txn,
        groups={group: sorted(body["field_nbytes"]) for group, body in newest.groups.items()},
        rules=TakingRules.of(spec, provenance),
        limit_s=spec.max_work_timeout_s,
        texts=sorted(folders.texts),
    )
    batch = _Batch(
        compute=compute,
        root=root,
        files=files,
        spec=spec,
        partition=provenance["partition"],
        refusals=refusals,
        newest=newest.id,
    )
    # Class names and columns first: an object that is refused there leaves no field to agree on.
    units_read = batch.read(_tasks(task, fresh, newest.earlier))
    names, units_read = batch.agreeing(units_read, labels, newest.groups)
    units_read = batch.in_groups(units_read, newest.groups)

    results = [result for _, result in units_read]
    admission = Admission.of_all(result.admission for result in results)
    parts, rows = _written(root.store, txn, results, admission)
    samples = BatchSamples(
        parts=parts,
        rows=rows,
        refusals=refusals,
        labels=names,
        facts={name: facts for result in results for name, facts in result.facts.items()},
        jobs=batch.jobs,
    )
    if any(result.of_json for result in results):
        samples = _agreed(root.store, samples, results, newest.columns)
    return admission.apply_to(samples, raws)


def _written(
    store: Store, txn: str, results: Sequence[ReadParts], admission: Admission
) -> tuple[list[tuple[str, Part]], list[Row]]:
    """Return (kind, part) of what the nodes wrote, and the rows of `units`."""
    parts = list[tuple[str, Part]]()
    rows = list[Row]()
    for result in results:
        for body in result.parts:
            part = written_part(body, txn)
            fields = {name for shard in part.shards for name in shard.field_nbytes}
            kind = modality_of(fields)
            parts.append((kind, part))
            for row in part_rows(store, part):
                content = admission.contents[row["key"]]
                rows.append(unit_row(row["key"], kind, part.id, row, content))
    return parts, rows


def _agreed(
    store: Store,
    batch: BatchSamples,
    results: Sequence[ReadParts],
    known: Mapping[str, Mapping[str, Any]],
) -> BatchSamples:
    """Return the batch with common types for its columns from JSON documents. known: the version's columns."""
    members = JsonMembers()
    for result in results:
        for reason, (n, example) in result.notes.items():
            members.count(reason, example, n)
    tables = part_tables(store, [part for _, part in batch.parts])
    own_columns = [OWN_COLUMNS.intersection(table.column_names) for table in tables]
    from_json = [table.drop_columns(sorted(names)) for table, names in zip(tables, own_columns, strict=True)]
    types = members.agreed(from_json, known)
    parts = list[tuple[str, Part]]()
    for (kind, part), table, names in zip(batch.parts, tables, own_columns, strict=True):
        own_types = {name: str(table.schema.field(name).type) for name in names}
        agreed = members.as_agreed(table, {**types, **own_types})
        if agreed.schema != table.schema:
            assert part.samples is not None, part.id
            folder = part.samples.path.rpartition("/")[0]
            path = f"{folder}/{secrets.token_hex(8)}.samples.parquet"
            part = replace(part, samples=put_table(store, path, agreed, "part-samples"))
        parts.append((kind, part))
    return replace(batch, parts=parts, columns=types, notes=members.lines())


def _tasks(task: ReadTask, raws: Sequence[Row], earlier: Mapping[str, EarlierSamples]) -> list[ReadTask]:
    tasks = list[ReadTask]()
    for number, members in enumerate(_runs(raws)):
        keys = [raw["key"] for raw in members]
        known = {key: earlier[key] for key in keys if key in earlier}
        tasks.append(replace(task, name=f"{number:05d}", raws=members, earlier=known))
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
class _Batch:
    """A batch that is read until its units agree, and its refusals and jobs so far."""

    compute: Compute
    root: loader.Root
    files: Store
    spec: DatasetSpec
    partition: str
    refusals: list[Row]
    newest: str
    jobs: list[Job[Any, Any]] = field(default_factory=list)

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
            for task, outcome in outcomes_of(self.compute, job, pending):
                result = outcome.value
                if result is not None:
                    self.refusals.extend(result.refusals)
                    refused_keys = {row["key"] for row in result.refusals}
                    intact = [raw for raw in task.raws if raw["key"] not in refused_keys]
                    units_read.append((replace(task, raws=intact), result))
                elif outcome.error is None or outcome.error.code not in _OF_THE_OBJECT:
                    raise not_written(self.compute, self.jobs, task.raws[0]["key"], outcome)
                elif len(task.raws) == 1:
                    self._refuse(task.raws[0], outcome.error.code, outcome.error.summary)
                else:
                    half = len(task.raws) // 2
                    halves.append(replace(task, name=f"{task.name}a", raws=task.raws[:half]))
                    halves.append(replace(task, name=f"{task.name}b", raws=task.raws[half:]))
            pending = halves
        return _in_order(units_read)

    def _job(self, tasks: Sequence[ReadTask]) -> Job[ReadTask, ReadParts]:
        decides = list[list[object]]()
        for task in tasks:
            hashes = [raw["sha256"] for raw in task.raws]
            # The version decides only what is admitted beside earlier samples.
            newest = self.newest if task.earlier else ""
            decides.append([task.name, task.groups, hashes, newest])
        return units_job(READ, self.root, self.files, self.spec, self.partition, tasks[0].txn, decides)

    def agreeing(
        self, units_read: Sequence[ReadUnits], labels: Sequence[str], known: Mapping[str, Mapping[str, Any]]
    ) -> tuple[list[str], list[ReadUnits]]:
        """Return the agreed class names, and the samples of objects that have them and the others' columns.

        labels: class names of the dataset. known: its groups. The first object in key order decides what the dataset
        does not.
        """
        names = list(labels)
        fields = set[str]()
        for group in known.values():
            fields.update(group["field_nbytes"])
        columns: dict[str, tuple[str, str]] = {}  # column -> (what it becomes, in which object)
        fits = list[ReadUnits]()
        again = list[ReadTask]()
        for task, result in units_read:
            fitting = list[Row]()
            for raw in task.raws:
                key = raw["key"]
                own = result.labels.get(key, [])
                becomes = result.columns.get(key, {})
                if own[: len(names)] != names[: len(own)]:
                    why = f"its class names are {own}, the dataset's {names}: put it into another dataset"
                    self._refuse(raw, "other_classes", why)
                    continue
                why = why_other(becomes, key, columns, fields, self.spec.name)
                if why:
                    self._refuse(raw, "other_columns", why)
                    continue
                names = max(names, own, key=len)  # one is a prefix of the other
                for column, what in becomes.items():
                    columns.setdefault(column, (what, key))
                fitting.append(raw)
            if len(fitting) == len(task.raws):
                fits.append((task, result))
            elif fitting:
                again.append(replace(task, name=f"{task.name}l", raws=fitting))
        return names, _in_order([*fits, *self.read(again)])

    def in_groups(
        self, units_read: Sequence[ReadUnits], known: Mapping[str, Mapping[str, Any]]
    ) -> list[ReadUnits]:
        """Return the samples with each field in one group; units that guessed other groups are read again."""
        kinds: dict[tuple[str, ...], Rows] = {}  # sorted fields -> an example, for the error
        for _, result in units_read:
            for names, sample_key, object_key in result.kinds:
                fields = tuple(names)
                kinds.setdefault(fields, Rows(fields, [sample_key], [object_key]))
        if not kinds:
            return [*units_read]
        try:
            group_of = groups_of([kinds[kind] for kind in sorted(kinds)], known)
        except FieldMismatch:
            for job in self.jobs:
                discard(self.compute, job)
            raise
        groups: dict[str, list[str]] = {}
        for name, group in sorted(group_of.items()):
            groups.setdefault(group, []).append(name)
        fits = list[ReadUnits]()
        again = list[ReadTask]()
        for task, result in units_read:
            if _lies_in(group_of, result):
                fits.append((task, result))
            else:
                again.append(replace(task, name=f"{task.name}s", groups=groups))
        return _in_order([*fits, *self.read(again)])

    def _refuse(self, raw: Row, code: str, why: str) -> None:
        self.refusals.append(refusal_row(raw["key"], raw["sha256"], rejected("cut", code, why)))


def _lies_in(group_of: Mapping[str, str], result: ReadParts) -> bool:
    for body in result.parts:
        for shard in Part.from_json(body).shards:
            if any(group_of[name] != shard.group for name in shard.field_nbytes):
                return False
    return True


def _in_order(units_read: Sequence[ReadUnits]) -> list[ReadUnits]:
    return sorted(units_read, key=lambda unit: unit[0].name)
