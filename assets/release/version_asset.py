"""The asset `version`: publishes batches whose verdict is `published`."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import dagster as dg

import loader
from loader.dataset.log.state import State
from loader.errors import Conflict, StageNotPublished
from penstock.approvals import beyond_approval, stops
from penstock.stages import StageRecord, current_record
from penstock.upkeep.exclusion import obey
from resources.storage import RootResource

from ..gate_settings import GATE, Gate
from ..ingest.published import clash, published_labels
from ..pipeline.stages import SAMPLES, VERSION, request_recut, require_published
from ..samples import samples_asset as samples_stage
from ..spec import DatasetSpec
from .gate_run import Audit, audit_batch, overtaken
from .lag import ARRIVALS, arrivals, freshness_policy
from .release import Release
from .settled_batches import is_published, unsettled_records
from .version_page import card_metadata, check_events, publication_observation, release_metadata

ATTEMPTS = 8
"""Most audits of a batch while others are published."""


def audit_waiting(
    root: loader.Root,
    dataset: str,
    run_id: str,
    gate: Gate = GATE,
) -> list[Audit]:
    """Return the verdict on every batch that waits for a version, oldest first; audits new batches.

    Passed ones are checked again before publication.
    """
    records = unsettled_records(root, dataset).values()
    state = root.state
    audits = list[Audit]()
    for record in records:
        if _is_waiting(state, record):
            audit = audit_batch(root, record, gate, run_id, once=True)
            audits.append(audit)
    return audits


def publish_batches(
    root: loader.Root,
    dataset: str,
    run_id: str,
    gate: Gate = GATE,
    spec: DatasetSpec | None = None,
) -> Release:
    """Publish every batch that passes its audit, one version each, after removing samples that people excluded.

    A batch that newly fails stops the release; later releases hold it back. A batch is audited again if another one was
    published since its comparison: n batches cost 2n - 1 audits.

    spec: compares near-duplicates with a newer version; without it, the batch waits.

    Raises: StageNotPublished if a batch newly failed, if nothing is new and a batch failed before, or if no batch was
    cut; Fenced; Conflict.
    """
    obey(root, dataset)
    audits = audit_waiting(root, dataset, run_id, gate)
    stop = release_stop_reason(audits)
    if stop:
        raise StageNotPublished(stop, what="gate", where=dataset, given=_failed_checks(audits))
    publisher = Publisher(root=root, dataset=dataset, run_id=run_id, gate=gate, spec=spec)
    return publisher.publish_passed(audits)


def release_stop_reason(audits: list[Audit]) -> str:
    """Return why nothing may be published (a batch newly failed, or all failed before), or ""."""
    failed = [audit for audit in audits if not audit.passed]
    if not failed:
        return ""
    newly_failed = any(audit.fresh for audit in failed)
    if not newly_failed and len(failed) < len(audits):
        return ""  # a batch that failed before does not stop the others again
    reasons = list[str]()
    is_approvable = False
    for audit in failed:
        record = audit.record
        reasons.append(f"batch {record.partition} ({record.path}): {record.reason}")
        if not beyond_approval(record):
            is_approvable = True
    approval = ""
    if is_approvable:
        dataset = failed[0].record.dataset
        approval = f", or approve it if the data are as intended (penstock approve {dataset})"
    named = "; ".join(reasons)
    return (
        f"nothing was published: {named}. Repair what it names and run the batch's ingest again{approval}; "
        "batches that passed are published by the next release"
    )


def _failed_checks(audits: Sequence[Audit]) -> list[str]:
    """Return the names of the checks that stop batches."""
    names = set[str]()
    for audit in audits:
        if not audit.passed:
            names.update(str(check["name"]) for check in audit.record.body["checks"] if stops(check))
    return sorted(names)


@dataclass(frozen=True, slots=True, kw_only=True)
class Publisher:
    """Publishes audited batches of a dataset, one version each."""

    root: loader.Root
    dataset: str
    run_id: str
    """Dagster's run id; "" outside runs."""
    gate: Gate
    spec: DatasetSpec | None
    """See `publish_batches`."""

    def publish_passed(self, audits: list[Audit]) -> Release:
        """Publish the batches that passed. A batch that is audited again gets its newest audit in `audits`.

        Raises: as `publish_batches`.
        """
        root = self.root
        dataset = self.dataset
        records = unsettled_records(root, dataset)
        failed = {audit.record.partition for audit in audits if not audit.passed}
        for name, record in records.items():
            if record.verdict != "published":
                failed.add(name)
        if failed and not any(audit.passed for audit in audits):
            reason = _failure_reason(root, dataset, min(failed))
            raise StageNotPublished(reason, what="batches", where=dataset, given=sorted(failed))

        unfit: dict[str, str] = {}  # batch -> reason
        versions: dict[str, loader.Version] = {}  # batch -> its version
        for position, audit in enumerate(audits):
            if not audit.passed:
                continue
            name = audit.record.partition
            # `records` lacks a batch if another release has settled it meanwhile.
            cut_record = records.get(name) or current_record(root.store, dataset, SAMPLES, name)
            if cut_record is None:
                unfit[name] = f"batch {name}: its samples record is gone"
                continue
            batch = self._publish_batch(cut_record, audit)
            audits[position] = batch.audit
            if batch.reason:
                unfit[name] = batch.reason
            elif batch.version is not None:
                versions[name] = batch.version
        if unfit and not versions:
            reasons = "; ".join(unfit.values())
            raise StageNotPublished(
                f"nothing was published: {reasons}", what="batches", where=dataset, given=sorted(unfit)
            )

        if versions:
            obey(root, dataset)  # apply exclusions made while these batches waited
        newest = root.state.newest(dataset)
        if newest is None:
            raise StageNotPublished(
                f"no batch of {dataset} was cut: materialize [{dataset}, samples] first",
                what="batches",
                where=dataset,
                given=0,
            )
        held_back = failed.union(unfit)
        return Release(
            version=root.open(newest.id),
            published=tuple(versions),
            held_back=tuple(sorted(held_back)),
            versions=tuple(versions.values()),
        )

    def _publish_batch(self, record: StageRecord, audit: Audit) -> "_BatchRelease":
        """Publish a batch that passed, unless it no longer fits. record: its samples record."""
        root = self.root
        attempt = 0
        while True:
            attempt += 1
            checked = self._recheck(record, audit)
            if isinstance(checked, _BatchRelease):
                return checked
            record = checked.record
            audit = checked.audit
            try:
                version = _publish(root, record, audit.record, self.run_id)
            except Conflict:
                # Another release published first: compare again. Any other conflict would come back.
                was_overtaken = samples_stage.is_outdated(root, record) or overtaken(
                    root, record, audit.record, self.gate
                )
                if attempt == ATTEMPTS or not was_overtaken:
                    raise
            else:
                return _BatchRelease(audit=audit, version=version)

    def _recheck(
        self,
        record: StageRecord,
        audit: Audit,
    ) -> "_ReadyBatch | _BatchRelease":
        """Check a batch that passed against the newest version, and audit it again if that is another one by now.

        Return the batch ready to publish; or its release, if it was published already or has to wait.
        """
        root = self.root
        txn = record.body["txn"]
        known = root.state.committed(txn)
        if known is not None:  # another release published it
            version = root.open(known.id)
            return _BatchRelease(audit=audit, version=version)
        reason = _unfit_reason(root, record) or _recut_reason(record, audit.record)
        if reason:
            return _BatchRelease(audit=audit, reason=reason)

        # Near-duplicates are compared with the newest version: again, if that is another one by now.
        if samples_stage.is_outdated(root, record):
            if self.spec is None:
                return _BatchRelease(audit=audit, reason=_not_compared_reason(record))
            record, _ = samples_stage.samples_stage(
                root,
                self.spec,
                partition=record.partition,
                run_id=self.run_id,
            )
            if record.verdict != "published":
                return _BatchRelease(audit=audit, reason=record.reason)
            if not record.body["parts"]:  # all its samples are duplicates by now
                return _BatchRelease(audit=audit)

        current = audit_batch(root, record, self.gate, self.run_id)
        # If the stored verdict still holds, keep the audit that the caller has: only that has the plot.
        if current.record != audit.record:
            audit = current
        if not audit.passed:
            return _BatchRelease(audit=audit, reason=audit.record.reason)
        return _ReadyBatch(record=record, audit=audit)


@dataclass(frozen=True, slots=True, kw_only=True)
class _ReadyBatch:
    """A batch that may be published onto the newest version."""

    record: StageRecord
    """Newest samples record."""
    audit: Audit
    """Newest audit, which it passed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _BatchRelease:
    """An audited batch after its release."""

    audit: Audit
    """Newest audit."""
    version: loader.Version | None = None
    """None if the batch waits (see `reason`), or has only duplicates by now (then without a reason)."""
    reason: str = ""
    """Why the batch waits, or ""."""


def _is_waiting(state: State, record: StageRecord) -> bool:
    """Return whether a samples record has samples that wait for a version."""
    if record.verdict != "published" or not record.body["parts"]:
        return False
    return not is_published(state, record)


def _unfit_reason(root: loader.Root, record: StageRecord) -> str:
    """Return why a batch may not be published any more, or "".

    Requests that a batch that clashes with a newer version is cut again.
    """
    for read in record.upstream:
        try:
            require_published(root.store, record.dataset, read.stage, record.partition)
        except StageNotPublished as error:
            return str(error)
    txn = record.body["txn"]
    if root.state.txns[txn].status == "aborted":
        return (
            f"batch {record.partition} was stopped before and its parts were given up; materialize "
            f"[{record.dataset}, units], its features and samples again"
        )
    parts = [loader.Part.from_json(body) for body in record.body["parts"]]
    reason = clash(root, record, parts)
    if reason:
        request_recut(root.store, record.dataset, record.partition, txn)
        return (
            f"batch {record.partition}: a version was published since it was cut ({reason}); the discovery sensor "
            f"has it cut again, or materialize [{record.dataset}, units], its features and samples"
        )
    return ""


def _not_compared_reason(record: StageRecord) -> str:
    return (
        f"batch {record.partition}: another batch was published since its samples were compared for "
        f"near-duplicates; materialize [{record.dataset}, samples] again"
    )


def _recut_reason(record: StageRecord, verdict: StageRecord) -> str:
    """Return why a verdict is not on this samples record, or ""."""
    samples_read = verdict.upstream[0]  # the only record that an audit reads
    if samples_read.r == record.r:
        return ""
    return (
        f"batch {record.partition} was cut again during its audit (its newest samples record is {record.r}, "
        f"the audit read {samples_read.r}): run the release again"
    )


def _failure_reason(root: loader.Root, dataset: str, partition: str) -> str:
    """Return why a release without a passed batch publishes nothing. partition: a failed batch."""
    try:
        require_published(root.store, dataset, SAMPLES, partition)
    except StageNotPublished as error:
        return f"nothing was published: {error}"
    return f"nothing was published: the record of {partition} changed meanwhile; run this again"


def _publish(
    root: loader.Root,
    record: StageRecord,
    verdict: StageRecord,
    run_id: str,
) -> loader.Version:
    """Publish a samples record with this verdict. Raises: Conflict if another version came first; Fenced."""
    body = record.body
    parts = [loader.Part.from_json(part) for part in body["parts"]]
    return root.publish(
        record.dataset,
        parts,
        exclude=body["exclude"],
        supersede=body.get("supersede"),
        # The newest version must be the one in which near-duplicates of the batch were looked for.
        onto=body.get("compared_with"),
        verdict=verdict.path,
        foreign=body.get("foreign"),
        producer=_producer(root, record, verdict, run_id),
        facts=body.get("facts"),
    )


def _producer(
    root: loader.Root,
    record: StageRecord,
    verdict: StageRecord,
    run_id: str,
) -> dict[str, Any]:
    """Return the manifest's `producer`: where the version's samples come from."""
    # Class names by number. One list is a prefix of the other, as each batch appends its new classes.
    labels = list(record.body["labels"])
    known = published_labels(root, record.dataset)
    if len(known) >= len(labels):
        labels = known
    checks = {check["name"]: _check_word(check) for check in verdict.body["checks"]}
    report = verdict.body.get("report", "")
    producer: dict[str, Any] = {
        "dagster_run_id": run_id,
        "asset_key": f"{record.dataset}/{VERSION}",
        "stage_record": record.path,
        "audit_record": verdict.path,
        "batch": record.partition,
        "cut_by_run_id": record.run_id,
        "labels": labels,
        ARRIVALS: arrivals(root.store, record),
        "gate": {"report": str(report), "checks": checks},
    }
    approval = verdict.body.get("approval")
    if approval:
        producer["approval"] = approval
    return producer


def _check_word(check: Mapping[str, Any]) -> str:
    """Return "failed" for a check that stops a batch, "warned" for another failed one, else "passed"."""
    if stops(check):
        return "failed"
    if check["passed"] is True:
        return "passed"
    return "warned"


_CHECK_NOTE = (
    "A batch that fails is not published, now or later, until its samples are made again. A check that cannot run "
    "fails."
)
VersionEvent = dg.AssetCheckResult | dg.MaterializeResult[None]


def version_asset(
    dataset: str,
    gate: Gate = GATE,
    spec: DatasetSpec | None = None,
) -> dg.AssetsDefinition:
    """Return the asset [dataset, version] with the gate's checks. spec: see `publish_batches`."""
    key = dg.AssetKey([dataset, VERSION])
    samples_key = dg.AssetKey([dataset, SAMPLES])
    check_specs = list[dg.AssetCheckSpec]()
    for name in gate.names:
        description = f"{gate.text_of(name)} {_CHECK_NOTE}"
        check_spec = dg.AssetCheckSpec(name, asset=key, blocking=True, description=description)
        check_specs.append(check_spec)

    @dg.asset(
        key=key,
        deps=[samples_key],
        kinds={"webdataset", "parquet"},
        freshness_policy=freshness_policy(spec),
        check_specs=check_specs,
        description="An immutable version of the dataset, from batches that passed their checks.",
    )
    def version(context: dg.AssetExecutionContext, root: RootResource) -> Iterator[VersionEvent]:
        run_id = context.run.run_id
        with root.opened() as opened:
            # The steps of `publish_batches`: the checks are shown between them, even if the release stops.
            obey(opened, dataset)
            audits = audit_waiting(opened, dataset, run_id, gate)
            stop = release_stop_reason(audits)
            release = None
            try:
                if stop:
                    raise StageNotPublished(stop)
                publisher = Publisher(root=opened, dataset=dataset, run_id=run_id, gate=gate, spec=spec)
                release = publisher.publish_passed(audits)
            except StageNotPublished as error:
                raise dg.Failure(str(error), allow_retries=False) from error
            finally:
                # The checks only display results: the records are already written.
                yield from check_events(gate, audits, opened.url, stopping=release is None)
            shown = release_metadata(opened, release, spec)
            for published in release.versions:
                context.log_event(publication_observation(published))
            shown |= card_metadata(opened, release.version)
            yield dg.MaterializeResult(
                metadata=shown,
                data_version=dg.DataVersion(release.version.id),
            )

    return version
