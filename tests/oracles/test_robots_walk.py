"""The walk of docs/robots.md on real episodes with lerobot 0.6: ACT trains on our windows, LeRobot reads our export."""

import json
import os
import shutil
from pathlib import Path

import av
import numpy as np
import pytest

import loader
from tests.demo.robots_walk import REPOSITORY, film, frozen, policy_windows, walk_dataset
from tests.penstock.formats.builders.lerobot_files import write_language

pytestmark = pytest.mark.oracle
HERE = Path(__file__).parent
POLICIES = Path(os.environ.get("PENSTOCK_ORACLES", REPOSITORY / ".oracles")) / "policies/bin/python"
EPISODES = {22: 348, 24: 297, 29: 221}
"""Number -> rows."""
CAMERAS = [f"observation.images.cam_{name}" for name in ("high", "left", "right")]
DELTAS = {
    **{camera: [0.0] for camera in CAMERAS},
    "observation.state": [0.0],
    "action": [row / 30 for row in range(48)],
}
BAD = "episode_000022", CAMERAS[1], 60
"""Episode whose camera freezes, the camera, and for how many frames."""


def three_cameras(corpus: Path, place: Path) -> Path:
    """Write the real episodes with language, and two cameras that mirror the first, one of them frozen for a time."""
    videos = "videos/chunk-000"
    shutil.copytree(corpus / "meta", place / "meta", copy_function=shutil.copyfile)
    for number in EPISODES:
        name = f"episode_{number:06d}"
        for path in (f"data/chunk-000/{name}.parquet", f"{videos}/{CAMERAS[0]}/{name}.mp4"):
            (place / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(corpus / path, place / path)
        with av.open(str(place / f"{videos}/{CAMERAS[0]}/{name}.mp4")) as file:
            pictures = [frame.to_ndarray(format="rgb24")[::2, ::2] for frame in file.decode(video=0)]
        mirrored = [np.ascontiguousarray(picture[:, ::-1]) for picture in pictures]
        for n, picture in enumerate(mirrored):
            picture[:8] = (
                37 * n % 256
            )  # the robot's camera repeats many a frame, which has the bytes of the one before
        if name == BAD[0]:
            mirrored = frozen(mirrored, 100, 100 + BAD[2])
        film(place / f"{videos}/{CAMERAS[1]}/{name}.mp4", mirrored)
        film(place / f"{videos}/{CAMERAS[2]}/{name}.mp4", [picture[::-1] for picture in pictures], "libx264")
    info = json.loads((place / "meta/info.json").read_text())
    shown = info["features"][CAMERAS[0]]
    own = {key: value for key, value in shown.items() if key in ("dtype", "names")} | {"shape": [240, 320, 3]}
    info["features"] |= dict.fromkeys(CAMERAS[1:], own)
    (place / "meta/info.json").write_text(json.dumps(info))
    return write_language(place)


def check(plan: loader.Plan) -> None:
    view = plan.sources["arm"].view
    assert len(view) == sum(EPISODES.values())
    assert {field for field in view.layout.at if field.endswith(".mp4")} == {f"{one}.mp4" for one in CAMERAS}
    assert view.layout.text == ("subtask", "task")


def test_act_resumes_and_lerobot_reads_what_is_left_pixel_for_pixel(tmp_path, peer):
    """The episodes of the corpus that PENSTOCK_MEDIA names."""
    for corpus in filter(None, [os.environ.get("PENSTOCK_MEDIA")]):
        place = three_cameras(Path(corpus) / "robot/g1_lerobot_v21", tmp_path / "place")
        options = ["--policy", "act", "--global-batch", "4", "--episodes", *map(str, EPISODES)]
        rest = walk_dataset([POLICIES, "examples/robots.py"], tmp_path, place, options, BAD, check)
        theirs = peer("lerobot06", "windows", tmp_path / "export", json.dumps(DELTAS), 1)
        keys, read = sorted(rest.keys(np.arange(len(rest)))), {}
        for window in theirs:
            del window["language"], window["task"]
            read[keys[window.pop("episode")], window.pop("row")] = window
        assert len(read) == sum(rows for n, rows in EPISODES.items() if f"{n:06d}" not in BAD[0])
        assert read == policy_windows(rest, DELTAS)
        assert {window["text"] for window in read.values()} == {"reach", "grasp"}
        assert len({window[CAMERAS[1]] for window in read.values()}) == len(read)  # its frames are numbered
