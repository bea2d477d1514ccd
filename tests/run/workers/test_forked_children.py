"""Children that a rank or worker forks ignore a scheduler's signals, and their relatives can end them."""

import multiprocessing
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

import loader
from tests.servers.patience import PATIENCE_S

REPOSITORY = Path(__file__).parents[3]

COVERED = """
import os, signal, subprocess, sys, threading, time
from loader import native
from loader.run.workers.forked_children import cover_children, uncover_children

SIGNALS = {signal.SIGTERM: signal.SIG_DFL, signal.SIGUSR1: signal.SIG_DFL}

def own(number, frame):
    print("covering process", number, flush=True)

for number in SIGNALS:
    signal.signal(number, own)
cover_children(own, SIGNALS)
reader, writer = os.pipe()

def forked(work=lambda: None):
    pid = os.fork()
    if pid == 0:
        try:
            work()
            os.write(writer, b"x")
            while True:
                time.sleep(0.01)
        except BaseException as error:
            print("child", type(error).__name__, error, flush=True)
        finally:
            os._exit(7)
    return pid

def started():
    assert os.read(reader, 1) == b"x"

def stranger(number, pid):
    subprocess.run(["kill", f"-{int(number)}", str(pid)], check=True)
    while is_pending(number, pid):  # Linux would merge the next signal with it
        time.sleep(0.001)

def ignored_stranger(number, pid):
    if native.KIND != "Python":  # without the extension it would end the child
        stranger(number, pid)

def is_pending(number, pid):
    with open(f"/proc/{pid}/status") as status:
        lines = dict(line.split(":", 1) for line in status)
    has_ended = lines["State"].strip().startswith("Z")
    return not has_ended and int(lines["ShdPnd"], 16) >> (number - 1) & 1

def ends(pid):
    status = os.waitpid(pid, 0)[1]
    return os.waitstatus_to_exitcode(status)
"""


def run_lines(code: str) -> list[str]:
    """The lines of a script in which `COVERED` ran. No process of it is left if it fails."""
    command = [sys.executable, "-c", COVERED + code]
    with subprocess.Popen(
        command,
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as script:
        try:
            out, errors = script.communicate(timeout=PATIENCE_S)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(script.pid, signal.SIGKILL)
    assert script.returncode == 0, errors
    assert not errors
    return out.splitlines()


def test_child_ignores_strangers_and_obeys_its_parent() -> None:
    code = """
for number in SIGNALS:
    pid = forked()
    started()
    for _ in range(3):
        ignored_stranger(number, pid)
    assert os.waitpid(pid, os.WNOHANG) == (0, 0), "a stranger ended it"
    os.kill(pid, number)
    assert ends(pid) == -number
print("done")
"""
    assert run_lines(code) == ["done"]


def test_child_obeys_a_signal_right_after_the_fork() -> None:
    code = """
for _ in range(200):
    pid = forked()
    os.kill(pid, signal.SIGTERM)
    assert ends(pid) == -signal.SIGTERM
print("done")
"""
    assert run_lines(code) == ["done"]


def test_child_forked_in_a_thread_obeys_its_parent() -> None:
    code = """
pids = []
thread = threading.Thread(target=lambda: pids.append(forked()))
thread.start()
thread.join()
started()
ignored_stranger(signal.SIGTERM, pids[0])
os.kill(pids[0], signal.SIGTERM)
print(ends(pids[0]))
"""
    assert run_lines(code) == [str(-signal.SIGTERM)]


def test_grandchild_obeys_its_parent_and_the_covering_process() -> None:
    code = """
numbers, sent = os.pipe()

def parent():
    for _ in range(2):
        pid = forked()
        started()
        ignored_stranger(signal.SIGTERM, pid)
        os.kill(pid, signal.SIGTERM)
        print(ends(pid), flush=True)
    pid = forked()
    started()
    ignored_stranger(signal.SIGTERM, pid)
    os.write(sent, str(pid).encode())
    print(ends(pid), flush=True)

parent_pid = forked(parent)
os.kill(int(os.read(numbers, 20)), signal.SIGTERM)
started()
os.kill(parent_pid, signal.SIGTERM)
ends(parent_pid)
"""
    assert run_lines(code) == [str(-signal.SIGTERM)] * 3


def test_orphan_obeys_a_stranger() -> None:
    code = """
numbers, sent = os.pipe()

def parent():
    pid = forked()
    os.write(sent, str(pid).encode())
    os._exit(0)

assert ends(forked(parent)) == 0
pid = int(os.read(numbers, 20))
descriptor = os.pidfd_open(pid)
started()
stranger(signal.SIGTERM, pid)
import select
assert select.select([descriptor], [], [], 60)[0]
print("ended")
"""
    assert run_lines(code) == ["ended"]


def test_child_keeps_a_handler_that_the_user_set() -> None:
    code = """
def heard(number, frame):
    print("user", number, flush=True)
    os._exit(3)

signal.signal(signal.SIGUSR1, heard)
pid = forked()
started()
stranger(signal.SIGUSR1, pid)
print(ends(pid))
"""
    assert run_lines(code) == [f"user {int(signal.SIGUSR1)}", "3"]


def test_child_runs_the_earlier_handler_for_its_parent_only() -> None:
    code = """
def earlier(number, frame):
    os._exit(5)

cover_children(own, {signal.SIGTERM: earlier})
pid = forked()
started()
ignored_stranger(signal.SIGTERM, pid)
assert os.waitpid(pid, os.WNOHANG) == (0, 0)
os.kill(pid, signal.SIGTERM)
print(ends(pid))
"""
    assert run_lines(code) == ["5"]


def test_child_has_the_signals_of_its_parent_unblocked() -> None:
    code = """
def masks():
    print(sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])), flush=True)

signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])
pid = forked(masks)
started()
masks()
os.kill(pid, signal.SIGTERM)
ends(pid)
"""
    masks = run_lines(code)
    assert masks[0] == masks[1]
    assert "SIGUSR2" in masks[0]
    assert "SIGTERM" not in masks[0]


def test_child_is_as_its_parent_after_uncover() -> None:
    code = """
uncover_children(SIGNALS)
for number in SIGNALS:
    signal.signal(number, signal.SIG_DFL)
pid = forked()
started()
stranger(signal.SIGTERM, pid)
print(ends(pid))
"""
    assert run_lines(code) == [str(-signal.SIGTERM)]


def test_program_that_a_child_starts_ends_by_any_signal() -> None:
    """Nothing blocked or ignored is inherited."""
    code = """
def start():
    program = subprocess.Popen(["sleep", "600"])
    program.terminate()
    print(program.wait(), flush=True)

pid = forked(start)
started()
os.kill(pid, signal.SIGTERM)
ends(pid)
"""
    assert run_lines(code) == [str(-signal.SIGTERM)]


def test_child_obeys_everybody_without_the_extension(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_NATIVE", "0")
    code = """
pid = forked()
started()
stranger(signal.SIGTERM, pid)
print(ends(pid))
"""
    assert run_lines(code) == [str(-signal.SIGTERM)]


def test_torch_dataloader_worker_ignores_strangers() -> None:
    code = """
from torch.utils.data import DataLoader

batches = iter(DataLoader(list(range(100)), num_workers=1, prefetch_factor=1))
next(batches)
(worker,) = batches._workers
for _ in range(3):
    ignored_stranger(signal.SIGTERM, worker.pid)
    ignored_stranger(signal.SIGUSR1, worker.pid)
    next(batches)
worker.terminate()
worker.join()
print(worker.exitcode)
os._exit(0)
"""
    assert run_lines(code) == ["0"]  # torch's handler exits with 0 for its parent's signal


def end_children(sample, rng):
    """A transform that ends a Pool, and a process that sleeps; their exit codes."""
    fork = multiprocessing.get_context("fork")
    child = fork.Process(target=signal.pause)
    child.start()
    child.terminate()
    child.join(PATIENCE_S)
    code = child.exitcode
    child.kill()
    if code is not None:
        with fork.Pool(1) as pool:
            pool.map(abs, [1])
    return {"code": code or 0, "pid": os.getpid()}


def test_transform_in_a_worker_may_end_its_own_processes(tmp_path: Path) -> None:
    with loader.Root(str(tmp_path)) as root, root.write("points") as writer:
        for number in range(4):
            writer.add(f"{number}", {"x.npy": np.zeros(1, np.float32)})
    plan = loader.plan({"points": loader.Root(str(tmp_path)).open("points@1")}, seed=1, global_batch=2)
    options = {"executor": "processes", "workers": 1, "framework": "numpy", "steps": 1}
    with loader.Loader(plan, 0, 1, transform=end_children, **options) as batches:
        batch = next(batches)
    assert batch["code"].tolist() == [-signal.SIGTERM] * 2
    assert os.getpid() not in batch["pid"].tolist()


def test_signal_that_merges_with_a_strangers_still_ends_a_child_of_multiprocessing() -> None:
    """Linux merges equal pending signals: the stopped child gets one SIGTERM, whose sender is the stranger."""
    code = """
import multiprocessing
process = multiprocessing.get_context("fork").Process(target=time.sleep, args=(1000,))
process.start()
os.kill(process.pid, signal.SIGSTOP)
while open(f"/proc/{process.pid}/stat").read().rpartition(")")[2].split()[0] != "T":
    time.sleep(0.001)
subprocess.run(["kill", "-TERM", str(process.pid)], check=True)
process.terminate()
os.kill(process.pid, signal.SIGCONT)
process.join()
print(process.exitcode)
"""
    assert run_lines(code) == [str(-signal.SIGTERM)]


def test_mark_of_a_child_goes_with_its_process() -> None:
    """A later child with its number would obey strangers, and a Pool would wait for its task for ever."""
    code = """
import multiprocessing
from loader.run.workers import forked_children

marks = {}
mark_ended = forked_children.mark_ended

def mark(pid, is_ended):
    marks[pid] = is_ended
    mark_ended(pid, is_ended)

forked_children.mark_ended = mark
process = multiprocessing.get_context("fork").Process(target=time.sleep, args=(1000,))
process.start()
process.terminate()
print(marks == {process.pid: True})
process.join()
print(marks == {process.pid: False}, process.exitcode)
"""
    assert run_lines(code) == ["True", f"True {-signal.SIGTERM}"]
