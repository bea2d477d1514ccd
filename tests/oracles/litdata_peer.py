"""LitData beside our code: writes data sets with `optimize`, or prints one that its StreamingDataset reads.

python litdata_peer.py write FOLDER       `leaves`, `table`, `tokens` and `texts` below it; a line for each sample
python litdata_peer.py read FOLDER        a line of JSON for each sample: key -> value, bytes and arrays as hex
python litdata_peer.py blocks FOLDER SIZE a line for each block of tokens
"""

import json
import os
import sys
import tempfile
from functools import partial
from pathlib import Path

CACHE = tempfile.TemporaryDirectory(prefix="litdata-cache-")
os.environ["LITDATA_CACHE_DIR"] = CACHE.name

import numpy as np  # noqa: E402
import torch  # noqa: E402
from litdata import StreamingDataset, TokensLoader, optimize  # noqa: E402
from litdata.types import File, Jpeg  # noqa: E402


def leaves(folder, i):
    (path := Path(folder) / "some.bin").write_bytes(b"some")
    return {
        "image": Jpeg(bytes=b"\xff\xd8" + bytes([i])),
        "n": i - 50,
        "w": i / 3,
        "even": i % 2 == 0,
        "caption": "\u00e9" * (i % 7),
        "raw": np.random.default_rng(i).bytes(i % 50),
        "tokens": torch.arange(1 + i % 9, dtype=torch.int32) + i,
        "half": torch.ones(2, i % 3, dtype=torch.float16) * i,
        "flat": np.arange(i % 5, dtype=np.uint16),
        "frame": np.full((i % 4, 2), i, np.int8),
        "names": ["x"] * (i % 3),
        "of": {"id": i, "ids": [i, 2]},
        "pair": (1.5, "b"),
        "file": File(path=str(path)),
    }


def table(i):
    return {
        "text": "\u00e9" * (i % 7),
        "raw": bytes([i]) * (i % 9),
        "n": i,
        "w": i / 3,
        "ids": [1, 2] * (i % 4),
        "names": ["a", "b"][: i % 3],
        "of": {"q": i, "r": f"s{i}"},
        "turns": [{"role": "user", "text": f"t{i}"}],
        "some": None if i % 2 else "x",
    }


def tokens(i):
    return torch.arange(i % 5 + 1, dtype=torch.int32) + i


def texts(i):
    return f"text {i}"


def plain(value):
    if isinstance(value, torch.Tensor):
        value = value.numpy()
    if isinstance(value, np.ndarray):
        return [str(value.dtype), list(value.shape), value.tobytes().hex()]
    if isinstance(value, bytes | memoryview):
        return bytes(value).hex()
    if isinstance(value, dict):
        return {name: plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    if isinstance(value, File | Jpeg):
        return (value.bytes or Path(value.path).read_bytes()).hex()
    return value


def show(**sample):
    print("\n" + json.dumps(sample), flush=True)


def write(folder):
    Path(folder).mkdir()
    kinds = {"leaves": partial(leaves, folder), "table": table, "tokens": tokens, "texts": texts}
    for name, make in kinds.items():
        how = {"item_loader": TokensLoader()} if name == "tokens" else {}
        inputs, target = list(range(100)), f"{folder}/{name}"
        optimize(make, inputs, target, chunk_bytes=4000, num_workers=1, start_method="fork", **how)
        for i in inputs:
            show(of=name, sample=plain(make(i)))
    for name in ("chunk", "batch", "sample"):
        how = {"compression": "zstd", "compression_level": name, "num_workers": 1, "start_method": "fork"}
        optimize(kinds["leaves"], inputs, f"{folder}/leaves-{name}", chunk_bytes=4000, **how)
    optimize(table, inputs, f"{folder}/table-zstd", chunk_bytes=4000, compression="zstd", num_workers=1)


def read(folder):
    for sample in StreamingDataset(folder, shuffle=False):
        show(**plain(sample))


def blocks(folder, size):
    for sample in StreamingDataset(folder, shuffle=False, item_loader=TokensLoader(block_size=int(size))):
        show(block=plain(sample))


if __name__ == "__main__":
    {"write": write, "read": read, "blocks": blocks}[sys.argv[1]](*sys.argv[2:])
