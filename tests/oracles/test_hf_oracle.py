"""Hugging Face datasets, version pinned in hf.txt: we read what it saved, and it reads our export."""

import io

import numpy as np
import pytest
from PIL import Image

import loader
from loader.dataset.reading.verified_bucket_reads import read_fields
from loader.storage import open_store
from penstock.class_names import find_class_names
from penstock.formats.content_digest import content_digest
from penstock.formats.importer import ColumnarOptions
from penstock.formats.registration.register import register
from penstock.formats.run_export import export
from penstock.formats.run_import import import_place

pytestmark = pytest.mark.oracle


def read(version):
    """caption -> (field -> bytes, row of the samples table)."""
    out = {}
    for row in version.samples().collect().to_dicts():
        (address,) = version.address(np.array([row["ordinal"]]), version.fields)
        out[row["caption"]] = read_fields(version.shard_store, [address])[0], row
    return out


def test_what_it_saved_is_imported(tmp_path, peer):
    theirs = peer("hf", "write", tmp_path)
    assert len(theirs) == 9
    for name in ("saved", "hub"):
        with loader.Root(tmp_path / f"root-{name}") as root:
            done = import_place(root, "hf", open_store(tmp_path / name), "d")
            assert done.failures == []
            version = root.open("d")
            found = read(version)
            assert find_class_names(version) == ["cat", "dog"]
        assert len(found) == 9
        for one in theirs:
            i = one["i"]
            fields, row = found[f"c{i}"]
            assert fields == {
                "image.png": bytes.fromhex(one["image"]),
                "sound.flac": b"fLaC%d" % i,
                "cls": b"%d" % (i % 2),
                "ids.i4": np.arange(i, dtype="<i4").tobytes(),
                "box.json": b'{"x":%d}' % i,
                "grid.json": b"[[%d.0,0.0],[0.0,1.0]]" % i,
            }
            assert (row["split"], row["label"], row["sound_path"]) == (
                one["split"],
                ["cat", "dog"][i % 2],
                f"{i}.flac",
            )


def test_what_it_saved_is_registered_where_it_lies(tmp_path, peer):
    """Of each split, less what has no bytes of its own there."""
    without = ["cls", "box", "grid"]
    peer("hf", "write", tmp_path)
    for split, n in (("train", 6), ("test", 3)):
        place = tmp_path / "saved" / split
        with loader.Root(tmp_path / split) as root:
            version = register(root, "arrow", place, "r", without=without).version
            options = ColumnarOptions(without=frozenset(without))
            assert import_place(root, "arrow", open_store(place), "i", options=options).failures == []
            copied = root.open("i")
            assert len(version) == n
            assert version.fields == ("ids.i4", "image.png", "sound.flac")
            assert content_digest(version, full=True).digest == content_digest(copied, full=True).digest


def test_it_reads_our_export(tmp_path, peer):
    def picture(i):
        out = io.BytesIO()
        Image.new("RGB", (i + 1, 3)).save(out, "JPEG")
        return out.getvalue()

    with loader.Root(tmp_path / "root") as root:
        with root.write("d", part_samples=4, producer={"labels": ["cat", "dog"]}) as writer:
            for i in range(9):
                fields = {
                    "jpg": picture(i),
                    "wav": b"RIFF%d" % i,
                    "txt": "\u00e9" * i,
                    "cls": i % 2,
                    "tokens.u2": np.arange(i, dtype="<u2").tobytes(),
                    "x.npy": np.arange(i),
                }
                writer.add(f"k/{i}", fields, metadata={"w": i, "score": i / 3, "tags": ["a"] * i})
        assert export(root.open("d"), "parquet", open_store(tmp_path / "out")).failures == []
    *rows, told = peer("hf", "read", tmp_path / "out")
    features = told["features"]
    assert features["jpg"].startswith("Image(")
    assert features["wav"].startswith("Audio(")
    assert features["cls"] == "ClassLabel(names=['cat', 'dog'])"
    assert features["tokens.u2"] == "List(Value('uint16'))"
    assert len(rows) == 9
    for row in rows:
        i = row["w"]
        assert row["key"] == f"k/{i}"
        assert row["jpg"] == [i + 1, 3]
        assert row["wav"] == {"bytes": (b"RIFF%d" % i).hex(), "path": f"k/{i}.wav"}
        assert (row["txt"], row["cls"], row["tokens.u2"]) == ("\u00e9" * i, i % 2, list(range(i)))
        assert (row["score"], row["tags"]) == (i / 3, ["a"] * i)
