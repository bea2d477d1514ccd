"""The order of a MosaicML Streaming epoch: a script for a Python without penstock.

Standard input is JSON: `folder` (with an index.json), `target`, `dataset` (arguments of StreamingDataset), `nodes`,
`ranks` per node, `workers` per rank, `epoch`, and `state` or null. Saves to `target`: int64 [steps, nodes * ranks *
batch size], sample indices, -1 for padding.
"""

import importlib
import importlib.util
import json
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

_PICTURES = (
    "torchvision",
    "torchvision.datasets",
    "torchvision.transforms.functional",
    "torchvision.transforms",
)


def main() -> None:
    """Save the order, and print Streaming's version."""
    sys.path.pop(0)  # this script's folder; its modules must not be imported
    request = json.load(sys.stdin)
    if importlib.util.find_spec("torchvision") is None:
        _without_pictures()
    numpy = importlib.import_module("numpy")
    streaming = importlib.import_module("streaming")
    dataset = streaming.StreamingDataset(local=request["folder"], **request["dataset"])
    workers = max(1, request["workers"])
    world = importlib.import_module("streaming.base.world").World(
        request["nodes"], request["ranks"], workers, 0
    )
    epoch = request["epoch"]
    first = 0
    if state := request["state"]:
        epoch = state["epoch"]
        first = state["sample_in_epoch"]
        dataset.num_canonical_nodes = state["num_canonical_nodes"]
        dataset.shuffle_seed = state["shuffle_seed"]
        dataset.initial_physical_nodes = state.get("initial_physical_nodes")
    elif not dataset.num_canonical_nodes:
        dataset.num_canonical_nodes = request["nodes"] * (
            64 if dataset.shuffle_algo in ("py1s", "py2s") else 1
        )
    dataset._set_shuffle_block_size(world)
    generate = importlib.import_module("streaming.base.batching").generate_work
    work = generate(dataset.batching_method, dataset, world, epoch, first)
    # A rank's workers take turns: step s is batch s // workers of worker s % workers.
    steps = work.transpose(3, 2, 0, 1, 4).reshape(work.shape[3] * workers, -1)
    numpy.save(request["target"], steps.astype("<i8"))
    print(streaming.__version__)


def _without_pictures() -> None:
    for name in _PICTURES:
        sys.modules[name] = ModuleType(name)
        sys.modules[name].__spec__ = ModuleSpec(name, None)
    sys.modules["torchvision.datasets"].VisionDataset = object  # type: ignore[attr-defined]
    sys.modules["torchvision.transforms.functional"].to_tensor = None  # type: ignore[attr-defined]


if __name__ == "__main__":
    main()
