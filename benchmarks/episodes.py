"""Windows of robot episodes beside the decoding alone, in processor time; norms per value.

    python -m benchmarks.episodes [--rounds N] [--windows N] [--lerobot FOLDER --episodes 10,11,12] [--out FILE]

FOLDER is a LeRobot dataset; without it, three generated episodes of H.264. Contestants take turns in one process with
one thread. "Packets alone" decodes the packets of the same frames, and scales them as the loader does. It reads, checks
and orders nothing.
"""

import argparse
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import av
import numpy as np

import loader
from loader.dataset.statistics.exact_statistics import ValueCounts, exact_sums
from loader.modalities.image.crop import Framing
from loader.modalities.video.decode import read_bare
from loader.modalities.video.packet_table import index_packets, read_packets
from loader.modalities.video.timeline import Timeline
from penstock.cli import main as penstock

from .page import shown

SIZE, CHUNK = (224, 224), 50
NORMS: dict[str, Callable[[Any], object]] = {"exact sums": exact_sums, "counts": ValueCounts.of}


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    media = os.environ.get("PENSTOCK_MEDIA")
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--windows", type=int, default=160, help="per round and contestant")
    options.add_argument("--lerobot", default=media and f"{media}/robot/g1_lerobot_v21")
    options.add_argument("--episodes", default="10,11,12,22,24,29")
    options.add_argument("--out", type=Path)
    given = options.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if given.lerobot:
            arguments = [
                "import",
                "lerobot",
                given.lerobot,
                "arm",
                "--root",
                folder,
                "--episodes",
                given.episodes,
            ]
            if penstock(arguments):
                return 1
        else:
            make_episodes(folder)
        with loader.Root(folder) as root:
            lines = table(root.open("arm@1"), given.rounds, given.windows)
    command = f"python -m benchmarks.episodes --rounds {given.rounds} --windows {given.windows}"
    where = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    text = "\n".join([f"`{command}` on {where}; medians, with ranges.", "", *lines, ""])
    if given.out:
        given.out.write_text(text)
    sys.stdout.write(text)
    return 0


def make_episodes(folder: str) -> None:
    with loader.Root(folder) as root, root.write("arm") as writer:
        for number in range(3):
            path = Path(folder, f"{number}.mp4")
            with av.open(str(path), "w") as file:
                stream = file.add_stream("libx264", rate=30, options={"g": "2", "crf": "30"})
                stream.width, stream.height, stream.pix_fmt = 640, 480, "yuv420p"
                for n in range(200):
                    pixels = np.full((480, 640, 3), (n + 60 * number) % 256, np.uint8)
                    file.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
                file.mux(stream.encode(None))
            clip, clock = path.read_bytes(), np.array([row * 10**9 // 30 for row in range(200)])
            numbers = np.random.default_rng(number).random((200, 26), dtype=np.float32)
            fields: dict[str, Any] = {"cam.mp4": clip, "cam.mp4.packets": index_packets(clip)}
            fields |= {"action.npy": numbers, "action.ns.npy": clock, "observation.state.npy": numbers}
            writer.add(f"{number}", fields | {"observation.state.ns.npy": clock})


def table(version: loader.Version, rounds: int, n_windows: int) -> list[str]:
    """Return the lines of the table."""
    (camera,) = [field for field in version.fields if field.endswith(".mp4")]
    numbers = {"observation.state.npy": [0], "action.npy": loader.rows(0, CHUNK)}
    both = windows_of(version, {camera: [0], **numbers})
    turns: dict[str, Callable[[int], float]] = {
        "penstock: a frame, a state, 50 actions": windows_turn(
            both, n_windows, {camera: loader.video(size=SIZE)}
        ),
        "packets alone: the same frames": packets_turn(version, [camera], both, n_windows),
        "penstock: a state, 50 actions": windows_turn(windows_of(version, numbers), n_windows, {}),
    }
    took: dict[str, list[float]] = {name: [] for name in turns}
    for number in range(rounds + 1):
        for name, turn in turns.items():
            seconds = turn(number)
            if number:  # the first round opens codecs and indexes
                took[name].append(seconds)
    lines = ["| what | ms per window |", "| --- | --- |"]
    lines += [f"| {name} | {shown([1e3 * one for one in values])} |" for name, values in took.items()]
    ours, alone = list(took.values())[:2]
    lines.append(
        f"| penstock / packets alone | {shown([b / a for a, b in zip(ours, alone, strict=True)])} of its speed |"
    )
    values = np.random.default_rng(0).standard_normal((200_000, 32)).astype(np.float32)
    for name, call in NORMS.items():
        begun = time.process_time()
        call(values)
        lines.append(
            f"| norm, {name}, per value | {(time.process_time() - begun) / values.size * 1e6:.3f} us |"
        )
    return [*lines, *norm_lines()]


def norm_lines() -> list[str]:
    """Whole norms of 25.6e6 values: episodes are read, checked and windowed too."""
    lines, numbers = list[str](), np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder, loader.Root(folder) as root:
        with root.write("numbers") as writer:
            for number in range(160):
                values = numbers.standard_normal((5_000, 32), dtype=np.float32)
                clock = np.arange(5_000) * 20_000_000
                writer.add(f"{number}", {"action.npy": values, "action.ns.npy": clock})
        version = root.open("numbers@1")
        for chunk in (1, CHUNK):
            windows = windows_of(version, {"action.npy": loader.rows(0, chunk)})
            begun = time.process_time()
            loader.norm(windows, ["action.npy"])
            took = (time.process_time() - begun) / (160 * 5_000 * 32)
            lines.append(f"| norm of windows of {chunk} rows, all of it, per value | {took * 1e6:.3f} us |")
    return lines


def windows_of(version: loader.Version, at: dict[str, Any]) -> Any:
    return loader.windows(version.select(*at), anchor="action.npy", at=at)


def windows_turn(windows: Any, n: int, decode: dict[str, Any]) -> Callable[[int], float]:
    plan = loader.plan({"arm": windows}, seed=7, global_batch=16)
    batches = loader.Loader(plan, framework="numpy", workers=0, decode=decode or True)

    def turn(number: int) -> float:
        begun = time.process_time()
        for step in range(n // 16):
            batches.batch_at(number * (n // 16) + step)
        return (time.process_time() - begun) / n

    return turn


def packets_turn(
    version: loader.Version,
    cameras: Sequence[str],
    windows: Any,
    n: int,
    size: tuple[int, int] | None = SIZE,
) -> Callable[[int], float]:
    plan = loader.plan({"arm": windows}, seed=7, global_batch=16)
    names = [name for camera in cameras for name in (camera, f"{camera}.packets")]
    samples = {sample["__key__"]: sample for sample in version.select(*names)}
    tables = {
        (key, camera): read_packets(sample[f"{camera}.packets"])
        for key, sample in samples.items()
        for camera in cameras
    }
    timelines = {place: Timeline.of_table(packets) for place, packets in tables.items()}
    framing = Framing(size=size, crop=None, place=None)

    def turn(number: int) -> float:
        steps = range(number * (n // 16), (number + 1) * (n // 16))
        keys = [key.rpartition("@") for step in steps for _, key in plan.batch_ids(step)]
        begun = time.process_time()
        for episode, _, row in keys:
            for camera in cameras:
                packets, timeline = tables[episode, camera], timelines[episode, camera]
                data = memoryview(samples[episode][camera])
                runs = timeline.runs([int(row)])
                bodies = {
                    packet: data[packets.pos[packet] : packets.pos[packet] + packets.size[packet]]
                    for run in runs
                    for packet in range(run.first, run.stop)
                }
                read_bare(packets, timeline, bodies, [int(row)], framing, runs)
        return (time.process_time() - begun) / n

    return turn


if __name__ == "__main__":
    sys.exit(main())
