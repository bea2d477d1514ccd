"""MosaicML streaming beside our code: writes a dataset with MDSWriter, or prints one that StreamingDataset reads.

python mds_peer.py write FOLDER        columns of every encoding, three shards or more
python mds_peer.py read FOLDER         a line of JSON for each sample: column -> value, bytes and arrays as hex
python mds_peer.py serve FOLDER WORLD  a line for each step: numbers of the samples that all ranks' DataLoaders have;
                                       WORLD has ranks, workers, dataset, state and port, as JSON
"""

import json
import os
import subprocess
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
from streaming.base.util import clean_stale_shared_memory  # noqa: E402
from torch.utils.data import DataLoader  # noqa: E402

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


def serve(folder, world):
    """Each rank is a process. All are of one node: the shared memory of several could not be told apart."""
    asked, size = json.loads(world), json.loads(world)["ranks"]
    clean_stale_shared_memory()
    about = {
        "WORLD_SIZE": size,
        "LOCAL_WORLD_SIZE": size,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": asked["port"],
    }
    ranks = []
    for number in range(size):
        variables = {**about, "RANK": number, "LOCAL_RANK": number}
        ranks.append(
            subprocess.Popen(
                [sys.executable, __file__, "rank", folder, world],
                env={**os.environ, **{name: str(value) for name, value in variables.items()}},
                stdout=subprocess.PIPE,
                text=True,
            )
        )
    said = [
        [json.loads(line) for line in one.communicate()[0].splitlines() if line[:1] == "["] for one in ranks
    ]
    assert not any(one.returncode for one in ranks)
    for step in range(max(map(len, said))):
        print(
            json.dumps({"ids": [number for one in said for number in (one[step] if step < len(one) else [])]})
        )


def rank(folder, world):
    asked = json.loads(world)
    dataset = StreamingDataset(local=folder, **asked["dataset"])
    if asked["state"]:
        dataset.load_state_dict(asked["state"])
    batches = DataLoader(
        dataset,
        asked["dataset"]["batch_size"],
        num_workers=asked["workers"],
        collate_fn=lambda rows: [one["n"] + 50 for one in rows],
    )
    for numbers in batches:
        print(json.dumps(numbers), flush=True)


def main(verb, folder, *more):
    if more:
        {"serve": serve, "rank": rank}[verb](folder, *more)
        return
    if verb == "write":
        with MDSWriter(columns=COLUMNS, out=folder, size_limit=8000, compression=None) as writer:
            for i in range(100):
                writer.write(sample(i))
    dataset = StreamingDataset(local=folder, shuffle=False, batch_size=1, allow_unsafe_types=False)
    for i in range(dataset.size):
        print(json.dumps({name: plain(value) for name, value in dataset[i].items()}))


main(*sys.argv[1:])
