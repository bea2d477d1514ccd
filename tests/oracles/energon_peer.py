"""Megatron-Energon beside our code: prepares a folder of archives, or prints the samples of a split.

python energon_peer.py prepare FOLDER RATIOS     writes .nv-meta over the archives, as `energon prepare` does
python energon_peer.py read FOLDER SPLIT         a line of JSON for each sample: field -> bytes as hex, and its key
"""

import json
import sys
from pathlib import Path

from megatron.energon import WorkerConfig, get_loader
from megatron.energon.dataset_config import get_dataset_from_config
from megatron.energon.flavors.webdataset.prepare import WebdatasetPreparator


def prepare(folder, ratios):
    names = sorted(path.relative_to(folder).as_posix() for path in Path(folder).rglob("*.tar"))
    told = [(split, float(ratio)) for split, ratio in (one.split("=") for one in ratios.split(","))]
    WebdatasetPreparator.prepare_dataset(folder, names, split_parts_ratio=told, workers=1)
    text = "__module__: megatron.energon\n__class__: CrudeWebdataset\n"
    (Path(folder) / ".nv-meta/dataset.yaml").write_text(text)


def read(folder, split):
    config = WorkerConfig(rank=0, world_size=1, num_workers=0)
    factory = get_dataset_from_config(
        folder, split_part=split, training=False, worker_config=config, decoder=None
    )
    for sample in get_loader(factory.build()):
        fields = {name: data.hex() for name, data in sample.items() if isinstance(data, bytes)}
        print(json.dumps({"__key__": sample["__key__"], **fields}))


if __name__ == "__main__":
    {"prepare": prepare, "read": read}[sys.argv[1]](*sys.argv[2:])
