"""The asset `units`: admitted objects, cut into samples and written as parts of an open transaction."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import dagster as dg

import loader
from loader.dataset.shards.part import part_rows
from loader.errors import StageNotPublished
from loader.storage import Store
from penstock.class_names import class_names
from penstock.compute.local_blocks import discard
from penstock.compute.pool import Compute
from penstock.stages import StageRecord, current_record, fingerprint
from resources.compute import ComputeResource
from resources.storage import LandingResource, RootResource

from ..arrivals.batch_manifests import place_of_batch
from ..joined_objects import JoinedObjects
from ..media.policy import policy_words
from ..report import as_failures, check_and_materialize, check_metadata, dagster_name, units_metadata
from ..sources import read_formats
from ..spec import DatasetSpec
from ..stages import (
    MEDIA,
    RAW_OBJECTS,
    SAMPLES,
    UNITS,
    BatchSamples,
    PipelineStage,
    clear_recut,
    open_transaction,
    require_read,
)
from ..tables import read_table
from .audit_work import clear_staging, staging_of
from .cut import CutInto, cut_objects, labels_of, new_objects, policy_fingerprint, untrue_reason
from .limits import DUPLICATE, Tell, log, refusal_counts, refusals_of_copies
from .stored_faults import has_stored_faults, is_faulty_exclusion

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
    tell: Tell = log.info,
) -> tuple[StageRecord, list[Row], list[Row]]:
    """Cut a batch and publish its parts; return the record, the rows of its units, and the refusals.

    Raw objects of the newest version are dropped as duplicates. An unchanged batch is cut again if its transaction was
    aborted, or if code or machine, not the data, refused objects or published samples.

    Raises: StageNotPublished; StoreError and WorkerFailed if code, machine or store fails.
    """
    store = root.store
    stage = PipelineStage(store, spec.name, UNITS, partition, run_id=run_id, code_version=CODE_VERSION)
    media = stage.require(MEDIA)
    digest = _fingerprint(spec, media)
    newest = stage.current()
    if newest is not None and newest.fingerprint == digest and _still_good(root, newest):
        refused = read_table(store, newest.files["refusals"])
        if not has_stored_faults(refused) and not _was_published_with_faults(root, newest):
            return newest, read_table(store, newest.files[UNITS]), refused

    landed = stage.require(RAW_OBJECTS)
    require_read(media, landed)
    raws = {row["key"]: row for row in read_table(store, landed.files[RAW_OBJECTS])}
    audits = read_table(store, media.files[MEDIA])
    earlier = 0 if newest is None else newest.r
    # A run that died is continued: the same inputs after the same record open the same transaction.
    txn = open_transaction(root, spec.name, UNITS, partition, digest, str(earlier), gated=True)
    copies = [row for row in read_table(store, media.files["refusals"]) if row["code"] == DUPLICATE]
    with root.heartbeat(txn):
        provenance = _provenance(spec, partition, run_id)
        batch = _written(root, landing, compute, spec, txn, audits, raws, provenance, tell)
    refusals = [*batch.refusals, *refusals_of_copies(copies, batch.refusals)]
    reason = untrue_reason(refusals, len(audits) + len(copies), spec.max_untrue_rate)
    if reason:
        batch = replace(batch, parts=[], rows=[])
    _log_notes(partition, batch, tell)
    if not batch.parts:
        root.abort(txn, f"{CHECK}: {reason}"[:500] if reason else "the batch holds nothing new")

    published = stage.append(
        fingerprint=digest,
        reason=reason,
        files={
            UNITS: stage.write_table(UNITS, batch.rows),
            "refusals": stage.write_table("refusals", refusals),
        },
        reads=[media],
        counts=_counts(batch, refusals),
        body=_body(spec, txn, batch),
        after=earlier,
    )
    # Nothing is cleared before the record exists: a repeated run needs it.
    for job in batch.jobs:
        discard(compute, job)
    clear_staging(store, spec.name, partition)
    if newest is not None and newest.verdict == "published":
        clear_recut(store, spec.name, partition, newest.body["txn"])
    # Read back: if another run appended this fingerprint first, its record and tables count.
    rows = read_table(store, published.files[UNITS])
    return published, rows, read_table(store, published.files["refusals"])


def _fingerprint(spec: DatasetSpec, media: StageRecord) -> str:
    digest = fingerprint(
        CODE_VERSION, media.fingerprint, media.r, policy_fingerprint(spec.policy), _splits(spec)
    )
    if spec.format:
        digest = fingerprint(digest, *spec.taken_as)
    if spec.label_from != "folder":  # earlier releases took folders as labels: their digests stay
        digest = fingerprint(digest, "no folder labels")
    return digest


def _log_notes(partition: str, batch: BatchSamples, tell: Tell) -> None:
    for note in batch.notes:
        tell(f"batch {partition}: {note}")
    if batch.n_known or batch.replaces:
        tell(
            f"batch {partition}: {batch.n_known} samples left out, because the dataset has or had them; "
            f"{len(batch.replaces)} replace earlier ones"
        )


def _counts(batch: BatchSamples, refusals: Sequence[Row]) -> dict[str, int]:
    return refusal_counts(refusals) | {
        "units": len(batch.rows),
        "nbytes": sum(shard.nbytes for _, part in batch.parts for shard in part.shards),
        "short_shots": batch.short_shots,
        "published_before": batch.n_known,
        "replacing": len(batch.replaces),
    }


def _body(spec: DatasetSpec, txn: str, batch: BatchSamples) -> dict[str, Any]:
    # A format's samples are not cut, so no cut policy applies to them.
    kinds = [] if spec.format else [kind for kind, _ in batch.parts]
    body: dict[str, Any] = {
        "txn": txn,
        "labels": list(batch.labels),
        "parts": [{"kind": kind, "part": part.to_json()} for kind, part in batch.parts],
        "policy": policy_words(spec.policy, kinds),
    }
    for name in ("foreign", "facts", "columns"):
        value = getattr(batch, name)
        if value:
            body[name] = value
    if spec.format:
        body["replaces"] = batch.replaces
        body["keyed_by_place"] = spec.keyed_by_place
    return body


def _written(
    root: "loader.Root",
    landing: Store,
    compute: Compute,
    spec: DatasetSpec,
    txn: str,
    audits: Sequence[Row],
    raws: Mapping[str, Row],
    provenance: Mapping[str, str],
    tell: Tell,
) -> BatchSamples:
    published = published_objects(root, spec.name)
    labels = published_labels(root, spec.name)
    if not spec.format:
        return _cut_media(
            root, landing, compute, spec, txn, audits, raws, provenance, published, labels, tell
        )
    from .formats.missing_notes import missing_notes  # media do not need these modules
    from .formats.read_batch import write_read
    from .formats.walked_batch import write_walked

    common = spec, txn, audits, raws, published, provenance
    if spec.format in read_formats():
        batch = write_read(root, landing, compute, *common, labels)
    else:
        batch = write_walked(root, landing, compute, *common)
        batch = replace(batch, labels=labels)
    source = spec.sources[0]
    if not source.listed:
        return batch
    files = landing.place if isinstance(landing, JoinedObjects) else landing
    missing = missing_notes(files, spec.format, source.choices, raws.keys())
    return replace(batch, notes=[*batch.notes, *missing])


def _cut_media(
    root: "loader.Root",
    landing: Store,
    compute: Compute,
    spec: DatasetSpec,
    txn: str,
    audits: Sequence[Row],
    raws: Mapping[str, Row],
    provenance: Mapping[str, str],
    published: Mapping[str, str],
    labels: Sequence[str],
    tell: Tell,
) -> BatchSamples:
    if not spec.label_from:
        _check_unlabelled(spec.name, labels)
    fresh, duplicates = new_objects(audits, published)
    if spec.label_from == "folder":
        labels = labels_of(fresh, raws, labels)
    into = CutInto(
        root=root.store,
        txn=txn,
        labels=labels,
        provenance=provenance,
        waiting=staging_of(root.store, spec.name, provenance["partition"], spec.policy),
    )
    cut = cut_objects(landing, compute, spec, fresh, raws, into, tell)
    return replace(cut, refusals=[*duplicates, *cut.refusals])


def _check_unlabelled(dataset: str, classes: Sequence[str]) -> None:
    """Raise StageNotPublished if published photos have class numbers: photos without cannot join them."""
    if not classes:
        return
    names = ", ".join(map(repr, classes[:3]))
    raise StageNotPublished(
        f"photos of {dataset} have the classes {names} ..., from the folders of their raw objects. Set "
        "label_from='folder' in its DatasetSpec, which earlier releases implied, or give photos without labels a "
        "dataset of their own"
    )


def _provenance(spec: DatasetSpec, partition: str, run_id: str) -> dict[str, str]:
    return {
        "run_id": run_id,
        "asset_key": f"{spec.name}/{UNITS}",
        "partition": partition,
        "code_version": CODE_VERSION,
    }


def published_labels(root: "loader.Root", dataset: str) -> list[str]:
    """Return the newest version's class names, by number; [] before the first version."""
    return class_names(root.store, root.state.versions(dataset)) or []


def clash(root: "loader.Root", record: StageRecord, parts: Sequence["loader.Part"]) -> str:
    """Return why waiting parts no longer fit the dataset, or "".

    Class numbers, fields of a group or column types may have changed, or another batch published the same bytes or
    objects. `record` is of the units or the samples.
    """
    dataset = record.dataset
    labels = record.body["labels"]
    known = published_labels(root, dataset)
    # A batch may lack the newest classes, or add some: what both have must agree.
    shared = min(len(known), len(labels))
    if known[:shared] != list(labels[:shared]):
        return f"it was cut with the classes {list(labels)}, but the newest version has {known}"
    reason = _other_groups(root, dataset, parts) or _other_columns(root, record)
    if reason:
        return reason
    published = published_objects(root, dataset)
    rows = list[Row]()
    if published:  # otherwise the rows cannot clash: do not read them
        for part in parts:
            rows += part_rows(root.store, part)
    for row in rows:
        if row["raw_sha256"] in published:
            return f"{row['raw_key']!r} has the same bytes as {published[row['raw_sha256']]}"
    if "replaces" not in record.body:
        return ""
    newest = root.state.newest(dataset)
    if newest is None:
        return ""
    from .formats.admission import published_since

    return published_since(root.open(newest.id), rows, record.body)


def _other_groups(root: "loader.Root", dataset: str, parts: Sequence["loader.Part"]) -> str:
    newest = root.state.newest(dataset)
    if newest is None:
        return ""
    groups = root.open(newest.id).manifest["groups"]
    for part in parts:
        for shard in part.shards:
            if shard.group not in groups:
                continue
            fields = groups[shard.group]["field_nbytes"]
            if set(shard.field_nbytes) != set(fields):
                return f"group {shard.group!r} has {sorted(fields)} now"
    return ""


def _other_columns(root: "loader.Root", record: StageRecord) -> str:
    columns = record.body.get("columns", {})
    newest = root.state.newest(record.dataset) if columns else None
    if newest is None:
        return ""
    published = root.open(newest.id).manifest["columns"]
    for name, kind in columns.items():
        if name not in published:
            continue
        stored = published[name]["type"]
        if stored not in (kind, "null"):
            return f"the column {name!r} is {stored} in the newest version, and {kind} here"
    return ""


def published_objects(root: "loader.Root", dataset: str) -> dict[str, str]:
    """Return sha256 -> description, for every raw object with samples in the newest version."""
    newest = root.state.newest(dataset)
    if newest is None:
        return {}
    table = root.open(newest.id).samples().select("raw_sha256", "raw_key").unique().collect()
    return {sha256: f"{key!r} in {newest.name}" for sha256, key in table.iter_rows()}


def _splits(spec: DatasetSpec) -> list[str]:
    shares = [f"{name}={share}" for name, share in sorted(spec.splits.items())]
    splits = [spec.split_by, *shares]
    if spec.rebuild_of:
        splits.append(f"as {spec.rebuild_of}")
    return splits


def _still_good(root: "loader.Root", record: StageRecord) -> bool:
    if record.verdict != "published":
        return False
    if not record.body["parts"]:
        return True
    status = root.state.txns[record.body["txn"]].status
    parts = [loader.Part.from_json(entry["part"]) for entry in record.body["parts"]]
    if status == "committed":
        return True
    # Collected or not, an aborted transaction never becomes a version.
    return status != "aborted" and not clash(root, record, parts)


def _was_published_with_faults(root: "loader.Root", units: StageRecord) -> bool:
    # Samples that a version left out come back only by a new cut.
    if root.state.txns[units.body["txn"]].status != "committed":
        return False
    samples = current_record(root.store, units.dataset, SAMPLES, units.partition)
    if samples is None or samples.body["txn"] != units.body["txn"]:
        return False
    return any(map(is_faulty_exclusion, samples.body["exclude"].values()))


_CHECK_DESCRIPTION = (
    "Every unit was compared with its source: times, orientation, colours, timing and channels of audio. Objects that "
    "differ are left out, with the difference named. A batch with more of them than the dataset allows is not written "
    "until it is cut again."
)
UnitsEvent = dg.AssetCheckResult | dg.MaterializeResult[None]


def units_asset(spec: DatasetSpec, batches: dg.PartitionsDefinition[str]) -> dg.AssetsDefinition:
    key = dg.AssetKey([spec.name, UNITS])

    @dg.asset(
        key=key,
        deps=[dg.AssetKey([spec.name, MEDIA])],
        partitions_def=batches,
        code_version=CODE_VERSION,
        pool=dagster_name(spec.name),
        kinds={"ffmpeg", "webdataset"},
        check_specs=[dg.AssetCheckSpec(CHECK, asset=key, blocking=True, description=_CHECK_DESCRIPTION)],
        description="Clips, upright photos, audio segments and documents, written as parts of a transaction.",
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
            options: Any = {"partition": batch, "run_id": context.run.run_id, "tell": context.log.info}
            with as_failures(StageNotPublished), place as source:
                record, rows, refusals = units_stage(opened, source, engine, spec, **options)
        shown = units_metadata(record, rows, refusals)
        yield from check_and_materialize(record, CHECK, check_metadata(record, refusals), shown)

    return units
