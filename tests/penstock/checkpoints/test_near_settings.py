"""Settings of near checkpoints that are refused."""

import pytest

import loader
from loader.errors import InvalidRuntime
from penstock.checkpoints import Checkpoints

PEERS = ["10.0.0.1:7070", "10.0.0.2:7070"]


@pytest.mark.parametrize(
    ("cache", "every", "problem"),
    [
        (None, 20, "near_every without near"),
        ({"peers": PEERS}, 0, "near_every = 0"),
        ({"peers": PEERS}, True, "near_every = True"),
        ({"peers": PEERS}, 2.5, "near_every = 2.5"),
        ({}, 20, "without peers"),
        ({"peers": PEERS, "shared": True}, 20, "shared=True"),
    ],
)
def test_settings_without_sense_are_refused(tmp_path, cache, every, problem):
    near = None if cache is None else loader.NodeCache(path=tmp_path / "cache", **cache)
    with pytest.raises(InvalidRuntime, match=problem):
        Checkpoints(str(tmp_path / "root"), "run", near=near, near_every=every)


def test_cache_that_is_a_path_is_refused(tmp_path):
    with pytest.raises(InvalidRuntime, match="NodeCache"):
        Checkpoints(str(tmp_path / "root"), "run", near=str(tmp_path), near_every=20)
