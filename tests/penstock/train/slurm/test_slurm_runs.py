"""Runs on real daemons of Slurm: each trap that loses a run, or revives one, is met here."""

import re
from collections import defaultdict
from collections.abc import Callable

import pytest

import loader
from penstock.train.launch.slurm_job import SlurmJobs
from penstock.train.run_folder import RunFolder
from penstock.train.run_spec import RunSpec
from penstock.train.submitting import goodput_of, submit
from tests.penstock.train.slurm.conftest import undisturbed
from tests.servers.slurm import Slurm, until

pytestmark = pytest.mark.slurm
Spec = Callable[..., RunSpec]


def steps_of(text: str) -> dict[int, dict[int, int]]:
    """Return step -> rank -> digest, each once."""
    out: dict[int, dict[int, int]] = defaultdict(dict)
    for rank, step, digest in re.findall(r"took (\d+) (\d+) (\d+)\n", text):
        assert int(rank) not in out[int(step)], f"step {step} is done twice"
        out[int(step)][int(rank)] = int(digest)
    return out


def wait_for_steps(launcher: SlurmJobs, n_lines: int) -> None:
    until(lambda: launcher.logs("big-7").count("took") >= n_lines, 120)


def test_preempted_run_goes_on_with_fewer_nodes(
    slurm_cluster: Slurm, launcher: SlurmJobs, root: str, spec: Spec
) -> None:
    run, steps = spec("--steps", 60, "--step-s", 0.2, nodes="2-4", grace_s=30), 60
    place = submit(run, launcher)
    assert "a preemption leaves 60 s (GraceTime 40 of QOS low, KillWait 20)" in place
    assert submit(run, launcher) == place
    wait_for_steps(launcher, 12)
    assert launcher.status("big-7").state == "running"
    slurm_cluster.told(
        "sbatch", "--qos=high", "--nodes=2", "--exclusive", "--output=/dev/null", "--wrap=sleep 40"
    )
    until(lambda: launcher.status("big-7").state == "ended", 120)
    log = launcher.logs("big-7")
    ranks = steps_of(log)
    assert [len(of_step) for of_step in ranks.values()] == sorted(
        (len(s) for s in ranks.values()), reverse=True
    )
    assert {len(of_step) for of_step in ranks.values()} == {4, 2}
    digests = {step: sum(of_step.values()) % 2**64 for step, of_step in ranks.items()}
    assert digests == undisturbed(root, steps)
    folder = RunFolder(loader.Root(root).store, "big-7")
    assert [(facts["ranks"], facts["restarts"]) for facts in folder.attempts().values()] == [(4, 0), (2, 1)]
    until(lambda: len(launcher.spans("big-7")) == 2 and bool(launcher.spans("big-7")[1].ended_us))
    spans = launcher.spans("big-7")
    assert [(span.nodes, span.state) for span in spans] == [(4, "REQUEUED"), (2, "COMPLETED")]
    for start, span in zip(goodput_of(folder, launcher), spans, strict=True):
        assert span.ended_us is not None
        assert abs(start.seconds - (span.ended_us - span.begun_us) / 1e6) < 1
        assert start.parts["unknown"] + start.parts["idle"] < 1
        assert start.lost_steps == 0
