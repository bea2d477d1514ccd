"""The asset `media`: every object of a batch, probed and decoded to its end; damaged ones are refused."""

import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import dagster as dg

import loader
from loader.errors import StageNotPublished
from loader.storage import Store
from penstock.compute.job import Job, store_url
from penstock.compute.local_blocks import discard, job_blocks
from penstock.compute.pool import Compute, Outcome
from penstock.stages import StageRecord, fingerprint
from resources.compute import ComputeResource
from resources.storage import LandingResource, RootResource

from ..arrivals.batch_manifests import place_of_batch
from ..media.cutters import check_is_media
from ..media.objects import refusal_row
from ..media.unit import Unusable, dropped, rejected
from ..pages.report import (
    as_failures,
    check_and_materialize,
    check_metadata,
    dagster_name,
    media_metadata,
)
from ..pipeline.stages import MEDIA, RAW_OBJECTS, PipelineStage
from ..pipeline.tables import read_table
from ..spec import DatasetSpec
from .audit_work import (
    AUDIT,
    Audited,
    AuditTask,
    SampleFormat,
    StagedClips,
    clear_staging,
)
from .limits import limit_texts, stop_reason
from .refusals import refusal_counts, refusal_of_duplicate
from .stored_faults import has_stored_faults
from .time_limits import Tell, TimeLimit, container_limits, log

CODE_VERSION = "3"
CHECK = "readable"
_REPLACED_OR_DELETED = ("Changed", "ObjectNotFound")
"""Codes of objects that were repaired (they land again) or deleted since their batch, which is not damage."""
_BYTES_PER_S = 10e6
"""Bytes of an image or text audited per second."""

Row = dict[str, Any]


def media_stage(
    root: "loader.Root",
    landing: Store,
    compute: Compute,
    spec: DatasetSpec,
    *,
    partition: str,
    run_id: str,
    tell: Tell = log.info,
) -> tuple[StageRecord, list[Row], list[Row]]:
    """Audit a batch and publish the verdict; return the record, the admitted rows and the refused rows.

    The verdict is `failed` if more objects are damaged, or not media, than the dataset allows. An unchanged batch is
    not audited again, unless a stored refusal came from code or machine.

    Raises: StageNotPublished; StoreError and WorkerFailed if code, machine or store fails.
    """
    store = root.store
    stage = PipelineStage(store, spec.name, MEDIA, partition, run_id=run_id, code_version=CODE_VERSION)
    landed = stage.require(RAW_OBJECTS)
    digest = _fingerprint(spec, landed)
    newest = stage.current()
    if newest is not None and newest.fingerprint == digest:
        stored_refusals = read_table(store, newest.files["refusals"])
        if not has_stored_faults(stored_refusals):
            return newest, read_table(store, newest.files[MEDIA]), stored_refusals

    raws = read_table(store, landed.files[RAW_OBJECTS])
    batch = AuditBatch(
        root=store,
        landing=landing,
        compute=compute,
        spec=spec,
        partition=partition,
        fingerprint=digest,
    )
    admitted, refusals = audit_objects(batch, raws, tell)
    reason = stop_reason(refusals, len(raws), spec)
    if reason:  # a batch that failed is not cut, so nothing uses its staged clips
        clear_staging(store, spec.name, partition)

    record = stage.append(
        fingerprint=digest,
        reason=reason,
        files={
            MEDIA: stage.write_table(MEDIA, admitted),
            "refusals": stage.write_table("refusals", refusals),
        },
        reads=[landed],
        counts={
            **refusal_counts(refusals),
            "landed": len(raws),
            "admitted": len(admitted),
        },
    )
    # Only now: until the record exists, a repeated run resumes from the job's results.
    discard(compute, _job(batch))
    return record, admitted, refusals


def _fingerprint(spec: DatasetSpec, landed: StageRecord) -> str:
    # All that decides which objects are admitted.
    terms = spec.ingest_terms  # format, in place or not, perhaps choices; none for media
    audit_terms = [*terms[:1], *terms[2:]]  # where the samples stay decides no audit
    decides = [
        spec.policy.video.hdr,
        spec.policy.video.deep,
        *audit_terms,
    ]
    limits = limit_texts(spec)
    return fingerprint(CODE_VERSION, landed.fingerprint, landed.r, limits, decides)


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditBatch:
    """A batch whose objects are audited."""

    root: Store
    """Root's store."""
    landing: Store
    """Store of the raw objects, as they landed."""
    compute: Compute
    spec: DatasetSpec
    partition: str
    """Key of the batch."""
    fingerprint: str
    """Hash of everything that decides the result."""

    @property
    def files(self) -> Store:
        """Store of the objects' files, for workers.

        If an object consists of several files, `landing` shows them joined. Workers join them themselves.
        """
        if not self.spec.format:  # images, video, audio, text: an object is a file
            return self.landing
        from ..arrivals.joined_objects import JoinedObjects  # media do not need it

        if isinstance(self.landing, JoinedObjects):
            return self.landing.place
        return self.landing


def audit_objects(
    batch: AuditBatch,
    landed: Sequence[Row],
    tell: Tell = log.info,
) -> tuple[list[Row], list[Row]]:
    """Return (media rows, refusal rows), in landing order.

    The first of objects with the same bytes is audited; the others share its refusal, or are duplicates.

    landed: rows of `raw_objects`. tell: receives each object whose time limit exceeds the dataset's.
    """
    refusals: dict[str, Row] = {}  # by key
    readable = list[Row]()
    duplicates = list[Row]()
    first_with: dict[str, str] = {}  # SHA-256 -> key of the first object
    for row in landed:
        key = row["key"]
        sha256 = row["sha256"]
        try:
            _check_readable(row, batch.spec)
        except Unusable as unusable:
            # For a reason of its own, which objects with the same bytes do not share: it is not an original of them.
            refusals[key] = refusal_row(key, sha256, unusable)
            continue
        if first_with.setdefault(sha256, key) == key:
            readable.append(row)
        else:
            duplicates.append(row)

    limits = _limits(batch, readable, tell)
    tasks = _tasks(batch, readable, limits)
    admitted = list[Row]()
    for block in job_blocks(batch.compute, _job(batch), lambda: tasks):
        for number, outcome in enumerate(block.outcomes, block.first):
            audited = _audit_result(readable[number], limits[number], outcome)
            if audited.refusal is not None:
                refusals[audited.refusal["key"]] = audited.refusal
            elif audited.row is not None:
                admitted.append(audited.row)

    # After all audits: a duplicate inherits its original's refusal.
    for row in duplicates:
        original_key = first_with[row["sha256"]]
        refusals[row["key"]] = refusal_of_duplicate(row, original_key, refusals)
    return admitted, [refusals[row["key"]] for row in landed if row["key"] in refusals]


def _limits(
    batch: AuditBatch,
    readable: Sequence[Row],
    tell: Tell,
) -> list[TimeLimit]:
    """Return each object's time limit."""
    spec = batch.spec
    if not spec.format:
        return container_limits(batch.landing, batch.compute, readable, spec, tell)
    # A format's objects state no duration that a limit could follow.
    limit = TimeLimit(seconds=spec.max_work_timeout_s)
    return [limit] * len(readable)


def _job(batch: AuditBatch) -> Job[AuditTask, Audited]:
    return Job(
        store=batch.root,
        work=AUDIT,
        about=f"{batch.spec.name}/media/{batch.partition}",
        fingerprint=batch.fingerprint,
        stores=[batch.files, batch.root],
    )


def _sample_format(spec: DatasetSpec) -> SampleFormat | None:
    if not spec.format:
        return None
    return SampleFormat(
        name=spec.format,
        choices=spec.sources[0].choices.to_json(),
        audit_id=secrets.token_hex(8),  # random: each audit lists the source anew
    )


def _tasks(
    batch: AuditBatch,
    readable: Sequence[Row],
    limits: Sequence[TimeLimit],
) -> list[AuditTask]:
    """Return the task of each object. limits: time limit of each."""
    spec = batch.spec
    files = batch.files
    sample_format = _sample_format(spec)
    staged_clips = StagedClips(spec.name, batch.partition, spec.policy)
    tasks = list[AuditTask]()
    for row, limit in zip(readable, limits, strict=True):
        if limit.work is None:
            cost_s = row["nbytes"] / _BYTES_PER_S
        else:
            cost_s = limit.work.usual_s
        task = AuditTask(
            landing=store_url(files),
            root=store_url(batch.root),
            raw=row,
            policy=spec.policy,
            staging=staged_clips.key(row),
            cost_s=cost_s,
            limit_s=limit.seconds,
            format=sample_format,
        )
        tasks.append(task)
    return tasks


def _check_readable(row: Mapping[str, Any], spec: DatasetSpec) -> None:
    """Raise Unusable for an object that could not be read as it landed, or that is not media. row: of `raw_objects`."""
    code = row["error_code"]
    if code in _REPLACED_OR_DELETED:
        raise dropped("land", code, row["error_reason"])
    if code:
        raise rejected("land", code, row["error_reason"])
    if not spec.format:
        check_is_media(row["key"], row["mime"])


def _audit_result(
    row: Row,
    limit: TimeLimit,
    outcome: Outcome[Audited],
) -> Audited:
    """Return the result of an object's audit; a refusal if the worker returned none. row: of `raw_objects`."""
    if outcome.value is not None:
        return outcome.value
    if outcome.error is None:
        refusal = rejected("probe", "exception", "no result")
    else:
        reason = limit.reason(outcome.error)
        refusal = rejected("probe", outcome.error.code, reason)
    return Audited(refusal=refusal_row(row["key"], row["sha256"], refusal))


_CHECK_DESCRIPTION = (
    "Every object was decoded to its end in a process of its own. No more are damaged, or not media, than the dataset "
    "allows. A failed batch is not cut until it lands again."
)
MediaEvent = dg.AssetCheckResult | dg.MaterializeResult[None]


def media_asset(
    spec: DatasetSpec,
    batches: dg.PartitionsDefinition[str],
) -> dg.AssetsDefinition:
    key = dg.AssetKey([spec.name, MEDIA])
    raw_objects_key = dg.AssetKey([spec.name, RAW_OBJECTS])
    check_spec = dg.AssetCheckSpec(
        CHECK,
        asset=key,
        blocking=True,
        description=_CHECK_DESCRIPTION,
    )

    @dg.asset(
        key=key,
        deps=[raw_objects_key],
        partitions_def=batches,
        code_version=CODE_VERSION,
        pool=dagster_name(spec.name),
        kinds={"ffmpeg", "pillow"},
        check_specs=[check_spec],
        description="Facts of every object of a batch, probed and decoded to its end.",
    )
    def media(
        context: dg.AssetExecutionContext,
        root: RootResource,
        landing: LandingResource,
        compute: ComputeResource,
    ) -> Iterator[MediaEvent]:
        batch = context.partition_key
        with root.opened() as opened, compute.opened(context) as engine:
            place = place_of_batch(landing, spec.sources, opened.store, spec.name, batch)
            with as_failures(StageNotPublished), place as source:
                record, admitted, refusals = media_stage(
                    opened,
                    source,
                    engine,
                    spec,
                    partition=batch,
                    run_id=context.run.run_id,
                    tell=context.log.info,
                )
        check_facts = check_metadata(record, refusals)
        asset_facts = {**check_facts, **media_metadata(admitted)}
        yield from check_and_materialize(record, CHECK, check_facts, asset_facts)

    return media
