"""The walk of docs/clusters.md by its commands alone: a run of one team preempts another team's, and both end."""

import json
import os
import re
import shlex
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from penstock.cli import main
from tests.penstock.train.slurm.conftest import ENVIRONMENT, REPOSITORY, TRAINING
from tests.servers.patience import until
from tests.servers.slurm import Slurm

pytestmark = pytest.mark.slurm
PAGE = (REPOSITORY / "docs/clusters.md").read_text()
STEPS = 200
TEAMS = {"team-a": "low", "team-b": "high"}
CLUSTER = """\
engine = "slurm"
logs = "{folder}/logs"
environment = "{folder}/environment"
account = "{team}"
[priorities]
low = "low"
high = "high"
"""
RUN = """\
run = "{run}"
command = {command}
nodes = "{nodes}"
gpus_per_node = 2
priority = "{priority}"
walltime_s = 3600
grace_s = 30
record = "data"
trackers = ["tensorboard"]
[env]
TENSORBOARD_LOGGING_DIR = "{folder}/tracked"
"""


@pytest.fixture
def teams(slurm_cluster: Slurm, root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Slurm:
    """Two accounts, with the files that the page names in the working directory."""
    accounts, environment = slurm_cluster.accounts, slurm_cluster.environment
    assert accounts is not None
    for team, priority in TEAMS.items():
        accounts.manage("add", "account", team, environment=environment)
        user = ("add", "user", slurm_cluster.user, f"account={team}", f"qos={priority}")
        accounts.manage(*user, f"defaultqos={priority}", environment=environment)
        (tmp_path / f"{team}.toml").write_text(CLUSTER.format(folder=tmp_path, team=team))
    (tmp_path / "logs").mkdir()
    path = ":".join(filter(None, [str(REPOSITORY), os.environ.get("PYTHONPATH")]))
    (tmp_path / "environment").write_text(ENVIRONMENT.format(repository=path))
    Path(root).rename(tmp_path / "data")
    command = [sys.executable, TRAINING, str(tmp_path / "data"), "--step-s", "0.1", "--window-s", "2"]
    for run, nodes, priority, steps in (("big-7", 3, "low", STEPS), ("urgent", 2, "high", STEPS // 2)):
        facts = {"run": run, "nodes": nodes, "priority": priority, "folder": tmp_path}
        (tmp_path / f"{run}.toml").write_text(RUN.format(command=[*command, "--steps", str(steps)], **facts))
    monkeypatch.chdir(tmp_path)
    return slurm_cluster


class Walk:
    """The commands of the page, one after the other."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        (block,) = re.findall(r"<!-- walk -->\n\n(.*?)\n\n", PAGE, re.S)
        commands = [line.partition("#")[0].split("penstock ", 1)[1] for line in block.splitlines()]
        self._commands, self._capsys = [shlex.split(command) for command in commands], capsys

    def next(self, verb: str) -> tuple[str, Any]:
        """Run the next command, which has this verb; return what it prints, and its `--json`."""
        command = self._commands.pop(0)
        assert " ".join(command).startswith(verb), command
        return self.run(command), json.loads(self.run([*command, "--json"]))

    def run(self, command: Sequence[str]) -> str:
        """Return what a command prints."""
        assert main([*command]) == 0, self._capsys.readouterr()
        return self._capsys.readouterr().out

    def events(self, run: str, team: str) -> list[tuple[int, str]]:
        """Return (start, event) of a run."""
        shown = json.loads(
            self.run(["train", "show", run, "--root", "data", "--cluster", f"{team}.toml", "--json"])
        )
        return [(event["attempt"], event["event"]) for event in shown["events"]]

    def end(self) -> None:
        assert self._commands == []


def accounting_rows(cluster: Slurm, account: str) -> list[tuple[int, str, int]]:
    """Return (seconds, state, nodes) of each line of sacct."""
    columns = ("-D", "-X", "-n", "-P", "-S", "now-1hours", "-o", "ElapsedRaw,State,NNodes")
    rows = [line.split("|") for line in cluster.told("sacct", f"--accounts={account}", *columns).splitlines()]
    return [(int(seconds), state, int(nodes)) for seconds, state, nodes in rows]


def test_two_teams_walk_through_a_preemption(teams: Slurm, capsys: pytest.CaptureFixture[str]) -> None:
    walk = Walk(capsys)
    text, _ = walk.next("train submit big-7.toml")
    assert "a preemption leaves 60 s (GraceTime 40 of QOS low, KillWait 20)" in text
    until(lambda: (1, "first_batch") in walk.events("big-7", "team-a"))
    walk.next("train submit urgent.toml")
    until(lambda: (1, "first_batch") in walk.events("urgent", "team-b"))
    text, body = walk.next("train why big-7")
    assert body["state"] == "waiting"
    (urgent,) = re.findall(
        r"Slurm job (\d+)", walk.run(shlex.split("train show urgent --root data --cluster team-b.toml"))
    )
    assert f"Next to end: job {urgent} (2 nodes), by" in text
    until(lambda: (1, "ended") in walk.events("urgent", "team-b"))
    until(lambda: (2, "ended") in walk.events("big-7", "team-a"))
    until(lambda: not teams.told("squeue", "--noheader", "--all").strip())
    text, body = walk.next("train ls")
    assert {(run["run"], run["state"], run["step"]) for run in body} == {
        ("big-7", "ended", STEPS),
        ("urgent", "ended", STEPS // 2),
    }
    _check_goodput(walk, accounting_rows(teams, "team-a"))
    _, body = walk.next("usage")
    rows = {row["name"]: row for row in body["rows"]}
    for team in TEAMS:
        lines = accounting_rows(teams, team)
        hours = sum(2 * seconds * nodes for seconds, _, nodes in lines) / 3600
        assert rows[team]["allocated"] == pytest.approx(hours, abs=0.002)
        assert (rows[team]["starts"], rows[team]["failures"]) == (len(lines), 0)
        assert 0 < rows[team]["new_steps"] < rows[team]["allocated"]
    assert rows["team-a"]["queue_hours"] > rows["team-b"]["queue_hours"]
    walk.end()
    _check_tracker("big-7", STEPS)
    _check_tracker("urgent", STEPS // 2)


def _check_goodput(walk: Walk, lines: list[tuple[int, str, int]]) -> None:
    text, body = walk.next("train goodput big-7")
    assert [(state, nodes) for _, state, nodes in lines] == [("REQUEUED", 3), ("COMPLETED", 3)]
    first, second = body["starts"]
    for start, (seconds, _, nodes) in zip((first, second), lines, strict=True):
        assert abs(sum(start["parts"].values()) - seconds) < 1
        assert (start["nodes"], start["lost_steps"], start["parts"]["repeated steps"]) == (nodes, 0, 0)
    assert (first["end"], second["end"]) == ("stopped", "ended")
    assert (second["first_step"], second["end_step"]) == (first["end_step"], STEPS)
    (restart,) = body["restarts"]
    assert (restart["cause"], restart["count"], restart["lost_steps"]) == ("preempted", 1, 0)
    assert "stopped, preempted" in text
    for part, node_s in body["parts"].items():
        assert f"{part:<18} {node_s:>14,.1f}" in text


def _check_tracker(run: str, steps: int) -> None:
    """TensorBoard has one run with each step once."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(f"tracked/{run}", size_guidance={"scalars": 0}).Reload()
    assert Counter(point.step for point in events.Scalars("number")) == Counter(range(steps))
