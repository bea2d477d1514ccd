"""Compressed archives, MDS and LitData: errors name the object and the byte."""

import gzip
import json
import re
import tarfile

import numpy as np
import pytest

from penstock.formats.archives import webdataset
from penstock.formats.reading import object_file
from tests.penstock.formats.builders import records, tars
from tests.penstock.formats.builders.places import PACKED, PLACES, compress, put
from tests.penstock.formats.versions import failures, field_bytes, import_version, outcome

TARS = PACKED["webdataset"]


@pytest.mark.parametrize("ending", TARS)
def test_members_of_a_compressed_archive_are_those_of_the_plain_one(ending, tmp_path):
    long = f"{'long' * 40}.seg.npy"
    data = [("d/a.JPG", b"x" * 512), ("__own__/x.txt", b"no"), ("README", b"no"), (long, b"y" * 70_000)]
    put(
        tmp_path / f"in/x.{ending}", TARS[ending](tars.tar_bytes([*data, ("c.txt", b"")], tarfile.PAX_FORMAT))
    )
    found = field_bytes(import_version("webdataset-compressed", tmp_path / "in"))
    assert list(found.values()) == [{"jpg": b"x" * 512}, {"seg.npy": b"y" * 70_000}, {"txt": b""}]


@pytest.mark.parametrize("ending", TARS)
def test_compressed_archive_that_is_cut_is_named_wherever_it_is(ending, tmp_path):
    noise = np.random.default_rng(1).bytes(3000)
    packed = TARS[ending](tars.tar_bytes([("a.txt", noise), ("b.txt", noise[::-1])]))
    for cut in (0, 5, len(packed) // 2, len(packed) - 20):
        put(tmp_path / f"in/{cut}.{ending}", packed[:cut])
    at = 0 if ending == "tar.zst" else 2000  # this zstd has no checksum
    put(tmp_path / f"in/flipped.{ending}", packed[:at] + bytes([packed[at] ^ 1]) + packed[at + 1 :])
    told = failures("webdataset-compressed", tmp_path / "in")
    assert [sum(f"/{name}.{ending}" in why for why in told) for name in (0, 5, len(packed) // 2)] == [1] * 3
    assert len(told) == 5, told


@pytest.mark.parametrize(
    ("members", "told"),
    [
        ([("a.x", b""), ("b.x", b""), ("a.y", b"")], r"x\.tgz, byte 1024 of the archive: .* 'a' lie apart"),
        ([("a.x", b"1"), ("a.X", b"2")], r"x\.tgz, byte 1024 of the archive: member 'a\.X' is there twice"),
        ([("a.x", b"1" * 65536), ("a.y", b"2" * 65537)], r"byte 66048 .* 'a' has more than 131,072 bytes"),
    ],
)
def test_archives_that_cannot_be_read_forward_are_told(members, told, tmp_path, monkeypatch):
    monkeypatch.setattr(webdataset, "SAMPLE_BYTES", 2**17)
    put(tmp_path / "in/x.tgz", gzip.compress(tars.tar_bytes(members)))
    (why,) = failures("webdataset-compressed", tmp_path / "in")
    assert re.search(told, why)


@pytest.mark.parametrize("name", ["no-sample", "a.txt"])
def test_bombs_are_refused_also_where_no_sample_has_the_bytes(name, tmp_path, monkeypatch):
    monkeypatch.setattr(object_file, "BOMB_BYTES", 100_000)
    monkeypatch.setattr(object_file, "BOMB_TIMES", 10)
    put(tmp_path / "in/x.tar.zst", TARS["tar.zst"](tars.tar_bytes([(name, bytes(300_000))])))
    (why,) = failures("webdataset-compressed", tmp_path / "in")
    assert "x.tar.zst" in why
    assert "probably a mistake or an attack" in why or "ends after" in why
    put(tmp_path / "records/x.tfrecord", gzip.compress(records.record(bytes(300_000))))
    (why,) = failures("tfrecord", tmp_path / "records")
    assert "x.tfrecord: " in why
    assert "probably a mistake or an attack" in why


def test_archive_cut_in_a_member_of_the_size_of_a_tail_is_told(tmp_path):
    plain = tars.tar_bytes([("a.bin", b"1" * 65536)])
    put(tmp_path / "in/x.tgz", gzip.compress(plain[:40_000]))
    (why,) = failures("webdataset-compressed", tmp_path / "in")
    assert "x.tgz, byte 512 of the archive: it is cut, 39,488 of 65,536 bytes are there" in why


def shard(**change):
    return lambda index: index["shards"][0].update(change)


def raw_bytes(nbytes):
    return lambda index: index["shards"][0]["raw_data"].update(bytes=nbytes)


def config(**change):
    return lambda index: index["config"].update(change)


@pytest.mark.parametrize(
    ("place", "how", "change", "said"),
    [
        (
            "litdata.leaves",
            "chunk",
            config(compression="lz4"),
            "the compression lz4 (level 'chunk'); accepted: zstd",
        ),
        ("litdata.leaves", "chunk", config(compression=None), "Chunks without one: penstock import litdata"),
        (
            "litdata.leaves",
            "batch",
            config(compression_level="all"),
            "accepted: zstd by chunk, batch or sample",
        ),
        (
            "litdata.leaves",
            "batch",
            config(encryption={}, compression_level="chunk"),
            "it cannot be decompressed",
        ),
        ("litdata.leaves", "batch", config(encryption={"level": "chunk"}), "its chunks are encrypted"),
        ("litdata.leaves", "chunk", config(compression_level="batch"), "chunk-0-0.bin"),
        ("mds.arrays", "gz", shard(compression="lz4"), "has the compression lz4; accepted: zstd"),
        ("mds.arrays", "gz", shard(compression=None, zip_data=None), "penstock import mds"),
        (
            "mds.arrays",
            "gz",
            shard(zip_data={"basename": "x", "bytes": 3}),
            "x of 3 bytes, and it is not there",
        ),
        ("mds.arrays", "gz", raw_bytes(7), "bytes or more; its index gives 7"),
        ("mds.arrays", "gz", raw_bytes(2**31), "at most 1,073,741,824"),
        ("mds.arrays", "gz", shard(samples=9), "has 5 samples, and its index gives 9"),
        ("mds.arrays", "gz", lambda index: index["shards"].insert(0, []), "not an index of MDS shards"),
    ],
)
def test_compressed_shards_that_are_wrong_are_told(place, how, change, said, tmp_path):
    format = place.partition(".")[0]
    PLACES[place](tmp_path / "plain")
    compress(format, how, tmp_path / "plain", tmp_path / "in")
    index = json.loads((tmp_path / "in/index.json").read_text())
    change(index)
    (tmp_path / "in/index.json").write_text(json.dumps(index))
    told = outcome(f"{format}-compressed", tmp_path / "in")
    assert said in told
    assert any(name in told for name in ("chunk-0-", ".mds", "index.json"))
