"""The batch script on real daemons: each trap with ranks that only obey."""

import os
import re
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from loader.errors import InvalidSpec
from penstock.compute.engines.slurm import ENDED
from penstock.compute.engines.slurm_listing import named_jobs
from penstock.train.launch.slurm_job import SlurmJobs
from penstock.train.run_spec import RunSpec
from penstock.train.submitting import submit
from tests.servers.slurm import Slurm, until

pytestmark = pytest.mark.slurm
Toy = Callable[..., RunSpec]


def wait_for(launcher: SlurmJobs, text: str, times: int, seconds: float = 60) -> None:
    until(lambda: launcher.logs("big-7").count(text) >= times, seconds)


def states(launcher: SlurmJobs) -> list[str]:
    return [job.state for job in named_jobs(launcher._queue.answer, launcher._name("big-7"))]


def test_run_is_requeued_after_a_stop_and_ends_if_a_person_cancels(
    slurm_cluster: Slurm, launcher: SlurmJobs, toy: Toy
) -> None:
    """USR1 as the walltime sends it; ranks answer a cancel by 75 too, and inside the script the job is COMPLETING."""
    place = submit(toy(600, ranks_per_node=2), launcher)
    wait_for(launcher, "began 0", 4)
    job = re.findall(r"Slurm job (\d+)", place)[0]
    slurm_cluster.told("scancel", "--signal=USR1", job)
    wait_for(launcher, "began 1", 4)
    assert launcher.logs("big-7").count("heard SIGUSR1") == 4
    slurm_cluster.told("scancel", job)
    until(lambda: states(launcher)[0] in ENDED)
    assert launcher.logs("big-7").count("heard SIGTERM") == 4
    assert states(launcher) == ["CANCELLED"]
    assert launcher.status("big-7").state == "ended"
    ports = set(re.findall(r"on m\d (127.0.0.1:\d+)", launcher.logs("big-7")))
    assert len(ports) == 2, "each start meets at a port of its own"


def test_run_is_requeued_by_slurm_without_a_grace(
    slurm_cluster: Slurm, launcher: SlurmJobs, toy: Toy
) -> None:
    place = submit(toy(600, nodes="4", priority="abrupt", grace_s=60), launcher)
    assert place.endswith(
        "a preemption leaves 20 s (GraceTime 0 of QOS abrupt, KillWait 20): less than grace_s = 60"
    )
    wait_for(launcher, "began 0", 4)
    slurm_cluster.told(
        "sbatch", "--qos=high", "--nodes=4", "--exclusive", "--output=/dev/null", "--wrap=sleep 3"
    )
    wait_for(launcher, "began 1", 4)
    assert launcher.logs("big-7").count("heard SIGTERM") == 4


def test_run_hears_the_end_of_its_walltime(slurm_cluster: Slurm, launcher: SlurmJobs, toy: Toy) -> None:
    submit(toy(600, walltime_s=60, grace_s=45), launcher)
    wait_for(launcher, "began 1", 2, 150)
    assert launcher.logs("big-7").count("heard SIGUSR1") == 2


def test_run_that_saves_after_its_walltime_is_requeued(
    slurm_cluster: Slurm, launcher: SlurmJobs, toy: Toy
) -> None:
    """The signal before the end may come while no rank listens; then SIGTERM is the first that they hear."""
    run = toy(600, walltime_s=60)
    options = [option for option in launcher._options(run) if not option.startswith("--signal")]
    launcher._queue.submit(launcher._script(run), options)
    wait_for(launcher, "began 1", 2, 150)
    assert launcher.logs("big-7").count("heard SIGTERM") == 2


def test_run_that_fails_twice_alike_ends(launcher: SlurmJobs, toy: Toy) -> None:
    submit(toy(0, "planted"), launcher)
    until(lambda: states(launcher)[0] in ENDED, 90)
    log = launcher.logs("big-7")
    assert (log.count("began 0"), log.count("began 1")) == (2, 2)
    assert "begins again in 10 s" in log
    assert "failed twice at one step with the same last line" in log
    assert states(launcher) == ["FAILED"]


def test_stop_while_a_failed_run_waits_requeues_it(
    slurm_cluster: Slurm, launcher: SlurmJobs, toy: Toy
) -> None:
    submit(toy(0, "planted", nodes="4", priority="abrupt"), launcher)
    wait_for(launcher, "begins again in 10 s", 1)
    slurm_cluster.told(
        "sbatch", "--qos=high", "--nodes=4", "--exclusive", "--output=/dev/null", "--wrap=sleep 3"
    )
    until(lambda: "PENDING" in states(launcher))
    launcher.cancel("big-7")


def test_controller_that_dies_loses_no_stop(slurm_cluster: Slurm, launcher: SlurmJobs, toy: Toy) -> None:
    submit(toy(600), launcher)
    wait_for(launcher, "began 0", 2)
    state = slurm_cluster.folder / "state" / "job_state"
    until(lambda: launcher._name("big-7").encode() in state.read_bytes())  # else it is forgotten
    slurm_cluster.kill_head()
    for pid in slurm_cluster.processes():
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        if words[1:2] and words[1].endswith(b"toy.py"):
            os.kill(pid, signal.SIGUSR1)
    wait_for(launcher, "heard SIGUSR1", 2)
    slurm_cluster.start_head()
    wait_for(launcher, "began 1", 2)


def test_node_that_dies_requeues_the_run(slurm_cluster: Slurm, launcher: SlurmJobs, toy: Toy) -> None:
    submit(toy(600, nodes="3"), launcher)
    wait_for(launcher, "began 0", 3)
    slurm_cluster.kill_node("m2")
    try:
        wait_for(launcher, "began 1", 3, 120)
        assert "m4" in launcher.logs("big-7").partition("began 1")[2]
    finally:
        slurm_cluster.start_node("m2")
    until(lambda: slurm_cluster.told("sinfo", "-h", "-n", "m2", "-o", "%T").strip() in ("idle", "mixed"))


def test_two_submits_at_once_leave_one_job(slurm_cluster: Slurm, launcher: SlurmJobs, toy: Toy) -> None:
    slurm_cluster.told("sbatch", "--nodes=4", "--exclusive", "--output=/dev/null", "--wrap=sleep 600")
    run = toy(600)
    with ThreadPoolExecutor() as threads:
        places = list(threads.map(lambda _: launcher.submit(run), range(4)))
    alive = [state for state in states(launcher) if state not in ENDED]
    assert alive == ["PENDING"]
    assert len(set(places)) == 1


def test_secrets_reach_neither_slurm_nor_the_script(
    slurm_cluster: Slurm, launcher: SlurmJobs, toy: Toy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_HERE", "PLANTEDsecretPLANTED")
    run = toy(600, env={"ODD": "it's $HOME `x`\n2"})
    assert "PLANTED" not in launcher.describe(run)
    submit(run, launcher)
    wait_for(launcher, "began 0", 2)
    files = [path for path in slurm_cluster.folder.rglob("*") if path.is_file()]
    assert not [path for path in files if b"PLANTED" in path.read_bytes()]
    environments = [Path(f"/proc/{pid}/environ").read_bytes() for pid in slurm_cluster.processes()]
    assert any(b"ODD=it's $HOME `x`\n2\0" in one and b"SECRET=PLANTED" in one for one in environments)


def test_scheduler_checks_a_run_and_starts_nothing(launcher: SlurmJobs, toy: Toy) -> None:
    assert re.search(r"Job \d+ to start at .* on nodes m\[1-2\] in partition batch", launcher.check(toy(1)))
    with pytest.raises(
        InvalidSpec, match=r"big-7: Slurm refuses the job: .*Requested node configuration is not available"
    ):
        launcher.check(toy(1, gpus_per_node=5))
    with pytest.raises(InvalidSpec, match=r"priority = 'urgent'; accepted: .*low, abrupt, high"):
        launcher.check(toy(1, priority="urgent"))
    assert states(launcher) == []
    assert launcher.status("big-7").state == "unknown"
