"""The gate before a version: expectations and checks over what would be published, closed when anything breaks."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dagster as dg
import polars as pl
import pytest

import loader
from assets.checks import CheckResult, Expectation, audio_rate, counts
from assets.gate_settings import SUITE, Gate
from assets.pipeline.stages import require_published
from assets.release.version_asset import publish_batches
from loader.errors import Fenced, InvalidSpec, StageNotPublished
from penstock.stages import current_record
from tests.assets.release.gated import (
    WRONG,
    Release,
    cut,
    cut_again,
    failure_text,
    numbers,
    samples_record,
    version_record,
)
from tests.refusals import refusal

DRIFT = dict.fromkeys(("blank", "drift", "agreement", "splits", "protected"), True)


def checks(result: dg.ExecuteInProcessResult) -> dict[str, bool]:
    return {found.check_name: found.passed for found in result.get_asset_check_evaluations()}


def test_batch_that_keeps_to_everything(root: loader.Root, landing: Path, release: Release) -> None:
    batch = cut(root, landing)
    done = release(Gate())
    assert done.success
    assert checks(done) == {**DRIFT, "expectations": True}
    verdict = require_published(root.store, "demo", "version", batch)
    assert root.open("demo@1").manifest["producer"]["audit_record"] == verdict.path
    (found,) = [one for one in done.get_asset_check_evaluations() if one.check_name == "expectations"]
    assert "row\\_count(1" in found.metadata[f"batch {batch}"].value
    before = {info.key for info in root.store.list()}
    again = release(Gate())
    assert again.success
    assert checks(again) == {**DRIFT, "expectations": True}
    assert {info.key for info in root.store.list()} == before


def test_expectation_that_fails_stops_it_before_anything_is_published(
    root: loader.Root, landing: Path, release: Release
) -> None:
    batch = cut(root, landing)
    gate = Gate(suite=(*SUITE, WRONG))
    stopped = release(gate)
    assert not stopped.success
    assert checks(stopped) == {**DRIFT, "expectations": False}
    assert "in_set(sample_rate_hz, 44100) where kind = audio: failed" in failure_text(stopped)
    assert not stopped.asset_materializations_for_node("demo__version")
    assert numbers(root) == []
    record = current_record(root.store, "demo", "version", batch)
    assert record is not None
    assert (record.verdict, record.run_id) == ("failed", stopped.run_id)

    again = release(gate)  # the verdict stands, and is not made anew
    assert failure_text(again) == failure_text(stopped)
    assert current_record(root.store, "demo", "version", batch) == record
    with refusal(StageNotPublished, what="gate", where="demo", given=["expectations"]):
        publish_batches(root, "demo", "r", gate)
    assert numbers(root) == []

    parts = [loader.Part.from_json(body) for body in samples_record(root, batch).body["parts"]]
    with pytest.raises(Fenced):  # nor by hand
        root.publish("demo", parts)

    # Other expectations are another question, but these parts were given up: the batch is cut again.
    assert "its parts were given up" in failure_text(release(Gate()))
    cut_again(root, landing, batch, max_reject_rate=1.0)
    assert release(Gate()).success
    assert numbers(root) == [1]


def test_one_failing_batch_holds_the_others_up_once(
    root: loader.Root, landing: Path, release: Release, tmp_path: Path, make_jpeg: Callable[..., bytes]
) -> None:
    bad = cut(root, landing)
    other = tmp_path / "other"
    (other / "cats").mkdir(parents=True)
    (other / "cats/a.jpg").write_bytes(make_jpeg(44, 44))
    good = cut(root, other)
    gate = Gate(suite=(*SUITE, WRONG))
    stopped = release(gate)
    assert not stopped.success
    assert bad in failure_text(stopped)
    assert numbers(root) == []
    done = release(gate)
    assert done.success, failure_text(done)
    assert checks(done) == {**DRIFT, "expectations": False}  # still seen, and it fails nothing
    (event,) = done.asset_materializations_for_node("demo__version")
    assert event.metadata["published_batches"].value == good
    assert event.metadata["held_back_batches"].value == bad
    assert len(root.open("demo@1")) == 1
    assert not release(gate).success  # only the bad one is left


def test_what_cannot_be_evaluated_is_closed_and_tried_again(
    root: loader.Root, landing: Path, release: Release
) -> None:
    batch = cut(root, landing)
    gate = Gate(suite=(Expectation(kind="not_null", column="luma"),))
    for attempt in (1, 2):
        stopped = release(gate)
        assert not stopped.success
        assert "not_null(luma): error" in failure_text(stopped)
        record = current_record(root.store, "demo", "version", batch)
        assert record is not None
        assert (record.verdict, record.r, record.body["broken"]) == ("failed", attempt, True)
    assert numbers(root) == []


def test_great_expectations_itself_failing_is_closed(
    root: loader.Root, landing: Path, release: Release, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = cut(root, landing)
    with monkeypatch.context() as broken:
        broken.setitem(sys.modules, "great_expectations", None)  # the import fails
        stopped = release(Gate())
    assert not stopped.success
    assert checks(stopped) == {**DRIFT, "expectations": False}
    assert "could not run: MissingDependency" in failure_text(stopped)
    record = current_record(root.store, "demo", "version", batch)
    assert record is not None
    assert record.verdict == "failed"
    assert numbers(root) == []
    assert release(Gate()).success


def test_own_checks_have_names_and_a_baseline(
    root: loader.Root, landing: Path, release: Release, tmp_path: Path, make_jpeg: Callable[..., bytes]
) -> None:
    def rates(table: pl.DataFrame, baseline: pl.LazyFrame | None) -> CheckResult:
        return audio_rate(table.filter(pl.col("kind") == "audio"), {16000}, column="sample_rate_hz")

    def rows(table: pl.DataFrame, baseline: pl.LazyFrame | None) -> CheckResult:
        before = {} if baseline is None else {"samples": baseline.collect().height}
        return counts({"samples": table.height}, before, severity="warn")

    gate = Gate(checks={"rates": rates, "rows": rows})
    cut(root, landing)
    assert checks(release(gate)) == {**DRIFT, "expectations": True, "rates": True, "rows": True}
    other = tmp_path / "other"
    (other / "cats").mkdir(parents=True)
    (other / "cats/a.jpg").write_bytes(make_jpeg(44, 44))
    cut(root, other)
    done = release(Gate(suite=SUITE, checks={"rows": rows}))
    assert done.success  # a warning stops nothing
    evaluations = {found.check_name: found for found in done.get_asset_check_evaluations()}
    assert not evaluations["rows"].passed
    assert evaluations["rows"].severity == dg.AssetCheckSeverity.WARN
    with refusal(InvalidSpec, what="checks", given="expectations"):
        Gate(checks={"expectations": rates})


def test_batch_is_held_back_by_what_the_batch_before_it_became(
    root: loader.Root, landing: Path, release: Release, tmp_path: Path, make_jpeg: Callable[..., bytes]
) -> None:
    def alone(table: pl.DataFrame, baseline: pl.LazyFrame | None) -> CheckResult:
        return CheckResult(name="x", passed=baseline is None, explanation="only the first one may come")

    gate = Gate(checks={"alone": alone})
    first = cut(root, landing)
    other = tmp_path / "other"
    (other / "cats").mkdir(parents=True)
    (other / "cats/a.jpg").write_bytes(make_jpeg(44, 44))
    second = cut(root, other)
    done = release(gate)
    assert done.success, failure_text(done)
    assert not checks(done)["alone"]
    (event,) = done.asset_materializations_for_node("demo__version")
    assert event.metadata["published_batches"].value == first
    assert event.metadata["held_back_batches"].value == second
    verdict = current_record(root.store, "demo", "version", second)
    assert verdict is not None
    assert (verdict.verdict, verdict.r, verdict.body["against"]) == ("failed", 2, [root.open("demo@1").id])
    assert root.state.txns[samples_record(root, second).body["txn"]].status == "aborted"
    assert numbers(root) == [1]
    assert "alone: only the first one may come" in failure_text(release(gate))


def test_check_that_raises_is_closed(root: loader.Root, landing: Path, release: Release) -> None:
    def raise_error(table: pl.DataFrame, baseline: pl.LazyFrame | None) -> CheckResult:
        raise ZeroDivisionError("oh")

    cut(root, landing)
    stopped = release(Gate(checks={"mine": raise_error}))
    assert checks(stopped) == {**DRIFT, "expectations": True, "mine": False}
    assert "could not run: ZeroDivisionError: oh" in failure_text(stopped)
    assert numbers(root) == []


@pytest.mark.parametrize("severity", ["ERROR", "critical", dg.AssetCheckSeverity.ERROR])
def test_failed_check_stops_a_batch_whatever_it_calls_its_severity(
    root: loader.Root, landing: Path, release: Release, severity: Any
) -> None:
    def mine(table: pl.DataFrame, baseline: pl.LazyFrame | None) -> CheckResult:
        return CheckResult(name="mine", passed=False, severity=severity, explanation="it is bad")

    batch = cut(root, landing)
    stopped = release(Gate(checks={"mine": mine}))
    assert not stopped.success
    assert checks(stopped) == {**DRIFT, "expectations": True, "mine": False}
    assert version_record(root, batch).verdict == "failed"
    assert numbers(root) == []
