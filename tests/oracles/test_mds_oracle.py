"""MosaicML streaming, version pinned in mds.txt: we read its writer's shards, and it reads our export."""

import json

import numpy as np
import pytest

import loader
from loader.dataset.reading.verified_bucket_reads import read_fields
from loader.storage import open_store
from penstock.formats.registration.register import register
from penstock.formats.run_export import export

pytestmark = pytest.mark.oracle


def read(version):
    """key -> (field -> bytes, row of the samples table)."""
    out = {}
    for row in version.samples().collect().to_dicts():
        (address,) = version.address(np.array([row["ordinal"]]), version.fields)
        out[row["key"]] = read_fields(version.shard_store, [address])[0], row
    return out


def test_what_its_writer_wrote_is_registered(tmp_path, peer):
    theirs = peer("mds", "write", tmp_path / "mds")
    with loader.Root(tmp_path / "root") as root:
        done = register(root, "mds", tmp_path / "mds", "docs")
        found = read(done.version)
    assert done.new > 2
    assert len(found) == len(theirs) == 100
    for number, one in enumerate(theirs):
        fields, row = found[str(number)]
        assert fields == {
            "jpg": bytes.fromhex(one["jpg"]),
            "caption.txt": one["caption"].encode(),
            "told.json": json.dumps(one["told"]).encode(),
            "tokens.u2": bytes.fromhex(one["tokens"][2]),
            "frame.f4": bytes.fromhex(one["frame"][2]),
            "any.i8": bytes.fromhex(one["any"][2]),
        }
        columns = {name: row[name] for name in ("n", "w", "small", "digits", "frame_shape", "any_shape")}
        assert columns == {
            **{name: one[name] for name in ("n", "w", "small", "digits")},
            "frame_shape": [2, 3],
            "any_shape": [2, 2],
        }


def test_it_reads_our_export(tmp_path, peer):
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
        root.exclude("d", ["k/3"], reason="bad")
        export(root.open("d"), "mds", open_store(tmp_path / "out"))
    theirs = {one["key"]: one for one in peer("mds", "read", tmp_path / "out")}
    assert theirs.keys() == samples.keys() - {"k/3"}
    for i, (key, fields) in enumerate(samples.items()):
        if key in theirs:
            assert theirs[key] == {
                "key": key,
                "metadata": {"w": i, "kind": "ab"[i % 2]},
                "jpg": fields["jpg"].hex(),
                "caption.txt": fields["caption.txt"],
                "told.json": fields["told.json"],
                "tokens.u2": ["uint16", [i], fields["tokens.u2"].hex()],
                "x.f8": ["float64", [2], fields["x.f8"].hex()],
            }
