"""LeRobot datasets: what is in the place is in the version and in its export, packet for packet and row for row."""

import io
import json
from fractions import Fraction

import av
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import loader
from loader.errors import Corrupt, InvalidSample, InvalidStore, LossyExport
from loader.storage import open_store
from penstock.formats.content_digest import content_digest
from penstock.formats.importer import ColumnarOptions
from penstock.formats.lerobot.lerobot_import import find_readable
from penstock.formats.run_export import export
from penstock.formats.run_import import import_place
from tests.penstock.formats.builders.lerobot_files import (
    CAMERA,
    LENGTHS,
    OTHER,
    TASKS,
    change_meta,
    join_videos,
    lines,
    put,
    rows,
    table,
    v21,
    v30,
    video,
)
from tests.refusals import refusal


def read(folder, *without):
    """Key -> sample of a dataset."""
    store = open_store(folder)
    readable = find_readable(store, list(store.list()), ColumnarOptions(without=frozenset(without)))
    found = [one for info in readable.infos for run in readable.runs(info) for one in readable.samples(run)]
    return {one.key: one for one in found}


def import_version(root, folder):
    """A version with the samples of a dataset."""
    assert import_place(root, "lerobot", open_store(folder), "d").failures == []
    return root.open("d")


def packets(data):
    """(ticks, bytes) of each packet, and the time base."""
    with av.open(io.BytesIO(data)) as file:
        stream = file.streams.video[0]
        return [(one.pts, bytes(one)) for one in file.demux(stream) if one.size], stream.time_base


@pytest.fixture(scope="module")
def old(tmp_path_factory):
    return v21(tmp_path_factory.mktemp("old"))


@pytest.fixture
def own(tmp_path):
    """A dataset that a test may spoil."""
    return v21(tmp_path / "own", cameras=[CAMERA])


def test_import_takes_the_episode_of_a_video_that_was_replaced(tmp_path, own):
    root = loader.Root(tmp_path / "root")
    before = {key: packets(one.fields[f"{CAMERA}.mp4"]) for key, one in read(own).items()}
    import_version(root, own)
    video(str(own / f"videos/chunk-000/{CAMERA}/episode_000001.mp4"), range(90, 90 + LENGTHS[1]))
    done = import_place(root, "lerobot", open_store(own), "d")
    assert (done.new, done.replaced, done.same, done.samples) == (0, 1, 2, 3)
    assert {key for key, one in read(own).items() if packets(one.fields[f"{CAMERA}.mp4"]) != before[key]} == {
        "episode_000001"
    }


@pytest.mark.parametrize("b_frames", [0, 2])
def test_file_for_each_episode_and_one_for_all_give_the_same_samples(tmp_path, b_frames):
    folder = v21(tmp_path / "old", b_frames=b_frames)
    found = read(folder)
    assert read(v30(tmp_path / "new", folder)) == found
    assert list(found) == [f"episode_{n:06d}" for n in range(3)]
    for n, (key, one) in enumerate(found.items()):
        for camera in (CAMERA, OTHER):
            path = folder / f"videos/chunk-000/{camera}/{key}.mp4"
            assert packets(one.fields[f"{camera}.mp4"]) == packets(path.read_bytes())
        wanted = rows(n, LENGTHS[n], 0, 30)
        arrays = {
            name: np.load(io.BytesIO(data)) for name, data in one.fields.items() if name.endswith(".npy")
        }
        assert arrays["observation.state.npy"].tolist() == wanted["observation.state"].to_pylist()
        assert arrays["matrix.npy"].tolist() == wanted["matrix"].to_pylist()
        assert arrays["next.done.npy"][:, 0].tolist() == wanted["next.done"].to_pylist()
        dtypes = {name: str(array.dtype) for name, array in arrays.items() if ".ns." not in name}
        assert dtypes == {
            "observation.state.npy": "float32",
            "matrix.npy": "float64",
            "next.done.npy": "bool",
        }
        assert arrays["matrix.ns.npy"].tolist() == [k * 10**9 // 30 for k in range(LENGTHS[n])]
        assert json.loads(one.fields["note.json"]) == wanted["note"].to_pylist()
        assert one.source == {"split": "val" if n == 2 else "train"}
        assert one.metadata == {
            "episode_index": n, "task": "lift", "robot": "arm", "n_frames": LENGTHS[n],
            "duration_ns": LENGTHS[n] * 10**9 // 30,
        }  # fmt: skip
    told = json.loads(found["episode_000001"].fields["episode.json"])
    assert told["tasks"] == [
        {"start": 0, "stop": 2, "task": "lift"},
        {"start": 2, "stop": 8, "task": "put down"},
    ]
    assert told["features"]["observation.state"]["names"] == ["x", "y", "grip"]
    assert told["stats"]["observation.state"]["max"] == [1.0, 2.0, 1.0]


def test_times_stay_rational(tmp_path):
    """30000/1001 frames per second: no frame is moved, and nanoseconds are rounded once."""
    fps = Fraction("29.97")
    folder = v21(tmp_path / "old", cameras=[CAMERA], fps=fps)
    one = read(folder)["episode_000001"]
    found, base = packets(one.fields[f"{CAMERA}.mp4"])
    assert sorted(tick * base for tick, _ in found) == [k / fps for k in range(8)]
    assert np.load(io.BytesIO(one.fields["matrix.ns.npy"])).tolist() == [k * 10**11 // 2997 for k in range(8)]
    with loader.Root(tmp_path / "root") as root:
        version = import_version(root, folder)
        assert export(version, "lerobot", open_store(tmp_path / "out"), without=["split"]).lost == []
    assert {key: one.fields for key, one in read(tmp_path / "out").items()} == {
        key: one.fields for key, one in read(folder).items()
    }


@pytest.mark.parametrize("file_bytes", [1, 6000, 2**30])
def test_what_is_imported_comes_out_and_in_again(old, tmp_path, monkeypatch, file_bytes):
    monkeypatch.setattr("penstock.formats.lerobot.lerobot_export.FILE_BYTES", file_bytes)
    with loader.Root(tmp_path / "a") as one, loader.Root(tmp_path / "b") as two:
        version = import_version(one, old)
        done = export(version, "lerobot", open_store(tmp_path / "out"))
        assert (done.lost, done.failures, done.samples) == ([], [], 3)
        back = import_version(two, tmp_path / "out")
        assert content_digest(back, full=True).digest == content_digest(version, full=True).digest
        facts = {"dims": ["x", "y", "grip"], "fps": "30"}
        assert back.facts["observation.state.npy"] == version.facts["observation.state.npy"] == facts
        assert version.facts[f"{CAMERA}.mp4"] == {"fps": "30", "clock": "matrix.ns.npy"}
        splits = [version.samples().select("split").collect().to_dicts() for version in (version, back)]
        assert splits[0] == splits[1]
    files = len(list((tmp_path / "out/data").rglob("*.parquet")))
    assert files == {1: 3, 6000: files, 2**30: 1}[file_bytes]
    assert len(list((tmp_path / "out/videos").rglob("*.mp4"))) == 2 * files


def law_1(folder, tmp_path):
    """Import, export, import: return the shared videos between, having compared all that an episode is."""
    with loader.Root(tmp_path / "a") as one, loader.Root(tmp_path / "b") as two:
        version = import_version(one, folder)
        assert export(version, "lerobot", open_store(tmp_path / "out")).failures == []
        back = import_version(two, tmp_path / "out")
        assert content_digest(back, full=True).digest == content_digest(version, full=True).digest
    return sorted((tmp_path / "out/videos").rglob("*.mp4"))


@pytest.mark.parametrize("ticks", [None, 1000])
def test_b_frames_come_out_and_in_again(tmp_path, ticks):
    """Of files whose last packet is the last one shown or not, at times that are rounded or not."""
    old = v21(tmp_path / "old", cameras=[CAMERA], b_frames=2, gop=100, ticks=ticks)
    shared = v30(tmp_path / "new", old, cameras=[CAMERA])
    assert read(shared) == read(old)
    (film,) = law_1(shared, tmp_path)
    shown = [pts for pts, _ in packets(film.read_bytes())[0]]
    assert shown != sorted(shown)
    assert shown[-1] < max(shown)


@pytest.mark.parametrize("lengths", [(1, 8, 5), (2, 7, 1)])
@pytest.mark.parametrize("ticks", [None, 1000])
def test_episode_that_is_reordered_further_than_those_before_it_begins_a_file(
    tmp_path, monkeypatch, lengths, ticks
):
    """One frame is not reordered: in its file the next episode would go to a decoder before it, or with it."""
    monkeypatch.setattr("tests.penstock.formats.builders.lerobot_files.LENGTHS", lengths)
    films = law_1(v21(tmp_path / "old", cameras=[CAMERA], b_frames=2, gop=100, ticks=ticks), tmp_path)
    assert [len(packets(film.read_bytes())[0]) for film in films] == [lengths[0], sum(lengths[1:])]


def test_last_frame_is_shown_until_the_end_that_the_dataset_tells(tmp_path):
    folder = v30(tmp_path / "new", v21(tmp_path / "old", cameras=[CAMERA], b_frames=2), cameras=[CAMERA])
    change_meta(folder, lambda rows: [*rows[:2], {**rows[2], f"videos/{CAMERA}/to_timestamp": 1.5}])
    with av.open(io.BytesIO(read(folder)["episode_000002"].fields[f"{CAMERA}.mp4"])) as film:
        stream = film.streams.video[0]
        begin = Fraction(2550 + 4086, 15360)  # x264 lets the last frame of a file end some ticks early
        assert stream.duration * stream.time_base == Fraction(3, 2) - begin
    law_1(folder, tmp_path)


def test_frame_that_is_shown_longer_than_mp4_can_hold_is_refused(tmp_path):
    folder = v30(tmp_path / "new", v21(tmp_path / "old", cameras=[CAMERA]), cameras=[CAMERA])
    change_meta(folder, lambda rows: [*rows[:2], {**rows[2], f"videos/{CAMERA}/to_timestamp": 9e8}])
    with refusal(
        Corrupt,
        what="ticks of the last frame",
        where="videos/observation.images.high/chunk-000/file-000.mp4, episode 2, row 2",
    ):
        read(folder)


def test_videos_of_another_kind_are_in_files_of_their_own(tmp_path):
    folder = v21(tmp_path / "old", cameras=[CAMERA])
    video(str(folder / f"videos/chunk-000/{CAMERA}/episode_000001.mp4"), range(8), b_frames=2)
    with loader.Root(tmp_path / "root") as root:
        export(import_version(root, folder), "lerobot", open_store(tmp_path / "out"))
    assert len(list((tmp_path / "out/videos").rglob("*.mp4"))) == 3
    assert {key: one.fields for key, one in read(tmp_path / "out").items()} == {
        key: one.fields for key, one in read(folder).items()
    }


@pytest.mark.parametrize(
    ("document", "what"),
    [
        ({"tasks": [{"first": 0, "stop": 3, "task": "lift"}]}, "episode.json"),
        ({"tasks": 3}, "episode.json"),
        ({"stats": {"state": [1]}}, "episode.json"),
        ({"features": []}, "episode.json"),
        ({"tasks": [{"start": 0, "stop": 2, "task": "lift"}]}, "tasks of episode.json"),
    ],
)
def test_episode_that_tells_of_itself_otherwise_is_named(tmp_path, document, what):
    with loader.Root(tmp_path / "root") as root:
        with root.write("d") as writer:
            fields = {"x.npy": np.arange(3.0), "x.ns.npy": np.arange(3) * 10**8, "episode.json": document}
            writer.add("a", fields)
        with refusal(InvalidSample, what=what, where="sample 'a'"):
            export(root.open("d"), "lerobot", open_store(tmp_path / "out"), lossy=True)


def test_columns_of_the_version_stay_with_their_episodes(old, tmp_path):
    with loader.Root(tmp_path / "root") as root:
        import_version(root, old)
        labels = {f"episode_{n:06d}": {"success": n > 0, "score": n / 2} for n in range(3)}
        labelled = root.annotate("d", "labels", labels, author="ann").version
        export(labelled, "lerobot", open_store(tmp_path / "out"))
    told = pq.read_table(tmp_path / "out/meta/episodes/chunk-000/file-000.parquet")
    assert (told["success"].to_pylist(), told["score"].to_pylist()) == ([False, True, True], [0.0, 0.5, 1.0])
    assert {"success": True, "score": 1.0}.items() <= read(tmp_path / "out")[
        "episode_000002"
    ].metadata.items()


def test_every_wrong_episode_is_named_and_nothing_is_published(own, tmp_path, cli):
    for number in (0, 2):
        (own / f"videos/chunk-000/{CAMERA}/episode_{number:06d}.mp4").write_bytes(b"no video")
    run = "import", "lerobot", own, "d"
    done = cli(*run, "--json", root=tmp_path / "root")
    assert done.code == 1
    failures = sorted(json.loads(done.out)["failures"])
    assert [f"episode {n}: " in why for n, why in zip((0, 2), failures, strict=True)] == [True] * 2
    assert loader.Root(tmp_path / "root").datasets() == []
    done = cli(*run, "--without", CAMERA, root=tmp_path / "root")
    assert (done.code, done.out.splitlines()[1]) == (0, "3 samples with bytes of their own")
    # Metadata and videos are not samples, but the import reads them.
    assert "others hold no samples" in done.out
    assert "ignored" not in done.out


def npy(values):
    out = io.BytesIO()
    np.save(out, values)
    return out.getvalue()


def test_losses_are_named_and_refused(tmp_path):
    times = np.arange(6, dtype=np.int64) * 10**9 // 20
    with loader.Root(tmp_path / "root") as root:
        with root.write("d") as writer:
            for n in range(2):
                streams = {
                    "action.npy": npy(np.ones((6, 2), "f4") * n),
                    "action.ns.npy": npy(times + n * (times > 0)),
                }
                slow = {"imu.npy": npy(np.ones(3)), "imu.ns.npy": npy(times[:3])}
                writer.add(f"run{n}", {**streams, **slow, "jpg": b"1"}, metadata={"robot": "ab"[n]})
        with pytest.raises(LossyExport) as refused:
            export(root.open("d"), "lerobot", open_store(tmp_path / "out"))
        for word in ("field 'imu.npy': its clock differs", "clock: of 1 episodes, the first is run1", "float32",
                     "field 'jpg'", "keys: ", "run0 becomes episode 0", "column 'robot'"):  # fmt: skip
            assert word in str(refused.value)
        done = export(root.open("d"), "lerobot", open_store(tmp_path / "out"), lossy=True)
    assert len(done.lost) == 5
    told = pq.read_table(tmp_path / "out/data/chunk-000/file-000.parquet").to_pydict()
    assert told.keys() == {"action", "timestamp", "frame_index", "episode_index", "index", "task_index"}
    assert (told["index"], told["episode_index"]) == (list(range(12)), [0] * 6 + [1] * 6)
    assert told["timestamp"][:6] == [np.float32(k / 20) for k in range(6)]
    info = json.loads((tmp_path / "out/meta/info.json").read_text())
    assert (info["fps"], info["total_frames"], info["video_path"]) == (20, 12, None)
    told = json.loads((tmp_path / "out/meta/stats.json").read_text())["action"]
    assert (told["mean"], told["std"], told["min"], told["max"], told["count"]) == (
        [0.5] * 2, [0.5] * 2, [0.0] * 2, [1.0] * 2, [12],
    )  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        ({"txt": b"a"}, {"what": "<stream>.npy and <stream>.ns.npy", "where": "d@1"}),
        (
            {"a.npy": npy(np.ones(2)), "a.ns.npy": npy(np.array([5, 5]))},
            {
                "what": "clock",
                "where": "sample 'a'",
                "given": "int64 [2]",
                "accepted": "int64 nanoseconds that ascend",
            },
        ),
        (
            {"a.npy": npy(np.ones(2)), "a.ns.npy": npy(np.ones(2))},
            {
                "what": "clock",
                "where": "sample 'a'",
                "given": "float64 [2]",
                "accepted": "int64 nanoseconds that ascend",
            },
        ),
    ],
)
def test_versions_without_rows_are_refused(tmp_path, fields, fault):
    with loader.Root(tmp_path / "root") as root:
        with root.write("d") as writer:
            writer.add("a", fields)
        with refusal(InvalidSample, **fault):
            export(root.open("d"), "lerobot", open_store(tmp_path / "out"), lossy=True)


def change(name, **more):
    """Spoil a file of JSON."""

    def spoil(folder):
        path = folder / name
        if name.endswith(".jsonl"):
            told = [json.loads(line) for line in path.read_text().splitlines()]
            lines(path, [{**told[0], **more}, *told[1:]])
        else:
            put(path, json.dumps({**json.loads(path.read_text()), **more}))

    return spoil


def spoil_row(column, row, value):
    """Spoil a row of episode 1."""

    def spoil(folder):
        path = folder / "data/chunk-000/episode_000001.parquet"
        held = pq.read_table(path)
        values = held[column].to_pylist()
        values[row] = value
        at = held.column_names.index(column)
        table(path, held.set_column(at, column, pa.array(values, held.schema.field(column).type)))

    return spoil


def other_video(numbers, **how):
    return lambda folder: video(str(folder / f"videos/chunk-000/{CAMERA}/episode_000001.mp4"), numbers, **how)


def of_another_codec(name):
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes().replace(b"avc1", b"none"))


def cut_short(name):
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:400])


@pytest.mark.parametrize(
    ("spoil", "fault"),
    [
        (lambda folder: (folder / "meta/info.json").unlink(), {"what": "meta/info.json"}),
        (lambda folder: put(folder / "meta/info.json", "{"), {"accepted": "JSON"}),
        (
            change("meta/info.json", fps=float("nan")),
            {"what": "fps", "where": "meta/info.json", "accepted": "0.001 to 1,000,000"},
        ),
        (
            change("meta/info.json", fps=0),
            {"what": "fps", "where": "meta/info.json", "given": 0, "accepted": "0.001 to 1,000,000"},
        ),
        (
            change("meta/info.json", fps=1e-300),
            {"what": "fps", "where": "meta/info.json", "given": 1e-300, "accepted": "0.001 to 1,000,000"},
        ),
        (
            change("meta/info.json", codebase_version="v1.6"),
            {"what": "codebase_version", "given": "v1.6", "accepted": ("v2.0", "v2.1", "v3.0")},
        ),
        (
            change("meta/info.json", data_path="../{episode_index:06d}.parquet"),
            {
                "what": "data_path",
                "where": "meta/info.json",
                "given": "../{episode_index:06d}.parquet",
                "accepted": "a path inside of the place",
            },
        ),
        (
            change("meta/info.json", data_path="/etc/passwd"),
            {
                "what": "data_path",
                "where": "meta/info.json",
                "given": "/etc/passwd",
                "accepted": "a path inside of the place",
            },
        ),
        (
            change("meta/info.json", video_path="{video_key.__class__}.mp4"),
            {
                "what": "video_path",
                "where": "meta/info.json",
                "given": "{video_key.__class__}.mp4",
                "accepted": "a path inside of the place",
            },
        ),
        (
            change("meta/info.json", data_path="{secret}"),
            {
                "what": "data_path",
                "where": "meta/info.json",
                "given": "{secret}",
                "accepted": ["episode_chunk", "episode_index"],
            },
        ),
        (
            change("meta/info.json", features={"a": {"dtype": "float32", "shape": [-3]}}),
            {
                "what": "feature a",
                "where": "meta/info.json",
                "given": "{'dtype': 'float32', 'shape': [-3]}",
                "accepted": "dtype and a shape above 0",
            },
        ),
        (
            change("meta/episodes.jsonl", length=-1),
            {"what": "length", "where": "meta/", "given": -1, "accepted": "a whole number from 0 on"},
        ),
        (
            change("meta/episodes.jsonl", episode_index=1),
            {"what": "episode 1", "accepted": "each episode once"},
        ),
        (
            lambda folder: (folder / "data/chunk-000/episode_000001.parquet").unlink(),
            {"what": "data/chunk-000/episode_000001.parquet", "given": 1},
        ),
    ],
)
def test_place_that_is_no_dataset_is_refused(own, spoil, fault):
    spoil(own)
    with refusal(InvalidStore, **fault):
        read(own)


@pytest.mark.parametrize(
    ("spoil", "fault"),
    [
        (
            lambda folder: lines(folder / "meta/tasks.jsonl", []),
            {
                "what": "task_index",
                "where": "data/chunk-000/episode_000000.parquet, episode 0, row 0",
                "given": 0,
            },
        ),
        (
            spoil_row("timestamp", 3, 0.2),
            {
                "what": "timestamp",
                "where": "data/chunk-000/episode_000001.parquet, episode 1, row 3",
                "given": 0.20000000298023224,
                "accepted": 0.1,
            },
        ),
        (
            spoil_row("timestamp", 7, float("nan")),
            {
                "what": "timestamp",
                "where": "data/chunk-000/episode_000001.parquet, episode 1, row 7",
                "accepted": 0.23333333333333334,
            },
        ),
        (
            spoil_row("frame_index", 2, 3),
            {
                "what": "frame_index",
                "where": "data/chunk-000/episode_000001.parquet, episode 1, row 2",
                "given": 3,
                "accepted": 2,
            },
        ),
        (
            spoil_row("observation.state", 4, None),
            {
                "what": "observation.state",
                "where": "data/chunk-000/episode_000001.parquet, episode 1",
                "given": "1 missing values",
            },
        ),
        (
            spoil_row("matrix", 4, [[1.0, 2.0]]),
            {"what": "matrix", "where": "data/chunk-000/episode_000001.parquet, episode 1", "given": [2, 1]},
        ),
        (
            spoil_row("note", 5, None),
            {
                "what": "note",
                "where": "data/chunk-000/episode_000001.parquet, episode 1, row 5",
                "accepted": "a text",
            },
        ),
        (
            other_video(range(7)),
            {
                "what": "frames",
                "where": "videos/chunk-000/observation.images.high/episode_000001.mp4, episode 1",
                "given": 7,
                "accepted": 8,
            },
        ),
        (
            other_video(range(8), fps=25),
            {
                "what": "timestamp",
                "where": "videos/chunk-000/observation.images.high/episode_000001.mp4, episode 1, row 1",
                "given": 0.04,
                "accepted": 0.03333333507180214,
            },
        ),
        (
            cut_short(f"videos/chunk-000/{CAMERA}/episode_000001.mp4"),
            {
                "what": "video",
                "where": "videos/chunk-000/observation.images.high/episode_000001.mp4, episode 1",
            },
        ),
        (
            of_another_codec(f"videos/chunk-000/{CAMERA}/episode_000001.mp4"),
            {
                "what": "codec",
                "where": "videos/chunk-000/observation.images.high/episode_000001.mp4, episode 1",
            },
        ),
        (
            cut_short("data/chunk-000/episode_000001.parquet"),
            {"what": "Arrow data", "within": "/own/data/chunk-000/episode_000001.parquet"},
        ),
    ],
)
def test_episode_that_is_wrong_is_named_with_its_row(own, spoil, fault):
    spoil(own)
    with refusal(Corrupt, **fault):
        read(own)


def test_episode_that_begins_within_a_run_of_frames_is_refused(own, tmp_path):
    new = v30(tmp_path / "new", own, cameras=[CAMERA])
    video(str(own / "one.mp4"), range(sum(LENGTHS)), gop=100)
    join_videos(str(new / f"videos/{CAMERA}/chunk-000/file-000.mp4"), [own / "one.mp4"])
    with refusal(
        Corrupt,
        what="first frame",
        where="videos/observation.images.high/chunk-000/file-000.mp4, episode 1",
        given=0.166667,
    ):
        read(new)


def extend_span(folder, seconds):
    """Move the end of episode 1 of a v3.0 dataset."""
    change_meta(
        folder,
        lambda rows: [
            {
                **row,
                f"videos/{CAMERA}/to_timestamp": row[f"videos/{CAMERA}/to_timestamp"] + seconds * (n == 1),
            }
            for n, row in enumerate(rows)
        ],
    )


@pytest.mark.parametrize("layout", ["v2.1", "v3.0", "registered"])
def test_frames_after_the_last_row_are_left_out_and_named(own, tmp_path, cli, layout):
    """As of a camera that stops last. All other frames keep their pixels."""
    pixels = camera_pixels(read(own)["episode_000001"])
    spoiled = own
    if layout == "v2.1":
        other_video(range(20, 20 + LENGTHS[1] + 2))(own)
    else:
        spoiled = v30(tmp_path / "new", own, cameras=[CAMERA])
        extend_span(spoiled, 1 / 30)
    verb = "register" if layout == "registered" else "import"
    done = cli(verb, "lerobot", spoiled, "d", root=tmp_path / "root")
    assert done.code == 0, done.err
    assert f"{CAMERA}: frames after the last row are left out (episodes 1)" in done.out
    episode = read(spoiled)["episode_000001"]
    np.testing.assert_array_equal(camera_pixels(episode), pixels)
    with av.open(io.BytesIO(episode.fields[f"{CAMERA}.mp4"])) as film:
        stream = film.streams.video[0]
        assert stream.duration * stream.time_base == Fraction(LENGTHS[1], 30)


def camera_pixels(episode):
    """uint8 [frames, 32, 32, 3] of an episode's camera."""
    with av.open(io.BytesIO(episode.fields[f"{CAMERA}.mp4"])) as film:
        return np.stack([frame.to_ndarray(format="rgb24") for frame in film.decode(video=0)])


def test_frames_that_build_on_one_after_the_last_row_are_refused(own):
    """The last of nine frames is decoded before the two that are shown before it."""
    other_video(range(9), b_frames=2, gop=100)(own)
    with refusal(
        Corrupt,
        what="last frames",
        where="videos/chunk-000/observation.images.high/episode_000001.mp4, episode 1",
    ) as caught:
        read(own)
    assert f"--without {CAMERA}" in str(caught.value)


def test_statistics_of_other_shapes_are_named(own, tmp_path):
    change("meta/episodes_stats.jsonl", stats=[1])(own)
    assert "mean" in json.loads(read(own)["episode_000000"].fields["episode.json"])["stats"]["matrix"]
    told = {"observation.state": {"mean": [1.0], "std": [1.0], "count": [5]}}
    change("meta/episodes_stats.jsonl", stats=told)(own)
    with (
        loader.Root(tmp_path / "root") as root,
        refusal(
            InvalidSample, what="statistics of observation.state", where="episode.json", accepted="one shape"
        ),
    ):
        export(import_version(root, own), "lerobot", open_store(tmp_path / "out"))


def test_features_that_are_left_out_are_not_read(own):
    (own / f"videos/chunk-000/{CAMERA}/episode_000001.mp4").write_bytes(b"no video")
    found = read(own, f"{CAMERA}.mp4", "note.json")
    assert not {f"{CAMERA}.mp4", "note.json"} & set(found["episode_000001"].fields)
    change("meta/info.json", features={"a": {"dtype": "image", "shape": [3, 2, 2]}})(own)
    with refusal(InvalidStore, what="a", given="single images in the rows"):
        read(own)
    assert TASKS[0] == read(own, "a")["episode_000000"].metadata["task"]


@pytest.mark.parametrize("layout", ["v2.1", "v3.0"])
def test_chosen_episodes_of_a_partial_download_are_imported(tmp_path, layout, cli):
    """The others are asked for nothing, and come in later."""
    place = tmp_path / "in"
    v21(tmp_path / "old" if layout == "v3.0" else place)
    if layout == "v3.0":
        v30(place, tmp_path / "old")
    with loader.Root(tmp_path / "whole") as whole:
        every = {one["__key__"]: one["episode.json"] for one in import_version(whole, place)}
    gone = sorted(path for path in place.rglob("*_000001.*")) if layout == "v2.1" else []
    kept = {path: path.read_bytes() for path in gone}
    for path in gone:
        path.unlink()
    root = tmp_path / "root"
    command = "import", "lerobot", place, "d"
    if gone:
        refused = cli(*command, root=root)
        assert (refused.code, "choose the episodes that are there: --episodes 0,2" in refused.err) == (
            2,
            True,
        )
    assert cli(*command, "--episodes", "0,2", root=root).code == 0
    found = {one["__key__"]: one["episode.json"] for one in loader.Root(root).open("d")}
    assert found == {key: told for key, told in every.items() if not key.endswith("1")}
    for path, data in kept.items():
        path.write_bytes(data)
    assert cli(*command, "--episodes", "0-2", root=root).code == 0
    assert {one["__key__"]: one["episode.json"] for one in loader.Root(root).open("d")} == every
    lost = cli(*command, "--episodes", "7-9", root=root)
    assert "no episode from 7 to 9; meta/ names 0 to 2" in lost.err
    assert "'2-1': numbers and ranges" in cli(*command, "--episodes", "2-1", root=root).err


@pytest.mark.parametrize("layout", ["v2.1", "v3.0"])
def test_import_of_other_episodes_keeps_earlier_ones(tmp_path, layout, cli):
    """Also where all episodes share a file, or where an earlier one's file is gone; an excluded one stays out."""
    place, root = tmp_path / "in", tmp_path / "root"
    v21(tmp_path / "old" if layout == "v3.0" else place)
    if layout == "v3.0":
        v30(place, tmp_path / "old")
    with loader.Root(tmp_path / "whole") as whole:
        every = {one["__key__"]: one["episode.json"] for one in import_version(whole, place)}

    def take(*words):
        done = cli(*words, root=root)
        assert done.code == 0, done.err
        return {one["__key__"]: one["episode.json"] for one in loader.Root(root).open("d")}

    command = "import", "lerobot", place, "d"
    assert take(*command, "--episodes", "0,2").keys() == every.keys() - {"episode_000001"}
    assert take(*command, "--episodes", "1") == every
    take("exclude", "d", "episode_000002", "--by", "ann", "--reason", "slipped")
    rest = {key: one for key, one in every.items() if not key.endswith("2")}
    assert take(*command, "--episodes", "0") == rest
    assert take(*command) == rest
    if layout == "v2.1":
        for path in place.rglob("*_000000.mp4"):
            path.unlink()
    assert take(*command, "--episodes", "1") == rest
