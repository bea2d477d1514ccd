"""The gate before a version: expectations and checks over what would be published, closed when anything breaks."""

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import dagster as dg
import polars as pl
import pytest

import loader
from assets.arrivals.make_batches import discover
from assets.checks import CheckResult, Expectation, audio_rate, counts
from assets.gate import SUITE, Gate
from assets.ingest.media import media_stage
from assets.ingest.raw_objects import land
from assets.ingest.units import units_stage
from assets.release import version_asset as version
from assets.release.version_asset import audit_waiting, publish_batches, version_asset
from assets.samples.candidate import candidate
from assets.samples.samples_asset import samples_stage
from assets.spec import DatasetSpec
from assets.stages import require_published
from loader.dataset.log.entries import canonical
from loader.errors import Fenced, StageNotPublished
from loader.storage import open_store
from penstock.stages import StageRecord, append_record, current_record
from resources.compute import InlineCompute
from resources.storage import RootResource

DRIFT = dict.fromkeys(("drift", "agreement", "splits", "protected"), True)
WRONG = Expectation(kind="in_set", column="sample_rate_hz", values=(44100,), where=("kind", "audio"))
Release = Callable[[Gate], dg.ExecuteInProcessResult]


def cut(root: loader.Root, place: Path, max_reject_rate: float = 0.0) -> str:
    """Discover, land and cut; the batch's key."""
    store = open_store(str(place))
    (batch,) = discover(root.store, store, "demo")
    land(root.store, store, dataset="demo", partition=batch, run_id="r")
    cut_again(root, place, batch, max_reject_rate)
    return batch


def cut_again(root: loader.Root, place: Path, batch: str, max_reject_rate: float) -> None:
    store, compute = open_store(str(place)), InlineCompute()
    spec = DatasetSpec(name="demo", max_reject_rate=max_reject_rate)
    media_stage(root, store, compute, spec, partition=batch, run_id="r")
    units_stage(root, store, compute, spec, partition=batch, run_id="r")
    samples_stage(root, spec, partition=batch, run_id="r")


@pytest.fixture
def release(tmp_path: Path, instance: dg.DagsterInstance) -> Release:
    quiet = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}

    def go(gate: Gate) -> dg.ExecuteInProcessResult:
        return dg.materialize(
            [version_asset("demo", gate)],
            instance=instance,
            resources={"root": RootResource(url=str(tmp_path / "root"))},
            run_config=quiet,
            raise_on_error=False,
        )

    return go


def samples_of(root: loader.Root, batch: str) -> StageRecord:
    found = current_record(root.store, "demo", "samples", batch)
    assert found is not None
    return found


def failure_of(result: dg.ExecuteInProcessResult) -> str:
    (failed,) = [event for event in result.all_events if event.is_step_failure]
    data = failed.step_failure_data.user_failure_data
    return (data.description if data else None) or str(failed.step_failure_data.error)


def checks(result: dg.ExecuteInProcessResult) -> dict[str, bool]:
    return {found.check_name: found.passed for found in result.get_asset_check_evaluations()}


def numbers(root: loader.Root) -> list[int]:
    return [record.number for record in root.state.versions("demo")]


def test_a_batch_that_keeps_to_everything(root: loader.Root, landing: Path, release: Release) -> None:
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


def test_an_expectation_that_fails_stops_it_before_anything_is_published(
    root: loader.Root, landing: Path, release: Release
) -> None:
    batch = cut(root, landing)
    gate = Gate(suite=(*SUITE, WRONG))
    stopped = release(gate)
    assert not stopped.success
    assert checks(stopped) == {**DRIFT, "expectations": False}
    assert "in_set(sample_rate_hz, 44100) where kind = audio: failed" in failure_of(stopped)
    assert not stopped.asset_materializations_for_node("demo__version")
    assert numbers(root) == []
    record = current_record(root.store, "demo", "version", batch)
    assert record is not None
    assert (record.verdict, record.run_id) == ("failed", stopped.run_id)

    again = release(gate)  # the verdict stands, and is not made anew
    assert failure_of(again) == failure_of(stopped)
    assert current_record(root.store, "demo", "version", batch) == record
    with pytest.raises(StageNotPublished, match="nothing was published"):
        publish_batches(root, "demo", "r", gate)
    assert numbers(root) == []

    parts = [loader.Part.from_json(body) for body in samples_of(root, batch).body["parts"]]
    with pytest.raises(Fenced):  # nor by hand
        root.publish("demo", parts)

    # Other expectations are another question, but these parts were given up: the batch is cut again.
    assert "its parts were given up" in failure_of(release(Gate()))
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
    assert bad in failure_of(stopped)
    assert numbers(root) == []
    done = release(gate)
    assert done.success, failure_of(done)
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
        assert "not_null(luma): error" in failure_of(stopped)
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
    assert "could not run: MissingDependency" in failure_of(stopped)
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
    with pytest.raises(ValueError, match="the name of one of the gate's own"):
        Gate(checks={"expectations": rates})


def test_a_batch_is_held_back_by_what_the_batch_before_it_became(
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
    assert done.success, failure_of(done)
    assert not checks(done)["alone"]
    (event,) = done.asset_materializations_for_node("demo__version")
    assert event.metadata["published_batches"].value == first
    assert event.metadata["held_back_batches"].value == second
    verdict = current_record(root.store, "demo", "version", second)
    assert verdict is not None
    assert (verdict.verdict, verdict.r, verdict.body["against"]) == ("failed", 2, [root.open("demo@1").id])
    assert root.state.txns[samples_of(root, second).body["txn"]].status == "aborted"
    assert numbers(root) == [1]
    assert "alone: only the first one may come" in failure_of(release(gate))


def test_a_check_that_raises_is_closed(root: loader.Root, landing: Path, release: Release) -> None:
    def broken(table: pl.DataFrame, baseline: pl.LazyFrame | None) -> CheckResult:
        raise ZeroDivisionError("oh")

    cut(root, landing)
    stopped = release(Gate(checks={"mine": broken}))
    assert checks(stopped) == {**DRIFT, "expectations": True, "mine": False}
    assert "could not run: ZeroDivisionError: oh" in failure_of(stopped)
    assert numbers(root) == []


@pytest.mark.parametrize("severity", ["ERROR", "critical", dg.AssetCheckSeverity.ERROR])
def test_a_failed_check_stops_a_batch_whatever_it_calls_its_severity(
    root: loader.Root, landing: Path, release: Release, severity: Any
) -> None:
    def mine(table: pl.DataFrame, baseline: pl.LazyFrame | None) -> CheckResult:
        return CheckResult(name="mine", passed=False, severity=severity, explanation="it is bad")

    batch = cut(root, landing)
    stopped = release(Gate(checks={"mine": mine}))
    assert not stopped.success
    assert checks(stopped) == {**DRIFT, "expectations": True, "mine": False}
    assert verdict_of(root, batch).verdict == "failed"
    assert numbers(root) == []


def test_a_stored_verdict_that_let_an_unknown_severity_pass_is_made_again(
    root: loader.Root, landing: Path
) -> None:
    bad: list[str] = []

    def mine(table: pl.DataFrame, baseline: pl.LazyFrame | None) -> CheckResult:
        return CheckResult(name="mine", passed=not bad, explanation="it is bad")

    gate = Gate(checks={"mine": mine})
    batch = cut(root, landing)
    (audit,) = audit_waiting(root, "demo", "r", gate)
    assert audit.passed

    def as_before(body: dict[str, Any]) -> None:
        body["checks"][-1] |= {"passed": False, "severity": "critical"}

    edit(root, audit.record, as_before)
    bad.append("it always was")
    with pytest.raises(StageNotPublished, match="mine: it is bad"):
        publish_batches(root, "demo", "r", gate)
    assert numbers(root) == []
    assert verdict_of(root, batch).verdict == "failed"


def test_samples_cut_again_while_they_were_audited(
    root: loader.Root, landing: Path, release: Release
) -> None:
    batch = cut(root, landing)

    def meddle(table: pl.DataFrame, baseline: pl.LazyFrame | None) -> CheckResult:
        cut_again(root, landing, batch, 1.0)
        return CheckResult(name="x", passed=True)

    stopped = release(Gate(checks={"meddle": meddle}))
    assert "was cut again while it was audited" in failure_of(stopped)
    assert numbers(root) == []
    assert release(Gate()).success
    assert numbers(root) == [1]


def verdict_of(root: loader.Root, batch: str) -> StageRecord:
    found = current_record(root.store, "demo", "version", batch)
    assert found is not None
    return found


def edit(root: loader.Root, record: StageRecord, change: Callable[[dict[str, Any]], object]) -> None:
    """Another body under the same path, as a takedown puts it."""
    body = json.loads(root.store.get(record.path).data)
    change(body["body"])
    root.store.put(record.path, canonical(body))


def collect(root: loader.Root, batch: str) -> None:
    """What a collector takes of a transaction that was given up."""
    prefix = f"data/{samples_of(root, batch).body['txn']}/"
    gone = [info.key for info in root.store.list(prefix)]
    assert gone
    root.store.delete_many(gone)


@pytest.fixture
def good(root: loader.Root, tmp_path: Path, make_jpeg: Callable[..., bytes]) -> Callable[[], str]:
    """good(): another batch, of one photo; its key."""

    def arrive() -> str:
        (tmp_path / "other").mkdir()
        (tmp_path / "other/a.jpg").write_bytes(make_jpeg(44, 44))
        return cut(root, tmp_path / "other")

    return arrive


@pytest.mark.parametrize("earlier", [False, True], ids=["", "of a package before gated transactions"])
def test_a_batch_that_was_stopped_and_collected_holds_nothing_up(
    root: loader.Root, landing: Path, release: Release, good: Callable[[], str], earlier: bool
) -> None:
    """Nor a takedown in it: what was given up is not looked at again."""
    bad = cut(root, landing)
    gate = Gate(suite=(*SUITE, WRONG))
    assert not release(gate).success
    if earlier:
        edit(root, verdict_of(root, bad), lambda body: body.pop("publishes"))
    edit(root, samples_of(root, bad), lambda body: body["exclude"].update({"x": "taken down"}))
    collect(root, bad)
    published = good()
    done = release(gate)
    assert done.success, failure_of(done)
    (event,) = done.asset_materializations_for_node("demo__version")
    assert event.metadata["published_batches"].value == published
    assert event.metadata["held_back_batches"].value == bad
    assert verdict_of(root, bad).r == 1


def test_a_batch_that_was_given_up_while_its_gate_was_broken_holds_nothing_up(
    root: loader.Root, landing: Path, release: Release, good: Callable[[], str]
) -> None:
    bad = cut(root, landing)

    def broken(table: pl.DataFrame, baseline: pl.LazyFrame | None) -> CheckResult:
        raise RuntimeError("no network")

    assert not release(Gate(checks={"own": broken})).success
    root.abort(samples_of(root, bad).body["txn"], "no heartbeat for 72 hours")
    collect(root, bad)
    published = good()

    def mended(table: pl.DataFrame, baseline: pl.LazyFrame | None) -> CheckResult:
        return CheckResult(name="own", passed=True)

    done = release(Gate(checks={"own": mended}))
    assert done.success, failure_of(done)
    (event,) = done.asset_materializations_for_node("demo__version")
    assert event.metadata["published_batches"].value == published
    assert event.metadata["held_back_batches"].value == bad


def test_a_release_that_is_killed_while_it_stops_a_batch(
    root: loader.Root, landing: Path, release: Release, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its parts are given up first: a batch that was stopped can be cut again."""
    batch = cut(root, landing)
    gate = Gate(suite=(*SUITE, WRONG))

    def killed(*args: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("assets.release.audit.append_record", killed)
        with pytest.raises(KeyboardInterrupt):
            publish_batches(root, "demo", "r", gate)
    assert root.state.txns[samples_of(root, batch).body["txn"]].status == "aborted"
    assert not release(gate).success
    assert verdict_of(root, batch).verdict == "failed"
    cut_again(root, landing, batch, 0.0)
    assert release(Gate()).success


def test_a_batch_that_was_collected_before_a_gate_looked_at_it(
    root: loader.Root, landing: Path, release: Release, good: Callable[[], str]
) -> None:
    """It waited for longer than a collector does: that is said once, and the others go."""
    lost = cut(root, landing)
    root.abort(samples_of(root, lost).body["txn"], "no heartbeat for 72 hours")
    collect(root, lost)
    published = good()
    stopped = release(Gate())
    assert "were given up (no heartbeat for 72 hours) and collected: cut it again" in failure_of(stopped)
    done = release(Gate())
    assert done.success, failure_of(done)
    (event,) = done.asset_materializations_for_node("demo__version")
    assert event.metadata["published_batches"].value == published
    cut_again(root, landing, lost, 0.0)
    assert release(Gate()).success
    assert numbers(root) == [1, 2]


def test_a_record_that_says_something_else_than_the_verdict_is_of(root: loader.Root, landing: Path) -> None:
    """A takedown changed what is left out since: the batch is judged again, and published."""
    batch = cut(root, landing)
    (audit,) = audit_waiting(root, "demo", "r", Gate())
    assert audit.passed
    samples = samples_of(root, batch)
    table = candidate(root, samples)
    edit(root, samples, lambda body: body["exclude"].update({table["key"][0]: "taken down"}))
    done = publish_batches(root, "demo", "r", Gate())
    assert done.published == (batch,)
    assert verdict_of(root, batch).r == 2
    assert len(done.version) == len(table) - 1


def test_a_verdict_that_another_release_renews_meanwhile(
    root: loader.Root, landing: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = cut(root, landing)
    real = version._publish

    def late(*args: Any) -> loader.Version:
        monkeypatch.setattr(version, "_publish", real)
        append_record(root.store, replace(verdict_of(root, batch), run_id="another"))
        return real(*args)

    monkeypatch.setattr(version, "_publish", late)
    done = publish_batches(root, "demo", "r", Gate())
    assert done.published == (batch,)
    assert done.version.manifest["producer"]["audit_record"] == verdict_of(root, batch).path
    assert verdict_of(root, batch).run_id == "another"
