"""A window of a LeRobot import shows frame k at row k, whatever the ticks of the container."""

import itertools
import json
from fractions import Fraction

import av
import numpy as np
import pytest

import loader
from loader.storage import open_store
from penstock.formats.importer import ColumnarOptions
from penstock.formats.run_import import import_place
from tests.penstock.formats.builders.lerobot_files import CAMERA, LENGTHS, OTHER, v21, v30
from tests.run.numbered_video import HEIGHT, WIDTH, draw_number, read_numbers

ROUNDED = {"up": lambda exact: -(-exact // 1), "down": lambda exact: exact // 1}


def encode(path, length, fps, ticks, rounded, b_frames=0):
    """Write a video whose frames hold their numbers, at rounded ticks of a second."""
    with av.open(path, "w", format="mp4", options={"video_track_timescale": str(ticks)}) as out:
        options = {"g": "3", "bf": str(b_frames), "b_strategy": "0", "sc_threshold": "0", "crf": "20"}
        stream = out.add_stream("libx264", rate=Fraction(fps), options=options)
        stream.width, stream.height, stream.pix_fmt, stream.thread_count = WIDTH, HEIGHT, "yuv420p", 1
        stream.codec_context.time_base = Fraction(1, ticks)
        for n in range(length):
            frame = av.VideoFrame.from_ndarray(draw_number(n), format="rgb24")
            frame.pts, frame.time_base = int(ROUNDED[rounded](n * ticks / Fraction(fps))), Fraction(1, ticks)
            out.mux(stream.encode(frame))
        out.mux(stream.encode(None))


def write_numbered_dataset(folder, cameras, fps):
    """A dataset of v2.1 with cameras of their own ticks, rounding and B-frames."""
    v21(folder, cameras=tuple(cameras), fps=fps)
    for camera, (ticks, rounded, b_frames) in cameras.items():
        for number, length in enumerate(LENGTHS):
            path = folder / f"videos/chunk-000/{camera}/episode_{number:06d}.mp4"
            encode(str(path), length, fps, ticks, rounded, b_frames)
    info = folder / "meta/info.json"
    body = json.loads(info.read_text())
    for camera in cameras:
        body["features"][camera]["shape"] = [HEIGHT, WIDTH, 3]
    info.write_text(json.dumps(body))
    return folder


def window_frames(view, fields, anchor, rule):
    """Key of each window -> the numbers of its frames, camera by camera, and their ages."""
    at = {field: [0] for field in fields}
    windows = loader.windows(view, anchor=anchor, at=at, rule=rule)
    plan = loader.plan({"d": windows}, seed=1, global_batch=sum(LENGTHS))
    with loader.Loader(plan, framework="numpy", workers=0, steps=1) as batches:
        (batch,) = batches
    numbers = np.stack([read_numbers(batch[field][:, 0]) for field in fields], 1).tolist()
    ages = np.stack([batch[f"{field}.age_ns"][:, 0] for field in fields], 1).tolist()
    return {key: told for (_, key), told in zip(batch.ids, zip(numbers, ages, strict=True), strict=True)}


@pytest.mark.parametrize(
    ("layout", "fps"), [("v2.1", Fraction(24)), ("v3.0", Fraction("29.97")), ("registered", Fraction(30))]
)
def test_frame_k_is_row_k(tmp_path, layout, fps, cli):
    cameras = {CAMERA: (1000, "up", 0), OTHER: (90000, "up", 2), "observation.images.low": (15360, "down", 0)}
    place = write_numbered_dataset(tmp_path / "in", cameras, fps)
    if layout != "v2.1":
        place = v30(tmp_path / "new", place, cameras=tuple(cameras), fps=fps)
        (place / "meta/info.json").write_text(
            (place / "meta/info.json").read_text().replace("[32, 32, 3]", f"[{HEIGHT}, {WIDTH}, 3]")
        )
    if layout == "registered":
        assert cli("register", "lerobot", place, "d", root=tmp_path / "root").code == 0
    with loader.Root(tmp_path / "root") as root:
        if layout != "registered":
            assert import_place(root, "lerobot", open_store(place), "d").failures == []
        version, end = root.open("d"), "run" if layout == "registered" else "mp4"
        fields = [f"{camera}.{end}" for camera in cameras]
        for field in fields:
            assert version.facts[field]["clock"] == "matrix.ns.npy"
        view = version.select(*fields, "matrix.npy")
        for rule in ({}, dict.fromkeys(fields, "nearest")):
            read = window_frames(view.select(*fields), fields, "matrix.npy", rule)
            wanted = itertools.chain.from_iterable(
                ((f"episode_{n:06d}@{row}", row) for row in range(length)) for n, length in enumerate(LENGTHS)
            )
            assert read == {key: ([row] * 3, [0] * 3) for key, row in wanted}


def test_import_goes_on_from_a_version_without_language_and_clocks(tmp_path):
    """As from versions before both: its episodes stay, and later ones have language."""
    place = write_numbered_dataset(tmp_path / "in", {CAMERA: (1000, "up", 0)}, Fraction(30))
    with loader.Root(tmp_path / "root") as root:
        before = ColumnarOptions(without=frozenset(["language.jsonl"]), episodes=((0, 1),))
        import_place(root, "lerobot", open_store(place), "d", options=before)
        import_place(root, "lerobot", open_store(place), "d", options=ColumnarOptions(episodes=((0, 2),)))
        version = root.open("d")
        assert len(version) == 3
        whole = version.select("matrix.npy", f"{CAMERA}.mp4")
        read = window_frames(whole.select(f"{CAMERA}.mp4"), [f"{CAMERA}.mp4"], "matrix.npy", {})
        assert sorted(read) == [f"episode_{n:06d}@{row}" for n in range(3) for row in range(LENGTHS[n])]
        spoken = version.select("language.jsonl", where_present=True)
        assert [one["__key__"] for one in spoken] == ["episode_000002"]
