"""Compressed archives and TFRecord: each sample is in the version, and damage is told with its object and byte."""

import bz2
import gzip
import lzma
import os
import re
import tarfile

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import loader
from loader.errors import Corrupt, InvalidSample, PenstockError
from loader.storage import open_store
from penstock.formats import litdata as litdata_chunks
from penstock.formats.importer import NO_OPTIONS, ColumnarOptions
from penstock.formats.registry import importer_named
from penstock.formats.run_import import import_place
from penstock.formats.tables.tfrecord_import import Wire, features_of, masked_crc32c

JPG = b"\xff\xd8\xff-a picture-"
PACK = {
    "tar.gz": gzip.compress,
    "tgz": gzip.compress,
    "tar.bz2": bz2.compress,
    "tar.xz": lzma.compress,
    "tar.zst": lambda data: pa.Codec("zstd").compress(data, asbytes=True),
}


@pytest.fixture(scope="session")
def tars(shared):
    return shared("penstock/formats/registered/tars")


@pytest.fixture(scope="session")
def records(shared):
    return shared("penstock/formats/exchange/records")


def put(path, data):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    os.utime(path, (1_700_000_000, 1_700_000_000))


def imported(format, folder, root, **options):
    how = ColumnarOptions(
        options.get("key"), options.get("fields", {}), frozenset(options.get("without", ()))
    )
    return import_place(loader.Root(root), format, open_store(folder), "d", options=how)


def failures(format, folder, root, **options):
    done = imported(format, folder, root, **options)
    assert loader.Root(root).datasets() == []
    return done.failures


MEMBERS = [
    ("d/a.JPG", JPG),
    ("__own__/x.txt", b"no sample's"),
    ("README", b"neither"),
    ("d/a.txt", b"x" * 512),
    (f"{'long' * 40}.seg.npy", b"y" * 70_000),
    ("c.txt", b""),
]


@pytest.mark.parametrize("ending", PACK)
def test_compressed_archive_is_read_as_a_plain_one(ending, tmp_path, tars, contents):
    plain = tars.tar_bytes(MEMBERS, tarfile.PAX_FORMAT)
    packed = PACK[ending](plain[:700]) + PACK[ending](plain[700:])  # of two streams
    put(tmp_path / f"in/x.{ending}", packed)
    done = imported("webdataset-compressed", tmp_path / "in", tmp_path / "root")
    assert (done.failures, done.samples) == ([], 3)
    mine = contents(loader.Root(tmp_path / "root").open("d"))
    (long,) = mine.keys() - {"d/a", "c"}
    assert list(mine) == ["d/a", long, "c"]
    assert mine[long][1]["source_key"] == "long" * 40
    assert mine["d/a"][0] == {"jpg": JPG, "txt": b"x" * 512}
    assert mine["c"][0] == {"txt": b""}
    assert mine[long][0] == {"seg.npy": b"y" * 70_000}


@pytest.mark.parametrize("ending", PACK)
def test_compressed_archive_that_is_cut_is_named_wherever_it_is(ending, tmp_path, tars):
    noise = np.random.default_rng(1).bytes(3000)
    packed = PACK[ending](tars.tar_bytes([("a.txt", noise), ("b.txt", noise[::-1])]))
    for cut in (0, 5, len(packed) // 2, len(packed) - 20):
        put(tmp_path / f"in/{cut}.{ending}", packed[:cut])
    at = 0 if ending == "tar.zst" else 2000  # this zstd has no checksum
    put(tmp_path / f"in/flipped.{ending}", packed[:at] + bytes([packed[at] ^ 1]) + packed[at + 1 :])
    told = failures("webdataset-compressed", tmp_path / "in", tmp_path / "root")
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
def test_archives_that_cannot_be_read_forward_are_told(members, told, tmp_path, tars, monkeypatch):
    monkeypatch.setattr("penstock.formats.archives.webdataset.SAMPLE_BYTES", 2**17)
    put(tmp_path / "in/x.tgz", gzip.compress(tars.tar_bytes(members)))
    (why,) = failures("webdataset-compressed", tmp_path / "in", tmp_path / "root")
    assert re.search(told, why)


@pytest.mark.parametrize("name", ["no-sample", "a.txt"])
def test_bombs_are_refused_also_where_no_sample_has_the_bytes(name, tmp_path, tars, records, monkeypatch):
    monkeypatch.setattr("penstock.formats.reading.object_file.BOMB_BYTES", 100_000)
    monkeypatch.setattr("penstock.formats.reading.object_file.BOMB_TIMES", 10)
    put(tmp_path / "in/x.tar.zst", PACK["tar.zst"](tars.tar_bytes([(name, bytes(300_000))])))
    (why,) = failures("webdataset-compressed", tmp_path / "in", tmp_path / "root")
    assert "x.tar.zst" in why
    assert "probably a mistake or an attack" in why or "ends after" in why
    put(tmp_path / "records/x.tfrecord", gzip.compress(records.record(bytes(300_000))))
    (why,) = failures("tfrecord", tmp_path / "records", tmp_path / "root")
    assert "x.tfrecord: " in why
    assert "probably a mistake or an attack" in why


def test_archive_cut_in_a_member_of_the_size_of_a_tail_is_told(tmp_path, tars):
    plain = tars.tar_bytes([("a.bin", b"1" * 65536)])
    put(tmp_path / "in/x.tgz", gzip.compress(plain[:40_000]))
    (why,) = failures("webdataset-compressed", tmp_path / "in", tmp_path / "root")
    assert "x.tgz, byte 512 of the archive: it is cut, 39,488 of 65,536 bytes are there" in why


def test_checksums_are_those_of_tfrecord(records):
    """The heads of an empty record, and of the first record of TensorFlow's event files."""
    for nbytes, head in ((0, "000000000000000029039807"), (24, "1800000000000000a37f4b22")):
        assert records.record(bytes(nbytes))[:12].hex() == head
        assert masked_crc32c(bytes.fromhex(head)[:8]).hex() == head[16:]


@pytest.mark.parametrize(
    ("name", "packed"),
    [("a.tfrecord", True), ("b.tfrecords.gz", False), ("x.tfrecord-00000-of-00002", True)],
)
def test_records_are_samples(name, packed, tmp_path, records, contents):
    rows = [
        {
            "image/encoded": [JPG],
            "image/text": ["Ü caption".encode()],
            "id": [b"one"],
            "label": [-3],
            "score": [0.5],
            "ids": [1, -2, 2**62],
            "emb": [1.5, float("inf")],
            "raw": [b"\0\1"],
            "more": [b"{}"],
            "left": [b"1", b"2"],
            "none": [],
        },
        {
            "image/encoded": [JPG + b"2"],
            "id": [b"two"],
            "ids": [7, 8],
            "emb": [1.0, 2.0],
            "raw": [b"\0"],
            "more": [b""],
        },
    ]
    data = b"".join(records.record(records.example(row, packed)) for row in rows)
    put(tmp_path / f"in/{name}", gzip.compress(data) if name.startswith("b") else data)
    done = imported(
        "tfrecord", tmp_path / "in", tmp_path / "root", key="id", fields={"more": "json"}, without=["left"]
    )
    assert (done.failures, done.samples) == ([], 2)
    found = contents(loader.Root(tmp_path / "root").open("d"))
    fields, columns = found["one"]
    assert fields == {
        "image_encoded.jpg": JPG,
        "ids.i8": np.array([1, -2, 2**62]).tobytes(),
        "emb.f4": np.array([1.5, np.inf], np.float32).tobytes(),
        "raw": b"\0\1",
        "more.json": b"{}",
    }
    assert (columns["image_text"], columns["label"], columns["score"]) == ("Ü caption", -3, 0.5)
    assert found["two"][0]["more.json"] == b""
    assert "label" not in found["two"][1]


def test_records_of_parts_have_keys_of_their_own(tmp_path, records, contents):
    data = records.record(records.example({"text": [b"a"], "label": [1]}))
    keys = []
    for name, stem in (
        ("a.tfrecord-00000-of-00002", "a-00000-of-00002"),
        ("a.tfrecord-00001-of-00002", "a-00001-of-00002"),
        ("b/a-3-of-4.x.tfrecord", "b/a-3-of-4"),
        ("c.gz.tfrecord-0-of-1", "c-0-of-1"),
        ("d-0-of-2.tfrecord-0-of-2", "d-0-of-2-0-of-2"),
        ("d-0-of-2.tfrecord-1-of-2", "d-0-of-2-1-of-2"),
        ("d-1-of-2.tfrecord-0-of-2.gz", "d-1-of-2-0-of-2"),
        ("e.x-0-of-2.tfrecord-1-of-2", "e-0-of-2-1-of-2"),
    ):
        put(tmp_path / "in" / name, data)
        keys.append(f"{stem}/000000000")
    done = imported("tfrecord", tmp_path / "in", tmp_path / "root", fields={"text": "txt"})
    assert (done.failures, done.samples) == ([], 8)
    with loader.Root(tmp_path / "root") as root:
        assert sorted(contents(root.open("d"))) == keys  # with the whole name in front, had they repeated


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda data, one: data[:-1], r"bad\.tfrecord, byte 36: a record of 20 bytes is cut"),
        (lambda data, one: data[:42], r"bad\.tfrecord, byte 36: the length of a record is cut"),
        (lambda data, one: data[:60] + b"?" + data[61:], r"bad\.tfrecord, byte 36: .* its checksum is wrong"),
        (
            lambda data, one: b"\1" + data[1:],
            r"bad\.tfrecord, byte 0: the length of a record is cut, or its checksum",
        ),
        (
            lambda data, one: data + one(b"\x0a\x05"),
            r"record 2 at byte 72 is no tf\.train\.Example: byte 0: field 1",
        ),
        (lambda data, one: data + one(b"\x12\x00"), r"record 2 at byte 72 .* a SequenceExample"),
        (lambda data, one: data + one(b""), r"sample 'bad/000000002' has no field"),
        (
            lambda data, one: data + one(b"x" * 2000),
            r"byte 72: a record has 2,000 bytes; at most 1,000 are read",
        ),
    ],
)
def test_damaged_records_are_told_with_their_byte(change, told, tmp_path, records, monkeypatch):
    monkeypatch.setattr("penstock.formats.tables.tfrecord_import.RECORD_BYTES", 1000)
    one = records.record(records.example({"abcde": [b"\0\1\2"]}))
    assert len(one) == 36
    put(tmp_path / "in/bad.tfrecord", change(one + one, records.record))
    put(tmp_path / "in/good.tfrecord", one)
    (why,) = failures("tfrecord", tmp_path / "in", tmp_path / "root")
    assert re.search(told, why), why


@pytest.mark.parametrize(
    ("row", "options", "told"),
    [
        ({"a": [b"1", b"2"], "b": [b"\0"]}, {}, r"record 0: feature 'a' has 2 values of bytes"),
        ({"a": [b"x" * 20_000]}, {}, r"record 0: the text in column 'a' has more than"),
        ({"a/b": [1], "a.b": [2], "x": [1, 2]}, {}, r"record 0: two features would both be 'a_b'"),
        ({"x": [1, 2]}, {"key": "id"}, r"record 0: the key, column 'id', is None"),
        ({"x": [1, 300]}, {"fields": {"x": "u1"}}, r"record 0: numbers of column 'x' do not fit u1"),
    ],
)
def test_features_that_fit_no_rule_are_told(row, options, told, tmp_path, records):
    put(tmp_path / "in/x.tfrecord", records.record(records.example(row)))
    (why,) = failures("tfrecord", tmp_path / "in", tmp_path / "root", **options)
    assert re.search(told, why), why


@given(st.binary(max_size=60))
@example(b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01")
@example(b"\x0a\x0a\x0a\x08\x12\x06\x1a\x04\x0d\0\0\0")
def test_any_bytes_are_an_example_or_damage(data):
    told = "byte 0: "
    try:
        features_of(data)
    except Wire as error:
        told = str(error)
    assert re.match(r"byte \d+: ", told)


values = st.one_of(
    st.lists(st.binary(max_size=9), min_size=1, max_size=4),
    st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=4),
    st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=4),
)


@settings(max_examples=25)
@given(rows=st.dictionaries(st.text(st.characters(codec="utf-8"), max_size=5), values), packed=st.booleans())
def test_examples_come_back_as_they_were_written(rows, packed, records):
    found = features_of(records.example(rows, packed))
    assert {name: list(one.values) for name, one in found.items()} == rows


@settings(max_examples=25)
@given(
    place=st.integers(0, 10**6),
    bits=st.integers(1, 255),
    cut=st.booleans(),
    format=st.sampled_from(["tar", "records"]),
)
def test_damaged_object_is_read_or_refused_with_its_name(place, bits, cut, format, tars, records):
    store = open_store(f"memory://damaged/{place}-{bits}-{cut}-{format}")
    if format == "tar":
        data, name = tars.tar_bytes([("a.x", b"12"), ("b.x", b"3")], tarfile.GNU_FORMAT), "x.tar.gz"
    else:
        data, name = records.record(records.example({"a": [1, 2], "b": [JPG]})) * 2, "x.tfrecord"
    place %= len(data)
    data = data[:place] + (b"" if cut else bytes([data[place] ^ bits]) + data[place + 1 :])
    store.put(name, gzip.compress(data, 0) if format == "tar" else data)
    found = importer_named("tfrecord" if format == "records" else "webdataset-compressed")
    readable = found.find_readable(store, list(store.list()), NO_OPTIONS)
    told = name
    try:
        for run in readable.runs(readable.infos[0]):
            list(readable.samples(run))
    except PenstockError as error:
        told = str(error)
    assert name in told


def litdata_compressed(files, folder, level):
    """Two chunks, compressed as LitData does; and the same without compression beside them."""
    tree = {"n": "int", "text": "str"}
    if level == "table":
        rows = [{"n": i, "text": "t" * i, "ids": [i] * i} for i in range(8)]
        parts = [(5, files.table_chunk(rows[:5])), (3, files.table_chunk(rows[5:]))]
        packed = [files.table_chunk(some, compression="zstd") for some in (rows[:5], rows[5:])]
    else:
        rows = [files.item([np.int64(i).tobytes(), b"t" * i]) for i in range(8)]
        parts = [(5, files.chunk(rows[:5])), (3, files.chunk(rows[5:]))]
        pack = {"chunk": files.zstd, "batch": files.framed, "sample": files.by_sample}[level]
        packed = [pack(data) for _, data in parts]
    files.fill(folder.with_name("plain"), tree, *parts)
    index = files.fill(folder, tree, *((n, data) for (n, _), data in zip(parts, packed, strict=True)))
    how = (
        {"ipc_compression": "zstd"}
        if level == "table"
        else {"compression": "zstd", "compression_level": level}
    )
    index["config"] |= how
    if level == "chunk":
        for one, (_, data) in zip(index["chunks"], parts, strict=True):
            one["chunk_bytes"] = len(data)
    files.put_index(folder, index)
    return index


@pytest.mark.parametrize("level", ["chunk", "batch", "sample", "table"])
def test_compressed_litdata_is_read_as_a_plain_one(level, shared, tmp_path, contents):
    litdata_compressed(shared("penstock/formats/registered/litdata_files"), tmp_path / "in", level)
    assert imported("litdata-compressed", tmp_path / "in", tmp_path / "a").failures == []
    assert imported("litdata", tmp_path / "plain", tmp_path / "b").failures == []
    found, wanted = (
        {
            key: (fields, {name: one for name, one in columns.items() if name not in ("raw_key", "raw_etag")})
            for key, (fields, columns) in contents(loader.Root(tmp_path / name).open("d")).items()
        }
        for name in ("a", "b")
    )
    assert found == wanted
    assert len(found) == 8


@pytest.mark.parametrize(
    ("level", "change", "said"),
    [
        ("chunk", {"compression": "lz4"}, "the compression lz4 (level 'chunk'); accepted: zstd"),
        ("chunk", {"compression": None}, "Chunks without one: penstock import litdata"),
        ("batch", {"compression_level": "all"}, "(level 'all'); accepted: zstd by chunk, batch or sample"),
        ("batch", {"encryption": {}, "compression_level": "chunk"}, "it cannot be decompressed"),
        ("batch", {"encryption": {"level": "chunk"}}, "its chunks are encrypted"),
        ("chunk", {"compression_level": "batch"}, "chunk-0-0.bin"),
    ],
)
def test_compressed_litdata_that_is_wrong_is_told(level, change, said, shared, tmp_path):
    files = shared("penstock/formats/registered/litdata_files")
    index = litdata_compressed(files, tmp_path / "in", level)
    index["config"] |= change
    files.put_index(tmp_path / "in", index)
    try:
        told = "; ".join(failures("litdata-compressed", tmp_path / "in", tmp_path / "root"))
    except PenstockError as error:
        told = str(error)
    assert said in told
    assert "chunk-0-" in told or "index.json" in told


@given(data=st.data(), level=st.sampled_from(["chunk", "batch", "sample", "table"]))
@settings(max_examples=40, deadline=None)
def test_damaged_compressed_litdata_is_read_or_told(data, level, shared, tmp_path_factory):
    folder = tmp_path_factory.mktemp("litdata") / "in"
    litdata_compressed(shared("penstock/formats/registered/litdata_files"), folder, level)
    path = folder / "chunk-0-1.bin"
    good = bytearray(path.read_bytes())
    for at, byte in data.draw(
        st.lists(st.tuples(st.integers(0, len(good) - 1), st.integers(0, 255)), min_size=1, max_size=3)
    ):
        good[at] = byte
    path.write_bytes(good)
    store = open_store(folder)
    readable = litdata_chunks.find_readable(store, list(store.list()), ColumnarOptions())
    (info,) = (info for info in readable.infos if info.key == "chunk-0-1.bin")
    said, found = "", []
    try:
        found = [one for run in readable.runs(info) for one in readable.samples(run)]
    except (Corrupt, InvalidSample) as error:
        said = str(error)
    assert "chunk-0-1.bin" in said or len(found) == 3


def mds_compressed(mds, folder, codec, pack):
    """Two shards, compressed as MDSWriter does; and the same without compression beside them."""
    columns = {"n": "int", "text": "str", "tokens": "ndarray:uint16"}
    rows = [
        {"n": np.int64(i).tobytes(), "text": b"t" * i, "tokens": b"\x04" + np.uint8([1 << 2, i]).tobytes()}
        for i in range(8)
    ]
    rows = [
        row | {"tokens": np.uint8([1 << 2, i + 1]).tobytes() + np.arange(i + 1, dtype="<u2").tobytes()}
        for i, row in enumerate(rows)
    ]
    index = mds.fill(folder.with_name("plain"), columns, rows[:5], rows[5:])
    for one in index["shards"]:
        name = one["raw_data"]["basename"]
        data = pack((folder.with_name("plain") / name).read_bytes())
        put(folder / f"{name}.{codec}", data)
        one |= {
            "compression": codec,
            "zip_data": {"basename": f"{name}.{codec}", "bytes": len(data), "hashes": {}},
        }
    mds.put_index(folder, index)
    return index


def packer(name):
    def pack(data):
        sink = pa.BufferOutputStream()
        with pa.CompressedOutputStream(sink, name) as out:
            out.write(data)
        return sink.getvalue().to_pybytes()

    return pack


@pytest.mark.parametrize(
    ("codec", "pack"),
    [
        ("zstd:7", packer("zstd")),
        ("gz", gzip.compress),
        ("bz2", bz2.compress),
        ("br:11", packer("brotli")),
        ("snappy", lambda data: pa.Codec("snappy").compress(data, asbytes=True)),
    ],
)
def test_compressed_mds_is_read_as_a_plain_one(codec, pack, shared, tmp_path, contents):
    mds_compressed(shared("penstock/formats/registered/mds_files"), tmp_path / "in", codec, pack)
    assert imported("mds-compressed", tmp_path / "in", tmp_path / "a").failures == []
    assert imported("mds", tmp_path / "plain", tmp_path / "b").failures == []
    found, wanted = (contents(loader.Root(tmp_path / name).open("d")) for name in ("a", "b"))
    of_place = {"raw_key", "raw_etag"}
    assert {
        key: (fields, {name: one for name, one in columns.items() if name not in of_place})
        for key, (fields, columns) in found.items()
    } == {
        key: (fields, {name: one for name, one in columns.items() if name not in of_place})
        for key, (fields, columns) in wanted.items()
    }
    assert len(found) == 8


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda shard: shard | {"compression": "lz4"}, "has the compression lz4; accepted: zstd"),
        (lambda shard: shard | {"compression": None, "zip_data": None}, "penstock import mds"),
        (
            lambda shard: shard | {"zip_data": {"basename": "x", "bytes": 3}},
            "x of 3 bytes, and it is not there",
        ),
        (
            lambda shard: shard | {"raw_data": shard["raw_data"] | {"bytes": 7}},
            "bytes or more; its index gives 7",
        ),
        (lambda shard: shard | {"raw_data": shard["raw_data"] | {"bytes": 2**31}}, "at most 1,073,741,824"),
        (lambda shard: shard | {"samples": 9}, "has 5 samples, and its index gives 9"),
        (lambda shard: [], "no index of MDS shards"),
    ],
)
def test_compressed_mds_that_is_wrong_is_told(change, said, shared, tmp_path):
    mds = shared("penstock/formats/registered/mds_files")
    index = mds_compressed(mds, tmp_path / "in", "gz", gzip.compress)
    index["shards"][0] = change(index["shards"][0])
    mds.put_index(tmp_path / "in", index)
    try:
        told = "; ".join(failures("mds-compressed", tmp_path / "in", tmp_path / "root"))
    except PenstockError as error:
        told = str(error)
    assert said in told
    assert ".mds" in told or "index.json" in told
