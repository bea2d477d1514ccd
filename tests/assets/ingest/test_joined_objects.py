"""Raw objects of several files: rows of LeRobot with the videos of their episodes, and bags of ROS 2."""

import io
from argparse import Namespace
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rosbags.rosbag2 import StoragePlugin
from rosbags.rosbag2 import Writer as BagWriter
from rosbags.typesys import Stores, get_typestore

import loader
from assets.arrivals.batch_manifests import read_manifest
from assets.arrivals.joined_objects import raw_store
from assets.arrivals.make_batches import discover
from assets.arrivals.progress import TickDataset, read_progress
from assets.arrivals.reconcile import reconcile
from assets.arrivals.tick import tick
from assets.checks.expectations import Expectation
from assets.gate_settings import Gate
from assets.pipeline.tables import read_table
from assets.sources import BatchLimits, Feed, Source
from assets.spec import DatasetSpec, Feature
from loader.dataset.log.denies import Target
from loader.dataset.reading.verified_bucket_reads import read_fields
from loader.errors import Changed, InvalidRuntime, InvalidSpec, InvalidStore, ObjectNotFound
from loader.storage import Store, open_store
from penstock.formats.files_beside import files_beside
from penstock.stages import current_record
from penstock.upkeep.takedown.raw_objects import RawDeletion, delete_object
from penstock.upkeep.takedown.takedown_run import run_takedown
from penstock.verbs.takedown import request
from tests.assets.conftest import Run
from tests.penstock.formats.builders.lerobot_files import CAMERA, LENGTHS, v21, v30, video
from tests.refusals import refusal

SOURCE = Source(format="lerobot")
SUITE = Gate(thresholds=None)
HASH = Feature(name="phash", parameters={"video": f"{CAMERA}.mp4"})
DEMO = DatasetSpec(name="demo", sources=(SOURCE,), gate=SUITE, features=(HASH,))


def data(number: int) -> str:
    return f"data/chunk-000/episode_{number:06d}.parquet"


def film(number: int) -> str:
    return f"videos/chunk-000/{CAMERA}/episode_{number:06d}.mp4"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return v21(tmp_path / "in", cameras=[CAMERA])


@pytest.fixture(params=["s3", pytest.param("ceph", marks=pytest.mark.ceph)])
def bucket(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """URL of an empty place in a bucket, which the environment has the keys of."""
    server = request.getfixturevalue(request.param)
    monkeypatch.setenv("AWS_ENDPOINT_URL", server["endpoint_url"])
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", server["key"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", server["secret"])
    return f"s3://bucket{tmp_path}"


def upload(folder: Path, url: str) -> Store:
    store = open_store(url)
    for path in (path for path in folder.rglob("*") if path.is_file()):
        store.put(str(path.relative_to(folder)), path.read_bytes())
    return store


def open_raw_store(place: Path | str, source: Source = SOURCE) -> Store:
    return raw_store(open_store(str(place)), source)


@pytest.fixture
def land(root: loader.Root, run: Run) -> Callable[[Path | str], str]:
    """Take what has arrived to a version, and return its batch."""

    def go(place: Path | str) -> str:
        (batch,) = discover(root.store, open_raw_store(place), "demo", source=SOURCE)
        assert run("ingest", DEMO, batch, place).success
        assert run("release", DEMO, place=place).success
        return batch

    return go


def episodes(version: loader.Version) -> Iterator[tuple[str, bytes, bytes]]:
    """Source key, states and film of each sample, sorted."""
    names = dict(version.samples().select("key", "source_key").collect().iter_rows())
    places = version.address(np.arange(len(version)), ["observation.state.npy", f"{CAMERA}.mp4"])
    for at, one in zip(places, read_fields(version.shard_store, places), strict=True):
        yield names[at.key], bytes(one["observation.state.npy"]), bytes(one[f"{CAMERA}.mp4"])


def test_both_layouts_become_the_same_samples_with_features_splits_and_facts(
    place: Path, tmp_path: Path, root: loader.Root, land: Callable[[Path | str], str], bucket: str
) -> None:
    """One lies in a folder, the other in a bucket."""
    upload(v30(tmp_path / "together", place, cameras=[CAMERA]), bucket)
    land(place)
    first = root.open("demo@1")
    rows = first.samples().collect()
    told = {key: (split, n) for key, split, n in rows.select("source_key", "split", "n_frames").iter_rows()}
    assert told == {f"episode_{n:06d}": ("val" if n == 2 else "train", LENGTHS[n]) for n in range(3)}
    assert set(rows["raw_key"]) == {data(n) for n in range(3)}
    assert set(rows["kind"]) == {"video"}
    assert rows["phash"].null_count() == 0
    assert first.facts["observation.state.npy"]["fps"] == first.facts[f"{CAMERA}.mp4"]["fps"] == "30"
    found = sorted(episodes(first))
    assert [len(np.load(io.BytesIO(states))) for _, states, _ in found] == list(LENGTHS)
    land(bucket)
    second = root.open("demo@2")
    assert set(second.samples().collect()["raw_key"]) == {*rows["raw_key"], "data/chunk-000/file-000.parquet"}
    assert sorted(episodes(second)) == sorted([*found, *found])


def test_episode_sync_is_added_to_published_episodes(
    place: Path, root: loader.Root, land: Callable[[Path | str], str], run: Run, failure_text: Any
) -> None:
    batch = land(place)
    before = {info.key: info.etag for info in root.store.list("data/")}
    sync = Feature(
        name="episode_sync", parameters={"episode": "observation.state.npy", "idle_ms": 60, "still": 0.5}
    )
    check = Expectation(kind="between", column="clock_skew_ns", low=0, high=10**9)
    more = replace(DEMO, features=(HASH, sync), gate=replace(SUITE, suite=(*SUITE.suite, check)))
    again = run("ingest", more, batch, place)
    assert again.success, failure_text(again)
    assert run("release", more, place=place).success
    assert {info.key: info.etag for info in root.store.list("data/")}.items() > before.items()
    version = root.open("demo@2")
    assert version.facts["keep.npy"]["dims"] == ["row"]
    rows = version.samples().collect()
    assert set(rows["kind"]) == {"video"}
    assert rows["phash"].null_count() == rows["idle_ratio"].null_count() == rows["n_frozen"].null_count() == 0
    assert rows["clock_skew_ns"].to_list() == rows["n_gaps"].to_list() == [0] * 3
    keeps = [sample["keep.npy"] for sample in version[:]]
    assert sorted(map(len, keeps)) == sorted(LENGTHS)
    assert [round(1 - float(one.mean()), 6) for one in keeps] == rows["idle_ratio"].to_list()
    at = {"observation.state.npy": loader.rows(0, 2), f"{CAMERA}.mp4": [0]}
    view = version.select(*at).where("n_gaps = 0")
    assert len(loader.windows(view, anchor="observation.state.npy", at=at, keep="keep.npy")) == sum(
        int(one.sum()) for one in keeps
    )

    # Refreshed with other parameters: the new field has another name, and windows at its rows.
    strict = replace(sync, parameters=sync.parameters | {"still": 0.05})
    last = replace(more, features=(HASH, strict))
    again = run("ingest", last, batch, place)
    assert again.success, failure_text(again)
    assert run("release", last, place=place).success
    version = root.open("demo@3")
    assert version.facts["keep.r2.npy"] == version.facts["keep.npy"]
    samples = version[:]
    assert [sample["keep.npy"].tolist() for sample in samples] == [one.tolist() for one in keeps]
    stricter = [sample["keep.r2.npy"] for sample in samples]
    assert sum(int(one.sum()) for one in stricter) > sum(int(one.sum()) for one in keeps)
    ratios = version.samples().collect()["idle_ratio"].to_list()
    assert [round(1 - float(one.mean()), 6) for one in stricter] == ratios
    windows = loader.windows(
        version.select(*at).where("n_gaps = 0"), anchor="observation.state.npy", at=at, keep="keep.r2.npy"
    )
    rows_kept = [np.flatnonzero(one).tolist() for one in stricter]
    assert windows.rows(np.arange(len(windows))).tolist() == [row for rows in rows_kept for row in rows]


def test_video_that_is_replaced_makes_another_object(
    place: Path, root: loader.Root, land: Callable[[Path | str], str]
) -> None:
    before = {info.key: info for info in open_raw_store(place).list() if info.key.startswith("data/")}
    land(place)
    store = open_raw_store(place)
    held = store.head(data(1))
    video(str(place / film(1)), range(100, 100 + LENGTHS[1]))
    now = {info.key: info for info in open_raw_store(place).list() if info.key.startswith("data/")}
    assert {key for key in before if now[key].etag != before[key].etag} == {data(1)}
    with refusal(Changed, what=film(1), given=now[data(1)].etag):
        store.get_range(data(1), 0, held.nbytes, now[data(1)].etag)
    with refusal(Changed, what=film(1), given=held.etag):
        open_raw_store(place).get_range(data(1), 0, held.nbytes, held.etag)
    batch = land(place)
    record = current_record(root.store, "demo", "samples", batch)
    assert record is not None
    assert (record.counts["used"], record.counts["replaced"]) == (1, 1)
    assert len(root.open("demo@2")) == 3


def test_file_that_grows_brings_its_new_episodes_alone(
    tmp_path: Path, root: loader.Root, land: Callable[[Path], str]
) -> None:
    old, place = v21(tmp_path / "old", cameras=[CAMERA]), tmp_path / "in"
    land(v30(place, old, cameras=[CAMERA], lengths=LENGTHS[:2]))
    first = root.open("demo@1").samples().collect()
    batch = land(v30(place, old, cameras=[CAMERA]))
    second = root.open("demo@2").samples().collect()
    assert sorted(second["source_key"]) == [f"episode_{n:06d}" for n in range(3)]
    assert set(first["key"]) < set(second["key"])
    assert set(second["raw_key"]) == {"data/chunk-000/file-000.parquet"}
    assert second["phash"].null_count() == 0
    record = current_record(root.store, "demo", "units", batch)
    assert record is not None
    assert {name: record.counts[name] for name in ("units", "published_before", "replacing")} == {
        "units": 1,
        "published_before": 2,
        "replacing": 0,
    }


def test_one_that_is_gone_or_replaced_after_it_was_discovered_is_dropped_by_name(
    place: Path, root: loader.Root, run: Run
) -> None:
    (batch,) = discover(root.store, open_raw_store(place), "demo", source=SOURCE)
    (place / film(0)).unlink()
    assert run(["raw_objects"], DEMO, batch, place).success
    landed = current_record(root.store, "demo", "raw_objects", batch)
    assert landed is not None
    (row, *rest) = read_table(root.store, landed.files["raw_objects"])
    assert (row["error_code"], {one["error_code"] for one in rest}) == ("ObjectNotFound", {""})
    assert f"{film(0)} is missing" in row["error_reason"]
    video(str(place / film(2)), range(100, 100 + LENGTHS[2]))
    assert run(["media"], DEMO, batch, place).success
    record = current_record(root.store, "demo", "media", batch)
    assert record is not None
    assert (record.counts["admitted"], record.counts["dropped"]) == (1, 2)
    reasons = {row["key"]: row["reason"] for row in read_table(root.store, record.files["refusals"])}
    assert f"{film(0)} is missing" in reasons[data(0)]
    assert f"its newest file is {film(2)}" in reasons[data(2)]


@pytest.mark.parametrize("format", ["lerobot", "rosbag"])
@pytest.mark.parametrize("bucket", ["s3"], indirect=True)  # the server that tells its requests
def test_tick_reads_of_a_place_that_is_as_before_its_listing_alone(
    format: str, place: Path, tmp_path: Path, s3_answers: deque[tuple[str, str, int]], bucket: str
) -> None:
    if format == "rosbag":
        for name in ("five", "six"):
            bag(tmp_path / "bags" / name, name, StoragePlugin.MCAP)
    store, source = upload(place if format == "lerobot" else tmp_path / "bags", bucket), Source(format=format)

    def read() -> list[str]:
        s3_answers.clear()
        assert [*open_raw_store(bucket, source).list()]
        return sorted(path.rpartition("/")[2] for method, path, _ in s3_answers if bucket[11:] in path)

    first = read()
    assert first == (
        ["episodes.jsonl", "episodes_stats.jsonl", "info.json", "tasks.jsonl"]
        if format == "lerobot"
        else ["metadata.yaml"] * 2
    )
    assert read() == []
    assert len(s3_answers) == 1
    changed = "meta/info.json" if format == "lerobot" else "six/metadata.yaml"
    store.put(changed, store.get(changed).data + b"\n")
    assert read() == (first if format == "lerobot" else ["metadata.yaml"])


def test_object_waits_until_all_of_its_files_are_there(place: Path, tmp_path: Path) -> None:
    (place / film(0)).rename(tmp_path / "late.mp4")
    assert data(0) not in {info.key for info in open_raw_store(place).list()}
    with refusal(ObjectNotFound, what=film(0), where=f"{place}/{data(0)}"):
        open_raw_store(place).head(data(0))
    (tmp_path / "late.mp4").rename(place / film(0))
    store = open_raw_store(place)
    (info,) = (info for info in store.list() if info.key == data(0))
    files = [(place / name).read_bytes() for name in (data(0), film(0))]
    whole = b"".join(files)
    assert bytes(store.get_range(data(0), 3, len(whole) - 3, info.etag).data) == whole[3:]
    assert (info.nbytes, store.head(data(0)).etag) == (len(whole), info.etag)
    (place / film(0)).unlink()
    with pytest.raises(ObjectNotFound):
        store.head(data(0))


def test_neither_notices_nor_an_inventory_tell_of_objects_of_several_files(
    place: Path, root: loader.Root
) -> None:
    with refusal(InvalidSpec, what="listed", where="source 'landing'", given="rosbag"):
        Source(format="rosbag", listed=False, feed=Feed(url="/notices"))
    with refusal(InvalidStore, what="inventory", given="lerobot"):
        reconcile(
            TickDataset(store=root.store, name="demo", limits=BatchLimits()),
            SOURCE,
            open_raw_store(place),
            inventory="x",
        )
    report = reconcile(
        TickDataset(store=root.store, name="demo", limits=BatchLimits()), SOURCE, open_raw_store(place)
    )
    assert (report.n_there, report.n_batched, report.not_taken) == (3, 0, {"not_media": 7})


def test_place_without_rows_has_no_objects(place: Path) -> None:
    for path in (place / "data").rglob("*.parquet"):
        path.unlink()
    (place / "meta/info.json").unlink()
    assert [*open_raw_store(place).list()] == []


def test_takedown_of_an_object_reaches_its_videos(
    place: Path, root: loader.Root, land: Callable[[Path | str], str], bucket: str
) -> None:
    store = upload(place, bucket)
    land(bucket)
    n = request_takedown(root, f"{bucket}/{film(1)}", [f"{bucket}/{data(1)}"])
    ran = run_takedown(root, n, apply=True, raw=RawDeletion(delete_object, files_beside))
    assert set(root.open("demo@latest").samples().collect()["raw_key"]) == {data(0), data(2)}
    assert [uri.removeprefix(f"{bucket}/") for uri in ran.deleted] == [data(1)]
    there = {info.key for info in store.list()}
    assert {key for key in there if "meta/" not in key} == {data(0), data(2), film(0), film(2)}


def request_takedown(root: loader.Root, name: str, whole: list[str]) -> int:
    """The number of a takedown that names a file of a raw object, which is taken down whole."""
    asked = {"root": root.url, "raw": [name], "subject": [], "sample": [], "dataset": ""}
    body, text, _ = request.run(Namespace(**asked, reason="ticket 4", by="ann"))
    assert isinstance(body, dict)
    assert (body["whole"], all(uri in str(text) for uri in whole)) == (whole, True)
    return int(body["takedown"])


def manifest_text(root: loader.Root, batch: str) -> str:
    """The manifest of a batch."""
    return bytes(root.store.get(f"tables/demo/manifests/{batch[:6]}.json").data).decode()


def test_takedown_of_an_unknown_further_file_names_its_object(place: Path, root: loader.Root) -> None:
    """It was requested when its object was not discovered yet, or as it was."""
    dataset = TickDataset(store=root.store, name="demo", limits=BatchLimits())
    (step,) = tick(dataset, [SOURCE], lambda source: nullcontext(open_raw_store(place)))
    assert step.waiting == 3
    waiting = read_progress(root.store, "demo", SOURCE.name).waiting.values()
    assert {one.item.key: one.item.files for one in waiting} == {data(n): (film(n),) for n in range(3)}
    n = root.log.deny([Target(kind="raw", value=film(2))], "ticket 4", "ann").n
    (batch,) = discover(root.store, open_raw_store(place), "demo", source=SOURCE, denies=root.state.denies)
    assert [item.key for item in read_manifest(root.store, "demo", batch).objects] == [data(0), data(1)]
    (late,) = discover(root.store, open_raw_store(place), "demo", source=SOURCE)
    with pytest.raises(InvalidRuntime, match=f"request --raw {place}/{data(2)}"):
        run_takedown(root, n, apply=False)
    other = request_takedown(root, data(2), [])
    for number in (other, n):
        run_takedown(root, number, apply=True)
    assert film(2) not in manifest_text(root, late)
    assert film(1) in manifest_text(root, batch)


def bag(folder: Path, text: str, plugin: StoragePlugin) -> None:
    types, kind = get_typestore(Stores.ROS2_HUMBLE), "std_msgs/msg/String"
    with BagWriter(folder, version=9, storage_plugin=plugin) as out:
        to = out.add_connection("/said", kind, typestore=types)
        out.write(to, 0, types.serialize_cdr(types.types[kind](data=text), kind))


def test_bag_of_ros_2_is_one_raw_object(tmp_path: Path, root: loader.Root, run: Run, bucket: str) -> None:
    place, source = tmp_path / "in", Source(format="rosbag")
    place.mkdir()
    for name, plugin in (("five", StoragePlugin.SQLITE3), ("six", StoragePlugin.MCAP)):
        bag(place / name, name, plugin)
    (place / "odd").mkdir()
    (place / "odd/metadata.yaml").write_text("rosbag2_bagfile_information: 7")
    files = upload(place, bucket)
    found = {info.key: info for info in open_raw_store(bucket, source).list() if not source.sieve()(info)}
    assert set(found) == {f"{name}/metadata.yaml" for name in ("five", "six", "odd")}
    database = (place / "five/five.db3").read_bytes()
    assert found["five/metadata.yaml"].nbytes == sum(
        path.stat().st_size for path in (place / "five").iterdir()
    )
    demo = DatasetSpec(name="demo", sources=(source,), gate=SUITE, max_reject_rate=0.5)
    (batch,) = discover(root.store, open_raw_store(bucket, source), "demo", source=source)
    assert run("ingest", demo, batch, bucket).success
    assert run("release", demo, place=bucket).success
    rows = root.open("demo@1").samples().collect()
    assert dict(rows.select("source_key", "raw_key").iter_rows()) == {
        "five": "five/metadata.yaml",
        "six": "six/metadata.yaml",
    }
    n = request_takedown(root, "six/six.mcap", [f"{bucket}/six/metadata.yaml"])
    run_takedown(root, n, apply=True, raw=RawDeletion(delete_object, files_beside))
    assert "six.mcap" not in manifest_text(root, batch)
    assert list(files.list("six/")) == []
    files.put("five/five.db3", database + bytes(4096))
    (batch,) = discover(root.store, open_raw_store(bucket, source), "demo", source=source)
    assert [item.key for item in read_manifest(root.store, "demo", batch).objects] == ["five/metadata.yaml"]
    files.delete_many(["five/five.db3"])
    assert {info.key for info in open_raw_store(bucket, source).list()} == {"odd/metadata.yaml"}
