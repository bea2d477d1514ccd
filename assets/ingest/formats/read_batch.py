"""Write the samples of a batch as parts, in walked formats and in read ones (tables, records, robot logs).

Workers copy samples of walked formats, or parts index them in place. A unit of a read format is a run of neighbouring
objects with about a shard's bytes; units that do not fit the others are read again under other names.
"""

import secrets
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import loader
from loader.dataset.columnar.column_agreement import why_other
from loader.dataset.columnar.column_names import Partitions, text_columns
from loader.dataset.columnar.json_members import JsonMembers
from loader.dataset.shards.part import Part, part_rows
from loader.dataset.shards.shard import DEFAULT_SHARD_BYTES
from loader.dataset.tables import columns
from loader.dataset.tables.foreign_objects import foreign_table, place_id, put_place
from loader.dataset.tables.parquet import put_named, put_table, table_bytes
from loader.dataset.writing.run_tables import part_tables
from loader.errors import FieldMismatch
from loader.storage import Store
from penstock.card.classes import modality_of
from penstock.compute.job import Job, store_url
from penstock.compute.local_blocks import discard
from penstock.compute.pool import Compute
from penstock.formats.registration.parts import objects_of, put_parts
from penstock.formats.registration.shard_rows import ForeignShard, Rows, agree, groups_of, shards_of

from ...joined_objects import JoinedObjects
from ...media.objects import refusal_row
from ...media.unit import rejected
from ...spec import DatasetSpec
from ...stages import BatchSamples, written_part
from .admission import Admission, EarlierSamples, newest_version
from .sample_facts import (
    OWN_COLUMNS,
    Row,
    TakingRules,
    not_written,
    outcomes_of,
    unit_row,
    units_job,
)
from .sample_work import COPY, READ, CopiedPart, CopyTask, ReadParts, ReadTask
from .walked_objects import KnownSample, WalkedPlace, fresh_objects, samples_of

_AT_ONCE = 8
"""Most objects walked at the same time."""


def write_walked(
    root: loader.Root,
    landing: Store,
    compute: Compute,
    spec: DatasetSpec,
    txn: str,
    audits: Sequence[Row],
    raws: Mapping[str, Row],
    published: Mapping[str, str],
    provenance: Mapping[str, str],
) -> BatchSamples:
    """Write the parts of the admitted objects. published: SHA-256 -> where the dataset has these bytes.

    Raises: FieldMismatch if a sample lacks a field of the dataset; errors of the format; StoreError.
    """
    infos, refusals = fresh_objects(landing, audits, raws, published)
    if not infos:
        return BatchSamples(refusals=refusals)
    newest = newest_version(root, spec, [raws[info.key] for info in infos])
    earlier = newest.earlier
    raws = {**raws, **{key: {**raws[key], "first_sha256": had.first_sha256} for key, had in earlier.items()}}
    place = WalkedPlace(landing, spec.format, spec.sources[0].choices)
    shards = shards_of(infos, place.objects_per_shard)
    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="penstock-walk") as pool:
        runs = list(pool.map(place.rows, shards))
    walked = [(shard, rows) for shard, run in zip(shards, runs, strict=True) for rows in run]
    group_of = groups_of([rows for _, rows in walked], newest.groups)
    json_facts: dict[str, Any] = {}
    if place.has_members:
        types = agree([rows for _, rows in walked], place.members, newest.columns)
        json_facts = {"columns": types, "notes": place.members.lines()}
    rules = TakingRules.of(spec, provenance)
    if not spec.in_place:
        whole = [raws[one.key]["sha256"] for one in infos]
        decides: tuple[Any, ...] = txn, sorted(group_of.items()), whole, newest.id if earlier else ""
        of_json = json_facts.get("columns", {})
        decides += (sorted(of_json.items()),) if of_json else ()
        job = units_job(COPY, root, landing, spec, provenance["partition"], *decides)
        tasks = [
            replace(task, columns=of_json)
            for task in _tasks(job, txn, walked, group_of, raws, rules, spec, earlier)
        ]
        parts, rows, admission = _copied(compute, job, tasks)
        return admission.apply_to(
            BatchSamples(parts=parts, rows=rows, refusals=refusals, jobs=[job], **json_facts), raws
        )
    walked, samples, admission = _admit_in_place(walked, raws, rules, earlier)
    parts, foreign = (
        _put_in_place(root, landing, txn, walked, samples, group_of, raws) if walked else ([], None)
    )
    rows = [
        unit_row(sample.key, kind, part.id, sample.source)
        for (kind, part), members in zip(parts, samples, strict=True)
        for sample in members
    ]
    return admission.apply_to(
        BatchSamples(parts=parts, rows=rows, refusals=refusals, foreign=foreign, **json_facts), raws
    )


def _admit_in_place(
    walked: Sequence[tuple[ForeignShard, Rows]],
    raws: Mapping[str, Row],
    rules: TakingRules,
    earlier: Mapping[str, EarlierSamples],
) -> tuple[list[tuple[ForeignShard, Rows]], list[list[KnownSample]], Admission]:
    stay, samples, admission = list[tuple[ForeignShard, Rows]](), list[list[KnownSample]](), Admission()
    for shard, rows in walked:
        known = list(samples_of(rules, shard, rows, raws))
        kept = [
            number
            for number, one in enumerate(known)
            if admission.admit_in_place(
                one.key, one.source, earlier.get(one.source["raw_key"], EarlierSamples())
            )
        ]
        if kept:
            stay.append((shard, rows.take(kept) if len(kept) < len(known) else rows))
            samples.append([known[number] for number in kept])
    last_first = (one for members in reversed(samples) for one in reversed(members))
    admission.replace_lost({one.source["raw_key"]: one.key for one in last_first}, earlier)
    return stay, samples, admission


def _tasks(
    job: Job[CopyTask, CopiedPart],
    txn: str,
    walked: Sequence[tuple[ForeignShard, Rows]],
    group_of: Mapping[str, str],
    raws: Mapping[str, Row],
    rules: TakingRules,
    spec: DatasetSpec,
    earlier: Mapping[str, EarlierSamples],
) -> Iterator[CopyTask]:
    runs = Counter[str]()
    landing, root = map(store_url, job.stores)
    for number, (shard, rows) in enumerate(walked):
        yield CopyTask(
            landing=landing,
            root=root,
            txn=txn,
            number=number,
            raws=[raws[info.key] for info in shard.infos],
            run=runs[shard.name],
            groups={name: group_of[name] for name in rows.fields},
            rules=rules,
            limit_s=spec.max_work_timeout_s,
            earlier={info.key: earlier[info.key] for info in shard.infos if info.key in earlier},
        )
        runs[shard.name] += 1


def _copied(
    compute: Compute, job: Job[CopyTask, CopiedPart], tasks: Sequence[CopyTask]
) -> tuple[list[tuple[str, loader.Part]], list[Row], Admission]:
    parts, rows, admissions = list[tuple[str, loader.Part]](), list[Row](), list[Admission]()
    for task, outcome in outcomes_of(compute, job, tasks):
        if outcome.value is None:
            raise not_written(compute, [job], task.raws[0]["key"], outcome)
        admissions.append(outcome.value.admission)
        if outcome.value.part is not None:
            part = written_part(outcome.value.part, task.txn)
            parts.append((outcome.value.rows[0]["kind"], part))
            rows += outcome.value.rows
    return parts, rows, Admission.of_all(admissions)


def _put_in_place(
    root: loader.Root,
    landing: Store,
    txn: str,
    walked: Sequence[tuple[ForeignShard, Rows]],
    samples: Sequence[Sequence[KnownSample]],
    group_of: Mapping[str, str],
    raws: Mapping[str, Row],
) -> tuple[list[tuple[str, loader.Part]], dict[str, Any]]:
    store, prefix = root.store, f"data/{txn}/{secrets.token_hex(8)}"
    shards = list(dict.fromkeys(shard for shard, _ in walked))
    place = place_id(landing, [info for shard in shards for info in shard.infos])
    put_place(store, place, landing.url)
    keys = [[one.key for one in members] for members in samples]
    # Only this transaction uses these indexes, so they store the checksums themselves.
    bare = put_parts(store, txn, prefix, place, walked, keys, group_of, seals=False)
    parts = list[tuple[str, loader.Part]]()
    for (_, rows), part, own, members in zip(walked, bare, keys, samples, strict=True):
        table = columns.keys_table(own, [one.source for one in members], part.id)
        more = columns.metadata_table([one.metadata for one in members], part.id, own)
        for name in more.column_names[2:]:
            table = table.append_column(name, more[name])
        path = f"{prefix}/{part.id.removeprefix(f'{txn}-')}.samples.parquet"
        whole = replace(part, samples=put_table(store, path, table, "part-samples"))
        parts.append((modality_of(set(rows.fields)), whole))
    objects = [replace(one, sha256=raws[one.key]["sha256"]) for one in objects_of(landing, place, shards)]
    data = table_bytes(foreign_table(objects), "foreign")
    return parts, put_named(store, prefix, "foreign", data, len(objects)).to_json()


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
    task = ReadTask(
        landing=store_url(files),
        root=store_url(root.store),
        txn=txn,
        groups={group: sorted(body["field_nbytes"]) for group, body in newest.groups.items()},
        rules=TakingRules.of(spec, provenance),
        limit_s=spec.max_work_timeout_s,
        texts=sorted(Partitions((raw["key"] for raw in fresh), texts=text_columns(newest.columns)).texts),
    )
    batch = _Batch(compute, root, files, spec, provenance["partition"], refusals, newest.id)
    units = enumerate(_units(fresh, newest.earlier))
    units_read = batch.read(
        [replace(task, name=f"{n:05d}", raws=members, earlier=had) for n, (members, had) in units]
    )
    names, units_read = batch.agreeing(units_read, labels, newest.groups)
    units_read = batch.in_groups(units_read, newest.groups)
    admission = Admission.of_all(result.admission for _, result in units_read)
    parts, rows = list[tuple[str, Part]](), list[Row]()
    for part in (written_part(one, txn) for _, result in units_read for one in result.parts):
        kind = modality_of({name for shard in part.shards for name in shard.field_nbytes})
        parts.append((kind, part))
        for row in part_rows(root.store, part):
            rows.append(unit_row(row["key"], kind, part.id, row, admission.contents[row["key"]]))
    facts = {name: fact for _, result in units_read for name, fact in result.facts.items()}
    json_facts: dict[str, Any] = {}
    if any(one.of_json for _, one in units_read):
        parts, json_facts = _agreed(root.store, parts, units_read, newest.columns)
    samples = BatchSamples(
        parts=parts, rows=rows, refusals=refusals, labels=names, facts=facts, jobs=batch.jobs, **json_facts
    )
    return admission.apply_to(samples, raws)


def _agreed(
    store: Store,
    parts: Sequence[tuple[str, Part]],
    units_read: Sequence[ReadUnits],
    known: Mapping[str, Mapping[str, Any]],
) -> tuple[list[tuple[str, Part]], dict[str, Any]]:
    members = JsonMembers()
    for what, (n, example) in (one for _, result in units_read for one in result.notes.items()):
        members.count(what, example, n)
    tables = part_tables(store, [part for _, part in parts])
    own = [table.drop_columns(sorted(OWN_COLUMNS.intersection(table.column_names))) for table in tables]
    types, out = members.agreed(own, known), list[tuple[str, Part]]()
    for (kind, part), table in zip(parts, tables, strict=True):
        own_types = {
            name: str(table.schema.field(name).type) for name in OWN_COLUMNS.intersection(table.column_names)
        }
        agreed = members.as_agreed(table, {**types, **own_types})
        if agreed.schema != table.schema:
            assert part.samples is not None, part.id
            path = f"{part.samples.path.rpartition('/')[0]}/{secrets.token_hex(8)}.samples.parquet"
            part = replace(part, samples=put_table(store, path, agreed, "part-samples"))
        out.append((kind, part))
    return out, {"columns": types, "notes": members.lines()}


def _units(
    raws: Sequence[Row], earlier: Mapping[str, EarlierSamples]
) -> Iterator[tuple[list[Row], dict[str, EarlierSamples]]]:
    def unit() -> tuple[list[Row], dict[str, EarlierSamples]]:
        return members, {raw["key"]: earlier[raw["key"]] for raw in members if raw["key"] in earlier}

    members, total = list[Row](), 0
    for raw in raws:
        nbytes = max(raw["nbytes"], _LEAST_BYTES)
        if members and total + nbytes > DEFAULT_SHARD_BYTES:
            yield unit()
            members, total = [], 0
        members.append(raw)
        total += nbytes
    if members:
        yield unit()


@dataclass(frozen=True, slots=True)
class _Batch:
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
        units_read, pending = list[ReadUnits](), list(tasks)
        while pending:
            decides = [
                [
                    one.name,
                    one.groups,
                    [raw["sha256"] for raw in one.raws],
                    self.newest if one.earlier else "",
                ]
                for one in pending
            ]
            job = units_job(READ, self.root, self.files, self.spec, self.partition, pending[0].txn, decides)
            self.jobs.append(job)
            halves = list[ReadTask]()
            for task, outcome in outcomes_of(self.compute, job, pending):
                if outcome.value is not None:
                    self.refusals.extend(outcome.value.refusals)
                    lost = {row["key"] for row in outcome.value.refusals}
                    intact = [raw for raw in task.raws if raw["key"] not in lost]
                    units_read.append((replace(task, raws=intact), outcome.value))
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

    def agreeing(
        self, units_read: Sequence[ReadUnits], labels: Sequence[str], known: Mapping[str, Mapping[str, Any]]
    ) -> tuple[list[str], list[ReadUnits]]:
        """Return the agreed class names, and the samples of objects that have them and the others' columns."""
        names, fits, again = list(labels), list[ReadUnits](), list[ReadTask]()
        columns, fields = (
            dict[str, tuple[str, str]](),
            {name for one in known.values() for name in one["field_nbytes"]},
        )
        for task, result in units_read:
            fitting = list[Row]()
            for raw in task.raws:
                own, becomes = result.labels.get(raw["key"], []), result.columns.get(raw["key"], {})
                if own[: len(names)] != names[: len(own)]:
                    why = f"its class names are {own}, the dataset's {names}: put it into another dataset"
                    self._refuse(raw, "other_classes", why)
                elif why := why_other(becomes, raw["key"], columns, fields, self.spec.name):
                    self._refuse(raw, "other_columns", why)
                else:
                    names = max(names, own, key=len)
                    columns = {column: (what, raw["key"]) for column, what in becomes.items()} | columns
                    fitting.append(raw)
            if len(fitting) == len(task.raws):
                fits.append((task, result))
            elif fitting:
                again.append(replace(task, name=f"{task.name}l", raws=fitting))
        return names, _in_order([*fits, *self.read(again)])

    def in_groups(
        self, units_read: Sequence[ReadUnits], known: Mapping[str, Mapping[str, Any]]
    ) -> list[ReadUnits]:
        kinds = dict[tuple[str, ...], Rows]()
        for _, result in units_read:
            for names, key, of in result.kinds:
                kinds.setdefault(tuple(names), Rows(tuple(names), [key], [of]))
        if not kinds:
            return [*units_read]
        try:
            group_of = groups_of([kinds[kind] for kind in sorted(kinds)], known)
        except FieldMismatch:
            for job in self.jobs:
                discard(self.compute, job)
            raise
        groups = dict[str, list[str]]()
        for name, group in sorted(group_of.items()):
            groups.setdefault(group, []).append(name)
        fits, again = list[ReadUnits](), list[ReadTask]()
        for task, result in units_read:
            if _lies_in(group_of, result):
                fits.append((task, result))
            else:
                again.append(replace(task, name=f"{task.name}s", groups=groups))
        return _in_order([*fits, *self.read(again)])

    def _refuse(self, raw: Row, code: str, why: str) -> None:
        self.refusals.append(refusal_row(raw["key"], raw["sha256"], rejected("cut", code, why)))


def _lies_in(group_of: Mapping[str, str], result: ReadParts) -> bool:
    shards = [shard for one in result.parts for shard in Part.from_json(one).shards]
    return all(group_of[name] == shard.group for shard in shards for name in shard.field_nbytes)


def _in_order(units_read: Sequence[ReadUnits]) -> list[ReadUnits]:
    return sorted(units_read, key=lambda unit: unit[0].name)
