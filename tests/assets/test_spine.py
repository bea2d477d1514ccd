"""The gate: what failed its audit is not published, whichever way it is asked for."""

from collections.abc import Callable, Iterator
from pathlib import Path

import dagster as dg
import pytest

import loader
from assets.discovery import discover
from assets.landing import land
from assets.media.unit import CutPolicy
from assets.samples import Batch, cut_stage
from assets.stages import current_record
from assets.version import publish_batches
from dagster_project.definitions import build_defs
from loader.errors import Fenced, StageNotPublished
from loader.storage import open_store
from resources.storage import LandingResource, RootResource

KEY = dg.AssetKey(["demo", "samples"])
Run = Callable[..., dg.ExecuteInProcessResult]


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    (tmp_path / "dagster").mkdir()
    quiet = {"telemetry": {"enabled": False}}
    with dg.DagsterInstance.local_temp(str(tmp_path / "dagster"), overrides=quiet) as made:
        yield made


@pytest.fixture
def root(tmp_path: Path) -> loader.Root:
    return loader.Root(tmp_path / "root")


@pytest.fixture
def run(tmp_path: Path, landing: Path, instance: dg.DagsterInstance) -> Run:
    def go(
        job: str, batch: str | None = None, place: Path | None = None, **config: int
    ) -> dg.ExecuteInProcessResult:
        instance.add_dynamic_partitions("raw_batch", [batch] if batch else [])
        defs = build_defs(
            {
                "root": RootResource(url=str(tmp_path / "root")),
                "landing": LandingResource(url=str(place or landing)),
            }
        )
        settings = {"ops": {"demo__samples": {"config": config}}} if config else {}
        quiet = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}
        return defs.resolve_job_def(job).execute_in_process(
            instance=instance, partition_key=batch, run_config=quiet | settings, raise_on_error=False
        )

    return go


def arrive(root: loader.Root, place: Path) -> str:
    """The batch of what has arrived."""
    root.create()
    (batch,) = discover(root.store, open_store(str(place)), "demo")
    return batch


def break_one(landing: Path) -> Path:
    whole = (landing / "videos/clip.mp4").read_bytes()
    broken = landing / "videos/broken.mp4"
    broken.write_bytes(whole[: len(whole) * 3 // 4])
    return broken


def failure_of(result: dg.ExecuteInProcessResult) -> str:
    (failed,) = [event for event in result.all_events if event.is_step_failure]
    data = failed.step_failure_data.user_failure_data
    return (data.description if data else None) or str(failed.step_failure_data.error)


def no_version(root: loader.Root) -> bool:
    return not root.state.versions("demo") and not any(
        info.key.endswith((".manifest.json", "manifest.json")) for info in root.store.list("data/")
    )


def test_files_become_a_version(run: Run, root: loader.Root, landing: Path) -> None:
    ingest = run("ingest", arrive(root, landing))
    assert ingest.success, failure_of(ingest)
    assert no_version(root)  # cut and checked is not published
    release = run("release")
    assert release.success
    version = root.open("demo@1")
    assert len(version) == 4  # two photos, one clip, one segment
    assert version.fields == (
        "clip.json",
        "cls",
        "flac",
        "jpg",
        "mp4",
        "photo.json",
        "sound.flac",
        "speech.json",
    )
    assert version.manifest["producer"]["dagster_run_id"] == release.run_id
    assert version.manifest["producer"]["labels"] == ["cats", "dogs"]
    table = version.samples().collect()
    assert set(table["run_id"]) == {ingest.run_id}
    assert set(table["asset_key"]) == {"demo/samples"}
    assert (landing / "photos/dogs/狗.jpg").as_posix() in set(table["raw_uri"])
    (check,) = ingest.get_asset_check_evaluations()
    assert (check.passed, check.asset_key, check.blocking) == (True, KEY, True)


def test_a_broken_file_stops_the_run_and_everything_after_it(
    run: Run, root: loader.Root, landing: Path, instance: dg.DagsterInstance
) -> None:
    broken = break_one(landing)
    batch = arrive(root, landing)
    stopped = run("ingest", batch)
    assert not stopped.success
    assert "videos/broken.mp4" in failure_of(stopped)
    (check,) = stopped.get_asset_check_evaluations()
    assert not check.passed
    assert not stopped.asset_materializations_for_node("demo__samples")
    assert instance.get_latest_materialization_event(KEY) is None
    refused = run("release")  # nothing of Dagster's forbids this run: the record does
    assert not refused.success
    assert "failed its check" in failure_of(refused)
    assert no_version(root)
    assert [txn.status for txn in root.state.txns.values()] == ["aborted"]

    broken.unlink()
    assert run("ingest", batch).success  # what was taken away is dropped; the batch is the same
    assert run("release").success
    assert len(root.open("demo@1")) == 4


def test_a_failed_batch_stays_out_when_others_are_published(
    run: Run, root: loader.Root, landing: Path, tmp_path: Path, make_jpeg: Callable[..., bytes]
) -> None:
    assert run("ingest", arrive(root, landing)).success
    bad = tmp_path / "bad"
    bad.mkdir()
    (bad / "new.jpg").write_bytes(make_jpeg(50, 40))
    (bad / "empty.jpg").write_bytes(b"")
    failed = arrive(root, bad)
    assert not run("ingest", failed, bad).success
    release = run("release")
    assert release.success
    assert len(root.open("demo@latest")) == 4
    (event,) = release.asset_materializations_for_node("demo__version")
    assert event.metadata["held_back_batches"].value == failed
    assert not run("release").success  # now only the failed one is left

    assert run("ingest", failed, bad, max_rejected=1).success
    assert run("release").success
    version = root.open("demo@2")
    assert len(version) == 5
    assert version.manifest["producer"]["labels"] == ["cats", "dogs", ""]
    assert version.manifest["parent"] == root.open("demo@1").id


def test_everything_again_changes_nothing(run: Run, root: loader.Root, landing: Path) -> None:
    batch = arrive(root, landing)
    for _ in range(2):
        assert run("ingest", batch).success
        assert run("release").success
    before = {info.key for info in root.store.list()}
    assert run("ingest", batch).success
    assert run("release").success
    assert {info.key for info in root.store.list()} == before
    assert [record.number for record in root.versions("demo")] == [1]


def test_what_arrives_later_becomes_the_next_version(
    run: Run, root: loader.Root, landing: Path, make_jpeg: Callable[..., bytes]
) -> None:
    assert run("ingest", arrive(root, landing)).success
    assert run("release").success
    (landing / "photos/cats/later.jpg").write_bytes(make_jpeg(70, 50))
    assert run("ingest", arrive(root, landing)).success
    assert run("release").success
    assert (len(root.open("demo@1")), len(root.open("demo@2"))) == (4, 5)


def test_the_version_alone_without_anything(run: Run, root: loader.Root) -> None:
    result = run("release")
    assert not result.success
    assert "materialize [demo, samples] first" in failure_of(result)


def test_a_batch_that_nobody_discovered(run: Run, root: loader.Root, landing: Path, tmp_path: Path) -> None:
    for batch in ("b1", "000001-00000000"):
        result = run("ingest", batch)
        assert not result.success
        assert "discovery" in failure_of(result)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    result = run("ingest", arrive(root, landing), elsewhere)
    assert "point the landing resource to where the objects are" in failure_of(result)


def test_samples_alone_without_a_landing(tmp_path: Path, landing: Path) -> None:
    root = loader.Root(tmp_path / "root")
    batch = Batch(dataset="demo", partition="b1", run_id="r")
    with pytest.raises(StageNotPublished, match="materialize \\[demo, raw_objects\\] first"):
        cut_stage(root, open_store(str(landing)), batch, CutPolicy(), 0)


def test_a_batch_whose_classes_were_numbered_before_another_publish_is_cut_again(
    tmp_path: Path, landing: Path, make_jpeg: Callable[..., bytes]
) -> None:
    root = loader.Root(tmp_path / "root")
    root.begin("demo")
    other = tmp_path / "other"
    (other / "ants").mkdir(parents=True)
    (other / "ants/a.jpg").write_bytes(make_jpeg(44, 44))
    for place in (landing, other):
        store, name = open_store(str(place)), arrive(root, place)
        land(root.store, store, dataset="demo", partition=name, run_id=name)
        cut_stage(root, store, Batch(dataset="demo", partition=name, run_id=name), CutPolicy(), 0)
    with pytest.raises(StageNotPublished, match="another batch was published meanwhile"):
        publish_batches(root, "demo", "r")
    assert root.open("demo@1").manifest["producer"]["labels"] == ["cats", "dogs"]
    again = Batch(dataset="demo", partition=name, run_id="again")
    cut_stage(root, open_store(str(other)), again, CutPolicy(), 1)
    assert publish_batches(root, "demo", "r").version.manifest["producer"]["labels"] == [
        "cats",
        "dogs",
        "ants",
    ]


def test_a_transaction_that_was_aborted_meanwhile_is_not_published(tmp_path: Path, landing: Path) -> None:
    root, store = loader.Root(tmp_path / "root"), open_store(str(landing))
    root.begin("demo")
    name = arrive(root, landing)
    land(root.store, store, dataset="demo", partition=name, run_id="1")
    batch = Batch(dataset="demo", partition=name, run_id="1")
    record, _ = cut_stage(root, store, batch, CutPolicy(), 0)
    root.abort(record.body["txn"], "collected")
    with pytest.raises(Fenced):
        publish_batches(root, "demo", "r")
    cut_stage(root, store, Batch(dataset="demo", partition=name, run_id="2"), CutPolicy(), 0)
    assert publish_batches(root, "demo", "r").version.number == 1
    newest = current_record(root.store, "demo", "samples", name)
    assert newest is not None
    assert newest.r == 2
