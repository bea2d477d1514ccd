"""Samples of a batch in walked formats: workers copy them, or they stay in place and each part is an index of them."""

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
from ...stages import written_part
from .admission import Admission, EarlierSamples, newest_version
from .read_work import COPY, CopiedPart, CopyTask
from .sample_facts import BatchSamples, Row, TakingRules, not_written, outcomes_of, unit_row, units_job
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
    """Write the parts of the admitted objects. published: SHA-256 -> where the dataset already has these bytes.

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
