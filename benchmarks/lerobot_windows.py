"""Windows of a LeRobot dataset as `LeRobotDataset` reads them, in a process of lerobot's own environment.

    PYTHON benchmarks/lerobot_windows.py FOLDER BACKEND CHUNK [READER]

BACKEND: torchcodec, pyav, or none (no cameras). Each line of stdin has the numbers of rows, as JSON. The answer is the
processor time in seconds that their windows took, in one thread. A torchvision of another torch lacks `nms`, which
lerobot never calls. A recent one lacks `VideoReader`, which lerobot's backend pyav needs: READER is torchvision 0.21's
io/video_reader.py.
"""

import importlib.util
import json
import sys
import time
from pathlib import Path
from typing import Any


def main() -> None:
    folder, backend, chunk, *reader = sys.argv[1:]
    import torch

    torch.set_num_threads(1)
    operators = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        operators.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    import torchvision

    if reader:
        give_reader(torchvision, Path(reader[0]))
    dataset = opened(folder, backend, int(chunk))
    print(json.dumps({"rows": len(dataset)}), flush=True)
    for line in sys.stdin:
        rows = json.loads(line)
        begun = time.process_time()
        for row in rows:
            dataset[row]
        print(json.dumps(time.process_time() - begun), flush=True)


def opened(folder: str, backend: str, chunk: int) -> Any:
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    fps = json.loads(Path(folder, "meta", "info.json").read_text())["fps"]
    dataset: Any = LeRobotDataset(
        "local/race",
        root=folder,
        video_backend="pyav" if backend == "none" else backend,
        delta_timestamps={"action": [row / fps for row in range(chunk)]},
        tolerance_s=0.01,
    )
    if backend == "none":
        for camera in dataset.meta.video_keys:
            del dataset.meta.info["features"][camera]
    return dataset


def give_reader(torchvision: Any, path: Path) -> None:
    """Give torchvision the `VideoReader` of an earlier release, from its file video_reader.py."""
    spec = importlib.util.spec_from_file_location("torchvision.io.video_reader", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    source = path.read_text().replace(
        "from ._video_opt import _HAS_CPU_VIDEO_DECODER", "_HAS_CPU_VIDEO_DECODER = False"
    )
    exec(compile(source, str(path), "exec"), module.__dict__)
    torchvision.io.VideoReader = module.VideoReader
    torchvision.set_video_backend = lambda backend: setattr(torchvision, "_video_backend", backend)
    torchvision.get_video_backend = lambda: "pyav"


if __name__ == "__main__":
    main()
