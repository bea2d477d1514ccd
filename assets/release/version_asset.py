"""version: batches whose verdict is `published` become versions of the dataset. Reads nothing else."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import dagster as dg

import loader
from loader.dataset.log.state import State
from loader.dataset.versions.version import open_record
from loader.errors import Conflict, StageNotPublished
from penstock.approve import stops
from penstock.stages import StageRecord, current_record, found_records, newest_listed
from penstock.text import markdown_text
from penstock.upkeep.exclude import obey
from resources.storage import RootResource

from ..feedback.exclusions import excluded_by_reason
from ..gate_checks import GATE, Gate
from ..ingest.units import clash, published_labels
from ..pages.plots import MAX_VERSIONS
from ..pages.report import Metadata, exclusions_metadata, version_metadata
from ..samples import samples_asset as samples_stage
from ..spec import DatasetSpec
from ..stages import SAMPLES, VERSION, request_recut, require_published
from .audit import Audit, audit_batch, overtaken
from .card import card_metadata
from .lag import PRODUCER, arrivals, freshness_of, lag_metadata
from .links import published_in, version_links
from .settled import note_settled, read_settled

ATTEMPTS = 8
"""Most times that a batch is judged while others publish before it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """Result of a publish."""

    version: loader.Version
    """The newest version."""
    published: tuple[str, ...]
    """Batches taken."""
    held_back: tuple[str, ...]
    """Batches left out."""
    versions: tuple[loader.Version, ...] = ()
    """Version that each batch became."""


def sizes(root: loader.Root, dataset: str, newest: int = MAX_VERSIONS) -> dict[int, int]:
    """Return live samples by version number, of the newest versions that are not retired.

    Costs a manifest each; a version that is only counted is given no lease.
    """
    living = [record for record in root.state.versions(dataset) if record.retired is None]
    return {record.number: len(open_record(root.store, record)) for record in living[-newest:]}


def audit_waiting(root: loader.Root, dataset: str, run_id: str, gate: Gate = GATE) -> list[Audit]:
    """Return the verdict on every batch that was cut well and is in no version, oldest first; written where it is new.

    One that passed keeps its verdict here, though others were published since: it is judged again just before it is
    published. So a release that was killed among many has not to judge all of them again before its first version.
    """
    records, state = _cut(root, dataset).values(), root.state
    waiting = [record for record in records if _is_waiting(state, record)]
    return [audit_batch(root, record, gate, run_id, once=True) for record in waiting]


def publish_batches(
    root: loader.Root, dataset: str, run_id: str, gate: Gate = GATE, spec: DatasetSpec | None = None
) -> Release:
    """Publish every batch that passed both audits and that no version has yet, one version per batch.

    Samples that a person excluded are left out of the newest version before, and after, if it still has them.

    A batch that fails the gate now stops the whole publish; with its verdict written it is held back from then on, and
    the others can go. Each batch goes onto exactly the version that it was judged against. Where another came first, it
    is judged again, so that n which wait together cost 2n - 1 verdicts. Publishing again changes nothing.

    spec: of a dataset that looks for near-duplicates. A batch that was compared with an older version than the newest
    is put together again; without a spec it is held back.

    Raises: StageNotPublished when a batch failed now, when there is nothing new and one failed before, or when no batch
    was cut at all; Fenced; Conflict.
    """
    obey(root, dataset)
    audits = audit_waiting(root, dataset, run_id, gate)
    if failed := refusal_of(audits):
        raise StageNotPublished(failed)
    return _publish_passed(root, dataset, run_id, audits, gate, spec)


def refusal_of(audits: list[Audit]) -> str:
    """Return why nothing may be published, or "": a batch failed just now, or all that wait failed before."""
    failed = [audit.record for audit in audits if not audit.passed]
    if not failed or (
        not any(audit.fresh for audit in audits if not audit.passed) and len(failed) < len(audits)
    ):
        return ""
    named = "; ".join(f"batch {record.partition} ({record.path}): {record.reason}" for record in failed)
    return (
        f"nothing was published: {named}. Repair what it names and run the batch's ingest again; "
        "batches that passed are published by the next release"
    )


def _publish_passed(
    root: loader.Root, dataset: str, run_id: str, audits: list[Audit], gate: Gate, spec: DatasetSpec | None
) -> Release:
    """Publish the batches that passed. audits: later verdicts replace earlier ones. Raises: as `publish_batches`."""
    records = _cut(root, dataset)
    failed = {audit.record.partition for audit in audits if not audit.passed}
    failed |= {name for name, record in records.items() if record.verdict != "published"}
    held_back = tuple(sorted(failed))
    if held_back and not any(audit.passed for audit in audits):
        raise StageNotPublished(_refusal(root, dataset, held_back[0]))
    unfit: dict[str, str] = {}
    taken: dict[str, loader.Version] = {}
    for position, audit in enumerate(audits):
        if not audit.passed:
            continue
        name = audit.record.partition
        # One that another release has settled meanwhile is not in `records`.
        record = records.get(name) or current_record(root.store, dataset, SAMPLES, name)
        if record is None:
            unfit[name] = f"batch {name}: its samples record is gone"
            continue
        done = _take(root, record, audit, run_id, gate, spec)
        audits[position] = done.audit
        if done.reason:
            unfit[record.partition] = done.reason
        elif done.version is not None:
            taken[record.partition] = done.version
    if unfit and not taken:
        raise StageNotPublished(f"nothing was published: {'; '.join(unfit.values())}")
    if taken:
        obey(root, dataset)  # of exclusions made while these batches waited
    newest = root.state.newest(dataset)
    if newest is None:
        raise StageNotPublished(f"no batch of {dataset} was cut: materialize [{dataset}, samples] first")
    return Release(
        version=root.open(newest.id),
        published=tuple(taken),
        held_back=tuple(sorted({*held_back, *unfit})),
        versions=tuple(taken.values()),
    )


def _cut(root: loader.Root, dataset: str) -> dict[str, StageRecord]:
    """Return the current samples record of every batch that is not remembered to be settled, by batch.

    Costs a listing, the remembered batches, and a GET for each of the others, sixteen at a time. Each that no version
    has costs some more requests: a listing may lag behind, and a record that a failure has replaced must not be
    published.
    """
    listed, state = newest_listed(root.store, dataset, SAMPLES), root.state
    known = read_settled(root.store, dataset)
    unknown = {
        name: info for name, info in listed.items() if not info.etag or known.get(info.key) != info.etag
    }
    found = found_records(root.store, unknown)
    settled: dict[str, str] = {}
    for name, record in found.items():
        if _is_published(state, record) or (record.verdict == "published" and not record.body["parts"]):
            if unknown[name].etag:
                settled[record.path] = unknown[name].etag
        else:
            newest = current_record(root.store, dataset, SAMPLES, name)
            found[name] = newest or record
    note_settled(root.store, dataset, known, settled)
    return found


def _is_published(state: State, record: StageRecord) -> bool:
    transaction = state.txns.get(record.body.get("txn", ""))
    return record.verdict == "published" and transaction is not None and transaction.status == "committed"


def _is_waiting(state: State, record: StageRecord) -> bool:
    return record.verdict == "published" and bool(record.body["parts"]) and not _is_published(state, record)


def _unfit(root: loader.Root, record: StageRecord) -> str:
    """Return why a passed batch has to wait, or "": a stage before failed since, or another batch was published."""
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
    if reason := clash(root, record, parts):
        request_recut(root.store, record.dataset, record.partition, record.body["txn"])
        return (
            f"batch {record.partition}: a version was published since it was cut ({reason}); the discovery sensor "
            f"has it cut again, or materialize [{record.dataset}, units], its features and samples"
        )
    return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Taken:
    """Outcome of a batch. version: None where it waits, and `reason` says why, or holds nothing but copies now."""

    audit: Audit
    version: loader.Version | None = None
    reason: str = ""


def _take(
    root: loader.Root, record: StageRecord, audit: Audit, run_id: str, gate: Gate, spec: DatasetSpec | None
) -> _Taken:
    """Publish a batch onto the version that it was judged against; it is judged again when another came first.

    Raises: Conflict, also after `ATTEMPTS` overtakings; StageNotPublished where the batch's records were changed in
    that moment; DuplicateKey; Fenced.
    """
    for attempt in range(1, ATTEMPTS + 1):
        if known := root.state.committed(record.body["txn"]):  # by another release
            return _Taken(audit=audit, version=root.open(known.id))
        if reason := _unfit(root, record):
            return _Taken(audit=audit, reason=reason)
        if reason := _cut_again(record, audit.record):
            return _Taken(audit=audit, reason=reason)
        if samples_stage.outdated(root, record):
            if spec is None:
                return _Taken(audit=audit, reason=_not_compared(record))
            record, _ = samples_stage.samples_stage(root, spec, partition=record.partition, run_id=run_id)
            if record.verdict != "published" or not record.body["parts"]:
                return _Taken(audit=audit, reason=record.reason)  # without parts: nothing but copies now
        found = audit_batch(root, record, gate, run_id)
        audit = audit if found.record == audit.record else found  # which has its picture, where it is fresh
        if not audit.passed:
            return _Taken(audit=audit, reason=audit.record.reason)
        try:
            return _Taken(audit=audit, version=_publish(root, record, audit.record, run_id))
        except Conflict:
            first = samples_stage.outdated(root, record) or overtaken(root, record, audit.record, gate)
            if attempt == ATTEMPTS or not first:
                raise
    raise AssertionError("unreachable")


def _not_compared(record: StageRecord) -> str:
    return (
        f"batch {record.partition}: another batch was published since its samples were compared for "
        f"near-duplicates; materialize [{record.dataset}, samples] again"
    )


def _cut_again(record: StageRecord, verdict: StageRecord) -> str:
    """Return why a batch has to wait whose verdict is of another samples record, or ""."""
    if verdict.upstream[0].r == record.r:
        return ""
    return (
        f"batch {record.partition} was cut again while it was audited (its samples record is {record.r}, the "
        f"verdict is of {verdict.upstream[0].r}): run the release again"
    )


def _refusal(root: loader.Root, dataset: str, partition: str) -> str:
    try:
        require_published(root.store, dataset, SAMPLES, partition)
    except StageNotPublished as error:
        return f"nothing was published: {error}"
    return f"nothing was published: the record of {partition} changed meanwhile; run this again"


def _publish(root: loader.Root, record: StageRecord, verdict: StageRecord, run_id: str) -> loader.Version:
    """Publish a batch as the next version.

    Raises: Conflict when the newest version is another than the verdict, or the samples, were compared with, or a later
    verdict stands; StageNotPublished when it is of something else; DuplicateKey; Fenced.
    """
    known = published_labels(root, record.dataset)
    labels = max(known, list(record.body["labels"]), key=len)  # one begins with the other: they do not clash
    producer: dict[str, Any] = {
        "dagster_run_id": run_id,
        "asset_key": f"{record.dataset}/{VERSION}",
        "stage_record": record.path,
        "audit_record": verdict.path,
        "batch": record.partition,
        "cut_by_run_id": record.run_id,
        "labels": labels,
        PRODUCER: arrivals(root.store, record),
    }
    checks = {one["name"]: _word(one) for one in verdict.body["checks"]}
    producer["gate"] = {"report": str(verdict.body.get("report", "")), "checks": checks}
    if approval := verdict.body.get("approval"):
        producer["approval"] = approval
    parts = [loader.Part.from_json(body) for body in record.body["parts"]]
    return root.publish(
        record.dataset,
        parts,
        exclude=record.body["exclude"],
        supersede=record.body.get("supersede"),
        # For near-duplicates; what the verdict was compared with, it says itself.
        onto=record.body.get("compared_with"),
        verdict=verdict.path,
        foreign=record.body.get("foreign"),
        producer=producer,
        facts=record.body.get("facts"),
    )


def _word(check: Mapping[str, Any]) -> str:
    """Return the word for a check in the manifest."""
    return "failed" if stops(check) else "passed" if check["passed"] is True else "warned"


_CHECK_SAYS = (
    "A batch that fails is not published, now or later, until its samples are made again. A check that cannot run "
    "fails."
)
VersionEvent = dg.AssetCheckResult | dg.MaterializeResult[None]


def version_asset(dataset: str, gate: Gate = GATE, spec: DatasetSpec | None = None) -> dg.AssetsDefinition:
    """Return the asset [dataset, version] with its checks: the gate's suite, and each of its own.

    spec: see `publish_batches`.
    """
    key = dg.AssetKey([dataset, VERSION])

    @dg.asset(
        key=key,
        deps=[dg.AssetKey([dataset, SAMPLES])],
        kinds={"webdataset", "parquet"},
        freshness_policy=freshness_of(spec),
        check_specs=[
            dg.AssetCheckSpec(
                name, asset=key, blocking=True, description=f"{gate.text_of(name)} {_CHECK_SAYS}"
            )
            for name in gate.names
        ],
        description="An immutable version of the dataset, from batches that passed their checks.",
    )
    def version(context: dg.AssetExecutionContext, root: RootResource) -> Iterator[VersionEvent]:
        with root.opened() as opened:
            obey(opened, dataset)
            audits = audit_waiting(opened, dataset, context.run.run_id, gate)
            refused, release = refusal_of(audits), None
            try:
                if refused:
                    raise StageNotPublished(refused)
                release = _publish_passed(opened, dataset, context.run.run_id, audits, gate, spec)
            except StageNotPublished as error:
                raise dg.Failure(str(error), allow_retries=False) from error
            finally:
                # The checks make it visible; the records, which are already written, make it true.
                yield from _check_events(gate, audits, opened.url, stopping=release is None)
            shown = version_metadata(release, sizes(opened, dataset))
            shown |= version_links(release, spec) | lag_metadata(opened, release)
            shown |= exclusions_metadata(excluded_by_reason(opened.store, dataset))
            for made in release.versions:
                context.log_event(published_in(made))
            yield dg.MaterializeResult(
                metadata=shown | card_metadata(opened, release.version),
                data_version=dg.DataVersion(release.version.id),
            )

    return version


def _check_events(
    gate: Gate, audits: list[Audit], url: str, *, stopping: bool
) -> Iterator[dg.AssetCheckResult]:
    """Yield one result per check, over all batches that were waiting.

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
            told = f"{markdown_text(result.explanation)}\n\n{result.table_markdown}"
            metadata[f"batch {record.partition}"] = dg.MetadataValue.md(told)
            if report := record.body.get("report"):
                metadata[f"report {record.partition}"] = dg.MetadataValue.path(f"{url}/{report}")
            if result.value is not None:
                # The newest batch's: Dagster plots it over the runs.
                metadata["value"] = dg.MetadataValue.float(result.value)
        if name == "drift":
            pictures = {f"plot {one.record.partition}": one.picture for one in audits if one.picture}
            metadata |= {key: dg.MetadataValue.md(image) for key, image in pictures.items()}
        yield dg.AssetCheckResult(check_name=name, passed=not wrong, severity=severity, metadata=metadata)
