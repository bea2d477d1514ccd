"""The spill gives samples back in hash order, in bounded memory, and leaves nothing behind."""

import os
import resource
import tracemalloc
from contextlib import closing
from datetime import UTC, datetime

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loader.dataset.names import key_hash
from loader.dataset.shards.shard import ShardWriter
from loader.dataset.writing.part_writer import make_sample
from loader.dataset.writing.spill import Spill
from loader.errors import DuplicateKey, StoreError
from tests.refusals import refusal
from tests.servers.processes import python

CI = settings(max_examples=40, deadline=None, derandomize=True)

scalar = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False),
    st.text(st.characters(codec="utf-8"), max_size=6),
    st.datetimes(timezones=st.just(UTC)),
)
sample = st.builds(
    make_sample,
    st.text("abcdefgh/é", min_size=1, max_size=8).map(lambda k: "/".join(filter(None, k.split("/"))) or "k"),
    st.dictionaries(st.sampled_from(["a", "b.bin", "c"]), st.binary(max_size=300), min_size=1),
    st.dictionaries(st.sampled_from(["m", "n"]), st.one_of(scalar, st.lists(scalar, max_size=3))),
    st.dictionaries(st.sampled_from(["raw_uri", "split"]), st.text(st.characters(codec="utf-8"), max_size=5)),
)


def plain(s):
    return (s.key, {f: bytes(d) for f, d in s.fields.items()}, dict(s.metadata), dict(s.source))


@CI
@given(st.lists(sample, max_size=20, unique_by=lambda s: s.key), st.sampled_from([1, 1500, 2**20]))
def test_what_went_in_comes_out_in_hash_order(samples, memory_bytes):
    spill = Spill(memory_bytes=memory_bytes)
    try:
        for s in samples:
            spill.add(s)
        found = [plain(s) for s in spill.drain()]
    finally:
        spill.close()
    assert found == [plain(s) for s in sorted(samples, key=lambda s: key_hash(s.key))]
    assert spill.n_samples == len(samples)


def test_large_field_of_a_spilled_sample_is_never_whole_in_memory():
    """A shard takes it piece by piece from its file: one copy, which is hashed and written."""
    large = np.random.default_rng(1).bytes(24 * 2**20)
    with closing(Spill(memory_bytes=1)) as spill:
        spill.add(make_sample("k", {"mp4": large, "cls": 3}))
        spill.add(make_sample("l", {"mp4": b"small", "cls": 4}))
        writer = ShardWriter(lambda block: None)
        rows = {}
        tracemalloc.start()
        try:
            for one in spill.drain():
                rows[one.key] = [writer.add(one.key, field, data) for field, data in one.fields.items()]
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert peak < 8 * 2**20
    expected = ShardWriter(lambda block: None)
    for key in rows:
        fields = {"k": [("mp4", large), ("cls", b"3")], "l": [("mp4", b"small"), ("cls", b"4")]}[key]
        assert rows[key] == [expected.add(key, field, data) for field, data in fields]
    assert writer.finish() == expected.finish()


def test_spilled_field_of_a_cut_file_is_an_error(tmp_path):
    with closing(Spill(memory_bytes=1, directory=str(tmp_path))) as spill:
        spill.add(make_sample("k", {"mp4": bytes(4 * 2**20)}))
        (one,) = spill.drain()
        (file,) = [path for path in tmp_path.rglob("*") if path.is_file() and path.stat().st_size > 2**20]
        os.truncate(file, 2**20)
        with refusal(StoreError, what="spilled samples", where=file):
            ShardWriter(lambda block: None).add("k", "mp4", one.fields["mp4"])


def test_memory_is_bounded(tmp_path):
    spill = Spill(memory_bytes=10_000, directory=str(tmp_path))
    for i in range(200):
        spill.add(make_sample(f"k{i}", {"x": bytes(1000)}))
        assert spill._nbytes < 10_000 + 1512
    assert sum(1 for _ in spill.drain()) == 200
    spill.close()


def test_duplicate_in_memory_is_found_at_once():
    spill = Spill()
    spill.add(make_sample("k", {"x": b"1"}))
    with refusal(DuplicateKey, what="key", where="this version", given="k"):
        spill.add(make_sample("k", {"x": b"2"}))
    spill.close()


@pytest.mark.parametrize("between", [0, 50])
def test_duplicate_across_flushes_is_found_when_read_back(between):
    spill = Spill(memory_bytes=1)
    spill.add(make_sample("k", {"x": b"1"}))
    for i in range(between):
        spill.add(make_sample(f"other{i}", {"x": b"1"}))
    spill.add(make_sample("k", {"x": b"2"}))
    with refusal(DuplicateKey, what="key", where="this version", given="k"):
        list(spill.drain())
    spill.close()


def test_every_file_is_deleted(tmp_path):
    spill = Spill(memory_bytes=1, directory=str(tmp_path))
    for i in range(300):
        spill.add(make_sample(f"k{i}", {"x": bytes(10)}))
    assert list(tmp_path.iterdir())
    drain = spill.drain()
    next(drain)
    spill.close()
    assert list(tmp_path.iterdir()) == []
    spill.close()


def test_nothing_is_written_while_it_fits_in_memory(tmp_path):
    spill = Spill(directory=str(tmp_path))
    spill.add(make_sample("k", {"x": bytes(10)}))
    assert len(list(spill.drain())) == 1
    assert list(tmp_path.iterdir()) == []
    spill.close()


def test_what_the_caller_changes_later_changes_nothing():
    data = bytearray(b"before")
    spill = Spill()
    spill.add(make_sample("k", {"x": data}))
    data[:] = b"after!"
    assert next(spill.drain()).fields["x"] == b"before"


FULL = """
import resource, signal, sys
import loader
from loader.dataset.publishing import writer
root = loader.Root(sys.argv[1])
limit, spill_bytes = int(sys.argv[2]), int(sys.argv[3])
real = writer.Spill
writer.Spill = lambda: real(memory_bytes=spill_bytes)
root.create()
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
try:
    with root.write("d") as w:
        for i in range(60):
            w.add(f"k{i}", {"x": bytes(4000)})
except loader.errors.StoreError as error:
    print(type(error).__name__, error)
print(sorted(root.state.datasets), [t.status for t in root.state.txns.values()])
"""


@pytest.mark.parametrize(
    ("spill_bytes", "limit", "in_place"),
    [(20_000, 5_000, True), (2**28, 30_000, False), (2**28, 30_000, True)],
    ids=["the spill", "a shard on scratch", "a shard in its place"],
)
def test_full_disk_is_a_clear_error(tmp_path, spill_bytes, limit, in_place):
    """The file size limit stands for a full disk: every write beyond it fails, in a process of its own."""
    scratch, root = tmp_path / "scratch", tmp_path / "root"
    scratch.mkdir()
    # One bucket file of the spill holds one or two of the 60 samples; the shard holds them all.
    url = str(root) if in_place else "memory://full"
    run = python("-c", FULL, url, limit, spill_bytes, env={**os.environ, "TMPDIR": str(scratch)})
    assert run.returncode == 0, run.stderr
    said, state = run.stdout.splitlines()
    assert "File too large" in said
    if limit == 30_000 and in_place:
        assert said.startswith(f"StoreError cannot write {root}/data/")
        assert not [
            path for path in root.rglob("*") if path.suffix == ".tar" or path.name.startswith(".tmp-")
        ]
    else:
        assert said.startswith(f"StoreError temporary space {scratch}")
        assert "Set TMPDIR" in said
        assert "nothing was published" in said
    assert state == "[] ['aborted']"
    assert list(scratch.iterdir()) == []


def test_missing_temporary_directory_is_a_clear_error(tmp_path):
    from loader.errors import StoreError

    spill = Spill(memory_bytes=1, directory=str(tmp_path / "gone"))
    with pytest.raises(StoreError, match=r"gone: No such file.*Set TMPDIR"):
        spill.add(make_sample("k", {"x": b"1"}))
    spill.close()


def test_metadata_survives_the_spill_as_it_was():
    at = datetime(2026, 11, 20, 1, 2, 3, 456789, UTC)
    metadata = {"t": at, "f": float("inf"), "l": [at, None], "i": 2**63 - 1, "s": "é\u2028"}
    for memory_bytes in (1, 2**20):
        spill = Spill(memory_bytes=memory_bytes)
        spill.add(make_sample("k", {"x": b""}, metadata))
        assert next(iter(spill.drain())).metadata == metadata
        spill.close()


@pytest.mark.parametrize("value", ["2026-11-20", "noon", 5, None, ["x"], datetime(2026, 11, 20, tzinfo=UTC)])
def test_column_may_have_any_name(value):
    """Also that under which a time is spilled, alone."""
    spill = Spill(memory_bytes=1)
    spill.add(make_sample("k", {"x": b""}, {"datetime": value}, {"split": "a"}))
    assert [(one.metadata, one.source) for one in spill.drain()] == [({"datetime": value}, {"split": "a"})]
    spill.close()


def test_open_files_stay_below_the_usual_limit():
    """256 buckets: a process may have 1,024 open files by default."""
    from loader.dataset.writing.spill import BUCKETS

    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] >= 1024 > 2 * BUCKETS
