"""Pictures of samples on the page about a verdict: of what was found, bounded, escaped, and gone with a takedown."""

import hashlib
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import loader
from assets.checks import CheckResult
from assets.drift import DriftFinding
from assets.drift.compare import version_baseline
from assets.drift.findings import as_check
from assets.gate_settings import Gate
from assets.ingest.media import media_stage
from assets.ingest.raw_objects import land
from assets.ingest.units import units_stage
from assets.pages import gate_page as examples
from assets.pages.gate_page import MAX_OF_FINDING, baseline_examples, finding_examples, render
from assets.release.gate_run import audit_batch
from assets.release.version_asset import audit_waiting, publish_batches
from assets.samples.assembly import candidate
from assets.samples.samples_asset import samples_stage
from assets.spec import DatasetSpec
from loader.dataset.log.denies import Target
from loader.errors import StageNotPublished
from loader.storage import open_store
from penstock.compute.pool import InlineCompute
from penstock.stages import StageRecord, current_record
from penstock.upkeep.takedown.prove import prove
from penstock.upkeep.takedown.takedown_run import run_takedown
from tests.refusals import refusal

SPEC = DatasetSpec(name="demo", gate=Gate(suite=(), protected=("eval@1",)))
CAT = "photos/cats/a cat.jpg"


class Tags(HTMLParser):
    def __init__(self, html: str) -> None:
        super().__init__()
        self.seen: list[str] = []
        self.pictures: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        self.pictures += [value or "" for name, value in attrs if (tag, name) == ("img", "src")]


@pytest.fixture
def cut(root: loader.Root, landing: Path, arrive: Callable[[Path], str]) -> StageRecord:
    """A batch that waits: photos, a sound and a clip."""
    batch, store, compute = arrive(landing), open_store(str(landing)), InlineCompute()
    land(root.store, store, dataset="demo", partition=batch, run_id="r")
    media_stage(root, store, compute, SPEC, partition=batch, run_id="r")
    units_stage(root, store, compute, SPEC, partition=batch, run_id="r")
    record, _ = samples_stage(root, SPEC, partition=batch, run_id="r")
    return record


def leak_check(*keys: str, column: str = "raw_sha256") -> CheckResult:
    return as_check("splits", [DriftFinding(what="leak", column=column, certain=True, keys=keys)], "all")


def test_every_kind_is_drawn_once_and_an_object_by_its_first_sample(
    root: loader.Root, cut: StageRecord
) -> None:
    table = candidate(root, cut)
    for raw_key, kind, pictures in (
        (CAT, "image", "image/jpeg"),
        ("videos/clip.mp4", "video", "image/jpeg"),
        ("speech/tone.wav", "audio", "image/png"),
    ):
        (words, example), *more = finding_examples(root, cut, table, [leak_check(raw_key, "no such object")])
        assert not more
        assert words == "leak: raw_sha256"
        assert (example.kind, example.media_type, example.trouble) == (kind, pictures, "")
        assert example.facts["raw_key"] == raw_key
        assert min(example.width_px, example.height_px) > 0
        again = finding_examples(
            root, cut, table, [leak_check(raw_key, example.key), leak_check(example.key, column="subject")]
        )
        assert [one.key for _, one in again] == [example.key]


def test_pictures_are_bounded(root: loader.Root, cut: StageRecord, monkeypatch: pytest.MonkeyPatch) -> None:
    table = candidate(root, cut)
    keys = table["key"].to_list()
    assert len(keys) >= 4
    assert len(finding_examples(root, cut, table, [leak_check(*keys)])) == MAX_OF_FINDING
    several = [leak_check(key, column=f"c{n}") for n, key in enumerate(keys)]
    whole = [len(one.picture) for _, one in finding_examples(root, cut, table, several)]
    assert len(whole) == len(keys)
    monkeypatch.setattr(examples, "MAX_NBYTES", sum(whole) - 1)
    assert len(finding_examples(root, cut, table, several)) == len(keys) - 1
    monkeypatch.setattr(examples, "MAX_EXAMPLES", 2)
    assert len(finding_examples(root, cut, table, several)) == 2


def test_nothing_of_a_sample_is_read_by_a_browser_as_markup(root: loader.Root, cut: StageRecord) -> None:
    hostile = "<script>alert(1)</script>"
    table = candidate(root, cut).with_columns(
        label=pl.lit(hostile), licence=pl.lit(f'"><img src=x {hostile}')
    )
    result = leak_check(CAT, column=hostile)
    tags = Tags(render("photos", {}, [result], "", finding_examples(root, cut, table, [result])))
    assert "script" not in tags.seen
    assert [one[:22] for one in tags.pictures] == ["data:image/jpeg;base64"]


def test_takedown_reaches_the_page_of_a_batch_that_no_version_has(
    root: loader.Root, cut: StageRecord, landing: Path
) -> None:
    with root.write("eval") as out:
        sha256 = hashlib.sha256((landing / CAT).read_bytes()).hexdigest()
        out.add("e/1", {"x.txt": b"x"}, source={"raw_sha256": sha256})
    with refusal(StageNotPublished, what="gate", where="demo", given=["protected"]):
        publish_batches(root, "demo", "r", SPEC.gate)
    verdict = current_record(root.store, "demo", "version", cut.partition)
    assert verdict is not None
    html = root.store.get(verdict.body["report"]).data.decode()
    (key,) = candidate(root, cut).filter(pl.col("raw_key") == CAT)["key"]
    assert len(Tags(html).pictures) == 1
    assert key in html
    root.store.put_if_absent("gates/others/1-0.html", b"<p>another dataset</p>")

    n = root.log.deny([Target(kind="raw", value=CAT)], "ticket 5", "privacy desk").n
    assert [place["path"] for place in unclean(prove(root, n))] != []
    run_takedown(root, n, apply=True)
    assert [info.key for info in root.store.list("gates/")] == ["gates/others/1-0.html"]
    assert not [path for path in map(str, unclean(prove(root, n))) if "gates/" in path]
    # A page that is made later shows what is left.
    table = candidate(root, cut)
    assert finding_examples(root, cut, table, [leak_check(key)]) == []
    other = next(one for one in table["key"] if one != key)
    assert [one.key for _, one in finding_examples(root, cut, table, [leak_check(key, other)])] == [other]


def test_what_was_there_before_stands_below_by_kind(root: loader.Root, cut: StageRecord) -> None:
    publish_batches(root, "demo", "r", Gate(suite=()))
    baseline = version_baseline(root, root.open("demo@1"))
    shown = finding_examples(root, cut, candidate(root, cut), [leak_check("videos/clip.mp4", CAT)])
    assert [one.kind for _, one in shown] == ["video", "image"]
    before = baseline_examples(root, baseline, shown)
    assert list(dict.fromkeys(words for words, _ in before)) == ["video in demo@1", "image in demo@1"]
    images = [one for words, one in before if words == "image in demo@1"]
    assert 1 < len(images) <= MAX_OF_FINDING
    assert len({one.facts["raw_key"] for one in images}) == len(images)
    assert {one.modality for one in images} == {"image"}
    assert all(one.picture and not one.trouble for _, one in before)
    assert baseline_examples(root, baseline, shown) == before
    assert baseline_examples(root, baseline, []) == []
    html = render("demo", {}, [], "", shown, before)
    assert html.index("Examples of the findings") < html.index("image in demo@1")

    raw_key = images[0].facts["raw_key"]
    root.log.deny([Target(kind="raw", value=raw_key)], "ticket 6", "privacy desk")
    assert raw_key not in [one.facts["raw_key"] for _, one in baseline_examples(root, baseline, shown)]


def test_picture_that_cannot_be_drawn_stops_no_verdict(
    root: loader.Root, cut: StageRecord, caplog: pytest.LogCaptureFixture
) -> None:
    publish_batches(root, "demo", "r", Gate(suite=()))
    baseline = version_baseline(root, root.open("demo@1"))
    shown = finding_examples(root, cut, candidate(root, cut), [leak_check("videos/clip.mp4")])
    root.store.delete_many([info.key for info in root.store.list("data/") if info.key.endswith(".tar")])
    assert baseline_examples(root, baseline, shown) == []
    assert "is not drawn" in caplog.text


def test_pictures_of_before_are_of_the_same_dataset(
    root: loader.Root, cut: StageRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A takedown deletes the pages of the datasets that have a sample."""
    asked: list[str] = []

    def record_dataset(root: loader.Root, baseline: Any, shown: Any) -> list[Any]:
        asked.append(baseline.version.dataset)
        return []

    monkeypatch.setattr("assets.release.gate_run.baseline_examples", record_dataset)
    with root.write("other") as out:
        out.add("e/1", {"x.txt": b"x"}, source={"raw_sha256": "0" * 64})
    audit_waiting(root, "demo", "r", Gate(suite=(), baseline="other@1"))
    assert asked == []
    publish_batches(root, "demo", "r", Gate(suite=(), thresholds=None))
    audit_batch(root, cut, Gate(suite=(), version="2"), "r")
    assert asked == ["demo"]


def test_pictures_of_before_are_bounded(
    root: loader.Root, cut: StageRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish_batches(root, "demo", "r", Gate(suite=()))
    baseline = version_baseline(root, root.open("demo@1"))
    shown = finding_examples(root, cut, candidate(root, cut), [leak_check("videos/clip.mp4", CAT)])
    before = baseline_examples(root, baseline, shown)
    monkeypatch.setattr(examples, "MAX_NBYTES", sum(len(one.picture) for _, one in before) - 1)
    assert baseline_examples(root, baseline, shown) == before[:-1]
    monkeypatch.setattr(examples, "MAX_KINDS", 1)
    assert {words for words, _ in baseline_examples(root, baseline, shown)} == {"video in demo@1"}


def unclean(proof: Any) -> list[Any]:
    return [place for place in proof["places"] if not place["clean"] and "path" in place]


def test_without_what_draws_there_are_names_alone(
    root: loader.Root, cut: StageRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "PIL", None)
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    assert finding_examples(root, cut, candidate(root, cut), [leak_check(CAT)]) == []


def test_samples_of_different_objects_come_first(root: loader.Root, cut: StageRecord) -> None:
    keys = candidate(root, cut)["key"].to_list()
    table = candidate(root, cut).with_columns(raw_key=pl.when(pl.col("key") != keys[-1]).then(pl.lit("one")))
    assert len(keys) > MAX_OF_FINDING
    shown = [one.key for _, one in finding_examples(root, cut, table, [leak_check(*keys)])]
    assert sorted(shown) == sorted([keys[0], keys[-1], keys[1]])
