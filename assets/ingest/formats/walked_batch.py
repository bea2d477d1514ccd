"""Write the samples of a batch in a walked format as parts: workers copy them, or parts index them in place."""

import secrets
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import loader
from loader.dataset.tables import columns
from loader.dataset.tables.foreign_objects import ForeignObject, foreign_table, place_id
from loader.dataset.tables.parquet import put_named, put_table, table_bytes
from loader.dataset.tables.place_records import put_place
from loader.storage import ObjectInfo
from loader.storage.threads import DaemonPool
from penstock.card.classes import fields_modality
from penstock.compute.job import Job, store_url
from penstock.compute.local_blocks import discard
from penstock.compute.pool import Compute
from penstock.formats.reading.sample import ForeignShard, object_shards
from penstock.formats.registration.parts import object_rows, put_parts
from penstock.formats.registration.shard_rows import Rows, agree, field_groups

from ...pipeline.stages import BatchSamples, OpenBatch, parse_written_part
from .admission import Admission, NewestVersion, ObjectHistory, newest_version
from .copy_work import COPY, CopiedPart, CopyTask
from .sample_facts import IngestRules, Row, missing_result_error, unit_outcomes, unit_row, units_job
from .walked_objects import KnownSample, WalkedPlace, fresh_objects, sample_facts

_AT_ONCE = 8
"""Most objects walked at the same time."""

Walked = tuple[ForeignShard, Rows]
"""(shard, a run of its samples with the same fields)."""


def write_walked(batch: OpenBatch) -> BatchSamples:
    """Write the parts of the admitted objects.

    Raises: FieldMismatch if a sample lacks a field of the dataset; errors of the format; StoreError.
    """
    spec = batch.spec
    infos, refusals = fresh_objects(batch)
    samples = BatchSamples(refusals=refusals)
    if not infos:
        return samples
    fresh = [batch.raws[info.key] for info in infos]
    newest = newest_version(batch.root, spec, fresh)
    source = spec.sources[0]  # all sources of a dataset have the same format and options
    place = WalkedPlace(
        batch.landing,
        spec.format,
        source.choices,
    )
    walked = _walk(place, infos)  # adds the JSON values of the samples to place.members
    all_rows = [rows for _, rows in walked]
    group_of = field_groups(all_rows, newest.groups)
    if place.has_members:
        # Changes the rows: their JSON columns get the types that the whole batch has.
        types = agree(all_rows, place.members, newest.columns)
        samples = replace(
            samples,
            columns=types,
            notes=place.members.lines(),
        )

    plan = _WalkedBatch(
        batch=batch,
        infos=infos,
        walked=walked,
        group_of=group_of,
        raws=_raws_with_first_bytes(batch, newest),
        rules=IngestRules.of(spec, batch.provenance),
        newest=newest,
    )
    if spec.in_place:
        samples, admission = _index_in_place(plan, samples)
    else:
        samples, admission = _copy(plan, samples)
    return admission.complete(samples, plan.raws)


@dataclass(frozen=True, slots=True, kw_only=True)
class _WalkedBatch:
    """A batch whose objects were walked."""

    batch: OpenBatch
    infos: Sequence[ObjectInfo]
    """Objects in key order."""
    walked: Sequence[Walked]
    group_of: Mapping[str, str]
    """Field -> group."""
    raws: Mapping[str, Row]
    """Rows of the raw objects. Objects of the newest version also have `first_sha256`."""
    rules: IngestRules
    newest: NewestVersion


def _walk(place: WalkedPlace, infos: Sequence[ObjectInfo]) -> list[Walked]:
    shards = object_shards(infos, place.objects_per_shard)
    # In threads, because walking an object waits for its store.
    with DaemonPool(_AT_ONCE, "penstock-walk") as pool:
        runs_by_shard = list(pool.map(place.rows, shards))
    walked = list[Walked]()
    for shard, runs in zip(shards, runs_by_shard, strict=True):
        for run in runs:
            walked.append((shard, run))
    return walked


def _raws_with_first_bytes(batch: OpenBatch, newest: NewestVersion) -> dict[str, Row]:
    raws = dict(batch.raws)
    for key, history in newest.earlier.items():
        # A sample's split follows the object's first bytes, so that growth moves none to another split.
        raw = dict(raws[key])
        raw["first_sha256"] = history.first_sha256
        raws[key] = raw
    return raws


def _copy(plan: _WalkedBatch, samples: BatchSamples) -> tuple[BatchSamples, Admission]:
    """Return the batch with its parts copied by nodes, and their admission."""
    batch = plan.batch
    hashes = [plan.raws[info.key]["sha256"] for info in plan.infos]
    newest_id = ""  # the version decides the copies only if it has samples of these objects
    if plan.newest.earlier:
        newest_id = plan.newest.id
    # All that decides the copies, for the job's fingerprint.
    decides: list[object] = [
        batch.txn,
        sorted(plan.group_of.items()),
        hashes,
        newest_id,
    ]
    if samples.columns:
        decides.append(sorted(samples.columns.items()))
    job = units_job(COPY, batch, *decides)
    tasks = list(_tasks(plan, samples.columns))
    parts, rows, admission = _collect_copies(batch.compute, job, tasks)
    samples = replace(
        samples,
        parts=parts,
        rows=rows,
        jobs=[job],
    )
    return samples, admission


def _tasks(
    plan: _WalkedBatch,
    columns_of_json: Mapping[str, str],
) -> Iterator[CopyTask]:
    """Yield a task per run of samples. columns_of_json: column from JSON documents -> its type in this batch."""
    landing = store_url(plan.batch.files)
    root = store_url(plan.batch.root.store)
    # A node walks the shard again, and copies only the run with this number in it.
    run_numbers = Counter[str]()  # shard -> number of its next run
    for task_number, (shard, rows) in enumerate(plan.walked):
        raws = list[Row]()
        earlier: dict[str, ObjectHistory] = {}
        for info in shard.infos:
            raws.append(plan.raws[info.key])
            if info.key in plan.newest.earlier:
                earlier[info.key] = plan.newest.earlier[info.key]
        groups: dict[str, str] = {}
        for name in rows.fields:
            groups[name] = plan.group_of[name]
        yield CopyTask(
            landing=landing,
            root=root,
            txn=plan.batch.txn,
            number=task_number,
            raws=raws,
            run=run_numbers[shard.name],
            groups=groups,
            rules=plan.rules,
            limit_s=plan.batch.spec.max_work_timeout_s,
            earlier=earlier,
            columns=dict(columns_of_json),
        )
        run_numbers[shard.name] += 1


def _collect_copies(
    compute: Compute,
    job: Job[CopyTask, CopiedPart],
    tasks: Sequence[CopyTask],
) -> tuple[list[tuple[str, loader.Part]], list[Row], Admission]:
    """Return (kind, part) of each copied part, the rows of `units`, and the admission of all."""
    parts = list[tuple[str, loader.Part]]()
    rows = list[Row]()
    admissions = list[Admission]()
    for task, outcome in unit_outcomes(compute, job, tasks):
        copied = outcome.value
        if copied is None:
            discard(compute, job)  # otherwise the next run would find the same failure
            first_key = task.raws[0]["key"]
            raise missing_result_error(first_key, outcome)
        admissions.append(copied.admission)
        if copied.part is None:  # the dataset has all of its samples
            continue
        kind = copied.rows[0]["kind"]
        part = parse_written_part(copied.part, task.txn)
        parts.append((kind, part))
        rows += copied.rows
    return parts, rows, Admission.of_all(admissions)


def _index_in_place(
    plan: _WalkedBatch,
    samples: BatchSamples,
) -> tuple[BatchSamples, Admission]:
    """Return the batch with its parts in place, and their admission."""
    admitted, admission = _admit_in_place(plan)
    if not admitted:
        return samples, admission
    parts, foreign = _put_in_place(plan, admitted)
    rows = list[Row]()
    for (kind, part), run in zip(parts, admitted, strict=True):
        for sample in run.samples:
            rows.append(unit_row(sample.key, kind, part.id, sample.source))
    samples = replace(
        samples,
        parts=parts,
        rows=rows,
        foreign=foreign,
    )
    return samples, admission


class _AdmittedRun(NamedTuple):
    """A run of samples in place that become a part."""

    shard: ForeignShard
    rows: Rows
    samples: list[KnownSample]
    """Facts of each row."""


def _admit_in_place(plan: _WalkedBatch) -> tuple[list[_AdmittedRun], Admission]:
    """Return the runs with only their admitted samples, without empty runs, and the admission of all."""
    earlier = plan.newest.earlier
    admitted = list[_AdmittedRun]()
    admission = Admission()
    first_keys: dict[str, str] = {}  # key of an object -> key of its first admitted sample
    for shard, rows in plan.walked:
        positions = list[int]()  # of the admitted rows
        samples = list[KnownSample]()
        known_samples = sample_facts(plan.rules, shard, rows, plan.raws)
        for position, sample in enumerate(known_samples):
            raw_key = sample.source["raw_key"]
            history = earlier.get(raw_key, ObjectHistory())
            if admission.admit_in_place(sample.key, sample.source, history):
                positions.append(position)
                samples.append(sample)
                first_keys.setdefault(raw_key, sample.key)
        if not samples:
            continue
        if len(samples) < len(rows.source_keys):
            rows = rows.take(positions)
        run = _AdmittedRun(shard=shard, rows=rows, samples=samples)
        admitted.append(run)
    admission.replace_lost(first_keys, earlier)
    return admitted, admission


def _put_in_place(
    plan: _WalkedBatch,
    runs: Sequence[_AdmittedRun],
) -> tuple[list[tuple[str, loader.Part]], dict[str, Any]]:
    """Write indexes, samples tables and the table of objects; return (kind, part) of each run, and that table."""
    txn = plan.batch.txn
    folder = secrets.token_hex(8)
    prefix = f"data/{txn}/{folder}"
    walked = [(run.shard, run.rows) for run in runs]
    shards = _distinct_shards(walked)
    place = _put_place(plan, shards)
    keys = list[list[str]]()
    for run in runs:
        keys.append([sample.key for sample in run.samples])
    # Parts with indexes, but without samples tables. This frees the rows' places and checksums.
    bare_parts = put_parts(
        plan.batch.root.store,
        txn,
        prefix,
        place,
        walked,
        keys,
        plan.group_of,
        seals=False,  # only this transaction uses these indexes, so they store the checksums themselves
    )
    parts = list[tuple[str, loader.Part]]()
    for run, bare_part in zip(runs, bare_parts, strict=True):
        kind = fields_modality(set(run.rows.fields))
        part = _with_samples(plan, prefix, bare_part, run.samples)
        parts.append((kind, part))
    objects = _put_objects(plan, prefix, place, shards)
    return parts, objects


def _distinct_shards(walked: Iterable[Walked]) -> list[ForeignShard]:
    # Shards in order, each once: a shard whose samples differ in fields has several runs.
    shards = dict.fromkeys(shard for shard, _ in walked)
    return list(shards)


def _put_place(plan: _WalkedBatch, shards: Sequence[ForeignShard]) -> str:
    """Record where the objects are; return the location's id."""
    landing = plan.batch.landing
    infos = list[ObjectInfo]()
    for shard in shards:
        infos += shard.infos
    place = place_id(landing, infos)
    put_place(plan.batch.root.store, place, landing.url)
    return place


def _with_samples(
    plan: _WalkedBatch,
    prefix: str,
    part: loader.Part,
    samples: Sequence[KnownSample],
) -> loader.Part:
    """Write a part's samples table; return the part with it."""
    keys = [sample.key for sample in samples]
    sources = [sample.source for sample in samples]
    metadata = [sample.metadata for sample in samples]
    table = columns.keys_table(keys, sources, part.id)
    metadata_table = columns.metadata_table(metadata, part.id, keys)
    for name in metadata_table.column_names[2:]:  # both tables begin with part and row
        table = table.append_column(name, metadata_table[name])
    part_name = part.id.removeprefix(f"{plan.batch.txn}-")
    path = f"{prefix}/{part_name}.samples.parquet"
    file = put_table(plan.batch.root.store, path, table, "part-samples")
    return replace(part, samples=file)


def _put_objects(
    plan: _WalkedBatch,
    prefix: str,
    place: str,
    shards: Sequence[ForeignShard],
) -> dict[str, Any]:
    """Write the table of objects in place; return it as JSON."""
    objects = list[ForeignObject]()
    for entry in object_rows(plan.batch.landing, place, shards):
        raw = plan.raws[entry.key]
        objects.append(replace(entry, sha256=raw["sha256"]))
    table = foreign_table(objects)
    data = table_bytes(table, "foreign")
    file = put_named(plan.batch.root.store, prefix, "foreign", data, len(objects))
    return file.to_json()
