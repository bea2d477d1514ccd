"""units: admitted objects, cut into samples' media and written at once as parts of an open transaction.

A batch is cut in blocks, and a block's units of one kind with the same fields are one part. The transaction stays
open: feature stages add groups to these parts, and `version` commits it, or nobody does.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import dagster as dg

import loader
from loader.dataset.shards.part import part_rows
from loader.errors import StageNotPublished
from loader.storage import Store
from penstock.class_names import class_names
from penstock.compute.local_blocks import discard
from penstock.compute.pool import Compute, Progress
from penstock.stages import StageRecord, Upstream, append_record, current_record, fingerprint
from resources.compute import ComputeResource
from resources.storage import LandingResource, RootResource

from ..arrivals.open_source import place_of_batch
from ..media.policy import policy_words
from ..pages.report import check_metadata, dagster_name, units_metadata
from ..pages.stage_events import as_failures, check_and_materialize
from ..source_formats import read_formats
from ..spec import DatasetSpec
from ..stages import MEDIA, RAW_OBJECTS, UNITS, open_transaction, require_published, require_read
from ..tables import read_table, write_table
from . import recuts
from .clip_staging import clear_staging, staging_of
from .cut import CutInto, cut_objects, labels_of, new_objects, policy_fingerprint, untrue_reason
from .refusals import DUPLICATE, refusal_counts, refusals_of_copies
from .time_limits import Tell, log

if TYPE_CHECKING:
    from .formats.sample_facts import Taken

CODE_VERSION = "2"
CHECK = "true_to_source"

Row = dict[str, Any]


def units_stage(
    root: "loader.Root",
    landing: Store,
    compute: Compute,
    spec: DatasetSpec,
    *,
    partition: str,
    run_id: str,
    progress: Progress | None = None,
    tell: Tell = log.info,
) -> tuple[StageRecord, list[Row], list[Row]]:
    """Cut a batch and publish its parts; return the record, the rows of its units, and those of refused objects.

    Raw objects that the newest version has samples of are dropped as duplicates. A batch with the same media under the
    same policy is not cut again, unless its transaction was aborted. tell: of time limits.

    Raises: StageNotPublished; StoreError.
    """
    store = root.store
    media = require_published(store, spec.name, MEDIA, partition)
    wanted = fingerprint(
        CODE_VERSION, media.fingerprint, media.r, policy_fingerprint(spec.policy), _splits(spec)
    )
    if spec.format:
        wanted = fingerprint(wanted, *spec.taken_as)
    newest = current_record(store, spec.name, UNITS, partition)
    if newest is not None and newest.fingerprint == wanted and _still_good(root, newest):
        return newest, read_table(store, newest.files[UNITS]), read_table(store, newest.files["refusals"])
    landed = require_published(store, spec.name, RAW_OBJECTS, partition)
    require_read(media, landed)
    raws = {row["key"]: row for row in read_table(store, landed.files[RAW_OBJECTS])}
    audits = read_table(store, media.files[MEDIA])
    earlier = newest.r if newest else 0
    txn = open_transaction(root, spec.name, UNITS, partition, wanted, str(earlier), gated=True)
    copies = [row for row in read_table(store, media.files["refusals"]) if row["code"] == DUPLICATE]
    reason, short, n_known, more = "", 0, 0, dict[str, Any]()
    if spec.format:
        told = _provenance(spec, partition, run_id)
        with root.heartbeat(txn):
            taken = _of_format(root, landing, compute, spec, txn, audits, raws, told)
        parts, rows, labels = list(taken.parts), taken.rows, list(taken.labels)
        refusals = [*taken.refusals, *refusals_of_copies(copies, taken.refusals)]
        jobs, n_known = taken.jobs, taken.n_known
        more = {name: found for name in ("foreign", "facts", "columns") if (found := getattr(taken, name))}
        more |= {"replaces": taken.replaces, "keyed_by_place": spec.keyed_by_place}
        for note in taken.notes:
            tell(f"batch {partition}: {note}")
        if n_known or taken.replaces:
            tell(
                f"batch {partition}: {n_known} samples were left out, which the dataset has or had of the same raw "
                f"objects; {len(taken.replaces)} take the place of earlier ones"
            )
    else:
        with root.heartbeat(txn):
            wanted_rows, refusals = new_objects(audits, published_objects(root, spec.name))
            labels = labels_of(wanted_rows, raws, published_labels(root, spec.name))
            into = CutInto(
                root=store,
                txn=txn,
                labels=labels,
                provenance=_provenance(spec, partition, run_id),
                waiting=staging_of(store, spec.name, partition, spec.policy),
            )
            cut = cut_objects(landing, compute, spec, wanted_rows, raws, into, progress, tell)
        jobs, refusals = [cut.job], [*refusals, *cut.refusals]
        refusals += refusals_of_copies(copies, refusals)
        reason, short = (
            untrue_reason(refusals, len(audits) + len(copies), spec.max_untrue_rate),
            cut.short_shots,
        )
        parts, rows = ([], []) if reason else (cut.parts, cut.rows)
    if not parts:
        root.abort(txn, f"{CHECK}: {reason}"[:500] if reason else "the batch holds nothing new")
    kinds = [] if spec.format else [kind for kind, _ in parts]
    record = StageRecord(
        dataset=spec.name,
        stage=UNITS,
        partition=partition,
        verdict="failed" if reason else "published",
        reason=reason,
        run_id=run_id,
        code_version=CODE_VERSION,
        fingerprint=wanted,
        files={
            UNITS: write_table(store, spec.name, UNITS, partition, rows),
            "refusals": write_table(store, spec.name, "refusals", partition, refusals),
        },
        upstream=(Upstream(stage=media.stage, partition=partition, r=media.r),),
        counts=refusal_counts(refusals)
        | {
            "units": len(rows),
            "nbytes": _nbytes([part for _, part in parts]),
            "short_shots": short,
            "published_before": n_known,
            "replacing": len(more.get("replaces", {})),
        },
        body={
            "txn": txn,
            "labels": labels,
            "parts": [{"kind": kind, "part": part.to_json()} for kind, part in parts],
            "policy": policy_words(spec.policy, kinds),
            **more,
        },
    )
    published = append_record(store, record, after=earlier)
    for job in jobs:
        discard(compute, job)
    clear_staging(store, spec.name, partition)
    if newest is not None and newest.verdict == "published":
        recuts.clear(store, spec.name, partition, newest.body["txn"])
    return (
        published,
        read_table(store, published.files[UNITS]),
        read_table(store, published.files["refusals"]),
    )


def _of_format(
    root: "loader.Root",
    landing: Store,
    compute: Compute,
    spec: DatasetSpec,
    txn: str,
    audits: Sequence[Row],
    raws: Mapping[str, Row],
    told: Mapping[str, str],
) -> "Taken":
    """Return the samples of a batch whose objects are of a format. Raises: StoreError."""
    given = spec, txn, audits, raws, published_objects(root, spec.name), told
    labels = published_labels(root, spec.name)
    if spec.format in read_formats():
        from .formats.read_samples import write_read  # which other formats do without

        return write_read(root, landing, compute, *given, labels)
    from .formats.foreign_samples import write_walked

    return replace(write_walked(root, landing, compute, *given), labels=labels)


def _provenance(spec: DatasetSpec, partition: str, run_id: str) -> dict[str, str]:
    return {
        "run_id": run_id,
        "asset_key": f"{spec.name}/{UNITS}",
        "partition": partition,
        "code_version": CODE_VERSION,
    }


def published_labels(root: "loader.Root", dataset: str) -> list[str]:
    """Return the class names of the newest version, in the order of their numbers; none before the first."""
    return class_names(root.store, root.state.versions(dataset)) or []


def clash(root: "loader.Root", record: StageRecord, parts: Sequence["loader.Part"]) -> str:
    """Return why waiting parts do not fit what was published since they were cut, or "".

    Numbers mean another class now, or a group has other fields. Or the same raw bytes, or other samples of the same raw
    objects, are published.

    record: of their units, or of their samples.
    """
    dataset, labels = record.dataset, record.body["labels"]
    known = published_labels(root, dataset)
    shared = min(len(known), len(labels))
    if known[:shared] != list(labels[:shared]):
        return f"it was cut with the classes {list(labels)}, the newest version has {known}"
    if reason := _other_groups(root, dataset, parts) or _other_columns(root, record):
        return reason
    published = published_objects(root, dataset)
    rows = [row for part in parts for row in part_rows(root.store, part)] if published else []
    for row in rows:
        if row["raw_sha256"] in published:
            return f"{row['raw_key']!r} has the same bytes as {published[row['raw_sha256']]}"
    if "replaces" in record.body and (newest := root.state.newest(dataset)) is not None:
        from .formats.earlier_samples import published_since

        return published_since(root.open(newest.id), rows, record.body)
    return ""


def _other_groups(root: "loader.Root", dataset: str, parts: Sequence["loader.Part"]) -> str:
    """Return why the parts' groups are not those of the newest version, or ""."""
    newest = root.state.newest(dataset)
    groups = root.open(newest.id).manifest["groups"] if newest else {}
    for shard in (shard for part in parts for shard in part.shards):
        if shard.group in groups and set(shard.field_nbytes) != set(groups[shard.group]["field_nbytes"]):
            return f"group {shard.group!r} has {sorted(groups[shard.group]['field_nbytes'])} by now"
    return ""


def _other_columns(root: "loader.Root", record: StageRecord) -> str:
    """Return why columns of JSON documents have not the types that the newest version has by now, or ""."""
    newest = root.state.newest(record.dataset) if record.body.get("columns") else None
    there = root.open(newest.id).manifest["columns"] if newest else {}
    for name, kind in record.body.get("columns", {}).items():
        if name in there and there[name]["type"] not in (kind, "null"):
            return f"the column {name!r} is {there[name]['type']} by now, and {kind} here"
    return ""


def published_objects(root: "loader.Root", dataset: str) -> dict[str, str]:
    """Return sha256 of every raw object that the newest version has samples of -> words for where."""
    newest = root.state.newest(dataset)
    if newest is None:
        return {}
    table = root.open(newest.id).samples().select("raw_sha256", "raw_key").unique().collect()
    return {sha256: f"{key!r} in {newest.name}" for sha256, key in table.iter_rows()}


def _splits(spec: DatasetSpec) -> list[str]:
    shares = [f"{name}={share}" for name, share in sorted(spec.splits.items())]
    return [spec.split_by, *shares, *([f"as {spec.rebuild_of}"] if spec.rebuild_of else [])]


def _still_good(root: "loader.Root", record: StageRecord) -> bool:
    """Return whether the parts of an earlier attempt can stand: they are published, or still can be."""
    if record.verdict != "published":
        return False
    if not record.body["parts"]:
        return True
    status = root.state.txns[record.body["txn"]].status
    parts = [loader.Part.from_json(entry["part"]) for entry in record.body["parts"]]
    return status == "committed" or (status != "aborted" and not clash(root, record, parts))


def _nbytes(parts: Sequence["loader.Part"]) -> int:
    return sum(shard.nbytes for part in parts for shard in part.shards)


_CHECK_SAYS = (
    "What was cut was compared with its source: times, orientation, colours, the place and the channels of sound. "
    "Objects that differ are left out, by the name of what is wrong; a batch with more of them than the dataset allows "
    "is not written, now or later, until it is cut again."
)
UnitsEvent = dg.AssetCheckResult | dg.MaterializeResult[None]


def units_asset(spec: DatasetSpec, batches: dg.PartitionsDefinition[str]) -> dg.AssetsDefinition:
    """Return the asset [dataset, units] with its check."""
    key = dg.AssetKey([spec.name, UNITS])

    @dg.asset(
        key=key,
        deps=[dg.AssetKey([spec.name, MEDIA])],
        partitions_def=batches,
        code_version=CODE_VERSION,
        pool=dagster_name(spec.name),
        kinds={"ffmpeg", "webdataset"},
        check_specs=[dg.AssetCheckSpec(CHECK, asset=key, blocking=True, description=_CHECK_SAYS)],
        description="Clips, upright photos, segments of sound and documents, written as parts of a transaction.",
    )
    def units(
        context: dg.AssetExecutionContext,
        root: RootResource,
        landing: LandingResource,
        compute: ComputeResource,
    ) -> Iterator[UnitsEvent]:
        batch = context.partition_key
        with root.opened() as opened, compute.opened(context) as engine:
            place = place_of_batch(landing, spec.sources, opened.store, spec.name, batch)
            told: Any = {"partition": batch, "run_id": context.run.run_id, "tell": context.log.info}
            with as_failures(StageNotPublished), place as source:
                record, rows, refusals = units_stage(opened, source, engine, spec, **told)
        shown = units_metadata(record, rows, refusals)
        yield from check_and_materialize(record, CHECK, check_metadata(record, refusals), shown)

    return units
