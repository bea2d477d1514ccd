"""`penstock usage` on real daemons: a run and another user's job, against Slurm's own sums."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.cli import main
from penstock.train.launch.slurm_job import SlurmJobs
from penstock.train.run_spec import RunSpec
from penstock.train.submitting import submit
from tests.servers.patience import until
from tests.servers.slurm import Slurm

pytestmark = pytest.mark.slurm


def test_usage_adds_up_to_the_accounting(
    slurm_cluster: Slurm,
    launcher: SlurmJobs,
    root: str,
    spec: Callable[..., RunSpec],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    plain = ["--job-name=a|b\nc", "--gres=gpu:fake:1", "--output=/dev/null", "--wrap=sleep 3"]
    slurm_cluster.told("sbatch", "--qos=low", *plain)
    submit(spec("--steps", 20, "--step-s", 0.1, nodes="2", gpus_per_node=2, walltime_s=600), launcher)
    until(lambda: launcher.status("big-7").state == "ended")
    until(lambda: not slurm_cluster.told("squeue", "--noheader", "--all").strip())
    until(
        lambda: all(span.ended_us for span in launcher.spans("big-7"))
    )  # the accounting hears of an end later
    options = ["--root", root, "--cluster", str(tmp_path / "cluster.toml"), "--since", "1h", "--json"]
    assert main(["usage", *options, "--by", "run"]) == 0
    body = json.loads(capsys.readouterr().out)
    rows = {row["name"]: row for row in body["rows"]}
    (span,) = launcher.spans("big-7")
    assert span.ended_us is not None
    hours = (span.ended_us - span.begun_us) / 3.6e9
    assert rows["big-7"]["allocated"] == pytest.approx(4 * hours, abs=0.002)
    assert rows["big-7"]["asked"] == pytest.approx(4 * 600 / 3600, abs=0.002)
    assert rows["big-7"]["node_hours"] == pytest.approx(2 * hours, abs=0.002)
    assert 0 < rows["big-7"]["new_steps"] < rows["big-7"]["allocated"]
    sums = slurm_cluster.told(
        *("env", "TZ=UTC", "sacct", "-D", "-X", "-a", "-n", "-P", "-S", "now-1hours"),
        *("-o", "ElapsedRaw,AllocTRES", "--delimiter", " "),
    )
    gpu_s = 0
    for row in sums.splitlines():
        seconds, _, tres = row.partition(" ")
        counts = dict(pair.split("=") for pair in tres.split(",") if pair)
        gpu_s += int(seconds) * int(counts.get("gres/gpu", 0))
    assert body["total"]["allocated"] == pytest.approx(gpu_s / 3600, abs=0.004)
    assert main(["usage", *options, "--by", "dataset"]) == 0
    assert "points@1" in {row["name"] for row in json.loads(capsys.readouterr().out)["rows"]}


def test_each_failure_inside_an_allocation_counts_and_its_back_off_has_a_name(
    slurm_cluster: Slurm,
    launcher: SlurmJobs,
    root: str,
    spec: Callable[..., RunSpec],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A run that fails twice at one step: one line of sacct, two failures, and 10 s between them."""
    submit(spec("--steps", 20, "--fail-at", 5, nodes="2"), launcher)
    until(lambda: launcher.status("big-7").state == "ended")
    until(lambda: not slurm_cluster.told("squeue", "--noheader", "--all").strip())
    until(
        lambda: all(span.ended_us for span in launcher.spans("big-7"))
    )  # the accounting hears of an end later
    options = ["--root", root, "--cluster", str(tmp_path / "cluster.toml"), "--json"]
    assert main(["usage", *options, "--since", "1h", "--by", "run"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)["rows"]}
    (span,) = launcher.spans("big-7")
    assert span.ended_us is not None
    assert (span.state, len(span.starts), rows["big-7"]["failures"]) == ("FAILED", 2, 2)
    assert main(["train", "goodput", "big-7", *options]) == 0
    body = json.loads(capsys.readouterr().out)
    first, second = body["starts"]
    assert 9 <= first["parts"]["back-off"] < 60
    parts_s = sum(first["parts"].values()) + sum(second["parts"].values())
    assert parts_s == pytest.approx((span.ended_us - span.begun_us) / 1e6)
