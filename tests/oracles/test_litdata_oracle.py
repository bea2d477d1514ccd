"""LitData, version pinned in litdata.txt: we read what its writer wrote, and its StreamingDataset reads our export."""

import json

import numpy as np
import pytest

import loader
from loader.dataset.reading.verified_bucket_reads import read_fields
from loader.storage import open_store
from penstock.formats.registration.register import register
from penstock.formats.run_export import export
from penstock.formats.run_import import import_place

pytestmark = pytest.mark.oracle


@pytest.fixture(scope="module")
def theirs(peer, tmp_path_factory):
    """(folder, dataset -> samples) of what LitData wrote."""
    folder, out = tmp_path_factory.mktemp("litdata") / "written", {}
    for line in peer("litdata", "write", folder):
        out.setdefault(line["of"], []).append(line["sample"])
    assert {name: len(samples) for name, samples in out.items()} == dict.fromkeys(
        ("leaves", "table", "tokens", "texts"), 100
    )
    return folder, out


def read(version):
    """key -> (field -> bytes, column -> value that is not null)."""
    groups = {
        name: group for group, body in version.manifest["groups"].items() for name in body["field_nbytes"]
    }
    out = {}
    for row in version.samples().collect().to_dicts():
        position = version.parts.position(row["part"])
        names = [name for name, group in groups.items() if version.parts.has_group(group)[position]]
        (fields,) = read_fields(version.shard_store, version.address(np.array([row["ordinal"]]), names))
        out[row["key"]] = fields, {name: value for name, value in row.items() if value is not None}
    return out


def read_samples(place, root, how):
    """Samples of a place that is registered, or imported, in order."""
    root = loader.Root(root)
    if how == "registered":
        version = register(root, "litdata", place, "d").version
    else:
        assert import_place(root, "litdata", open_store(place), "d").failures == []
        version = root.open("d")
    found = read(version)
    assert len(found) == 100
    return [found[str(number)] for number in range(100)]


def columns(row):
    own = ("ordinal", "part", "row", "key", "raw_key", "raw_etag")
    return {name: value for name, value in row.items() if name not in own}


HOW = pytest.mark.parametrize("how", ["registered", "imported"])


@HOW
def test_its_leaves_are_fields_and_columns(theirs, tmp_path, how):
    folder, written = theirs
    for (fields, row), one in zip(
        read_samples(folder / "leaves", tmp_path, how), written["leaves"], strict=True
    ):
        assert fields == {
            "image.jpg": bytes.fromhex(one["image"]),
            "caption.txt": one["caption"].encode(),
            "raw": bytes.fromhex(one["raw"]),
            "tokens.i4": bytes.fromhex(one["tokens"][2]),
            "half.f2": bytes.fromhex(one["half"][2]),
            "flat.u2": bytes.fromhex(one["flat"][2]),
            "frame.i1": bytes.fromhex(one["frame"][2]),
            "of.ids.i8": np.array(one["of"]["ids"], "<i8").tobytes(),
            "pair.1.txt": one["pair"][1].encode(),
            "file.bin": bytes.fromhex(one["file"]),
        }
        assert columns(row) == {
            "n": one["n"],
            "w": one["w"],
            "even": one["even"],
            "half_shape": one["half"][1],
            "frame_shape": one["frame"][1],
            "names": json.dumps(one["names"]),
            "of_id": one["of"]["id"],
            "pair_0": one["pair"][0],
        }


@HOW
def test_its_tables_are_read_where_their_values_lie(theirs, tmp_path, how):
    folder, written = theirs
    for (fields, row), one in zip(
        read_samples(folder / "table", tmp_path, how), written["table"], strict=True
    ):
        some = {} if one["some"] is None else {"some.txt": one["some"].encode()}
        assert fields == {
            "text.txt": one["text"].encode(),
            "raw": bytes.fromhex(one["raw"]),
            "ids.i8": np.array(one["ids"], "<i8").tobytes(),
            "of.r.txt": one["of"]["r"].encode(),
            **some,
        }
        told = {"n": one["n"], "w": one["w"], "names": one["names"], "of_q": one["of"]["q"]}
        assert columns(row) == {**told, "turns": json.dumps(one["turns"])}


@HOW
def test_its_tokens_and_texts_are_samples(theirs, peer, tmp_path, how):
    folder, written = theirs
    documents = read_samples(folder / "tokens", tmp_path / "tokens", how)
    assert [fields for fields, _ in documents] == [
        {"tokens.i4": bytes.fromhex(one[2])} for one in written["tokens"]
    ]
    joined = b"".join(fields["tokens.i4"] for fields, _ in documents)
    blocks = [bytes.fromhex(one["block"][2]) for one in peer("litdata", "blocks", folder / "tokens", 7)]
    assert len(blocks) == len(joined) // 28 == 42
    assert joined.startswith(b"".join(blocks))
    texts = read_samples(folder / "texts", tmp_path / "texts", how)
    assert [fields for fields, _ in texts] == [{"data.txt": one.encode()} for one in written["texts"]]


@pytest.mark.parametrize("name", ["leaves-chunk", "leaves-batch", "leaves-sample", "table-zstd"])
def test_its_compressed_chunks_are_imported(name, theirs, tmp_path):
    folder, _ = theirs
    with loader.Root(tmp_path / "root") as root:
        done = import_place(root, "litdata-compressed", open_store(folder / name), "d")
        assert done.failures == []
        packed = read(root.open("d"))
    plain = read_samples(folder / name.partition("-")[0], tmp_path / "plain", "imported")
    assert [(packed[str(i)][0], columns(packed[str(i)][1])) for i in range(100)] == [
        (fields, columns(row)) for fields, row in plain
    ]


def test_it_reads_our_export(tmp_path, peer, monkeypatch):
    monkeypatch.setattr("penstock.formats.litdata.CHUNK_BYTES", 400)
    samples = {
        f"k/{i}": {
            "jpg": bytes([i] * i),
            "caption.txt": "\u00e9" * i,
            "told.json": {"i": i},
            "tokens.u2": np.arange(i, dtype="<u2").tobytes(),
            "x.f8": np.full(2, i / 3).tobytes(),
        }
        for i in range(20)
    }
    with loader.Root(tmp_path / "root") as root:
        with root.write("d", part_samples=7) as writer:
            for i, (key, fields) in enumerate(samples.items()):
                writer.add(key, fields, metadata={"w": i, "kind": "ab"[i % 2]})
        with root.write(
            "d", groups={**dict.fromkeys(samples["k/1"], "media"), "late.json": "late"}
        ) as writer:
            writer.add("late", {**samples["k/1"], "late.json": [None]}, metadata={"w": 20})
        root.exclude("d", ["k/3"], reason="bad")
        export(root.open("d"), "litdata", open_store(tmp_path / "out"))
    theirs = {one["key"]: one for one in peer("litdata", "read", tmp_path / "out")}
    assert theirs.keys() == (samples.keys() - {"k/3"}) | {"late"}
    late = {"key": "late", "metadata": {"w": 20}, "absent": [], "late.json": [None]}
    assert theirs["late"] == {**theirs["k/1"], **late}
    for i, (key, fields) in enumerate(samples.items()):
        if key in theirs:
            assert theirs[key] == {
                "key": key,
                "metadata": {"w": i, "kind": "ab"[i % 2]},
                "absent": ["late.json"],
                "late.json": None,
                "jpg": fields["jpg"].hex(),
                "caption.txt": fields["caption.txt"],
                "told.json": fields["told.json"],
                "tokens.u2": ["uint16", [i], fields["tokens.u2"].hex()],
                "x.f8": ["float64", [2], fields["x.f8"].hex()],
            }
