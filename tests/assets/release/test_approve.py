"""Somebody lets a batch pass that the gate stopped: by name, with a reason, for these samples and checks alone."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import dagster as dg
import polars as pl
import pytest

import loader
from assets.checks import CheckResult, Expectation
from assets.gate_settings import SUITE, Gate
from assets.pipeline.stages import require_published
from assets.spec import DatasetSpec
from loader.dataset.log.entries import canonical
from loader.errors import Conflict, InvalidRuntime
from loader.storage import Store
from penstock.approvals import approve, halted_batches, stops_before_the_gate
from penstock.card.build import build_card
from penstock.cli import main
from penstock.stages import StageRecord, append_record, current_record
from tests.refusals import refusal

Run = Callable[..., dg.ExecuteInProcessResult]


def few(table: pl.DataFrame, baseline: pl.LazyFrame | None) -> CheckResult:
    """Wants more samples than the tests have."""
    return CheckResult(name="few", passed=False, explanation=f"{len(table)} samples are few")


def fine(table: pl.DataFrame, baseline: pl.LazyFrame | None) -> CheckResult:
    return CheckResult(name="fine", passed=True)


SPEC = DatasetSpec(name="demo", gate=Gate(checks={"few": few, "fine": fine}))
WHY = "the first delivery is small, as agreed"


@pytest.fixture
def photos(tmp_path: Path, make_jpeg: Callable[..., bytes]) -> Path:
    place = tmp_path / "photos"
    (place / "cats").mkdir(parents=True)
    for n in range(3):
        (place / f"cats/{n}.jpg").write_bytes(make_jpeg(50 + n, 40))
    return place


@pytest.fixture
def halted_batch(run: Run, arrive: Callable[[Path], str], photos: Path) -> str:
    """A batch that failed `few`, and its key."""
    batch = arrive(photos)
    assert run("ingest", SPEC, batch, photos).success
    assert not run("release", SPEC).success
    return batch


def approve_output(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, Any]:
    """Exit status and what `penstock approve ... --json` says."""
    status = main(["approve", *argv, "--json"])
    return status, json.loads(capsys.readouterr().out)


def test_approved_batch_becomes_a_version_that_says_so(
    run: Run,
    root: loader.Root,
    halted_batch: str,
    photos: Path,
    capsys: pytest.CaptureFixture[str],
    numbers: Callable[[], list[int]],
    failure_text: Callable[[dg.ExecuteInProcessResult], str],
) -> None:
    where = ("--root", root.url)
    status, (listed,) = approve_output(capsys, "demo", *where)
    assert (status, listed["batch"], listed["record"], listed["approved_by"]) == (0, halted_batch, 1, "")
    assert listed["failed"] == [{"name": "few", "explanation": "3 samples are few"}]
    assert main(["approve", "demo", halted_batch, *where]) == 0
    assert f"penstock approve demo {halted_batch} --record 1" in capsys.readouterr().out

    given = ("demo", halted_batch, *where, "--record", "1", "--by", "Ada", "--reason", WHY)
    status, made = approve_output(capsys, *given)
    assert (status, made["approved_by"], made["checks"]) == (0, "Ada", ["few"])
    assert numbers() == []
    # The parts were given up when the batch was stopped: it has to be cut again, and be the same.
    assert not run("release", SPEC).success
    assert run("ingest", SPEC, halted_batch, photos).success
    release = run("release", SPEC)
    assert release.success, failure_text(release)

    manifest = root.open("demo@1").manifest
    assert manifest["producer"]["approval"] == {
        "by": "Ada",
        "reason": WHY,
        "record": made["approval"],
        "checks": {"few": "3 samples are few"},
    }
    gate = manifest["producer"]["gate"]
    assert (gate["checks"]["few"], gate["checks"]["fine"]) == ("failed", "passed")
    page = root.store.get(gate["report"]).data.decode()
    assert "3 samples are few" in page
    assert gate["report"].startswith(f"gates/demo/{halted_batch}-")
    verdict = require_published(root.store, "demo", "version", halted_batch)
    assert verdict.approved_by == "Ada"
    (event,) = release.asset_materializations_for_node("demo__version")
    assert "| demo@1 | Ada |" in str(event.metadata["approved"].value)
    (check,) = [one for one in release.get_asset_check_evaluations() if one.check_name == "few"]
    assert (check.passed, check.severity) == (False, dg.AssetCheckSeverity.WARN)
    shown = {one.name: one for one in build_card(root, root.open("demo@1"), n_examples=0).history.checks}
    assert (shown["few"].failed, shown["few"].newest) == (1, f"3 samples are few. Approved by Ada: {WHY}")
    assert shown["fine"].failed == 0
    status, nothing = approve_output(capsys, "demo", *where)
    assert (status, nothing) == (0, [])


def test_approval_names_the_newest_verdict(
    run: Run, root: loader.Root, halted_batch: str, photos: Path
) -> None:
    with refusal(Conflict, what="verdict", where=f"batch {halted_batch} of demo", given=2, accepted=1):
        approve(root, "demo", halted_batch, record=2, by="Ada", reason=WHY)
    assert run("ingest", SPEC, halted_batch, photos).success
    assert not run("release", SPEC).success  # a second verdict
    with refusal(Conflict, what="verdict", where=f"batch {halted_batch} of demo", given=1, accepted=2):
        approve(root, "demo", halted_batch, record=1, by="Ada", reason=WHY)
    approve(root, "demo", halted_batch, record=2, by="Ada", reason=WHY)
    with refusal(Conflict, what="approval", where=f"batch {halted_batch} of demo", given="Ada"):
        approve(root, "demo", halted_batch, record=2, by="Bob", reason="me too")
    found = current_record(root.store, "demo", "approval", halted_batch)
    assert found is not None
    assert (found.r, found.upstream[0].r, found.reason) == (1, 2, WHY)


def test_failure_of_a_severity_that_nobody_knows_is_among_those_that_stopped_it(
    root: loader.Root, halted_batch: str
) -> None:
    """As an earlier release wrote it, which took any word."""
    found = current_record(root.store, "demo", "version", halted_batch)
    assert found is not None
    body = json.loads(root.store.get(found.path).data)
    odd = {"name": "odd", "passed": False, "severity": "critical", "approvable": "yes", "explanation": "no"}
    body["body"]["checks"].append(odd)
    root.store.put(found.path, canonical(body))
    (one,) = halted_batches(root, "demo")
    assert ([check["name"] for check in one.checks], one.never) == (["few", "odd"], ("odd",))
    with refusal(Conflict, what="checks", where=f"batch {halted_batch} of demo", given=("odd",)):
        approve(root, "demo", halted_batch, record=1, by="Ada", reason=WHY)


@pytest.mark.parametrize("what", ["another photo", "another check"])
def test_batch_without_approval_is_stopped_again(
    run: Run,
    root: loader.Root,
    halted_batch: str,
    photos: Path,
    what: str,
    numbers: Callable[[], list[int]],
) -> None:
    approve(root, "demo", halted_batch, record=1, by="Ada", reason=WHY)
    spec = SPEC
    if what == "another photo":  # one is gone: what the batch holds is not what Ada has seen
        (photos / "cats/2.jpg").unlink()
    else:
        spec = replace(SPEC, gate=Gate(checks={"few": few, "fine": few}))
    assert run("ingest", spec, halted_batch, photos).success
    assert not run("release", spec).success
    assert numbers() == []
    (found,) = halted_batches(root, "demo")
    assert found.approval is None
    approve(root, "demo", halted_batch, record=found.record.r, by="Ada", reason="that too")
    assert run("ingest", spec, halted_batch, photos).success
    assert run("release", spec).success
    assert root.open("demo@1").manifest["producer"]["approval"]["reason"] == "that too"


def breaks(table: pl.DataFrame, baseline: pl.LazyFrame | None) -> CheckResult:
    raise ZeroDivisionError("oh")


@pytest.mark.parametrize(
    ("gate", "named"),
    [
        (Gate(checks={"mine": breaks}), "mine"),
        (Gate(suite=(*SUITE, Expectation(kind="not_null", column="gone"))), None),
        (Gate(checks={"few": few}, protected=("eval@1",)), "protected"),
    ],
)
def test_what_nobody_can_approve(
    run: Run, arrive: Callable[[Path], str], root: loader.Root, photos: Path, gate: Gate, named: str | None
) -> None:
    spec = replace(SPEC, gate=gate)
    batch = arrive(photos)
    assert run("ingest", spec, batch, photos).success
    if named == "protected":
        record = require_published(root.store, "demo", "samples", batch)
        sha256 = pl.read_parquet(f"{root.url}/{record.body['parts'][0]['samples']['path']}")["raw_sha256"][0]
        with root.write("eval") as out:
            out.add("one", {"x.txt": b"x"}, source={"raw_sha256": sha256})
    assert not run("release", spec).success
    (found,) = halted_batches(root, "demo")
    if named is None:  # an expectation of the dataset's own that cannot be evaluated
        assert found.never
    else:
        assert named in found.never
    with refusal(Conflict, what="checks", where=f"batch {batch} of demo", given=found.never):
        approve(root, "demo", batch, record=found.record.r, by="Ada", reason=WHY)
    assert current_record(root.store, "demo", "approval", batch) is None


def test_what_makes_no_sense(
    run: Run, arrive: Callable[[Path], str], root: loader.Root, halted_batch: str, photos: Path
) -> None:
    for by, reason in (("", WHY), ("Ada", " ")):
        with refusal(InvalidRuntime, what="by and reason", given=(by, reason)):
            approve(root, "demo", halted_batch, record=1, by=by, reason=reason)
    with refusal(InvalidRuntime, what="verdict", given="000009-nothing", accepted=[halted_batch]):
        approve(root, "demo", "000009-nothing", record=1, by="Ada", reason=WHY)
    with refusal(InvalidRuntime, what="verdict", where="other", accepted=[]):
        halted_batches(root, "other")
    assert main(["approve", "demo", halted_batch, "--root", root.url, "--by", "Ada"]) == 2
    (photos / "cats/bad.jpg").write_bytes(b"\xff\xd8\xff nothing")
    damaged = arrive(photos)
    assert not run("ingest", SPEC, damaged, photos).success
    with pytest.raises(InvalidRuntime, match="in media: 1 of 1 objects are unreadable"):
        approve(root, "demo", damaged, record=1, by="Ada", reason=WHY)


def test_approve_says_why_there_is_nothing_to_approve(
    run: Run,
    arrive: Callable[[Path], str],
    root: loader.Root,
    photos: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A batch with a damaged file stops before the gate, where no approval helps."""
    spec = DatasetSpec(name="demo")
    place = photos.parent / "damaged"
    (place / "cats").mkdir(parents=True)
    (place / "cats/empty.jpg").write_bytes(b"")
    damaged = arrive(place)
    assert not run("ingest", spec, damaged, place).success
    stop = "1 of 1 objects are unreadable; the limit is 0.0% (max_reject_rate)"
    reason = f"batch {damaged} stopped before the gate, in media: {stop}"

    assert main(["approve", "demo", "--root", root.url]) == 2
    assert reason in capsys.readouterr().err

    assert run("ingest", spec, arrive(photos), photos).success
    assert run("release", spec).success
    assert main(["approve", "demo", "--root", root.url]) == 0
    shown = capsys.readouterr().out
    assert "the gate stops no batch of demo: all 1 that it judged passed or were approved" in shown
    assert reason in shown


def test_a_stop_before_the_gate_costs_no_other_batch(
    root: loader.Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    root.create()
    for batch in ("000001-a", "000002-b", "000003-c"):
        record = StageRecord(
            dataset="demo",
            stage="media",
            partition=batch,
            verdict="failed",
            reason=f"{batch} is damaged",
            run_id="r",
            code_version="1",
            fingerprint="f",
        )
        append_record(root.store, record, after=0)
    read = list[str]()
    get = type(root.store).get

    def record_key(store: Store, key: str, *arguments: Any, **options: Any) -> Any:
        read.append(key)
        return get(store, key, *arguments, **options)

    monkeypatch.setattr(type(root.store), "get", record_key)
    (sentence,) = stops_before_the_gate(root, "demo", "000002-b")
    assert "000002-b is damaged" in sentence
    assert [key.split("/")[3] for key in read] == ["000002-b"]
    assert len(stops_before_the_gate(root, "demo")) == 3
