"""Samples of a batch whose raw objects are of another format: they are walked, not cut.

With `keep="copy"` their bytes are copied into parts, by workers. With `keep="in place"` a part is an index of them, and
the table of the objects goes with it to publication.
"""

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
from penstock.card.counting.classes import modality_of
from penstock.compute.job import Job, store_url
from penstock.compute.pool import Compute
from penstock.formats.registration.parts import objects_of, put_parts
from penstock.formats.registration.shard_rows import ForeignShard, Rows, agree, groups_of, shards_of

from ...spec import DatasetSpec
from ...stages import written_part
from .copy_work import COPY, CopiedPart, CopyTask
from .earlier_samples import newest_version
from .known_samples import Beside, EarlierSamples
from .sample_facts import Row, Taken, Taking, unit_row
from .sample_jobs import not_written, outcomes_of, units_job
from .walked_objects import KnownSample, WalkedPlace, fresh_objects, samples_of

_AT_ONCE = 8
"""Objects that are walked together."""


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
) -> Taken:
    """Write the parts of the admitted objects. published: sha256 -> where these bytes are in the dataset.

    Raises: FieldMismatch for samples without a field that all of the dataset have; as the format; StoreError.
    """
    infos, refusals = fresh_objects(landing, audits, raws, published)
    if not infos:
        return Taken(refusals=refusals)
    newest = newest_version(root, spec, [raws[info.key] for info in infos])
    earlier = newest.earlier
    raws = {**raws, **{key: {**raws[key], "first_sha256": had.first_sha256} for key, had in earlier.items()}}
    place = WalkedPlace(landing, spec.format, spec.sources[0].choices)
    shards = shards_of(infos, place.objects_per_shard)
    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="penstock-walk") as pool:
        done = list(pool.map(place.rows, shards))
    walked = [(shard, rows) for shard, some in zip(shards, done, strict=True) for rows in some]
    group_of = groups_of([rows for _, rows in walked], newest.groups)
    told: dict[str, Any] = {}
    if place.has_members:
        types = agree([rows for _, rows in walked], place.members, newest.columns)
        told = {"columns": types, "notes": place.members.lines()}
    taking = Taking.of(spec, provenance)
    if not spec.in_place:
        whole = [raws[one.key]["sha256"] for one in infos]
        decides: tuple[Any, ...] = txn, sorted(group_of.items()), whole, newest.id if earlier else ""
        of_json = told.get("columns", {})
        decides += (sorted(of_json.items()),) if of_json else ()
        job = units_job(COPY, root, landing, spec, provenance["partition"], *decides)
        tasks = [
            replace(task, columns=of_json)
            for task in _tasks(job, txn, walked, group_of, raws, taking, spec, earlier)
        ]
        parts, rows, beside = _copied(compute, job, tasks)
        return beside.told_in(Taken(parts=parts, rows=rows, refusals=refusals, jobs=[job], **told), raws)
    walked, samples, beside = _beside(walked, raws, taking, earlier)
    parts, foreign = (
        _put_in_place(root, landing, txn, walked, samples, group_of, raws) if walked else ([], None)
    )
    rows = [
        unit_row(one.key, kind, part.id, one.source)
        for (kind, part), some in zip(parts, samples, strict=True)
        for one in some
    ]
    return beside.told_in(Taken(parts=parts, rows=rows, refusals=refusals, foreign=foreign, **told), raws)


def _beside(
    walked: Sequence[tuple[ForeignShard, Rows]],
    raws: Mapping[str, Row],
    taking: Taking,
    earlier: Mapping[str, EarlierSamples],
) -> tuple[list[tuple[ForeignShard, Rows]], list[list[KnownSample]], Beside]:
    """Return the rows that come in, their samples, and what these are beside earlier ones."""
    stay, samples, beside = list[tuple[ForeignShard, Rows]](), list[list[KnownSample]](), Beside()
    for shard, rows in walked:
        known = list(samples_of(taking, shard, rows, raws))
        kept = [
            number
            for number, one in enumerate(known)
            if beside.taken_in_place(
                one.key, one.source, earlier.get(one.source["raw_key"], EarlierSamples())
            )
        ]
        if kept:
            stay.append((shard, rows.take(kept) if len(kept) < len(known) else rows))
            samples.append([known[number] for number in kept])
    last_first = (one for some in reversed(samples) for one in reversed(some))
    beside.replace_lost({one.source["raw_key"]: one.key for one in last_first}, earlier)
    return stay, samples, beside


def _tasks(
    job: Job[CopyTask, CopiedPart],
    txn: str,
    walked: Sequence[tuple[ForeignShard, Rows]],
    group_of: Mapping[str, str],
    raws: Mapping[str, Row],
    taking: Taking,
    spec: DatasetSpec,
    earlier: Mapping[str, EarlierSamples],
) -> Iterator[CopyTask]:
    """Yield the copies of all runs."""
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
            taking=taking,
            limit_s=spec.max_work_timeout_s,
            earlier={info.key: earlier[info.key] for info in shard.infos if info.key in earlier},
        )
        runs[shard.name] += 1


def _copied(
    compute: Compute, job: Job[CopyTask, CopiedPart], tasks: Sequence[CopyTask]
) -> tuple[list[tuple[str, loader.Part]], list[Row], Beside]:
    """Return kinds and parts, rows, and samples beside earlier ones, of runs that were copied. Raises: StoreError."""
    parts, rows, found = list[tuple[str, loader.Part]](), list[Row](), list[Beside]()
    for task, outcome in outcomes_of(compute, job, tasks):
        if outcome.value is None:
            raise not_written(compute, [job], task.raws[0]["key"], outcome)
        found.append(outcome.value.beside)
        if outcome.value.part is not None:
            part = written_part(outcome.value.part, task.txn)
            parts.append((outcome.value.rows[0]["kind"], part))
            rows += outcome.value.rows
    return parts, rows, Beside.of_all(found)


def _put_in_place(
    root: loader.Root,
    landing: Store,
    txn: str,
    walked: Sequence[tuple[ForeignShard, Rows]],
    samples: Sequence[Sequence[KnownSample]],
    group_of: Mapping[str, str],
    raws: Mapping[str, Row],
) -> tuple[list[tuple[str, loader.Part]], dict[str, Any]]:
    """Write an index for each run, the samples tables, and the table of the objects. Raises: StoreError."""
    store, prefix = root.store, f"data/{txn}/{secrets.token_hex(8)}"
    shards = list(dict.fromkeys(shard for shard, _ in walked))
    place = place_id(landing, [info for shard in shards for info in shard.infos])
    put_place(store, place, landing.url)
    keys = [[one.key for one in some] for some in samples]
    # No other transaction has these indexes: they hold the checksums themselves.
    bare = put_parts(store, txn, prefix, place, walked, keys, group_of, seals=False)
    parts = list[tuple[str, loader.Part]]()
    for (_, rows), part, own, some in zip(walked, bare, keys, samples, strict=True):
        table = columns.keys_table(own, [one.source for one in some], part.id)
        more = columns.metadata_table([one.metadata for one in some], part.id, own)
        for name in more.column_names[2:]:
            table = table.append_column(name, more[name])
        path = f"{prefix}/{part.id.removeprefix(f'{txn}-')}.samples.parquet"
        whole = replace(part, samples=put_table(store, path, table, "part-samples"))
        parts.append((modality_of(set(rows.fields)), whole))
    objects = [replace(one, sha256=raws[one.key]["sha256"]) for one in objects_of(landing, place, shards)]
    data = table_bytes(foreign_table(objects), "foreign")
    return parts, put_named(store, prefix, "foreign", data, len(objects)).to_json()
