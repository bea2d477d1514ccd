"""TensorFlow and its Datasets, versions pinned in tfds.txt: every value that they wrote is in our import."""

import json

import numpy as np
import pytest

import loader
from loader.dataset.reading.verified_bucket_reads import read_fields
from loader.modalities import find_decoder
from loader.storage import open_store
from penstock.formats.importer import ColumnarOptions
from penstock.formats.run_import import import_place

pytestmark = pytest.mark.oracle


def read(folder, format, tmp_path, **options):
    """[(field -> bytes, row of the samples table)] of what an import of a folder gives."""
    with loader.Root(tmp_path / "root") as root:
        done = import_place(root, format, open_store(folder), "d", options=ColumnarOptions(**options))
        assert done.failures == []
        version = root.open("d")
        found = read_fields(version.shard_store, version.address(np.arange(len(version)), version.fields))
        return list(zip(found, version.samples().collect().to_dicts(), strict=True))


def parse_array(told):
    dtype, shape, data = told
    return np.frombuffer(bytes.fromhex(data), dtype).reshape(shape)


def leaves(tree, front=""):
    """(name with dots, value) of each leaf."""
    for name, value in tree.items():
        if isinstance(value, dict):
            yield from leaves(value, f"{front}{name}.")
        else:
            yield front + name, value


def same(data, array):
    mine = find_decoder("x.npy")(data, None)
    assert (mine.dtype, mine.shape, mine.tobytes()) == (array.dtype, array.shape, array.tobytes())


def packets_in_order(film, pictures):
    at = 0
    for one in pictures:
        at = film.find(one, at) + len(one)
        assert at >= len(one)


def test_every_value_of_an_episode_is_imported(tmp_path, peer):
    (told, *theirs) = peer("tfds", "episodes", tmp_path / "out")
    mine = {
        row["episode_metadata_file_path"]: (fields, row) for fields, row in read(told["at"], "rlds", tmp_path)
    }
    assert len(mine) == len(theirs) == 6
    for one in theirs:
        own = dict(one["own"])
        fields, row = mine[bytes.fromhex(own.pop("file_path")).decode()]
        assert (row["split"], row["n_steps"]) == (one["split"], len(one["steps"]))
        picture = find_decoder("x.png")(fields.pop("episode_metadata.cover.png"), None)
        assert np.array_equal(picture, parse_array(own.pop("cover")))
        same(fields.pop("episode_metadata.home.npy"), parse_array(own.pop("home")))
        assert {name: row[f"episode_metadata_{name}"] for name in own} == {
            name: parse_array(value).item() for name, value in own.items()
        }
        steps = [dict(leaves(step)) for step in one["steps"]]
        for name in steps[0]:
            values = [step[name] for step in steps]
            if name == "observation.note":
                texts = [bytes.fromhex(value).decode() for value in values]
                assert json.loads(fields.pop(f"{name}.json")) == texts
            elif name == "observation.wrist":
                fields.pop(f"{name}.mp4.packets")
                packets_in_order(fields.pop(f"{name}.mp4"), [bytes.fromhex(value) for value in values])
            elif name in ("observation.top", "observation.grey"):
                fields.pop(f"{name}.mp4.packets")
                frames = loader.video(frames=len(values), size=(16, 24))(fields.pop(f"{name}.mp4"), None)
                wanted = np.stack([parse_array(value) for value in values])
                assert np.array_equal(np.asarray(frames), np.broadcast_to(wanted, (len(values), 16, 24, 3)))
            else:
                same(fields.pop(f"{name}.npy"), np.stack([parse_array(value) for value in values]))
        assert fields == {}


@pytest.mark.parametrize("packed", [False, True])
def test_every_value_of_an_example_is_imported(packed, tmp_path, peer):
    (tmp_path / "records").mkdir()
    theirs = peer("tfds", "records", tmp_path / "records")
    (tmp_path / "records" / ("plain.tfrecord" if packed else "packed.tfrecord")).unlink()
    mine = read(tmp_path / "records", "tfrecord", tmp_path, fields={"raw": "bin"})
    assert len(mine) == len(theirs) == 40
    for one, (fields, row) in zip(theirs, mine, strict=True):
        assert fields == {
            "raw.bin": bytes.fromhex(one["raw"]),
            "limits.i8": parse_array(one["limits"]).tobytes(),
            "action.f4": parse_array(one["action"]).tobytes(),
        }
        assert row["text"] == bytes.fromhex(one["text"]).decode()
        assert [row["number"], np.float32(row["weight"])] == [
            parse_array(one[k])[0] for k in ("number", "weight")
        ]
        assert len(parse_array(one["none"])) == 0
