"""Checks of tables, and the suite that Great Expectations runs (imported once: several seconds)."""

import json
from enum import Enum
from pathlib import Path
from typing import Any

import dagster as dg
import numpy as np
import polars as pl
import pytest

from assets.checks import (
    CheckReport,
    CheckResult,
    Expectation,
    audio_rate,
    counts,
    nulls,
    reject_rate,
    run_checks,
    run_expectations,
    schema,
)
from loader.dataset.log.entries import canonical
from loader.errors import InvalidSpec
from tests.refusals import refusal
from tests.servers.processes import python

REPOSITORY = Path(__file__).resolve().parents[3]


class Kind(Enum):
    """Somebody's own severities, none of Dagster's."""

    ERROR = "error"


TABLE = pl.DataFrame(
    {
        "key": ["a", "b", "c", "c"],
        "kind": ["image", "audio", "audio", "video"],
        "width_px": [1, None, 3, 4],
        "rate_hz": [None, 16000, 8000, None],
        "score": [0.5, None, 2.5, float("nan")],
        "nothing": [None, None, None, None],
    }
)
SUITE = (
    (Expectation(kind="column", column="key"), "passed"),
    (Expectation(kind="column", column="key", type="String"), "passed"),
    (Expectation(kind="column", column="key", type="Int64"), "failed"),
    (Expectation(kind="column", column="gone"), "failed"),
    (Expectation(kind="column", column="gone", type="String"), "failed"),
    (Expectation(kind="not_null", column="key"), "passed"),
    (Expectation(kind="not_null", column="width_px"), "failed"),
    (Expectation(kind="not_null", column="width_px", max_share=0.25), "passed"),
    (Expectation(kind="not_null", column="width_px", max_share=0.24), "failed"),
    (Expectation(kind="not_null", column="rate_hz", where=("kind", "audio")), "passed"),
    (Expectation(kind="not_null", column="score"), "failed"),
    (Expectation(kind="not_null", column="gone"), "error"),
    (Expectation(kind="between", column="width_px", low=1, high=4), "passed"),
    (Expectation(kind="between", column="width_px", low=2), "failed"),
    (Expectation(kind="between", column="score", high=3), "failed"),  # NaN is in no range
    (Expectation(kind="between", column="score", high=3, where=("kind", "image")), "passed"),
    (Expectation(kind="between", column="key", low=1), "error"),
    (Expectation(kind="in_set", column="kind", values=("image", "audio", "video")), "passed"),
    (Expectation(kind="in_set", column="kind", values=("image", "audio")), "failed"),
    (Expectation(kind="in_set", column="rate_hz", values=(16000,), where=("kind", "audio")), "failed"),
    (
        Expectation(kind="in_set", column="rate_hz", values=(16000,), where=("kind", "audio"), max_share=0.5),
        "passed",
    ),
    (Expectation(kind="in_set", column="rate_hz", values=(16000,), where=("gone", "audio")), "error"),
    (Expectation(kind="not_null", column="gone", where=("kind", "text")), "passed"),  # of no rows
    (Expectation(kind="row_count", low=1, where=("kind", "text")), "failed"),
    (Expectation(kind="unique", column="key"), "failed"),
    (Expectation(kind="unique", column="kind", max_share=0.5), "passed"),
    (Expectation(kind="unique", column="nothing"), "passed"),
    (Expectation(kind="matches", column="key", pattern="^[abc]$"), "passed"),
    (Expectation(kind="matches", column="key", pattern="^[ab]$"), "failed"),
    (Expectation(kind="matches", column="key", pattern="("), "error"),
    (Expectation(kind="row_count", low=4, high=4), "passed"),
    (Expectation(kind="row_count", high=3), "failed"),
    (Expectation(kind="row_count", low=3, where=("kind", "audio")), "failed"),
)


@pytest.fixture(scope="module")
def report() -> CheckReport:
    """The whole suite in one go, as a version's check runs it."""
    return run_expectations(TABLE, [expectation for expectation, _ in SUITE])


@pytest.mark.parametrize("number", range(len(SUITE)), ids=[expectation.name for expectation, _ in SUITE])
def test_every_expectation(report: CheckReport, number: int) -> None:
    expectation, status = SUITE[number]
    found = report.results[number]
    assert found.expectation == expectation
    assert (found.status, bool(found.observed)) == (status, True), found.observed


def test_what_is_told_to_a_person(report: CheckReport) -> None:
    told = {result.expectation.name: result.observed for result in report.results}
    assert told["in_set(kind, image, audio)"] == "1 of 4 rows do not, e.g. 'video'"
    assert told["row_count(None, 3)"] == "4 rows"
    assert told["column(key, Int64)"] == "key is String"
    assert "gone" in told["not_null(gone)"]
    first = report.markdown.splitlines()
    assert first[0] == "| status | expectation | allowed share | observed |"
    assert first[2].startswith("| error |")
    check = report.as_check()
    assert not check.passed
    assert check.value == sum(status != "passed" for _, status in SUITE)
    assert report.broken
    canonical(check.to_json())


def test_suite_that_passes_and_one_of_nothing() -> None:
    good = run_expectations(TABLE, [expectation for expectation, status in SUITE if status == "passed"])
    assert good.passed
    assert not good.broken
    assert good.as_check().passed
    assert "error" not in good.markdown
    assert run_expectations(TABLE, []).passed
    assert run_expectations(TABLE, [Expectation(kind="row_count", low=4, high=4)]).passed
    assert not run_expectations(TABLE.clear(), [Expectation(kind="row_count", low=1)]).passed


def test_paths_of_parts_with_unlike_columns(tmp_path: Path) -> None:
    pl.DataFrame({"key": ["a"], "width_px": [3]}).write_parquet(tmp_path / "1.parquet")
    pl.DataFrame({"key": ["b"], "rate_hz": [16000]}).write_parquet(tmp_path / "2.parquet")
    paths = [str(tmp_path / "1.parquet"), str(tmp_path / "2.parquet")]
    suite = [
        Expectation(kind="row_count", low=2, high=2),
        Expectation(kind="not_null", column="width_px", max_share=0.5),
        Expectation(kind="in_set", column="rate_hz", values=(16000,)),
        Expectation(kind="unique", column="key"),
    ]
    assert run_expectations(paths, suite).passed
    assert run_expectations(pl.scan_parquet(paths[0]), suite[3:]).n_rows == 1


@pytest.mark.parametrize(
    "options",
    [
        {"kind": "row_count", "column": "a", "low": 1},
        {"kind": "not_null"},
        {"kind": "between", "column": "a"},
        {"kind": "row_count"},
        {"kind": "in_set", "column": "a"},
        {"kind": "matches", "column": "a"},
        {"kind": "not_null", "column": "a", "max_share": 1.1},
        {"kind": "column", "column": "a", "max_share": 0.1},
    ],
)
def test_expectations_that_cannot_be_meant(options: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        Expectation(**options)


def test_great_expectations_is_imported_inside_and_tells_nobody() -> None:
    code = (
        "import sys, assets.checks, assets.release.version_asset, dagster_project.definitions;"
        "assert 'great_expectations' not in sys.modules;"
        "import polars; from assets.checks import *;"
        "assert run_expectations(polars.DataFrame({'a': [1]}), [Expectation(kind='row_count', low=1)]).passed;"
        "print('posthog' in sys.modules)"
    )
    done = python("-c", code, cwd=REPOSITORY)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "False"
    assert done.stderr == ""  # no progress bars


def test_reject_rate() -> None:
    found = reject_rate(200, {"truncated": 1, "empty": 2}, 0.02)
    assert (found.passed, found.value, found.limit) == (True, 0.015, 0.02)
    assert "3 of 200 objects were rejected (1.5%)" in found.explanation
    assert found.table_markdown.splitlines()[2] == "| empty | 2 |"
    assert not reject_rate(200, {"empty": 5}, 0.02).passed
    assert reject_rate(200, {"empty": 4}, 0.02).passed
    assert reject_rate(0, {}, 0.0).passed
    assert not reject_rate(0, {"empty": 1}, 0.0).passed
    warned = reject_rate(2, {"empty": 2}, 0.0, severity="warn")
    assert (warned.passed, warned.stops) == (False, False)


def test_half_of_the_audio_at_the_wrong_rate_is_stopped() -> None:
    units = pl.DataFrame({"source_sample_rate_hz": [16000] * 5 + [8000] * 5})
    found = audio_rate(units, {16000, 48000})
    assert found.stops
    assert found.value == 0.5
    assert "5 of 10 audio units (50.0%) were not recorded at 16000, 48000 Hz" in found.explanation
    assert "| 8000 | 5 | no |" in found.table_markdown
    assert audio_rate(units, {16000}, max_share=0.5).passed
    assert audio_rate(units, {8000, 16000}).passed


def test_unknown_rate_is_a_wrong_one() -> None:
    assert not audio_rate(pl.DataFrame({"source_sample_rate_hz": [16000, None]}), {16000}).passed
    assert not audio_rate(pl.DataFrame({"other": [16000]}), {16000}).passed
    assert audio_rate(pl.DataFrame({"source_sample_rate_hz": []}), {16000}).passed


def test_counts() -> None:
    before = {"image": 100, "audio": 50}
    assert counts({"image": 90, "audio": 60, "text": 4}, before).passed
    fallen = counts({"image": 89, "audio": 50}, before)
    assert fallen.stops
    assert fallen.value == 0.89
    assert "image: 89, 100 before" in fallen.explanation
    assert counts({"image": 100}, before).value == 0.0  # a kind that stopped coming
    assert counts({"image": 150, "audio": 60}, before).value == 1.2
    grown = counts({"image": 300, "audio": 50}, before, max_ratio=2)
    assert (grown.passed, grown.value, grown.limit) == (False, 3.0, 2.0)
    both = counts({"image": 300, "audio": 25}, before, max_ratio=2)
    assert (both.passed, both.value, both.limit) == (False, 0.5, 0.9)
    assert counts({"image": 1}, {}).passed


def test_nulls() -> None:
    assert nulls(TABLE, {"key": 0.0, "width_px": 0.25}).passed
    found = nulls(TABLE, {"key": 0.0, "width_px": 0.2, "score": 0.25})
    assert found.stops
    assert found.value == 0.25  # of score: one null and one NaN
    assert "score 50.0% (allowed 25.0%)" in found.explanation
    assert "no column 'gone'" in nulls(TABLE, {"gone": 1.0}).explanation
    assert nulls(TABLE.clear(), {"key": 0.0}).passed


def test_schema() -> None:
    now = {name: str(dtype) for name, dtype in TABLE.schema.items()}
    assert schema(TABLE, now).passed
    added = {name: dtype for name, dtype in now.items() if name != "score"}
    assert schema(TABLE, added).passed
    found = schema(TABLE, now | {"width_px": "Int32", "luma": "Float64"})
    assert found.stops
    assert found.value == 2
    assert "luma (Float64) went away; width_px is Int64, was Int32" in found.explanation


def test_results_come_back_from_json() -> None:
    found = audio_rate(pl.DataFrame({"source_sample_rate_hz": [1, 2, 3]}), {1})
    assert CheckResult.from_json(json.loads(canonical(found.to_json()))) == found
    bare = CheckResult(name="n", passed=True)
    assert CheckResult.from_json(json.loads(canonical(bare.to_json()))) == bare


def test_without_audio_there_is_no_rate_to_be_wrong() -> None:
    assert audio_rate(pl.DataFrame({"kind": []}), {16_000}).passed
    assert not audio_rate(pl.DataFrame({"kind": ["audio"]}), {16_000}).passed


@pytest.mark.parametrize("severity", ["ERROR", "critical", "warning", "WARN", "", None, 1, Kind.ERROR])
def test_severity_that_nobody_knows_is_refused(severity: Any) -> None:
    with refusal(InvalidSpec, what="severity", given=severity, accepted=["error", "warn"]):
        CheckResult(name="x", passed=True, severity=severity)


def test_severities_of_dagster_mean_the_same() -> None:
    error = CheckResult(name="x", passed=False, severity=dg.AssetCheckSeverity.ERROR)
    warn = CheckResult(name="x", passed=False, severity=dg.AssetCheckSeverity.WARN)
    assert [(one.severity, one.stops) for one in (error, warn)] == [("error", True), ("warn", False)]
    assert [one.to_json()["severity"] for one in (error, warn)] == ["error", "warn"]


@pytest.mark.parametrize("name", ["passed", "approvable"])
@pytest.mark.parametrize("value", ["no", float("nan"), None, 1, [True]])
def test_what_is_neither_true_nor_false_is_refused(name: str, value: Any) -> None:
    with refusal(InvalidSpec, what=name, where="check 'x'", given=value):
        CheckResult(**{"name": "x", "passed": True, name: value})


def test_numbers_of_numpy_are_stored_as_numbers() -> None:
    result = CheckResult(
        name="x",
        passed=np.bool_(True),
        value=np.float64(0.5),
        limit=np.float32(1),  # type: ignore[arg-type]
    )
    body = json.loads(canonical(result.to_json()))
    assert (body["passed"], body["value"], body["limit"]) == (True, "0.5", "1.0")
    assert CheckResult.from_json(body) == result


@pytest.mark.parametrize("severity", ["error", "ERROR", "critical", "AssetCheckSeverity.WARN", None])
def test_stored_failure_stops_unless_it_is_known_to_be_a_warning(severity: Any) -> None:
    body = CheckResult(name="x", passed=False).to_json() | {"severity": severity}
    assert CheckResult.from_json(body).stops
    assert not CheckResult.from_json(body | {"severity": "warn"}).stops


@pytest.mark.parametrize("passed", ["true", 1, None])
def test_stored_result_passed_only_where_it_says_so(passed: Any) -> None:
    body = CheckResult(name="x", passed=True).to_json() | {"passed": passed}
    assert CheckResult.from_json(body).stops
    assert not CheckResult.from_json(body | {"approvable": "yes"}).approvable


def test_check_that_gives_something_else_could_not_run() -> None:
    results, broken = run_checks({"mine": lambda: dg.AssetCheckResult(passed=True)})  # type: ignore[dict-item,return-value]
    assert broken
    assert (results[0].stops, results[0].approvable) == (True, False)
    assert "accepted: a CheckResult" in results[0].explanation


@pytest.mark.parametrize(
    ("options", "what", "given"),
    [
        ({"kind": "betwen"}, "kind", "betwen"),
        ({"low": float("nan")}, "low and high", (float("nan"), None)),
        ({"high": float("inf")}, "low and high", (1, float("inf"))),
    ],
)
def test_expectation_that_would_hold_of_everything_is_refused(
    options: dict[str, Any], what: str, given: object
) -> None:
    with refusal(InvalidSpec, what=what, where="width_px", given=given):
        Expectation(**{"kind": "between", "column": "width_px", "low": 1, **options})


def test_limit_that_is_no_number_lets_nothing_pass() -> None:
    nan = float("nan")
    assert nulls(TABLE, {"score": nan}).stops
    assert reject_rate(2, {}, nan).stops
    assert counts({"rows": 1}, {"rows": 1}, min_ratio=nan).stops
    assert counts({"rows": 1}, {"rows": 1}, max_ratio=nan).stops
    audio = TABLE.filter(TABLE["kind"] == "audio")
    assert audio_rate(audio, {8000, 16000}, column="rate_hz", max_share=nan).stops
