"""Worker processes end with their trainer, however it ends, and a trainer goes on when they do."""

import contextlib
import functools
import gc
import logging
import os
import select
import signal
import subprocess
import sys
import threading
from concurrent.futures import CancelledError
from pathlib import Path

import pytest

import loader
from loader.errors import InvalidRuntime, WorkerFailed
from tests.refusals import refusal
from tests.servers.patience import PATIENCE_S


@pytest.fixture(scope="module")
def root(tmp_path_factory, samples):
    root = loader.Root(str(tmp_path_factory.mktemp("lives") / "root"))
    samples.write(root, "photos", range(30), part_samples=11, fields=("cls",))
    return root


@pytest.fixture(scope="module")
def plan(root):
    plan = loader.plan({"photos": root.open("photos@1")}, seed=8, global_batch=5)
    plan.save(root)
    return plan


@pytest.fixture
def pipes(tmp_path):
    """A folder with the pipes of `worker_transforms.wait_gate`."""
    for name in ("begun", "gate"):
        os.mkfifo(tmp_path / name)
    return tmp_path


def wait_for_end(pid):
    """Until the process is gone."""
    try:
        watched = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        assert select.select([watched], [], [], 300)[0], f"process {pid} still runs"
    finally:
        os.close(watched)


def worker_pids(batches):
    return batches._execution.prefetch()._maker.pids


TRAIN = """
import functools, os, signal, sys
sys.path.insert(0, sys.argv[4])
import loader, worker_transforms

signal.signal(signal.SIGINT, signal.default_int_handler)  # in the background of a script it would be ignored
plan = loader.open_plan(loader.Root(sys.argv[1]), sys.argv[2])
how, folder = sys.argv[3], sys.argv[5]
gated = functools.partial(worker_transforms.wait_gate, folder=folder)
batches = loader.Loader(
    plan, 0, 1, framework="numpy", executor="processes", workers=2, transform=gated if how == "gated" else None
)
try:
    if how == "gated":
        batches._execution.prefetch()._fill(0, None)
    else:
        next(batches)
    print(*batches._execution.prefetch()._maker.pids, flush=True)
    if how == "forked" and os.fork() == 0:
        os.close(1)
        signal.pause()
    next(batches)
    if how == "ends":
        sys.exit(5)
    if how != "gated":
        signal.pause()
except KeyboardInterrupt:
    batches.close()
    print("interrupted", flush=True)
"""


def train(root, plan, folder, how):
    """A training as a process, and the pids of its workers."""
    where = os.path.join(os.path.dirname(os.path.dirname(__file__)), "in_workers")
    process = subprocess.Popen(
        [sys.executable, "-c", TRAIN, root.url, plan.hash, how, where, str(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
    )
    return process, [int(pid) for pid in process.stdout.readline().split()]


@pytest.mark.parametrize("how", ["idle", "gated", "forked"])
def test_workers_end_when_the_trainer_is_killed(root, plan, pipes, how):
    """Also those in the middle of a batch that never ends, and while a forked child keeps the trainer's sockets."""
    process, pids = train(root, plan, pipes, how)
    assert len(pids) == 2
    if how == "gated":
        with open(pipes / "begun") as begun:
            assert int(begun.readline()) in pids
    os.kill(process.pid, signal.SIGKILL)
    try:
        for pid in pids:
            wait_for_end(pid)
    except AssertionError:  # who did not end is not left to the machine
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        raise
    if how == "forked":
        os.killpg(process.pid, signal.SIGKILL)
    assert process.communicate() == ("", "")


def test_ctrl_c_stops_at_once_and_without_noise(root, plan, pipes):
    process, pids = train(root, plan, pipes, "gated")
    with open(pipes / "begun") as begun:  # to the end: the other worker writes there too
        assert int(begun.readline()) in pids
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, out, err) == (0, "interrupted\n", "")
    for pid in pids:
        wait_for_end(pid)


def test_trainer_that_just_ends(root, plan, pipes):
    process, pids = train(root, plan, pipes, "ends")
    out, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, out, err) == (5, "", "")
    for pid in pids:
        wait_for_end(pid)


def test_killed_worker_is_replaced(plan, properties, caplog):
    wanted = properties.reference_digests(plan, 8)
    # prefetch=0: not all steps are made before a worker is killed
    with loader.Loader(plan, 0, 1, executor="processes", workers=2, prefetch=0, steps=8) as batches:
        got = {batch.step: batch.digest for batch in [next(batches), next(batches)]}
        before = worker_pids(batches)
        os.kill(before[0], signal.SIGKILL)
        wait_for_end(before[0])
        batches.seek(2)
        got |= {batch.step: batch.digest for batch in batches}
        after = worker_pids(batches)
    assert got == wanted
    assert len(set(after) - set(before)) == 1
    assert len(set(after) & set(before)) == 1
    assert f"worker process {before[0]} ended by signal SIGKILL" in caplog.text
    assert "another takes its place" in caplog.text


@pytest.mark.parametrize("times", [1, 2])
def test_step_that_kills_its_worker(plan, tmp_path, in_workers, properties, times, caplog, monkeypatch):
    """Once is an accident; twice is the step's own fault, and an error at its turn."""
    monkeypatch.setattr("loader.run.making.prefetch.MAX_STEPS", 1)
    number = 7
    culprit = next(s for s in range(9) if any(key.endswith("/007") for _, key in plan.batch_ids(s)))
    transform = functools.partial(in_workers.kill_worker, folder=str(tmp_path), number=number, times=times)
    options = {"executor": "processes", "workers": 1, "transform": transform, "framework": "numpy"}
    wanted = properties.reference_digests(plan, culprit + 2, transform=in_workers.noisy)
    with loader.Loader(plan, 0, 1, **options) as batches:
        got = {}
        if times == 2:
            for _ in range(culprit):
                batch = next(batches)
                got[batch.step] = batch.digest
            with refusal(WorkerFailed, what="worker process", where=f"making step {culprit}") as killed:
                next(batches)
            assert "signal SIGKILL" in str(killed.value.given)
        while len(got) < culprit + 2:  # asked for again, it may go well
            batch = next(batches)
            got[batch.step] = batch.digest
    assert got == wanted
    assert (
        caplog.text.count(
            f"ended by signal SIGKILL, as the kernel does when memory runs out while making step {culprit}"
        )
        == times
    )


def test_worker_that_cannot_start(plan, in_workers, monkeypatch):
    """Its module is here and nowhere else."""
    module = type(sys)("only_here")
    exec("def transform(sample, rng): return sample", module.__dict__)
    monkeypatch.setitem(sys.modules, "only_here", module)
    module.transform.__module__ = "only_here"
    with loader.Loader(plan, 0, 1, executor="processes", workers=1, transform=module.transform) as batches:
        for _ in range(2):
            with pytest.raises(ModuleNotFoundError, match="only_here"):
                next(batches)


@pytest.fixture
def process_resources(children):
    """process_resources() -> what this process holds: files, maps of batches, children, threads."""

    def numbers():
        for _ in range(
            3
        ):  # an earlier test's exception may keep a loader, which keeps its workers until it goes
            gc.collect()
        maps = [line for line in Path("/proc/self/maps").read_text().splitlines() if "penstock-" in line]
        return len(os.listdir("/proc/self/fd")), len(maps), children(), threading.active_count()

    return numbers


def test_nothing_is_left(plan, in_workers, children, process_resources):
    """After close, after being dropped, after a failed start; and a batch that is kept keeps its memory alone."""
    options = {"executor": "processes", "workers": 1, "transform": in_workers.large, "framework": "numpy"}
    others = process_resources()[2]

    def close_loader():
        with loader.Loader(plan, 0, 1, **options) as batches:
            for _ in range(3):
                next(batches)
            assert len(children() - others) == 2  # the fork server, which stays, and the worker

    def drop_loader():
        batches = loader.Loader(plan, 0, 1, **options)
        for _ in range(3):
            next(batches)

    close_loader()
    before = process_resources()
    for use in (drop_loader, close_loader):
        use()
        assert process_resources() == before
    with loader.Loader(plan, 0, 1, **options) as batches:
        batch = next(batches)
    files, maps, *rest = process_resources()
    assert (files, maps, rest) == (before[0] + 1, 1, list(before[2:]))
    assert (batch["x"] == batch["cls"][:, None]).all()
    del batch
    assert process_resources() == before


def test_closing_while_another_thread_waits(plan, pipes, in_workers):
    raised = []

    def consume():
        try:
            next(batches)
        except InvalidRuntime as error:
            raised.append(str(error))

    transform = functools.partial(in_workers.wait_gate, folder=str(pipes))
    batches = loader.Loader(plan, 0, 1, executor="processes", workers=1, transform=transform)
    consumer = threading.Thread(target=consume)
    consumer.start()
    with open(pipes / "begun") as begun:
        pid = int(begun.readline())
    batches.close()
    consumer.join(PATIENCE_S)
    assert len(raised) == 1
    assert "closed while a batch was waited for" in raised[0]
    wait_for_end(pid)


def test_workers_that_all_end_at_a_close_fail_a_task_once(plan, caplog):
    """Whoever waits may see one worker after another end, as a copy thread does at each close."""
    with loader.Loader(plan, 0, 1, executor="processes", workers=2, framework="numpy") as batches:
        next(batches)
        pool = batches._execution.prefetch()._maker
        pool.dismiss()
        for _ in range(2):
            with pytest.raises(CancelledError):
                pool.poll()
    assert not caplog.messages


def test_forked_child_is_told_and_disturbs_nobody(plan):
    with loader.Loader(plan, 0, 1, executor="processes", workers=1, framework="numpy", steps=4) as batches:
        first = next(batches)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                next(batches)
            except InvalidRuntime:
                batches.close()
                del batches
                gc.collect()
                code = 0
            finally:
                os._exit(code)
        assert os.waitpid(child, 0)[1] == 0
        assert [first.step, *(batch.step for batch in batches)] == [0, 1, 2, 3]


def test_what_a_worker_logs_is_logged_here(plan, in_workers, caplog):
    with caplog.at_level(logging.INFO, "loader"):
        transform = in_workers.chatty
        with loader.Loader(
            plan, 0, 1, executor="processes", workers=1, steps=1, transform=transform
        ) as batches:
            list(batches)
    assert [one.getMessage() for one in caplog.records if one.name == "loader.chatty"].count("sample 7") <= 1
    assert any(one.name == "loader.chatty" and one.levelno == logging.INFO for one in caplog.records)
