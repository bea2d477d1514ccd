"""Several ranks as processes: a signal to one of them stops all after the same step, and the next start goes on."""

import random
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import loader
from penstock.checkpoints import Checkpoints
from penstock.checkpoints.writer import CheckpointWriter
from penstock.train import Run
from penstock.train.goodput.run_usage import event_versions
from penstock.train.hang import STEADY
from penstock.train.run import AGAIN
from penstock.train.run_folder import RunFolder
from tests.penstock.train.conftest import Rank, digests
from tests.servers.patience import PATIENCE_S, until
from tests.servers.processes import python

STEPS = 40
Start = Callable[..., list[Rank]]


def reference_digests(root: str) -> dict[int, int]:
    """Return step -> digest of a training that nothing stops."""
    plan = loader.plan({"points": loader.Root(root).open("points@1")}, seed=7, global_batch=24)
    with loader.Loader(plan, 0, 1, framework="numpy", workers=0) as batches:
        return {step: batches.batch_at(step).digest for step in range(STEPS)}


def statuses(ranks: list[Rank]) -> list[int]:
    return [rank.status() for rank in ranks]


def test_run_stops_and_goes_on_at_other_numbers_of_ranks(root: str, start: Start) -> None:
    chance, seen = random.Random(3), dict[int, int]()
    for world_size in (4, 2, 3):
        ranks = start(world_size)
        for rank in ranks:
            rank.wait_for("took", 2)
        chance.choice(ranks).signal(chance.choice([signal.SIGTERM, signal.SIGUSR1]))
        assert statuses(ranks) == [AGAIN] * world_size, [rank.text for rank in ranks]
        steps = digests(ranks)
        assert list(steps) == list(range(len(seen), len(seen) + len(steps))), "none is lost, none done again"
        seen |= steps
        assert Checkpoints(root, "alone").steps()[-1] == len(seen)
    (alone,) = start(1, "--step-s", 0)
    assert alone.status() == 0, alone.text
    assert seen | digests([alone]) == reference_digests(root)
    assert not seen.keys() & digests([alone]).keys()
    assert f"weight {sum(range(STEPS))}" in alone.text


def test_short_steps_share_an_exchange_and_all_ranks_stop_after_the_same_step(
    root: str, start: Start
) -> None:
    ranks = start(3, "--steps", 2000, "--step-s", 0.005, "--log-collectives")
    ranks[0].wait_for("took", 120)
    ranks[1].signal(signal.SIGTERM)
    assert statuses(ranks) == [AGAIN] * 3, ranks[0].text
    steps = digests(ranks)
    assert Checkpoints(root, "alone").steps() == [len(steps)]
    for rank in ranks:
        each = [text.count("begin all_reduce") for text in rank.text.split("took ")[1:]]
        assert each[:STEADY] == [1] * STEADY, "each step until their length is known"
        assert each[-1] == 0, "nothing begins once it is to stop"
        assert 0 < sum(each[60:]) <= len(each[60:]) / 2


def test_steps_that_become_long_share_no_exchange_for_long(start: Start) -> None:
    """The median of the last steps follows only after 50 of them; a stop has to be heard inside the grace."""
    ranks = start(2, "--steps", 117, "--step-s", 0.005, "--long-from", 100, "--log-collectives")
    assert statuses(ranks) == [0, 0], ranks[0].text
    for rank in ranks:
        each = [text.count("begin all_reduce") for text in rank.text.split("took ")[1:]]
        assert sum(each[60:100]) <= 20
        assert each[-4:-1] == [1] * 3


def test_hundred_stops_at_random_moments_lose_no_step(root: str, start: Start) -> None:
    chance, done = random.Random(5), 0
    for _ in range(100):
        ranks = start(2, "--steps", 10_000, "--step-s", 0.005)
        ranks[0].wait_for("took", chance.randint(1, 40))
        chance.choice(ranks).signal(chance.choice([signal.SIGTERM, signal.SIGUSR1]))
        assert statuses(ranks) == [AGAIN] * 2, [rank.text for rank in ranks]
        steps = list(digests(ranks))
        assert steps == list(range(done, done + len(steps)))
        done += len(steps)
        assert Checkpoints(root, "alone").steps()[-1] == done


def test_run_that_has_ended_does_nothing_again(root: str, start: Start) -> None:
    ranks = start(2, "--steps", 8)
    ranks[1].wait_for("took")
    for _ in range(2):
        ranks[1].signal(signal.SIGTERM)
    assert statuses(ranks) == [AGAIN, AGAIN]
    (again,) = start(1, "--steps", 8, "--step-s", 0)
    assert again.status() == 0
    (ended,) = start(1, "--steps", 8)
    assert ended.status() == 0, ended.text
    assert ended.took == []


def test_person_stops_a_run_for_good(root: str, start: Start) -> None:
    ranks = start(2, PENSTOCK_RECORD=root, PENSTOCK_RUN="big-7")
    ranks[0].wait_for("took", 2)
    loader.Root(root).store.put("trainings/big-7/stop", b"{}")
    assert statuses(ranks) == [0, 0], [rank.text for rank in ranks]
    steps = digests(ranks)
    assert 2 <= len(steps) < STEPS
    assert Checkpoints(root, "big-7").steps() == [len(steps)]
    trail = loader.read_trail(loader.Root(root), "big-7")
    assert trail.steps["step"].to_list() == list(steps)
    folder = RunFolder(loader.Root(root).store, "big-7")
    assert [(event.attempt, event.name, event.step) for event in folder.events()] == [
        (1, "ranks_up", 0),
        (1, "first_batch", 0),
        (1, "saved", len(steps)),
        (1, "stopped", len(steps)),
    ]
    assert folder.attempts()[1]["ranks"] == 2
    assert event_versions(folder.events()[1]) == ("points@1",)
    folder.withdraw_stop()
    (again,) = start(1, "--step-s", 0, PENSTOCK_RECORD=root, PENSTOCK_RUN="big-7")
    assert again.status() == 0
    assert [event.name for event in folder.events() if event.attempt == 2] == [
        *("ranks_up", "restored", "first_batch", "saved", "ended"),
    ]


def test_run_that_was_cancelled_before_its_first_step_makes_none(root: str, start: Start) -> None:
    loader.Root(root).store.put("trainings/big-7/stop", b"{}")
    ranks = start(2, PENSTOCK_RECORD=root, PENSTOCK_RUN="big-7")
    assert statuses(ranks) == [0, 0], [rank.text for rank in ranks]
    assert [rank.took for rank in ranks] == [[], []]
    events = RunFolder(loader.Root(root).store, "big-7").events()
    assert [(event.name, event.step) for event in events] == [("ranks_up", 0), ("stopped", 0)]


def test_evaluation_that_asks_is_left(root: str, start: Start) -> None:
    ranks = start(3, "--evaluate-at", 4)
    for rank in ranks:
        rank.wait_for("evaluates")
    ranks[2].signal(signal.SIGUSR1)
    assert statuses(ranks) == [AGAIN] * 3
    assert list(digests(ranks)) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("stops", [True, False])
def test_launcher_of_a_node_gets_a_file_if_the_run_is_to_begin_again(
    start: Start, tmp_path: Path, stops: bool
) -> None:
    """torchrun ends with 1, whatever its ranks end with."""
    file = tmp_path / "stopped"
    ranks = start(2, *(() if stops else ("--steps", 2)), PENSTOCK_STOPPED=str(file))
    if stops:
        ranks[0].wait_for("took")
        ranks[0].signal(signal.SIGTERM)
    assert statuses(ranks) == [AGAIN if stops else 0] * 2
    assert file.exists() == stops


TWO_LOOPS = """\
import sys
import loader
from penstock.train import Run
root = loader.Root(sys.argv[1])
with Run.joined(name="two") as run:
    plan = loader.plan({"d": root.open("points@1")}, seed=1, global_batch=2)
    for steps in (2, 5):
        with loader.Loader(plan, run.world, steps=steps) as batches:
            for batch in run.steps(batches):
                if steps == 5:
                    run.ask_to_stop()
"""


def test_stop_in_a_second_loop_begins_the_run_again(root: str) -> None:
    done = python("-c", TWO_LOOPS, root)
    assert done.returncode == 75, done.stderr


def test_rank_that_fails_ends_with_its_error(start: Start, tmp_path: Path) -> None:
    file = tmp_path / "stopped"
    ranks = start(2, "--fail-at", 3, PENSTOCK_STOPPED=str(file))
    assert ranks[1].status() == 1
    assert "ValueError: planted" in ranks[1].text
    ranks[0].end()
    assert not file.exists()


FAILS = """
import sys, time, loader
from penstock.train import Run
root = sys.argv[1]
with Run.joined(name="one", record=root) as run:
    plan = loader.plan({"points": loader.Root(root).open("points@1")}, seed=7, global_batch=24)
    with loader.Loader(plan, 0, 1, framework="numpy", workers=0) as batches:
        for batch in run.steps(batches):
            if batch.step == 3:
                time.sleep(1)
                raise ValueError("planted")
"""


def test_time_after_the_last_step_is_in_the_record_of_a_failure(root: str) -> None:
    done = python("-c", FAILS, root)
    assert "ValueError: planted" in done.stderr
    *_, last = RunFolder(loader.Root(root).store, "one").events()
    assert (last.name, last.step) == ("failed", 3)
    assert last.facts["took_us"] >= 1_000_000


def test_rank_that_hangs_ends_with_its_stacks(start: Start) -> None:
    """The other one waits for it, and ends by its own watch or because the connection is lost."""
    ranks = start(2, "--hang-at", 5)
    assert statuses(ranks) == [1, 1]
    assert "Timeout" in ranks[1].text
    assert 'training.py", line' in ranks[1].text
    assert [step for step, _ in ranks[0].took][-1] == 6, "it waits for the exchange that began after step 5"


@pytest.mark.parametrize("grace_s", ["0", "30"])
def test_steps_too_long_for_the_grace_are_warned_of_once(start: Start, grace_s: str) -> None:
    (rank,) = start(1, "--steps", 8, "--save-every", 2, PENSTOCK_GRACE_S=grace_s)
    assert rank.status() == 0, rank.text
    assert rank.text.count("two steps and a checkpoint take") == (grace_s == "0")


def test_checkpoint_is_recorded_once_it_is_whole(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is saved beside the training: a kill before its end leaves no event that promises it."""
    may_finish, finish = threading.Event(), CheckpointWriter.finish

    def late_finish(writer: CheckpointWriter, **facts: Any) -> None:
        assert may_finish.wait(PATIENCE_S)
        finish(writer, **facts)

    monkeypatch.setattr(CheckpointWriter, "finish", late_finish)
    folder = RunFolder(loader.Root(root).store, "one")
    plan = loader.plan({"points": loader.Root(root).open("points@1")}, seed=7, global_batch=24)
    state = {"weight": torch.zeros(1)}
    with (
        Run.joined(name="one", record=root) as run,
        loader.Loader(plan, 0, 1, steps=3, workers=0) as batches,
        Checkpoints(root, "one") as saved,
    ):
        for batch in run.steps(batches, saved, state, save_every=2):
            if batch.step == 2:
                until(lambda: len(folder.events()) == 2, lambda: folder.events())
                assert [event.name for event in folder.events()] == ["ranks_up", "first_batch"]
                may_finish.set()
                until(lambda: len(folder.events()) == 3)
                assert saved.steps() == [2]
    events = folder.events()
    assert [(event.name, event.step) for event in events][2:] == [("saved", 2), ("saved", 3), ("ended", 3)]
    assert [event.at_us for event in events] == sorted(event.at_us for event in events)


def test_checkpoint_that_fails_is_not_recorded(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(writer: CheckpointWriter, **facts: Any) -> None:
        raise OSError("no space is left")

    monkeypatch.setattr(CheckpointWriter, "finish", fail)
    plan = loader.plan({"points": loader.Root(root).open("points@1")}, seed=7, global_batch=24)
    with (
        pytest.raises(OSError) as failed,
        Run.joined(name="one", record=root) as run,
        loader.Loader(plan, 0, 1, steps=3, workers=0) as batches,
        Checkpoints(root, "one") as saved,
    ):
        list(run.steps(batches, saved, {"weight": torch.zeros(1)}, save_every=2))
    assert failed.value.args == ("no space is left",)
    names = [event.name for event in RunFolder(loader.Root(root).store, "one").events()]
    assert names == ["ranks_up", "first_batch", "failed"]


def test_damaged_checkpoint_does_not_end_a_run_of_a_launcher(root: str, start: Start) -> None:
    """All ranks go on at the checkpoint before it, in the same start."""
    environment = {"PENSTOCK_RUN": "alone", "PENSTOCK_RECORD": root}
    first = start(2, "--save-every", 4, "--steps", 40, **environment)
    first[0].wait_for("took", 10)
    first[0].signal(signal.SIGTERM)
    assert statuses(first) == [AGAIN, AGAIN]
    store, saved = loader.Root(root).store, Checkpoints(root, "alone")
    before, newest = saved.steps()[-2:]
    part = saved.at(newest).parts[0]
    key = saved.at(newest).key(part)
    store.put(key, store.get(key).data[:-1])
    again = start(2, "--step-s", 0, "--save-every", 4, "--steps", 40, **environment)
    assert statuses(again) == [0, 0], again[0].text
    assert list(digests(again)) == list(range(before, 40))
    assert digests(first).items() <= (digests(first) | digests(again)).items()
    assert f"weight {sum(range(40))}" in again[1].text
    events = [event for event in RunFolder(store, "alone").events() if event.attempt == 2]
    assert [event.name for event in events[:3]] == ["ranks_up", "set_aside", "restored"]
    assert (events[1].facts["checkpoint"], events[2].step) == (newest, before)
    assert key in events[1].facts["reason"]
    assert store.head(key).nbytes == part.nbytes - 1, "its bytes stay"
