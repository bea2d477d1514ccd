"""Small LeRobot datasets in the layouts v2.1 and v3.0, written by hand."""

import itertools
import json
import os
from fractions import Fraction

import av
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

LENGTHS = 5, 8, 3
CAMERA, OTHER = "observation.images.high", "observation.images.wrist"
TASKS = "lift", "put down"
BASE = {
    "timestamp": "float32",
    "frame_index": "int64",
    "episode_index": "int64",
    "index": "int64",
    "task_index": "int64",
}


def video(path, numbers, gop=3, b_frames=0, fps=30, ticks=None):
    """Encode a picture for each number: an mp4 file that begins with a keyframe. ticks: of a second; None: x264's."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    scale = {"video_track_timescale": str(ticks)} if ticks else {}
    with av.open(path, "w", format="mp4", options=scale) as out:
        # Without sc_threshold each of these pictures is a scene of its own, and none a B-frame.
        kinds = {"g": str(gop), "bf": str(b_frames), "b_strategy": "0", "sc_threshold": "0"}
        stream = out.add_stream("libx264", rate=fps, options=kinds)
        if ticks:
            stream.codec_context.time_base = Fraction(1, ticks)
        stream.width = stream.height = 32
        stream.pix_fmt = "yuv420p"
        # With several threads, x264's rate control once gave a frame other pixels on a busy machine.
        stream.thread_count = 1
        for n, number in enumerate(numbers):
            picture = np.full((32, 32, 3), (7 * number % 256, 40, 255 - number), np.uint8)
            frame = av.VideoFrame.from_ndarray(picture, "rgb24")
            if ticks:
                frame.pts, frame.time_base = round(n * ticks / fps), Fraction(1, ticks)
            out.mux(stream.encode(frame))
        out.mux(stream.encode(None))


def join_videos(path, parts):
    """Copy packets of files into one, one behind the other; return the seconds at which each begins and ends."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    ends = [0]
    with av.open(parts[0]) as file:
        ticks = file.streams.video[0].time_base.denominator
    with av.open(path, "w", options={"video_track_timescale": str(ticks)}) as out:
        copied = None
        for part in parts:
            with av.open(part) as file:
                stream = file.streams.video[0]
                copied = copied or out.add_stream_from_template(stream, opaque=True)
                copied.time_base = base = stream.time_base
                for packet in file.demux(stream):
                    if packet.dts is not None:
                        packet.pts, packet.dts = packet.pts + ends[-1], packet.dts + ends[-1]
                        packet.stream = copied
                        out.mux(packet)
                ends.append(ends[-1] + stream.duration)
    seconds = [float(end * base) for end in ends]
    return list(itertools.pairwise(seconds))


def rows(episode, length, first, fps):
    """The table of an episode: state float32 [3], a matrix float64 [2, 2], done bool, a note."""
    draw = np.random.default_rng(episode)
    state = pa.array(draw.normal(size=3 * length).astype(np.float32))
    return pa.table(
        {
            "observation.state": pa.FixedSizeListArray.from_arrays(state, 3),
            "matrix": pa.array(draw.normal(size=(length, 2, 2)).tolist(), pa.list_(pa.list_(pa.float64()))),
            "next.done": np.arange(length) == length - 1,
            "note": [f"\u00e9{n}" for n in range(length)],
            "timestamp": pa.array([np.float32(float(n / fps)) for n in range(length)], pa.float32()),
            "frame_index": np.arange(length),
            "episode_index": np.full(length, episode),
            "index": np.arange(first, first + length),
            "task_index": (np.arange(length) >= 2) * (episode == 1),
        }
    )


def features(cameras):
    """What info.json tells of them."""
    shapes = {
        "observation.state": ("float32", [3], ["x", "y", "grip"]),
        "matrix": ("float64", [2, 2], None),
        "next.done": ("bool", [1], None),
        "note": ("string", [1], None),
        **{camera: ("video", [32, 32, 3], ["height", "width", "channels"]) for camera in cameras},
        **{name: (dtype, [1], None) for name, dtype in BASE.items()},
    }
    return {name: {"dtype": d, "shape": s, "names": names} for name, (d, s, names) in shapes.items()}


def stats(episode):
    """Statistics, as the metadata of an episode have them."""
    return {"observation.state": {"min": [0.5, -1.25, 3.0], "max": [1.0, 2.0, float(episode)], "mean": [1.0] * 3,
                                  "std": [0.5] * 3, "count": [LENGTHS[episode]]}}  # fmt: skip


def v21(folder, cameras=(CAMERA, OTHER), fps=Fraction(30), b_frames=0, gop=3, ticks=None):
    """Write a dataset with a file for each episode."""
    put(folder / "meta/info.json", info("v2.1", cameras, fps,
        "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet",
        "videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4"))  # fmt: skip
    lines(folder / "meta/tasks.jsonl", [{"task_index": n, "task": task} for n, task in enumerate(TASKS)])
    numbers = range(len(LENGTHS))
    told = [{"episode_index": n, "tasks": [TASKS[0]], "length": LENGTHS[n]} for n in numbers]
    lines(folder / "meta/episodes.jsonl", told)
    lines(folder / "meta/episodes_stats.jsonl", [{"episode_index": n, "stats": stats(n)} for n in numbers])
    for n, length in enumerate(LENGTHS):
        table(folder / f"data/chunk-000/episode_{n:06d}.parquet", rows(n, length, sum(LENGTHS[:n]), fps))
        for k, camera in enumerate(cameras):
            path = folder / f"videos/chunk-000/{camera}/episode_{n:06d}.mp4"
            video(str(path), range(20 * n + 100 * k, 20 * n + 100 * k + length), gop, b_frames, fps, ticks)
    return folder


def v30(folder, old, cameras=(CAMERA, OTHER), fps=Fraction(30), lengths=LENGTHS):
    """Write the same as the dataset `old`, with all, or the first, episodes in one file."""
    put(folder / "meta/info.json", info("v3.0", cameras, fps,
        "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
        "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4"))  # fmt: skip
    table(folder / "meta/tasks.parquet", pa.table({"task_index": [0, 1], "__index_level_0__": list(TASKS)}))
    parts = [pq.read_table(old / f"data/chunk-000/episode_{n:06d}.parquet") for n in range(len(lengths))]
    table(folder / "data/chunk-000/file-000.parquet", pa.concat_tables(parts))
    told = []
    for n, length in enumerate(lengths):
        row = {
            "episode_index": n,
            "tasks": [TASKS[0]],
            "length": length,
            "data/chunk_index": 0,
            "data/file_index": 0,
        }
        row |= {
            f"stats/observation.state/{name}": value for name, value in stats(n)["observation.state"].items()
        }
        told.append(row)
    for camera in cameras:
        shared = str(folder / f"videos/{camera}/chunk-000/file-000.mp4")
        files = [str(old / f"videos/chunk-000/{camera}/episode_{n:06d}.mp4") for n in range(len(lengths))]
        for row, (begin, end) in zip(told, join_videos(shared, files), strict=True):
            row |= {f"videos/{camera}/chunk_index": 0, f"videos/{camera}/file_index": 0}
            row |= {f"videos/{camera}/from_timestamp": begin, f"videos/{camera}/to_timestamp": end}
    table(folder / "meta/episodes/chunk-000/file-000.parquet", pa.Table.from_pylist(told))
    return folder


def info(version, cameras, fps, data_path, video_path):
    """The text of info.json."""
    return json.dumps(
        {"codebase_version": version, "robot_type": "arm", "fps": int(fps) if fps.denominator == 1 else float(fps),
         "chunks_size": 1000, "splits": {"train": "0:2", "val": "2:3"}, "data_path": data_path,
         "video_path": video_path, "features": features(cameras)}
    )  # fmt: skip


def put(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def lines(path, told):
    put(path, "".join(json.dumps(one) + "\n" for one in told))


def table(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(rows, path)


def change_meta(folder, change):
    """Replace the rows of meta/episodes of a v3.0 dataset by `change(rows)`; return a function that puts them back."""
    path = folder / "meta/episodes/chunk-000/file-000.parquet"
    before = pq.read_table(path)
    table(path, pa.Table.from_pylist(change(before.to_pylist())))
    return lambda: table(path, before)


CALL = {"type": "function", "function": {"name": "say", "arguments": {"text": "ok"}}}
NULLS = {"camera": None, "tool_calls": None}
PERSISTENT = [
    {"role": "assistant", "content": "reach", "style": "subtask", "timestamp": 0.0, **NULLS},
    {"role": "user", "content": "raise it", "style": "task_aug", "timestamp": 0.0, **NULLS},
    {
        "role": "assistant",
        "content": "grasp",
        "style": "subtask",
        "timestamp": float(np.float32(2 / 30)),
        **NULLS,
    },
    {
        "role": "assistant",
        "content": "aside",
        "style": "memory",
        "timestamp": float(np.float32(0.0812)),
        **NULLS,
    },
]
EVENTS = {
    1: [{"role": "assistant", "content": None, "style": None, "camera": None, "tool_calls": [CALL]}],
    2: [
        {"role": "user", "content": "what is left?", "style": "vqa", "camera": CAMERA, "tool_calls": None},
        {"role": "assistant", "content": "a cup", "style": "vqa", "camera": CAMERA, "tool_calls": None},
    ],
}
LANGUAGE_COLUMNS = "language_events", "language_persistent"
LANGUAGE = {"dtype": "language", "shape": [1], "names": None}


def column_type(name):
    """The type of a column by lerobot 0.6.0, datasets/language.py."""
    fields = [
        pa.field("role", pa.string(), nullable=False),
        pa.field("content", pa.string()),
        pa.field("style", pa.string()),
        *([pa.field("timestamp", pa.float32(), nullable=False)] if name == "language_persistent" else []),
        pa.field("camera", pa.string()),
        pa.field("tool_calls", pa.list_(pa.json_())),
    ]
    return pa.list_(pa.struct(fields))


def texts(rows):
    """Rows whose calls are JSON texts, as a column of the published type has them."""
    return [
        [
            one | {"tool_calls": None if one["tool_calls"] is None else [*map(json.dumps, one["tool_calls"])]}
            for one in row
        ]
        for row in rows
    ]


def array(name, rows, inferred):
    if inferred:  # as LeRobot's own annotation writes it
        return pa.array(rows)
    storage = pa.array(texts(rows))
    if pa.types.is_null(storage.type.value_type):
        storage = pa.array([[] for _ in rows], column_type(name))
    return storage.cast(column_type(name))


def write_language(folder, inferred=False, persistent=None, events=EVENTS):
    """Add language to every episode of a dataset."""
    for path in sorted((folder / "data").rglob("*.parquet")):
        rows = pq.read_table(path)
        frames = rows["frame_index"].to_pylist()
        columns = {
            "language_persistent": persistent or [PERSISTENT] * len(frames),
            "language_events": [events.get(frame, []) for frame in frames],
        }
        for name in LANGUAGE_COLUMNS:
            rows = rows.append_column(name, array(name, columns[name], inferred))
        table(path, rows)
    declare(folder)
    return folder


def declare(folder, names=LANGUAGE_COLUMNS):
    info = folder / "meta/info.json"
    body = json.loads(info.read_text())
    body["features"] |= dict.fromkeys(names, LANGUAGE)
    info.write_text(json.dumps(body))


def with_actions(folder):
    """Add the feature `action`, a copy of the state."""
    for path in folder.rglob("data/**/*.parquet"):
        rows = pq.read_table(path)
        table(path, rows.append_column("action", rows["observation.state"]))
    body = json.loads((folder / "meta/info.json").read_text())
    body["features"]["action"] = body["features"]["observation.state"]
    put(folder / "meta/info.json", json.dumps(body))
    return folder
