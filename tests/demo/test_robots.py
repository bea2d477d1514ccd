"""From robot episodes to a policy and back: imported, trained, killed, resumed, cleaned in a browser, exported."""

import sys
from pathlib import Path

import numpy as np
import pytest

import loader
from loader.storage import open_store
from penstock.formats.run_import import import_place
from tests.demo.robots_walk import film, frozen, policy_windows, walk_dataset
from tests.penstock.formats.builders.lerobot_files import (
    CAMERA,
    LENGTHS,
    OTHER,
    v21,
    with_actions,
    write_language,
)

pytestmark = pytest.mark.server
CAMERAS = CAMERA, OTHER, "observation.images.low"
SIZES = "--size", "32", "32", "--chunk", "4", "--global-batch", "6", "--policy", "small"
DELTAS = {
    **{camera: [-1 / 30, 0.0] for camera in CAMERAS},
    "observation.state": [0.0],
    "action": [0.0, 1 / 30, 2 / 30],
}


def check(plan: loader.Plan) -> None:
    with loader.Loader(plan, framework="numpy", workers=0, steps=8) as batches:
        assert {text for batch in batches for text in batch["text"]} == {"reach", "grasp"}
    view = plan.sources["arm"].view
    assert len(view) == sum(LENGTHS)
    assert len([field for field in view.layout.at if field.endswith(".mp4")]) == 3


def test_policy_resumes_and_an_episode_with_a_frozen_camera_leaves(tmp_path: Path) -> None:
    place = with_actions(write_language(v21(tmp_path / "place", cameras=CAMERAS)))
    pictures = [np.full((32, 32, 3), (30 * n, 40, 255 - 30 * n), np.uint8) for n in range(LENGTHS[1])]
    film(place / f"videos/chunk-000/{OTHER}/episode_000001.mp4", frozen(pictures, 2, 6))
    bad = "episode_000001", OTHER, 4
    rest = walk_dataset([sys.executable, "examples/robots.py"], tmp_path, place, SIZES, bad, check)
    with loader.Root(tmp_path / "again") as again:
        assert import_place(again, "lerobot", open_store(tmp_path / "export"), "arm").failures == []
        read = policy_windows(again.open("arm"), DELTAS)
    number = {key: f"episode_{n:06d}" for n, key in enumerate(sorted(rest.keys(np.arange(len(rest)))))}
    ours = policy_windows(rest, DELTAS)
    assert len(ours) == LENGTHS[0] + LENGTHS[2]
    assert read == {(number[key], row): window for (key, row), window in ours.items()}
