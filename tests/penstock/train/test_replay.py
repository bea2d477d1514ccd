"""Replays: the steps of a run again, from its checkpoint, saving nothing; and what their metrics say of a node."""

import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import loader
from loader.errors import InvalidCluster, InvalidRuntime, RunNotFound, RunTaken
from penstock.checkpoints import Checkpoints
from penstock.cli import main
from penstock.compute.cluster import Cluster
from penstock.nodes.losses import loss_differences
from penstock.nodes.signs import read_signs
from penstock.nodes.suspects import suspects
from penstock.train.launch.local_runs import LocalRuns
from penstock.train.launch.slurm_job import SlurmJobs
from penstock.train.launched import ORIGIN, STEPS
from penstock.train.replay_run import parse_steps, rank_replay, replay_spec, without_nodes
from penstock.train.run_folder import RunFolder
from penstock.train.run_spec import RunSpec
from tests.penstock.train.conftest import REPOSITORY, Rank, digests
from tests.refusals import refusal
from tests.servers.processes import python

Start = Callable[..., list[Rank]]
Cli = Callable[..., tuple[int, str]]


@pytest.fixture
def cli(root: str, capsys: pytest.CaptureFixture[str]) -> Cli:
    """cli(words) -> (exit status, output) of penstock over `root`."""

    def run(*words: str) -> tuple[int, str]:
        capsys.readouterr()
        status = main([*words, "--root", root])
        return status, capsys.readouterr().out

    return run


def test_replay_repeats_steps_and_names_the_node_whose_metric_differs(
    root: str, start: Start, cli: Cli
) -> None:
    common = {"PENSTOCK_RECORD": root}
    options = ("--steps", 40, "--save-every", 10, "--step-s", 0, "--odd-at", 25)
    ranks = start(2, *options, **common, PENSTOCK_RUN="big-7", SLURMD_NODENAME="bad")
    assert [rank.status() for rank in ranks] == [0, 0], ranks[0].text
    steps, run = digests(ranks), "big-7.replay-1"
    saved = {info.key: info.etag for info in loader.Root(root).store.list("checkpoints/")}
    replay = {"PENSTOCK_RUN": run, STEPS: "22:30", ORIGIN: "big-7", "SLURMD_NODENAME": "good"}
    again = start(2, *options, **common, **replay)
    assert [rank.status() for rank in again] == [0, 0], again[0].text
    assert digests(again) == {step: steps[step] for step in range(20, 30)}
    assert f"weight {sum(range(30))}" in again[0].text, "the state of the checkpoint, not a fresh one"
    assert {info.key: info.etag for info in loader.Root(root).store.list("checkpoints/")} == saved
    assert [event.name for event in RunFolder(loader.Root(root).store, run).events()][-1] == "ended"
    status, text = cli("trail", "against", "big-7", run)
    assert (status, "10 steps are equal" in text) == (1, True)
    assert "1 of 10 metrics differ, first number of step 25, 25.5 and 25.0" in text
    assert f"big-7 did this step on bad, and {run} did not" in text
    body = json.loads(cli("trail", "against", "big-7", run, "--json")[1])
    assert body["notes"]["differing"] == [
        {"step": 25, "rank": 0, "note": "number", "values": ["25.5", "25.0"]}
    ]
    now_us, store = time.time_ns() // 1000, loader.Root(root).store
    signs = read_signs(store, now_us, losses=lambda name: loss_differences(loader.Root(root), name))
    (suspect,) = suspects(signs, now_us)
    assert (suspect.node, suspect.sign) == ("bad", "loss")
    assert suspect.text == "step 25 of big-7: number is 25.5, and 25.0 on other nodes"
    assert "bad" in cli("node", "suspects")[1]


def test_metric_that_is_nan_on_both_sides_is_data_or_model(root: str, start: Start, cli: Cli) -> None:
    options = ("--steps", 8, "--step-s", 0, "--nan-at", 5)
    for variables in ({}, {STEPS: "4:7", ORIGIN: "big-7"}):  # no checkpoint before: from the first step
        run = "big-7.replay-1" if variables else "big-7"
        (rank,) = start(1, *options, PENSTOCK_RECORD=root, PENSTOCK_RUN=run, **variables)
        assert rank.status() == 0, rank.text
    assert [step for step, _ in rank.took] == list(range(7))
    status, text = cli("trail", "against", "big-7", "big-7.replay-1")
    assert (status, "7 metrics are equal, bit by bit" in text) == (0, True)
    assert "step 5 has no finite metric in both: data or model, not a node; penstock explain big-7@5" in text


def test_run_that_is_no_replay_saves(root: str, start: Start) -> None:
    (rank,) = start(1, "--steps", 4, "--step-s", 0, PENSTOCK_RECORD=root, PENSTOCK_RUN="big-7.replay-1")
    assert rank.status() == 0, rank.text
    assert Checkpoints(root, "big-7.replay-1").steps() == [4]


@pytest.mark.parametrize("text", ["", "4", "4:4", "5:4", "-1:4", "a:b", "1:2:3"])
def test_steps_of_a_replay_are_a_range(text: str) -> None:
    with refusal(InvalidRuntime, what="steps", given=text, accepted="A:B"):
        parse_steps(text)
    with refusal(InvalidRuntime, what=STEPS, where="environment", given=text):
        rank_replay(text, "big-7")
    with refusal(InvalidRuntime, what=ORIGIN, where="environment"):
        rank_replay("1:2", "")


def test_replays_are_numbered_and_run_elsewhere(root: str, tmp_path: Path) -> None:
    spec = RunSpec(run="big-7", command=("python", "t.py"), record=root, trackers=("mlflow",), env={"A": "b"})
    with pytest.raises(RunNotFound):
        replay_spec(spec, (3, 5))
    store = loader.Root(root).store
    RunFolder(store, "big-7").put_spec(spec)
    first = replay_spec(spec, (3, 5))
    assert first == replace(
        spec, run="big-7.replay-1", trackers=(), env={"A": "b", STEPS: "3:5", ORIGIN: "big-7"}
    )
    RunFolder(store, first.run).put_spec(first)
    assert replay_spec(spec, (3, 5)).run == "big-7.replay-2"
    with pytest.raises(RunTaken):
        replay_spec(replace(spec, command=("python", "other.py")), (3, 5))
    described = Cluster(engine="slurm", logs=str(tmp_path))
    elsewhere = without_nodes(described, ["m3", "m1"])
    assert "--exclude=m1,m3 " in SlurmJobs(root, elsewhere).describe(first)
    assert f"{STEPS}=3:5" in SlurmJobs(root, elsewhere).describe(first)
    assert without_nodes(Cluster(), []) == Cluster()
    with refusal(InvalidCluster, what="engine", given="local"):
        without_nodes(Cluster(), ["m1"])


def test_replay_starts_on_this_machine(root: str, tmp_path: Path, cli: Cli) -> None:
    file = tmp_path / "run.toml"
    file.write_text(f'run = "big-7"\ncommand = ["true"]\nrecord = "{root}"\n')
    RunFolder(loader.Root(root).store, "big-7").put_spec(RunSpec(run="big-7", command=("true",), record=root))
    ended = python("-m", "penstock", "train", "replay", file, "--steps", "3:5", cwd=REPOSITORY)
    LocalRuns(root).cancel("big-7.replay-1")
    assert (ended.returncode, "penstock trail against big-7 big-7.replay-1" in ended.stdout) == (0, True), (
        ended.stderr
    )
    assert RunFolder(loader.Root(root).store, "big-7.replay-1").spec().env[STEPS] == "3:5"
    assert cli("train", "replay", str(file), "--steps", "3:5", "--not-on", "m1")[0] == 2
