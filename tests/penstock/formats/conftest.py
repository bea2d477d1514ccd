"""A place of every format, and a version with all that an export has to keep apart."""

import os
import shutil
import tarfile
from pathlib import Path

import numpy as np
import pytest

import loader
from fuzz.places import write_places
from penstock.formats.registration.register import register
from tests.penstock.formats.builders import megatron_files, places

WRITTEN = 1_700_000_000
"""Time of the last write of every object, in seconds: a version's id follows from it."""


def fill(folder):
    """Write a place per format. Lance draws names at random, so its files are stored."""
    write_places(folder)
    (folder / "energon/.nv-meta/index.uuid").write_bytes(b"0")  # of a version with a random transaction
    shutil.rmtree(folder / "lance")
    with tarfile.open(Path(__file__).parent / "golden/lance.tar.gz") as stored:
        stored.extractall(folder, filter="data")
    set_times(folder)
    return folder


def set_times(folder):
    for path in folder.rglob("*"):
        os.utime(path, (WRITTEN, WRITTEN))


def fill_all(folder):
    """Write a place per format, and the further forms of `builders.places`."""
    fill(folder)
    for name, write in places.PLACES.items():
        write(folder / name)
    set_times(folder)
    return folder


@pytest.fixture(scope="session")
def format_places(tmp_path_factory):
    """Folder with all places, which tests do not change."""
    return fill_all(tmp_path_factory.mktemp("places"))


@pytest.fixture(scope="session")
def export_root(tmp_path_factory):
    """Path of a root with d@5: parts with and without a group, exclusions, an annotation, keys and fields with dots.

    Beside it tokens@1 for formats that hold no more.
    """
    path = tmp_path_factory.mktemp("exported") / "root"
    rng = np.random.default_rng(3)
    with loader.Root(path) as root:
        with root.write("d", part_samples=4, facts={"tok.npy": {"tokenizer": "t"}}) as writer:
            for i in range(10):
                fields = {"jpg": rng.bytes(200 + 700 * i), "cam_high.mp4": b"%d" % i, "tok.npy": np.arange(i)}
                metadata = {"w": i, "kind": "ab\n\u00e4"[i % 4], "score": i / 3, "tags": ["x"] * (i % 3)}
                source = {"source_key": f"old/{i}.x", "split": "train" if i % 2 else "val"}
                writer.add(f"a.b/k{i}", fields, metadata=metadata, source=source)
        root.add_group("d", "emb", {"emb.npy": lambda sample: sample["tok.npy"] * 2})
        root.exclude("d", ["a.b/k1", "a.b/k7"], reason="blurred")
        with root.write("d") as writer:  # of another kind: without the group, with one column more
            for i in range(10, 13):
                name = "long" * 24 + f"/k{i}"
                fields = {"jpg": b"", "cam_high.mp4": b"\0" * 512, "tok.npy": np.arange(i)}
                writer.add(name, fields, metadata={"w": i, "late": True}, source={"split": "val"})
        place = tmp_path_factory.mktemp("tokens")
        for stem, n in (("a", 6), ("b/c", 5)):
            megatron_files.fill(place, stem, "u2", megatron_files.number_documents(n))
        register(root, "megatron", place, "tokens")
        root.annotate("d", "labels", {"a.b/k2": {"kind": "new"}}, author="ann")
    return str(path)
