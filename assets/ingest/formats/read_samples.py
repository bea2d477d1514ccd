"""Samples of a batch whose raw objects an importer reads: tables, records, logs of robots. Workers copy them.

A unit is neighbouring objects, of about a shard's bytes. Its worker knows neither the class names of other units nor
which fields all samples have: units that do not fit are read again, under other names.
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
from ...stages import written_part
from .earlier_samples import newest_version
from .known_samples import Beside, EarlierSamples
from .read_work import READ, ReadParts, ReadTask
from .sample_facts import OWN_COLUMNS, Row, Taken, Taking, unit_row
from .sample_jobs import not_written, outcomes_of, units_job
from .walked_objects import fresh_objects

_LEAST_BYTES = DEFAULT_SHARD_BYTES // 4096
"""Bytes that an object counts at least: a unit has 4,096 of them at most."""
_OF_THE_OBJECT = ("crashed", "memory", "timeout")
"""Codes of failures that leave no word of the object that is to blame."""

Made = tuple[ReadTask, ReadParts]
"""Unit, with those of its objects that were read, and its samples."""


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
) -> Taken:
    """Write the parts of the admitted objects.

    published: sha256 -> where these bytes are in the dataset. labels: class names of the dataset, in the order of their
    numbers; empty for none.

    Raises: FieldMismatch for samples without a field that all of the dataset have; as the format; StoreError.
    """
    infos, refusals = fresh_objects(landing, audits, raws, published)
    files = landing.place if isinstance(landing, JoinedObjects) else landing  # a worker joins them again
    fresh = [raws[info.key] for info in infos]
    newest = newest_version(root, spec, fresh)
    task = ReadTask(
        landing=store_url(files),
        root=store_url(root.store),
        txn=txn,
        groups={group: sorted(body["field_nbytes"]) for group, body in newest.groups.items()},
        taking=Taking.of(spec, provenance),
        limit_s=spec.max_work_timeout_s,
        texts=sorted(Partitions((raw["key"] for raw in fresh), texts=text_columns(newest.columns)).texts),
    )
    batch = _Batch(compute, root, files, spec, provenance["partition"], refusals, newest.id)
    units = enumerate(_units(fresh, newest.earlier))
    made = batch.read([replace(task, name=f"{n:05d}", raws=some, earlier=had) for n, (some, had) in units])
    names, made = batch.that_agree(made, labels, newest.groups)
    made = batch.in_groups(made, newest.groups)
    beside = Beside.of_all(found.beside for _, found in made)
    parts, rows = list[tuple[str, Part]](), list[Row]()
    for part in (written_part(one, txn) for _, found in made for one in found.parts):
        kind = modality_of({name for shard in part.shards for name in shard.field_nbytes})
        parts.append((kind, part))
        for row in part_rows(root.store, part):
            rows.append(unit_row(row["key"], kind, part.id, row, beside.contents[row["key"]]))
    facts = {name: told for _, found in made for name, told in found.facts.items()}
    told: dict[str, Any] = {}
    if any(one.of_json for _, one in made):
        parts, told = _agreed(root.store, parts, made, newest.columns)
    taken = Taken(
        parts=parts, rows=rows, refusals=refusals, labels=names, facts=facts, jobs=batch.jobs, **told
    )
    return beside.told_in(taken, raws)


def _agreed(
    store: Store,
    parts: Sequence[tuple[str, Part]],
    made: Sequence[Made],
    known: Mapping[str, Mapping[str, Any]],
) -> tuple[list[tuple[str, Part]], dict[str, Any]]:
    """Return parts whose columns of JSON documents have the types of the whole batch; these types, and notes.

    Costs the samples tables of the parts; those that change are written again.
    """
    members = JsonMembers()
    for what, (n, example) in (one for _, found in made for one in found.notes.items()):
        members.count(what, example, n)
    tables = part_tables(store, [part for _, part in parts])
    own = [table.drop_columns(sorted(OWN_COLUMNS.intersection(table.column_names))) for table in tables]
    types, out = members.agreed(own, known), list[tuple[str, Part]]()
    for (kind, part), table in zip(parts, tables, strict=True):
        mine = {
            name: str(table.schema.field(name).type) for name in OWN_COLUMNS.intersection(table.column_names)
        }
        agreed = members.as_agreed(table, {**types, **mine})
        if agreed.schema != table.schema:
            assert part.samples is not None, part.id
            path = f"{part.samples.path.rpartition('/')[0]}/{secrets.token_hex(8)}.samples.parquet"
            part = replace(part, samples=put_table(store, path, agreed, "part-samples"))
        out.append((kind, part))
    return out, {"columns": types, "notes": members.lines()}


def _units(
    raws: Sequence[Row], earlier: Mapping[str, EarlierSamples]
) -> Iterator[tuple[list[Row], dict[str, EarlierSamples]]]:
    """Yield neighbours of a shard's bytes at most, with what the dataset has of them; a larger object is alone."""

    def unit() -> tuple[list[Row], dict[str, EarlierSamples]]:
        return some, {raw["key"]: earlier[raw["key"]] for raw in some if raw["key"] in earlier}

    some, total = list[Row](), 0
    for raw in raws:
        nbytes = max(raw["nbytes"], _LEAST_BYTES)
        if some and total + nbytes > DEFAULT_SHARD_BYTES:
            yield unit()
            some, total = [], 0
        some.append(raw)
        total += nbytes
    if some:
        yield unit()


@dataclass(frozen=True, slots=True)
class _Batch:
    """A batch that is read."""

    compute: Compute
    root: loader.Root
    files: Store
    spec: DatasetSpec
    partition: str
    refusals: list[Row]
    newest: str
    jobs: list[Job[Any, Any]] = field(default_factory=list)

    def read(self, tasks: Sequence[ReadTask]) -> list[Made]:
        """Return the samples of units, in their order.

        A unit that kills or holds its worker is read in halves, until its object is alone, which is refused.

        Raises: StoreError.
        """
        made, left = list[Made](), list(tasks)
        while left:
            decides = [
                [
                    one.name,
                    one.groups,
                    [raw["sha256"] for raw in one.raws],
                    self.newest if one.earlier else "",
                ]
                for one in left
            ]
            job = units_job(READ, self.root, self.files, self.spec, self.partition, left[0].txn, decides)
            self.jobs.append(job)
            halves = list[ReadTask]()
            for task, outcome in outcomes_of(self.compute, job, left):
                if outcome.value is not None:
                    self.refusals.extend(outcome.value.refusals)
                    lost = {row["key"] for row in outcome.value.refusals}
                    sound = [raw for raw in task.raws if raw["key"] not in lost]
                    made.append((replace(task, raws=sound), outcome.value))
                elif outcome.error is None or outcome.error.code not in _OF_THE_OBJECT:
                    raise not_written(self.compute, self.jobs, task.raws[0]["key"], outcome)
                elif len(task.raws) == 1:
                    self._refuse(task.raws[0], outcome.error.code, outcome.error.summary)
                else:
                    half = len(task.raws) // 2
                    halves.append(replace(task, name=f"{task.name}a", raws=task.raws[:half]))
                    halves.append(replace(task, name=f"{task.name}b", raws=task.raws[half:]))
            left = halves
        return _in_order(made)

    def that_agree(
        self, made: Sequence[Made], labels: Sequence[str], known: Mapping[str, Mapping[str, Any]]
    ) -> tuple[list[str], list[Made]]:
        """Return the class names of the dataset, and the samples of objects that have these, and columns as others.

        Raises: StoreError.
        """
        names, fits, again = list(labels), list[Made](), list[ReadTask]()
        columns, fields = (
            dict[str, tuple[str, str]](),
            {name for one in known.values() for name in one["field_nbytes"]},
        )
        for task, found in made:
            sound = list[Row]()
            for raw in task.raws:
                own, becomes = found.labels.get(raw["key"], []), found.columns.get(raw["key"], {})
                if own[: len(names)] != names[: len(own)]:
                    why = f"its class names are {own}, the dataset's {names}: make another dataset of it"
                    self._refuse(raw, "other_classes", why)
                elif why := why_other(becomes, raw["key"], columns, fields, self.spec.name):
                    self._refuse(raw, "other_columns", why)
                else:
                    names = max(names, own, key=len)
                    columns = {column: (what, raw["key"]) for column, what in becomes.items()} | columns
                    sound.append(raw)
            if len(sound) == len(task.raws):
                fits.append((task, found))
            elif sound:
                again.append(replace(task, name=f"{task.name}l", raws=sound))
        return names, _in_order([*fits, *self.read(again)])

    def in_groups(self, made: Sequence[Made], known: Mapping[str, Mapping[str, Any]]) -> list[Made]:
        """Return the samples, all fields in the groups of the whole batch. Raises: FieldMismatch; StoreError."""
        kinds = dict[tuple[str, ...], Rows]()
        for _, found in made:
            for names, key, of in found.kinds:
                kinds.setdefault(tuple(names), Rows(tuple(names), [key], [of]))
        if not kinds:
            return [*made]
        try:
            group_of = groups_of([kinds[kind] for kind in sorted(kinds)], known)
        except FieldMismatch:
            for job in self.jobs:
                discard(self.compute, job)
            raise
        groups = dict[str, list[str]]()
        for name, group in sorted(group_of.items()):
            groups.setdefault(group, []).append(name)
        fits, again = list[Made](), list[ReadTask]()
        for task, found in made:
            if _lies_in(group_of, found):
                fits.append((task, found))
            else:
                again.append(replace(task, name=f"{task.name}s", groups=groups))
        return _in_order([*fits, *self.read(again)])

    def _refuse(self, raw: Row, code: str, why: str) -> None:
        self.refusals.append(refusal_row(raw["key"], raw["sha256"], rejected("cut", code, why)))


def _lies_in(group_of: Mapping[str, str], found: ReadParts) -> bool:
    shards = [shard for one in found.parts for shard in Part.from_json(one).shards]
    return all(group_of[name] == shard.group for shard in shards for name in shard.field_nbytes)


def _in_order(made: Sequence[Made]) -> list[Made]:
    return sorted(made, key=lambda one: one[0].name)
