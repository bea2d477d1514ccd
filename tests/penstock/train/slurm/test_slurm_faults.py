"""Runs on real daemons of Slurm that hold, refuse, forget or cancel them."""

import os
import re
import signal
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

import loader
from loader.errors import Conflict, EngineUnreachable
from penstock.cli import main
from penstock.compute.engines.slurm import ENDED, SlurmQueue
from penstock.nodes.control import SlurmNodes
from penstock.train.launch import slurm_job_script
from penstock.train.launch.slurm_job import SlurmJobs
from penstock.train.run_folder import RunFolder
from penstock.train.run_spec import RunSpec
from penstock.train.submitting import cancel, resume, submit
from tests.penstock.train.slurm.test_slurm_runs import kill_toys, states, wait_log
from tests.refusals import refusal
from tests.servers.patience import until
from tests.servers.slurm import Slurm

pytestmark = pytest.mark.slurm
Toy = Callable[..., RunSpec]


def newest_job(launcher: SlurmJobs) -> str:
    return launcher._jobs("big-7")[-1].job_id


def test_job_whose_first_node_is_lost_five_times_is_released(
    slurm_cluster: Slurm, launcher: SlurmJobs, toy: Toy, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit(toy(600, nodes="1"), launcher)
    job = newest_job(launcher)
    for number in range(5):
        wait_log(launcher, f"began {number}", 1)
        node = slurm_cluster.told("squeue", "-h", "-j", job, "-o", "%N").strip()
        slurm_cluster.kill_node(node)
        slurm_cluster.start_node(node)
        until(lambda: states(launcher) != ["RUNNING"])
    until(lambda: [job.reason for job in launcher._jobs("big-7")] == ["JobHoldMaxRequeue"])
    with monkeypatch.context() as patched:  # who asks first, releases
        released = list[str]()
        patched.setattr(SlurmQueue, "release", lambda queue, jobs: not released.extend(jobs))
        assert "JobHoldMaxRequeue: its first node was lost five times, and only an operator" in launcher.why(
            "big-7"
        )
        assert launcher.statuses(["big-7"])["big-7"].state == "waiting"
        launcher.submit(toy(600, nodes="1"))
        assert released == [job] * 3
    assert SlurmNodes(SlurmQueue()).release_runs() == [f"Slurm job {job}"]
    wait_log(launcher, "began 5", 1)
    assert SlurmNodes(SlurmQueue()).release_runs() == []


def test_start_that_slurm_refuses_is_no_failure_of_the_run(
    slurm_cluster: Slurm, launcher: SlurmJobs, toy: Toy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """srun refuses with one line as long as the controller is away."""
    monkeypatch.setattr(slurm_job_script, "REFUSED_S", 1)
    submit(toy(600), launcher)
    wait_log(launcher, "began 0", 2)
    slurm_cluster.wait_until_saved()
    slurm_cluster.kill_head()
    kill_toys(slurm_cluster)
    wait_log(launcher, "began no rank, 2 times in a row", 1)
    slurm_cluster.start_head()
    until(lambda: bool(slurm_cluster.told("sinfo", "-h")))
    assert re.search(r"srun has started no rank since \d\d:\d\d UTC, in [2-9] starts", launcher.why("big-7"))
    until(lambda: len(re.findall(r"began [1-9]: ", launcher.logs("big-7"))) == 2)
    until(lambda: launcher.why("big-7") == "")
    assert "it is over" not in launcher.logs("big-7")


@pytest.mark.parametrize(
    ("command", "is_cancel"),
    [
        (("scancel",), True),
        (("scancel", "--signal=TERM", "--full"), False),
        (("scancel", "--signal=USR1", "--full"), False),
        (("scancel", "--signal=USR1", "--batch"), False),
        (("scontrol", "requeue"), False),
    ],
)
def test_only_a_cancel_is_stored_as_a_persons_stop(
    slurm_cluster: Slurm, launcher: SlurmJobs, root: str, toy: Toy, command: Sequence[str], is_cancel: bool
) -> None:
    run, folder = toy(600), RunFolder(loader.Root(root).store, "big-7")
    submit(run, launcher)
    wait_log(launcher, "began 0", 2)
    slurm_cluster.told(*command, newest_job(launcher))
    if is_cancel:
        until(lambda: states(launcher)[0] in ENDED)
        assert folder.is_to_stop()
        with refusal(Conflict, what="state", where="big-7", given="stopped or cancelled"):
            submit(run, launcher)
        resume(run, launcher)
    wait_log(launcher, "began 1", 2)
    assert not folder.is_to_stop()


def test_run_that_is_resumed_at_once_after_scancel_continues(
    slurm_cluster: Slurm, launcher: SlurmJobs, root: str, toy: Toy
) -> None:
    run, folder = toy(600), RunFolder(loader.Root(root).store, "big-7")
    submit(run, launcher)
    wait_log(launcher, "began 0", 2)
    slurm_cluster.told("scancel", newest_job(launcher))
    refusals = 0

    def is_resumed() -> bool:
        nonlocal refusals
        try:
            resume(run, launcher)
        except Conflict:
            refusals += 1
            return False
        return True

    until(is_resumed)
    assert refusals
    wait_log(launcher, "began 1", 2)
    assert not folder.is_to_stop()
    assert launcher.status("big-7").state == "running"


def test_cancel_after_a_preemption_is_stored_and_the_preemption_is_not(
    slurm_cluster: Slurm, launcher: SlurmJobs, root: str, toy: Toy
) -> None:
    folder = RunFolder(loader.Root(root).store, "big-7")
    submit(toy(600, nodes="4", priority="abrupt"), launcher)
    wait_log(launcher, "began 0", 4)
    slurm_cluster.told(
        "sbatch", "--qos=high", "--nodes=4", "--exclusive", "--output=/dev/null", "--wrap=sleep 1"
    )
    wait_log(launcher, "began 1", 4)
    assert not folder.is_to_stop()
    slurm_cluster.told("scancel", newest_job(launcher))
    until(lambda: states(launcher)[0] in ENDED)
    assert folder.is_to_stop()


def test_cancelled_run_that_waits_stays_cancelled(
    slurm_cluster: Slurm, launcher: SlurmJobs, root: str, toy: Toy
) -> None:
    slurm_cluster.told("sbatch", "--nodes=4", "--exclusive", "--output=/dev/null", "--wrap=sleep 600")
    submit(toy(600), launcher)
    until(lambda: launcher.status("big-7").state == "waiting")
    slurm_cluster.told("scancel", newest_job(launcher))
    for _ in range(3):
        assert launcher.status("big-7").state == "ended"
        assert launcher.why("big-7") == ""
        assert launcher.statuses(["big-7"])["big-7"].state == "ended"
        time.sleep(0.3)
    assert states(launcher) == ["CANCELLED"]


def test_controller_that_forgets_a_cancel_starts_ranks_that_make_no_step(
    slurm_cluster: Slurm, launcher: SlurmJobs, root: str, spec: Toy
) -> None:
    """The job that it starts again is planted: how much a controller forgets depends on its luck."""
    run, folder = spec("--steps", 60, "--step-s", 0.1, nodes="1"), RunFolder(loader.Root(root).store, "big-7")
    submit(run, launcher)
    wait_log(launcher, "took", 3)
    cancel(folder, launcher)
    before = launcher.logs("big-7").count("took")
    launcher.submit(run)
    until(lambda: launcher.status("big-7").state == "ended")
    assert states(launcher)[-1] == "COMPLETED"
    assert [(event.attempt, event.name) for event in folder.events()][-1] == (2, "stopped")
    assert launcher.logs("big-7").count("took") == before


def test_list_of_runs_asks_slurm_twice(
    slurm_cluster: Slurm,
    launcher: SlurmJobs,
    root: str,
    toy: Toy,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """One squeue for the jobs that it lists, one sacct for the others, and one shell for why runs ended."""
    names, asked, answer = [f"run-{number}" for number in range(4)], Counter[str](), SlurmQueue.answer
    for name in names:
        submit(toy(600, run=name, nodes="1"), launcher)
    launcher.cancel("run-1")
    folder = RunFolder(loader.Root(root).store, "run-9")
    folder.put_spec(toy(1, run="run-9"))

    def count_command(queue: SlurmQueue, command: Sequence[str]) -> str:
        asked[next(word for word in command if word in ("squeue", "sacct", "sh"))] += 1
        return answer(queue, command)

    monkeypatch.setattr(SlurmQueue, "answer", count_command)
    assert main(["train", "ls", "--root", root, "--cluster", str(tmp_path / "cluster.toml")]) == 0
    listed = dict(line.split()[:2] for line in capsys.readouterr().out.splitlines()[1:])
    assert asked == {"squeue": 1, "sacct": 1, "sh": 1}
    assert listed.pop("run-9") == "unknown"
    assert listed.pop("run-1") == "ended"
    assert set(listed.values()) <= {"running", "waiting"}


def test_goodput_without_accounting_is_by_the_record(
    slurm_cluster: Slurm,
    launcher: SlurmJobs,
    root: str,
    spec: Toy,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    submit(spec("--steps", 20, "--step-s", 0.1, nodes="1"), launcher)
    until(lambda: launcher.status("big-7").state == "ended")
    text = slurm_cluster.conf.read_text().replace("accounting_storage/slurmdbd", "accounting_storage/none")
    for name in ("gres.conf", "topology.conf"):
        (tmp_path / name).write_bytes((slurm_cluster.folder / name).read_bytes())
    (tmp_path / "slurm.conf").write_text(text)
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "slurm.conf"))
    options = ["--root", root, "--cluster", str(tmp_path / "cluster.toml")]
    assert main(["train", "goodput", "big-7", *options]) == 0
    assert "by the record only" in capsys.readouterr().out
    with pytest.raises(EngineUnreachable, match="accounting"):
        launcher.spans("big-7")


def test_run_whose_batch_script_is_killed_continues(
    slurm_cluster: Slurm, launcher: SlurmJobs, root: str, toy: Toy
) -> None:
    """As after a lost node: its ranks save, and the job goes back to the queue."""
    submit(toy(600, ranks_per_node=2), launcher)
    wait_log(launcher, "began 0", 4)
    job = newest_job(launcher)
    (script,) = slurm_cluster.scripts()
    os.kill(script, signal.SIGKILL)
    wait_log(launcher, "began 1", 4)
    assert newest_job(launcher) == job
    assert launcher.logs("big-7").count("the batch script was killed; the job goes back to the queue") == 1
    assert not RunFolder(loader.Root(root).store, "big-7").is_to_stop()
    slurm_cluster.told("scancel", job)
    until(lambda: states(launcher)[0] in ENDED)
    assert states(launcher) == ["CANCELLED"]
