"""A training picks up newer versions at steps of its own choosing: every rank and every restart the same ones."""

import json
import logging
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import loader
from loader.dataset.root import root_in_store
from loader.errors import Corrupt, InvalidName, InvalidRuntime, PlanMismatch, Throttled, Transient
from tests.proxy_stores import ObservedStore
from tests.refusals import refusal
from tests.servers.patience import PATIENCE_S

REPOSITORY = Path(__file__).parent.parent.parent
STEPS, EVERY, BATCH = 24, 4, 6
MODULUS = 2**64


def add(root: loader.Root, first: int, n: int, dataset: str = "photos") -> None:
    with root.write(dataset) as writer:
        for number in range(first, first + n):
            writer.add(f"{number:03d}", {"cls": number})


@pytest.fixture
def root(tmp_path: Path) -> loader.Root:
    made = loader.Root(tmp_path / "root")
    add(made, 0, 60)
    return made


def begin(root: loader.Root, **options: Any) -> Any:
    plan = loader.plan({"p": root.open("photos@1")}, seed=5, global_batch=BATCH)
    given = {"run": "big", "every": EVERY, "steps": STEPS, "framework": "numpy", "workers": 0, **options}
    if "rank" not in given:
        given |= {"rank": 0, "world_size": 1}
    return loader.follow(root, plan, **given)


def read_digests(batches: Any, stop: int | None = None) -> dict[int, int]:
    """step -> digest, up to step `stop`."""
    out: dict[int, int] = {}
    while stop is None or batches.step < stop:
        try:
            batch = next(batches)
        except StopIteration:
            break
        out[batch.step] = batch.digest
    return out


def test_newer_version_is_picked_up_at_a_boundary(root: loader.Root) -> None:
    with begin(root) as batches:
        before = read_digests(batches, 6)
        first = batches.plan
        add(root, 60, 30)
        before |= read_digests(batches, 8)
        assert batches.plan == first  # there since step 6, taken up at step 8
        rest = read_digests(batches)
        grown = batches.plan
    assert grown == first.grow({"p": root.open("photos@2")}, 8)
    with loader.Loader(grown, 0, 1, steps=STEPS, framework="numpy", workers=0) as whole:
        assert read_digests(whole) == before | rest
    assert sorted(info.key[-10:] for info in root.store.list("follows/big/")) == [
        f"{step:05d}.json" for step in range(EVERY, STEPS, EVERY)
    ]


def test_restart_reads_the_same_though_there_is_more_by_then(root: loader.Root) -> None:
    states = {}
    with begin(root) as batches:
        digests = read_digests(batches, 6)
        add(root, 60, 30)
        for stop in (7, 8, 9, 13):
            digests |= read_digests(batches, stop)
            states[stop] = json.loads(json.dumps(batches.state_dict()))
        add(root, 90, 20)
        digests |= read_digests(batches)
        last = batches.plan
    add(root, 110, 50)
    for stop, state in states.items():
        with begin(root) as batches:
            batches.load_state_dict(state)
            assert read_digests(batches) == {step: one for step, one in digests.items() if step >= stop}
            assert batches.plan == last
    assert states[9]["follow"]["plan"] != states[7]["follow"]["plan"]
    assert states[7]["follow"] == states[8]["follow"]
    with begin(root) as batches:  # and from the very beginning
        assert read_digests(batches) == digests


@pytest.mark.parametrize("world_size", [2, 3])
def test_ranks_agree_whichever_is_first(root: loader.Root, world_size: int) -> None:
    ranks = [begin(root, rank=rank, world_size=world_size) for rank in range(world_size)]
    digests: dict[int, int] = {}
    for step in range(12):
        if step == 4:
            add(root, 60, 30)
        for number in range(world_size):
            rank = ranks[(number + step) % world_size]
            digests[step] = (digests.get(step, 0) + next(rank).digest) % MODULUS
            if step == 8 and number == 0:
                add(root, 90, 7)  # after the first rank has decided, before the others ask
    state = ranks[1].state_dict()
    assert [one.state_dict() for one in ranks] == [state] * world_size
    for one in ranks:
        one.close()
    with begin(root) as batches:
        alone = read_digests(batches, 12)
        assert alone == digests
    with begin(root) as batches:  # another world size goes on
        batches.load_state_dict(state)
        rest = read_digests(batches)
    again = [begin(root, rank=rank, world_size=world_size) for rank in range(world_size)]
    for one in again:
        one.load_state_dict(state)
    parts = [read_digests(one) for one in again]
    for one in again:
        one.close()
    assert rest == {step: sum(part[step] for part in parts) % MODULUS for step in rest}


def test_loader_continues_without_a_newer_version(root: loader.Root) -> None:
    with begin(root) as batches:
        inside = batches.loader
        assert len(read_digests(batches)) == STEPS
        assert batches.loader is inside


def test_loader_skips_versions_that_it_cannot_read(
    root: loader.Root, caplog: pytest.LogCaptureFixture
) -> None:
    plan = loader.plan({"p": root.open("photos@1")}, seed=5, global_batch=BATCH, boundary="mask")
    add(root, 60, 30)
    with (
        caplog.at_level(logging.WARNING, "loader.api.follow"),
        loader.follow(
            root, plan, run="masked", every=4, rank=0, world_size=1, steps=6, framework="numpy", workers=0
        ) as batches,
    ):
        assert len(read_digests(batches)) == 6
        assert batches.plan == plan
    assert "stays with photos@1 at step 4" in caplog.text


@pytest.mark.parametrize("error", [Transient, Throttled])
def test_outage_at_a_boundary_is_no_decision(root: loader.Root, error: type[Exception]) -> None:
    faults: list[Exception] = []

    def fail_once(verb: str, key: str) -> None:
        if "/manifest-" in key and faults:
            raise faults.pop()

    with begin(root_in_store(ObservedStore(root.store, fail_once))) as batches:
        read_digests(batches, EVERY)
        add(root, 60, 30)
        faults.append(error("no answer"))
        with pytest.raises(error):
            next(batches)
        assert list(root.store.list("follows/big/")) == []
        assert next(batches).step == EVERY
        assert [growth.step for growth in batches.plan.grown] == [EVERY]


def test_alias_is_followed(root: loader.Root) -> None:
    root.alias("photos@1", "prod")
    add(root, 60, 30)
    with begin(root, refs={"p": "photos@prod"}, run="prod") as batches:
        read_digests(batches, 6)
        assert not batches.plan.grown
        root.alias("photos@2", "prod")
        read_digests(batches, 9)
        assert [one.step for one in batches.plan.grown] == [8]


def test_sources_grow_each_by_itself(root: loader.Root) -> None:
    add(root, 0, 40, "web")
    views = {"p": root.open("photos@1"), "w": loader.source(root.open("web@1"), weight=2)}
    plan = loader.plan(views, seed=5, global_batch=BATCH)
    options = {"run": "two", "every": EVERY, "steps": STEPS, "framework": "numpy", "workers": 0}
    with loader.follow(root, plan, rank=0, world_size=1, **options) as batches:
        read_digests(batches, 5)
        add(root, 40, 9, "web")
        read_digests(batches, 9)
        add(root, 60, 9)
        add(root, 49, 9, "web")
        read_digests(batches)
        assert [(one.step, one.source) for one in batches.plan.grown] == [(8, "w"), (12, "p"), (12, "w")]


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"every": 0}, InvalidRuntime),
        ({"every": 2.5}, InvalidRuntime),
        ({"run": "a/b"}, InvalidName),
        ({"epochs": 2}, InvalidRuntime),
        ({"refs": {"q": "photos@latest"}}, InvalidRuntime),
    ],
)
def test_what_is_refused(root: loader.Root, given: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        begin(root, **given)


def test_another_training_under_the_same_name_is_refused(root: loader.Root) -> None:
    with begin(root) as batches:
        read_digests(batches)
    other = loader.plan({"p": root.open("photos@1")}, seed=6, global_batch=BATCH)
    options = {"every": EVERY, "rank": 0, "world_size": 1, "framework": "numpy", "workers": 0}
    with (
        loader.follow(root, other, run="big", **options) as batches,
        refusal(PlanMismatch, what="plan", where="run 'big', step 4", given=other.hash),
    ):
        read_digests(batches, 9)
    with begin(root, run="small") as batches:
        read_digests(batches, 3)
        state = batches.state_dict()
    root.store.put("follows/small/0000000000000000004.json", b"{")
    with begin(root, run="small") as batches:
        batches.load_state_dict(state)
        with pytest.raises(Corrupt):
            read_digests(batches)


CHILD = """
import json, os, signal, sys, loader
root = loader.Root(sys.argv[1])
rank, world_size, kill_at = map(int, sys.argv[2:5])
plan = loader.plan({"p": root.open("photos@1")}, seed=5, global_batch=6)
options = {"rank": rank, "world_size": world_size, "steps": 24, "framework": "numpy"}
with loader.follow(root, plan, run="killed", every=4, **options) as batches:
    if os.path.exists(sys.argv[5]):
        batches.load_state_dict(json.load(open(sys.argv[5])))
    for batch in batches:
        print(batch.step, batch.digest, flush=True)
        if batch.step == 9 and rank == 0:
            with open(sys.argv[5] + ".new", "w") as out:
                json.dump(batches.state_dict(), out)
            os.replace(sys.argv[5] + ".new", sys.argv[5])
        if batch.step == 6 and kill_at:
            with root.write("photos") as writer:
                for number in range(60 + 100 * rank, 90 + 100 * rank):
                    writer.add(f"{number:03d}", {"cls": number})
        if kill_at and batch.step == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
"""


def test_killed_and_resumed_at_another_world_size(root: loader.Root, tmp_path: Path) -> None:
    """Two ranks, killed three steps behind their checkpoint and one behind a version; one goes on alone."""
    checkpoint = tmp_path / "state.json"

    def start(rank: int, world_size: int, kill_at: int) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", CHILD, root.url, *map(str, (rank, world_size, kill_at, checkpoint))]
        return subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": str(REPOSITORY)}
        )

    def printed_digests(process: subprocess.Popen[str]) -> dict[int, int]:
        text, _ = process.communicate(timeout=PATIENCE_S)
        return {int(line.split()[0]): int(line.split()[1]) for line in text.splitlines()}

    ranks = [start(rank, 2, 12) for rank in range(2)]
    parts = [printed_digests(one) for one in ranks]
    assert [one.returncode for one in ranks] == [-signal.SIGKILL] * 2
    killed = {step: sum(part[step] for part in parts) % MODULUS for step in parts[0]}
    assert max(killed) == 12
    alone = start(0, 1, 0)
    resumed = printed_digests(alone)
    assert alone.returncode == 0
    assert list(resumed) == list(range(10, STEPS))
    assert {step: resumed[step] for step in (10, 11, 12)} == {step: killed[step] for step in (10, 11, 12)}
    checkpoint.unlink()
    whole = start(0, 1, 0)
    undisturbed = printed_digests(whole)
    assert undisturbed == killed | resumed
    assert json.loads(root.store.get("follows/killed/0000000000000000008.json").data)["step"] == 8


def test_who_decides_in_the_same_moment_and_loses_takes_the_others_plan(
    root: loader.Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The slower of two ranks finds no record, sees a version that the faster one did not, and cannot create his."""
    with begin(root, rank=0, world_size=2) as first, begin(root, rank=1, world_size=2) as second:
        read_digests(first, 5)
        add(root, 60, 30)
        read_digests(second, 4)
        read, asked = type(second)._read, list[str]()

        def late(self: Any, key: str) -> Any:
            asked.append(key)
            return None if len(asked) == 1 else read(self, key)

        with monkeypatch.context() as patch:
            patch.setattr(type(second), "_read", late)
            read_digests(second, 5)
        assert len(asked) == 2
        assert second.plan == first.plan
