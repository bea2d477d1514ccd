"""Writers killed in the middle of every kind of change: what they did is there or it is not.

`make prove` kills at every request; here at some."""

import os
import resource
import signal

import pytest

from loader.errors import StoreError
from penstock.upkeep.verify.root import verify_root


@pytest.fixture(scope="module")
def places(shared):
    return shared("dataset/places")


@pytest.fixture(scope="module")
def kills(shared):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)  # a power cut needs it, SIGKILL does not
        yield shared("dataset/kills")


@pytest.fixture(scope="module")
def do(kills, shared):
    with shared("dataset/forks").processes(kills.__file__) as do:
        yield do


@pytest.fixture(scope="module")
def place(kills, places):
    with places.disk() as place:
        kills.begin(place)
        yield place


@pytest.mark.parametrize(
    ("change", "k"),
    [
        ("write", 22),  # the log's entry
        ("publish", 7),
        ("add_group", 6),
        ("annotate", 5),
        ("retire", 1),
        ("takedown", 15),
        ("sweep", 5),
    ],
)
def test_killed_at_a_request(kills, do, place, change, k):
    assert kills.kill_everywhere(place, do, change, [k]) == 2


@pytest.mark.server
def test_killed_by_a_server(kills, do, places, at_scale):
    """On S3: the log's entry of a publish, before it is there and after it is; at full size other changes too."""
    with places.s3() as place:
        kills.begin(place)
        for change, k in (("publish", 20), ("takedown", 1), ("sweep", 6))[: at_scale(1, 3)]:
            assert kills.kill_everywhere(place, do, change, [k]) == 2


def test_disk_that_is_full_leaves_nothing_half_visible(place):
    """No file may grow past 4 KB: the shard does not fit. The error names the place, and the next try succeeds."""
    with place.copy() as copy:
        a_write_that_does_not_fit(copy.root())


def a_write_that_does_not_fit(root):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
        with (
            pytest.raises((StoreError, OSError), match="File too large") as caught,
            root.write("d") as writer,
        ):
            writer.add("large", {"x": os.urandom(100_000)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert "File too large" in str(caught.value)
    assert len(root.versions("d")) == 7
    assert verify_root(root, full=True).problems == []
    with root.write("d") as writer:
        writer.add("large", {"x": os.urandom(100_000)})
    assert verify_root(root, full=True).problems == []
