"""Temporary space that is full: a limit on the size of files stands for the disk, in a process of its own."""

import os
import random
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import loader
from loader.storage import open_store

RUN = """
import resource, signal, sys
import penstock.migrate.transfer as transfer
from penstock.cli import main
transfer.HELD_BYTES = 2**16
limit = int(sys.argv[1])
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
sys.exit(main(sys.argv[2:]))
"""


@pytest.fixture
def penstock(tmp_path):
    """`penstock(limit, *arguments)`: (exit status, what it said); no file of its process grows past `limit`, and
    nothing stays in scratch."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()

    def run(limit, *arguments):
        done = subprocess.run(
            [sys.executable, "-c", RUN, str(limit), *map(str, arguments)],
            env={**os.environ, "TMPDIR": str(scratch)},
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert "Traceback" not in done.stderr
        assert list(scratch.iterdir()) == []
        said = done.stdout + done.stderr
        assert f"temporary space {scratch}" in said
        assert "Set TMPDIR" in said
        return done.returncode, said

    return run


def test_a_large_object_that_does_not_fit_stops_no_other(tmp_path, penstock):
    source, target = open_store(str(tmp_path / "from")), open_store(str(tmp_path / "to"))
    for key, nbytes in (("a.bin", 100), ("large.bin", 2**18), ("z.bin", 100)):
        source.put(key, random.Random(key).randbytes(nbytes))
    status, said = penstock(2**17, "migrate", "run", target.url, "--from", source.url)
    assert status == 1
    assert "2 objects copied" in said
    assert "while large.bin was copied; it was not" in said
    assert "or --scratch to a writable disk with room for two of the largest objects" in said
    assert sorted(info.key for info in target.list("") if not info.key.startswith(".")) == ["a.bin", "z.bin"]


def test_no_room_to_note_what_was_copied(tmp_path, penstock):
    source, target = open_store(str(tmp_path / "from")), open_store(str(tmp_path / "to"))
    source.put("a.bin", b"x")
    status, said = penstock(4096, "migrate", "run", target.url, "--from", source.url)
    assert status == 1
    assert "StoreError" in said
    assert "what was copied is not lost" in said


def test_no_room_to_look_at_a_root(tmp_path, penstock):
    root = loader.Root(str(tmp_path / "root"))
    with root.write("d") as writer:
        writer.add("k", {"x": b"y"})
    status, said = penstock(100, "gc", "plan", "--root", root.url)
    assert status == 1
    assert "nothing was deleted" in said


def test_no_room_for_labels(tmp_path, penstock):
    root, keys = loader.Root(str(tmp_path / "root")), [f"k{i}" for i in range(400)]
    with root.write("d") as writer:
        for key in keys:
            writer.add(key, {"x": b"y"})
    labels = [f"{key} has a label of its own" for key in keys]
    pq.write_table(pa.table({"key": keys, "label": labels}), tmp_path / "labels.parquet")
    rows = ("--from", tmp_path / "labels.parquet", "--author", "ann@example.org", "--root", root.url)
    status, said = penstock(4096, "annotate", "d@1", "labels", *rows)
    assert status == 1
    assert "nothing was published" in said
    assert len(root.versions("d")) == 1
