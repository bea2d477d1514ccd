"""TensorFlow Datasets beside our code: writes a dataset of RLDS, or records of TensorFlow, and reads it.

python tfds_peer.py episodes FOLDER   a line of JSON for each episode: split, features of its own, steps; the first line
                                      says where the dataset lies
python tfds_peer.py records FOLDER    a line of JSON for each tf.train.Example of plain.tfrecord, which packed.tfrecord
                                      has too, compressed

An array is [dtype, shape, hex], text and bytes are hex, and so is a JPEG, which is not decoded.
"""

import json
import os
import sys
from pathlib import Path

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import numpy as np
import tensorflow as tf
import tensorflow_datasets as tfds

INTEGERS = [np.dtype(f"{kind}{bits}") for kind in ("int", "uint") for bits in (8, 16, 32, 64)]
FLOATS = [np.dtype(f"float{bits}") for bits in (16, 32, 64)]
STEPS = {"train": (3, 1, 4, 2), "val": (2, 5)}
KINDS = ["lift", "put"]
JPEG = {"steps": {"observation": {"wrist": tfds.decode.SkipDecoding()}}}


def features():
    of = tfds.features
    numbers = {one.name: of.Tensor(shape=(2,), dtype=one.type) for one in (*INTEGERS, *FLOATS)}
    observation = {
        "top": of.Image(shape=(16, 24, 3), encoding_format="png"),
        "grey": of.Image(shape=(16, 24, 1), encoding_format="png"),
        "wrist": of.Image(shape=(None, None, 3), encoding_format="jpeg"),
        "depth": of.Image(shape=(16, 24, 1), dtype=np.uint16, encoding_format="png"),
        "arm": {"pose": of.Tensor(shape=(2, 3), dtype=np.float64), "gripper": of.Scalar(np.float32)},
        "note": of.Text(),
    }
    step = {
        "observation": observation,
        "each": numbers,
        "action": of.Tensor(shape=(7,), dtype=np.float32),
        "kind": of.ClassLabel(names=KINDS),
        **{name: of.Scalar(np.bool_) for name in ("is_first", "is_last")},
        "language_embedding": of.Tensor(shape=(512,), dtype=np.float32),
    }
    own = {
        "file_path": of.Text(),
        "success": of.Scalar(np.bool_),
        "home": of.Tensor(shape=(3,), dtype=np.float32),
        "kind": of.ClassLabel(names=KINDS),
        "cover": of.Image(shape=(8, 8, 3), encoding_format="png"),
    }
    return of.FeaturesDict({"steps": of.Dataset(step), "episode_metadata": own})


def make_step(draw, number, n):
    limits = [(one, np.iinfo(one)) for one in INTEGERS]
    observation = {
        "top": draw.integers(0, 256, (16, 24, 3), np.uint8),
        "grey": draw.integers(0, 256, (16, 24, 1), np.uint8),
        "wrist": draw.integers(0, 256, (16, 24, 3), np.uint8),
        "depth": draw.integers(0, 65536, (16, 24, 1), np.uint16),
        "arm": {"pose": draw.normal(size=(2, 3)), "gripper": np.float32(number / 3)},
        "note": "" if number % 2 else f"\u00e9 {number}",
    }
    return {
        "observation": observation,
        "each": {one.name: np.array([told.min, told.max], one) for one, told in limits}
        | {one.name: np.array([number / 3, -0.0], one) for one in FLOATS},
        "action": draw.normal(size=7).astype(np.float32),
        "kind": number % 2,
        "is_first": number == 0,
        "is_last": number == n - 1,
        "language_embedding": draw.normal(size=512).astype(np.float32),
    }


class Robot(tfds.core.GeneratorBasedBuilder):
    """Episodes."""

    VERSION = tfds.core.Version("1.0.0")
    pkg_dir_path = Path(__file__).parent

    def _info(self):
        return tfds.core.DatasetInfo(builder=self, features=features())

    def _split_generators(self, _):
        return {split: self._generate_examples(split) for split in STEPS}

    def _generate_examples(self, split):
        for number, n in enumerate(STEPS[split]):
            draw = np.random.default_rng(number)
            own = {
                "file_path": f"/data/{split}/\u00e9{number}.h5",
                "success": bool(number % 2),
                "home": draw.normal(size=3).astype(np.float32),
                "kind": number % 2,
                "cover": draw.integers(0, 256, (8, 8, 3), np.uint8),
            }
            yield number, {"steps": [make_step(draw, k, n) for k in range(n)], "episode_metadata": own}


def json_value(value):
    """Return a value as JSON."""
    if isinstance(value, dict):
        return {name: json_value(one) for name, one in value.items()}
    if isinstance(value, bytes):
        return value.hex()
    array = np.asarray(value)
    return [str(array.dtype), list(array.shape), array.tobytes().hex()]


def episodes(folder):
    builder = Robot(data_dir=folder, file_format="tfrecord")
    builder.download_and_prepare(download_config=tfds.download.DownloadConfig(num_shards=2))
    print(json.dumps({"at": str(builder.data_path)}))
    for split in STEPS:
        for one in tfds.as_numpy(builder.as_dataset(split=split, decoders=JPEG)):
            own, steps = json_value(one["episode_metadata"]), [json_value(step) for step in one["steps"]]
            print(json.dumps({"split": split, "own": own, "steps": steps}))


def records(folder):
    train, draw = tf.train, np.random.default_rng(3)
    made = []
    for number in range(40):
        values = {
            "number": train.Feature(int64_list=train.Int64List(value=[number - 20])),
            "limits": train.Feature(int64_list=train.Int64List(value=[-(2**63), 2**63 - 1, number])),
            "weight": train.Feature(float_list=train.FloatList(value=[number / 3])),
            "action": train.Feature(float_list=train.FloatList(value=draw.normal(size=7))),
            "text": train.Feature(bytes_list=train.BytesList(value=[f"\u00e9 {number}".encode()])),
            "raw": train.Feature(bytes_list=train.BytesList(value=[b"\xff" + draw.bytes(number)])),
            "none": train.Feature(int64_list=train.Int64List(value=[])),
        }
        made.append(train.Example(features=train.Features(feature=values)).SerializeToString())
    for name, codec in (("plain", ""), ("packed", "GZIP")):
        options = tf.io.TFRecordOptions(compression_type=codec)
        with tf.io.TFRecordWriter(f"{folder}/{name}.tfrecord", options) as writer:
            for one in made:
                writer.write(one)
    for data in tf.data.TFRecordDataset(f"{folder}/plain.tfrecord").as_numpy_iterator():
        found = train.Example.FromString(data).features.feature
        kinds = ("int64_list", np.int64), ("float_list", np.float32)
        arrays = {
            name: [np.array(getattr(one, kind).value, dtype) for kind, dtype in kinds]
            for name, one in found.items()
        }
        print(
            json.dumps(
                {
                    name: json_value(
                        one.bytes_list.value[0] if one.bytes_list.value else max(arrays[name], key=len)
                    )
                    for name, one in found.items()
                }
            )
        )


if __name__ == "__main__":
    {"episodes": episodes, "records": records}[sys.argv[1]](sys.argv[2])
