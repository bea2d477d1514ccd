"""The last audit: what a batch would add to a version is checked, and the verdict is written, before it is published.

The record lies under the stage `version` with the batch's key. It is for exactly one samples record and one
gate: samples that were cut again, or other expectations, are audited again.
"""

import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import loader
from loader.dataset.parquet import get_table_bytes

from .checks import CheckReport, CheckResult, Expectation, run_expectations
from .stages import StageRecord, Upstream, append_record, current_record, fingerprint

if TYPE_CHECKING:
    import polars as pl

STAGE = "version"
CODE_VERSION = "1"
EXPECTATIONS = "expectations"

TableCheck = Callable[["pl.DataFrame", "pl.LazyFrame | None"], CheckResult]
"""Of the samples table that a batch would add, and that of the newest version (None before the first)."""

SUITE = (
    Expectation(kind="row_count", low=1),
    Expectation(kind="column", column="key", type="String"),
    Expectation(kind="not_null", column="key"),
    Expectation(kind="unique", column="key"),
    Expectation(kind="matches", column="raw_sha256", pattern="^[0-9a-f]{64}$"),
    Expectation(kind="not_null", column="raw_sha256"),
    Expectation(kind="not_null", column="raw_uri"),
    Expectation(kind="not_null", column="run_id"),
    Expectation(kind="not_null", column="licence"),
    Expectation(kind="in_set", column="kind", values=("image", "video", "audio", "text")),
    Expectation(kind="not_null", column="kind"),
)
"""What every dataset keeps to: unique keys, and a way back to the raw object, its licence and the run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """What a batch must pass to be published. checks: name -> check, each shown in Dagster under its name.

    version: changed by whoever changes what a check in `checks` does; the suite itself is hashed.
    """

    suite: tuple[Expectation, ...] = SUITE
    checks: Mapping[str, TableCheck] = field(default_factory=dict)
    version: str = "1"

    def __post_init__(self) -> None:
        if EXPECTATIONS in self.checks:
            raise ValueError(f"a check cannot be called {EXPECTATIONS!r}: that is the suite's own name")

    @property
    def names(self) -> tuple[str, ...]:
        """Of all checks, the suite first."""
        return (EXPECTATIONS, *self.checks)

    def fingerprint(self) -> str:
        return fingerprint(
            CODE_VERSION, self.version, list(self.checks), [item.to_json() for item in self.suite]
        )


GATE = Gate()


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """record: the verdict as it is stored; results: of every check; fresh: it was made now, not found."""

    record: StageRecord
    results: tuple[CheckResult, ...]
    fresh: bool

    @property
    def passed(self) -> bool:
        return self.record.verdict == "published"


def audit_batch(root: loader.Root, samples: StageRecord, gate: Gate, run_id: str) -> Audit:
    """The verdict on publishing what a samples record holds; made now, unless it stands already.

    A verdict stands when it is of this samples record under this gate, and no check was broken. Whatever goes
    wrong while checking is a failed verdict, written down: nothing is published because a check did not run. A batch
    that failed a check is fenced: it has to be cut again, under whatever gate.
    """
    wanted = fingerprint(samples.r, samples.fingerprint, gate.fingerprint())
    newest = current_record(root.store, samples.dataset, STAGE, samples.partition)
    if newest is not None and newest.fingerprint == wanted and not newest.body["broken"]:
        results = tuple(CheckResult.from_json(body) for body in newest.body["checks"])
        return Audit(record=newest, results=results, fresh=False)
    results, broken = _run(root, samples, gate)
    stopping = [result for result in results if result.stops]
    reason = "; ".join(f"{result.name}: {result.explanation}" for result in stopping)
    record = StageRecord(
        dataset=samples.dataset,
        stage=STAGE,
        partition=samples.partition,
        verdict="failed" if stopping else "published",
        reason=reason,
        run_id=run_id,
        code_version=CODE_VERSION,
        fingerprint=wanted,
        upstream=(Upstream(stage=samples.stage, partition=samples.partition, r=samples.r),),
        counts={"checks": len(results), "failed": len(stopping)},
        body={"checks": [result.to_json() for result in results], "broken": broken},
    )
    audit = Audit(record=append_record(root.store, record), results=results, fresh=True)
    if stopping and not broken:
        # So that nobody commits these parts by hand either. A check that could not run is tried again instead.
        root.abort(samples.body["txn"], f"the gate before a version: {reason}"[:500])
    return audit


def candidate(root: loader.Root, samples: StageRecord) -> "pl.DataFrame":
    """The rows that a batch would add to the samples table. Raises: Corrupt; ObjectNotFound."""
    import polars as pl

    files = [loader.Part.from_json(body).samples for body in samples.body["parts"]]
    frames = [pl.read_parquet(io.BytesIO(get_table_bytes(root.store, file))) for file in files if file]
    if not frames:
        return pl.DataFrame()
    left_out = list(samples.body["exclude"])
    return pl.concat(frames, how="diagonal_relaxed").filter(~pl.col("key").is_in(left_out))


def _run(root: loader.Root, samples: StageRecord, gate: Gate) -> tuple[tuple[CheckResult, ...], bool]:
    """Every result in the gate's order, and whether a check, or an expectation, could not be evaluated."""
    newest = root.state.newest(samples.dataset)
    baseline = root.open(newest.id).samples() if newest and gate.checks else None
    table = candidate(root, samples)
    reports: list[CheckReport] = []

    def suite(table: "pl.DataFrame", baseline: "pl.LazyFrame | None") -> CheckResult:
        reports.append(run_expectations(table, gate.suite))
        return reports[0].as_check()

    results, broken = [], False
    for name, check in {EXPECTATIONS: suite, **gate.checks}.items():
        try:
            result = check(table, baseline)
        except Exception as error:  # noqa: BLE001 - a check may be anybody's code; whatever it raises closes the gate
            said = f"the check could not run: {type(error).__name__}: {error}"[:500]
            result, broken = CheckResult(name=name, passed=False, explanation=said), True
        results.append(replace(result, name=name))  # Dagster was told this name
    return tuple(results), broken or any(report.broken for report in reports)
