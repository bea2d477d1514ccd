"""Runs on real daemons of Slurm: a preempted one goes on with fewer nodes; each trap with ranks that only obey."""

import json
import os
import re
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

import loader
from loader.errors import InvalidSpec
from penstock.cli import main
from penstock.compute.cluster import Cluster, TrainSettings
from penstock.compute.engines.slurm import ENDED
from penstock.compute.engines.slurm_listing import list_jobs
from penstock.train.code.snapshot import with_code
from penstock.train.goodput.run_usage import run_goodput
from penstock.train.launch import slurm_job_script
from penstock.train.launch.slurm_job import SlurmJobs
from penstock.train.run_folder import RunFolder
from penstock.train.run_spec import RunSpec
from penstock.train.submitting import resume, submit
from tests.penstock.train.slurm.conftest import reference_digests
from tests.refusals import refusal
from tests.servers.patience import until
from tests.servers.processes import command_line, end, environment_bytes
from tests.servers.slurm import Slurm

pytestmark = pytest.mark.slurm
Toy = Callable[..., RunSpec]
TOY = Path(__file__).with_name("toy.py")


def wait_log(launcher: SlurmJobs, text: str, times: int) -> None:
    until(lambda: launcher.logs("big-7").count(text) >= times, lambda: launcher.logs("big-7"))


def toys(slurm_cluster: Slurm) -> list[int]:
    """Return the ranks that only obey."""
    toy = [str(TOY).encode()]
    return [pid for pid in slurm_cluster.processes() if command_line(pid).split(b"\0")[1:2] == toy]


def kill_toys(slurm_cluster: Slurm) -> None:
    for pid in toys(slurm_cluster):
        end(pid)


def states(launcher: SlurmJobs) -> list[str]:
    return [job.state for job in list_jobs(launcher._queue.answer, launcher._name("big-7"))]


def step_digests(text: str) -> dict[int, dict[int, int]]:
    """Return step -> rank -> digest, each once."""
    out: dict[int, dict[int, int]] = defaultdict(dict)
    for rank, step, digest in re.findall(r"took (\d+) (\d+) (\d+)\n", text):
        assert int(rank) not in out[int(step)], f"step {step} is done twice"
        out[int(step)][int(rank)] = int(digest)
    return out


def test_preempted_run_goes_on_with_fewer_nodes(
    slurm_cluster: Slurm, launcher: SlurmJobs, root: str, spec: Toy
) -> None:
    run, steps = spec("--steps", 60, "--step-s", 0.1, nodes="1-2", grace_s=30), 60
    place = submit(run, launcher)
    assert "a preemption leaves 60 s (GraceTime 40 of QOS low, KillWait 20)" in place
    assert submit(run, launcher) == place
    wait_log(launcher, "took", 8)
    assert launcher.status("big-7").state == "running"
    slurm_cluster.told(
        "sbatch", "--qos=high", "--nodes=3", "--exclusive", "--output=/dev/null", "--wrap=sleep 600"
    )
    until(lambda: launcher.status("big-7").state == "ended")
    log = launcher.logs("big-7")
    ranks = step_digests(log)
    assert [len(of_step) for of_step in ranks.values()] == sorted(
        (len(s) for s in ranks.values()), reverse=True
    )
    assert {len(of_step) for of_step in ranks.values()} == {2, 1}
    digests = {step: sum(of_step.values()) % 2**64 for step, of_step in ranks.items()}
    assert digests == reference_digests(root, steps)
    folder = RunFolder(loader.Root(root).store, "big-7")
    assert [(facts["ranks"], facts["restarts"]) for facts in folder.attempts().values()] == [(2, 0), (1, 1)]
    until(lambda: len(launcher.spans("big-7")) == 2 and bool(launcher.spans("big-7")[1].ended_us))
    spans = launcher.spans("big-7")
    assert [(span.nodes, span.state) for span in spans] == [(2, "REQUEUED"), (1, "COMPLETED")]
    for start, span in zip(run_goodput(folder, launcher), spans, strict=True):
        assert span.ended_us is not None
        assert abs(start.seconds - (span.ended_us - span.begun_us) / 1e6) < 1
        assert start.parts["unknown"] + start.parts["idle"] < 1
        assert start.lost_steps == 0


def test_run_is_requeued_after_a_stop_and_ends_if_a_person_cancels(
    slurm_cluster: Slurm, launcher: SlurmJobs, toy: Toy
) -> None:
    """USR1 as the walltime sends it; ranks answer a cancel by 75 too, and inside the script the job is COMPLETING."""
    place = submit(toy(600, ranks_per_node=2), launcher)
    wait_log(launcher, "began 0", 4)
    job = re.findall(r"Slurm job (\d+)", place)[0]
    slurm_cluster.told("scancel", "--signal=USR1", job)
    wait_log(launcher, "began 1", 4)
    assert launcher.logs("big-7").count("heard SIGUSR1") == 4
    slurm_cluster.told("scancel", job)
    until(lambda: states(launcher)[0] in ENDED)
    assert launcher.logs("big-7").count("heard SIGTERM") == 4
    assert states(launcher) == ["CANCELLED"]
    assert launcher.status("big-7").state == "ended"
    ports = set(re.findall(r"on m\d (127.0.0.1:\d+)", launcher.logs("big-7")))
    assert len(ports) == 2, "each start meets at a port of its own"
    of_rank = launcher.logs("big-7", rank=3)
    assert re.findall(r"began (\d): 3 of 4", of_rank) == ["0", "1"]
    assert of_rank.startswith("began 0")
    second = launcher.logs("big-7", start=1)
    assert ("began 0" in second, second.count("began 1")) == (False, 4)
    assert launcher.logs("big-7", rank=3, start=0).startswith("began 0: 3 of 4")
    resume(toy(600, ranks_per_node=2), launcher)
    wait_log(launcher, "began 2", 4)  # restarts count on


def test_copy_of_the_code_reaches_every_node(launcher: SlurmJobs, toy: Toy, tmp_path: Path) -> None:
    (tmp_path / "project").mkdir()
    script = tmp_path / "project" / "train.py"
    script.write_text(TOY.read_text())
    command = (sys.executable, "train.py", "0.1")
    submit(with_code(replace(toy(), command=command), script.parent, stored=True), launcher)
    script.write_text("raise ValueError('the copy is not used')")
    until(lambda: launcher.status("big-7").state == "ended", lambda: launcher.logs("big-7"))
    assert launcher.logs("big-7").count("done\n") == 2, launcher.logs("big-7")
    assert launcher.status("big-7").exit_status == 0


def test_changed_file_goes_on_in_a_job_of_its_own(
    slurm_cluster: Slurm, launcher: SlurmJobs, toy: Toy
) -> None:
    """The first job ends after its stop, and is not requeued; the second has the new walltime and variables."""
    first = toy(600)
    place = submit(first, launcher)
    wait_log(launcher, "began 0", 2)
    changed = replace(first, walltime_s=7200, srun=("--cpu-bind=none",), env={"CHANGED": "yes"})
    assert "its next start has the changed file: Slurm job" in submit(changed, launcher)
    assert "changed file" not in submit(changed, launcher), "it is found"
    assert launcher.why("big-7") == ""
    job = re.findall(r"Slurm job (\d+)", place)[0]
    slurm_cluster.told("scancel", "--signal=USR1", job)
    wait_log(launcher, "began 1", 2)
    assert launcher.logs("big-7").count("has a changed file of the run, and goes on") == 1
    (pid, *_) = toys(slurm_cluster)
    assert b"CHANGED=yes" in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    running = [
        one for one in list_jobs(launcher._queue.answer, launcher._name("big-7")) if one.state == "RUNNING"
    ]
    assert [one.limit for one in running] == ["2:00:00"]
    assert running[0].job_id != job


def test_run_is_requeued_by_slurm_without_a_grace(
    slurm_cluster: Slurm, launcher: SlurmJobs, toy: Toy
) -> None:
    place = submit(toy(600, nodes="4", priority="abrupt", grace_s=60), launcher)
    assert place.endswith(
        "a preemption leaves 20 s (GraceTime 0 of QOS abrupt, KillWait 20): less than grace_s = 60"
    )
    wait_log(launcher, "began 0", 4)
    slurm_cluster.told(
        "sbatch", "--qos=high", "--nodes=4", "--exclusive", "--output=/dev/null", "--wrap=sleep 3"
    )
    wait_log(launcher, "began 1", 4)
    assert launcher.logs("big-7").count("heard SIGTERM") == 4


def test_run_hears_the_end_of_its_walltime(slurm_cluster: Slurm, launcher: SlurmJobs, toy: Toy) -> None:
    submit(toy(600, walltime_s=60, grace_s=45), launcher)
    wait_log(launcher, "began 1", 2)
    assert launcher.logs("big-7").count("heard SIGUSR1") == 2


def test_run_that_saves_after_its_walltime_is_requeued(
    slurm_cluster: Slurm, launcher: SlurmJobs, toy: Toy
) -> None:
    """The signal before the end may come while no rank listens; then SIGTERM is the first that they hear."""
    run = toy(600, walltime_s=60)
    options = [option for option in launcher._options(run) if not option.startswith("--signal")]
    launcher._queue.submit(launcher._script(run), options)
    wait_log(launcher, "began 1", 2)
    assert launcher.logs("big-7").count("heard SIGTERM") == 2


def test_run_that_fails_twice_alike_ends(launcher: SlurmJobs, toy: Toy) -> None:
    submit(toy(0, "planted"), launcher)
    until(lambda: states(launcher)[0] in ENDED)
    log = launcher.logs("big-7")
    # The first rank that fails may end the other before its line.
    assert set(re.findall("began [0-9]", log)) == {"began 0", "began 1"}
    assert "restarts in 10 s" in log
    assert "failed twice alike without a step between" in log
    assert states(launcher) == ["FAILED"]


def test_stop_while_a_failed_run_waits_requeues_it(
    slurm_cluster: Slurm, launcher: SlurmJobs, toy: Toy
) -> None:
    submit(toy(0, "planted", nodes="4", priority="abrupt"), launcher)
    wait_log(launcher, "restarts in 10 s", 1)
    slurm_cluster.told(
        "sbatch", "--qos=high", "--nodes=4", "--exclusive", "--output=/dev/null", "--wrap=sleep 3"
    )
    until(lambda: "PENDING" in states(launcher))
    launcher.cancel("big-7")


def test_controller_that_dies_loses_no_stop(slurm_cluster: Slurm, launcher: SlurmJobs, toy: Toy) -> None:
    submit(toy(600), launcher)
    wait_log(launcher, "began 0", 2)
    slurm_cluster.wait_until_saved()
    slurm_cluster.kill_head()
    for pid in toys(slurm_cluster):
        os.kill(pid, signal.SIGUSR1)
    wait_log(launcher, "heard SIGUSR1", 2)
    slurm_cluster.start_head()
    wait_log(launcher, "began 1", 2)


def test_node_that_dies_requeues_the_run(slurm_cluster: Slurm, launcher: SlurmJobs, toy: Toy) -> None:
    submit(toy(600, nodes="3"), launcher)
    wait_log(launcher, "began 0", 3)
    slurm_cluster.kill_node("m2")
    try:
        wait_log(launcher, "began 1", 3)
        assert "m4" in launcher.logs("big-7").partition("began 1")[2]
    finally:
        slurm_cluster.start_node("m2")
    until(lambda: slurm_cluster.told("sinfo", "-h", "-n", "m2", "-o", "%T").strip() in ("idle", "mixed"))


def test_node_that_is_back_before_it_is_down_requeues_the_run(
    slurm_cluster: Slurm, launcher: SlurmJobs, toy: Toy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """srun waits for ever for its ranks, which Slurm does not miss (ReturnToService=2)."""
    monkeypatch.setattr(slurm_job_script, "LOST_S", 6)
    monkeypatch.setattr(slurm_job_script, "CHECK_S", 1)
    submit(toy(600, nodes="3"), launcher)
    wait_log(launcher, "began 0", 3)
    slurm_cluster.kill_node("m2")
    slurm_cluster.start_node("m2")
    kill_toys(slurm_cluster)  # ranks whose peers are lost fail
    wait_log(launcher, "began 1", 3)
    assert "failed 6 s ago, and srun still waits for others" in launcher.logs("big-7")


def test_run_that_slurm_may_not_requeue_ends(
    slurm_cluster: Slurm, cluster: Cluster, root: str, toy: Toy
) -> None:
    """It gives its nodes back after a minute of refusals."""
    launcher = SlurmJobs(root, replace(cluster, train=TrainSettings(options=("--no-requeue",))))
    place = submit(toy(600), launcher)
    wait_log(launcher, "began 0", 2)
    slurm_cluster.told("scancel", "--signal=USR1", re.findall(r"Slurm job (\d+)", place)[0])
    until(lambda: states(launcher)[0] in ENDED)
    assert "Slurm does not requeue the job; submit the run again" in launcher.logs("big-7")


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
    wait_log(launcher, "began 0", 2)
    for path in slurm_cluster.folder.rglob("*"):
        with suppress(FileNotFoundError, IsADirectoryError, OSError):  # daemons replace their files
            assert b"PLANTED" not in path.read_bytes(), path
    # Processes may end meanwhile: the scripts wait by `sleep`.
    environments = [environment_bytes(pid) for pid in slurm_cluster.processes()]
    assert any(b"ODD=it's $HOME `x`\n2\0" in one and b"SECRET=PLANTED" in one for one in environments)


def test_scheduler_checks_a_run_and_starts_nothing(launcher: SlurmJobs, toy: Toy) -> None:
    assert re.search(r"Job \d+ to start at .* on nodes m\[1,3\] in partition batch", launcher.check(toy(1)))
    with pytest.raises(
        InvalidSpec, match=r"big-7: Slurm refuses the job: .*Requested node configuration is not available"
    ):
        launcher.check(toy(1, gpus_per_node=5))
    with refusal(InvalidSpec, what="priority", where="big-7", given="urgent"):
        launcher.check(toy(1, priority="urgent"))
    assert states(launcher) == []
    assert launcher.status("big-7").state == "unknown"


def test_verbs_find_a_run_by_its_clusters_file(
    slurm_cluster: Slurm, launcher: SlurmJobs, root: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = json.dumps([sys.executable, str(Path(__file__).with_name("toy.py")), "600"])
    (tmp_path / "run.toml").write_text(
        f'run = "big-7"\ncommand = {command}\nnodes = "4"\nrecord = "{root}"\n'
    )
    cluster, file = ("--cluster", str(tmp_path / "cluster.toml")), str(tmp_path / "run.toml")
    slurm_cluster.told("sbatch", "--exclusive", "--output=/dev/null", "--wrap=sleep 600")
    until(lambda: "RUNNING" in slurm_cluster.told("squeue", "-h", "-o", "%T"))

    def penstock(*words: str) -> str:
        assert main(["train", *words, *cluster]) == 0
        return capsys.readouterr().out

    script = penstock("submit", file, "--dry-run")
    assert script.startswith("sbatch --requeue --job-name=pk-")
    assert subprocess.run(["bash", "-n"], input=script, text=True, check=False).returncode == 0
    assert "to start at" in penstock("submit", file, "--dry-run=server")
    assert not launcher._jobs("big-7")
    assert "in partition batch" in penstock("submit", file)
    until(lambda: "Resources" in penstock("why", "big-7", "--root", root))
    assert "Resources: all nodes that fit are busy" in penstock("show", "big-7", "--root", root)
    assert "waiting" in penstock("ls", "--root", root)
    assert "was ended" in penstock("cancel", "big-7", "--root", root)
    assert "nothing was written" in penstock("logs", "big-7", "--root", root)
    assert "ended" in penstock("ls", "--root", root)


def test_run_hears_the_user_signal_of_a_preemption(
    slurm_cluster: Slurm, launcher: SlurmJobs, toy: Toy
) -> None:
    before = slurm_cluster.conf.read_text()
    slurm_cluster.conf.write_text(f"{before}SlurmctldParameters=preempt_send_user_signal\n")
    slurm_cluster.told("scontrol", "reconfigure")
    try:
        submit(toy(600, nodes="4"), launcher)
        wait_log(launcher, "began 0", 4)
        slurm_cluster.told(
            "sbatch", "--qos=high", "--nodes=4", "--exclusive", "--output=/dev/null", "--wrap=sleep 3"
        )
        wait_log(launcher, "began 1", 4)
        assert launcher.logs("big-7").count("heard SIGUSR1") == 4
    finally:
        slurm_cluster.conf.write_text(before)
        slurm_cluster.told("scontrol", "reconfigure")


def test_ranks_follow_the_switches(launcher: SlurmJobs, toy: Toy) -> None:
    submit(toy(0, nodes="4", ranks_per_node=2), launcher)
    wait_log(launcher, "done", 8)
    places = dict(re.findall(r"began 0: (\d) of 8 on (m\d)", launcher.logs("big-7")))
    assert [places[str(rank)] for rank in range(8)] == ["m1", "m1", "m3", "m3", "m2", "m2", "m4", "m4"]
