"""deploy/slurm: read by Slurm's own daemons and commands, and held to what penstock's cluster file and verbs name."""

import configparser
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import loader
from penstock.cli import parser
from penstock.compute.cluster import read_cluster
from penstock.train.launch.slurm_job import SlurmJobs
from penstock.train.submitting import record_launcher
from tests.servers.patience import until
from tests.servers.slurm import NODES, Slurm

SLURM = Path(__file__).resolve().parents[2] / "deploy" / "slurm"
SCRIPTS = ("accounts.sh", "penstock-cache.sh", "penstock-check.sh")


def lines(name: str) -> list[str]:
    """Return the lines of a file without comments."""
    return [line for line in (SLURM / name).read_text().splitlines() if line and not line.startswith("#")]


@pytest.mark.parametrize("name", SCRIPTS)
def test_script_is_a_program_that_sh_reads(name: str) -> None:
    assert (SLURM / name).stat().st_mode & 0o111
    subprocess.run(["sh", "-n", str(SLURM / name)], check=True)


def test_check_ends_well_whatever_it_finds(tmp_path: Path) -> None:
    """A Prolog that fails drains its node: penstock's watcher does so, within its caps."""
    script = (SLURM / "penstock-check.sh").read_text()
    (tmp_path / "environment").write_text("PENSTOCK_ROOT=memory://x\n")
    for command in ("false", "exit 2", "kill -9 $$", "nothing-of-this-name"):
        (tmp_path / "penstock").write_text(f"#!/bin/sh\n{command}\n")
        (tmp_path / "penstock").chmod(0o755)
        own = script.replace("/etc/penstock", str(tmp_path)).replace("/opt/penstock/.venv/bin", str(tmp_path))
        assert subprocess.run(["sh", "-c", own], capture_output=True).returncode == 0, command


def test_programs_call_verbs_of_penstock() -> None:
    unit = configparser.RawConfigParser(strict=False)
    unit.read(SLURM / "penstock-node-watch.service")
    (check,) = [line for line in lines("penstock-check.sh") if "bin/penstock" in line]
    commands = [unit["Service"]["ExecStart"], check.removeprefix("timeout 50 ").removesuffix(" || true")]
    for command in commands:
        program, *words = shlex.split(command)
        assert program == "/opt/penstock/.venv/bin/penstock"
        assert parser().parse_args(words).cluster == "/etc/penstock/cluster.toml"


def test_priorities_and_account_are_those_that_are_made() -> None:
    cluster = read_cluster(SLURM / "cluster.toml")
    text = (SLURM / "accounts.sh").read_text()
    qos = set(re.findall(r"(?:add|modify) qos (\w+)", text))
    assert set(cluster.priorities.values()) == qos
    assert f" {cluster.account} " in text or f"{cluster.account};" in text
    assert isinstance(record_launcher("memory://x", cluster), SlurmJobs)
    assert "{node}" in cluster.train.on_node, "else the watcher can prove nothing"
    settings = dict(line.split("=", 1) for line in lines("penstock.conf"))
    assert {settings["Prolog"], settings["HealthCheckProgram"]} == {"/etc/slurm/penstock-check.sh"}
    limit_s = int(re.search(r"timeout (\d+)", (SLURM / "penstock-check.sh").read_text())[1])  # type: ignore[index]
    assert limit_s < 60, "after which Slurm kills it"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Slurm]:
    """Four nodes with the settings of deploy/, whose check finds a fault on every node."""
    slurm = Slurm(tmp_path, accounts=True)
    root = loader.Root(tmp_path / "root")
    with root.write("points") as writer:
        writer.add("a", {"cls": 1})
    (tmp_path / "environment").write_text(f"PENSTOCK_ROOT={root.url}\n")
    (tmp_path / "cluster.toml").write_text(
        'engine = "slurm"\n[train.checks.planted]\ncommand = ["sh", "-c", "echo planted; exit 2"]\n'
    )
    check = (SLURM / "penstock-check.sh").read_text().replace("/etc/penstock", str(tmp_path))
    (tmp_path / "check.sh").write_text(check.replace("/opt/penstock/.venv", sys.prefix))
    (tmp_path / "check.sh").chmod(0o755)
    settings = (SLURM / "penstock.conf").read_text()
    own = settings.replace("/etc/slurm/penstock-check.sh", str(tmp_path / "check.sh"))
    (tmp_path / "penstock.conf").write_text(own)
    slurm.conf.write_text(f"{slurm.conf.read_text()}Include {tmp_path}/penstock.conf\n")
    try:
        slurm.start()
        yield slurm
    finally:
        slurm.stop()


@pytest.mark.slurm
def test_slurm_takes_the_settings_and_drains_nothing_for_a_check_that_fails(
    cluster: Slurm, tmp_path: Path
) -> None:
    for _ in range(2):  # the second time everything is there
        made = subprocess.run(
            ["sh", str(SLURM / "accounts.sh")], env=cluster.environment, capture_output=True, text=True
        )
        assert made.returncode == 0, made.stdout + made.stderr
    qos = dict(
        line.split("|", 1)
        for line in cluster.told(
            "sacctmgr", "-nP", "show", "qos", "format=name,priority,preempt,preemptmode,gracetime"
        ).splitlines()
    )
    assert qos["low"] == "1||requeue|00:03:00"
    assert qos["normal"] == "100|low|requeue|00:03:00"
    assert qos["high"].startswith("1000|low,normal|")
    accounts = cluster.told("sacctmgr", "-nP", "show", "assoc", "format=account,user,grptres,qos")
    for team in ("team-a", "team-b"):
        assert f"{team}||gres/gpu=64|high,low,normal" in accounts.splitlines()
    config = cluster.told("scontrol", "show", "config")
    for line in lines("penstock.conf"):
        key, value = line.split("=", 1)
        if "/" not in value or key in ("PreemptType", "PriorityType"):
            shown = re.search(rf"^{key}\s*= (.*)$", config, re.M | re.I)
            assert shown, key
            for word in value.split(","):
                assert word.lower() in shown[1].lower(), (key, shown[1])
    checks = loader.Root(tmp_path / "root").store
    found = lambda: {info.key.split("/")[2].split("-")[1] for info in checks.list("nodes/checks/")}  # noqa: E731
    until(lambda: found() == set(NODES))
    assert cluster.told("sbatch", "--wait", "--wrap", "true", "-o", "/dev/null", "-A", "team").startswith(
        "Submitted"
    )
    assert not cluster.told("sinfo", "-h", "-t", "drain", "-o", "%D").strip()
    # The job's node completes it for a moment after `sbatch --wait` has ended.
    until(lambda: cluster.told("sinfo", "-h", "-t", "idle", "-o", "%D").strip() == "4")
