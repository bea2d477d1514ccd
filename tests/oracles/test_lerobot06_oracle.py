"""lerobot 0.6, version pinned in lerobot06.txt: it reads our export window for window, and language there and back."""

import json
import os
from pathlib import Path

import pytest

import loader
from loader.storage import open_store
from penstock.formats.importer import ColumnarOptions
from penstock.formats.run_export import export
from penstock.formats.run_import import import_place
from tests.demo.robots_walk import policy_windows

pytestmark = pytest.mark.oracle
EPISODES = {10: 290, 11: 421, 12: 372, 22: 348, 24: 297, 29: 221}
"""Number -> rows."""
CAMERA = "observation.images.cam_high"
DELTAS = {CAMERA: [-0.1, 0.0], "observation.state": [0.0], "action": [row / 30 for row in range(-1, 49)]}


def import_episodes(root, place, name, *episodes):
    options = ColumnarOptions(episodes=tuple((number, number) for number in episodes))
    assert import_place(root, "lerobot", open_store(place), name, options=options).failures == []
    return root.open(name)


def test_windows_and_language_are_lerobots_own(tmp_path, peer):
    """Every window of the six real episodes, where PENSTOCK_MEDIA names the corpus."""
    for corpus in filter(None, [os.environ.get("PENSTOCK_MEDIA")]):
        windows_are_lerobots_own(Path(corpus) / "robot/g1_lerobot_v21", tmp_path, peer)


def windows_are_lerobots_own(place, folder, peer):
    with loader.Root(folder / "root") as root:
        plain = import_episodes(root, place, "plain", *EPISODES)
        assert [
            one["name"] for one in export(plain, "lerobot", open_store(folder / "plain"), lossy=True).lost
        ] == ["keys"]
        peer("lerobot06", "annotate", folder / "plain")
        spoken = import_episodes(root, folder / "plain", "spoken")
        assert export(spoken, "lerobot", open_store(folder / "out")).lost == []
        read = policy_windows(spoken, DELTAS)
    ours = {(int(key.removeprefix("episode_")), row): window for (key, row), window in read.items()}
    theirs = peer("lerobot06", "windows", folder / "out", json.dumps(DELTAS), 1)
    language = {(one["episode"], one["row"]): one.pop("language") for one in theirs}
    assert len(theirs) == len(ours) == sum(EPISODES.values())
    assert {one.pop("task") for one in theirs} == {"Pick up the yellow bottle on the table."}
    assert {(one.pop("episode"), one.pop("row")): one for one in theirs} == ours
    assert len({one[CAMERA] for one in ours.values()}) > 0.97 * len(ours)
    assert {one["text"] for one in ours.values()} == {
        *(f"reach {n}" for n in range(len(EPISODES))),
        "grasp",
        "wait",
    }
    before = peer("lerobot06", "windows", folder / "plain", json.dumps({}), 50)
    assert {(one["episode"], one["row"]): one["language"] for one in before}.items() <= language.items()
    calls = [
        call
        for rows in language.values()
        for row in rows["language_events"]
        for call in row["tool_calls"] or ()
    ]
    assert [call["function"]["arguments"] for call in calls] == [{"text": "waiting"}] * len(EPISODES)
