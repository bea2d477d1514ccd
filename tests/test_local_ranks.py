"""Ranks of a machine that no launcher's variable counts: they count each other's processes."""

import json
import multiprocessing
import os
import subprocess
import sys
from contextlib import ExitStack

import pytest

from loader.local_ranks import local_ranks
from tests.servers.patience import PATIENCE_S, until

RANKS = 3


def without_a_launcher():
    """Return this environment without a launcher's variables."""
    prefixes = ("SLURM_", "OMPI_", "PMI_", "MPI_", "LOCAL_", "RANK", "WORLD_SIZE", "MASTER_")
    return {name: value for name, value in os.environ.items() if not name.startswith(prefixes)}


def count_in_child(barrier, counts):
    barrier.wait(PATIENCE_S)  # all have started
    counts.put(local_ranks(without_a_launcher()))
    barrier.wait(PATIENCE_S)  # and none has ended before all have counted


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_local_ranks_of_multiprocessing_children_are_counted(method):
    """`torch.multiprocessing.spawn` sets no variable."""
    context = multiprocessing.get_context(method)
    barrier, counts = context.Barrier(RANKS), context.SimpleQueue()
    children = [context.Process(target=count_in_child, args=(barrier, counts)) for _ in range(RANKS)]
    for child in children:
        child.start()
    numbers = [counts.get() for _ in children]
    for child in children:
        child.join(PATIENCE_S)
    assert numbers == [RANKS] * RANKS
    assert local_ranks(without_a_launcher()) == 1, "the parent is not a rank"


COUNTS = """
import json, os, sys
from loader.local_ranks import local_ranks
print("ready", flush=True)
sys.stdin.readline()
print(json.dumps(local_ranks()), flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def start_rank():
    """Return `start(variables)`: a process that prints its count once it reads a line."""
    with ExitStack() as processes:

        def start(**variables):
            environ = without_a_launcher() | variables
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
            process = subprocess.Popen([sys.executable, "-c", COUNTS], env=environ, **pipes)
            processes.enter_context(process)
            processes.callback(process.kill)
            return process

        yield start


def read_counts(processes):
    """Return what each process counts while all of them run."""
    for process in processes:
        assert process.stdout.readline() == "ready\n"
    numbers = []
    for process in processes:
        process.stdin.write("\n")
        process.stdin.flush()
        numbers.append(json.loads(process.stdout.readline()))
    return numbers


def test_local_ranks_of_a_job_on_several_nodes_are_those_of_its_rendezvous(start_rank):
    """Lightning's launcher on two nodes: neither the variables of a rank nor its world size say how many are here."""
    job = {"MASTER_ADDR": "10.0.0.7", "MASTER_PORT": "29400", "WORLD_SIZE": "8", "NODE_RANK": "1"}
    ranks = [start_rank(LOCAL_RANK=str(rank), **job) for rank in range(4)]
    another = start_rank(LOCAL_RANK="6", **{**job, "MASTER_PORT": "29500"})
    numbers = read_counts([*ranks, another])
    assert numbers == [4, 4, 4, 4, 7]


def test_local_ranks_of_a_shell_loop_are_counted(start_rank):
    """RANK and WORLD_SIZE, set by hand: the machine has ranks 4 and 5 of 8."""
    job = {"MASTER_ADDR": "10.0.0.7", "MASTER_PORT": "29401", "WORLD_SIZE": "8"}
    assert read_counts([start_rank(RANK=str(rank), **job) for rank in (4, 5)]) == [2, 2]


LIGHTNING = """
import json, os, subprocess, sys
from loader.local_ranks import local_ranks

class Launcher:  # as lightning.pytorch.strategies.launchers.subprocess_script does
    def launch(self):
        if "LOCAL_RANK" in os.environ:
            return []
        os.environ |= {"MASTER_ADDR": "10.0.0.7", "MASTER_PORT": "29403", "NODE_RANK": "0"}
        os.environ |= {"LOCAL_RANK": "0", "WORLD_SIZE": "6"}
        command = [sys.executable, *sys.argv]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        others = [os.environ | {"LOCAL_RANK": str(rank)} for rank in (1, 2)]
        return [subprocess.Popen(command, env=environ, **pipes) for environ in others]

children = Launcher().launch()
for child in children:
    assert child.stdout.readline() == "ready\\n"
counts = [local_ranks()]
print("ready", flush=True)
if children:
    for child in children:
        counts += json.loads(child.communicate("\\n")[0])
else:
    sys.stdin.readline()
print(json.dumps(counts))
"""


def test_local_ranks_under_lightnings_own_launcher(tmp_path):
    """Its rank 0 starts the others, and has no variable of a launcher from the start."""
    script = tmp_path / "fit.py"
    script.write_text(LIGHTNING)
    environ = without_a_launcher()
    done = subprocess.run(
        [sys.executable, script], env=environ, capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert done.returncode == 0, done.stderr
    ready, counts = done.stdout.splitlines()
    assert (ready, json.loads(counts)) == ("ready", [3, 3, 3])


def test_local_ranks_end_with_their_processes(start_rank):
    job = {"MASTER_ADDR": "10.0.0.7", "MASTER_PORT": "29402", "WORLD_SIZE": "8"}
    first, second = start_rank(RANK="4", **job), start_rank(RANK="5", **job)
    assert second.stdout.readline() == "ready\n"
    second.kill()
    second.wait(PATIENCE_S)
    until(lambda: not os.path.exists(f"/proc/{second.pid}"))
    assert read_counts([first]) == [1]
