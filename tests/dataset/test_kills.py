"""Writers killed in the middle of every kind of change: what they did is there or it is not.

`make prove` kills at every request; here at some."""

import itertools
import os
import resource
import shutil
import signal

import pytest

import loader
from loader.errors import StoreError
from penstock.verify_root import verify_root

_numbers = itertools.count()


@pytest.fixture(scope="module")
def kills(shared):
    return shared("dataset/kills")


@pytest.fixture(scope="module")
def template(kills, tmp_path_factory):
    folder = tmp_path_factory.mktemp("killed")
    kills.begun(folder / "template").close()
    return folder


def copied(template):
    folder = template / str(next(_numbers))
    shutil.copytree(template / "template", folder)
    return loader.Root(folder)


@pytest.mark.parametrize(
    ("change", "k", "after"),
    [
        ("publish", 17, True),
        ("add_group", 17, False),
        ("exclude", 17, True),
        ("retire", 3, True),
        ("tag", 3, False),
    ],
)
def test_killed_at_a_request(kills, template, change, k, after):
    assert kills.killed_at(lambda: copied(template), change, k, after)


def test_a_disk_that_is_full_leaves_nothing_half_visible(template):
    """No file may grow past 4 KB: the shard does not fit. The error names the place, and the next try succeeds."""
    root = copied(template)
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
