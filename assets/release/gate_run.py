"""Audit a batch before its publication; the verdict is a record of the stage `version`.

`loader/dataset/publishing/publication_gate.py` refuses to publish the batch without it.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import loader
from loader.dataset.log.refs import resolve
from loader.dataset.log.state import State
from loader.dataset.publishing.publication_gate import publish_digest as change_digest
from loader.errors import InvalidName, ObjectNotFound, VersionNotFound, VersionRetired
from penstock.approvals import covering_approval, stops
from penstock.stages import StageRecord, Verdict, current_record, fingerprint

from ..checks import CheckResult, run_checks
from ..drift.compare import GateInputs
from ..gate_settings import CODE_VERSION, Gate
from ..pages.gate_page import baseline_examples, finding_examples, plot_findings, render, save
from ..pipeline.stages import VERSION, PipelineStage
from ..samples.assembly import candidate
from .gate_checks import GateChecks

if TYPE_CHECKING:
    import polars as pl

_ATTEMPT_COLUMNS = ("part", "row", "run_id", "raw_etag")
"""Columns that differ between attempts at the same batch."""
_REASON_CHARS = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """The verdict on a batch."""

    record: StageRecord
    """Stored verdict."""
    results: tuple[CheckResult, ...]
    """Results of all the gate's checks."""
    fresh: bool
    """True if this call created the verdict."""
    picture: str = ""
    """Plots of the findings as a Markdown image; "" unless fresh."""

    @property
    def passed(self) -> bool:
        return self.record.verdict == "published"


def audit_batch(
    root: loader.Root,
    samples: StageRecord,
    gate: Gate,
    run_id: str,
    *,
    once: bool = False,
) -> Audit:
    """Return the verdict on publishing a samples record; audits the batch unless a stored verdict still holds.

    A verdict holds for the same samples record and gate, unless a check could not run or a takedown changed the record.
    A passed one also needs the compared versions to be the newest, unless `once`: the caller audits again before it
    publishes.

    A check that raises fails the batch. A batch that failed, or whose parts were collected, must be cut again.

    Raises: ObjectNotFound and Corrupt for the batch's own tables; Conflict if a failing batch was published meanwhile;
    StoreError.
    """
    stage = PipelineStage(
        root.store,
        samples.dataset,
        VERSION,
        samples.partition,
        run_id=run_id,
        code_version=CODE_VERSION,
    )
    audit = _BatchAudit(
        root=root,
        samples=samples,
        gate=gate,
        stage=stage,
        fingerprint=fingerprint(samples.r, samples.fingerprint, gate.fingerprint()),
    )
    newest = stage.current()
    is_same_work = newest is not None and newest.fingerprint == audit.fingerprint
    if newest is not None and is_same_work and _still_holds(root, samples, newest, gate, once):
        results = [CheckResult.from_json(body) for body in newest.body["checks"]]
        return Audit(record=newest, results=tuple(results), fresh=False)
    try:
        return audit.run_checks()
    except ObjectNotFound:
        if not _is_aborted(root, samples):
            raise
    return audit.fail_collected()


@dataclass(frozen=True, slots=True, kw_only=True)
class _BatchAudit:
    """An audit of a samples record, which appends a new verdict."""

    root: loader.Root
    samples: StageRecord
    gate: Gate
    stage: PipelineStage
    """The stage `version` of the batch."""
    fingerprint: str
    """Fingerprint of the verdict: of the samples record and the gate."""

    def run_checks(self) -> Audit:
        """Run the gate's checks, and append the verdict. Raises: ObjectNotFound if the batch's parts were collected."""
        root = self.root
        samples = self.samples
        against = compared_versions(root, samples.dataset, self.gate)
        newest = None
        if against and against[0]:
            newest = root.open(against[0])
        table = candidate(root, samples)
        checks = GateChecks(root, samples, self.gate, table, newest)
        results, has_failed_to_run = run_checks(checks.by_name())
        broken = has_failed_to_run or checks.is_suite_broken
        picture = ""
        if checks.compared is not None:
            picture = plot_findings(checks.compared, results)

        stopping = [result for result in results if result.stops]
        reason = "; ".join(f"{result.name}: {result.explanation}" for result in stopping)
        content = content_digest(samples, table)
        approval = _approval(root, samples, stopping, content)
        verdict: Verdict = "published"
        if stopping and approval is None:
            verdict = "failed"
        body = _body(samples, results)
        body["broken"] = broken
        body["content"] = content
        body["against"] = against
        body["report"] = self._save_report(table, results, checks.compared, picture)
        body["approval"] = _overridden(approval, stopping)

        if verdict == "failed" and not broken:
            # Abort first: a crash after the verdict would leave a batch that can neither be published nor cut again.
            # A check that could not run is retried instead.
            why = f"the gate before a version: {reason}"
            root.abort(samples.body["txn"], why[:_REASON_CHARS])
        approved_by = ""
        if approval is not None:
            approved_by = approval.approved_by
        record = self.stage.append(
            fingerprint=self.fingerprint,
            verdict=verdict,
            reason=reason,  # an approved verdict keeps it
            approved_by=approved_by,
            reads=[samples],
            counts=_counts(results),
            body=body,
        )
        return Audit(
            record=record,
            results=results,
            fresh=True,
            picture=picture,
        )

    def fail_collected(self) -> Audit:
        """Append a verdict that fails every check: the batch was given up, and its parts are collected.

        The verdict is final: a failed one that is not `broken` is not repeated by a later release.
        """
        samples = self.samples
        txn = samples.body["txn"]
        given_up = self.root.state.txns[txn].reason
        reason = f"its parts were given up ({given_up}) and collected: cut it again"
        results = list[CheckResult]()
        for name in self.gate.names:
            result = CheckResult(
                name=name,
                passed=False,
                explanation=reason,
                approvable=False,
            )
            results.append(result)
        record = self.stage.append(
            fingerprint=self.fingerprint,
            verdict="failed",
            reason=reason,
            reads=[samples],
            counts=_counts(results),
            body=_body(samples, results),
        )
        return Audit(record=record, results=tuple(results), fresh=True)

    def _save_report(
        self,
        table: "pl.DataFrame",
        results: Sequence[CheckResult],
        compared: GateInputs | None,
        picture: str,
    ) -> str:
        """Save the batch's gate page; return its path. compared: inputs of the drift checks, if any ran."""
        root = self.root
        samples = self.samples
        baseline = None
        baseline_name = "none"
        if compared is not None and compared.baseline is not None:
            baseline = compared.baseline
            baseline_name = baseline.version.name
        verdict = "passed"
        stopping = [result.name for result in results if result.stops]
        if stopping:
            names = ", ".join(stopping)
            verdict = f"stopped by {names}"
        n_samples = samples.counts.get("samples", 0)
        n_landed = samples.counts.get("landed", 0)
        facts = {
            "batch": samples.partition,
            "verdict": verdict,
            "samples": f"{n_samples} of {n_landed} objects",
            "compared with": baseline_name,
            "samples record": samples.path,
            "run": self.stage.run_id,
        }
        shown = finding_examples(root, samples, table, results)
        before = []
        # Only this dataset's: a takedown deletes the gate pages of the sample's own dataset.
        if baseline is not None and baseline.version.dataset == samples.dataset:
            before = baseline_examples(root, baseline, shown)
        title = f"{samples.dataset} {samples.partition}"
        html = render(title, facts, results, picture, shown, before)
        return save(root.store, samples.dataset, samples.partition, html)


def _counts(results: Sequence[CheckResult]) -> dict[str, int]:
    """Return the counts of a verdict's record; a failed check that only warns is not counted as failed."""
    n_failed = sum(result.stops for result in results)
    return {"checks": len(results), "failed": n_failed}


def _body(samples: StageRecord, results: Sequence[CheckResult]) -> dict[str, Any]:
    """Return the body of a verdict without an audit's own values, which `run_checks` fills in."""
    return {
        "checks": [result.to_json() for result in results],
        "broken": False,  # True if a check could not run: the next release then audits the batch again
        "content": "",  # `content_digest`, for an approval of the same content
        "against": [],  # `compared_versions`
        "report": "",  # path of the gate page
        "approval": {},
        "publishes": samples_digest(samples),
    }


def _is_aborted(root: loader.Root, samples: StageRecord) -> bool:
    txn = samples.body["txn"]
    return root.state.txns[txn].status == "aborted"


def _still_holds(
    root: loader.Root,
    samples: StageRecord,
    verdict: StageRecord,
    gate: Gate,
    once: bool,
) -> bool:
    """Return whether a stored verdict on this samples record and gate need not be repeated. once: see `audit_batch`."""
    # First, without reading the log: stopped batches accumulate, and every release visits them.
    if verdict.verdict == "failed" and not verdict.body["broken"]:
        return True
    # Do not read given-up parts: they may be collected.
    if _is_aborted(root, samples):
        return True
    if verdict.body["broken"] or _is_stale_pass(verdict):
        return False
    is_unchanged = verdict.body.get("publishes") == samples_digest(samples)
    if not is_unchanged:  # a takedown rewrote the record
        return False
    if once:
        return True
    against: object = verdict.body.get("against")
    return against == compared_versions(root, verdict.dataset, gate)


def _is_stale_pass(verdict: StageRecord) -> bool:
    """Return whether a check stops a batch that passed without approval: older releases stored no severities."""
    if verdict.body.get("approval"):
        return False
    return any(stops(check) for check in verdict.body["checks"])


def compared_versions(
    root: loader.Root,
    dataset: str,
    gate: Gate,
) -> list[str]:
    """Return the ids of the versions that a gate compares with now; [] for a gate that compares with none.

    In order: the dataset's newest version, the gate's baseline, its protected versions. "" stands for a missing one.
    """
    if not gate.checks and not gate.thresholds:
        return []
    state = root.state
    newest = state.newest(dataset)
    newest_id = ""
    if newest is not None:
        newest_id = newest.id
    ids = [newest_id]
    if gate.baseline:
        ids.append(_version_id(state, gate.baseline))
    ids += [_version_id(state, ref) for ref in gate.protected]
    return ids


def _version_id(state: State, ref: str) -> str:
    """Return the id that a version's name stands for now; "" if it names none."""
    try:
        return resolve(state, ref).id
    except (VersionNotFound, VersionRetired, InvalidName):
        return ""


def overtaken(
    root: loader.Root,
    samples: StageRecord,
    verdict: StageRecord,
    gate: Gate,
) -> bool:
    """Return whether a passed verdict no longer holds or is not the newest. Costs a listing and two GETs."""
    newest = current_record(root.store, samples.dataset, VERSION, samples.partition)
    if newest is None or newest.r != verdict.r:
        return True
    return not _still_holds(root, samples, verdict, gate, once=False)


def samples_digest(samples: StageRecord) -> str:
    """Return the SHA-256, in hex, of everything that a samples record adds and leaves out."""
    body = samples.body
    parts = [loader.Part.from_json(part) for part in body["parts"]]
    supersede = body.get("supersede") or {}
    return change_digest(parts, body["exclude"], supersede, body.get("foreign"))


def content_digest(samples: StageRecord, table: "pl.DataFrame") -> str:
    """Return the SHA-256, in hex, of a batch's shards and rows but for columns that name the attempt. O(rows)."""
    # Columns and rows in order: a repeated cut may write them in another one.
    columns = [name for name in sorted(table.columns) if name not in _ATTEMPT_COLUMNS]
    rows = table.select(columns)
    row_lines = ""
    if len(rows):
        row_lines = rows.sort("key").write_ndjson()
    rows_digest = hashlib.sha256(row_lines.encode())
    shards = []
    for part in samples.body["parts"]:
        hashes = [[shard["group"], shard["sha256"]] for shard in part["shards"]]
        shards.append([part["n_rows"], sorted(hashes)])
    return fingerprint(rows_digest.hexdigest(), shards)


def _approval(
    root: loader.Root,
    samples: StageRecord,
    stopping: Sequence[CheckResult],
    content: str,
) -> StageRecord | None:
    """Return the approval of all checks that stop this content, or None."""
    if not stopping:
        return None
    if not all(result.approvable for result in stopping):
        return None
    names = [result.name for result in stopping]
    return covering_approval(root.store, samples.dataset, samples.partition, content, names)


def _overridden(
    approval: StageRecord | None,
    stopping: Sequence[CheckResult],
) -> dict[str, Any]:
    """Return the verdict's note of an approval: who approved which failed checks; {} without one."""
    if approval is None:
        return {}
    return {
        "by": approval.approved_by,
        "reason": approval.reason,
        "record": approval.path,
        "checks": {result.name: result.explanation for result in stopping},
    }
