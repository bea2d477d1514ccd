"""The whole flow in Dagster: what arrives becomes versions, each batch once, and every sample can be followed back."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import dagster as dg
import pytest

import loader
from assets.pipeline.stages import require_published
from assets.spec import DatasetSpec, Feature

SPEC = DatasetSpec(
    name="demo", label_from="folder", features=(Feature(name="picture"), Feature(name="phash"))
)
STAGES = ("raw_objects", "media", "units", "feature_picture", "feature_phash", "samples")
Run = Callable[..., dg.ExecuteInProcessResult]
Told = Callable[[dg.ExecuteInProcessResult], str]
Arrive = Callable[[Path], str]
Jpeg = Callable[..., bytes]
Numbers = Callable[[], list[int]]


def test_files_become_a_version(
    run: Run, arrive: Arrive, root: loader.Root, landing: Path, numbers: Numbers, failure_text: Told
) -> None:
    batch = arrive(landing)
    ingest = run("ingest", SPEC, batch)
    assert ingest.success, failure_text(ingest)
    assert numbers() == []  # cut and checked is not published
    records = [require_published(root.store, "demo", stage, batch) for stage in STAGES]
    assert {record.run_id for record in records} == {ingest.run_id}
    for stage in STAGES:
        (event,) = ingest.asset_materializations_for_node(f"demo__{stage}")
        assert event.metadata["verdict"].value == "published"
    release = run("release", SPEC)
    assert release.success, failure_text(release)
    version = root.open("demo@1")
    assert len(version) == 5  # two photos, one clip, one segment, one document
    assert set(version.fields) == {
        *("clip.json", "mp4", "mp4.packets", "sound.flac", "phash.npy"),
        *("cls", "jpg", "photo.json", "flac", "speech.json", "txt", "document.json"),
    }
    producer = version.manifest["producer"]
    assert (producer["dagster_run_id"], producer["batch"]) == (release.run_id, batch)
    assert producer["labels"] == ["cats", "dogs"]
    assert version.facts.keys() == {"jpg", "mp4", "flac", "sound.flac", "phash.npy"}
    assert version.facts["phash.npy"] == {"dims": ["frame"], "unit": "64-bit hash"}
    table = version.samples().collect()
    assert set(table["run_id"]) == {ingest.run_id}
    assert set(table["asset_key"]) == {"demo/units"}
    assert set(table["raw_uri"]) == {path.as_posix() for path in landing.rglob("*") if path.is_file()}
    assert table["luma_mean_ratio"].drop_nulls().len() == 3  # of photos and the clip


def test_everything_again_changes_nothing(
    run: Run, arrive: Arrive, root: loader.Root, landing: Path, numbers: Numbers
) -> None:
    batch = arrive(landing)
    assert run("ingest", SPEC, batch).success
    assert run("release", SPEC).success
    before = {info.key for info in root.store.list()}
    assert run("ingest", SPEC, batch).success
    assert run("release", SPEC).success
    assert {info.key for info in root.store.list()} == before
    assert numbers() == [1]


def test_what_arrives_later_becomes_the_next_version(
    run: Run, arrive: Arrive, root: loader.Root, landing: Path, make_jpeg: Jpeg
) -> None:
    assert run("ingest", SPEC, arrive(landing)).success
    assert run("release", SPEC).success
    (landing / "photos/cats/later.jpg").write_bytes(make_jpeg(70, 50))
    (landing / "photos/cats/again.jpg").write_bytes((landing / "photos/cats/a cat.jpg").read_bytes())
    batch = arrive(landing)
    assert run("ingest", SPEC, batch).success
    assert require_published(root.store, "demo", "samples", batch).counts["dropped"] == 1
    assert run("release", SPEC).success
    assert (len(root.open("demo@1")), len(root.open("demo@2"))) == (5, 6)


def test_batches_that_wait_together(
    run: Run,
    arrive: Arrive,
    root: loader.Root,
    landing: Path,
    tmp_path: Path,
    make_jpeg: Jpeg,
    numbers: Numbers,
) -> None:
    """Both were cut before either was published: class numbers that clash and bytes that both hold."""
    other = tmp_path / "other"
    (other / "ants").mkdir(parents=True)
    (other / "ants/a.jpg").write_bytes(make_jpeg(44, 44))
    (other / "ants/b.jpg").write_bytes((landing / "photos/dogs/狗.jpg").read_bytes())
    assert run("ingest", SPEC, arrive(landing)).success
    late = arrive(other)
    assert run("ingest", SPEC, late, other).success
    release = run("release", SPEC)
    assert release.success
    (event,) = release.asset_materializations_for_node("demo__version")
    assert event.metadata["held_back_batches"].value == late
    assert root.open("demo@1").manifest["producer"]["labels"] == ["cats", "dogs"]
    assert len(root.open("demo@1")) == 5
    assert not run("release", SPEC).success  # only that one is left
    assert run("ingest", SPEC, late, other).success
    assert run("release", SPEC).success
    assert numbers() == [1, 2]
    assert root.open("demo@2").manifest["producer"]["labels"] == ["cats", "dogs", "ants"]
    assert len(root.open("demo@2")) == 6


def test_version_alone_without_anything(run: Run, root: loader.Root, failure_text: Told) -> None:
    result = run("release", SPEC)
    assert not result.success
    assert "materialize [demo, samples] first" in failure_text(result)


def test_batch_that_nobody_discovered(
    run: Run, arrive: Arrive, landing: Path, tmp_path: Path, failure_text: Told
) -> None:
    for batch in ("b1", "000001-00000000"):
        result = run("ingest", SPEC, batch)
        assert not result.success
        assert "discovery" in failure_text(result)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    result = run("ingest", SPEC, arrive(landing), elsewhere)
    assert "point it to the objects" in failure_text(result)


def test_batch_of_which_nothing_is_new_makes_no_version(
    run: Run, arrive: Arrive, landing: Path, numbers: Numbers, failure_text: Told
) -> None:
    assert run("ingest", SPEC, arrive(landing)).success
    assert run("release", SPEC).success
    (landing / "photos/cats/again.jpg").write_bytes((landing / "photos/cats/a cat.jpg").read_bytes())
    ingest = run("ingest", SPEC, arrive(landing))
    assert ingest.success, failure_text(ingest)
    assert run("release", SPEC).success
    assert numbers() == [1]


@pytest.mark.parametrize("stage", STAGES[1:])
def test_stage_alone_before_its_upstream(
    run: Run, arrive: Arrive, landing: Path, failure_text: Told, stage: str
) -> None:
    result = run([stage], replace(SPEC, max_reject_rate=1.0), arrive(landing))
    assert not result.success
    assert failure_text(result).startswith("stage ")  # a dg.Failure in words, not an exception
    assert "has published nothing: materialize [demo, " in failure_text(result)
