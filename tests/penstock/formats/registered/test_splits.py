"""Places of MDS and LitData whose splits are folders: each has an index, and its name is the split of its samples."""

import gzip
import json

import numpy as np
import pytest

import loader
from loader.dataset.reading.verified_bucket_reads import read_fields
from loader.errors import Corrupt, InvalidStore
from loader.storage import open_store
from penstock.formats.content_digest import content_digest
from penstock.formats.registration.register import register
from penstock.formats.run_export import export
from penstock.formats.run_import import import_place

FORMATS = pytest.mark.parametrize("format", ["mds", "litdata", "tokens"])
TEXTS = {"train": [b"a", b"bb", b"ccc"], "val": [b"d", b"dd"], "de/train": [b"ee", b"f"]}


@pytest.fixture(scope="session")
def mds(shared):
    return shared("penstock/formats/registered/mds_files")


@pytest.fixture(scope="session")
def litdata(shared):
    return shared("penstock/formats/registered/litdata_files")


@pytest.fixture
def fill(mds, litdata):
    """fill(format, folder, texts): a dataset of two objects, the second with the last text."""

    def write(format, folder, texts):
        some = texts[:-1], texts[-1:]
        if format == "mds":
            return mds.fill(folder, {"text": "bytes"}, *([{"text": one} for one in rows] for rows in some))
        if format == "litdata":
            return litdata.samples(folder, {"text": "bytes"}, *([[one] for one in rows] for rows in some))
        chunks = [(len(rows), litdata.chunk(rows)) for rows in some]
        sizes = [sum(map(len, rows)) for rows in some]
        return litdata.fill(folder, "no_header_numpy:4", *chunks, dims=sizes, item_loader="TokensLoader")

    return write


@pytest.fixture
def splits(fill, tmp_path):
    """splits(format): a place with three splits, two of one name."""

    def write(format):
        for name, texts in TEXTS.items():
            fill(format, tmp_path / "place" / name, texts)
        return tmp_path / "place"

    return write


def rows_of(version):
    """key -> (split, bytes of its only field, key of its object)."""
    rows = version.samples().collect().to_dicts()
    found = read_fields(version.shard_store, version.address(np.arange(len(version)), version.fields))
    return {
        row["key"]: (row.get("split"), *map(bytes, one.values()), row["raw_key"])
        for row, one in zip(rows, found, strict=True)
    }


def name_of(format):
    return "litdata" if format == "tokens" else format


def stored(folder):
    store = open_store(folder)
    return {info.key: bytes(store.get(info.key).data) for info in store.list()}


@FORMATS
def test_each_folder_is_a_split_that_leaves_as_it_came(format, splits, root, tmp_path):
    place, name = splits(format), name_of(format)
    version = register(root, name, place, "r").version
    found = rows_of(version)
    expected = {
        f"{folder}/{number}": (folder.rpartition("/")[2], text)
        for folder, texts in TEXTS.items()
        for number, text in enumerate(texts)
    }
    assert {key: (split, data) for key, (split, data, _) in found.items()} == expected
    assert {of.rpartition("/")[0] for *_, of in found.values()} == set(TEXTS)
    view = version.select(*version.fields).where("split = 'train'")
    assert len(view) == 5
    done = import_place(root, name, open_store(place), "i", workers=1)
    assert (done.failures, done.others) == ([], 3)
    assert {key: one[:2] for key, one in rows_of(root.open("i")).items()} == expected
    digests = {content_digest(root.open(one), full=True).digest for one in "ri"}
    assert len(digests) == 1
    export(version, name, open_store(tmp_path / "out"))  # law 3
    assert {key: data for key, data in stored(tmp_path / "out").items() if key[0] != "."} == stored(place)
    again = register(loader.Root(tmp_path / "other"), name, tmp_path / "out", "r").version
    assert rows_of(again) == found


def test_splits_in_a_bucket_are_those_of_the_folder(splits, root, aws):
    place, store = splits("mds"), open_store("s3://bucket/splits")
    for key, data in stored(place).items():
        store.put(key, data)
    version = register(root, "mds", store.url, "there").version
    assert rows_of(version) == rows_of(register(root, "mds", place, "here").version)
    export(version, "mds", open_store("s3://bucket/splits-out"))
    found = stored("s3://bucket/splits-out")
    assert {key: data for key, data in found.items() if key[0] != "."} == stored(place)


def test_objects_without_samples_leave_too(mds, root, tmp_path):
    for split in ("train", "val"):
        shards = [], [{"text": b"a"}], []
        mds.fill(tmp_path / "place" / split, {"text": "bytes"}, *shards)
    mds.fill(tmp_path / "place/test", {"text": "bytes"})
    version = register(root, "mds", tmp_path / "place", "r").version
    export(version, "mds", open_store(tmp_path / "out"))
    found = {key: data for key, data in stored(tmp_path / "out").items() if key[0] != "."}
    assert (found, len(found)) == (stored(tmp_path / "place"), 9)


@FORMATS
def test_split_that_comes_later_leaves_keys_as_they_were(format, splits, fill, root):
    place, name = splits(format), name_of(format)
    first = register(root, name, place, "r").version
    before = rows_of(first)
    fill(format, place / "test", [b"x", b"y"])
    done = register(root, name, place, "r")
    assert (done.new, done.same, done.missing) == (2, 6, 0)
    after = rows_of(done.version)
    assert {key: after[key] for key in before} == before
    assert {key: after[key][0] for key in after.keys() - before.keys()} == {
        "test/0": "test",
        "test/1": "test",
    }
    assert register(root, name, place, "r").version.id == done.version.id


@FORMATS
def test_index_of_the_place_itself_is_the_only_one(format, splits, fill, root):
    """It has shards of its own, or of the folders below it, as `merge_index` of streaming leaves them."""
    place, name = splits(format), name_of(format)
    index = json.loads((place / "train/index.json").read_text())
    for one in index.get("chunks") or index["shards"]:
        at = one if "filename" in one else one["raw_data"]
        told = "filename" if "filename" in one else "basename"
        at[told] = f"train/{at[told]}"
    (place / "index.json").write_text(json.dumps(index))
    version = register(root, name, place, "r").version
    assert {key: data for key, (_, data, _) in rows_of(version).items()} == {
        "0": b"a",
        "1": b"bb",
        "2": b"ccc",
    }
    (place / "index.json").unlink()
    (place / "train/index.json").unlink()
    fill(format, place / "train/deeper", [b"x", b"y"])  # in a folder of the place, in none with an index
    version = register(root, name, place, "s").version
    assert {key for key in rows_of(version) if key.startswith("train")} == {
        "train/deeper/0",
        "train/deeper/1",
    }


@pytest.mark.parametrize("name", ["mds", "litdata"])
def test_exports_in_folders_keep_their_keys_and_columns(name, root, tmp_path):
    with root.write("d") as writer:
        for number, split in enumerate(["train", "train", "val", None]):
            more = {"source": {"split": split}} if split else {}
            writer.add(f"k{number}", {"jpg": b"%d" % number}, metadata={"n": number}, **more)
    for folder, where in (("train", "split = 'train'"), ("rest", "split is null or split = 'val'")):
        export(root.open("d"), name, open_store(tmp_path / "out" / folder), where=where)
    version = register(root, name, tmp_path / "out", "r").version
    rows = version.samples().select("key", "split", "n").collect().sort("key").rows()
    assert rows == [("k0", "train", 0), ("k1", "train", 1), ("k2", "val", 2), ("k3", "rest", 3)]
    digest = content_digest(version, full=True).digest
    assert digest == content_digest(root.open("d"), full=True).digest
    export(version, name, open_store(tmp_path / "copy"))
    copy = register(loader.Root(tmp_path / "other"), name, tmp_path / "copy", "r").version
    assert content_digest(copy, full=True).digest == digest


def test_version_of_splits_is_written_anew_with_them(splits, root, tmp_path):
    register(root, "mds", splits("mds"), "r")
    root.exclude("r", ["train/1"], reason="bad")
    export(root.open("r@2"), "mds", open_store(tmp_path / "out"))
    assert [key for key in stored(tmp_path / "out") if "/" in key and key[0] != "."] == []
    back = register(root, "mds", tmp_path / "out", "back").version
    found = {key: one[0] for key, one in rows_of(root.open("r@2")).items()}
    assert {key: one[0] for key, one in rows_of(back).items()} == found
    assert content_digest(back, full=True).digest == content_digest(root.open("r@2"), full=True).digest


@pytest.mark.parametrize("name", ["mds-compressed", "litdata-compressed"])
def test_compressed_splits_are_imported(name, splits, root, tmp_path):
    format = name.removesuffix("-compressed")
    place = splits(format)
    for path in place.rglob("index.json"):
        index = json.loads(path.read_text())
        for one in index.get("shards", ()):
            raw = path.parent / one["raw_data"]["basename"]
            data = gzip.compress(raw.read_bytes())
            raw.with_suffix(".mds.gz").write_bytes(data)
            raw.unlink()
            one |= {
                "compression": "gz",
                "zip_data": {"basename": f"{raw.name}.gz", "bytes": len(data), "hashes": {}},
            }
        if "config" in index:
            import pyarrow as pa

            index["config"]["compression"] = "zstd"
            for one in index["chunks"]:
                raw = path.parent / one["filename"]
                sink = pa.BufferOutputStream()
                with pa.CompressedOutputStream(sink, "zstd") as out:
                    out.write(raw.read_bytes())
                raw.write_bytes(sink.getvalue().to_pybytes())
        path.write_text(json.dumps(index))
    done = import_place(root, name, open_store(place), "i", workers=1)
    assert done.failures == []
    assert {key: one[:2] for key, one in rows_of(root.open("i")).items()} == {
        f"{folder}/{number}": (folder.rpartition("/")[2], text)
        for folder, texts in TEXTS.items()
        for number, text in enumerate(texts)
    }


@pytest.mark.parametrize("name", ["mds", "litdata"])
def test_index_of_a_split_that_is_damaged_is_named(name, splits, root):
    place = splits(name)
    (place / "val/index.json").write_text("{")
    with pytest.raises(Corrupt, match=r"place/val/index\.json, byte 0"):
        register(root, name, place, "r")
    for path in place.rglob("index.json"):
        path.unlink()
    with pytest.raises(InvalidStore, match=r"has 6 shards, .* and no index\.json"):
        register(root, name, place, "r")
