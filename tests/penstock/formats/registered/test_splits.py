"""Places of MDS and LitData whose splits are folders: each has an index, and its name is the split of its samples."""

import json

import numpy as np
import pytest

import loader
from loader.dataset.reading.verified_bucket_reads import read_fields
from loader.errors import Corrupt, InvalidStore
from loader.storage import open_store
from penstock.formats.registration.register import register
from penstock.formats.run_export import export
from penstock.formats.run_import import import_place
from tests.penstock.formats.builders import mds_files as mds
from tests.penstock.formats.builders.places import TEXTS, split, splits
from tests.penstock.formats.versions import digest, place_objects
from tests.refusals import refusal

FORMATS = pytest.mark.parametrize("format", ["mds", "litdata", "tokens"])
NAMES = {
    "mds": "shard.{:05}.mds".format,
    "litdata": "chunk-0-{:d}.bin".format,
    "tokens": "chunk-0-{:d}.bin".format,
}
"""Format -> the name of an object by its number."""


def split_rows(version):
    """key -> (split, bytes of its only field, key of its object)."""
    rows = version.samples().collect().to_dicts()
    found = read_fields(version.shard_store, version.address(np.arange(len(version)), version.fields))
    return {
        row["key"]: (row.get("split"), *map(bytes, one.values()), row["raw_key"])
        for row, one in zip(rows, found, strict=True)
    }


def format_name(format):
    return "litdata" if format == "tokens" else format


@pytest.fixture
def place(tmp_path, request):
    """A place with three splits, two of one name."""
    callspec = getattr(request.node, "callspec", None)
    splits(callspec.params.get("format", "mds") if callspec else "mds")(tmp_path / "place")
    return tmp_path / "place"


@FORMATS
def test_each_folder_is_a_split(format, place, root):
    version = register(root, format_name(format), place, "r").version
    assert split_rows(version) == {
        f"{folder}/{number}": (
            folder.rpartition("/")[2],
            text,
            f"{folder}/{NAMES[format](text == texts[-1])}",
        )
        for folder, texts in TEXTS.items()
        for number, text in enumerate(texts)
    }
    assert len(version.select(*version.fields).where("split = 'train'")) == 5
    assert import_place(root, format_name(format), open_store(place), "i", workers=1).others == 3


def test_objects_without_samples_leave_too(root, tmp_path):
    for name in ("train", "val"):
        shards = [], [{"text": b"a"}], []
        mds.fill(tmp_path / "place" / name, {"text": "bytes"}, *shards)
    mds.fill(tmp_path / "place/test", {"text": "bytes"})
    version = register(root, "mds", tmp_path / "place", "r").version
    export(version, "mds", open_store(tmp_path / "out"))
    found = place_objects(tmp_path / "out")
    assert (found, len(found)) == (place_objects(tmp_path / "place"), 9)


@FORMATS
def test_split_that_comes_later_leaves_keys_as_they_were(format, place, root):
    name = format_name(format)
    first = register(root, name, place, "r").version
    before = split_rows(first)
    split(format, place / "test", [b"x", b"y"])
    done = register(root, name, place, "r")
    assert (done.new, done.same, done.missing) == (2, 6, 0)
    after = split_rows(done.version)
    assert {key: after[key] for key in before} == before
    assert {key: after[key][0] for key in after.keys() - before.keys()} == {
        "test/0": "test",
        "test/1": "test",
    }
    assert register(root, name, place, "r").version.id == done.version.id


@FORMATS
def test_index_of_the_place_itself_is_the_only_one(format, place, root):
    """It has shards of its own, or of the folders below it, as `merge_index` of streaming leaves them."""
    name = format_name(format)
    index = json.loads((place / "train/index.json").read_text())
    for one in index.get("chunks") or index["shards"]:
        at = one if "filename" in one else one["raw_data"]
        told = "filename" if "filename" in one else "basename"
        at[told] = f"train/{at[told]}"
    (place / "index.json").write_text(json.dumps(index))
    version = register(root, name, place, "r").version
    assert {key: data for key, (_, data, _) in split_rows(version).items()} == {
        "0": b"a",
        "1": b"bb",
        "2": b"ccc",
    }
    (place / "index.json").unlink()
    (place / "train/index.json").unlink()
    split(format, place / "train/deeper", [b"x", b"y"])  # in a folder of the place, in none with an index
    version = register(root, name, place, "s").version
    assert {key for key in split_rows(version) if key.startswith("train")} == {
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
    assert digest(version) == digest(root.open("d"))
    export(version, name, open_store(tmp_path / "copy"))
    copy = register(loader.Root(tmp_path / "other"), name, tmp_path / "copy", "r").version
    assert digest(copy) == digest(version)


def test_version_of_splits_is_written_anew_with_them(place, root, tmp_path):
    register(root, "mds", place, "r")
    root.exclude("r", ["train/1"], reason="bad")
    export(root.open("r@2"), "mds", open_store(tmp_path / "out"))
    assert [key for key in place_objects(tmp_path / "out") if "/" in key] == []
    back = register(root, "mds", tmp_path / "out", "back").version
    found = {key: one[0] for key, one in split_rows(root.open("r@2")).items()}
    assert {key: one[0] for key, one in split_rows(back).items()} == found
    assert digest(back) == digest(root.open("r@2"))


@FORMATS
def test_index_of_a_split_that_is_damaged_is_named(format, place, root):
    name = format_name(format)
    (place / "val/index.json").write_text("{")
    with refusal(Corrupt, where=place / "val/index.json") as caught:
        register(root, name, place, "r")
    assert caught.value.accepted in ("an index of MDS shards", "an index of LitData")
    for path in place.rglob("index.json"):
        path.unlink()
    with refusal(InvalidStore, what="index.json", where=place):
        register(root, name, place, "r")
