"""Writers and trainers of an online run are killed at any moment: no group is lost or trained twice."""

import random
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from pathlib import Path

import pytest

import loader
from loader.rollouts.record import RunRecords
from tests.rollouts.online_model import Model
from tests.rollouts.online_worker import ARGUMENTS
from tests.rollouts.rollout_roots import MODULUS, REF, digests, live_rows, online
from tests.servers.patience import PATIENCE_S

REPOSITORY = Path(__file__).parents[2]


class Processes:
    """Processes of `online_worker`, each started again until it has done its work."""

    def __init__(self, folder: Path, draw: random.Random, n_kills: int) -> None:
        self._folder = folder
        self._draw = draw
        self._n_kills = n_kills
        self._running: dict[tuple[str, ...], subprocess.Popen[bytes]] = {}
        self.n_killed = 0
        self.outputs: list[tuple[tuple[str, ...], Path]] = []

    def run(self, commands: list[tuple[str, ...]]) -> None:
        """Run commands side by side to their ends, and kill one of them now and then."""
        until_s = time.monotonic() + PATIENCE_S
        for command in commands:
            self._start(command)
        next_kill_s = self._next_kill_s()
        while self._running:
            assert time.monotonic() < until_s, self._running
            time.sleep(0.01)
            for command, process in list(self._running.items()):
                status = process.poll()
                if status is None:
                    continue
                del self._running[command]
                if status == -signal.SIGKILL:
                    self._start(command)
                else:
                    assert status == 0, self.outputs[-1][1].read_text()
            if self._running and self.n_killed < self._n_kills and time.monotonic() > next_kill_s:
                self._running[self._draw.choice(sorted(self._running))].kill()
                self.n_killed += 1
                next_kill_s = self._next_kill_s()

    def _next_kill_s(self) -> float:
        """Return a time by which a process has begun its work, or not quite."""
        return time.monotonic() + self._draw.uniform(0.2, 1.5)

    def _start(self, command: tuple[str, ...]) -> None:
        output = self._folder / f"{len(self.outputs)}.out"
        with output.open("wb") as file:
            self._running[command] = subprocess.Popen(
                [sys.executable, "-m", "tests.rollouts.online_worker", *command],
                cwd=REPOSITORY,
                stdout=file,
                stderr=subprocess.STDOUT,
            )
        self.outputs.append((command, output))


def check_run(root: loader.Root, n_steps: int, outputs: list[tuple[tuple[str, ...], Path]]) -> None:
    """Compare each decision with the model, and each step of each start with a replay on one rank."""
    model = Model(3, 2, "sequence", 2)
    records = RunRecords(root.store, "big")
    step = 0
    while step < n_steps:
        record = records.at(step)
        assert record is not None
        version = root.open(record.cursor.version, retired=True)
        trained = model.decide(live_rows(version), record.policy)
        plan = loader.open_plan(root, record.plan)
        view = plan.sources["rollouts"].view.documents  # type: ignore[attr-defined]
        assert view.keys(view.in_order) == trained
        step = record.end
    rows = live_rows(root.open(REF))
    assert loader.backlog(root, REF, "big") == model.backlog(rows)
    assert {"trained", "stale", "small"} == set(model.fates.values())

    with online(root, "again", like="big", steps=n_steps, **ARGUMENTS) as batches:
        whole = digests(batches)
    ranks: dict[int, dict[int, set[int]]] = defaultdict(
        lambda: defaultdict(set)
    )  # step -> rank, world -> digests
    for command, output in outputs:
        if command[0] == "train":
            for line in output.read_text().splitlines():
                if not line[:1].isdigit():
                    continue  # a warning, such as of many new parts
                number, digest = map(int, line.split())
                ranks[int(command[3])][number * 10 + int(command[2])].add(digest)
    for world_size, parts in ranks.items():
        assert all(len(seen) == 1 for seen in parts.values())
        for number, digest in whole.items():
            own = [parts[number * 10 + rank] for rank in range(world_size)]
            if all(own):
                assert sum(next(iter(part)) for part in own) % MODULUS == digest


@pytest.mark.parametrize(
    ("n_steps", "n_transactions", "n_kills"),
    [(16, 10, 8), pytest.param(120, 60, 80, marks=pytest.mark.nightly)],
)
def test_killed_run_trains_each_group_once(
    tmp_path: Path, n_steps: int, n_transactions: int, n_kills: int
) -> None:
    root = loader.Root(tmp_path / "root")
    root.create()
    draw = random.Random(n_steps)
    processes = Processes(tmp_path, draw, n_kills)
    writers = [("write", root.url, f"w{number}", str(n_transactions)) for number in range(3)]
    state = str(tmp_path / "state.json")
    worlds = (1, 2) if n_steps < 50 else (1, 2, 4)
    for number, world_size in enumerate(worlds):
        stop = n_steps * (number + 1) // len(worlds)
        ranks = [
            ("train", root.url, str(rank), str(world_size), str(stop), state) for rank in range(world_size)
        ]
        processes.run([*ranks, *(writers if number == 0 else [])])
    n_starts = Counter(command for command, _ in processes.outputs)
    assert processes.n_killed >= 3
    assert sum(n_starts.values()) == len(n_starts) + processes.n_killed
    check_run(loader.Root(tmp_path / "root"), n_steps, processes.outputs)
