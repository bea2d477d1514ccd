"""Batches of texts that hold an evaluation's question: stopped, and published without it or by approval."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import dagster as dg
import pytest

import loader
from assets.gate_settings import Gate
from assets.spec import DatasetSpec, Feature, Filter
from loader.dataset.log.denies import Target
from penstock.approvals import approve, halted_batches
from penstock.card.build import build_card
from penstock.cli import main
from penstock.upkeep.takedown.takedown_run import run_takedown

Run = Callable[..., dg.ExecuteInProcessResult]
QUESTION = "Natalia sold clips to 48 of her friends in April, and then she sold half as many clips in May."
SPEC = DatasetSpec(name="demo", gate=Gate(blank=None, protected=("exam@1",)))


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    place = tmp_path / "texts"
    place.mkdir()
    for number in range(4):
        (place / f"{number}.txt").write_text(f"Text number {number} of a small delivery without a question.")
    (place / "poisoned.txt").write_text(f"A page about tests. {QUESTION.upper()} That was the first one.")
    return place


@pytest.fixture
def halted_batch(run: Run, arrive: Callable[[Path], str], root: loader.Root, texts: Path) -> str:
    """A batch that the gate stopped, and its key."""
    with root.write("exam") as writer:
        writer.add("q1", {"txt": QUESTION})
    batch = arrive(texts)
    assert run("ingest", SPEC, batch, texts).success
    return batch


def contaminated_key(root: loader.Root) -> str:
    (batch,) = halted_batches(root, "demo")
    (check,) = [check for check in batch.checks if check["name"] == "protected"]
    ((key,),) = [finding["keys"] for finding in check["findings"]]
    return str(key)


def test_question_stops_a_batch_until_its_document_is_excluded(
    run: Run,
    root: loader.Root,
    halted_batch: str,
    texts: Path,
    failure_text: Callable[[dg.ExecuteInProcessResult], str],
) -> None:
    release = run("release", SPEC)
    assert not release.success
    key = contaminated_key(root)
    both = f"1 sample (13 words in a row): {key} of exam@1[0]"
    assert both in failure_text(release)
    # Dagster's page of the check names both, too.
    (shown,) = [one for one in release.get_asset_check_evaluations() if one.check_name == "protected"]
    assert not shown.passed
    assert f"{key} of exam@1" in str(shown.metadata).replace("\\", "")
    # A filter leaves such documents out.
    feature = Feature(name="overlap", parameters={"root": root.url, "protected": ["exam@1"]})
    without = replace(SPEC, features=(feature,), filters=(Filter(column="overlap_ratio", maximum=0.0),))
    assert run("ingest", without, halted_batch, texts).success
    release = run("release", without)
    assert release.success, failure_text(release)
    version = root.open("demo@1")
    assert len(version) == 4
    assert main(["overlap", "demo@1", "--protected", "exam@1", "--root", root.url]) == 0
    card = build_card(root, version, n_examples=0)
    ((reason, n_samples),) = card.excluded.counts
    assert ("overlap_ratio" in reason, n_samples) == (True, 1)


def test_approval_is_on_record(run: Run, root: loader.Root, halted_batch: str, texts: Path) -> None:
    assert not run("release", SPEC).success
    key = contaminated_key(root)
    approve(root, "demo", halted_batch, record=1, by="Ada", reason="a quote, not the answer")
    assert run("ingest", SPEC, halted_batch, texts).success
    assert run("release", SPEC).success
    version = root.open("demo@1")
    approval = version.manifest["producer"]["approval"]
    assert (approval["by"], approval["reason"]) == ("Ada", "a quote, not the answer")
    assert f"{key} of exam@1[0]" in approval["checks"]["protected"]
    checks = {check.name: check for check in build_card(root, version, n_examples=0).history.checks}
    assert "Approved by Ada: a quote, not the answer" in checks["protected"].newest

    # A takedown of the document leaves its key in no record of the approval.
    n = root.log.deny([Target(kind="sample", value=key, dataset="demo")], "ticket 12", "privacy desk").n
    run_takedown(root, n, apply=True)
    records = {info.key: root.store.get(info.key).data for info in root.store.list("stages/")}
    assert [path for path, data in records.items() if key.encode() in data] == []
    assert any(b"(taken down) of exam@1[0]" in data for data in records.values())


def test_protected_version_that_was_retired_stops_every_batch(
    run: Run, root: loader.Root, halted_batch: str, failure_text: Callable[[dg.ExecuteInProcessResult], str]
) -> None:
    with root.write("exam") as writer:
        writer.add("q2", {"txt": "another question"})
    root.retire("exam@1", reason="replaced")
    release = run("release", SPEC)
    assert not release.success
    assert "retired: replaced; exam has versions 1..2" in failure_text(release)
    assert "Name a version that exists in Gate(protected=)" in failure_text(release)
    (batch,) = halted_batches(root, "demo")
    assert "protected" in batch.never
