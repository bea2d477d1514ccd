"""Every landed object is used, rejected or dropped, whatever is wrong with it, and a bad one costs only itself."""

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import loader
from assets.arrivals.make_batches import discover
from assets.features import feature_asset as features
from assets.ingest import audit_work, units
from assets.ingest import media as validation
from assets.ingest import raw_objects as landing_stage
from assets.media.objects import AuditRequest
from assets.pipeline.stages import UNITS, PipelineStage
from assets.pipeline.tables import read_table
from assets.samples.samples_asset import samples_stage
from assets.spec import DatasetSpec, Feature, Filter
from loader.dataset.tables.parquet import TableFile
from loader.errors import Fenced, StageNotPublished, StoreError
from loader.storage import open_store
from penstock.compute.pool import Compute, InlineCompute, LocalCompute
from penstock.stages import StageRecord, current_record, partitions
from tests.refusals import refusal
from tests.servers.patience import PATIENCE_S

Publish = Callable[[loader.Root, StageRecord], loader.Version]
SPEC = DatasetSpec(
    name="demo",
    features=(
        Feature(name="picture"),
        Feature(name="phash"),
        Feature(name="loudness"),
        Feature(name="tokens"),
    ),
    splits={"train": 0.8, "validation": 0.2},
    max_reject_rate=1.0,
)


@pytest.fixture(scope="module")
def compute() -> Iterator[Compute]:
    engine = LocalCompute(workers=2)
    yield engine
    engine.close()


@pytest.fixture
def root(tmp_path: Path) -> loader.Root:
    made = loader.Root(tmp_path / "root")
    made.create()
    return made


def ingest(
    root: loader.Root, place: Path, compute: Compute, spec: DatasetSpec = SPEC, run_id: str = "run-1"
) -> tuple[StageRecord, dict[str, dict[str, str]]]:
    """All stages up to samples over what has arrived: the last record, and key -> account."""
    store = open_store(str(place))
    (batch,) = discover(root.store, store, spec.name)
    landing_stage.land(root.store, store, dataset=spec.name, partition=batch, run_id=run_id)
    return cut_again(root, place, compute, batch, spec, run_id)


def cut_again(
    root: loader.Root,
    place: Path,
    compute: Compute,
    batch: str,
    spec: DatasetSpec = SPEC,
    run_id: str = "run-1",
) -> tuple[StageRecord, dict[str, dict[str, str]]]:
    store = open_store(str(place))
    validation.media_stage(root, store, compute, spec, partition=batch, run_id=run_id)
    units.units_stage(root, store, compute, spec, partition=batch, run_id=run_id)
    for feature in spec.features:
        features.feature_stage(
            root,
            compute,
            feature.build(),
            dataset=spec.name,
            partition=batch,
            run_id=run_id,
            timeout_s=PATIENCE_S,
        )
    record, objects = samples_stage(root, spec, partition=batch, run_id=run_id)
    return record, {row["key"]: row for row in objects}


@pytest.fixture
def trouble(landing: Path, make_jpeg: Callable[..., bytes], make_video: Callable[..., bytes]) -> Path:
    """The landing place with everything that goes wrong in one."""
    photo, clip = make_jpeg(90, 70), make_video(list(range(0, 2000, 40)))
    files = {
        "photos/cats/same bytes.jpg": (landing / "photos/cats/a cat.jpg").read_bytes(),
        "photos/truncated.jpg": photo[: len(photo) // 2],
        "photos/empty.jpg": b"",
        "photos/a picture.mp4": photo,
        "videos/cut short.mp4": clip[: len(clip) // 2],
        "videos/weird..name.mp4": clip,
        "videos/not a video.mp4": b"\x00" * 5000,
        "text/notes.txt": b"Ein Text.\n",
        "text/broken.txt": b"\xff\xfe\xfa not UTF-8 \xc3",
    }
    for name, data in files.items():
        (landing / name).parent.mkdir(parents=True, exist_ok=True)
        (landing / name).write_bytes(data)
    return landing


def test_every_object_has_one_outcome(root: loader.Root, trouble: Path, compute: Compute) -> None:
    record, accounts = ingest(root, trouble, compute)
    outcomes = {key: (row["outcome"], row["stage"]) for key, row in accounts.items()}
    on_disk = {str(path.relative_to(trouble)) for path in trouble.rglob("*") if path.is_file()}
    assert set(accounts) == on_disk
    assert record.verdict == "published"
    assert record.counts["landed"] == sum(record.counts[name] for name in ("used", "rejected", "dropped"))
    used = {key for key, (outcome, _) in outcomes.items() if outcome == "used"}
    assert used == {
        "photos/cats/a cat.jpg",
        "photos/dogs/狗.jpg",
        "photos/a picture.mp4",
        "videos/clip.mp4",
        "videos/weird..name.mp4",
        "speech/tone.wav",
        "readme.txt",
        "text/notes.txt",
    }
    assert outcomes["photos/cats/same bytes.jpg"] == ("dropped", "dedup")
    for key in ("photos/truncated.jpg", "photos/empty.jpg", "videos/cut short.mp4", "videos/not a video.mp4"):
        assert outcomes[key][0] == "rejected", accounts[key]
        assert accounts[key]["reason"]
    assert outcomes["text/broken.txt"][0] == "rejected"


def test_what_is_published_can_be_trained_and_followed_back(
    root: loader.Root, trouble: Path, compute: Compute, publish_alone: Publish
) -> None:
    record, _ = ingest(root, trouble, compute)
    version = publish_alone(root, record)
    table = version.samples().collect()
    assert len(table) == record.counts["samples"]
    assert set(table["split"]) <= {"train", "validation"}
    assert table.filter(pl.col("kind") == "image")["luma_mean_ratio"].null_count() == 0
    plan = loader.plan(
        {"p": version.select("jpg", "phash.npy", where_present=True)},
        seed=1,
        global_batch=3,
        allow_repeats=True,
    )
    with loader.Loader(plan, 0, 1, framework="numpy") as batches:
        assert next(batches)["phash.npy"].shape == (3, 1)
    told = loader.explain(plan, 0, slot=0)[0].provenance
    assert (trouble / told["raw_key"]).exists()
    lineage = read_table(root.store, record.files["lineage"])
    mine = [row for row in lineage if row["out_id"] == loader.explain(plan, 0, slot=0)[0].address.key]
    assert [row["in_id"] for row in mine] == [told["unit_id"]]


def test_object_that_changes_or_goes_after_discovery_is_a_row(
    root: loader.Root, trouble: Path, compute: Compute, make_jpeg: Callable[..., bytes]
) -> None:
    store = open_store(str(trouble))
    (batch,) = discover(root.store, store, "demo")
    (trouble / "photos/dogs/狗.jpg").unlink()
    landing_stage.land(root.store, store, dataset="demo", partition=batch, run_id="r")
    (trouble / "photos/cats/a cat.jpg").write_bytes(make_jpeg(33, 44))
    shutil.rmtree(trouble / "speech")
    record, accounts = cut_again(root, trouble, compute, batch)
    assert accounts["photos/dogs/狗.jpg"]["code"] == "ObjectNotFound"
    assert accounts["photos/cats/a cat.jpg"]["code"] == "Changed"
    assert accounts["speech/tone.wav"]["outcome"] == "rejected"
    assert record.counts["landed"] == sum(record.counts[name] for name in ("used", "rejected", "dropped"))


def test_filter_drops_with_its_reason(
    root: loader.Root, landing: Path, compute: Compute, publish_alone: Publish
) -> None:
    spec = DatasetSpec(
        name="demo",
        features=(Feature(name="picture"),),
        filters=(Filter(column="width_px", minimum=70),),
        max_reject_rate=1.0,
    )
    record, accounts = ingest(root, landing, compute, spec)
    assert accounts["photos/dogs/狗.jpg"]["outcome"] == "dropped"
    assert accounts["photos/dogs/狗.jpg"]["reason"] == "width_px = 64 is below 70"
    assert record.counts["left_out"] == len(record.body["exclude"]) == 1
    assert len(publish_alone(root, record)) == record.counts["samples"]


def test_too_many_damaged_objects_stop_the_batch_for_good(
    root: loader.Root, trouble: Path, compute: Compute
) -> None:
    strict = DatasetSpec(name="demo", max_reject_rate=0.1)
    store = open_store(str(trouble))
    (batch,) = discover(root.store, store, "demo")
    landing_stage.land(root.store, store, dataset="demo", partition=batch, run_id="r")
    record, _, refusals = validation.media_stage(root, store, compute, strict, partition=batch, run_id="r")
    assert (record.verdict, len(refusals)) == ("failed", 6)
    assert "objects are unreadable; the limit is 10.0%" in record.reason
    with refusal(StageNotPublished, what="media", where=f"demo, partition {batch}", given=record.reason):
        units.units_stage(root, store, compute, strict, partition=batch, run_id="r")


def test_taking_the_damaged_files_away_lets_the_batch_through(
    root: loader.Root, trouble: Path, compute: Compute
) -> None:
    strict = DatasetSpec(name="demo", max_reject_rate=0.0)
    store = open_store(str(trouble))
    (batch,) = discover(root.store, store, "demo")
    landing_stage.land(root.store, store, dataset="demo", partition=batch, run_id="r")
    stopped, _, refusals = validation.media_stage(root, store, compute, strict, partition=batch, run_id="r")
    assert stopped.verdict == "failed"
    for row in refusals:
        if row["outcome"] == "rejected":
            (trouble / row["key"]).unlink()
    landing_stage.land(root.store, store, dataset="demo", partition=batch, run_id="r")
    record, accounts = cut_again(root, trouble, compute, batch, replace(SPEC, max_reject_rate=0.0))
    assert record.verdict == "published"
    assert accounts["photos/truncated.jpg"]["outcome"] == "dropped"
    assert record.counts["landed"] == sum(record.counts[name] for name in ("used", "rejected", "dropped"))


def test_failed_samples_audit_fences_its_parts(
    root: loader.Root, trouble: Path, compute: Compute, publish_alone: Publish
) -> None:
    store = open_store(str(trouble))
    (batch,) = discover(root.store, store, "demo")
    landing_stage.land(root.store, store, dataset="demo", partition=batch, run_id="r")
    lenient, strict = (
        DatasetSpec(name="demo", max_reject_rate=1.0),
        DatasetSpec(name="demo", max_reject_rate=0.1),
    )
    validation.media_stage(root, store, compute, lenient, partition=batch, run_id="r")
    units.units_stage(root, store, compute, lenient, partition=batch, run_id="r")
    record, _ = samples_stage(root, strict, partition=batch, run_id="r")
    assert record.verdict == "failed"
    with pytest.raises(Fenced):
        publish_alone(root, record)


def test_second_run_writes_nothing(root: loader.Root, trouble: Path, compute: Compute) -> None:
    first, _ = ingest(root, trouble, compute)
    folder = Path(root.url)
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}
    again, _ = cut_again(root, trouble, compute, first.partition, run_id="run-2")
    assert again == first
    after = {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}
    assert {path for path in after if after[path] != before.get(path)} == set()


def test_run_that_died_is_finished_in_its_own_transaction(
    root: loader.Root, landing: Path, compute: Compute, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dies_in_units(stage: PipelineStage, table: str, rows: Sequence[Mapping[str, Any]]) -> TableFile:
        if stage.name == UNITS:
            raise StoreError("gone in the middle", what="store")
        return write_table(stage, table, rows)

    write_table = PipelineStage.write_table

    with monkeypatch.context() as patched:
        patched.setattr(PipelineStage, "write_table", dies_in_units)
        with refusal(StoreError, what="store"):
            ingest(root, landing, compute)
    (begun,) = root.log.refresh().txns
    assert [*root.store.list(f"data/{begun}/")]
    record, _ = cut_again(root, landing, compute, *raw_partitions(root), run_id="run-2")
    assert list(root.log.refresh().txns) == [begun] == [record.body["txn"]]
    root.abort(begun, "no heartbeat for 72 hours")
    again, _ = cut_again(root, landing, compute, *raw_partitions(root), run_id="run-3")
    assert root.log.refresh().txns[again.body["txn"]].status == "open"


def test_two_runs_that_cut_a_batch_at_once_have_one_record(
    root: loader.Root, landing: Path, compute: Compute, monkeypatch: pytest.MonkeyPatch
) -> None:
    first: list[StageRecord] = []
    true, store = units.cut_objects, open_store(str(landing))
    told = {"compute": compute, "spec": SPEC}

    def overtaken(*given: object, **more: object) -> object:
        monkeypatch.setattr(units, "cut_objects", true)
        first.append(units.units_stage(root, store, **told, partition=batch, run_id="run-2")[0])
        return true(*given, **more)

    (batch,) = discover(root.store, store, "demo")
    landing_stage.land(root.store, store, dataset="demo", partition=batch, run_id="run-1")
    validation.media_stage(root, store, **told, partition=batch, run_id="run-1")
    monkeypatch.setattr(units, "cut_objects", overtaken)
    record, rows, _ = units.units_stage(root, store, **told, partition=batch, run_id="run-1")
    assert [record] == first == [current_record(root.store, "demo", "units", batch)]
    assert {row["part"] for row in rows} == {entry["part"]["id"] for entry in record.body["parts"]}


def raw_partitions(root: loader.Root) -> list[str]:
    return partitions(root.store, "demo", "raw_objects")


def test_splits_follow_the_raw_object_and_nothing_else(root: loader.Root) -> None:
    spec = DatasetSpec(name="demo", splits={"train": 0.7, "validation": 0.2, "test": 0.1})
    names = [spec.split_of(f"object {i}") for i in range(20_000)]
    shares = {name: names.count(name) / len(names) for name in set(names)}
    assert shares == pytest.approx({"train": 0.7, "validation": 0.2, "test": 0.1}, abs=0.015)
    assert names == [spec.split_of(f"object {i}") for i in range(20_000)]


def test_one_poison_sample_costs_itself(
    root: loader.Root, landing: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent.parent / "poison"))
    compute = LocalCompute(workers=2)  # workers take the path over when they start
    spec = DatasetSpec(name="demo", features=(Feature(name="tests_poison:Poison"),), max_reject_rate=1.0)
    try:
        record, accounts = ingest(root, landing, compute, spec)
    finally:
        compute.close()
    assert accounts["photos/dogs/狗.jpg"]["outcome"] == "dropped"
    assert "crashed" in accounts["photos/dogs/狗.jpg"]["reason"]
    assert accounts["photos/cats/a cat.jpg"]["outcome"] == "used"
    assert record.verdict == "published"


def test_fault_of_this_machine_is_nobodys_reject_row(
    root: loader.Root, landing: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(str(landing))
    (batch,) = discover(root.store, store, "demo")
    landing_stage.land(root.store, store, dataset="demo", partition=batch, run_id="r")
    (tmp_path / "not a folder").write_bytes(b"")
    elsewhere = str(tmp_path / "not a folder" / "x")
    monkeypatch.setattr(
        audit_work, "AuditRequest", lambda **given: AuditRequest(**{**given, "scratch": elsewhere})
    )
    with refusal(StoreError, what="audit", where="photos/cats/a cat.jpg") as fault:
        validation.media_stage(root, store, InlineCompute(), SPEC, partition=batch, run_id="r")
    assert str(fault.value.given).startswith(f"StoreError: temporary space {elsewhere}: Not a directory")
    assert current_record(root.store, "demo", "media", batch) is None
