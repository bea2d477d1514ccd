"""Attempts on a real Slurm of four nodes: a hundred blocks while runners, a node and the controller are killed."""

import itertools
import subprocess
import sys
from contextlib import suppress

import pytest

from loader.errors import EngineUnreachable
from penstock.compute.engines.slurm import SlurmCluster, SlurmEngine, SlurmQueue
from tests.servers.patience import until
from tests.servers.processes import command_name, end
from tests.servers.slurm import NODES

pytestmark = pytest.mark.slurm
_numbers = itertools.count()
N_BLOCKS = 100

RUNNER = """\
import os, pathlib, sys, time
folder, n_blocks, each_s = pathlib.Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
element, elements = int(sys.argv[5]), int(sys.argv[7])
print("element", element, "of", elements, "on", os.environ["SLURMD_NODENAME"], flush=True)
for block in range(element, n_blocks, elements):
    done = folder / "done" / str(block)
    if done.exists():
        continue
    mine = folder / f"{block}-{os.getpid()}"
    mine.write_text(os.environ["SLURMD_NODENAME"])
    time.sleep(each_s)
    held = folder / f"held-{block}-{os.getpid()}"
    held.write_text(f"outcome of {block}")
    try:
        os.link(held, done)  # create-only: the first wins
    except FileExistsError:
        pass
"""

SUBMITTER = """\
import sys, time
from penstock.compute.engines.slurm import SlurmCluster, SlurmEngine
logs, name, *runner = sys.argv[1:]
SlurmEngine(SlurmCluster(slots=8, logs=logs, array_max=5)).submit(name, runner, 16)
print("placed", flush=True)
time.sleep(600)
"""


@pytest.fixture
def place_engine(slurm_cluster, tmp_path):
    """place_engine(slots=8) -> (engine, runner command, the job's folder, the attempt's name)."""
    names = []
    (tmp_path / "done").mkdir()
    (tmp_path / "logs").mkdir()
    (tmp_path / "runner.py").write_text(RUNNER)
    engine = SlurmEngine(SlurmCluster(slots=8, logs=str(tmp_path / "logs")))

    def place(*, n_blocks=N_BLOCKS, each_s=0.4, at=engine, **changed):
        name = f"pk-engine-{next(_numbers)}"
        names.append(name)
        runner = [sys.executable, str(tmp_path / "runner.py"), str(tmp_path), str(n_blocks), str(each_s)]
        if changed:
            at = SlurmEngine(SlurmCluster(**{"slots": 8, "logs": str(tmp_path / "logs"), **changed}))
        at.submit(name, runner, n_blocks)
        return at, runner, tmp_path, name

    yield place
    for name in names:
        engine.cancel(name)


def done_files(folder):
    return {path.name: path.read_text() for path in (folder / "done").iterdir()}


def wait_attempt(engine, name):
    """Look until the attempt has ended; a controller out of reach is waited for."""

    def has_ended():
        with suppress(EngineUnreachable):
            return engine.status(name).state == "ended"
        return False

    until(has_ended, lambda: f"{name} has not ended: {engine.status(name)}")


def test_hundred_blocks_while_runners_a_node_and_the_controller_are_killed(place_engine, slurm_cluster):
    engine, runner, folder, name = place_engine()
    until(lambda: len(done_files(folder)) > 8)
    for pid in slurm_cluster.processes("m1"):
        if command_name(pid).startswith("python"):
            end(pid)
    slurm_cluster.kill_node("m3")
    slurm_cluster.kill_head()
    with pytest.raises(EngineUnreachable):
        engine.status(name)
    slurm_cluster.start_head()
    slurm_cluster.start_node("m3")
    wait_attempt(engine, name)
    attempts = [name]
    while len(done_files(folder)) < N_BLOCKS and len(attempts) < 3:
        attempts.append(f"{name}-again")
        engine.submit(attempts[-1], runner, N_BLOCKS)
        wait_attempt(engine, attempts[-1])
    assert done_files(folder) == {str(n): f"outcome of {n}" for n in range(N_BLOCKS)}
    assert {path.read_text() for path in folder.glob("*-*") if path.name[0].isdigit()} == set(NODES)


def test_element_whose_node_is_lost_five_times_continues(place_engine, slurm_cluster):
    engine, _, folder, name = place_engine(n_blocks=1, each_s=600, slots=1)
    for number in range(5):
        until(
            lambda number=number: len([path for path in folder.glob("0-*") if path.read_text()]) == number + 1
        )
        (node,) = {path.read_text() for path in folder.glob("0-*") if path.stat().st_mtime == newest(folder)}
        slurm_cluster.kill_node(node)
        slurm_cluster.start_node(node)
        until(lambda: not slurm_cluster.told("squeue", "-h", "-t", "running"))
    until(lambda: bool(SlurmQueue().elements(name).held))
    assert engine.status(name).waiting == 1
    until(lambda: len(list(folder.glob("0-*"))) == 6)


def newest(folder):
    return max(path.stat().st_mtime for path in folder.glob("0-*"))


def test_who_submits_is_killed_and_another_one_finds_the_attempt(place_engine, tmp_path):
    cluster = SlurmCluster(slots=8, logs=str(tmp_path / "logs"), array_max=5)
    _, runner, folder, name = place_engine(n_blocks=0)
    runner[-2:] = ["16", "0.2"]
    submitter = subprocess.Popen(
        [sys.executable, "-c", SUBMITTER, cluster.logs, name, *runner], stdout=subprocess.PIPE, text=True
    )
    assert submitter.stdout.readline() == "placed\n"
    submitter.kill()
    submitter.wait()
    submitter.stdout.close()
    other = SlurmEngine(cluster)
    assert not other.find(name + "0")
    assert other.find(name)
    wait_attempt(other, name)
    assert set(done_files(folder)) == {str(n) for n in range(16)}
    assert other.logs(name, 7).startswith("element 7 of 16 on m")
    assert other.logs(name, 16) == ""


def test_attempt_keeps_to_its_slots_and_is_cancelled_to_the_last_process(place_engine, slurm_cluster):
    engine, _, folder, name = place_engine(slots=3, each_s=60)
    until(lambda: engine.status(name).running == 3)
    look = engine.status(name)
    assert (look.state, look.waiting) == ("running", 9)
    until(lambda: "JobArrayTaskLimit" in engine.status(name).reason)
    engine.cancel(name)
    until(lambda: not slurm_cluster.processes())  # the kernel takes them away a moment after Slurm's word
    assert engine.status(name).state == "ended"
    assert not done_files(folder)
