"""Windows of robot episodes beside `LeRobotDataset` on the same packets, in processor time.

    python -m benchmarks.episode_race --lerobot FOLDER --python PYTHON [--reader FILE] [--episodes 10,11] [--rounds N]
        [--windows N] [--out FILE]

FOLDER is a LeRobot dataset of one camera, which stands for three: its videos are copied under two more names. PYTHON
has lerobot, torch and torchcodec (lerobot_windows.py names the rest). All contestants read the same windows: a frame of
each camera, a state, 50 actions. They take turns; penstock has one thread, as lerobot has. lerobot reads penstock's
export, whose packets are unchanged. "Canonical" are the same frames, encoded anew: 224 px, H.264, a keyframe in 12.
"""

import argparse
import io
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from fractions import Fraction
from pathlib import Path

import av

import loader
from loader.modalities.video.packet_table import index_packets
from penstock.cli import main as penstock

from .episodes import CHUNK, packets_turn, windows_of, windows_turn
from .page import shown

MORE_CAMERAS = ("left", "right")
SIDE_PX = 224


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    options.add_argument("--lerobot", type=Path, required=True)
    options.add_argument("--python", required=True)
    options.add_argument("--reader", type=Path, help="video_reader.py of torchvision 0.21")
    options.add_argument("--episodes", default="10,11,12,22,24,29")
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--windows", type=int, default=64, help="per round and contestant")
    options.add_argument("--out", type=Path)
    given = options.parse_args()
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        three_cameras(given.lerobot, folder / "source")
        root, exported = str(folder / "root"), str(folder / "exported")
        imported = ["import", "lerobot", str(folder / "source"), "arm", "--root", root]
        if penstock([*imported, "--episodes", given.episodes]):
            return 1
        if penstock(["export", "arm@1", "lerobot", exported, "--root", root, "--lossy"]):
            return 1
        opened = stack.enter_context(loader.Root(root))
        lines = race(opened, exported, given.python, given.reader, given.rounds, given.windows)
    command = f"python -m benchmarks.episode_race --rounds {given.rounds} --windows {given.windows}"
    where = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    text = "\n".join([f"`{command}` on {where}; medians, with ranges.", "", *lines, ""])
    if given.out:
        given.out.write_text(text)
    sys.stdout.write(text)
    return 0


def three_cameras(source: Path, target: Path) -> None:
    """Copy a dataset of one camera (v2.1) as one of three."""
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("videos"))
    info = json.loads((target / "meta" / "info.json").read_text())
    (camera,) = [name for name, feature in info["features"].items() if feature["dtype"] == "video"]
    names = [camera, *(f"observation.images.{name}" for name in MORE_CAMERAS)]
    info["features"] |= dict.fromkeys(names, info["features"][camera])
    (target / "meta" / "info.json").write_text(json.dumps(info))
    for video in (source / "videos").rglob("*.mp4"):
        for name in names:
            place = Path(str(target / video.relative_to(source)).replace(camera, name))
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(video, place)


def race(
    root: loader.Root, exported: str, python: str, reader: Path | None, rounds: int, n_windows: int
) -> list[str]:
    """Return the lines of the table."""
    version = root.open("arm@1")
    cameras = [field for field in version.fields if field.endswith(".mp4")]
    numbers = {"observation.state.npy": [0], "action.npy": loader.rows(0, CHUNK)}
    windows = windows_of(version, {**{camera: [0] for camera in cameras}, **numbers})
    small = windows_of(canonical(root, version, cameras), {**{camera: [0] for camera in cameras}, **numbers})
    plan = loader.plan({"arm": windows}, seed=7, global_batch=16)

    def rows(number: int) -> list[int]:
        steps = range(number * (n_windows // 16), (number + 1) * (n_windows // 16))
        return [row for step in steps for row in plan.slots(step).ordinal.tolist()]

    with ExitStack() as stack:

        def lerobot(backend: str) -> Callable[[int], float]:
            ask = stack.enter_context(contestant(python, exported, backend, reader))
            return lambda number: ask(rows(number)) / n_windows

        turns = {
            "penstock": windows_turn(windows, n_windows, {camera: loader.video() for camera in cameras}),
            "packets alone": packets_turn(version, cameras, windows, n_windows, None),
            "lerobot, torchcodec": lerobot("torchcodec"),
            **({"lerobot, PyAV": lerobot("pyav")} if reader else {}),
            f"penstock, canonical {SIDE_PX} px": windows_turn(
                small, n_windows, {camera: loader.video() for camera in cameras}
            ),
            "penstock, numbers": windows_turn(windows_of(version, numbers), n_windows, {}),
            "lerobot, numbers": lerobot("none"),
        }
        took: dict[str, list[float]] = {name: [] for name in turns}
        for number in range(rounds + 1):
            for name, turn in turns.items():
                seconds = turn(number)
                if number:  # the first round opens files, codecs and indexes
                    took[name].append(seconds)
    lines = ["| what | ms per window |", "| --- | --- |"]
    lines += [f"| {name} | {shown([1e3 * s for s in values])} |" for name, values in took.items()]
    pairs = [
        ("packets alone", "penstock"),
        ("lerobot, torchcodec", "penstock"),
        *([("lerobot, PyAV", "penstock")] if reader else []),
        ("lerobot, torchcodec", f"penstock, canonical {SIDE_PX} px"),
        ("lerobot, numbers", "penstock, numbers"),
    ]
    for theirs, ours in pairs:
        ratios = [a / b for a, b in zip(took[theirs], took[ours], strict=True)]
        lines.append(f"| {ours}: times the speed of {theirs} | {shown(ratios)} |")
    return lines


@contextmanager
def contestant(
    python: str, folder: str, backend: str, reader: Path | None
) -> Iterator[Callable[[list[int]], float]]:
    """Yield a function: numbers of rows -> processor seconds of `LeRobotDataset`."""
    script = Path(__file__).parent / "lerobot_windows.py"
    command = [python, str(script), folder, backend, str(CHUNK), *([str(reader)] if reader else [])]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=sys.stderr, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        json.loads(process.stdout.readline())

        def ask(rows: list[int]) -> float:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(json.dumps(rows) + "\n")
            process.stdin.flush()
            return float(json.loads(process.stdout.readline()))

        yield ask
    finally:
        process.stdin.close()
        process.wait(30)


def canonical(root: loader.Root, version: loader.Version, cameras: list[str]) -> loader.Version:
    """Write the episodes with small videos of short GOPs; return that version."""
    with root.write("small") as writer:
        for sample in version.select(*cameras, "observation.state.npy", "action.npy", "action.ns.npy"):
            fields = {name: value for name, value in sample.items() if not name.startswith("__")}
            for camera in cameras:
                fields[camera] = encoded(fields[camera])
                fields[f"{camera}.packets"] = index_packets(fields[camera])
            fields["observation.state.ns.npy"] = fields["action.ns.npy"]
            writer.add(sample["__key__"], fields)
    return root.open("small@1")


def encoded(clip: bytes) -> bytes:
    out = io.BytesIO()
    with av.open(io.BytesIO(clip)) as source, av.open(out, "w", format="mp4") as target:
        stream = target.add_stream("libx264", rate=30, options={"g": "12", "crf": "23", "bf": "0"})
        stream.width, stream.height, stream.pix_fmt = SIDE_PX, SIDE_PX, "yuv420p"
        for number, frame in enumerate(source.decode(video=0)):
            scaled = frame.reformat(SIDE_PX, SIDE_PX, format="yuv420p")
            scaled.pts, scaled.time_base = number, Fraction(1, 30)
            target.mux(stream.encode(scaled))
        target.mux(stream.encode(None))
    return out.getvalue()


if __name__ == "__main__":
    sys.exit(main())
