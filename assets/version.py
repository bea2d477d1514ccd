"""version: batches whose verdict is `published` become versions of the dataset. Reads nothing else."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import dagster as dg

import loader
from loader.dataset.publish import open_record
from loader.errors import StageNotPublished
from resources.storage import RootResource

from . import samples as samples_stage
from .card import card_metadata
from .plots import MAX_VERSIONS
from .report import Metadata, dagster_name, version_metadata
from .spec import DatasetSpec
from .stages import StageRecord, current_record, partitions, require_published
from .units import clash, published_labels
from .version_audit import GATE, STAGE, Audit, Gate, audit_batch


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """What a publish came to. version: the newest; published: batches taken; held_back: batches left out."""

    version: loader.Version
    published: tuple[str, ...]
    held_back: tuple[str, ...]


def sizes(root: loader.Root, dataset: str, newest: int = MAX_VERSIONS) -> dict[int, int]:
    """Live samples by version number, of the newest versions that are not retired. Costs a manifest each; a
    version that is only counted is given no lease."""
    living = [record for record in root.state.versions(dataset) if record.retired is None]
    return {record.number: len(open_record(root.store, record)) for record in living[-newest:]}


def audit_waiting(root: loader.Root, dataset: str, run_id: str, gate: Gate = GATE) -> list[Audit]:
    """The verdict on every batch that was cut well and is in no version, oldest first; written where it is new."""
    records = _cut(root, dataset).values()
    return [audit_batch(root, record, gate, run_id) for record in records if _is_waiting(root, record)]


def publish_batches(
    root: loader.Root, dataset: str, run_id: str, gate: Gate = GATE, spec: DatasetSpec | None = None
) -> Release:
    """Publish every batch that passed both audits and that no version has yet, one version per batch.

    A batch that fails the gate now stops the whole publish; with its verdict written it is held back from then
    on, and the others can go. spec: of a dataset that looks for near-duplicates; a batch that was compared with an
    older version than the newest is put together and audited again, and without it is held back. Publishing again
    changes nothing: a transaction is committed once. Raises: StageNotPublished when a batch failed now, when there
    is nothing new and one failed before, or when no batch was cut at all; Fenced; Conflict.
    """
    audits = audit_waiting(root, dataset, run_id, gate)
    if failed := refusal_of(audits):
        raise StageNotPublished(failed)
    return _publish_passed(root, dataset, run_id, audits, gate, spec)


def refusal_of(audits: list[Audit]) -> str:
    """Why nothing may be published, or "": a batch failed just now, or all that are waiting failed before."""
    failed = [audit.record for audit in audits if not audit.passed]
    if not failed or (
        not any(audit.fresh for audit in audits if not audit.passed) and len(failed) < len(audits)
    ):
        return ""
    named = "; ".join(f"batch {record.partition} ({record.path}): {record.reason}" for record in failed)
    return (
        f"nothing was published: {named}. Repair what it names and materialize the batch's samples again; "
        "batches that passed are published by the next release"
    )


def _publish_passed(
    root: loader.Root, dataset: str, run_id: str, audits: list[Audit], gate: Gate, spec: DatasetSpec | None
) -> Release:
    records = _cut(root, dataset)
    failed = {audit.record.partition for audit in audits if not audit.passed}
    failed |= {name for name, record in records.items() if record.verdict != "published"}
    held_back = tuple(sorted(failed))
    passed = [audit.record for audit in audits if audit.passed]
    if not passed and held_back:
        raise StageNotPublished(_refusal(root, dataset, held_back[0]))
    unfit: dict[str, str] = {}
    taken = []
    for verdict in passed:
        record = records[verdict.partition]
        reason = _unfit(root, record)
        if not reason and samples_stage.outdated(root, record):
            record, verdict, reason = _compared_again(root, record, verdict, run_id, gate, spec)
        if reason:
            unfit[record.partition] = reason
        elif record.body["parts"]:
            _publish(root, record, verdict, run_id)
            taken.append(record.partition)
    if unfit and not taken:
        raise StageNotPublished(f"nothing was published: {'; '.join(unfit.values())}")
    newest = root.state.newest(dataset)
    if newest is None:
        raise StageNotPublished(f"no batch of {dataset} was cut: materialize [{dataset}, samples] first")
    return Release(
        version=root.open(newest.id), published=tuple(taken), held_back=tuple(sorted({*held_back, *unfit}))
    )


def _cut(root: loader.Root, dataset: str) -> dict[str, StageRecord]:
    """The current samples record of every batch, by batch."""
    found = {
        name: current_record(root.store, dataset, samples_stage.STAGE, name)
        for name in partitions(root.store, dataset, samples_stage.STAGE)
    }
    return {name: record for name, record in found.items() if record is not None}


def _is_waiting(root: loader.Root, record: StageRecord) -> bool:
    if record.verdict != "published" or not record.body["parts"]:
        return False
    transaction = root.state.txns.get(record.body["txn"])
    return transaction is None or transaction.status != "committed"


def _unfit(root: loader.Root, record: StageRecord) -> str:
    """Why a batch that passed has to wait, or "": a stage before failed since, or another batch was published."""
    for read in record.upstream:
        try:
            require_published(root.store, record.dataset, read.stage, record.partition)
        except StageNotPublished as error:
            return str(error)
    if root.state.txns[record.body["txn"]].status == "aborted":
        return (
            f"batch {record.partition} was stopped before and its parts were given up; materialize "
            f"[{record.dataset}, units], its features and samples again"
        )
    parts = [loader.Part.from_json(body) for body in record.body["parts"]]
    if reason := clash(root, record.dataset, record.body["labels"], parts):
        return (
            f"batch {record.partition}: another batch was published since it was cut ({reason}); materialize "
            f"[{record.dataset}, units], its features and samples again"
        )
    return ""


def _compared_again(
    root: loader.Root,
    record: StageRecord,
    verdict: StageRecord,
    run_id: str,
    gate: Gate,
    spec: DatasetSpec | None,
) -> tuple[StageRecord, StageRecord, str]:
    """(samples record, verdict, why it has to wait or ""): of a batch that was compared with an older version."""
    if spec is None:
        return (
            record,
            verdict,
            f"batch {record.partition}: another batch was published since its samples were compared for "
            f"near-duplicates; materialize [{record.dataset}, samples] again",
        )
    again, _ = samples_stage.samples_stage(root, spec, partition=record.partition, run_id=run_id)
    if again.verdict != "published" or not again.body["parts"]:
        return again, verdict, again.reason  # without parts: it holds nothing but copies now
    audited = audit_batch(root, again, gate, run_id)
    return again, audited.record, "" if audited.passed else audited.record.reason


def _refusal(root: loader.Root, dataset: str, partition: str) -> str:
    try:
        require_published(root.store, dataset, samples_stage.STAGE, partition)
    except StageNotPublished as error:
        return f"nothing was published: {error}"
    return f"nothing was published: the record of {partition} changed meanwhile; run this again"


def _publish(root: loader.Root, record: StageRecord, verdict: StageRecord, run_id: str) -> loader.Version:
    """Raises: StageNotPublished when the verdict is of another samples record; DuplicateKey; Fenced; Conflict."""
    if verdict.verdict != "published" or verdict.upstream[0].r != record.r:
        raise StageNotPublished(
            f"batch {record.partition} was cut again while it was audited (its samples record is {record.r}, the "
            f"verdict is of {verdict.upstream[0].r}): run the release again"
        )
    known = published_labels(root, record.dataset)
    labels = max(known, list(record.body["labels"]), key=len)  # one begins with the other: they do not clash
    producer: dict[str, Any] = {
        "dagster_run_id": run_id,
        "asset_key": f"{record.dataset}/{STAGE}",
        "stage_record": record.path,
        "audit_record": verdict.path,
        "batch": record.partition,
        "cut_by_run_id": record.run_id,
        "labels": labels,
    }
    parts = [loader.Part.from_json(body) for body in record.body["parts"]]
    return root.publish(
        record.dataset,
        parts,
        exclude=record.body["exclude"],
        supersede=record.body.get("supersede"),
        onto=record.body.get("compared_with"),
        producer=producer,
    )


_CHECK_SAYS = (
    "Of every batch that would be published now. One that fails is not published, now or later, until its samples "
    "are made again; a check that could not run counts as failed."
)
VersionEvent = dg.AssetCheckResult | dg.MaterializeResult[None]


def version_asset(dataset: str, gate: Gate = GATE, spec: DatasetSpec | None = None) -> dg.AssetsDefinition:
    """The asset [dataset, version] and its checks: the gate's suite of expectations, and each of its own. spec: see
    `publish_batches`."""
    key = dg.AssetKey([dataset, STAGE])

    @dg.asset(
        key=key,
        deps=[dg.AssetKey([dataset, samples_stage.STAGE])],
        group_name=dagster_name(dataset),
        kinds={"webdataset", "parquet"},
        check_specs=[
            dg.AssetCheckSpec(name, asset=key, blocking=True, description=_CHECK_SAYS) for name in gate.names
        ],
        description="An immutable version of the dataset, from batches that passed their checks.",
    )
    def version(context: dg.AssetExecutionContext, root: RootResource) -> Iterator[VersionEvent]:
        with root.opened() as opened:
            audits = audit_waiting(opened, dataset, context.run.run_id, gate)
            refused = refusal_of(audits)
            yield from _check_events(gate, audits, stopping=bool(refused))
            if refused:
                # The checks make it visible; the records, which are already written, make it true.
                raise dg.Failure(refused, allow_retries=False)
            try:
                release = _publish_passed(opened, dataset, context.run.run_id, audits, gate, spec)
            except StageNotPublished as error:
                raise dg.Failure(str(error), allow_retries=False) from error
            shown = version_metadata(release, sizes(opened, dataset))
            yield dg.MaterializeResult(metadata=shown | card_metadata(opened, release.version))

    return version


def _check_events(gate: Gate, audits: list[Audit], *, stopping: bool) -> Iterator[dg.AssetCheckResult]:
    """One result per check, over all batches that were waiting.

    A batch that is held back while others go is a warning: an error would fail the run that publishes them.
    """
    for position, name in enumerate(gate.names):
        found = [(audit.record, audit.results[position]) for audit in audits]
        wrong = [result for _, result in found if not result.passed]
        stops = stopping and any(result.stops for result in wrong)
        severity = dg.AssetCheckSeverity.ERROR if stops else dg.AssetCheckSeverity.WARN
        metadata: Metadata = {"batches": dg.MetadataValue.int(len(found))}
        failed = [
            f"{record.partition}: {result.explanation}" for record, result in found if not result.passed
        ]
        if failed:
            metadata["failed"] = dg.MetadataValue.text("; ".join(failed))
        for record, result in found:
            told = f"{result.explanation}\n\n{result.table_markdown}"
            metadata[f"batch {record.partition}"] = dg.MetadataValue.md(told)
            if result.value is not None:
                # The newest batch's: Dagster plots it over the runs.
                metadata["value"] = dg.MetadataValue.float(result.value)
        yield dg.AssetCheckResult(check_name=name, passed=not wrong, severity=severity, metadata=metadata)
