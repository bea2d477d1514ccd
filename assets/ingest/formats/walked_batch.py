"""Write the samples of a batch in a walked format as parts: workers copy them, or parts index them in place."""

import secrets
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import loader
from loader.dataset.tables import columns
from loader.dataset.tables.foreign_objects import foreign_table, place_id, put_place
from loader.dataset.tables.parquet import put_named, put_table, table_bytes
from loader.storage import Store
from penstock.card.classes import modality_of
from penstock.compute.job import Job, store_url
from penstock.compute.pool import Compute
from penstock.formats.registration.parts import objects_of, put_parts
from penstock.formats.registration.shard_rows import ForeignShard, Rows, agree, groups_of, shards_of

from ...spec import DatasetSpec
from ...stages import BatchSamples, written_part
from .admission import Admission, EarlierSamples, newest_version
from .sample_facts import Row, TakingRules, not_written, outcomes_of, unit_row, units_job
from .sample_work import COPY, CopiedPart, CopyTask
from .walked_objects import KnownSample, WalkedPlace, fresh_objects, samples_of

_AT_ONCE = 8
"""Most objects walked at the same time."""

Walked = tuple[ForeignShard, Rows]
"""(shard, a run of its samples with the same fields)."""


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
    raws = dict(raws)
    for key, samples in earlier.items():
        # A sample's split follows the object's first bytes, so that growth moves none to another split.
        raws[key] = {**raws[key], "first_sha256": samples.first_sha256}

    place = WalkedPlace(landing, spec.format, spec.sources[0].choices)
    shards = shards_of(infos, place.objects_per_shard)
    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="penstock-walk") as pool:
        runs_by_shard = list(pool.map(place.rows, shards))
    walked = list[Walked]()
    for shard, runs in zip(shards, runs_by_shard, strict=True):
        walked += [(shard, run) for run in runs]
    group_of = groups_of([rows for _, rows in walked], newest.groups)
    batch = BatchSamples(refusals=refusals)
    if place.has_members:
        types = agree([rows for _, rows in walked], place.members, newest.columns)
        batch = replace(batch, columns=types, notes=place.members.lines())

    rules = TakingRules.of(spec, provenance)
    if spec.in_place:
        batch, admission = _index_in_place(root, landing, txn, walked, group_of, raws, rules, earlier, batch)
        return admission.apply_to(batch, raws)
    # All that decides the copies. The version does only if it has samples of these objects.
    decides: list[object] = [
        txn,
        sorted(group_of.items()),
        [raws[info.key]["sha256"] for info in infos],
        newest.id if earlier else "",
    ]
    if batch.columns:
        decides.append(sorted(batch.columns.items()))
    job = units_job(COPY, root, landing, spec, provenance["partition"], *decides)
    tasks = list[CopyTask]()
    for task in _tasks(job, txn, walked, group_of, raws, rules, spec, earlier):
        tasks.append(replace(task, columns=dict(batch.columns)))
    parts, rows, admission = _copied(compute, job, tasks)
    return admission.apply_to(replace(batch, parts=parts, rows=rows, jobs=[job]), raws)


def _tasks(
    job: Job[CopyTask, CopiedPart],
    txn: str,
    walked: Sequence[Walked],
    group_of: Mapping[str, str],
    raws: Mapping[str, Row],
    rules: TakingRules,
    spec: DatasetSpec,
    earlier: Mapping[str, EarlierSamples],
) -> Iterator[CopyTask]:
    runs = Counter[str]()  # shard -> number of its runs so far
    landing, root = map(store_url, job.stores)
    for number, (shard, rows) in enumerate(walked):
        keys = [info.key for info in shard.infos]
        yield CopyTask(
            landing=landing,
            root=root,
            txn=txn,
            number=number,
            raws=[raws[key] for key in keys],
            run=runs[shard.name],
            groups={name: group_of[name] for name in rows.fields},
            rules=rules,
            limit_s=spec.max_work_timeout_s,
            earlier={key: earlier[key] for key in keys if key in earlier},
        )
        runs[shard.name] += 1


def _copied(
    compute: Compute, job: Job[CopyTask, CopiedPart], tasks: Sequence[CopyTask]
) -> tuple[list[tuple[str, loader.Part]], list[Row], Admission]:
    parts = list[tuple[str, loader.Part]]()
    rows = list[Row]()
    admissions = list[Admission]()
    for task, outcome in outcomes_of(compute, job, tasks):
        copied = outcome.value
        if copied is None:
            raise not_written(compute, [job], task.raws[0]["key"], outcome)
        admissions.append(copied.admission)
        if copied.part is None:  # the dataset has all of its samples
            continue
        part = written_part(copied.part, task.txn)
        parts.append((copied.rows[0]["kind"], part))
        rows += copied.rows
    return parts, rows, Admission.of_all(admissions)


def _index_in_place(
    root: loader.Root,
    landing: Store,
    txn: str,
    walked: Sequence[Walked],
    group_of: Mapping[str, str],
    raws: Mapping[str, Row],
    rules: TakingRules,
    earlier: Mapping[str, EarlierSamples],
    batch: BatchSamples,
) -> tuple[BatchSamples, Admission]:
    """Return the batch with its parts in place, and their admission."""
    admitted, samples, admission = _admit_in_place(walked, raws, rules, earlier)
    if not admitted:
        return batch, admission
    parts, foreign = _put_in_place(root, landing, txn, admitted, samples, group_of, raws)
    rows = list[Row]()
    for (kind, part), members in zip(parts, samples, strict=True):
        rows += [unit_row(sample.key, kind, part.id, sample.source) for sample in members]
    return replace(batch, parts=parts, rows=rows, foreign=foreign), admission


def _admit_in_place(
    walked: Sequence[Walked],
    raws: Mapping[str, Row],
    rules: TakingRules,
    earlier: Mapping[str, EarlierSamples],
) -> tuple[list[Walked], list[list[KnownSample]], Admission]:
    """Return the admitted runs, the samples of each, and their admission."""
    admitted = list[Walked]()
    samples = list[list[KnownSample]]()
    admission = Admission()
    first_of: dict[str, str] = {}  # key of an object -> key of its first admitted sample
    for shard, rows in walked:
        known = list(samples_of(rules, shard, rows, raws))
        positions = list[int]()
        for position, sample in enumerate(known):
            raw_key = sample.source["raw_key"]
            if admission.admit_in_place(sample.key, sample.source, earlier.get(raw_key, EarlierSamples())):
                positions.append(position)
                first_of.setdefault(raw_key, sample.key)
        if not positions:
            continue
        if len(positions) < len(known):
            rows = rows.take(positions)
        admitted.append((shard, rows))
        samples.append([known[position] for position in positions])
    admission.replace_lost(first_of, earlier)
    return admitted, samples, admission


def _put_in_place(
    root: loader.Root,
    landing: Store,
    txn: str,
    walked: Sequence[Walked],
    samples: Sequence[Sequence[KnownSample]],
    group_of: Mapping[str, str],
    raws: Mapping[str, Row],
) -> tuple[list[tuple[str, loader.Part]], dict[str, Any]]:
    """Write indexes, samples tables and the table of objects; return (kind, part) of each run, and that table."""
    store = root.store
    prefix = f"data/{txn}/{secrets.token_hex(8)}"
    shards = list(dict.fromkeys(shard for shard, _ in walked))  # in order, each once
    infos = [info for shard in shards for info in shard.infos]
    place = place_id(landing, infos)
    put_place(store, place, landing.url)
    keys = [[sample.key for sample in members] for members in samples]
    # Only this transaction uses these indexes, so they store the checksums themselves.
    bare = put_parts(store, txn, prefix, place, walked, keys, group_of, seals=False)
    parts = list[tuple[str, loader.Part]]()
    for (_, rows), part, part_keys, members in zip(walked, bare, keys, samples, strict=True):
        table = columns.keys_table(part_keys, [sample.source for sample in members], part.id)
        metadata = columns.metadata_table([sample.metadata for sample in members], part.id, part_keys)
        for name in metadata.column_names[2:]:  # both tables begin with part and row
            table = table.append_column(name, metadata[name])
        path = f"{prefix}/{part.id.removeprefix(f'{txn}-')}.samples.parquet"
        samples_file = put_table(store, path, table, "part-samples")
        parts.append((modality_of(set(rows.fields)), replace(part, samples=samples_file)))
    objects = [
        replace(entry, sha256=raws[entry.key]["sha256"]) for entry in objects_of(landing, place, shards)
    ]
    data = table_bytes(foreign_table(objects), "foreign")
    return parts, put_named(store, prefix, "foreign", data, len(objects)).to_json()
