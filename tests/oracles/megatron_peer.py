"""Megatron's own indexed datasets: writes files with IndexedDatasetBuilder, or prints those that IndexedDataset reads.

python megatron_peer.py write FOLDER          three pairs of files, one of them with modes
python megatron_peer.py read FOLDER           a line of JSON for each document: file -> its sequences
"""

import itertools
import json
import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

# The packages around the datasets import what trains models; none of it is used here.
(folder,) = find_spec("megatron").submodule_search_locations
for name in ("megatron.core", "megatron.core.datasets"):
    sys.modules[name] = ModuleType(name)
    sys.modules[name].__path__ = [str(Path(folder).joinpath(*name.split(".")[1:]))]
sys.modules["megatron.core.utils"] = ModuleType("megatron.core.utils")
sys.modules["megatron.core.utils"].log_single_rank = lambda *_, **__: None

import numpy as np  # noqa: E402
import torch  # noqa: E402
from megatron.core.datasets.indexed_dataset import IndexedDataset, IndexedDatasetBuilder  # noqa: E402


def write(folder):
    folder.mkdir()
    draw = np.random.default_rng(4)
    builder = IndexedDatasetBuilder(str(folder / "web_text_document.bin"), np.uint16)
    for i in range(50):
        builder.add_document(draw.integers(0, 50000, i % 7).tolist(), [i % 7])
    builder.finalize(str(folder / "web_text_document.idx"))
    builder = IndexedDatasetBuilder(str(folder / "sentences.bin"), np.int32)
    for i in range(20):
        for k in range(i % 4):
            builder.add_item(torch.arange(k + i))
        builder.end_document()
    builder.finalize(str(folder / "sentences.idx"))
    builder = IndexedDatasetBuilder(str(folder / "modes.bin"), np.int64, multimodal=True)
    for i in range(20):
        builder.add_document(list(range(2 * i)), [i, i], [0, 1])
    builder.finalize(str(folder / "modes.idx"))


def read(folder):
    for path in sorted(folder.rglob("*.idx")):
        modes = path.stem == "modes"
        dataset = IndexedDataset(str(path)[:-4], multimodal=modes)
        bounds = dataset.document_indices.tolist()
        for begin, end in itertools.pairwise(bounds):
            found = [dataset[i] for i in range(begin, end)]
            tokens = [one[0] if modes else one for one in found]
            document = {
                "tokens": [one.tolist() for one in tokens],
                "modes": [int(one[1]) for one in found] if modes else None,
                "dtype": str(dataset.index.dtype.__name__),
            }
            print(json.dumps({path.stem: document}))


{"write": write, "read": read}[sys.argv[1]](Path(sys.argv[2]))
