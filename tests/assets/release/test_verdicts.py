"""Verdicts over time: batches that were given up, collected, cut or judged again since."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import loader
from assets.checks import CheckResult
from assets.gate_settings import SUITE, Gate
from assets.release import version_asset as version
from assets.release.version_asset import audit_waiting, publish_batches
from assets.samples.assembly import candidate
from loader.dataset.log.entries import canonical
from loader.errors import StageNotPublished
from penstock.stages import StageRecord, append_record
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


def test_stored_verdict_that_let_an_unknown_severity_pass_is_made_again(
    root: loader.Root, landing: Path
) -> None:
    bad: list[str] = []

    def mine(table: pl.DataFrame, baseline: pl.LazyFrame | None) -> CheckResult:
        return CheckResult(name="mine", passed=not bad, explanation="it is bad")

    gate = Gate(checks={"mine": mine})
    batch = cut(root, landing)
    (audit,) = audit_waiting(root, "demo", "r", gate)
    assert audit.passed

    def set_unknown_severity(body: dict[str, Any]) -> None:
        body["checks"][-1] |= {"passed": False, "severity": "critical"}

    edit(root, audit.record, set_unknown_severity)
    bad.append("it always was")
    with refusal(StageNotPublished, what="gate", where="demo", given=["mine"]):
        publish_batches(root, "demo", "r", gate)
    assert numbers(root) == []
    assert version_record(root, batch).verdict == "failed"


def test_samples_cut_again_while_they_were_audited(
    root: loader.Root, landing: Path, release: Release
) -> None:
    batch = cut(root, landing)

    def meddle(table: pl.DataFrame, baseline: pl.LazyFrame | None) -> CheckResult:
        cut_again(root, landing, batch, 1.0)
        return CheckResult(name="x", passed=True)

    stopped = release(Gate(checks={"meddle": meddle}))
    assert "was cut again during its audit" in failure_text(stopped)
    assert numbers(root) == []
    assert release(Gate()).success
    assert numbers(root) == [1]


def edit(root: loader.Root, record: StageRecord, change: Callable[[dict[str, Any]], object]) -> None:
    """Another body under the same path, as a takedown puts it."""
    body = json.loads(root.store.get(record.path).data)
    change(body["body"])
    root.store.put(record.path, canonical(body))


def collect(root: loader.Root, batch: str) -> None:
    """What a collector takes of a transaction that was given up."""
    prefix = f"data/{samples_record(root, batch).body['txn']}/"
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
def test_stopped_and_collected_batch_delays_nothing(
    root: loader.Root, landing: Path, release: Release, good: Callable[[], str], earlier: bool
) -> None:
    """Nor a takedown in it: what was given up is not looked at again."""
    bad = cut(root, landing)
    gate = Gate(suite=(*SUITE, WRONG))
    assert not release(gate).success
    if earlier:
        edit(root, version_record(root, bad), lambda body: body.pop("publishes"))
    edit(root, samples_record(root, bad), lambda body: body["exclude"].update({"x": "taken down"}))
    collect(root, bad)
    published = good()
    done = release(gate)
    assert done.success, failure_text(done)
    (event,) = done.asset_materializations_for_node("demo__version")
    assert event.metadata["published_batches"].value == published
    assert event.metadata["held_back_batches"].value == bad
    assert version_record(root, bad).r == 1


def test_batch_dropped_while_its_gate_was_broken_delays_nothing(
    root: loader.Root, landing: Path, release: Release, good: Callable[[], str]
) -> None:
    bad = cut(root, landing)

    def raise_error(table: pl.DataFrame, baseline: pl.LazyFrame | None) -> CheckResult:
        raise RuntimeError("no network")

    assert not release(Gate(checks={"own": raise_error})).success
    root.abort(samples_record(root, bad).body["txn"], "no heartbeat for 72 hours")
    collect(root, bad)
    published = good()

    def passing_check(table: pl.DataFrame, baseline: pl.LazyFrame | None) -> CheckResult:
        return CheckResult(name="own", passed=True)

    done = release(Gate(checks={"own": passing_check}))
    assert done.success, failure_text(done)
    (event,) = done.asset_materializations_for_node("demo__version")
    assert event.metadata["published_batches"].value == published
    assert event.metadata["held_back_batches"].value == bad


def test_release_that_is_killed_while_it_stops_a_batch(
    root: loader.Root, landing: Path, release: Release, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its parts are given up first: a batch that was stopped can be cut again."""
    batch = cut(root, landing)
    gate = Gate(suite=(*SUITE, WRONG))

    def interrupt(*args: Any, **options: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("assets.pipeline.stages.append_record", interrupt)
        with pytest.raises(KeyboardInterrupt):
            publish_batches(root, "demo", "r", gate)
    assert root.state.txns[samples_record(root, batch).body["txn"]].status == "aborted"
    assert not release(gate).success
    assert version_record(root, batch).verdict == "failed"
    cut_again(root, landing, batch, 0.0)
    assert release(Gate()).success


def test_batch_that_was_collected_before_a_gate_looked_at_it(
    root: loader.Root, landing: Path, release: Release, good: Callable[[], str]
) -> None:
    """It waited for longer than a collector does: that is said once, and the others go."""
    lost = cut(root, landing)
    root.abort(samples_record(root, lost).body["txn"], "no heartbeat for 72 hours")
    collect(root, lost)
    published = good()
    stopped = release(Gate())
    assert "were given up (no heartbeat for 72 hours) and collected: cut it again" in failure_text(stopped)
    done = release(Gate())
    assert done.success, failure_text(done)
    (event,) = done.asset_materializations_for_node("demo__version")
    assert event.metadata["published_batches"].value == published
    cut_again(root, landing, lost, 0.0)
    assert release(Gate()).success
    assert numbers(root) == [1, 2]


def test_record_that_contradicts_its_verdict(root: loader.Root, landing: Path) -> None:
    """A takedown changed what is left out since: the batch is judged again, and published."""
    batch = cut(root, landing)
    (audit,) = audit_waiting(root, "demo", "r", Gate())
    assert audit.passed
    samples = samples_record(root, batch)
    table = candidate(root, samples)
    edit(root, samples, lambda body: body["exclude"].update({table["key"][0]: "taken down"}))
    done = publish_batches(root, "demo", "r", Gate())
    assert done.published == (batch,)
    assert version_record(root, batch).r == 2
    assert len(done.version) == len(table) - 1


def test_verdict_that_another_release_renews_meanwhile(
    root: loader.Root, landing: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = cut(root, landing)
    real = version._publish

    def late(*args: Any) -> loader.Version:
        monkeypatch.setattr(version, "_publish", real)
        append_record(root.store, replace(version_record(root, batch), run_id="another"))
        return real(*args)

    monkeypatch.setattr(version, "_publish", late)
    done = publish_batches(root, "demo", "r", Gate())
    assert done.published == (batch,)
    assert done.version.manifest["producer"]["audit_record"] == version_record(root, batch).path
    assert version_record(root, batch).run_id == "another"
