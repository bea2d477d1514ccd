"""How deploy/ starts the servers of a cluster's cache: each command is one that penstock accepts."""

import configparser
import shlex
from pathlib import Path
from typing import Any

import yaml

from loader.cache.addresses import PORT, split_address
from penstock.cli import parser

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"


def systemd_command() -> list[str]:
    unit = configparser.RawConfigParser(strict=False)
    unit.read(DEPLOY / "systemd/penstock-cache.service")
    return shlex.split(unit["Service"]["ExecStart"].replace("%H", "node1"))


def prolog_command() -> list[str]:
    text = (DEPLOY / "slurm/penstock-cache.sh").read_text().replace("\\\n", " ")
    (line,) = [line for line in text.splitlines() if "cache serve" in line]
    command = line.partition("-- ")[2].partition(" >>")[0]
    return shlex.split(command.replace("$SLURMD_NODENAME", "node1"))


def daemon_set() -> dict[str, Any]:
    bodies = yaml.safe_load_all((DEPLOY / "kueue/cache.yaml").read_text())
    (body,) = [body for body in bodies if body["kind"] == "DaemonSet"]
    return dict(body)


def daemon_set_command() -> list[str]:
    (container,) = daemon_set()["spec"]["template"]["spec"]["containers"]
    return [word.replace("$(POD_IP)", "10.0.0.1") for word in container["command"]]


def test_commands_are_penstocks() -> None:
    for command in (systemd_command(), prolog_command(), daemon_set_command()):
        assert Path(command[0]).name == "penstock"
        given = parser().parse_args(command[1:])
        assert split_address(given.listen) == ("0.0.0.0", PORT)
        assert split_address(given.address)[1] == PORT
        assert given.path == "/nvme/penstock"


def test_service_of_the_daemon_set_has_an_address_for_each_server() -> None:
    service, daemons = yaml.safe_load_all((DEPLOY / "kueue/cache.yaml").read_text())
    assert service["spec"]["clusterIP"] == "None"
    template = daemons["spec"]["template"]
    assert service["spec"]["selector"].items() <= template["metadata"]["labels"].items()
    (container,) = template["spec"]["containers"]
    assert container["ports"] == [{"name": "pages", "containerPort": PORT}]


def test_token_is_no_word_of_a_command() -> None:
    files = [
        *(DEPLOY / "systemd").glob("*cache*"),
        *(DEPLOY / "slurm").glob("*cache*"),
        DEPLOY / "kueue/cache.yaml",
    ]
    for file in files:
        assert "PENSTOCK_CACHE_TOKEN=" not in file.read_text()
