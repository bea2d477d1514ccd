"""Files, episodes, records and messages that a place states and does not have: named, or left out and recorded."""

import io
import json
import re
import shutil

import h5py
import mcap.records
import mcap.writer
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import loader
from loader.dataset.columnar import shard_names
from loader.dataset.columnar.shard_names import missing_shards, shard_set
from loader.dataset.log.denies import Target
from loader.errors import Corrupt, EmptyVersion, InvalidRuntime, PenstockError
from penstock.formats.importing.write_parts import MISSING
from penstock.formats.registration.register import register
from penstock.formats.registration.selection import Selection
from penstock.formats.registry import FORMATS, REGISTERED, TABLES
from penstock.upkeep.takedown.prove import prove
from penstock.upkeep.takedown.takedown_run import run_takedown
from tests.penstock.formats.builders import lerobot_files, records, tars
from tests.penstock.formats.versions import importing, outcome
from tests.refusals import refusal

FIELDS = {"name": "txt"}


def registering(format, place, root, **how):
    return register(loader.Root(root), format, place, "r", **how)


def first_missing(version):
    return version.manifest["producer"]["missing"]["first"]


def drop(folder, pattern):
    for path in folder.glob(pattern):
        path.unlink()


def change_metadata(place, folder, name, change):
    path = place / folder / name
    path.write_text(path.read_text().replace(*change))


def state_messages(place):
    """Let the statistics of an MCAP file count a message more than it has."""
    sink = io.BytesIO()
    writer = mcap.writer.Writer(sink, use_summary_offsets=False)
    writer.start()
    channel = writer.register_channel("/x", "json", writer.register_schema("T", "jsonschema", b"{}"))
    for i in range(3):
        writer.add_message(channel, 10**9 + i, b'{"a": 1}', 10**9 + i)
    write = mcap.records.Statistics.write
    mcap.records.Statistics.write = lambda self, stream: write(
        mcap.records.Statistics(**{**self.__dict__, "message_count": 4}), stream
    )
    try:
        writer.finish()
    finally:
        mcap.records.Statistics.write = write
    drop(place, "*.mcap")
    (place / "a.mcap").write_bytes(sink.getvalue())


def mask_of_more(place):
    with h5py.File(place / "demos.hdf5", "a") as file:
        file["mask/train"] = np.array([b"demo_0", b"demo_7"])


def total_of_more(place):
    with h5py.File(place / "demos.hdf5", "a") as file:
        file["data"].attrs["total"] = 1000


def tfds_info(place):
    """State two splits and three records in the file that is there, which has fewer."""
    splits = [{"name": "train", "shardLengths": ["3000"]}, {"name": "test", "shardLengths": ["1"]}]
    (place / "dataset_info.json").write_text(json.dumps({"name": "d", "splits": splits}))


LOST = {
    "energon": (lambda place: drop(place, "000003.tar"), r"lists '000003.tar', which is not there"),
    "litdata": (lambda place: drop(place, "chunk-1-0.bin"), r"index\.json lists chunk-1-0\.bin"),
    "mds": (lambda place: drop(place, "shard.000001*"), r"index\.json lists shard\.000001\.0000\.mds"),
    "mcap": (state_messages, r"a\.mcap, in its statistics, states 4 messages, and 3 are there"),
    "rlds": (tfds_info, r"states 1 records of the split 'test', which has no file"),
    "rosbag": (
        lambda place: change_metadata(
            place, "two", "metadata.yaml", ("message_count: 12", "message_count: 19")
        ),
        r"two/metadata\.yaml states 19 messages, and \d+ are there",
    ),
    "robomimic": (mask_of_more, r"mask 'train', states 2 demonstrations, and 1 are there: demo_7 missing"),
}


@pytest.mark.parametrize("format", sorted(LOST))
def test_import_names_what_a_place_lacks(format, format_places, tmp_path):
    place = tmp_path / "place"
    shutil.copytree(format_places / format, place)
    change, why = LOST[format]
    change(place)
    done, root = importing(format, place, tmp_path / "root")
    assert [name for name in done.failures if "--allow-missing" in name]
    assert (done.id, root.datasets()) == ("", [])
    assert_matches(why, done.failures)
    done, root = importing(format, place, tmp_path / "root", allow_missing=True)
    assert done.failures == []
    assert_matches(why, done.missing_parts)
    assert_matches(why.replace(r"place/", ""), first_missing(root.open("d")))
    assert str(tmp_path) not in json.dumps(root.open("d").manifest["producer"])


def assert_matches(why, texts):
    assert any(re.search(why, text) for text in texts), f"{why} not found in {texts}"


def test_energon_archive_with_fewer_samples_than_its_index_states(format_places, tmp_path):
    place = tmp_path / "place"
    shutil.copytree(format_places / "energon", place)
    drop(place, ".nv-meta/index.sqlite")
    change_metadata(place, ".nv-meta", ".info.json", ('"000001.tar":2', '"000001.tar":4'))
    why = r"of '000001\.tar', states 4 samples, and 2 are there"
    assert re.search(why, outcome("energon", place))
    with refusal(
        Corrupt,
        what="samples",
        where=f"{tmp_path}/place/.nv-meta/.info.json, of '000001.tar'",
        given=2,
        accepted=4,
    ):
        registering("energon", place, tmp_path / "root")
    done = registering("energon", place, tmp_path / "root", allow_missing=True)
    assert_matches(why, done.missing_parts)
    assert len(done.version) == 12


def test_robomimic_steps_that_the_total_states(format_places, tmp_path):
    place = tmp_path / "place"
    shutil.copytree(format_places / "robomimic", place)
    total_of_more(place)
    assert "the attribute 'total' of data, states 1,000 steps" in outcome("robomimic", place)
    done, _ = importing("robomimic", place, allow_missing=True)
    assert ["states 1,000 steps" in text for text in done.missing_parts] == [True]


def write_records(folder, name, numbers):
    folder.mkdir(parents=True, exist_ok=True)
    rows = [records.record(records.example({"text": [b"a" * 9], "n": [n]})) for n in numbers]
    (folder / name).write_bytes(b"".join(rows))


def test_record_files_and_records_that_dataset_info_states(tmp_path):
    place = tmp_path / "place"
    for number in (0, 2):
        write_records(place, f"d-train.tfrecord-{number:05d}-of-00003", range(2))
    splits = [{"name": "train", "shardLengths": ["2", "2", "3"]}]
    (place / "dataset_info.json").write_text(json.dumps({"name": "d", "splits": splits}))
    how = {"fields": {"text": "txt"}}
    why = outcome("tfrecord", place, **how)
    assert "has no d-train.tfrecord-00001-of-00003, which the names of its other files state" in why
    done, root = importing("tfrecord", place, allow_missing=True, **how)
    assert (done.failures, done.samples) == ([], 4)
    assert_matches(r"d-train\.tfrecord-00001-of-00003", done.missing_parts)
    assert_matches(
        r"tfrecord-00002-of-00003, states 3 records, and 2 are there", first_missing(root.open("d"))
    )
    write_records(place, "d-train.tfrecord-00001-of-00003", range(2))
    assert "tfrecord-00002-of-00003, states 3 records, and 2 are there" in outcome("tfrecord", place, **how)
    (place / "dataset_info.json").write_text('{"splits": [{"name": "train", "shardLengths": ["many"]}]}')
    assert "is not a dataset_info.json of TensorFlow Datasets" in outcome("tfrecord", place, **how)


def write_shards(format, path):
    """Write a small object of a sharded format."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if format.startswith("webdataset"):
        path.write_bytes(tars.tar_bytes([(f"{path.name[:9]}.txt", b"a")]))
    elif format in ("parquet", "hf"):
        pq.write_table(pa.table({"name": [b"a"]}), path)
    elif format == "arrow":
        with pa.ipc.new_file(path, pa.schema({"name": pa.binary()})) as file:
            file.write_table(pa.table({"name": [b"a"]}))
    else:
        path.write_text({"csv": "name,n\na,1\n"}.get(format, '{"name": "a", "n": 1}\n'))


ENDINGS = {
    "arrow": ".arrow",
    "csv": ".csv",
    "hf": ".parquet",
    "json": ".json",
    "jsonl": ".jsonl",
    "parquet": ".parquet",
    "webdataset": ".tar",
}


@pytest.mark.parametrize("format", sorted(ENDINGS))
def test_files_that_names_state(format, tmp_path):
    place = tmp_path / "place"
    for number in (0, 1, 3):
        write_shards(format, place / f"data/train-{number:05d}-of-00004{ENDINGS[format]}")
    write_shards(format, place / f"data/test-00000-of-00001{ENDINGS[format]}")
    how = {} if format == "webdataset" else {"fields": FIELDS}
    lost = f"data/train-00002-of-00004{ENDINGS[format]}"
    done, _ = importing(format, place, tmp_path / "root", **how)
    assert_matches(f"has no {lost}, which the names of its other files state; fetch", done.failures)
    done, root = importing(format, place, tmp_path / "root", allow_missing=True, **how)
    assert (done.failures, done.samples) == ([], 4)
    assert first_missing(root.open("d")) == [
        f"the source has no {lost}, which the names of its other files state"
    ]
    if format in TABLES | REGISTERED:
        with refusal(Corrupt, what=[lost], given=1):
            registering(format, place, tmp_path / "root", **how)
        report = registering(format, place, tmp_path / "root", allow_missing=True, **how)
        assert first_missing(report.version) == first_missing(root.open("d"))
    # An object that patterns leave out is not missing.
    chosen = {"selection": Selection(exclude=("*-00002-*",))}
    done, root = importing(format, place, tmp_path / "other", **chosen, **how)
    assert (done.failures, done.samples, done.missing_parts) == ([], 4, [])
    # An import goes on where the owner deleted what it copied.
    (place / f"data/train-00003-of-00004{ENDINGS[format]}").unlink()
    write_shards(format, place / f"data/more-00000-of-00001{ENDINGS[format]}")
    done, _ = importing(format, place, tmp_path / "other", **chosen, **how)
    assert (done.failures, done.new, done.samples) == ([], 1, 5)


def test_missing_files_are_found_once_they_are_fetched(tmp_path):
    place = tmp_path / "place"
    write_shards("jsonl", place / "a-0-of-2.jsonl")
    done, root = importing("jsonl", place, tmp_path / "root", fields=FIELDS, allow_missing=True)
    assert len(done.missing_parts) == 1
    write_shards("jsonl", place / "a-1-of-2.jsonl")
    done, root = importing("jsonl", place, tmp_path / "root", fields=FIELDS)
    assert (done.failures, done.missing_parts, done.samples) == ([], [], 2)
    assert "missing" not in root.open("d@2").manifest["producer"]


def test_names_state_sets_of_files():
    def missing(*names):
        return list(missing_shards(names, lambda name: False))

    assert missing("a-00001-of-00002", "a-00000-of-00002", "b.json", "c-of-d", "e-1-of-0", "f-of-3") == []
    assert missing("a-1-of-3.csv", "a-2-of-3.csv", "a-3-of-3.csv") == []
    assert missing("a-1-of-3.csv", "a-3-of-3.csv") == ["a-2-of-3.csv"]
    assert missing("a-1-of-3.csv") == ["a-0-of-3.csv", "a-2-of-3.csv"]
    assert missing("x/c4-train.00001-of-00002.json.gz") == ["x/c4-train.00000-of-00002.json.gz"]
    # The Hub's writers put a hash behind the number, which differs.
    hashed = "train-00000-of-00003-a09b74b3ef9c3b56.parquet", "train-00002-of-00003-0123456789abcdef.parquet"
    assert missing(*hashed) == ["train-00001-of-00003-*.parquet"]
    assert missing("a-3-of-4.x.tfrecord-0-of-1") == []
    assert shard_set("a-0-of-99999999.csv") is None
    assert len(missing("a-0-of-1000000.csv")) == 999_999


def test_names_of_many_sets_are_bounded_together(monkeypatch):
    monkeypatch.setattr(shard_names, "MOST_FILES", 100)
    keys = [f"{letter}-0-of-60.csv" for letter in "abc"]
    assert len(list(missing_shards(keys, lambda name: False))) == 100
    left_out = []
    assert list(missing_shards(keys, lambda name: left_out.append(name) or True)) == []
    assert len(left_out) == 100


def test_missing_names_are_bounded(tmp_path):
    write_shards("jsonl", tmp_path / "place/a-0-of-50000.jsonl")
    done, root = importing("jsonl", tmp_path / "place", fields=FIELDS, allow_missing=True)
    assert len(done.missing_parts) == 21
    assert root.open("d").manifest["producer"]["missing"]["n"] == 49_999


def test_saved_dataset_without_a_file_or_a_split(tmp_path):
    place = tmp_path / "place"
    place.mkdir()
    (place / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    files = [{"filename": f"data-0000{n}-of-00002.arrow"} for n in range(2)]
    write_shards("arrow", place / "train/data-00000-of-00002.arrow")
    (place / "train/state.json").write_text(json.dumps({"_data_files": files}))
    done, root = importing("hf", place, tmp_path / "root", fields=FIELDS)
    assert_matches(r"has no 'train/data-00001-of-00002\.arrow', which its state\.json lists", done.failures)
    assert_matches(r"states the split 'test', which has no state\.json", done.failures)
    done, root = importing("hf", place, tmp_path / "root", fields=FIELDS, allow_missing=True)
    assert (done.samples, len(first_missing(root.open("d")))) == (1, 3)


@pytest.fixture
def arm(tmp_path):
    """LeRobot dataset of three episodes, whose recorder was killed: `info.json` counts five."""
    place = lerobot_files.v30(tmp_path / "arm", lerobot_files.v21(tmp_path / "v21"))
    change_info(place, total_episodes=5, total_frames=sum(lerobot_files.LENGTHS) + 20)
    return place


def change_info(place, **facts):
    path = place / "meta/info.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | facts))


def test_lerobot_episodes_that_info_states(arm, cli, tmp_path):
    why = "states 5 episodes, and meta/ names 3: it lacks episodes 3-4 (20 rows)"
    root = tmp_path / "root"
    for verb in ("import", "register"):
        refused = cli(verb, "lerobot", arm, verb, root=root)
        assert (refused.code, why in refused.out + refused.err) == (1, True)
        partial = cli(verb, "lerobot", arm, verb, "--allow-missing", root=root)
        assert (partial.code, why in partial.out, "3 samples" in partial.out) == (0, True, True)
        assert why in cli("show", f"{verb}@1", root=root).out
        chosen = cli(verb, "lerobot", arm, f"{verb}-some", "--episodes", "0-1", root=root)
        assert (chosen.code, "missing" in chosen.out) == (0, False)
    change_info(arm, total_episodes=3, total_tasks=9)
    assert "states 36 frames, and the episodes of meta/ have 16" in outcome("lerobot", arm)
    assert "states 9 tasks, and meta/ names 2" in outcome("lerobot", arm)


def test_lerobot_rows_of_unnamed_episodes_are_noted(arm, tmp_path):
    change_info(arm, total_episodes=2, total_frames=2)
    (path,) = (arm / "meta/episodes").rglob("*.parquet")
    pq.write_table(pq.read_table(path)[:2], path)
    done, _ = importing("lerobot", arm)
    assert (done.failures, done.samples) == ([], 2)
    assert_matches(r"rows of episodes that meta/ does not name are left out \(episodes 2\)", done.notes)


def test_lerobot_takes_complete_episodes(arm, tmp_path):
    change_info(arm, total_episodes=3, total_frames=16)
    lost = next((arm / "videos").rglob("*.mp4"))
    lost.unlink()
    key = lost.relative_to(arm).as_posix()
    assert f"the first is {key}: fetch" in outcome("lerobot", arm)
    # All three episodes need the shared video: nothing is left to take.
    with pytest.raises(EmptyVersion):
        importing("lerobot", arm, allow_missing=True)


@pytest.mark.parametrize("format", sorted(name for name, one in FORMATS.items() if not one.may_miss))
def test_formats_that_state_nothing_have_no_option(format, format_places, tmp_path):
    with refusal(InvalidRuntime, what="--allow-missing", given="files"):
        importing(format, format_places / format, allow_missing=True)
    if format in REGISTERED:
        with refusal(InvalidRuntime, what="--allow-missing", given="files"):
            registering(format, format_places / format, tmp_path / "root", allow_missing=True)


def test_killed_import_records_earlier_failures(tmp_path, monkeypatch):
    """A repeated import skips written parts, and does not read again what they lack."""
    place = tmp_path / "place"
    lengths = []
    for number in range(3):
        write_records(place, f"d-train.tfrecord-{number:05d}-of-00003", range(2))
        lengths.append("3" if number == 0 else "2")
    splits = [{"name": "train", "shardLengths": lengths}]
    (place / "dataset_info.json").write_text(json.dumps({"name": "d", "splits": splits}))
    how = {"fields": {"text": "txt"}, "allow_missing": True, "shard_bytes": 1, "workers": 1}
    whole, root = importing("tfrecord", place, tmp_path / "whole", **how)

    def interrupt(*args, **kwargs):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("penstock.formats.run_import.publish_registered", interrupt)
        with pytest.raises(KeyboardInterrupt):
            importing("tfrecord", place, tmp_path / "root", **how)
    done, root = importing("tfrecord", place, tmp_path / "root", **how)
    assert (done.nbytes, done.id) == (0, whole.id)
    assert_matches("states 3 records, and 2 are there", first_missing(root.open("d")))


def test_record_of_missing_parts_leaves_a_proof_complete(tmp_path):
    place = tmp_path / "place"
    write_records(place, "d-train.tfrecord-00000-of-00001", range(2))
    splits = [{"name": "train", "shardLengths": ["3"]}]
    (place / "dataset_info.json").write_text(json.dumps({"name": "d", "splits": splits}))
    _, root = importing("tfrecord", place, fields={"text": "txt"}, allow_missing=True)
    paths = [info.key for info in root.store.list("data/") if info.key.endswith(f"/{MISSING}")]
    assert len(paths) == 1
    key = root.open("d").samples().select("key").collect()["key"][0]
    deny = root.log.deny([Target(kind="sample", value=key, dataset="d")], "ticket 12", "privacy desk")
    run_takedown(root, deny.n, apply=True)
    unclean = [one["path"] for one in prove(root, deny.n)["places"] if not one["clean"] and "path" in one]
    assert not set(unclean) & set(paths)


def test_damage_is_no_missing_part(format_places, tmp_path):
    place = tmp_path / "place"
    shutil.copytree(format_places / "mds", place)
    path = next(place.glob("*.mds"))
    path.write_bytes(path.read_bytes()[:-1])
    done, _ = importing("mds", place, allow_missing=True)
    assert_matches("and its index gives", done.failures)
    with refusal(
        PenstockError, what="size", where=f"{tmp_path}/place/shard.000002.0000.mds", given=3662, accepted=3663
    ):
        registering("mds", place, tmp_path / "root", allow_missing=True)
