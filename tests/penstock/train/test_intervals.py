"""Intervals of real ranks: each step of each rank is counted once, one object for all ranks, nothing waits for it."""

import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import loader
from loader.storage import Store
from penstock.train.goodput.allocations import Allocation
from penstock.train.goodput.starts import goodput
from penstock.train.intervals import (
    COUNTS,
    ROW,
    SECONDS,
    SLOW_TEXTS,
    IntervalSum,
    interval_bytes,
    interval_columns,
)
from penstock.train.record_writer import MOST_TABLES, RunRecord
from penstock.train.run import AGAIN
from penstock.train.run_folder import RunFolder
from tests.penstock.train.conftest import Rank, digests
from tests.servers.patience import PATIENCE_S, until

STEPS = 40
Start = Callable[..., list[Rank]]
RECORDED = {"PENSTOCK_RUN": "big-7"}


def test_intervals_hold_each_step_of_each_rank_once(root: str, start: Start) -> None:
    recorded = {**RECORDED, "PENSTOCK_RECORD": root}
    ranks = start(3, "--window-s", 0.2, **recorded)
    ranks[0].wait_for("took", 25)
    ranks[1].signal(signal.SIGTERM)
    assert [rank.status() for rank in ranks] == [AGAIN] * 3, ranks[0].text
    middle = len(digests(ranks))
    assert [rank.status() for rank in start(2, "--window-s", 0.2, **recorded)] == [0, 0]
    folder = RunFolder(loader.Root(root).store, "big-7")
    rows = folder.intervals()
    assert rows.keys() >= {"rank", "node", "step_s", "wait_s", "fetch_s", "slow_read_s", "samples", "bytes"}
    for attempt, n_ranks, first, end in ((1, 3, 0, middle), (2, 2, middle, STEPS)):
        for rank in range(n_ranks):
            own = (rows["attempt"] == attempt) & (rows["rank"] == rank)
            assert rows["first_step"][own].tolist() == [first, *rows["end_step"][own][:-1]]
            assert rows["end_step"][own][-1] == end
            assert (rows["ended_us"][own] >= rows["begun_us"][own]).all()
            assert (rows["step_s"][own] >= rows["wait_s"][own]).all()
            seconds = 0.02 * (rows["end_step"][own] - rows["first_step"][own])
            assert (rows["step_s"][own] >= seconds).all()
            slow = rows["slow_step"][own]
            assert ((slow >= rows["first_step"][own]) & (slow <= rows["end_step"][own])).all()
        assert set(rows["rank"][rows["attempt"] == attempt]) == set(range(n_ranks))
    assert set(rows["slow_version"]) == {"points@1"}
    assert all(path.startswith("data/") for path in rows["slow_path"])
    assert len(set(rows["node"])) == 1
    keys = [info.key for info in loader.Root(root).store.list("trainings/big-7/windows/")]
    assert 4 <= len(keys) == len(set(zip(rows["attempt"], rows["end_step"], strict=True)))
    elapsed_s = (rows["ended_us"].max() - rows["begun_us"].min()) / 1e6
    assert len(keys) <= elapsed_s / 0.2 + 2, "one object for all ranks"
    second = folder.intervals(folder.interval_keys(2))
    assert set(second["attempt"]) == {2}


def test_killed_start_is_counted_up_to_its_last_interval(root: str, start: Start) -> None:
    (rank,) = start(1, "--window-s", 0.1, **RECORDED, PENSTOCK_RECORD=root)
    folder = RunFolder(loader.Root(root).store, "big-7")
    rank.wait_for("took", 15)
    until(folder.interval_keys)  # a busy machine stores it later
    rank.signal(signal.SIGKILL)
    assert rank.status() == -signal.SIGKILL
    begun_us = folder.attempts()[1]["at_us"]
    times = Allocation(attempt=1, begun_us=begun_us, ended_us=begun_us + 60_000_000)
    (one,) = goodput([times], folder.events(), folder.interval_sums())
    assert 0 < one.end_step <= len(rank.took)
    assert one.end == "first_batch"
    assert one.parts["new steps"] >= 0.02 * one.end_step
    assert one.seconds == pytest.approx(60)


def test_run_without_a_record_gathers_nothing(root: str, start: Start) -> None:
    ranks = start(2, "--window-s", 0, "--steps", 10, "--log-collectives")
    assert [rank.status() for rank in ranks] == [0, 0], ranks[0].text
    assert "all_gather" not in ranks[1].text


def test_step_costs_one_asynchronous_collective(root: str, start: Start) -> None:
    ranks = start(
        *(2, "--window-s", 0.1, "--steps", 20, "--log-collectives"), **RECORDED, PENSTOCK_RECORD=root
    )
    assert [rank.status() for rank in ranks] == [0, 0], ranks[0].text
    for rank in ranks:
        lines = [line for line in rank.text.splitlines() if line.startswith(("begin", "wait", "took"))]
        steps = " ".join(lines).split("took ")[1:]
        assert len(steps) == 20
        # After step n: the answer of the step before is read, then the next exchange begins.
        assert [step.count("begin all_reduce") for step in steps] == [1] * 20
        assert all("begin all_reduce wait all_reduce" not in step for step in steps[:-1]), rank.text
        gathered = rank.text.count("begin all_gather")
        assert 3 <= gathered <= 20
        assert gathered == rank.text.count("wait all_gather")
        assert all("begin all_gather wait all_gather" not in step for step in steps[:-1]), rank.text


def test_store_that_refuses_intervals_costs_only_intervals(root: str, start: Start) -> None:
    blocked = Path(root) / "trainings" / "big-7" / "windows"
    blocked.parent.mkdir(parents=True)
    blocked.write_bytes(b"")  # no folder can be made there
    ranks = start(2, "--window-s", 0.1, **RECORDED, PENSTOCK_RECORD=root)
    assert [rank.status() for rank in ranks] == [0, 0], ranks[0].text
    assert list(digests(ranks)) == list(range(STEPS))
    events = RunFolder(loader.Root(root).store, "big-7").events()
    assert [event.name for event in events] == ["ranks_up", "first_batch", "saved", "ended"]
    assert "could not store" in ranks[0].text


@pytest.mark.parametrize("fails", [True, False])
def test_intervals_wait_for_a_store_up_to_a_limit(tmp_path: Path, fails: bool) -> None:
    store = loader.Root(tmp_path / "root").store
    blocked = tmp_path / "root" / "trainings" / "big-7" / "windows"
    blocked.parent.mkdir(parents=True)
    if fails:
        blocked.write_bytes(b"")
    record = RunRecord(store, "big-7", {"ranks": 1})
    more = 10 if fails else 0
    for step in range(1, MOST_TABLES + more + 1):
        record.interval(rows(step))
    record.event("saved", 9)
    if fails:
        until(RunFolder(store, "big-7").events)
        blocked.unlink()
    record.close()
    ends = RunFolder(store, "big-7").intervals()["end_step"]
    assert ends.tolist() == list(range(more + 1, MOST_TABLES + more + 1))


class SilentStore:
    """A store that answers no write until `answer` is set."""

    def __init__(self, store: Store) -> None:
        self.store, self.asked, self.answer = store, threading.Event(), threading.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)

    def put_if_absent(self, key: str, data: bytes) -> Any:
        self.asked.set()
        assert self.answer.wait(PATIENCE_S)
        return self.store.put_if_absent(key, data)


def test_queue_of_a_silent_store_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.train.record_writer.MOST_BYTES", 3 * ROW.itemsize)
    monkeypatch.setattr("penstock.train.record_writer.MOST_EVENTS", 4)
    store = SilentStore(loader.Root(tmp_path / "root").store)
    record = RunRecord(store, "big-7", {"ranks": 1})  # type: ignore[arg-type]
    record.event("ranks_up", 0)
    assert store.asked.wait(PATIENCE_S)
    for step in range(1, 200):
        record.interval(rows(step))
        record.event("first_batch" if step == 1 else "saved", step)
    record.event("ended", 200)
    assert len(record._waiting) <= 7
    store.answer.set()
    record.close()
    folder = RunFolder(store.store, "big-7")
    names = [(event.name, event.step) for event in folder.events()]
    assert names == [("ranks_up", 0), ("first_batch", 1), ("saved", 198), ("saved", 199), ("ended", 200)]
    assert [key.end_step for key in folder.interval_keys()] == [197, 198, 199]


def test_end_of_a_interval_is_the_first_ranks_clock(tmp_path: Path) -> None:
    """Events are of that clock, too."""
    gathered = np.zeros(2, ROW)
    gathered["rank"], gathered["end_step"], gathered["ended_us"] = [0, 1], 7, [1000, 9_000_000]
    gathered["wait_s"], gathered["step_s"], gathered["node"] = [0.5, 0.25], [2, 3], [b"m1", b"m2"]
    folder = RunFolder(loader.Root(tmp_path / "root").store, "big-7")
    folder.put_interval(1, *interval_bytes(gathered.tobytes()))
    assert folder.interval_sums() == [
        IntervalSum(attempt=1, end_step=7, ended_us=1000, wait_s=0.5, step_s=3, nodes=2)
    ]


def rows(end_step: int) -> bytes:
    row = np.zeros(1, ROW)
    row["end_step"], row["node"], row["slow_sample"] = end_step, "m1", b"fetch\0a\0k\0a@1\0data/x"
    return row.tobytes()


def test_table_has_the_columns_of_the_format() -> None:
    end_step, data = interval_bytes(rows(7))
    assert end_step == 7
    columns = interval_columns({1: [data]}, "here")
    slow = {name: columns[f"slow_{name}"][0] for name in SLOW_TEXTS}
    assert slow == {"stage": "fetch", "source": "a", "key": "k", "version": "a@1", "path": "data/x"}
    page = (Path(__file__).parents[3] / "docs" / "format.md").read_text()
    section = page.partition("## Training runs")[2].partition("\n## ")[0]
    for name in columns.keys() - {"attempt"}:
        assert f"`{name}`" in section, name
    assert {f"{stage}_s" for stage in SECONDS} | COUNTS.keys() <= columns.keys()
