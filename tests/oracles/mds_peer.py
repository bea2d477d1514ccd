"""MosaicML streaming beside our code: writes a dataset with MDSWriter, or prints one that StreamingDataset reads.

python mds_peer.py write FOLDER        columns of every encoding, three shards or more
python mds_peer.py read FOLDER         a line of JSON for each sample: column -> value, bytes and arrays as hex
"""

import json
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

# Its datasets of pictures import torchvision, whose operators fit one build of torch alone; none is used here.
for name in (
    "torchvision",
    "torchvision.datasets",
    "torchvision.transforms.functional",
    "torchvision.transforms",
):
    sys.modules[name] = ModuleType(name)
    sys.modules[name].__spec__ = ModuleSpec(name, None)
sys.modules["torchvision.datasets"].VisionDataset = object
sys.modules["torchvision.transforms.functional"].to_tensor = None

import numpy as np  # noqa: E402
from streaming import MDSWriter, StreamingDataset  # noqa: E402

COLUMNS = {
    "jpg": "bytes",
    "caption": "str",
    "n": "int",
    "w": "float32",
    "small": "uint8",
    "told": "json",
    "tokens": "ndarray:uint16",
    "frame": "ndarray:float32:2,3",
    "any": "ndarray",
    "digits": "str_int",
}


def sample(i):
    rng = np.random.default_rng(i)
    return {
        "jpg": rng.bytes(i % 50),
        "caption": "\u00e9" * (i % 7),
        "n": i - 50,
        "w": np.float32(i / 3),
        "small": np.uint8(i),
        "told": {"i": i},
        "tokens": np.arange(1 + i % 9, dtype=np.uint16) + i,
        "frame": rng.random((2, 3), np.float32),
        "any": np.arange(4, dtype=np.int64).reshape(2, 2) * i,
        "digits": 10**17 + i,
    }


def plain(value):
    if isinstance(value, np.ndarray):
        return [str(value.dtype), list(value.shape), value.tobytes().hex()]
    if isinstance(value, bytes):
        return value.hex()
    return value.item() if isinstance(value, np.generic) else value


def main(verb, folder):
    if verb == "write":
        with MDSWriter(columns=COLUMNS, out=folder, size_limit=8000, compression=None) as writer:
            for i in range(100):
                writer.write(sample(i))
    dataset = StreamingDataset(local=folder, shuffle=False, batch_size=1, allow_unsafe_types=False)
    for i in range(dataset.size):
        print(json.dumps({name: plain(value) for name, value in dataset[i].items()}))


main(*sys.argv[1:])
