"""Ranks of trainings as processes that a test may signal."""

import json
import socket
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from os import kill
from pathlib import Path
from re import findall

import pytest

import loader
from tests.servers.patience import PATIENCE_S, until
from tests.servers.processes import end

REPOSITORY = Path(__file__).parents[3]


@dataclass
class Rank:
    """A running process."""

    pid: int
    file: Path

    @property
    def text(self) -> str:
        """What it printed so far."""
        return self.file.read_text()

    @property
    def took(self) -> list[tuple[int, int]]:
        """(step, digest) of its steps so far."""
        return [(int(step), int(digest)) for step, digest in findall(r"took \d+ (\d+) (\d+)\n", self.text)]

    def wait_for(self, text: str, times: int = 1) -> None:
        """Wait until it has printed a text so often."""
        until(lambda: self.text.count(text) >= times, lambda: f"{times} times {text!r}: {self.text}")

    def status(self) -> int:
        """Wait until it has ended; return its exit status, -n for a signal."""
        ended = self.file.with_name(f"{self.file.name}.status")
        until(ended.exists, lambda: f"no end: {self.text}")
        assert Path(f"/proc/{self.pid}").exists(), "a signal to it may reach another process"
        return int(ended.read_text())

    def signal(self, number: int) -> None:
        """Send it a signal."""
        kill(self.pid, number)

    def end(self) -> None:
        """Kill it unless it has ended by itself."""
        end(self.pid)
        self.status()


def digests(ranks: list[Rank]) -> dict[int, int]:
    """Return step -> digest over all ranks, which took the same steps."""
    assert len({tuple(step for step, _ in rank.took) for rank in ranks}) == 1, [rank.text for rank in ranks]
    out: dict[int, int] = defaultdict(int)
    for rank in ranks:
        for step, digest in rank.took:
            out[step] = (out[step] + digest) % 2**64
    return dict(out)


@pytest.fixture(autouse=True)
def patient_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """A record in this process waits for its last writes as long as a test waits: a busy machine takes seconds."""
    monkeypatch.setattr("penstock.train.record_writer.CLOSE_S", PATIENCE_S)


@pytest.fixture(scope="session")
def rank_server() -> Iterator[subprocess.Popen[str]]:
    """A process that forks ranks."""
    command = [sys.executable, str(Path(__file__).with_name("rank_server.py"))]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY
    )
    with process:
        yield process
        assert process.stdin is not None
        print("[]", file=process.stdin, flush=True)  # workers that a test has forked keep the pipe open
        process.stdin.close()


@pytest.fixture
def root(tmp_path: Path) -> str:
    """A root with 200 samples."""
    with loader.Root(tmp_path / "root") as root, root.write("points", part_samples=50) as writer:
        for number in range(200):
            writer.add(f"{number:03d}", {"cls": number})
    return str(tmp_path / "root")


@pytest.fixture
def start(rank_server: subprocess.Popen[str], root: str, tmp_path: Path) -> Callable[..., list[Rank]]:
    """start(world_size, options of training.py, **environment) -> ranks of training.py over `root`."""
    n_started = 0

    def start(world_size: int, *options: object, **environment: str) -> list[Rank]:
        nonlocal n_started
        n_started += 1
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        common = {"WORLD_SIZE": str(world_size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        common |= {"CUDA_VISIBLE_DEVICES": "", **environment}
        files = [tmp_path / f"{n_started}-{rank}.out" for rank in range(world_size)]
        script = str(Path(__file__).with_name("training.py"))
        jobs = [
            {
                "environment": common | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
                "arguments": [script, root, *map(str, options)],
                "out": str(file),
            }
            for rank, file in enumerate(files)
        ]
        for file in files:
            file.touch()
        assert rank_server.stdin is not None
        assert rank_server.stdout is not None
        print(json.dumps(jobs), file=rank_server.stdin, flush=True)
        pids = json.loads(rank_server.stdout.readline())
        return [Rank(pid, file) for pid, file in zip(pids, files, strict=True)]

    return start
