"""LeRobot 0.6 beside our code, without stand-ins: PyAV decodes its videos.

python lerobot06_peer.py windows FOLDER DELTAS STEP  a line of JSON for every STEP-th row: SHA-256 of each value at the
                                                     times of DELTAS (a JSON mapping), padding, task, and language
python lerobot06_peer.py annotate FOLDER             write language with LeRobot's own writer of annotations
"""

import hashlib
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import torch
from lerobot.datasets.language_render import active_at, emitted_at
from lerobot.datasets.lerobot_dataset import LeRobotDataset


def digest(value):
    """SHA-256 of a tensor with its type and shape; of a picture, as bytes."""
    if value.dtype == torch.float32 and value.ndim >= 3:
        value = (value * 255).round().to(torch.uint8)
    data = value.contiguous().numpy()
    return hashlib.sha256(f"{data.dtype} {list(data.shape)}".encode() + data.tobytes()).hexdigest()


def text(row, language):
    """The text of a frame, by LeRobot's own search: of an event, the active subtask, or the task."""
    persistent, events = row["language_persistent"], row["language_events"]
    time = float(row["timestamp"])
    found = emitted_at(time, persistent=persistent, events=events, style="interjection") if events else None
    found = found or active_at(time, persistent=persistent, style="subtask")
    return found["content"] if found else row["task"]


def windows(folder, deltas, step):
    data = LeRobotDataset("read/here", root=folder, video_backend="pyav", delta_timestamps=json.loads(deltas))
    for number in range(0, len(data), int(step)):
        row = data[number]
        told = {"episode": int(row["episode_index"]), "row": int(row["frame_index"]), "task": row["task"]}
        if "language_persistent" in row:
            told["text"] = text(row, None)
            told["language"] = {name: row[name] for name in ("language_persistent", "language_events")}
        names = [name for name in row if name in data.meta.video_keys or f"{name}_is_pad" in row]
        told |= {name: digest(row[name]) for name in names}
        told |= {name: row[name].tolist() for name in row if name.endswith("_is_pad")}
        print(json.dumps(told))


def annotate(folder):
    """Every episode gets a subtask from 0 s and from its row 100, an interjection at row 50, and a call of a tool."""
    import pyarrow.parquet as pq
    from lerobot.annotations.steerable_pipeline.writer import LanguageColumnsWriter, speech_atom
    from lerobot.datasets.language import language_feature_info

    writer, records, staged = LanguageColumnsWriter(), [], {}
    for path in sorted(Path(folder).glob("data/*/*.parquet")):
        table = pq.read_table(path, columns=["episode_index", "timestamp"])
        for episode in sorted(set(table["episode_index"].to_pylist())):
            times = [
                time
                for number, time in zip(
                    table["episode_index"].to_pylist(), table["timestamp"].to_pylist(), strict=True
                )
                if number == episode
            ]
            say = {"role": "assistant", "style": "subtask", "camera": None, "tool_calls": None}
            staged[episode] = [
                {**say, "content": f"reach {episode}", "timestamp": 0.0},
                {**say, "content": "grasp", "timestamp": times[100]},
                {**say, "role": "user", "content": "wait", "style": "interjection", "timestamp": times[50]},
                speech_atom(times[60], "waiting"),
            ]
            records.append(SimpleNamespace(data_path=path, episode_index=episode))
    import lerobot.annotations.steerable_pipeline.writer as module

    class Staged:
        def __init__(self, _folder, episode):
            self.rows = staged[episode]

        def read_all(self):
            return {"own": self.rows}

    module.EpisodeStaging = Staged
    writer.write_all(records, Path(folder), Path(folder))
    info = Path(folder) / "meta/info.json"
    body = json.loads(info.read_text())
    body["features"] |= language_feature_info()
    info.write_text(json.dumps(body))


{"windows": windows, "annotate": annotate}[sys.argv[1]](*sys.argv[2:])
