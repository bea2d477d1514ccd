"""Audit a batch before its publication; the verdict is a record of the stage `version`.

`loader/dataset/publication_gate.py` refuses to publish the batch without it.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import loader
from loader.dataset.log.refs import resolve
from loader.dataset.log.state import State
from loader.dataset.publication_gate import digest_of as change_digest
from loader.errors import InvalidName, ObjectNotFound, VersionNotFound, VersionRetired
from penstock.approvals import covering_approval, stops
from penstock.stages import StageRecord, Verdict, current_record, fingerprint

from ..assembly import candidate
from ..checks import CheckResult, run_checks, run_expectations
from ..drift import blank
from ..drift.compare import DRIFT_CHECKS, BatchFacts, GateInputs, baseline_of, facts_of
from ..drift.page import before_of, plotted, render, save, shown_of
from ..gate_settings import CODE_VERSION, DEFAULTS, EXPECTATIONS, SUITE, Gate
from ..stages import VERSION, PipelineStage

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
    store = root.store
    batch = samples.partition
    stage = PipelineStage(store, samples.dataset, VERSION, batch, run_id=run_id, code_version=CODE_VERSION)
    verdict_fingerprint = fingerprint(samples.r, samples.fingerprint, gate.fingerprint())
    newest = stage.current()
    if (
        newest is not None
        and newest.fingerprint == verdict_fingerprint
        and _still_holds(root, samples, newest, gate, once)
    ):
        results = [CheckResult.from_json(body) for body in newest.body["checks"]]
        return Audit(record=newest, results=tuple(results), fresh=False)
    try:
        return _judge(root, samples, gate, stage, verdict_fingerprint)
    except ObjectNotFound:
        if not _is_given_up(root, samples):
            raise
    return _fail_collected(root, samples, gate, stage, verdict_fingerprint)


def _judge(
    root: loader.Root,
    samples: StageRecord,
    gate: Gate,
    stage: PipelineStage,
    verdict_fingerprint: str,
) -> Audit:
    against = compared_with(root, samples.dataset, gate)
    table = candidate(root, samples)
    checks = _GateChecks(root, samples, gate, table, against)
    results, has_failed_to_run = run_checks(checks.by_name())
    broken = has_failed_to_run or checks.is_suite_broken
    compared = checks.compared
    picture = ""
    if compared is not None:
        picture = plotted(compared, results)

    stopping = [result for result in results if result.stops]
    reason = "; ".join(f"{result.name}: {result.explanation}" for result in stopping)
    content = content_of(samples, table)
    approval = _approval(root, samples, stopping, content)
    verdict: Verdict = "published"  # an approved one keeps its reason
    if stopping and approval is None:
        verdict = "failed"
    approved_by = ""
    if approval is not None:
        approved_by = approval.approved_by
    body = _body(samples, results)
    body["broken"] = broken
    body["content"] = content
    body["against"] = against
    body["report"] = _report(root, samples, table, results, compared, picture, stage.run_id)
    body["approval"] = _overridden(approval, stopping)

    if verdict == "failed" and not broken:
        # Abort first: a crash after the verdict would leave a batch that can neither be published nor cut again.
        # A check that could not run is retried instead.
        why = f"the gate before a version: {reason}"
        root.abort(samples.body["txn"], why[:_REASON_CHARS])
    record = stage.append(
        fingerprint=verdict_fingerprint,
        verdict=verdict,
        reason=reason,
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


def _fail_collected(
    root: loader.Root,
    samples: StageRecord,
    gate: Gate,
    stage: PipelineStage,
    verdict_fingerprint: str,
) -> Audit:
    txn = samples.body["txn"]
    given_up = root.state.txns[txn].reason
    reason = f"its parts were given up ({given_up}) and collected: cut it again"
    results = list[CheckResult]()
    for name in gate.names:
        result = CheckResult(name=name, passed=False, explanation=reason, approvable=False)
        results.append(result)
    record = stage.append(
        fingerprint=verdict_fingerprint,
        verdict="failed",
        reason=reason,
        reads=[samples],
        counts=_counts(results),
        body=_body(samples, results),
    )
    return Audit(record=record, results=tuple(results), fresh=True)


def _counts(results: Sequence[CheckResult]) -> dict[str, int]:
    n_failed = sum(result.stops for result in results)
    return {"checks": len(results), "failed": n_failed}


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
    txn = samples.body["txn"]
    return root.state.txns[txn].status == "aborted"


def _still_holds(
    root: loader.Root,
    samples: StageRecord,
    verdict: StageRecord,
    gate: Gate,
    once: bool,
) -> bool:
    # First, without reading the log: stopped batches accumulate, and every release visits them.
    if verdict.verdict == "failed" and not verdict.body["broken"]:
        return True
    # Do not read given-up parts: they may be collected.
    if _is_given_up(root, samples):
        return True
    if verdict.body["broken"] or _passed_despite_failure(verdict):
        return False
    same = verdict.body.get("publishes") == digest_of(samples)
    if not same or once:
        return same
    against: object = verdict.body.get("against")
    return against == compared_with(root, verdict.dataset, gate)


def _passed_despite_failure(verdict: StageRecord) -> bool:
    # Published though a check stops it: older releases stored no severities.
    if verdict.body.get("approval"):
        return False
    return any(stops(check) for check in verdict.body["checks"])


def compared_with(
    root: loader.Root,
    dataset: str,
    gate: Gate,
) -> list[str]:
    """Return the ids of the versions that a gate compares with now, newest first, "" for a missing one."""
    if not gate.checks and not gate.thresholds:
        return []
    state = root.state
    newest = state.newest(dataset)
    newest_id = ""
    if newest is not None:
        newest_id = newest.id
    ids = [newest_id]
    if gate.baseline:
        ids.append(_id_of(state, gate.baseline))
    ids += [_id_of(state, ref) for ref in gate.protected]
    return ids


def _id_of(state: State, ref: str) -> str:
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


def digest_of(samples: StageRecord) -> str:
    """Return the SHA-256, in hex, of everything that a samples record adds and leaves out."""
    body = samples.body
    parts = [loader.Part.from_json(part) for part in body["parts"]]
    supersede = body.get("supersede") or {}
    return change_digest(parts, body["exclude"], supersede, body.get("foreign"))


def content_of(samples: StageRecord, table: "pl.DataFrame") -> str:
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
    if approval is None:
        return {}
    return {
        "by": approval.approved_by,
        "reason": approval.reason,
        "record": approval.path,
        "checks": {result.name: result.explanation for result in stopping},
    }


class _GateChecks:
    """The gate's checks of one batch. The first check that needs a value computes it for all."""

    def __init__(
        self,
        root: loader.Root,
        samples: StageRecord,
        gate: Gate,
        table: "pl.DataFrame",
        against: Sequence[str],
    ) -> None:
        """against: from `compared_with`."""
        self._root = root
        self._samples = samples
        self._gate = gate
        self._table = table
        self._version: loader.Version | None = None
        if against and against[0]:
            self._version = root.open(against[0])
        self._baseline: pl.LazyFrame | None = None
        if self._version and gate.checks:  # a version without live samples is none to compare with
            self._baseline = self._version.samples()
        self.compared: GateInputs | None = None
        """Inputs of the drift checks, if any ran."""
        self.is_suite_broken = False
        """True if an expectation could not be evaluated."""

    def by_name(self) -> dict[str, Callable[[], CheckResult]]:
        """Return name -> check, in the order in which they run."""
        gate = self._gate
        checks: dict[str, Callable[[], CheckResult]] = {}
        checks[EXPECTATIONS] = self._suite
        if gate.blank is not None:
            checks[blank.NAME] = partial(self._blank, gate.blank)
        if gate.thresholds:
            for name, drift_check in DRIFT_CHECKS.items():
                checks[name] = partial(self._drifted, drift_check)
        for name, own_check in gate.checks.items():
            checks[name] = partial(own_check, self._table, self._baseline)
        return checks

    def _suite(self) -> CheckResult:
        report = run_expectations(self._table, self._gate.suite)
        self.is_suite_broken = report.broken
        # No person may approve a sample that violates what every dataset needs.
        is_unsafe = any(item in report.not_passed for item in SUITE)
        approvable = not is_unsafe and not report.broken
        return replace(report.as_check(), approvable=approvable)

    def _blank(self, limit: float) -> CheckResult:
        return blank.blank_media(self._table, self._facts.media, limit)

    def _drifted(self, check: Callable[[GateInputs], CheckResult]) -> CheckResult:
        if self.compared is None:
            self.compared = _compared(self._root, self._gate, self._facts, self._version)
        return check(self.compared)

    @cached_property
    def _facts(self) -> BatchFacts:
        # Decodes samples, so only a check that needs the facts computes them, and inside `run_checks`: an error there
        # fails the check, not the run.
        return facts_of(self._root.store, self._samples, self._table)


def _report(
    root: loader.Root,
    samples: StageRecord,
    table: "pl.DataFrame",
    results: Sequence[CheckResult],
    compared: GateInputs | None,
    picture: str,
    run_id: str,
) -> str:
    """Save the batch's gate page; return its path."""
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
        "run": run_id,
    }
    shown = shown_of(root, samples, table, results)
    before = []
    # Only this dataset's: a takedown deletes the gate pages of the sample's own dataset.
    if baseline is not None and baseline.version.dataset == samples.dataset:
        before = before_of(root, baseline, shown)
    title = f"{samples.dataset} {samples.partition}"
    html = render(title, facts, results, picture, shown, before)
    return save(root.store, samples.dataset, samples.partition, html)


def _compared(
    root: loader.Root,
    gate: Gate,
    now: BatchFacts,
    newest: loader.Version | None,
) -> GateInputs:
    against = newest
    if gate.baseline:
        against = root.open(gate.baseline)
    baseline = None
    if against:  # a version without live samples is none to compare with
        baseline = baseline_of(root, against)
    protected = [root.open(ref) for ref in gate.protected]
    return GateInputs(
        now=now,
        baseline=baseline,
        newest=newest,
        protected=tuple(protected),
        thresholds=gate.thresholds or DEFAULTS,
    )
