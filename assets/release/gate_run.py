"""Audit a batch before its publication; the verdict is a record of the stage `version`.

`loader/dataset/publication_gate.py` refuses to publish the batch without it.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import loader
from loader.dataset.log.refs import resolve
from loader.dataset.log.state import State
from loader.dataset.publication_gate import digest_of as change_digest
from loader.errors import InvalidName, ObjectNotFound, VersionNotFound, VersionRetired
from penstock.approvals import covering_approval, stops
from penstock.stages import StageRecord, current_record, fingerprint

from ..assembly import candidate
from ..checks import CheckReport, CheckResult, run_checks, run_expectations
from ..drift import blank
from ..drift.compare import DRIFT_CHECKS, BatchFacts, GateInputs, baseline_of, facts_of
from ..drift.page import before_of, plotted, render, save, shown_of
from ..gate_settings import CODE_VERSION, DEFAULTS, EXPECTATIONS, SUITE, Gate
from ..stages import VERSION, PipelineStage

if TYPE_CHECKING:
    import polars as pl

_OF_THE_ATTEMPT = ("part", "row", "run_id", "raw_etag")


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
    root: loader.Root, samples: StageRecord, gate: Gate, run_id: str, *, once: bool = False
) -> Audit:
    """Return the verdict on publishing a samples record; audits the batch unless a stored verdict still holds.

    A verdict holds for the same samples record and gate, unless a check could not run or a takedown changed the record.
    A passed one also needs the compared versions to be the newest, unless `once`: the caller audits again before it
    publishes.

    A check that raises fails the batch. A batch that failed, or whose parts were collected, must be cut again.

    Raises: ObjectNotFound and Corrupt for the batch's own tables; Conflict if a failing batch was published meanwhile;
    StoreError.
    """
    verdict_fingerprint = fingerprint(samples.r, samples.fingerprint, gate.fingerprint())
    stage = PipelineStage(
        root.store, samples.dataset, VERSION, samples.partition, run_id=run_id, code_version=CODE_VERSION
    )
    newest = stage.current()
    if (
        newest is not None
        and newest.fingerprint == verdict_fingerprint
        and _stands(root, samples, newest, gate, once)
    ):
        results = tuple(CheckResult.from_json(body) for body in newest.body["checks"])
        return Audit(record=newest, results=results, fresh=False)
    try:
        return _judged(root, samples, gate, stage, verdict_fingerprint)
    except ObjectNotFound:
        if not _is_given_up(root, samples):
            raise
    return _collected(root, samples, gate, stage, verdict_fingerprint)


def _judged(
    root: loader.Root, samples: StageRecord, gate: Gate, stage: PipelineStage, verdict_fingerprint: str
) -> Audit:
    against = compared_with(root, samples.dataset, gate)
    table = candidate(root, samples)
    results, broken, compared = _run(root, samples, gate, table, against)
    stopping = [result for result in results if result.stops]
    reason = "; ".join(f"{result.name}: {result.explanation}" for result in stopping)
    content = content_of(samples, table)
    approval = _approval(root, samples, stopping, content)
    passed = not stopping or approval is not None
    picture = ""
    if compared is not None:
        picture = plotted(compared, results)
    body = _body(samples, results) | {
        "broken": broken,
        "content": content,
        "against": against,
        "report": _report(root, samples, table, results, compared, picture, stage.run_id),
        "approval": _overridden(approval, stopping),
    }
    if not passed and not broken:
        # Abort first: a crash after the verdict would leave a batch that can neither be published nor cut again.
        # A check that could not run is retried instead.
        root.abort(samples.body["txn"], f"the gate before a version: {reason}"[:500])
    record = stage.append(
        fingerprint=verdict_fingerprint,
        verdict="published" if passed else "failed",  # an approved verdict keeps its reason
        reason=reason,
        approved_by="" if approval is None else approval.approved_by,
        reads=[samples],
        counts=_counts(results),
        body=body,
    )
    return Audit(record=record, results=results, fresh=True, picture=picture)


def _collected(
    root: loader.Root, samples: StageRecord, gate: Gate, stage: PipelineStage, verdict_fingerprint: str
) -> Audit:
    given_up = root.state.txns[samples.body["txn"]].reason
    reason = f"its parts were given up ({given_up}) and collected: cut it again"
    results = tuple(
        CheckResult(name=name, passed=False, explanation=reason, approvable=False) for name in gate.names
    )
    record = stage.append(
        fingerprint=verdict_fingerprint,
        verdict="failed",
        reason=reason,
        reads=[samples],
        counts=_counts(results),
        body=_body(samples, results),
    )
    return Audit(record=record, results=results, fresh=True)


def _counts(results: Sequence[CheckResult]) -> dict[str, int]:
    return {"checks": len(results), "failed": sum(result.stops for result in results)}


def _body(samples: StageRecord, results: Sequence[CheckResult]) -> dict[str, Any]:
    """Return the body of a verdict on a batch that could not be read."""
    return {
        "checks": [result.to_json() for result in results],
        "broken": False,
        "content": "",
        "against": [],
        "report": "",
        "approval": {},
        "publishes": digest_of(samples),
    }


def _is_given_up(root: loader.Root, samples: StageRecord) -> bool:
    return root.state.txns[samples.body["txn"]].status == "aborted"


def _stands(root: loader.Root, samples: StageRecord, verdict: StageRecord, gate: Gate, once: bool) -> bool:
    # First, without reading the log: stopped batches accumulate, and every release visits them.
    if verdict.verdict == "failed" and not verdict.body["broken"]:
        return True
    # Do not read given-up parts: they may be collected.
    if _is_given_up(root, samples):
        return True
    if verdict.body["broken"] or _is_open(verdict):
        return False
    same = verdict.body.get("publishes") == digest_of(samples)
    if not same or once:
        return same
    against: object = verdict.body.get("against")
    return against == compared_with(root, verdict.dataset, gate)


def _is_open(verdict: StageRecord) -> bool:
    # Published though a check stops it: older releases stored no severities.
    if verdict.body.get("approval"):
        return False
    return any(stops(check) for check in verdict.body["checks"])


def compared_with(root: loader.Root, dataset: str, gate: Gate) -> list[str]:
    """Return the ids of the versions that a gate compares with now, newest first, "" for a missing one."""
    if not gate.checks and not gate.thresholds:
        return []
    state = root.state
    newest = state.newest(dataset)
    ids = ["" if newest is None else newest.id]
    if gate.baseline:
        ids.append(_id_of(state, gate.baseline))
    ids += [_id_of(state, ref) for ref in gate.protected]
    return ids


def _id_of(state: State, ref: str) -> str:
    try:
        return resolve(state, ref).id
    except (VersionNotFound, VersionRetired, InvalidName):
        return ""


def overtaken(root: loader.Root, samples: StageRecord, verdict: StageRecord, gate: Gate) -> bool:
    """Return whether a passed verdict no longer holds or is not the newest. Costs a listing and two GETs."""
    newest = current_record(root.store, samples.dataset, VERSION, samples.partition)
    if newest is None or newest.r != verdict.r:
        return True
    return not _stands(root, samples, verdict, gate, once=False)


def digest_of(samples: StageRecord) -> str:
    """Return the SHA-256, in hex, of everything that a samples record adds and leaves out."""
    parts = [loader.Part.from_json(body) for body in samples.body["parts"]]
    return change_digest(
        parts, samples.body["exclude"], samples.body.get("supersede") or {}, samples.body.get("foreign")
    )


def content_of(samples: StageRecord, table: "pl.DataFrame") -> str:
    """Return the SHA-256, in hex, of a batch's shards and rows but for columns that name the attempt. O(rows)."""
    rows = table.drop([name for name in _OF_THE_ATTEMPT if name in table.columns])
    # Columns and rows in order: a repeated cut may write them in another one.
    rows = rows.select(sorted(rows.columns))
    row_lines = ""
    if len(rows):
        row_lines = rows.sort("key").write_ndjson()
    shards = []
    for part in samples.body["parts"]:
        hashes = sorted([shard["group"], shard["sha256"]] for shard in part["shards"])
        shards.append([part["n_rows"], hashes])
    return fingerprint(hashlib.sha256(row_lines.encode()).hexdigest(), shards)


def _approval(
    root: loader.Root, samples: StageRecord, stopping: Sequence[CheckResult], content: str
) -> StageRecord | None:
    if not stopping or not all(result.approvable for result in stopping):
        return None
    names = [result.name for result in stopping]
    return covering_approval(root.store, samples.dataset, samples.partition, content, names)


def _overridden(approval: StageRecord | None, stopping: Sequence[CheckResult]) -> dict[str, Any]:
    if approval is None:
        return {}
    return {
        "by": approval.approved_by,
        "reason": approval.reason,
        "record": approval.path,
        "checks": {result.name: result.explanation for result in stopping},
    }


def _run(
    root: loader.Root, samples: StageRecord, gate: Gate, table: "pl.DataFrame", against: Sequence[str]
) -> tuple[tuple[CheckResult, ...], bool, GateInputs | None]:
    """Return the results, whether a check could not run, and the inputs of the drift checks if they ran."""
    version = None
    if against and against[0]:
        version = root.open(against[0])
    baseline = None
    if version and gate.checks:  # a version without live samples is none to compare with
        baseline = version.samples()
    reports: list[CheckReport] = []
    compared: list[GateInputs] = []
    # Decodes samples, so only a check that needs the facts computes them, and inside `run_checks`: an error there
    # fails the check, not the run.
    batch_facts = cache(partial(facts_of, root.store, samples, table))

    def suite() -> CheckResult:
        report = run_expectations(table, gate.suite)
        reports.append(report)
        # No person may approve a sample that violates what every dataset needs.
        broken = any(item in report.not_passed for item in SUITE)
        return replace(report.as_check(), approvable=not broken and not report.broken)

    def drifted(check: Callable[[GateInputs], CheckResult]) -> CheckResult:
        if not compared:
            compared.append(_compared(root, gate, batch_facts(), version))
        return check(compared[0])

    named: dict[str, Callable[[], CheckResult]] = {EXPECTATIONS: suite}
    limit = gate.blank
    if limit is not None:
        named[blank.NAME] = lambda: blank.blank_media(table, batch_facts().media, limit)
    if gate.thresholds:
        for name, check in DRIFT_CHECKS.items():
            named[name] = partial(drifted, check)
    for name, own_check in gate.checks.items():
        named[name] = partial(own_check, table, baseline)
    results, broken = run_checks(named)
    unevaluated = broken or any(report.broken for report in reports)
    return results, unevaluated, compared[0] if compared else None


def _report(
    root: loader.Root,
    samples: StageRecord,
    table: "pl.DataFrame",
    results: Sequence[CheckResult],
    compared: GateInputs | None,
    picture: str,
    run_id: str,
) -> str:
    baseline = None if compared is None else compared.baseline
    verdict = "passed"
    stopping = [result.name for result in results if result.stops]
    if stopping:
        verdict = f"stopped by {', '.join(stopping)}"
    n_samples = samples.counts.get("samples", 0)
    n_landed = samples.counts.get("landed", 0)
    facts = {
        "batch": samples.partition,
        "verdict": verdict,
        "samples": f"{n_samples} of {n_landed} objects",
        "compared with": "none" if baseline is None else baseline.version.name,
        "samples record": samples.path,
        "run": run_id,
    }
    shown = shown_of(root, samples, table, results)
    before = []
    # Only this dataset's: a takedown deletes the gate pages of the sample's own dataset.
    if baseline is not None and baseline.version.dataset == samples.dataset:
        before = before_of(root, baseline, shown)
    html = render(f"{samples.dataset} {samples.partition}", facts, results, picture, shown, before)
    return save(root.store, samples.dataset, samples.partition, html)


def _compared(root: loader.Root, gate: Gate, now: BatchFacts, newest: loader.Version | None) -> GateInputs:
    against = newest
    if gate.baseline:
        against = root.open(gate.baseline)
    return GateInputs(
        now=now,
        baseline=baseline_of(root, against) if against else None,
        newest=newest,
        protected=tuple(root.open(ref) for ref in gate.protected),
        thresholds=gate.thresholds or DEFAULTS,
    )
