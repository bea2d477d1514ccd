"""A training run on a Slurm without accounting: it starts, is found, cancelled; only its times are missing."""

import sys
from pathlib import Path

import pytest

import loader
from loader.errors import EngineUnreachable
from penstock.compute.cluster import read_cluster
from penstock.train.launch.slurm_job import SlurmJobs
from penstock.train.run_spec import RunSpec
from penstock.train.submitting import submit
from tests.compute.job_checks import REPOSITORY
from tests.servers.patience import until

pytestmark = pytest.mark.slurm
TOY = str(Path(REPOSITORY, "tests/penstock/train/slurm/toy.py"))


def test_run_needs_no_accounting(slurm_cluster, tmp_path):
    (tmp_path / "logs").mkdir()
    (tmp_path / "cluster.toml").write_text(f'engine = "slurm"\nlogs = "{tmp_path}/logs"\n')
    root = loader.Root(tmp_path / "root").url
    launcher = SlurmJobs(root, read_cluster(tmp_path / "cluster.toml"))
    run = RunSpec(run="big-7", command=(sys.executable, TOY, "600"), nodes="2", record=root)
    assert launcher.status("big-7").state == "unknown"
    place = submit(run, launcher)
    assert place.startswith("Slurm job ")
    assert "preemption" not in place
    until(lambda: launcher.logs("big-7").count("began") == 2)
    assert submit(run, launcher) == place
    launcher.cancel("big-7")
    assert launcher.status("big-7").place.endswith("CANCELLED")
    with pytest.raises(EngineUnreachable, match="accounting"):
        launcher.spans("big-7")
