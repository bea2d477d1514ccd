"""Hugging Face datasets beside our code: writes a dataset, or prints one that it reads.

python hf_peer.py write FOLDER     FOLDER/saved by save_to_disk, FOLDER/hub/data as Parquet; prints the rows
python hf_peer.py read FOLDER      a line of JSON for each row of data/*.parquet; bytes as hex, pictures as their sizes
"""

import io
import json
import os
import sys
import tempfile

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_HOME"] = tempfile.mkdtemp()

import datasets
from PIL import Image

datasets.disable_progress_bars()


def picture(i):
    """A picture of its own size."""
    out = io.BytesIO()
    Image.new("RGB", (i + 1, 2), (i, 0, 0)).save(out, "PNG")
    return out.getvalue()


def write(folder):
    features = datasets.Features(
        {
            "image": datasets.Image(),
            "sound": {"bytes": datasets.Value("binary"), "path": datasets.Value("string")},
            "label": datasets.ClassLabel(names=["cat", "dog"]),
            "ids": datasets.List(datasets.Value("int32")),
            "caption": datasets.Value("string"),
            "box": {"x": datasets.Value("int64")},
            "grid": datasets.Array2D((2, 2), "float32"),
        }
    )
    splits = {}
    for split, rows in (("train", range(6)), ("test", range(6, 9))):
        columns = {
            "image": [{"bytes": picture(i), "path": None} for i in rows],
            "sound": [{"bytes": b"fLaC%d" % i, "path": f"{i}.flac"} for i in rows],
            "label": [i % 2 for i in rows],
            "ids": [list(range(i)) for i in rows],
            "caption": [f"c{i}" for i in rows],
            "box": [{"x": i} for i in rows],
            "grid": [[[i, 0], [0, 1]] for i in rows],
        }
        made = datasets.Dataset.from_dict(columns, features=features)
        splits[split] = made.cast_column("sound", datasets.Audio(decode=False))  # encoding needs torchcodec
        for i in rows:
            print(json.dumps({"i": i, "split": split, "image": picture(i).hex()}))
    datasets.DatasetDict(splits).save_to_disk(f"{folder}/saved", num_shards={"train": 2, "test": 1})
    os.makedirs(f"{folder}/hub/data")
    for split, one in splits.items():
        one.to_parquet(f"{folder}/hub/data/{split}-00000-of-00001.parquet")


def read(folder):
    found = datasets.load_dataset(folder, split="train")
    for name, feature in found.features.items():
        if isinstance(feature, datasets.Audio):
            found = found.cast_column(name, datasets.Audio(decode=False))
    for row in found:
        print(json.dumps({name: plain(value) for name, value in row.items()}))
    print(json.dumps({"features": {name: repr(feature) for name, feature in found.features.items()}}))


def plain(value):
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, dict):
        return {name: plain(one) for name, one in value.items()}
    return list(value.size) if hasattr(value, "size") else value


if __name__ == "__main__":
    {"read": read, "write": write}[sys.argv[1]](sys.argv[2])
