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
        store=root.store,
        dataset=samples.dataset,
        name=VERSION,
        partition=samples.partition,
        run_id=run_id,
        code_version=CODE_VERSION,
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
    return same and (once or verdict.body.get("against") == compared_with(root, verdict.dataset, gate))


def _is_open(verdict: StageRecord) -> bool:
    # Older releases stored no severities.
    return not verdict.body.get("approval") and any(stops(one) for one in verdict.body["checks"])


def compared_with(root: loader.Root, dataset: str, gate: Gate) -> list[str]:
    """Return the ids of the versions that a gate compares with now, newest first, "" for a missing one."""
    if not gate.checks and not gate.thresholds:
        return []
    state = root.state
    newest = state.newest(dataset)
    refs = [*([gate.baseline] if gate.baseline else []), *gate.protected]
    return [newest.id if newest else "", *(_id_of(state, ref) for ref in refs)]


def _id_of(state: State, ref: str) -> str:
    try:
        return resolve(state, ref).id
    except (VersionNotFound, VersionRetired, InvalidName):
        return ""


def overtaken(root: loader.Root, samples: StageRecord, verdict: StageRecord, gate: Gate) -> bool:
    """Return whether a passed verdict no longer holds or is not the newest. Costs a listing and two GETs."""
    newest = current_record(root.store, samples.dataset, VERSION, samples.partition)
    return newest is None or newest.r != verdict.r or not _stands(root, samples, verdict, gate, once=False)


def digest_of(samples: StageRecord) -> str:
    """Return the SHA-256, in hex, of everything that a samples record adds and leaves out."""
    parts = [loader.Part.from_json(body) for body in samples.body["parts"]]
    return change_digest(
        parts, samples.body["exclude"], samples.body.get("supersede") or {}, samples.body.get("foreign")
    )


def content_of(samples: StageRecord, table: "pl.DataFrame") -> str:
    """Return the SHA-256, in hex, of a batch's shards and rows but for columns that name the attempt. O(rows)."""
    rows = table.drop([name for name in _OF_THE_ATTEMPT if name in table.columns])
    row_lines = rows.select(sorted(rows.columns)).sort("key").write_ndjson() if len(rows) else ""
    shards = [
        [part["n_rows"], sorted([shard["group"], shard["sha256"]] for shard in part["shards"])]
        for part in samples.body["parts"]
    ]
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
    version = root.open(against[0]) if against and against[0] else None
    baseline = version.samples() if version and gate.checks else None
    reports: list[CheckReport] = []
    compared: list[GateInputs] = []
    batch_facts = cache(partial(facts_of, root.store, samples, table))

    def suite() -> CheckResult:
        reports.append(run_expectations(table, gate.suite))
        broken = {item for item in SUITE if item in reports[0].not_passed}
        return replace(reports[0].as_check(), approvable=not broken and not reports[0].broken)

    def drifted(check: Callable[[GateInputs], CheckResult]) -> CheckResult:
        if not compared:
            compared.append(_compared(root, gate, batch_facts(), version))
        return check(compared[0])

    named: dict[str, Callable[[], CheckResult]] = {EXPECTATIONS: suite}
    if (limit := gate.blank) is not None:
        named[blank.NAME] = lambda: blank.blank_media(table, batch_facts().media, limit)
    if gate.thresholds:
        named |= {name: partial(drifted, check) for name, check in DRIFT_CHECKS.items()}
    named |= {name: partial(check, table, baseline) for name, check in gate.checks.items()}
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
    baseline = compared.baseline.version.name if compared and compared.baseline else "none"
    stopping = [one.name for one in results if one.stops]
    facts = {
        "batch": samples.partition,
        "verdict": f"stopped by {', '.join(stopping)}" if stopping else "passed",
        "samples": f"{samples.counts.get('samples', 0)} of {samples.counts.get('landed', 0)} objects",
        "compared with": baseline,
        "samples record": samples.path,
        "run": run_id,
    }
    shown = shown_of(root, samples, table, results)
    base = compared.baseline if compared else None
    # Only this dataset's: a takedown deletes the gate pages of the sample's own dataset.
    before = before_of(root, base, shown) if base and base.version.dataset == samples.dataset else []
    html = render(f"{samples.dataset} {samples.partition}", facts, results, picture, shown, before)
    return save(root.store, samples.dataset, samples.partition, html)


def _compared(root: loader.Root, gate: Gate, now: BatchFacts, newest: loader.Version | None) -> GateInputs:
    against = root.open(gate.baseline) if gate.baseline else newest
    return GateInputs(
        now=now,
        baseline=baseline_of(root, against) if against else None,
        newest=newest,
        protected=tuple(root.open(ref) for ref in gate.protected),
        thresholds=gate.thresholds or DEFAULTS,
    )
