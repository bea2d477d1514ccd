"""A featurizer whose code fails, or that refuses more than the dataset allows, stops its batch by name."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

import loader
from assets.arrivals.batches import IngestBatches
from assets.features import compute
from assets.featurizers import Features, Featurizer
from assets.gate_settings import Gate
from assets.media.unit import rejected
from assets.spec import DatasetSpec, Feature
from penstock.stages import StageRecord, current_record
from tests.assets.featurizers.texts.conftest import sha256, write_tokenizer

Run = Callable[..., dg.ExecuteInProcessResult]
Told = Callable[[dg.ExecuteInProcessResult], str]
Arrive = Callable[[Path], str]
NIGHTLY_ERRORS = ("NameError", "AttributeError", "PermissionError")
STATE = {"fails": "", "least_bytes": 0}
"""How the featurizer fails, and for photos of fewer bytes than which; 0: for every photo."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fragile(Featurizer):
    """Bytes of a photo, unless `STATE` names a failure."""

    name: str = "fragile"

    @property
    def version(self) -> str:
        return "1-0"

    @property
    def inputs(self) -> Mapping[str, tuple[str, ...]]:
        return {"image": ("jpg",)}

    @property
    def columns(self) -> Mapping[str, tuple[str, ...]]:
        return {"image": ("size_bytes",)}

    def __call__(self, kind: str, sample: Mapping[str, bytes]) -> Features:
        nbytes = len(sample["jpg"])
        if not STATE["least_bytes"] or nbytes < STATE["least_bytes"]:
            fail(str(STATE["fails"]))
        return Features(fields={}, columns={"size_bytes": nbytes})


def fail(how: str) -> None:
    match how:
        case "TypeError":
            len(None)  # type: ignore[arg-type]
        case "NameError":
            no_such_name  # type: ignore[name-defined]  # noqa: B018, F821
        case "AttributeError":
            how.no_such_method()  # type: ignore[attr-defined]
        case "ModuleNotFoundError":
            import no_such_library  # type: ignore[import-not-found]  # noqa: F401
        case "PermissionError":
            raise PermissionError(13, "Permission denied")
        case "Unusable":
            raise rejected("featurize", "odd", "refused by the test")
        case "ValueError":
            raise ValueError("refused by accident")


@pytest.fixture(autouse=True)
def healthy() -> Any:
    STATE.update(fails="", least_bytes=0)
    yield
    STATE.update(fails="", least_bytes=0)


@pytest.fixture
def landing(tmp_path: Path, make_jpeg: Callable[..., bytes], make_wav: Callable[..., bytes]) -> Path:
    """Two photos of different sizes, and a sound."""
    place = tmp_path / "landing"
    place.mkdir()
    (place / "large.jpg").write_bytes(make_jpeg(160, 120))
    (place / "small.jpg").write_bytes(make_jpeg(40, 30))
    (place / "tone.wav").write_bytes(make_wav(2.0))
    return place


def make_spec(max_reject_rate: float) -> DatasetSpec:
    gate = Gate(suite=(), thresholds=None)
    features = (Feature(name=f"{__name__}:Fragile"),)
    return DatasetSpec(name="demo", features=features, gate=gate, max_reject_rate=max_reject_rate)


def stage_record(root: loader.Root, stage: str, batch: str) -> StageRecord | None:
    return current_record(root.store, "demo", stage, batch)


@pytest.mark.parametrize(
    "how",
    [
        "TypeError",
        "ModuleNotFoundError",
        *(pytest.param(how, marks=pytest.mark.nightly) for how in NIGHTLY_ERRORS),
    ],
)
def test_featurizer_whose_code_fails_stops_the_batch_by_name(
    how: str, run: Run, arrive: Arrive, root: loader.Root, landing: Path, failure_text: Told
) -> None:
    batch = arrive(landing)
    STATE["fails"] = how
    why = failure_text(run("ingest", make_spec(1.0), batch))
    assert "featurizer 'fragile'" in why
    assert how in why
    assert stage_record(root, "feature_fragile", batch) is None
    assert stage_record(root, "samples", batch) is None

    STATE["fails"] = ""
    repaired = run("ingest", make_spec(1.0), batch)
    assert repaired.success, failure_text(repaired)
    record = stage_record(root, "feature_fragile", batch)
    assert record is not None
    assert (record.verdict, record.counts["samples"], record.counts["refused"]) == ("published", 2, 0)


def standing(root: loader.Root) -> tuple[str, str]:
    """The only batch's standing, and what stopped it."""
    (one,) = IngestBatches("demo", ["feature_fragile"]).current(root)
    return one.standing, one.stopped_by


@pytest.mark.parametrize("how", ["Unusable", "ValueError"])
def test_featurizer_that_refuses_more_than_the_dataset_allows_stops_the_batch_by_name(
    how: str, run: Run, arrive: Arrive, root: loader.Root, landing: Path, failure_text: Told
) -> None:
    batch = arrive(landing)
    least_bytes = (landing / "small.jpg").stat().st_size + 1
    STATE.update(fails=how, least_bytes=least_bytes)
    why = failure_text(run("ingest", make_spec(0.4), batch))
    assert "featurizer 'fragile' refuses 1 of 2 samples" in why
    assert "max_reject_rate of the dataset allows 40.0%" in why
    assert "refused by" in why
    record = stage_record(root, "feature_fragile", batch)
    assert record is not None
    assert record.verdict == "failed"
    assert stage_record(root, "samples", batch) is None
    assert standing(root) == ("stopped", f"feature_fragile: {record.reason}")

    allowed = run("ingest", make_spec(0.5), batch)
    assert allowed.success, failure_text(allowed)
    samples = stage_record(root, "samples", batch)
    assert samples is not None
    assert (samples.counts["image"], samples.counts["left_out"]) == (1, 1)
    assert standing(root) == ("ready", "")


def legacy_faults(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Let errors of code refuse samples, as earlier releases did."""
    monkeypatch.setattr(compute, "CODE_ERRORS", ())
    return monkeypatch


def test_stored_refusal_by_a_fault_is_computed_again(
    run: Run, arrive: Arrive, root: loader.Root, landing: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = arrive(landing)
    STATE["fails"] = "TypeError"
    with monkeypatch.context() as patched:
        legacy_faults(patched)
        assert run("ingest", make_spec(1.0), batch).success
    old = stage_record(root, "feature_fragile", batch)
    assert old is not None
    assert (old.verdict, old.counts["refused"]) == ("published", 2)
    STATE["fails"] = ""
    for _ in range(2):  # the healthy record is reused
        assert run("ingest", make_spec(1.0), batch).success
        record = stage_record(root, "feature_fragile", batch)
        assert record is not None
        assert (record.r, record.counts["refused"]) == (2, 0)
    samples = stage_record(root, "samples", batch)
    assert samples is not None
    assert samples.counts["image"] == 2


@pytest.mark.parametrize("n_lost", [pytest.param(1, marks=pytest.mark.nightly), 2])
def test_published_batch_gets_its_lost_samples_by_another_run(
    n_lost: int,
    run: Run,
    arrive: Arrive,
    root: loader.Root,
    landing: Path,
    failure_text: Told,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    batch = arrive(landing)
    least_bytes = 0 if n_lost == 2 else (landing / "small.jpg").stat().st_size + 1
    STATE.update(fails="TypeError", least_bytes=least_bytes)
    with monkeypatch.context() as patched:
        legacy_faults(patched)
        assert run("ingest", make_spec(1.0), batch).success
    assert run("release", make_spec(1.0)).success
    first = root.open("demo@1")
    assert len(first) == 3 - n_lost
    digest = first.manifest

    STATE["fails"] = ""
    for result in (run("ingest", make_spec(1.0), batch), run("release", make_spec(1.0))):
        assert result.success, failure_text(result)
    assert root.open("demo@1").manifest == digest
    rows = root.open("demo@2").samples().collect().to_dicts()
    assert sorted(row["raw_key"] for row in rows) == ["large.jpg", "small.jpg", "tone.wav"]
    assert all(row["size_bytes"] for row in rows if row["raw_key"] != "tone.wav")
    again = run("ingest", make_spec(1.0), batch)
    assert again.success, failure_text(again)
    assert run("release", make_spec(1.0)).success
    assert [record.number for record in root.state.versions("demo")] == [1, 2]


def test_chats_that_cannot_be_trained_are_left_out_by_name(
    run: Run, arrive: Arrive, root: loader.Root, tmp_path: Path, failure_text: Told
) -> None:
    tokenizer = write_tokenizer(tmp_path)
    answer = {"role": "assistant", "content": "4"}
    questions = ["what is 2 + 2?", "a<|im_end|>b"]
    chats = [[{"role": "user", "content": text}, answer] for text in questions]
    chats.append([{"role": "user", "content": "no answer"}])
    place = tmp_path / "landing"
    place.mkdir(exist_ok=True)
    lines = [json.dumps({"messages": messages}) for messages in chats]
    (place / "chats.jsonl").write_text("\n".join(lines))
    batch = arrive(place)
    parameters = {"chat": "json", "tokenizer": str(tokenizer), "sha256": sha256(tokenizer)}
    features = (Feature(name="tokens", parameters=parameters),)
    spec = replace(make_spec(0.5), features=features)
    why = failure_text(run("ingest", spec, batch))
    assert "featurizer 'tokens' refuses 2 of 3 samples" in why
    assert "special_token" in why or "untrained" in why

    allowed = run("ingest", replace(spec, max_reject_rate=0.7), batch)
    assert allowed.success, failure_text(allowed)
    record = stage_record(root, "feature_tokens", batch)
    assert record is not None
    assert record.counts["refused"] == 2
    samples = stage_record(root, "samples", batch)
    assert samples is not None
    assert (samples.counts["text"], samples.counts["left_out"]) == (1, 2)
