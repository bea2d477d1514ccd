"""samples: raw objects checked and cut into training samples, written as parts, audited, then published."""

import hashlib
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dagster as dg

import loader
from loader.storage import Store
from resources.storage import LandingResource, RootResource

from . import landing as landing_stage
from .batch import CutBatch, cut_batch, labels_of, part_samples, policy_fingerprint
from .landing import Progress, no_progress
from .media.cutters import CUTTERS
from .media.unit import CutPolicy
from .report import check_metadata, samples_metadata
from .stages import StageRecord, Upstream, append_record, current_record, fingerprint, require_published
from .tables import read_table, write_table

STAGE = "samples"
CODE_VERSION = "1"
CHECK = "no_unreadable_file"


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Which batch is cut, by which run."""

    dataset: str
    partition: str
    run_id: str
    attempt: int = 0

    @property
    def txn(self) -> str:
        """The same for a retried step, so that its second attempt is the same transaction."""
        words = (self.dataset, STAGE, self.partition, self.run_id, str(self.attempt))
        return hashlib.sha256("\0".join(words).encode()).hexdigest()[:32]


def audit(batch: CutBatch, max_rejected: int) -> str:
    """Why the batch may not be published, or "" when it may."""
    damaged = batch.refused("rejected")
    if len(damaged) > max_rejected:
        named = "; ".join(f"{row['key']!r} ({row['code']}: {row['reason']})" for row in damaged[:3])
        more = f"; and {len(damaged) - 3} more" if len(damaged) > 3 else ""
        allowed = f"of {batch.n_landed} objects, allowed are {max_rejected}"
        return f"{len(damaged)} unreadable {allowed}: {named}{more}"
    if batch.n_used + len(batch.refusals) != batch.n_landed:
        refused = len(batch.refusals)
        return f"{batch.n_landed} objects landed, {batch.n_used} used and {refused} refused: one is lost"
    if not batch.samples and not any(row["code"] == "duplicate" for row in batch.refusals):
        return f"none of {batch.n_landed} objects gave a sample"
    return ""


def cut_stage(
    root: loader.Root,
    landing: Store,
    batch: Batch,
    policy: CutPolicy,
    max_rejected: int,
    progress: Progress = no_progress,
) -> tuple[StageRecord, list[dict[str, Any]]]:
    """Cut, write the parts, audit, and append the verdict: the record, and the rows of what was refused.

    Nothing is read downstream unless the record says `published`; a failed audit aborts the transaction, so
    it can never be committed. The same raw objects under the same policy are not cut again. Raises:
    StageNotPublished without landed objects.
    """
    upstream = require_published(root.store, batch.dataset, landing_stage.STAGE, batch.partition)
    wanted = fingerprint(CODE_VERSION, upstream.fingerprint, policy_fingerprint(policy), max_rejected)
    newest = current_record(root.store, batch.dataset, STAGE, batch.partition)
    if newest is not None and newest.fingerprint == wanted and _still_good(root, newest):
        return newest, read_table(root.store, newest.files["refusals"])
    rows = read_table(root.store, upstream.files[landing_stage.STAGE])
    known = published_labels(root, batch.dataset)
    txn = root.begin(batch.dataset, txn=batch.txn)
    with root.heartbeat(txn), tempfile.TemporaryDirectory(prefix="penstock-cut-") as scratch:
        there = published_objects(root, batch.dataset)
        cut = cut_batch(landing, rows, policy, Path(scratch), published=there, progress=progress)
        reason = audit(cut, max_rejected)
        labels = labels_of(cut, known)
        parts = [] if reason else _write_parts(root, batch, txn, cut, labels)
    if not parts:
        root.abort(txn, f"{CHECK}: {reason}"[:500] if reason else "the batch holds nothing new")
    record = StageRecord(
        dataset=batch.dataset,
        stage=STAGE,
        partition=batch.partition,
        verdict="failed" if reason else "published",
        reason=reason,
        run_id=batch.run_id,
        code_version=CODE_VERSION,
        fingerprint=wanted,
        files={"refusals": write_table(root.store, batch.dataset, "refusals", batch.partition, cut.refusals)},
        upstream=(Upstream(stage=upstream.stage, partition=upstream.partition, r=upstream.r),),
        counts=_counts(cut, parts),
        body={"txn": txn, "labels": labels, "parts": [part.to_json() for part in parts]},
    )
    return append_record(root.store, record), cut.refusals


def _still_good(root: loader.Root, record: StageRecord) -> bool:
    """Whether what an earlier attempt published can stand for this one."""
    if record.verdict != "published" or not record.body["parts"]:
        return record.verdict == "published"
    return root.state.txns[record.body["txn"]].status != "aborted"


def published_labels(root: loader.Root, dataset: str) -> list[str]:
    """The class names of the newest version, in the order of their numbers; none before the first."""
    newest = root.state.newest(dataset)
    found = root.open(newest.id).manifest["producer"].get("labels", []) if newest else []
    return [str(label) for label in found]


def published_objects(root: loader.Root, dataset: str) -> dict[str, str]:
    """sha256 of every raw object that the newest version has samples of -> words for where."""
    newest = root.state.newest(dataset)
    if newest is None:
        return {}
    table = root.open(newest.id).samples().select("raw_sha256", "raw_key").unique().collect()
    return {sha256: f"{key!r} in {newest.name}" for sha256, key in table.iter_rows()}


def _write_parts(
    root: loader.Root, batch: Batch, txn: str, cut: CutBatch, labels: list[str]
) -> list[loader.Part]:
    provenance = {
        "run_id": batch.run_id,
        "asset_key": f"{batch.dataset}/{STAGE}",
        "partition": batch.partition,
        "code_version": CODE_VERSION,
    }
    parts = []
    for kind in CUTTERS:
        samples = cut.of_kind(kind)
        if samples:
            ready = part_samples(samples, labels, provenance)
            parts.append(loader.write_part(root, txn, ready, group=kind, name=kind))
    return parts


def _counts(cut: CutBatch, parts: list[loader.Part]) -> dict[str, int]:
    return {
        "landed": cut.n_landed,
        "used": cut.n_used,
        "rejected": len(cut.refused("rejected")),
        "dropped": len(cut.refused("dropped")),
        "samples": len(cut.samples),
        "nbytes": sum(shard.nbytes for part in parts for shard in part.shards),
        **{kind: len(cut.of_kind(kind)) for kind in CUTTERS},
    }


class SamplesConfig(dg.Config):
    """How a batch is cut, and how many damaged files it may hold."""

    max_rejected: int = 0
    short_side_px: int = 256
    clip_s: float = 2.5
    max_clips: int = 8
    segment_s: float = 5.0

    def policy(self) -> CutPolicy:
        """Raises: ValueError for a value out of range."""
        return CutPolicy(
            short_side_px=self.short_side_px,
            clip_s=self.clip_s,
            max_clips=self.max_clips,
            segment_s=self.segment_s,
        )


_CHECK_SAYS = (
    "Every object of the batch was decoded to its end, but for `max_rejected` of them, and each is either used or "
    "listed as refused. A batch that fails is not published, now or later, until it is cut again."
)
SamplesEvent = dg.AssetCheckResult | dg.MaterializeResult[None]


def samples_asset(dataset: str, batches: dg.PartitionsDefinition[str]) -> dg.AssetsDefinition:
    """The asset [dataset, samples] and its check."""
    key = dg.AssetKey([dataset, STAGE])

    @dg.asset(
        key=key,
        deps=[dg.AssetKey([dataset, landing_stage.STAGE])],
        partitions_def=batches,
        code_version=CODE_VERSION,
        group_name=dataset,
        kinds={"ffmpeg", "pillow"},
        check_specs=[dg.AssetCheckSpec(CHECK, asset=key, blocking=True, description=_CHECK_SAYS)],
        description="Every object decoded to its end; photos, clips and speech cut from the sound ones.",
    )
    def samples(
        context: dg.AssetExecutionContext, config: SamplesConfig, root: RootResource, landing: LandingResource
    ) -> Iterator[SamplesEvent]:
        batch = Batch(dataset=dataset, partition=context.partition_key, run_id=context.run.run_id)
        with root.opened() as opened, landing.opened() as place:
            record, refusals = cut_stage(opened, place, batch, config.policy(), config.max_rejected)
        passed = record.verdict == "published"
        yield dg.AssetCheckResult(check_name=CHECK, passed=passed, metadata=check_metadata(record, refusals))
        if not passed:
            # The check makes it visible; the record, which is already written, makes it true.
            raise dg.Failure(record.reason, metadata=check_metadata(record, refusals), allow_retries=False)
        yield dg.MaterializeResult(metadata=samples_metadata(record, refusals))

    return samples
