"""An hour of a training on Slurm with a fault a minute: every step is that of an undisturbed one.

python tests/trainings [--minutes 60] [--seed N]          `make prove-trainings`

Four nodes with two ranks each, three accounts, two QOS. Faults: preemption, SIGKILL of a rank, of a slurmd with its
jobs, of slurmctld, a record store that refuses writes, flipped reads. A person cancels a run of its own.
"""

import argparse
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPOSITORY))

import numpy as np  # noqa: E402 - after the path

import loader  # noqa: E402
from penstock.compute.cluster import read_cluster  # noqa: E402
from penstock.train.launch.slurm_job import SlurmJobs  # noqa: E402
from penstock.train.run_folder import RunFolder  # noqa: E402
from penstock.train.run_spec import RunSpec  # noqa: E402
from penstock.train.submitting import goodput_of, stop, submit  # noqa: E402
from tests.servers.http import HttpServer, Request  # noqa: E402
from tests.servers.s3 import SmallS3  # noqa: E402
from tests.servers.slurm import NODES, Slurm, slurm, until  # noqa: E402
from tests.trainings.books import starts, wrong_steps  # noqa: E402

CLUSTER = """\
engine = "slurm"
logs = "{folder}/logs"
environment = "{folder}/environment"
account = "{account}"
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
URL, RUN, CANCELLED = "s3://bucket", "big-7", "small-1"
STEP_S, SAVE_EVERY = 0.1, 20
EVERY_S = 60.0
PATIENCE_S = 420.0
GOES_ON = 5
"""Steps after a fault that prove it."""
RECORD = ("trainings/", "trails/")
REFUSED_S = 20.0


class Store:
    """The store of data, checkpoints and record, with faults planted in its answers."""

    def __init__(self) -> None:
        self.objects = SmallS3()
        self.objects.page_keys = 1000
        self.server = HttpServer(self.objects)
        self.server.fault_of = self._fault
        self.refuses_record, self.flips, self.refused = False, 0, 0
        self.flipped = set[tuple[str, str]]()
        """Objects and ranges that came wrong once: a range that is wrong twice is a corrupt sample."""

    def _fault(self, request: Request) -> int | str | None:
        key = request.path.removeprefix("/bucket/")
        read = key, request.headers.get("range", "")
        if self.flips and request.method == "GET" and key.endswith(".tar") and read not in self.flipped:
            self.flips -= 1
            self.flipped.add(read)
            return "flip"
        if self.refuses_record and request.method == "PUT" and key.startswith(RECORD):
            self.refused += 1
            return 507
        return None

    def saved(self) -> int:
        """Return the newest step with a whole checkpoint."""
        prefix = f"checkpoints/{RUN}/steps/"
        keys = [key for key in self.objects.held() if key.startswith(prefix)]
        return max((int(key.removeprefix(prefix).removesuffix(".json")) for key in keys), default=0)


class Proof:
    """Slurm, the store, a run under faults, and what is wrong so far."""

    def __init__(self, folder: Path, cluster: Slurm, store: Store, seed: int) -> None:
        self.folder, self.cluster, self.store = folder, cluster, store
        self.random, self.problems, self.faults = random.Random(seed), list[str](), Counter[str]()
        self.lines = folder / "lines"
        for name in ("lines", "logs", "cancelled"):
            (folder / name).mkdir()
        self.launcher = self._launcher("team")
        self.began_s = time.monotonic()

    def _launcher(self, account: str) -> SlurmJobs:
        file = self.folder / f"{account}.toml"
        file.write_text(CLUSTER.format(folder=self.folder, account=account))
        return SlurmJobs(URL, read_cluster(file))

    def spec(self, run: str, lines: Path, nodes: str) -> RunSpec:
        """Return a run whose ranks write their lines to a folder."""
        command = (sys.executable, str(REPOSITORY / "tests/trainings/rank.py"), str(lines))
        return RunSpec(
            run=run,
            command=(*command, str(STEP_S), str(SAVE_EVERY)),
            nodes=nodes,
            ranks_per_node=2,
            grace_s=30,
            priority="low",
            record=URL,
        )

    def newest(self) -> int:
        """Return the newest step that a rank did."""
        found, _ = starts(self.lines)
        return max((max(start.steps) for start in found), default=-1)

    def begins(self) -> int:
        """Return the number of starts that made a step."""
        return len(starts(self.lines)[0])

    def disturb(self, fault: Callable[[], bool]) -> None:
        """Plant a fault, wait until the run goes on, and check that no saved step was lost."""
        saved, before, name = self.store.saved(), self.begins(), fault.__name__
        step = self.newest()
        self.say(f"{name} at step {step}, saved {saved}")
        restarts = fault()
        self.faults[name] += 1
        begun_s = time.monotonic()

        def goes_on() -> bool:
            self.cluster.resume()
            found, _ = starts(self.lines)
            if restarts:
                return len(found) > before and len(found[-1].steps) > GOES_ON
            return self.newest() > step + GOES_ON

        until(goes_on, PATIENCE_S)
        for start in starts(self.lines)[0][before:]:
            if min(start.steps) < saved:
                self.problems.append(f"{name}: step {saved} was saved, and {min(start.steps)} came next")
        self.say(f"went on after {time.monotonic() - begun_s:.0f} s")

    # Each returns whether the ranks begin again.

    def preempt(self) -> bool:
        """A job of QOS high takes two nodes."""
        options = ("--qos=high", "--account=robots", "--nodes=2", "--exclusive", "--output=/dev/null")
        self.cluster.told("sbatch", *options, "--wrap=sleep 15")
        return True

    def kill_a_rank(self) -> bool:
        """SIGKILL to one rank."""
        ranks = [pid for pid in self.cluster.processes() if b"RANK=" in environment_of(pid)]
        ranks = [pid for pid in ranks if b"rank.py" in command_line_of(pid) and not is_shell(pid)]
        os.kill(self.random.choice(ranks), signal.SIGKILL)
        return True

    def kill_a_slurmd(self) -> bool:
        """A node loses its power, and boots."""
        # The first of the job: srun waits for ever for tasks of another one that boots soon (docs/limits.md).
        (node,) = (name for name in NODES if self._has_script(name))
        self.cluster.kill_node(node)
        time.sleep(3)
        self.cluster.start_node(node)
        return True

    def _has_script(self, node: str) -> bool:
        return any(b"slurm_script" in command_line_of(pid) for pid in self.cluster.processes(node))

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
        """Three reads come with a wrong byte."""
        self.store.flips = 3
        until(lambda: not self.store.flips, PATIENCE_S)
        return False

    def cancel_a_run(self) -> None:
        """Begin a run of another account beside, and cancel it."""
        launcher = self._launcher("vision")
        launcher.submit(self.spec(CANCELLED, self.folder / "cancelled", "1"))
        until(lambda: launcher.status(CANCELLED).state in ("running", "waiting"))
        launcher.cancel(CANCELLED)
        self.say("a run of account vision is cancelled")

    def check_cancelled(self) -> None:
        """Check that it stayed so."""
        state = self._launcher("vision").status(CANCELLED).state
        if state not in ("ended", "unknown"):
            self.problems.append(f"the cancelled run is {state}")

    def end(self) -> None:
        """Stop the run for good, and check all of it."""
        folder = RunFolder(loader.Root(URL).store, RUN)
        stop(folder)
        until(lambda: self.launcher.status(RUN).state == "ended", PATIENCE_S)
        self.check_cancelled()
        all_starts, problems = starts(self.lines)
        self.problems += problems
        end, plan = self.store.saved(), plan_of()
        self.problems += wrong_steps(all_starts, plan, end)
        until(lambda: all(span.ended_us for span in self.launcher.spans(RUN)))
        spans = self.launcher.spans(RUN)
        goodput = goodput_of(folder, self.launcher)
        allocated_s = sum((span.ended_us or 0) - span.begun_us for span in spans) / 1e6
        off_s = abs(sum(start.seconds for start in goodput) - allocated_s)
        if off_s > len(spans):
            self.problems.append(f"goodput's parts are {off_s:.1f} s off sacct's {len(spans)} lines")
        parts = Counter[str]()
        for start in goodput:
            parts.update({part: round(seconds) for part, seconds in start.parts.items()})
        self.say(
            f"{end} steps in {len(all_starts)} starts, {len(spans)} lines of sacct, {allocated_s:.0f} s: {dict(parts)}"
        )
        self.say(
            f"faults: {dict(self.faults)}, {len(self.store.flipped)} reads flipped, {self.store.refused} writes refused"
        )

    def say(self, text: str) -> None:
        print(f"{time.monotonic() - self.began_s:7.1f} s  {text}", flush=True)


def plan_of() -> loader.Plan:
    """Return the plan of the run."""
    return loader.plan({"points": loader.Root(URL).open("points@1")}, seed=7, global_batch=24)


def environment_of(pid: int) -> bytes:
    """Return the variables of a process; nothing if it has ended."""
    try:
        return Path("/proc", str(pid), "environ").read_bytes()
    except OSError:
        return b""


def command_line_of(pid: int) -> bytes:
    """Return the command line of a process; nothing if it has ended."""
    try:
        return Path("/proc", str(pid), "cmdline").read_bytes()
    except OSError:
        return b""


def is_shell(pid: int) -> bool:
    """Return whether a process is the shell around a rank."""
    return not command_line_of(pid).split(b"\0")[0].endswith(b"python")


def main() -> int:
    """Exit status 1 when something is wrong."""
    parser = argparse.ArgumentParser(
        prog="python tests/trainings", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    with ExitStack() as opened:
        folder = Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="trainings-")))
        store = Store()
        opened.callback(store.server.close)
        variables = {**ENVIRONMENT, "AWS_ENDPOINT_URL": store.server.endpoint}
        os.environ.update(variables)
        (folder / "environment").write_text("".join(f"{name}={value}\n" for name, value in variables.items()))
        with loader.Root(URL) as root, root.write("points", part_samples=50) as writer:
            for number in range(500):
                writer.add(f"{number:03d}", {"x.npy": np.arange(64) + number, "cls": number % 3})
        (folder / "slurm").mkdir()
        cluster = opened.enter_context(slurm(folder / "slurm", accounts=True))
        os.environ["SLURM_CONF"] = str(cluster.conf)
        assert cluster.accounts is not None
        cluster.accounts.manage("add", "account", "robots", environment=cluster.environment)
        user = ("add", "user", cluster.user, "account=robots", "qos=high", "defaultqos=high")
        cluster.accounts.manage(*user, environment=cluster.environment)
        proof = Proof(folder, cluster, store, options.seed)
        submit(proof.spec(RUN, proof.lines, "2-4"), proof.launcher)
        until(lambda: proof.newest() > 5, PATIENCE_S)
        proof.say("the first steps are done")
        run(proof, options.minutes)
        proof.end()
    print("\n".join(proof.problems) or "every step is that of an undisturbed training", flush=True)
    return 1 if proof.problems else 0


def run(proof: Proof, minutes: float) -> None:
    """Plant a fault a minute: each kind once, then at random."""
    faults = [
        proof.flip_reads,
        proof.preempt,
        proof.kill_a_rank,
        proof.refuse_the_record,
        proof.kill_a_slurmd,
        proof.kill_slurmctld,
    ]
    proof.cancel_a_run()
    count, end_s = 0, time.monotonic() + 60 * minutes
    while time.monotonic() < end_s:
        next_s = time.monotonic() + EVERY_S
        proof.disturb(faults[count] if count < len(faults) else proof.random.choice(faults))
        proof.check_cancelled()
        count += 1
        time.sleep(max(0.0, min(next_s, end_s) - time.monotonic()))


if __name__ == "__main__":
    sys.exit(main())
