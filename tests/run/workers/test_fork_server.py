"""Worker processes are forked from a server that has one thread, holds nothing open and imports for all of them."""

import functools
import json
import multiprocessing.spawn
import os
import select
import signal
import threading
from pathlib import Path

import numpy as np
import pytest
import simplejpeg

import loader
from loader.errors import WorkerFailed
from loader.run.workers import fork_server
from tests.refusals import refusal
from tests.servers.patience import PATIENCE_S
from tests.servers.processes import python

IN_WORKERS = str(Path(__file__).parent.parent / "in_workers")


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = loader.Root(str(tmp_path_factory.mktemp("forked") / "root"))
    with root.write("photos", part_samples=11) as writer:
        for number in range(30):
            picture = simplejpeg.encode_jpeg(np.full((8, 8, 3), 8 * number, np.uint8))
            writer.add(f"{number:03d}", {"jpg": picture, "cls": number})
    return root


@pytest.fixture(scope="module")
def plan(root):
    plan = loader.plan({"photos": root.open("photos@1")}, seed=8, global_batch=5)
    plan.save(root)
    return plan


def server_pid():
    return fork_server.fork_server()._process.pid


def worker_pids(batches):
    return batches._execution.prefetch()._maker.pids


def kill(pid):
    """Kill a process, and wait for its end."""
    watched = os.pidfd_open(pid)
    os.kill(pid, signal.SIGKILL)
    try:
        assert select.select([watched], [], [], 30)[0]
    finally:
        os.close(watched)


def has_ended(pid):
    """Whether a process is gone, or a zombie that whoever adopted it has not waited for."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


AUDITED = """
import os, sys

def note(event, arguments):
    if event == "import":
        os.write(log, f"{os.getpid()} {arguments[0]}\\n".encode())

log = os.open(os.environ["IMPORTS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
sys.addaudithook(note)
"""

TWO_LOADERS = """
import json, os, sys
import loader, worker_transforms
from loader.run.workers.fork_server import fork_server

plan = loader.open_plan(loader.Root(sys.argv[1]), sys.argv[2])
workers = []
for _ in range(2):
    options = {"framework": "numpy", "executor": "processes", "transform": worker_transforms.noisy}
    with loader.Loader(plan, 0, 1, workers=2, **options) as batches:
        next(batches)
        workers += batches._execution.prefetch()._maker.pids
server = fork_server()._process.pid
held = [os.readlink(f"/proc/{server}/fd/{fd}") for fd in os.listdir(f"/proc/{server}/fd")]
print(json.dumps([server, len(os.listdir(f"/proc/{server}/task")), held, workers]))
"""


def test_fork_server_imports_once_for_all_workers(root, plan, tmp_path):
    """Two loaders share a server; a worker imports the transform's module, which may not be fit for a fork."""
    (tmp_path / "sitecustomize.py").write_text(AUDITED)
    paths = os.pathsep.join([str(tmp_path), IN_WORKERS])
    done = python(
        "-c",
        TWO_LOADERS,
        root.url,
        plan.hash,
        check=True,
        env=os.environ | {"PYTHONPATH": paths, "IMPORTS": str(tmp_path / "imports")},
    )
    server, threads, held, workers = json.loads(done.stdout)
    imported = {}
    for line in (tmp_path / "imports").read_text().splitlines():
        pid, module = line.split()
        imported.setdefault(int(pid), set()).add(module)
    assert threads == 1
    kinds = sorted(one.partition(":")[0] for one in held if not one.endswith("/imports"))
    assert kinds == ["/dev/null", "anon_inode", "pipe", "pipe", "socket"]
    assert {"numpy.random", "loader.run.making.assemble", "simplejpeg"} <= imported[server]
    assert not {"torch", "polars", "pyarrow.compute", "worker_transforms"} & imported[server]
    assert len(set(workers)) == 4
    for pid in workers:
        assert imported.get(pid, set()) - {"worker_transforms"} == set()


def test_fork_server_that_is_killed_leaves_workers_at_work(plan, properties, caplog):
    wanted = properties.reference_digests(plan, 12)
    with loader.Loader(plan, 0, 1, executor="processes", workers=2, prefetch=0, steps=12) as batches:
        got = {batch.step: batch.digest for batch in [next(batches)]}
        before, first_server = worker_pids(batches), server_pid()
        kill(first_server)
        got |= {batch.step: batch.digest for batch in [next(batches), next(batches)]}
        assert worker_pids(batches) == before
        kill(before[0])
        batches.seek(3)
        got |= {batch.step: batch.digest for batch in batches}
        assert len(set(worker_pids(batches)) & set(before)) == 1
        assert server_pid() != first_server
    assert got == wanted
    assert "ended by an unknown cause, for its fork server had ended" in caplog.text
    for pid in before:
        assert has_ended(pid)


def test_fork_server_that_is_killed_before_it_forks_is_replaced(plan, properties, caplog):
    with loader.Loader(plan, 0, 1, executor="processes", workers=4, steps=3) as batches:
        os.kill(first := server_pid(), signal.SIGSTOP)
        batches._execution.prefetch()._fill(0, 3)  # asks for workers that it does not fork any more
        kill(first)
        assert {batch.step: batch.digest for batch in batches} == properties.reference_digests(plan, 3)
    assert "the fork server of worker processes ended by signal SIGKILL" in caplog.text


def test_fork_server_that_cannot_start_is_an_error(plan, monkeypatch):
    monkeypatch.setattr(multiprocessing.spawn, "_python_exe", os.fsencode("/bin/false"))
    with loader.Loader(plan, 0, 1, executor="processes", workers=3) as batches:
        for _ in range(2):
            with refusal(WorkerFailed, what="worker process", where="starting", given="exit code 1"):
                next(batches)


def test_workers_see_the_environment_of_their_start(plan, in_workers, tmp_path, monkeypatch):
    """Also what a library reads as it is imported; and no two draw the same from numpy's own generator."""
    said = []
    for number in range(2):
        monkeypatch.setenv("SAID", str(number))
        transform = functools.partial(in_workers.surroundings, folder=str(tmp_path))
        with loader.Loader(
            plan, 0, 1, executor="processes", workers=2, framework="numpy", transform=transform
        ) as batches:
            pids = worker_pids(batches)
            for _ in range(2):
                next(batches)
            said.append([json.loads((tmp_path / str(pid)).read_text()) for pid in pids])
    assert [[one["SAID"] for one in ones] for ones in said] == [["0", "0"], ["1", "1"]]
    draws = [one["drawn"] for ones in said for one in ones]
    assert len(set(draws)) == len(draws)


def test_worker_that_keeps_the_lock_is_killed(plan, in_workers, monkeypatch, tmp_path):
    monkeypatch.setattr("loader.run.workers.pool.GRACE_S", -3.8)
    os.mkfifo(tmp_path / "begun")
    transform = functools.partial(in_workers.deaf, folder=str(tmp_path))
    batches = loader.Loader(plan, 0, 1, executor="processes", workers=1, transform=transform)
    batches._execution.prefetch()._fill(0, 1)
    with open(tmp_path / "begun") as begun:
        pid = int(begun.readline())
    batches.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_fork_server_that_is_stopped_does_not_keep_a_training(plan, monkeypatch):
    monkeypatch.setattr("loader.run.workers.pool.GRACE_S", -3.8)
    monkeypatch.setattr("loader.run.workers.fork_server._SILENT_S", 0.1)
    with loader.Loader(plan, 0, 1, executor="processes", workers=2, framework="numpy") as batches:
        next(batches)
        pids = worker_pids(batches)
        os.kill(server_pid(), signal.SIGSTOP)
    assert all(map(has_ended, pids))


THREADED = """
import sys, threading
if "fork_server_main" in " ".join(sys.orig_argv):
    threading.Thread(target=threading.Event().wait, daemon=True).start()
"""

ONE_LOADER = """
import sys
import loader

plan = loader.open_plan(loader.Root(sys.argv[1]), sys.argv[2])
with loader.Loader(plan, 0, 1, framework="numpy", executor="processes", workers=2, steps=3) as batches:
    print([batch.step for batch in batches])
"""


def test_library_with_threads_costs_the_fork_alone(root, plan, tmp_path):
    """Workers are then started afresh, and one warning says why."""
    (tmp_path / "sitecustomize.py").write_text(THREADED)
    done = python(
        "-c", ONE_LOADER, root.url, plan.hash, check=True, env=os.environ | {"PYTHONPATH": str(tmp_path)}
    )
    assert done.stdout == "[0, 1, 2]\n"
    assert done.stderr.count("a process with threads cannot be forked (2 threads)") == 1
    assert len(done.stderr.splitlines()) == 1


def test_pool_is_collected_while_its_thread_asks_the_server(plan):
    """Its workers are waited for once the request is done."""
    batches = loader.Loader(plan, 0, 1, executor="processes", workers=2, framework="numpy")
    next(batches)
    server, (pool,) = fork_server.fork_server(), [batches._execution.prefetch()._maker]
    pids, done = pool.pids, threading.Event()

    def collect():
        with server._turn:
            pool.abandon()
        server.wait_later(0, 0.0)
        done.set()

    threading.Thread(target=collect, daemon=True).start()
    assert done.wait(PATIENCE_S)
    assert not server._unwaited
    assert all(has_ended(pid) for pid in pids)
    batches.close()
