"""Settings of near checkpoints that are refused."""

import pytest

import loader
from loader.errors import InvalidRuntime
from penstock.checkpoints import Checkpoints
from tests.refusals import refusal

PEERS = ["10.0.0.1:7070", "10.0.0.2:7070"]


@pytest.mark.parametrize(
    ("cache", "every", "fault"),
    [
        (None, 20, {"what": "near", "where": "near_every"}),
        ({"peers": PEERS}, 0, {"what": "near_every", "given": 0}),
        ({"peers": PEERS}, True, {"what": "near_every", "given": True}),
        ({"peers": PEERS}, 2.5, {"what": "near_every", "given": 2.5}),
        ({}, 20, {"what": "peers"}),
        ({"peers": PEERS, "shared": True}, 20, {"what": "shared", "given": True}),
    ],
)
def test_settings_without_sense_are_refused(tmp_path, cache, every, fault: dict[str, object]):
    near = None if cache is None else loader.NodeCache(path=tmp_path / "cache", **cache)
    with refusal(InvalidRuntime, **fault):
        Checkpoints(str(tmp_path / "root"), "run", near=near, near_every=every)


def test_cache_that_is_a_path_is_refused(tmp_path):
    with refusal(InvalidRuntime, what="near", given=tmp_path):
        Checkpoints(str(tmp_path / "root"), "run", near=str(tmp_path), near_every=20)
