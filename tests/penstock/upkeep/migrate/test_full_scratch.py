"""Temporary space that is full: a limit on the size of files stands for the disk, in a process of its own."""

import os
import random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import loader
from loader.dataset.log.denies import Target
from loader.storage import open_store
from tests.servers.processes import python

RUN = """
import resource, signal, sys
import penstock.upkeep.copying.copy_one as transfer
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
        done = python("-c", RUN, limit, *arguments, env={**os.environ, "TMPDIR": str(scratch)})
        assert "Traceback" not in done.stderr
        assert list(scratch.iterdir()) == []
        said = done.stdout + done.stderr
        assert f"temporary space {scratch if limit else '(TMPDIR)'}" in said
        assert "Set TMPDIR" in said
        return done.returncode, said

    return run


def test_large_object_that_does_not_fit_stops_no_other(tmp_path, penstock):
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


@pytest.mark.parametrize("limit", [100, 0], ids=["little", "none"])
def test_no_room_to_look_at_a_root(tmp_path, penstock, limit):
    """Where there is none at all, nobody finds a place for temporary files either."""
    root = loader.Root(str(tmp_path / "root"))
    with root.write("d") as writer:
        writer.add("k", {"x": b"y"})
    status, said = penstock(limit, "gc", "plan", "--root", root.url)
    assert status == 1
    assert "nothing was deleted" in said


@pytest.mark.parametrize("n", [200, 400], ids=["less than a buffer", "more"])
def test_no_room_for_labels(tmp_path, penstock, n):
    root, keys = loader.Root(str(tmp_path / "root")), [f"k{i}" for i in range(n)]
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


def test_no_room_to_redact(tmp_path, penstock):
    root = loader.Root(str(tmp_path / "root"))
    with root.write("d") as writer:
        writer.add("k", {"x": bytes(2**18)}, source={"subject": "alice"})
        writer.add("l", {"x": b"y"}, source={"subject": "bob"})
    n = root.log.deny((Target(kind="subject", value="alice"),), "ticket 1", "privacy desk").n
    status, said = penstock(2**17, "takedown", "run", n, "--apply", "--root", root.url)
    assert status == 1
    assert "while a shard was redacted; nothing was published" in said
    assert len(root.versions("d")) == 1


NOTES = """
import resource, signal, sys
from loader.errors import StoreError
from loader.storage import open_store
from penstock.upkeep.copying.items import Copied
from penstock.upkeep.copying.journal import Journal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
limit = int(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
with Journal(open_store("memory://notes"), "notes/") as journal:
    for number in range(200_000):
        key = f"{number * 7919 % 200_000:040}"
        try:
            verb = "find"
            journal.find(key)
            verb = "add"
            journal.add(Copied(path=key, nbytes=1, digest="sha256:" + "0" * 64))
        except StoreError as error:
            sys.exit(f"{verb}: {error}")
"""


@pytest.mark.parametrize(("limit", "verb"), [(2_000_000, "add"), (20_000_000, "find")])
def test_no_room_for_many_notes(limit, verb):
    """Beyond the database's cache a page is written before another one is read, or made."""
    done = python("-c", NOTES, limit)
    assert done.stderr.startswith(f"{verb}: temporary space "), done.stderr
    assert done.stderr.count("what was copied is not lost") == 1
