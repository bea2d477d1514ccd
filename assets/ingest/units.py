"""The asset `units`: admitted objects, cut into samples and written as parts of an open transaction."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import dagster as dg

import loader
from loader.errors import StageNotPublished
from loader.storage import Store
from penstock.compute.local_blocks import discard
from penstock.compute.pool import Compute
from penstock.stages import StageRecord, current_record, fingerprint
from resources.compute import ComputeResource
from resources.storage import LandingResource, RootResource

from ..arrivals.batch_manifests import place_of_batch
from ..arrivals.joined_objects import JoinedObjects
from ..media.policy import policy_words
from ..pages.report import (
    as_failures,
    check_and_materialize,
    check_metadata,
    dagster_name,
    units_metadata,
)
from ..pipeline.stages import (
    MEDIA,
    RAW_OBJECTS,
    SAMPLES,
    UNITS,
    BatchSamples,
    OpenBatch,
    PipelineStage,
    clear_recut,
    open_transaction,
    require_read,
)
from ..pipeline.tables import read_table
from ..sources import read_formats
from ..spec import DatasetSpec
from .audit_work import clear_staging
from .cut import (
    all_class_names,
    cut_objects,
    new_objects,
    policy_fingerprint,
    untrue_reason,
)
from .published import clash, published_labels, published_objects
from .refusals import DUPLICATE, inherited_refusals, refusal_counts
from .stored_faults import has_stored_faults, is_faulty_exclusion
from .time_limits import Tell, log

CODE_VERSION = "2"
CHECK = "true_to_source"
_REASON_CHARS = 500

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
    if newest is not None and newest.fingerprint == digest and _is_current(root, newest):
        stored_refusals = read_table(store, newest.files["refusals"])
        if not has_stored_faults(stored_refusals) and not _was_published_with_faults(root, newest):
            return newest, read_table(store, newest.files[UNITS]), stored_refusals

    landed = stage.require(RAW_OBJECTS)
    require_read(media, landed)
    raws = read_table(store, landed.files[RAW_OBJECTS])
    audits = read_table(store, media.files[MEDIA])
    newest_r = 0  # before the first record
    if newest is not None:
        newest_r = newest.r
    # A run that died is continued: the same inputs after the same record open the same transaction.
    txn = open_transaction(root, spec.name, UNITS, partition, digest, str(newest_r), gated=True)
    with root.heartbeat(txn):
        batch = OpenBatch(
            root=root,
            landing=landing,
            files=_file_store(landing),
            compute=compute,
            spec=spec,
            txn=txn,
            raws={row["key"]: row for row in raws},
            audits=audits,
            published=published_objects(root, spec.name),
            labels=published_labels(root, spec.name),
            provenance=_provenance(spec, partition, run_id),
        )
        samples = _write_samples(batch, tell)

    media_refusals = read_table(store, media.files["refusals"])
    refusals, reason = _refusals_of_batch(samples, media_refusals, len(audits), spec)
    if reason:  # then nothing of the batch is published
        samples = replace(samples, parts=[], rows=[])
    _log_notes(partition, samples, tell)
    if not samples.parts:
        _abort(root, txn, reason)

    record = stage.append(
        fingerprint=digest,
        reason=reason,
        files={
            UNITS: stage.write_table(UNITS, samples.rows),
            "refusals": stage.write_table("refusals", refusals),
        },
        reads=[media],
        counts=_counts(samples, refusals),
        body=_body(spec, txn, samples),
        after=newest_r,
    )
    # Nothing is cleared before the record exists: a repeated run needs it.
    _clear(batch, samples, newest)
    # Read back: if another run appended this fingerprint first, its record and tables count.
    rows = read_table(store, record.files[UNITS])
    return record, rows, read_table(store, record.files["refusals"])


def _refusals_of_batch(
    samples: BatchSamples,
    media_refusals: Sequence[Row],
    n_admitted: int,
    spec: DatasetSpec,
) -> tuple[list[Row], str]:
    """Return the stage's refusals, and why they stop the batch, or "".

    The audit dropped copies within the batch. Now that their originals are cut, copies of a refused one share its
    refusal.

    media_refusals: of the audit. n_admitted: number of objects that it admitted.
    """
    duplicates = [row for row in media_refusals if row["code"] == DUPLICATE]
    refusals = [*samples.refusals, *inherited_refusals(duplicates, samples.refusals)]
    n_objects = n_admitted + len(duplicates)  # copies count too: they may inherit a refusal
    reason = untrue_reason(refusals, n_objects, spec.max_untrue_rate)
    return refusals, reason


def _file_store(landing: Store) -> Store:
    """Return the store of the objects' files, of which an object may have several."""
    if isinstance(landing, JoinedObjects):
        return landing.place
    return landing


def _abort(root: "loader.Root", txn: str, reason: str) -> None:
    """Give the transaction up. reason: why the batch is stopped; "" if it only has no new sample."""
    why = "the batch holds nothing new"
    if reason:
        why = f"{CHECK}: {reason}"
    root.abort(txn, why[:_REASON_CHARS])


def _clear(batch: OpenBatch, samples: BatchSamples, earlier: StageRecord | None) -> None:
    """Delete what a repeated run would need. earlier: the record before this one."""
    store = batch.root.store
    dataset = batch.spec.name
    for job in samples.jobs:
        discard(batch.compute, job)
    clear_staging(store, dataset, batch.partition)
    if earlier is not None and earlier.verdict == "published":
        clear_recut(store, dataset, batch.partition, earlier.body["txn"])


def _fingerprint(spec: DatasetSpec, media: StageRecord) -> str:
    policy = policy_fingerprint(spec.policy)
    splits = _split_terms(spec)
    digest = fingerprint(CODE_VERSION, media.fingerprint, media.r, policy, splits)
    if spec.format:
        digest = fingerprint(digest, *spec.ingest_terms)
    if spec.label_from != "folder":  # earlier releases took folders as labels: their digests stay
        digest = fingerprint(digest, "no folder labels")
    return digest


def _log_notes(partition: str, samples: BatchSamples, tell: Tell) -> None:
    for note in samples.notes:
        tell(f"batch {partition}: {note}")
    if samples.n_known or samples.replaces:
        tell(
            f"batch {partition}: {samples.n_known} samples are left out because the dataset has or had them; "
            f"{len(samples.replaces)} replace earlier samples"
        )


def _counts(samples: BatchSamples, refusals: Sequence[Row]) -> dict[str, int]:
    nbytes = 0
    for _, part in samples.parts:
        for shard in part.shards:
            nbytes += shard.nbytes
    return {
        **refusal_counts(refusals),
        "units": len(samples.rows),
        "nbytes": nbytes,
        "short_shots": samples.short_shots,
        "published_before": samples.n_known,
        "replacing": len(samples.replaces),
    }


def _body(spec: DatasetSpec, txn: str, samples: BatchSamples) -> dict[str, Any]:
    """Return the record's body: what `samples_stage` and the publication need of these samples."""
    kinds = list[str]()
    parts = list[dict[str, Any]]()
    for kind, part in samples.parts:
        parts.append({"kind": kind, "part": part.to_json()})
        if not spec.format:  # a format's samples are not cut, so no cut policy applies to them
            kinds.append(kind)
    body: dict[str, Any] = {
        "txn": txn,
        "labels": list(samples.labels),
        "parts": parts,
        "policy": policy_words(spec.policy, kinds),
    }
    # Only in records of batches that have them.
    if samples.foreign:
        body["foreign"] = samples.foreign
    if samples.facts:
        body["facts"] = samples.facts
    if samples.columns:
        body["columns"] = samples.columns
    if spec.format:
        body["replaces"] = samples.replaces
        body["keyed_by_place"] = spec.keyed_by_place
    return body


def _write_samples(batch: OpenBatch, tell: Tell) -> BatchSamples:
    """Write a batch's parts: of media, or of a format that a node reads, or one that the submitter walks."""
    spec = batch.spec
    if not spec.format:
        return _cut_media(batch, tell)
    from .formats.missing_notes import missing_notes  # media do not need these modules
    from .formats.read_batch import write_read
    from .formats.walked_batch import write_walked

    if spec.format in read_formats():
        samples = write_read(batch)
    else:
        samples = write_walked(batch)
        samples = replace(samples, labels=batch.labels)
    source = spec.sources[0]
    if not source.listed:  # what it lacks would cost the listing that its owner switched off
        return samples
    missing = missing_notes(batch.files, spec.format, source.choices, batch.raws.keys())
    return replace(samples, notes=[*samples.notes, *missing])


def _cut_media(batch: OpenBatch, tell: Tell) -> BatchSamples:
    """Cut the admitted objects that the dataset does not have, and refuse the others as duplicates."""
    spec = batch.spec
    labels = batch.labels
    if not spec.label_from:
        _check_unlabelled(spec.name, labels)
    fresh, duplicates = new_objects(batch.audits, batch.published)
    if spec.label_from == "folder":
        labels = all_class_names(fresh, batch.raws, labels)
    samples = cut_objects(batch, fresh, labels, tell)
    return replace(samples, refusals=[*duplicates, *samples.refusals])


def _check_unlabelled(dataset: str, classes: Sequence[str]) -> None:
    """Raise StageNotPublished if the dataset already has class numbers: photos without labels cannot join it."""
    if not classes:
        return
    names = ", ".join(map(repr, classes[:3]))
    raise StageNotPublished(
        f"photos of {dataset} have the classes {names} ..., from the folders of their raw objects, but its DatasetSpec "
        "has label_from=''. Set label_from='folder', which earlier releases implied, or publish photos without labels "
        "in another dataset"
    )


def _provenance(spec: DatasetSpec, partition: str, run_id: str) -> dict[str, str]:
    return {
        "run_id": run_id,
        "asset_key": f"{spec.name}/{UNITS}",
        "partition": partition,
        "code_version": CODE_VERSION,
    }


def _split_terms(spec: DatasetSpec) -> list[str]:
    """Return all that decides the samples' splits, for the fingerprint."""
    terms = [spec.split_by]
    for name, share in sorted(spec.splits.items()):
        terms.append(f"{name}={share}")
    if spec.rebuild_of:
        terms.append(f"as {spec.rebuild_of}")
    return terms


def _is_current(root: "loader.Root", record: StageRecord) -> bool:
    """Return whether the record's units are in a version, or can still become one."""
    if record.verdict != "published":
        return False
    if not record.body["parts"]:  # a batch without new samples needs no version
        return True
    transaction = root.state.txns[record.body["txn"]]
    if transaction.status == "committed":
        return True
    # Collected or not, an aborted transaction never becomes a version.
    if transaction.status == "aborted":
        return False
    parts = [loader.Part.from_json(entry["part"]) for entry in record.body["parts"]]
    return not clash(root, record, parts)


def _was_published_with_faults(root: "loader.Root", units: StageRecord) -> bool:
    """Return whether a version left out samples of this record because a featurizer's code or machine failed.

    Such samples come back only by a new cut.
    """
    txn = units.body["txn"]
    transaction = root.state.txns[txn]
    if transaction.status != "committed":
        return False
    samples = current_record(root.store, units.dataset, SAMPLES, units.partition)
    if samples is None or samples.body["txn"] != txn:
        return False
    reasons = samples.body["exclude"].values()
    return any(is_faulty_exclusion(reason) for reason in reasons)


_CHECK_DESCRIPTION = (
    "Every unit was compared with its source: times, orientation, colours, timing and channels of audio. Objects that "
    "differ are left out, with the difference named. A batch with more of them than the dataset allows is not written "
    "until it is cut again."
)
UnitsEvent = dg.AssetCheckResult | dg.MaterializeResult[None]


def units_asset(
    spec: DatasetSpec,
    batches: dg.PartitionsDefinition[str],
) -> dg.AssetsDefinition:
    """Return the asset, with its blocking check. batches: the dataset's partitions."""
    key = dg.AssetKey([spec.name, UNITS])
    media_key = dg.AssetKey([spec.name, MEDIA])
    check_spec = dg.AssetCheckSpec(
        CHECK,
        asset=key,
        blocking=True,
        description=_CHECK_DESCRIPTION,
    )

    @dg.asset(
        key=key,
        deps=[media_key],
        partitions_def=batches,
        code_version=CODE_VERSION,
        pool=dagster_name(spec.name),
        kinds={"ffmpeg", "webdataset"},
        check_specs=[check_spec],
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
            with as_failures(StageNotPublished), place as source:
                record, rows, refusals = units_stage(
                    opened,
                    source,
                    engine,
                    spec,
                    partition=batch,
                    run_id=context.run.run_id,
                    tell=context.log.info,
                )
        asset_facts = units_metadata(record, rows, refusals)
        check_facts = check_metadata(record, refusals)
        yield from check_and_materialize(record, CHECK, check_facts, asset_facts)

    return units
