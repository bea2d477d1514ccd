"""The Prolog that starts a node's server of pages, on four nodes of Slurm."""

import getpass
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from loader.cache.peers.lifetime import live_server
from tests.servers.patience import until
from tests.servers.ports import free_port
from tests.servers.slurm import NODES, Slurm

pytestmark = pytest.mark.slurm
REPOSITORY = Path(__file__).resolve().parents[2]
TOKEN = "a-token-of-these-tests"


def adapt_prolog(folder: Path) -> str:
    """Return the script for nodes that share this machine: each has its own folder, port and log."""
    user_of_trainings = "env"
    if os.geteuid() == 0:
        user_of_trainings = f"runuser -u {getpass.getuser()} --"
    replacements = {
        "/etc/penstock/environment": f"{folder}/environment",
        "runuser -u penstock --": user_of_trainings,
        "/opt/penstock/.venv/bin/penstock": f"{folder}/penstock",
        "/nvme/penstock": f"{folder}/cache-$SLURMD_NODENAME",
        "/var/log/penstock-cache.log": f"{folder}/log-$SLURMD_NODENAME",
        "0.0.0.0:7070": f"127.0.0.1:$(cat {folder}/port-$SLURMD_NODENAME)",
    }
    script = (REPOSITORY / "deploy/slurm/penstock-cache.sh").read_text()
    for text, replacement in replacements.items():
        assert text in script
        script = script.replace(text, replacement)
    return script


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Slurm]:
    (tmp_path / "environment").write_text(f"PENSTOCK_CACHE_TOKEN={TOKEN}\n")
    command = tmp_path / "penstock"
    command.write_text(f'#!/bin/sh\ncd {REPOSITORY} && exec {sys.executable} -m penstock "$@"\n')
    command.chmod(0o755)
    prolog = tmp_path / "prolog"
    prolog.write_text(adapt_prolog(tmp_path))
    prolog.chmod(0o755)
    for node in NODES:
        (tmp_path / f"port-{node}").write_text(str(free_port()))
    (tmp_path / "slurm").mkdir()
    cluster = Slurm(tmp_path / "slurm")
    with cluster.conf.open("a") as conf:
        conf.write(f"Prolog={prolog}\nPrologFlags=Alloc\n")
    try:
        cluster.start()
        yield cluster
    finally:
        for node in NODES:
            server = live_server(str(tmp_path / f"cache-{node}"))
            if server is not None:
                os.kill(server.pid, signal.SIGKILL)
        cluster.stop()


def test_prolog_starts_a_server_on_each_node_that_outlives_the_job(cluster: Slurm, tmp_path: Path) -> None:
    """The job ends at once: Slurm then kills the process group of the Prolog."""

    def run_job() -> None:
        job = ["srun", "--nodes=4", "--ntasks=4", "true"]
        subprocess.run(job, env=cluster.environment, check=True, timeout=300)

    def servers() -> list[int]:
        records = [live_server(str(tmp_path / f"cache-{node}")) for node in NODES]
        return [record.pid for record in records if record is not None]

    def logs() -> str:
        return "".join(path.read_text() for path in sorted(tmp_path.glob("log-*")))

    run_job()
    until(lambda: len(servers()) == len(NODES), logs)
    first = servers()
    run_job()
    until(lambda: logs().count("has a server already") == len(NODES), logs)
    assert servers() == first
    assert cluster.told("sinfo", "-h", "-t", "idle", "-o", "%D").strip() == "4"
