"""A scheduler's signal to all processes of a job: the trainer stops and saves, and no other process ends by it."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from loader.run.workers import parent_watch
from penstock.checkpoints import Checkpoints
from penstock.compute.process_groups import end_group
from penstock.train.run import AGAIN
from tests.penstock.train.conftest import REPOSITORY, Rank, digests
from tests.servers.patience import PATIENCE_S
from tests.servers.processes import python

Start = Callable[..., list[Rank]]


def members(session: int) -> dict[int, int]:
    """Return process number -> group of all processes of a session, as Slurm's step has them."""
    groups = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                if int(fields[3]) == session:
                    groups[int(entry.name)] = int(fields[2])
    return groups


def test_signal_to_every_process_of_a_step_ends_none_but_the_trainer(root: str, tmp_path: Path) -> None:
    file = tmp_path / "out"
    script = str(Path(__file__).with_name("training.py"))
    environment = {**os.environ, "RANK": "0", "WORLD_SIZE": "1", "CUDA_VISIBLE_DEVICES": ""}
    with file.open("wb") as out:
        trainer = subprocess.Popen(
            [sys.executable, script, root, "--executor", "processes"],
            stdout=out,
            stderr=out,
            cwd=REPOSITORY,
            env={**environment, "PYTHONPATH": str(REPOSITORY)},
            start_new_session=True,
        )
    rank = Rank(trainer.pid, file)
    is_training = threading.Event()

    def signal_others() -> None:
        """From their first moment on: a worker that starts may not end either."""
        while not is_training.wait(0.002):
            for pid in members(trainer.pid).keys() - {trainer.pid}:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGUSR1)

    others = threading.Thread(target=signal_others)
    others.start()
    try:
        rank.wait_for("took", 3)
        is_training.set()
        others.join()
        groups = members(trainer.pid)
        assert len(groups) >= 3, "the trainer, its fork server, a worker"
        for group in set(groups.values()):
            os.killpg(group, signal.SIGUSR1)
        assert trainer.wait(PATIENCE_S) == AGAIN, rank.text
    finally:
        is_training.set()
        trainer.kill()
    assert "ended by signal" not in rank.text
    assert Checkpoints(root, "alone").steps() == [len(digests([rank]))]


def test_signal_to_every_process_of_a_step_spares_processes_that_the_script_forks(
    root: str, tmp_path: Path
) -> None:
    """They finish the step; the end of a Pool's `with` and of the DataLoader's iterator still end them."""
    file = tmp_path / "out"
    script = str(Path(__file__).with_name("training.py"))
    environment = {**os.environ, "RANK": "0", "WORLD_SIZE": "1", "CUDA_VISIBLE_DEVICES": ""}
    with file.open("wb") as out:
        trainer = subprocess.Popen(
            [sys.executable, script, root, "--validate"],
            stdout=out,
            stderr=out,
            cwd=REPOSITORY,
            env={**environment, "PYTHONPATH": str(REPOSITORY)},
            start_new_session=True,
        )
    rank = Rank(trainer.pid, file)
    try:
        rank.wait_for("took", 3)
        assert len(members(trainer.pid)) >= 3, "the trainer, and two workers of the DataLoader"
        os.killpg(trainer.pid, signal.SIGTERM)
        assert trainer.wait(PATIENCE_S) == AGAIN, rank.text
        assert not members(trainer.pid)
    finally:
        end_group(trainer)
    assert Checkpoints(root, "alone").steps() == [len(digests([rank]))]


def test_second_signal_does_not_change_how_a_run_ends(root: str, start: Start) -> None:
    ranks = start(2, "--signal-at-exit")
    ranks[0].wait_for("took", 2)
    ranks[0].signal(signal.SIGTERM)
    assert [rank.status() for rank in ranks] == [AGAIN, AGAIN], ranks[0].text


INTERRUPTED = """
import signal, sys
if sys.argv[3] == "default":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # in the background of a script it would be ignored
else:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
import loader, torch
from multiprocessing import get_context
from penstock.checkpoints import Checkpoints
from penstock.compute.process_groups import end_group
from penstock.train import Run

root, pauses = sys.argv[1], sys.argv[2] == "pauses"
with Run.joined(checkpoints=root) as run:
    plan = loader.plan({"points": loader.Root(root).open("points@1")}, seed=7, global_batch=24)
    state = {"weight": torch.zeros(1)}
    with loader.Loader(plan, run.world, steps=20) as batches, Checkpoints(run.checkpoints, run.name) as saved:
        with get_context("fork").Pool(1) as pool:
            for batch in run.steps(batches, saved, state):
                print("took", batch.step, flush=True)
                if pauses or batch.step == 2:
                    sys.stdin.readline()
                pool.map(abs, [batch.step])
print("ended", flush=True)
"""


@pytest.fixture
def paused_training(root: str, tmp_path: Path) -> Iterator[Callable[..., "subprocess.Popen[str]"]]:
    """paused_training(pauses, handler) -> a training in its own group; it waits for a line in step 2, or in each."""
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "CUDA_VISIBLE_DEVICES": ""}
    trainers: list[subprocess.Popen[str]] = []

    def start(pauses: str, handler: str = "default") -> "subprocess.Popen[str]":
        trainer = subprocess.Popen(
            [sys.executable, "-c", INTERRUPTED, root, pauses, handler],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=tmp_path,
            env=environment,
            start_new_session=True,
        )
        trainers.append(trainer)
        assert trainer.stdout is not None
        for line in trainer.stdout:
            if line == ("took 0\n" if pauses == "pauses" else "took 2\n"):
                break
        return trainer

    yield start
    for trainer in trainers:
        end_group(trainer)
        trainer.communicate()


def test_first_interrupt_stops_as_sigterm_does_and_says_so(
    root: str, paused_training: Callable[..., "subprocess.Popen[str]"]
) -> None:
    trainer = paused_training("once")
    os.killpg(trainer.pid, signal.SIGINT)  # as a terminal does: to the Pool's process too
    assert trainer.stderr is not None
    announced = trainer.stderr.readline() + trainer.stderr.readline()
    assert "Ctrl-C: the run stops after this step or the next" in announced
    _, errors = trainer.communicate("go on\n", timeout=PATIENCE_S)
    assert trainer.returncode == AGAIN, errors
    assert Checkpoints(root, "alone").steps() == [3]
    assert not members(trainer.pid)


def test_second_interrupt_ends_the_step(
    root: str, paused_training: Callable[..., "subprocess.Popen[str]"]
) -> None:
    trainer = paused_training("pauses")
    assert trainer.stderr is not None
    os.killpg(trainer.pid, signal.SIGINT)
    while "again" not in trainer.stderr.readline():
        pass
    os.killpg(trainer.pid, signal.SIGINT)
    _, errors = trainer.communicate(timeout=PATIENCE_S)  # the step still waits for a line
    assert errors.splitlines()[-1] == "KeyboardInterrupt"
    assert trainer.returncode not in (0, AGAIN)
    assert Checkpoints(root, "alone").steps() == []
    assert not members(trainer.pid)


def test_ignored_interrupt_stays_ignored(
    root: str, paused_training: Callable[..., "subprocess.Popen[str]"]
) -> None:
    trainer = paused_training("once", "ignored")
    os.killpg(trainer.pid, signal.SIGINT)
    output, errors = trainer.communicate("go on\n", timeout=PATIENCE_S)
    assert trainer.returncode == 0, errors
    assert output.endswith("ended\n")
    assert "Ctrl-C" not in errors


LATE_SIGNALS = """
import atexit, os, signal, sys
import loader
from penstock.train import Run

def send():
    os.kill(os.getpid(), signal.SIGUSR1)

class LateSignal:
    def __init__(self):
        self.kill, self.pid, self.number = os.kill, os.getpid(), signal.SIGUSR1

    def __del__(self):
        print("late signal", flush=True)
        self.kill(self.pid, self.number)

late_signal = LateSignal()
atexit.register(send)
root = loader.Root(sys.argv[1])
with Run.joined(name="one") as run:
    plan = loader.plan({"d": root.open("points@1")}, seed=1, global_batch=2)
    with loader.Loader(plan, run.world, steps=2, workers=0) as batches:
        for batch in run.steps(batches):
            pass
send()
"""


def test_signal_after_the_last_step_changes_no_exit_status(root: str) -> None:
    """While Python takes its modules apart, its own handlers are reset already."""
    done = python("-c", LATE_SIGNALS, root)
    assert done.returncode == 0, done.stderr
    assert "late signal" in done.stdout


@pytest.mark.parametrize("number", parent_watch.STOP_SIGNALS)
def test_blocked_signal_reaches_no_process_before_it_survives(number: signal.Signals) -> None:
    code = (
        "import os, sys; print(flush=True); sys.stdin.readline();"
        "from loader.run.workers.parent_watch import survive_stop_signals as survive; survive(); print('alive')"
    )
    with (
        parent_watch.stop_signals_blocked(),
        subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=REPOSITORY
        ) as process,
    ):
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(number)
        assert process.communicate(b"\n")[0] == b"alive\n"
    assert process.returncode == 0
