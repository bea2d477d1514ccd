"""A training on Slurm under faults: every step is that of an undisturbed one.

Four nodes, three accounts, two QOS. Faults: preemption, SIGKILL of a rank, of the batch script, of a node of the job,
of slurmctld, Slurm's own kill of a step that takes too much memory, a drain for a reason of two lines, a record store
that refuses writes, flipped reads, a damaged checkpoint. A person cancels two runs, one at work and one that waits.
"""

import os
import random
import signal
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

import loader
from penstock.compute.cluster import read_cluster
from penstock.compute.engines.slurm import SlurmQueue
from penstock.nodes.control import SlurmNodes
from penstock.nodes.watch import REVIEW_S
from penstock.train.goodput.allocations import match_attempts
from penstock.train.goodput.run_usage import run_goodput
from penstock.train.goodput.stretches import PARTS
from penstock.train.launch import slurm_job_script
from penstock.train.launch.slurm_job import SlurmJobs
from penstock.train.run_folder import RunFolder
from penstock.train.run_spec import RunSpec
from penstock.train.submitting import cancel, stop, submit
from tests.servers.patience import until
from tests.servers.processes import command_line, command_name, environment_bytes
from tests.servers.slurm import NODES, Slurm, slurm
from tests.trainings.books import Start, starts, wrong_steps
from tests.trainings.store import RUN, URL, Store

REPOSITORY = Path(__file__).resolve().parents[2]
CLUSTER = """\
engine = "slurm"
logs = "{folder}/logs"
environment = "{folder}/environment"
account = "{account}"
[slot]
memory = "1500 MiB"
[priorities]
low = "low"
"""
ENVIRONMENT = {
    "PYTHONPATH": str(REPOSITORY),
    "GLOO_SOCKET_IFNAME": "lo",
    "OMP_NUM_THREADS": "1",
    "CUDA_VISIBLE_DEVICES": "",
    "AWS_ACCESS_KEY_ID": "key",
    "AWS_SECRET_ACCESS_KEY": "secret",
    "AWS_DEFAULT_REGION": "us-east-1",
}
Size = tuple[str, int, float]
FULL: Size = "2-4", 2, 0.1
"""Nodes, ranks of a node, and seconds of a step."""
PROCESSORS = 2
"""Of a node."""
SAVE_EVERY = 20
GOES_ON = 5
"""Steps after a fault that prove it."""
BOOKED_S = 1.0
"""Most seconds between goodput's parts of a start and its line of sacct."""
STALL_S = 5.0
"""Most seconds by which goodput's steps may pass those between the ranks' lines: a busy machine stalls a rank."""
KINDS = 12
"""Kinds of faults."""
REFUSED_S = 20.0


class Proof:
    """Slurm, the store, a run under faults, and what is wrong so far."""

    def __init__(self, folder: Path, cluster: Slurm, store: Store, seed: int, size: Size) -> None:
        self.folder, self.cluster, self.store = folder, cluster, store
        self.nodes, self.ranks_per_node, self.step_s = size
        self.random, self.problems, self.faults = random.Random(seed), list[str](), Counter[str]()
        self.lines = folder / "lines"
        self.cancelled = dict[str, int]()
        for name in ("lines", "logs"):
            (folder / name).mkdir()
        self.launcher = self._launcher("team")
        self.began_s = time.monotonic()

    def _launcher(self, account: str) -> SlurmJobs:
        file = self.folder / f"{account}.toml"
        file.write_text(CLUSTER.format(folder=self.folder, account=account))
        return SlurmJobs(URL, read_cluster(file))

    def spec(self, run: str, lines: Path, nodes: str, ranks_per_node: int) -> RunSpec:
        """Return a run whose ranks write their lines to a folder."""
        command = (sys.executable, str(REPOSITORY / "tests/trainings/rank.py"), str(lines))
        return RunSpec(
            run=run,
            command=(*command, str(self.step_s), str(SAVE_EVERY)),
            nodes=nodes,
            ranks_per_node=ranks_per_node,
            grace_s=30,
            priority="low",
            record=URL,
        )

    def begins(self) -> int:
        """Return the number of starts that made a step."""
        return len({file.name.rpartition("-")[0] for file in self.lines.iterdir() if file.stat().st_size})

    def newest(self) -> int:
        """Return the newest step of the last start, -1 before the first."""
        return max(
            (max(start.steps) for start in starts(self.lines, max(0, self.begins() - 1))[0]), default=-1
        )

    def faults_in_order(self) -> Iterator[Callable[[], bool]]:
        """Yield each fault once, then one after the other at random."""
        kinds = (
            *(self.flip_reads, self.refuse_the_record, self.kill_slurmctld, self.preempt, self.kill_a_rank),
            *(self.kill_the_first_node, self.kill_another_node, self.lose_another_node),
            self.drain_for_a_reason_of_two_lines,
            *(self.kill_the_script, self.damage_the_newest_checkpoint, self.pass_the_memory_limit),
        )
        assert len(kinds) == KINDS
        yield from kinds[:2]
        self.cancel("small-2", at_work=False)  # the controller that dies next may forget it
        yield from kinds[2:]
        while True:
            yield self.random.choice(kinds)

    def disturb(self, fault: Callable[[], bool]) -> None:
        """Plant a fault, wait until the run goes on, and check that no saved step was lost."""
        saved, before, step, name = self.store.saved(), self.begins(), self.newest(), fault.__name__
        self.say(f"{name} at step {step}, saved {saved}")
        restarts = fault()
        saved = min(saved, self.store.saved())  # lower where a checkpoint was damaged
        self.faults[name] += 1
        begun_s = asked_s = time.monotonic()

        def goes_on() -> bool:
            nonlocal asked_s
            self.cluster.resume()
            if time.monotonic() > asked_s + REVIEW_S:  # as `penstock node watch --apply`
                asked_s = time.monotonic()
                for job in SlurmNodes(SlurmQueue()).release_runs():
                    self.faults["held"] += 1
                    self.say(f"{job} was held, and is released")
            if restarts:
                new = starts(self.lines, before)[0]
                return bool(new) and len(new[-1].steps) > GOES_ON
            return self.newest() > step + GOES_ON

        self.wait_for(goes_on, f"it goes on after {name}")
        for start in starts(self.lines, before)[0]:
            if min(start.steps) < saved:
                self.problems.append(f"{name}: step {saved} was saved, and {min(start.steps)} came next")
        self.check_cancelled()
        self.say(f"went on after {time.monotonic() - begun_s:.0f} s")

    # Each returns whether the ranks begin again.

    def preempt(self) -> bool:
        """A job of QOS high takes more nodes than are idle."""
        nodes = 3 if len(self._nodes_with_ranks()) == 2 else 2
        options = ("--qos=high", "--account=robots", "--exclusive", "--output=/dev/null", f"--nodes={nodes}")
        self.cluster.told("sbatch", *options, "--wrap=sleep 15")
        return True

    def kill_a_rank(self) -> bool:
        """SIGKILL to one rank."""
        os.kill(self.random.choice(self._ranks()), signal.SIGKILL)
        return True

    def _ranks(self) -> list[int]:
        """Return the ranks' processes, without the shells around them."""
        with_rank = [pid for pid in self._processes() if b"rank.py" in command_line(pid)]
        return [pid for pid in with_rank if not is_shell(pid)]

    def kill_the_script(self) -> bool:
        """SIGKILL to the job's batch script."""
        (script,) = self.cluster.scripts()
        os.kill(script, signal.SIGKILL)
        return True

    def damage_the_newest_checkpoint(self) -> bool:
        """A byte of the newest checkpoint flips before a rank is killed: the one before it is the newest whole one."""
        self.wait_for(lambda: self.store.saved() > SAVE_EVERY, "two checkpoints")
        self.store.damage_newest()
        return self.kill_a_rank()

    def pass_the_memory_limit(self) -> bool:
        """A rank takes more memory than Slurm grants: slurmstepd kills the step."""
        os.kill(self.random.choice(self._ranks()), signal.SIGUSR2)
        return True

    def _processes(self, node: str | None = None) -> list[int]:
        """Return the processes of the run, of one node or of all."""
        name = f"SLURM_JOB_NAME={self.launcher._name(RUN)}\0".encode()
        return [pid for pid in sorted(self.cluster.processes(node)) if name in environment_bytes(pid)]

    def kill_the_first_node(self) -> bool:
        """The node with the job's script loses its power, and boots."""
        nodes = [name for name in NODES if self._has_srun(name)]
        assert len(nodes) == 1, self.cluster.told("squeue", "--all")
        return self._kill_node(nodes[0], 3)

    def kill_another_node(self) -> bool:
        """A node with ranks only loses its power, and is back before it is DOWN: Slurm misses nothing."""
        return self._kill_node(self.random.choice(self._other_nodes()), 0)

    def lose_another_node(self) -> bool:
        """A node with ranks only loses its power, and is away until it is DOWN."""
        return self._kill_node(self.random.choice(self._other_nodes()), 15)

    def _other_nodes(self) -> list[str]:
        return [name for name in self._nodes_with_ranks() if not self._has_srun(name)]

    def _nodes_with_ranks(self) -> list[str]:
        return [
            name for name in NODES if any(b"rank.py" in command_line(pid) for pid in self._processes(name))
        ]

    def _has_srun(self, node: str) -> bool:
        return any(command_name(pid) == "srun" for pid in self._processes(node))

    def _kill_node(self, node: str, away_s: float) -> bool:
        self.cluster.kill_node(node)
        time.sleep(away_s)
        self.cluster.start_node(node)
        return True

    def kill_slurmctld(self) -> bool:
        """The controller loses its power, and boots."""
        self.cluster.kill_head()
        time.sleep(3)
        self.cluster.start_head()
        until(lambda: bool(self.cluster.told("sinfo", "-h")))
        return False

    def refuse_the_record(self) -> bool:
        """The store refuses writes of record and trail for a while."""
        self.store.refuses_record = True
        time.sleep(REFUSED_S)
        self.store.refuses_record = False
        return False

    def flip_reads(self) -> bool:
        """Three reads of different objects come with a wrong byte."""
        self.store.flipped.clear()
        self.store.flips = 3
        self.wait_for(lambda: not self.store.flips, "three reads")
        return False

    def drain_for_a_reason_of_two_lines(self) -> bool:
        """An operator drains a node of the run; the watcher still reads each node, and `why` answers."""
        node = self.random.choice(self._nodes_with_ranks())
        other = next(name for name in NODES if name != node)
        reason = f"fan is loud\n{other}|drained|forged"
        self.cluster.told("scontrol", "update", f"nodename={node}", "state=drain", f"reason={reason}")
        states = SlurmNodes(SlurmQueue()).states()
        out = {name: state.reason for name, state in states.items() if not state.in_service}
        if set(states) != set(NODES) or out != {node: " ".join(reason.split())}:
            self.problems.append(
                f"{node} is drained for a reason of two lines, and the watcher reads {states}"
            )
        self.launcher.why(RUN)
        return False

    def cancel(self, run: str, *, at_work: bool) -> None:
        """Begin a run of another account and cancel it, once it made steps or while it waits.

        It takes all processors of a node: beside a run with fewer ranks than those, a smaller one would not wait.
        """
        lines = self.folder / run
        lines.mkdir()
        launcher = self._launcher("vision")
        submit(self.spec(run, lines, "1", PROCESSORS), launcher)
        if at_work:
            self.wait_for(lambda: any(start.steps for start in starts(lines)[0]), f"{run} makes steps")
        else:
            self.wait_for(lambda: launcher.status(run).state == "waiting", f"{run} waits")
        cancel(RunFolder(loader.Root(URL).store, run), launcher)
        assert launcher.status(run).state in ("ended", "unknown")
        self.cancelled[run] = len(starts(lines)[0])
        self.say(f"{run} of account vision is cancelled")

    def check_cancelled(self) -> None:
        """Check that they made no step since, even if the controller forgot the cancel and started them."""
        for run, begins in self.cancelled.items():
            if len(starts(self.folder / run)[0]) != begins:
                self.problems.append(f"the cancelled {run} made steps again")
                self.say(self.problems[-1])

    def end(self) -> None:
        """Stop the run for good, and check all of it."""
        folder = RunFolder(loader.Root(URL).store, RUN)
        stop(folder)
        self.wait_for(lambda: self.launcher.status(RUN).state == "ended", f"{RUN} ends")
        others = self._launcher("vision")
        for run in self.cancelled:
            self.wait_for(lambda run=run: others.status(run).state in ("ended", "unknown"), f"{run} ends")  # type: ignore[misc]
            attempts = RunFolder(loader.Root(URL).store, run).attempts()
            self.say(f"the cancelled {run} began {len(attempts)} times")
        self.check_cancelled()
        all_starts, problems = starts(self.lines)
        self.problems += problems
        end = self.store.saved()
        self.problems += wrong_steps(all_starts, run_plan(), end)
        until(lambda: all(span.ended_us for span in self.launcher.spans(RUN)))
        self._check_goodput(folder, all_starts)
        self.say(f"{end} steps in {len(all_starts)} starts; faults: {dict(self.faults)}")
        self.say(f"{self.store.n_flipped} reads flipped, {self.store.refused} writes refused")

    def _check_goodput(self, folder: RunFolder, all_starts: list[Start]) -> None:
        """Hold each start's parts to the line of sacct that it ran in, and to the clock of its ranks."""
        rows = run_goodput(folder, self.launcher)
        allocations = match_attempts(self.launcher.spans(RUN), folder.attempts(), 0)
        booked_s, parts = defaultdict[int, float](float), Counter[str]()
        lines = self._accounted()
        for row, allocation in zip(rows, allocations, strict=True):
            begun_s = allocation.begun_us / 1e6
            line = max(number for number, (begin, _, _) in enumerate(lines) if begin <= begun_s)
            booked_s[line] += row.seconds
            parts.update({part: round(seconds) for part, seconds in row.parts.items()})
            if row.nodes != lines[line][2]:
                self.problems.append(f"start {row.attempt} has {row.nodes} nodes, sacct {lines[line][2]}")
            inside = [one for one in all_starts if begun_s <= one.begun_s < allocation.ended_us / 1e6]
            steps_s = sum(one.ended_s - one.begun_s for one in inside)
            counted_s = row.parts["new steps"] + row.parts["repeated steps"]
            if row.end in ("stopped", "ended", "failed") and counted_s > steps_s + STALL_S:
                self.problems.append(
                    f"start {row.attempt} counts {counted_s:.1f} s of steps, its ranks {steps_s:.1f} s"
                )
        for number, (begin, end, _) in enumerate(lines):
            if abs(booked_s[number] - (end - begin)) > BOOKED_S:
                self.problems.append(f"goodput has {booked_s[number]:.1f} s of sacct's {end - begin} s")
        assert parts.keys() == set(PARTS)
        self.say(f"{len(rows)} starts in {len(lines)} lines of sacct: {dict(parts)}")

    def _accounted(self) -> list[tuple[int, int, int]]:
        """Return (begin, end, nodes) of each line of sacct that has a beginning."""
        name = f"--name={self.launcher._name(RUN)}"
        columns = ("-D", "-X", "-n", "-P", "-S", "now-1days", "-o", "Start,End,NNodes")
        listed = self.cluster.told("env", "SLURM_TIME_FORMAT=%s", "sacct", name, *columns)
        rows = (line.split("|") for line in listed.splitlines())
        return sorted((int(begin), int(end), int(nodes)) for begin, end, nodes in rows if begin.isdigit())

    def wait_for(self, holds: Callable[[], bool], what: str) -> None:
        """Wait until it holds, as long as ranks make steps: on a busy machine that takes any time."""
        until(holds, what, lambda: sum(file.stat().st_size for file in self.folder.glob("*/*-*-*-*")))

    def say(self, text: str) -> None:
        print(f"{time.monotonic() - self.began_s:7.1f} s  {text}", flush=True)


def run_plan() -> loader.Plan:
    """Return the plan of the run."""
    return loader.plan({"points": loader.Root(URL).open("points@1")}, seed=7, global_batch=24)


def is_shell(pid: int) -> bool:
    """Return whether a process is the shell around a rank."""
    return not command_line(pid).split(b"\0")[0].endswith(b"python")


@contextmanager
def proof(folder: Path, seed: int, size: Size = FULL) -> Iterator[Proof]:
    """Yield a run at its first steps on a cluster of its own."""
    store = Store()
    variables = {**ENVIRONMENT, "AWS_ENDPOINT_URL": store.server.endpoint}
    (folder / "environment").write_text("".join(f"{name}={value}\n" for name, value in variables.items()))
    (folder / "slurm").mkdir()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(slurm_job_script, "LOST_S", 30)
        for name, value in variables.items():
            patched.setenv(name, value)
        try:
            with loader.Root(URL) as root, root.write("points", part_samples=50) as writer:
                for number in range(500):
                    writer.add(f"{number:03d}", {"x.npy": np.arange(64) + number, "cls": number % 3})
            with slurm(folder / "slurm", accounts=True, memory_limits=True) as cluster:
                patched.setenv("SLURM_CONF", str(cluster.conf))
                yield _begin_run(Proof(folder, cluster, store, seed, size))
        finally:
            store.server.close()


def _begin_run(run: Proof) -> Proof:
    accounts, environment = run.cluster.accounts, run.cluster.environment
    assert accounts is not None
    accounts.manage("add", "account", "robots", environment=environment)
    user = ("add", "user", run.cluster.user, "account=robots", "qos=high", "defaultqos=high")
    accounts.manage(*user, environment=environment)
    run.cancel("small-1", at_work=True)
    run.cluster.wait_until_idle()  # else the run begins on three nodes, and no later one waits
    submit(run.spec(RUN, run.lines, run.nodes, run.ranks_per_node), run.launcher)
    run.wait_for(lambda: run.newest() > GOES_ON, "first steps")
    run.say("the first steps are done")
    return run
