"""examples/train.py as a user starts it: real processes, a real SIGKILL."""

import io
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import loader
from examples.demo import training

TRAIN = Path(__file__).resolve().parents[2] / "examples" / "train.py"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """23 photos of unequal sizes in 3 classes; some smaller than the crop."""
    place = tmp_path_factory.mktemp("train") / "root"
    draw = np.random.default_rng(5)
    with loader.Root(place) as opened, opened.write("photos", part_samples=9) as writer:
        for number in range(23):
            size = (int(draw.integers(90, 200)), int(draw.integers(90, 200)))
            sink = io.BytesIO()
            Image.fromarray(draw.integers(0, 255, (*size, 3), np.uint8)).save(sink, "JPEG")
            writer.add(f"{number:04d}", {"jpg": sink.getvalue(), "cls": number % 3})
    return place


def start(
    root: Path, out: Path, rank: int, world_size: int, port: int, *options: str
) -> "subprocess.Popen[bytes]":
    command = [
        sys.executable,
        str(TRAIN),
        "--root",
        str(root),
        "--ref",
        "photos@1",
        "--out",
        str(out),
        "--steps",
        "9",
    ]
    command += ["--global-batch", "7", "--checkpoint-every", "3", "--classes", "3", *options]
    places = {
        "RANK": str(rank),
        "WORLD_SIZE": str(world_size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    return subprocess.Popen(command, env=os.environ | places, stderr=subprocess.PIPE)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def together(root: Path, out: Path, world_size: int, *options: str) -> list[int]:
    port = free_port()
    ranks = [start(root, out, rank, world_size, port, *options) for rank in range(world_size)]
    told = [process.communicate(timeout=120)[1] for process in ranks]
    codes = [process.returncode for process in ranks]
    assert codes == [0] * world_size or "--crash-at" in options, told
    return codes


def losses(folder: Path) -> dict[int, float]:
    """step -> loss, as the last one who did the step has it."""
    found = {}
    for path in sorted(folder.glob("rank-0-*.jsonl"), key=lambda path: int(path.stem.rsplit("-", 1)[1])):
        for line in path.read_text().splitlines():
            told = json.loads(line)
            found[told["step"]] = told["loss"]
    return found


def test_killed_on_two_ranks_and_resumed_on_one_it_reads_the_same(root: Path, tmp_path: Path) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    together(root, whole, 1)
    assert together(root, broken, 2, "--crash-at", "4") == [-signal.SIGKILL] * 2
    assert sorted(training.digests(broken)) == [0, 1, 2, 3, 4]
    together(root, broken, 1)
    expected = training.digests(whole)
    assert sorted(expected) == list(range(9))
    assert training.digests(broken) == expected  # also steps 3 and 4, which both did
    assert all(len(values) == 1 for values in expected.values())
    assert len({min(values) for values in expected.values()}) == 9
    assert losses(broken) == pytest.approx(losses(whole), abs=2e-3)
    assert (broken / "rank-0-of-1-from-3.jsonl").exists()
    assert not list(broken.glob("*.part"))


def test_a_checkpoint_of_another_order_is_refused(root: Path, tmp_path: Path) -> None:
    together(root, tmp_path, 1)
    other = start(root, tmp_path, 0, 1, 0, "--seed", "8")
    told = other.communicate(timeout=120)[1].decode()
    assert other.returncode != 0
    assert "PlanMismatch" in told
    assert "seed" in told


def write_log(folder: Path, name: str, digests: dict[int, int]) -> None:
    folder.mkdir(exist_ok=True, parents=True)
    lines = [
        json.dumps({"step": step, "digest": f"{digest:016x}", "loss": 1.0})
        for step, digest in digests.items()
    ]
    (folder / name).write_text("\n".join(lines) + "\n")


def test_comparing_finds_every_kind_of_difference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "STEPS", 3)
    big = 2**64 - 1
    write_log(tmp_path / "whole", "rank-0-of-1-from-0.jsonl", {0: 5, 1: 6, 2: 7})
    resumed = tmp_path / "resumed"
    write_log(resumed, "rank-0-of-2-from-0.jsonl", {0: 6, 1: 2, 2: 100})
    write_log(resumed, "rank-1-of-2-from-0.jsonl", {0: big, 1: 4})  # sums wrap; step 2 was not done by both
    write_log(resumed, "rank-0-of-1-from-1.jsonl", {1: 6, 2: 7})
    same = training.compare(tmp_path)
    assert (same.different, same.repeated, same.n_steps) == ((), (1,), 3)
    write_log(resumed, "rank-0-of-1-from-1.jsonl", {1: 6, 2: 8})
    assert training.compare(tmp_path).different == (2,)
    write_log(resumed, "rank-0-of-1-from-1.jsonl", {1: 9, 2: 7})
    assert training.compare(tmp_path).different == (1,)  # done twice, not alike
    write_log(resumed, "rank-0-of-1-from-1.jsonl", {1: 6})
    assert training.compare(tmp_path).different == (2,)  # never done
