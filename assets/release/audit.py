"""The last audit: the rows that a batch would add to a version are checked before it is published.

The verdict lies under the stage `version` with the batch's key. It is for exactly one samples record, one gate, and the
versions that the batch was compared with. So a batch is audited again when its samples were cut again, or its
expectations changed, or it passed before another batch was published.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import loader
from loader.dataset.log.refs import resolve
from loader.dataset.log.state import State
from loader.dataset.publishing import gate as gated
from loader.errors import InvalidName, ObjectNotFound, VersionNotFound, VersionRetired
from penstock.approve import covering, stops
from penstock.stages import StageRecord, Upstream, append_record, current_record, fingerprint

from ..checks import CheckReport, CheckResult, run_checks, run_expectations
from ..drift.compare import DRIFT_CHECKS, GateInputs
from ..drift.facts import baseline_of, facts_of
from ..drift.page import before_of, plotted, render, save, shown_of
from ..gate_checks import CODE_VERSION, DEFAULTS, EXPECTATIONS, SUITE, Gate
from ..samples.candidate import candidate
from ..stages import VERSION

if TYPE_CHECKING:
    import polars as pl

_OF_THE_ATTEMPT = ("part", "row", "run_id", "raw_etag")


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """A verdict on a batch."""

    record: StageRecord
    """The verdict as it is stored."""
    results: tuple[CheckResult, ...]
    """Results of every check."""
    fresh: bool
    """True where it was made now, not found."""
    picture: str = ""
    """Before and after of the findings as a Markdown image, where it is fresh; "" otherwise."""

    @property
    def passed(self) -> bool:
        return self.record.verdict == "published"


def audit_batch(
    root: loader.Root, samples: StageRecord, gate: Gate, run_id: str, *, once: bool = False
) -> Audit:
    """Return the verdict on publishing a samples record; made now, unless it stands already.

    A verdict stands when it is of this samples record under this gate, and no check was broken. A passed one also needs
    the versions that it was compared with to be the newest. And the record has to say what it said: a takedown may have
    changed it. once: it stands whatever version came since, for callers that ask again before they publish.

    An error in a check is a failed verdict, written down: nothing is published because a check did not run. A batch
    that failed a check is fenced: it has to be cut again, under whatever gate. So has a batch that was given up and
    collected before a gate looked at it.

    Raises: ObjectNotFound, Corrupt for the batch's own tables; Conflict where somebody published a batch that fails
    now; StoreError.
    """
    wanted = fingerprint(samples.r, samples.fingerprint, gate.fingerprint())
    newest = current_record(root.store, samples.dataset, VERSION, samples.partition)
    if newest is not None and newest.fingerprint == wanted and _stands(root, samples, newest, gate, once):
        results = tuple(CheckResult.from_json(body) for body in newest.body["checks"])
        return Audit(record=newest, results=results, fresh=False)
    try:
        return _judged(root, samples, gate, run_id, wanted)
    except ObjectNotFound:
        if not _is_given_up(root, samples):
            raise
    return _collected(root, samples, gate, run_id, wanted)


def _judged(root: loader.Root, samples: StageRecord, gate: Gate, run_id: str, wanted: str) -> Audit:
    """Return the verdict, made now and written. wanted: its fingerprint. Raises: as `audit_batch`."""
    against = compared_with(root, samples.dataset, gate)
    table = candidate(root, samples)
    results, broken, compared = _run(root, samples, gate, table, against)
    stopping = [result for result in results if result.stops]
    reason = "; ".join(f"{result.name}: {result.explanation}" for result in stopping)
    content = content_of(samples, table)
    approval = _approval(root, samples, stopping, content)
    passed = not stopping or approval is not None
    picture = plotted(compared, results) if compared else ""
    told = {
        "broken": broken,
        "content": content,
        "against": against,
        "report": _report(root, samples, table, results, compared, picture, run_id),
        "approval": _overridden(approval, stopping),
    }
    record = _verdict(samples, results, reason, run_id, wanted, **told)
    record = replace(record, approved_by=approval.approved_by if approval else "")
    if not passed and not broken:
        # Nobody publishes these parts any more. First: with the verdict alone, whoever dies here leaves a batch that
        # nobody may cut again. A check that could not run is tried again instead.
        root.abort(samples.body["txn"], f"the gate before a version: {reason}"[:500])
    record = append_record(root.store, replace(record, verdict="published" if passed else "failed"))
    return Audit(record=record, results=results, fresh=True, picture=picture)


def _collected(root: loader.Root, samples: StageRecord, gate: Gate, run_id: str, wanted: str) -> Audit:
    """Return the verdict on a given-up batch of which a collector took something."""
    reason = (
        f"its parts were given up ({root.state.txns[samples.body['txn']].reason}) and collected: cut it again"
    )
    results = tuple(
        CheckResult(name=name, passed=False, explanation=reason, approvable=False) for name in gate.names
    )
    record = append_record(root.store, _verdict(samples, results, reason, run_id, wanted))
    return Audit(record=record, results=results, fresh=True)


def _verdict(
    samples: StageRecord,
    results: Sequence[CheckResult],
    reason: str,
    run_id: str,
    wanted: str,
    **told: Any,
) -> StageRecord:
    """Return a failed verdict. told: more of its body; without, it was compared with nothing."""
    return StageRecord(
        dataset=samples.dataset,
        stage=VERSION,
        partition=samples.partition,
        verdict="failed",
        reason=reason,
        run_id=run_id,
        code_version=CODE_VERSION,
        fingerprint=wanted,
        upstream=(Upstream(stage=samples.stage, partition=samples.partition, r=samples.r),),
        counts={"checks": len(results), "failed": sum(result.stops for result in results)},
        body={
            "checks": [result.to_json() for result in results],
            "broken": False,
            "content": "",
            "against": [],
            "report": "",
            "approval": {},
            "publishes": digest_of(samples),
            **told,
        },
    )


def _is_given_up(root: loader.Root, samples: StageRecord) -> bool:
    return root.state.txns[samples.body["txn"]].status == "aborted"


def _stands(root: loader.Root, samples: StageRecord, verdict: StageRecord, gate: Gate, once: bool) -> bool:
    """Return whether a verdict on this samples record under this gate stands."""
    # Asked first, and of the log nothing: batches that were stopped pile up, and every release comes by them.
    if verdict.verdict == "failed" and not verdict.body["broken"]:
        return True
    # Parts that were given up are not looked at again: a collector may have taken them.
    if _is_given_up(root, samples):
        return True
    if verdict.body["broken"] or _is_open(verdict):
        return False
    same = verdict.body.get("publishes") == digest_of(samples)
    return same and (once or verdict.body.get("against") == compared_with(root, verdict.dataset, gate))


def _is_open(verdict: StageRecord) -> bool:
    """Return whether it let something pass that stops a batch, and nobody approved it.

    Earlier releases did so where a check had a severity that they did not know.
    """
    return not verdict.body.get("approval") and any(stops(one) for one in verdict.body["checks"])


def compared_with(root: loader.Root, dataset: str, gate: Gate) -> list[str]:
    """Return ids of the versions that a gate compares a batch with now, the dataset's newest first.

    "" stands for no version yet, or for a ref that names none; [] where it compares with nothing.
    """
    if not gate.checks and not gate.thresholds:
        return []
    state = root.state
    newest = state.newest(dataset)
    refs = [*([gate.baseline] if gate.baseline else []), *gate.protected]
    return [newest.id if newest else "", *(_id_of(state, ref) for ref in refs)]


def _id_of(state: State, ref: str) -> str:
    """Return the id of the version; "" where there is none, which the check that opens it says."""
    try:
        return resolve(state, ref).id
    except (VersionNotFound, VersionRetired, InvalidName):
        return ""


def overtaken(root: loader.Root, samples: StageRecord, verdict: StageRecord, gate: Gate) -> bool:
    """Return whether a passed verdict cannot be shown any more: it does not stand, or another came after it.

    Costs a listing and two GETs.
    """
    newest = current_record(root.store, samples.dataset, VERSION, samples.partition)
    return newest is None or newest.r != verdict.r or not _stands(root, samples, verdict, gate, once=False)


def digest_of(samples: StageRecord) -> str:
    """Return the sha256 hex of everything that publishing a samples record adds and leaves out, for the verdict."""
    parts = [loader.Part.from_json(body) for body in samples.body["parts"]]
    return gated.digest_of(
        parts, samples.body["exclude"], samples.body.get("supersede") or {}, samples.body.get("foreign")
    )


def content_of(samples: StageRecord, table: "pl.DataFrame") -> str:
    """Return the sha256 hex of everything that a batch would add, however often it is cut.

    It covers its shards' bytes, and its rows without the columns that name the attempt. O(rows) time and memory.
    """
    rows = table.drop([name for name in _OF_THE_ATTEMPT if name in table.columns])
    told = rows.select(sorted(rows.columns)).sort("key").write_ndjson() if len(rows) else ""
    shards = [
        [part["n_rows"], sorted([shard["group"], shard["sha256"]] for shard in part["shards"])]
        for part in samples.body["parts"]
    ]
    return fingerprint(hashlib.sha256(told.encode()).hexdigest(), shards)


def _approval(
    root: loader.Root, samples: StageRecord, stopping: Sequence[CheckResult], content: str
) -> StageRecord | None:
    """Return the approval of exactly this, where somebody gave one who may; None otherwise."""
    if not stopping or not all(result.approvable for result in stopping):
        return None
    names = [result.name for result in stopping]
    return covering(root.store, samples.dataset, samples.partition, content, names)


def _overridden(approval: StageRecord | None, stopping: Sequence[CheckResult]) -> dict[str, Any]:
    """Return the approval as the version's manifest has it; {} where there is none."""
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
    """Return every result in the gate's order, whether anything was broken, and the input of the drift checks.

    Broken: a check, or an expectation, could not be evaluated. The input is None where there are no drift checks, or
    they could not run. against: of `compared_with`.
    """
    version = root.open(against[0]) if against and against[0] else None
    baseline = version.samples() if version and gate.checks else None
    reports: list[CheckReport] = []
    compared: list[GateInputs] = []

    def suite() -> CheckResult:
        reports.append(run_expectations(table, gate.suite))
        broken = {item for item in SUITE if item in reports[0].not_passed}
        return replace(reports[0].as_check(), approvable=not broken and not reports[0].broken)

    def drifted(check: Callable[[GateInputs], CheckResult]) -> CheckResult:
        if not compared:
            compared.append(_compared(root, samples, gate, table, version))
        return check(compared[0])

    named: dict[str, Callable[[], CheckResult]] = {EXPECTATIONS: suite}
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
    """Write the page for people, and return its path. Raises: StoreError."""
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
    # Of no other dataset: a takedown deletes the pages of those that have the sample.
    before = before_of(root, base, shown) if base and base.version.dataset == samples.dataset else []
    html = render(f"{samples.dataset} {samples.partition}", facts, results, picture, shown, before)
    return save(root.store, samples.dataset, samples.partition, html)


def _compared(
    root: loader.Root,
    samples: StageRecord,
    gate: Gate,
    table: "pl.DataFrame",
    newest: loader.Version | None,
) -> GateInputs:
    """Return the input of the drift checks. Raises: VersionNotFound for a ref of the gate; Corrupt; StoreError."""
    against = root.open(gate.baseline) if gate.baseline else newest
    return GateInputs(
        now=facts_of(root.store, samples, table),
        baseline=baseline_of(root, against) if against else None,
        newest=newest,
        protected=tuple(root.open(ref) for ref in gate.protected),
        thresholds=gate.thresholds or DEFAULTS,
    )
