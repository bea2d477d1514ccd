"""LeRobot beside our code: writes a dataset with its own writer, or prints what its own reader finds in one.

python lerobot_peer.py write TARGET      three episodes, two cameras, several episodes in a file
python lerobot_peer.py read FOLDER STEP  a line of JSON for every STEP-th row: numbers, task, SHA-256 of each camera's
                                         picture; the last line is of the dataset
python lerobot_peer.py items FOLDER      LeRobot's reader as a source of a plan: what items_walk.py prints

lerobot_modules stands in for torchvision and accelerate. Times, files and tolerances are LeRobot's own.
"""

import hashlib
import json
import sys

import numpy as np
import torch
from lerobot.datasets.lerobot_dataset import LeRobotDataset

CAMERAS = "observation.images.high", "observation.images.wrist"


def write(target):
    picture = {"dtype": "video", "shape": (48, 64, 3), "names": ["height", "width", "channels"]}
    features = {
        "observation.state": {"dtype": "float32", "shape": (3,), "names": ["x", "y", "grip"]},
        "action": {"dtype": "float32", "shape": (2,), "names": None},
        "next.done": {"dtype": "bool", "shape": (1,), "names": None},
        **dict.fromkeys(CAMERAS, picture),
    }
    made = LeRobotDataset.create("made/here", 30, features, root=target, robot_type="arm", vcodec="h264")
    draw = np.random.default_rng(5)
    for episode, rows in enumerate((7, 12, 5)):
        for row in range(rows):
            pictures = {
                camera: np.full((48, 64, 3), (40 * episode + 3 * row + 90 * k, 5 * row, 200), np.uint8)
                for k, camera in enumerate(CAMERAS)
            }
            numbers = {
                "observation.state": draw.normal(size=3).astype(np.float32),
                "action": draw.normal(size=2).astype(np.float32),
                "next.done": np.array([row == rows - 1]),
            }
            made.add_frame({**numbers, **pictures, "task": "lift" if episode < 2 or row < 2 else "put down"})
        made.save_episode(parallel_encoding=False)
    made.finalize()


def read(folder, step):
    data = LeRobotDataset("read/here", root=folder, video_backend="pyav")
    for number in range(0, len(data), int(step)):
        row = data[number]
        told = {"task": row.pop("task")}
        for name, value in row.items():
            if name in data.meta.video_keys:
                told[name] = hashlib.sha256(
                    (value * 255).round().to(torch.uint8).numpy().tobytes()
                ).hexdigest()
            elif name != "task_index":
                told[name] = value.tolist()
        print(json.dumps(told, sort_keys=True))
    stats = {
        f"{name}/{key}": np.asarray(value).tolist()
        for name, of in data.meta.stats.items()
        for key, value in of.items()
    }
    lengths = data.meta.episodes["length"]
    told = {"fps": data.fps, "robot": data.meta.robot_type, "stats": stats, "names": data.meta.names}
    print(json.dumps({**told, "lengths": list(lengths), "rows": len(data)}))


def items(folder):
    """Windows of three rows around each row, as policies read them."""
    from items_walk import loader, print_walk

    deltas = {"observation.state": [-1 / 30, 0.0, 1 / 30]}
    data = LeRobotDataset("read/here", root=folder, video_backend="pyav", delta_timestamps=deltas)
    print_walk(loader.items(data, fingerprint="three episodes"))


{"write": write, "read": read, "items": items}[sys.argv[1]](*sys.argv[2:])
