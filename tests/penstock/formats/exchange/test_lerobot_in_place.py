"""LeRobot datasets registered: videos stay where they are, and give the frames, rows and exports of their import."""

import io
import json
import os
import shutil
from dataclasses import replace
from itertools import islice
from pathlib import Path

import av
import numpy as np
import pytest

import loader
from loader.dataset.columnar.choices import NO_OPTIONS
from loader.dataset.log.denies import Target
from loader.dataset.reading.verified_bucket_reads import read_fields
from loader.errors import (
    Changed,
    Conflict,
    Corrupt,
    DecodeFailed,
    FieldMismatch,
    InvalidRuntime,
    InvalidStore,
)
from loader.modalities import find_decoder, row_blocks
from loader.modalities.video.demux import whole_file
from loader.modalities.video.packet_runs import mp4_of_run
from loader.modalities.video.packet_table import packets_bytes, read_packets
from loader.storage import open_store
from penstock.formats.lerobot import lerobot_registered
from penstock.formats.lerobot.lerobot_registered import register_lerobot
from penstock.formats.registration.adoption import adopt
from penstock.formats.run_export import export
from penstock.formats.run_import import import_place
from penstock.upkeep.exclusion import exclude
from penstock.upkeep.gc.collector import Options, collect
from penstock.upkeep.takedown.takedown_run import run_takedown
from penstock.upkeep.verify.version import verify
from penstock.view.episodes.episode_record import moment
from penstock.view.episodes.open_episode import open_episode
from penstock.view.inspect.sample_record import playable, sample_record
from penstock.view.inspect.version_record import sample_fields as names_of
from tests.penstock.formats.builders.lerobot_files import CAMERA, LENGTHS, OTHER, change_meta, v21, v30
from tests.penstock.formats.versions import field_bytes, objects
from tests.refusals import refusal

RUN, FILM = f"{CAMERA}.run", f"{CAMERA}.mp4"


@pytest.fixture(scope="module", params=["v21", "v30", "v30, B-frames"])
def place(request, tmp_path_factory):
    """A dataset, which no test spoils."""
    folder = tmp_path_factory.mktemp("place")
    hard = "B" in request.param
    old = v21(folder / "old", b_frames=2 * hard, gop=100 if hard else 3)
    return old if request.param == "v21" else v30(folder / "new", old)


@pytest.fixture
def own(tmp_path):
    """One that a test may spoil."""
    return v30(tmp_path / "own", v21(tmp_path / "old", cameras=[CAMERA]), cameras=[CAMERA])


@pytest.fixture
def root(tmp_path):
    with loader.Root(tmp_path / "root") as root:
        yield root


def register_folder(root, folder, name="r", **how):
    return register_lerobot(root, open_store(folder), name, **how)


def training_frames(version, *fields, at=(0, 0.05, 0.08)):
    """Key and field without its word -> its frames and times, as a training reads them."""
    plan = loader.plan({"d": version.select(*fields)}, seed=1, global_batch=1)
    decode = {name: loader.video(at=at, times=True) for name in fields}
    out = {}
    with loader.Loader(plan, decode=decode, epochs=1) as batches:
        for batch in batches:
            for name in fields:
                found = [np.asarray(batch[name][0]), np.asarray(batch[f"{name}.times"][0]).tolist()]
                out[batch.ids[0][1], name.rpartition(".")[0]] = found
    return out


def theirs(path, skip, n):
    """Frames [n, H, W, 3] of a file, decoded by PyAV from its beginning, the first `skip` left out."""
    with av.open(str(path)) as file:
        frames = [one.to_ndarray(format="rgb24") for one in islice(file.decode(video=0), skip + n)]
    return np.stack(frames[skip : skip + n])


def test_frames_are_those_of_the_import_and_of_the_owners_files(place, root):
    version = register_folder(root, place).version
    assert import_place(root, "lerobot", open_store(place), "i").failures == []
    copied = root.open("i")
    ours = training_frames(version, RUN, f"{OTHER}.run")
    imported = training_frames(copied, FILM, f"{OTHER}.mp4")
    assert ours.keys() == imported.keys()
    for n in range(len(LENGTHS)):
        for camera in (CAMERA, OTHER):
            if (place / "videos" / camera).is_dir():
                path, skip = place / f"videos/{camera}/chunk-000/file-000.mp4", sum(LENGTHS[:n])
            else:
                path, skip = place / f"videos/chunk-000/{camera}/episode_{n:06d}.mp4", 0
            pixels, times = ours[f"episode_{n:06d}", camera]
            assert times == imported[f"episode_{n:06d}", camera][1] == [0.0, 1 / 30, 2 / 30]
            np.testing.assert_array_equal(pixels, imported[f"episode_{n:06d}", camera][0])
            np.testing.assert_array_equal(pixels, theirs(path, skip, 3))
    assert len({pixels.tobytes() for pixels, _ in ours.values()}) == 6
    # Everything else is equal byte for byte, and so is the mp4 file that a run becomes.
    one, two = field_bytes(version), field_bytes(copied)
    for key, fields in one.items():
        for camera in (CAMERA, OTHER):
            run, packets = fields.pop(f"{camera}.run"), fields.pop(f"{camera}.run.packets")
            film, its = two[key].pop(f"{camera}.mp4"), two[key].pop(f"{camera}.mp4.packets")
            assert mp4_of_run(run, packets, key) == film
            for column in ("pts", "dts", "size", "key", "crc32c"):
                assert (
                    getattr(read_packets(packets), column).tolist()
                    == getattr(read_packets(its), column).tolist()
                )
    assert one == two
    assert version.facts[RUN] == copied.facts[FILM]
    columns = [v.samples().drop("part", "row", "unit_id", "raw_key", "raw_etag", strict=False).collect().to_dicts()
               for v in (version, copied)]  # fmt: skip
    assert columns[0] == columns[1]


def real(target):
    """Two real episodes of v2.1 (AV1, 480p), where PENSTOCK_MEDIA names the corpus; the last two."""
    for folder in filter(None, [os.environ.get("PENSTOCK_MEDIA")]):
        media = Path(folder) / "robot/g1_lerobot_v21"
        numbers = sorted(int(path.stem[-6:]) for path in media.rglob("*.parquet"))[-2:]
        for path in media.rglob("*"):
            if path.is_file() and (
                path.parent.name == "meta" or path.stem[-6:] in [f"{n:06d}" for n in numbers]
            ):
                (target / path.relative_to(media)).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, target / path.relative_to(media))
        for path in (target / "meta/episodes.jsonl", target / "meta/episodes_stats.jsonl"):
            told = [
                line for line in path.read_text().splitlines() if json.loads(line)["episode_index"] in numbers
            ]
            path.write_text("\n".join(told))
        yield numbers


def test_real_episodes_of_the_corpus(root, tmp_path):
    camera = "observation.images.cam_high"
    for numbers in real(tmp_path / "g1"):
        # The corpus has a few of the dataset's hundred episodes, as `info.json` states them.
        version = register_folder(root, tmp_path / "g1", allow_missing=True).version
        import_place(
            root, "lerobot", open_store(tmp_path / "g1"), "i", options=NO_OPTIONS._replace(allow_missing=True)
        )
        at = 0, 0.4, 1.9, 1.2
        ours, imported = (
            training_frames(version, f"{camera}.run", at=at),
            training_frames(root.open("i"), f"{camera}.mp4", at=at),
        )
        one, two = field_bytes(version), field_bytes(root.open("i"))
        for n in numbers:
            key, path = f"episode_{n:06d}", tmp_path / f"g1/videos/chunk-000/{camera}/episode_{n:06d}.mp4"
            pixels, times = ours[key, camera]
            assert times == imported[key, camera][1]
            np.testing.assert_array_equal(pixels, imported[key, camera][0])
            np.testing.assert_array_equal(pixels, theirs(path, 0, 60)[[round(time * 30) for time in times]])
            film = mp4_of_run(one[key].pop(f"{camera}.run"), one[key].pop(f"{camera}.run.packets"), key)
            assert film == two[key].pop(f"{camera}.mp4")
            del two[key][f"{camera}.mp4.packets"]
        assert one == two


def test_videos_are_not_copied(place, root):
    version = register_folder(root, place).version
    videos = sum(path.stat().st_size for path in place.rglob("*.mp4"))
    assert (
        sum(
            body["nbytes"]
            for name, body in version.manifest["groups"].items()
            if "cam" in name or "images" in name
        )
        == videos
    )
    assert not [info for info in root.store.list() if info.key.endswith(".mp4")]


def test_its_export_is_that_of_its_import(place, root, tmp_path):
    register_folder(root, place)
    import_place(root, "lerobot", open_store(place), "i")
    found = []
    for name in "ri":
        done = export(root.open(name), "lerobot", open_store(tmp_path / name))
        assert (done.lost, done.failures) == ([], [])
        all_of = objects(open_store(tmp_path / name))
        found.append(
            {key: data for key, data in all_of.items() if not key.startswith((".penstock", "meta/episodes/"))}
        )
    assert found[0] == found[1]
    assert sum(key.endswith(".mp4") for key in found[0]) == 2


def test_other_formats_keep_runs_with_their_tables(own, root, tmp_path):
    version = register_folder(root, own).version
    assert export(version, "webdataset", open_store(tmp_path / "tars")).failures == []
    assert import_place(root, "webdataset", open_store(tmp_path / "tars"), "back").failures == []
    back = root.open("back")
    assert field_bytes(back) == field_bytes(version)
    frames = [training_frames(one, RUN) for one in (back, version)]
    assert {key: one[0].tolist() for key, one in frames[0].items()} == {
        key: one[0].tolist() for key, one in frames[1].items()
    }


def test_video_that_is_written_again_is_refused_and_registered_again(own, root, tmp_path):
    version = register_folder(root, own).version
    path = own / f"videos/{CAMERA}/chunk-000/file-000.mp4"
    whole = path.read_bytes()
    path.write_bytes(whole + b"\0\0\0\x08free")
    with refusal(
        Changed, what="size", where=f"{tmp_path}/own/videos/observation.images.high/chunk-000/file-000.mp4"
    ):
        training_frames(root.open("r"), RUN)
    done = register_folder(root, own)
    assert (done.new, done.replaced, done.missing, done.version.name, len(done.version)) == (
        0,
        3,
        0,
        "r@2",
        3,
    )
    assert len(training_frames(done.version, RUN)) == 3
    assert version.id != done.version.id


def test_bit_that_flips_is_corrupt_and_named(own, root):
    register_folder(root, own)
    path = own / f"videos/{CAMERA}/chunk-000/file-000.mp4"
    version, known = root.open("r"), path.stat()
    at = version.address(np.array([1]), [RUN])[0].fields[RUN]
    data = bytearray(path.read_bytes())
    data[at.offset + at.nbytes - 3] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(known.st_atime_ns, known.st_mtime_ns))
    with refusal(Corrupt, what="observation.images.high.run", within="sample 'episode_000001'"):
        field_bytes(version)
    assert "episode_000001" in str(verify(root, "r", full=True).problems)


def test_episodes_that_are_new_or_gone(own, root):
    first = change_meta(own, lambda rows: rows[:2])
    done = register_folder(root, own)
    assert (done.new, len(done.version)) == (2, 2)
    first()
    done = register_folder(root, own)
    assert (done.new, done.replaced, done.same, len(done.version)) == (1, 0, 2, 3)
    assert len(done.version.parts.ids) == 2
    change_meta(own, lambda rows: rows[1:])
    done = register_folder(root, own)
    assert (done.missing, done.same, sorted(field_bytes(done.version))) == (
        1,
        2,
        ["episode_000001", "episode_000002"],
    )
    change_meta(own, lambda rows: [{**rows[0], "length": 8, "robot_name": "b"}, *rows[1:]])
    done = register_folder(root, own)
    assert (done.replaced, done.same) == (1, 1)


def test_excluded_episode_stays_out_until_it_changes(own, root):
    first = register_folder(root, own).version
    blurred, dark = sorted(first.samples().collect()["key"])[:2]
    exclude(root, "r", [blurred], by="ann", reason="blurred")
    again = register_folder(root, own)
    assert (again.version.name, again.new, again.same) == ("r@2", 0, len(LENGTHS))
    change_meta(own, lambda rows: [{**rows[0], "robot_name": "b"}, *rows[1:]])
    changed = register_folder(root, own)
    assert changed.version.name == "r@3"
    assert blurred not in changed.version.samples().collect()["key"].to_list()
    root.exclude("r", [dark], reason="dark")
    assert register_folder(root, own).version.name == "r@4"


@pytest.mark.parametrize("kind", ["raw", "sample"])
def test_taken_down_episode_is_left_alone(own, root, kind):
    first = register_folder(root, own).version
    rows = first.samples().collect().sort("key")
    value = rows["raw_key" if kind == "raw" else "key"][0]
    n = root.log.deny((Target(kind=kind, value=value, dataset="r"),), "ticket", "desk").n
    if kind == "raw":  # all episodes of this dataset have one data file
        assert register_folder(root, own).taken_down == len(LENGTHS)
        assert len(root.versions("r")) == 1
        return
    run_takedown(root, n, apply=True)
    versions = len(root.versions("r"))
    again = register_folder(root, own)
    assert (again.taken_down, again.new, len(root.versions("r"))) == (1, 0, versions)


def test_long_streams_have_row_blocks(own, root, monkeypatch):
    for module in (row_blocks, lerobot_registered):
        monkeypatch.setattr(module, "MIN_BYTES", 128 + 8 * 4 * 6)  # six rows of the widest stream
    first = change_meta(own, lambda rows: rows[:1])
    short = register_folder(root, own).version
    assert not [field for field in short.fields if field.endswith(".rows")]
    first()
    version = register_folder(root, own).version
    assert len(version.parts.ids) == 2
    view = version.select("matrix.npy.rows", where_present=True)
    ordinals = view.version_ordinals(np.arange(len(view)))
    found = read_fields(version.shard_store, version.address(ordinals, version.fields))
    long = dict(zip(view.keys(ordinals), found, strict=True))
    assert sorted(long) == ["episode_000001", "episode_000002"]
    for key in long:
        for field in ("matrix.npy", "matrix.ns.npy", "next.done.npy", "observation.state.npy"):
            data = long[key][field]
            assert long[key][f"{field}.rows"] == (row_blocks.index_rows(data) if len(data) > 320 else b"")
    assert long["episode_000001"]["matrix.npy.rows"]
    assert not long["episode_000002"]["next.done.npy.rows"]
    assert not [field for field in version.select().fields if field.endswith(".rows")]
    at = {"observation.state.npy": [0], RUN: [0]}
    windows = loader.windows(version.select(*at), anchor="observation.state.npy", at=at)
    with loader.Loader(
        loader.plan({"r": windows}, seed=1, global_batch=4), framework="numpy", workers=0, epochs=1
    ) as read:
        assert sum(len(batch.ids) for batch in read) == 4 * (sum(LENGTHS) // 4)
    change_meta(own, lambda rows: [{**row, "robot_name": "b"} for row in rows])
    assert register_folder(root, own).replaced == 3


def test_parts_share_no_video(tmp_path, root, monkeypatch):
    monkeypatch.setattr("penstock.formats.lerobot.lerobot_registered.PART_EPISODES", 1)
    old = v21(tmp_path / "old")
    assert len(register_folder(root, old).version.parts.ids) == 3
    new = register_folder(root, v30(tmp_path / "new", old), "one").version
    assert len(new.parts.ids) == 1
    assert training_frames(new, RUN).keys() == training_frames(root.open("r"), RUN).keys()


def sound(folder):
    """A sound between the packets of the video."""
    path = str(folder / f"videos/{CAMERA}/chunk-000/file-000.mp4")
    with av.open(path) as file, av.open(f"{path}.new", "w", format="mp4") as out:
        stream = out.add_stream_from_template(file.streams.video[0], opaque=True)
        other = out.add_stream("aac", rate=48000)
        for number, packet in enumerate(one for one in file.demux(video=0) if one.size):
            packet.stream = stream
            out.mux(packet)
            heard = av.AudioFrame.from_ndarray(np.zeros((1, 4096), np.float32), "fltp", "mono")
            heard.sample_rate, heard.pts = 48000, number * 4096
            out.mux(other.encode(heard))
        out.mux(other.encode(None))
    os.replace(f"{path}.new", path)


def mpeg4(folder):
    path = folder / f"videos/{CAMERA}/chunk-000/file-000.mp4"
    with av.open(str(path), "w", format="mp4") as out:
        stream = out.add_stream("mpeg4", rate=30, options={"g": "1"})
        stream.width = stream.height = 32
        for number in range(sum(LENGTHS)):
            out.mux(
                stream.encode(av.VideoFrame.from_ndarray(np.full((32, 32, 3), number, np.uint8), "rgb24"))
            )
        out.mux(stream.encode(None))


def one_path(folder):
    info = json.loads((folder / "meta/info.json").read_text())
    info["features"][OTHER] = info["features"][CAMERA]
    info["video_path"] = info["video_path"].replace("{video_key}", CAMERA)
    (folder / "meta/info.json").write_text(json.dumps(info))
    change_meta(
        folder,
        lambda rows: [
            {**row, **{name.replace(CAMERA, OTHER): value for name, value in row.items() if CAMERA in name}}
            for row in rows
        ],
    )


@pytest.mark.parametrize(
    ("spoil", "fault"),
    [
        (
            sound,
            {
                "what": "place of packet 1",
                "where": "videos/observation.images.high/chunk-000/file-000.mp4, episode 0",
            },
        ),
        (
            mpeg4,
            {
                "what": "packets",
                "where": "videos/observation.images.high/chunk-000/file-000.mp4, episode 0",
                "given": "mpeg4",
            },
        ),
        (
            one_path,
            {
                "what": "videos/observation.images.high/chunk-000/file-000.mp4",
                "given": ["observation.images.high", "observation.images.wrist"],
            },
        ),
    ],
)
def test_videos_that_cannot_be_read_where_they_lie_are_refused(own, root, spoil, fault):
    spoil(own)
    with refusal(InvalidStore, **fault):
        register_folder(root, own)
    assert root.datasets() == []


def test_without_videos_or_of_another_place(own, root, tmp_path):
    with refusal(InvalidStore, what="video", where=f"{tmp_path}/own"):
        register_folder(root, own, without=[CAMERA])
    register_folder(root, own)
    with refusal(
        Conflict,
        what="options",
        where="r@1",
        given="{'format': 'lerobot', 'without': ['note']}",
        accepted='{"format":"lerobot","without":[]}',
    ):
        register_folder(root, own, without=["note"])
    with refusal(Conflict, what="videos", where=f"{tmp_path}/else", accepted="r@1"):
        register_folder(root, v21(tmp_path / "else", cameras=[CAMERA]))
    info = json.loads((own / "meta/info.json").read_text())
    del info["features"]["note"]
    (own / "meta/info.json").write_text(json.dumps(info))
    with refusal(FieldMismatch, what="features", where=f"{tmp_path}/own", given=["note.json"]):
        register_folder(root, own)


def test_viewer_shows_and_plays_runs(own, root):
    version = register_folder(root, own).version
    import_place(root, "lerobot", open_store(own), "i")
    record = sample_record(version, 1)
    (shown,) = [one for one in record.fields if one.field == RUN]
    assert (shown.error, shown.decoded.kind, shown.decoded.marks) == ("", "video", ())
    assert "h264, 8 frames" in shown.decoded.lines[0]
    film = field_bytes(root.open("i"))["episode_000001"][FILM]
    assert playable(version, 1, RUN) == (film, "mp4")
    episode = open_episode(version, 1, names_of(version, [1])[0])
    with whole_file(film) as played:
        for frame in range(8):
            at = moment(episode, episode.time_of(RUN, frame))
            (track,) = [one for one in at.tracks if one.field == RUN]
            assert (track.number, track.error) == (frame, "")
            assert track.shown_s[0] == pytest.approx(float(played.timeline.time_s(frame)), abs=1e-6)


def test_added_groups_see_frames_of_runs(own, root):
    register_folder(root, own)
    inputs = [RUN, f"{RUN}.packets"]
    last = loader.video(start=2, frames=1)

    def mean(one):
        return last.of_run(*map(one.bytes_of, inputs)).mean((1, 2))

    made = root.add_group("r", "means", {"mean.npy": mean}, inputs=inputs)
    found = np.load(io.BytesIO(field_bytes(made)["episode_000001"]["mean.npy"]))
    pixels = theirs(own / f"videos/{CAMERA}/chunk-000/file-000.mp4", LENGTHS[0] + 2, 1)
    np.testing.assert_array_equal(found, pixels.mean((1, 2)))
    with refusal(DecodeFailed, what="frames", given=5, accepted=16):
        root.add_group("r", "more", {"more.npy": lambda one: one[RUN]}, inputs=inputs)


def test_frames_behind_a_keyframe_that_is_none_are_decoded_from_further_back(root, tmp_path):
    """The table marks every packet as a keyframe: bare packets do not do, the whole run does."""
    own = v30(tmp_path / "long", v21(tmp_path / "long-old", cameras=[CAMERA], gop=100), cameras=[CAMERA])
    version = register_folder(root, own).version
    fields = field_bytes(version)["episode_000001"]
    told = read_packets(fields[f"{RUN}.packets"])
    assert told.key.sum() == 1
    wrong = packets_bytes(replace(told, key=np.ones(8, bool)))
    with root.write("w") as writer:
        writer.add("a", {RUN: fields[RUN], f"{RUN}.packets": wrong})
    found = loader.video(start=5, frames=3)
    plan = loader.plan({"d": root.open("w").select(RUN)}, seed=1, global_batch=1)
    with loader.Loader(plan, decode={RUN: found}, epochs=1) as batches:
        (batch,) = batches
    pixels = theirs(own / f"videos/{CAMERA}/chunk-000/file-000.mp4", LENGTHS[0] + 5, 3)
    np.testing.assert_array_equal(batch[RUN][0], pixels)
    np.testing.assert_array_equal(found.of_run(fields[RUN], wrong), pixels)


def test_run_without_its_table_says_so(own, root):
    version = register_folder(root, own).version
    fields = field_bytes(version)["episode_000001"]
    with root.write("w") as writer:
        writer.add("a", {RUN: fields[RUN]})
    alone = root.open("w")
    plan = loader.plan({"d": alone.select(RUN)}, seed=1, global_batch=1)
    with refusal(
        InvalidRuntime,
        what="observation.images.high.run.packets",
        where="w@1",
        given="observation.images.high.run",
    ):
        loader.Loader(plan).close()
    with loader.Loader(plan, decode=False, epochs=1) as batches:
        assert bytes(next(iter(batches))[RUN][0]) == fields[RUN]
    with refusal(DecodeFailed, what="<field>.packets", given=len(fields[RUN])):
        find_decoder(RUN)(fields[RUN], None)
    assert "needs its sample's field" in sample_record(alone, 0).fields[0].error
    with refusal(DecodeFailed, what="packet table"):
        loader.video(at=(0,)).of_run(fields[RUN][:-1], fields[f"{RUN}.packets"])


def test_command(own, root, cli):
    done = cli("register", "lerobot", own, "arm", root=root.url)
    assert done.code == 0
    assert done.out.splitlines()[1].startswith("3 samples with ")
    for said in ("whose videos stay at", "3 episodes: 3 added, 0 changed"):
        assert said in done.out
    assert cli("register", "lance", own, "x", root=root.url).err.count(", lerobot, ") == 1


@pytest.mark.parametrize("adopted", [False, True])
def test_episode_of_a_takedown(own, root, tmp_path, cli, adopted):
    """Its copied bytes are zeros, its run is in no index; adopted, its packets are zeros too."""
    before = field_bytes(register_folder(root, own).version)
    if adopted:
        assert adopt(root, "r").failures == []
    path = own / f"videos/{CAMERA}/chunk-000/file-000.mp4"
    whole = path.read_bytes()
    said = ["--reason", "ticket 1", "--by", "desk"]
    assert (
        cli("takedown", "request", "--dataset", "r", "--sample", "episode_000001", *said, root=root.url).code
        == 0
    )
    n = root.log.refresh().denies[-1].n
    assert cli("takedown", "run", str(n), "--apply", root=root.url).code in (0, 1)
    again = loader.Root(root.url)
    after = field_bytes(again.open("r"))
    gone = before.pop("episode_000001")
    assert after == before
    assert verify(again, "r", full=True).problems == []
    for days in (1, 99, 199):
        collect(again, Options(grace_s=0), apply=True, now_us=days * 86_400 * 10**6)
    left = [again.store.get(info.key).data for info in again.store.list()]
    for secret in (gone[RUN], gone["matrix.npy"], gone[f"{RUN}.packets"]):
        assert not any(secret in data for data in left)
    assert path.read_bytes() == whole
    done = cli("takedown", "prove", str(n), "--out", tmp_path / "proof.json", root=root.url)
    assert done.code == 1
    assert f"{path}" in done.out
    assert ("episode_000001" in str(again.store.list())) is False


def test_card_shows_frames_of_runs(own, root, tmp_path, cli):
    register_folder(root, own)
    import_place(root, "lerobot", open_store(own), "i")
    pictures = []
    for name in "ri":
        assert cli("card", f"{name}@1", "--into", tmp_path / name, root=root.url).code == 0
        pictures.append([path.read_bytes() for path in sorted((tmp_path / name).rglob("*.jpg"))])
    assert pictures[0] == pictures[1] != []
