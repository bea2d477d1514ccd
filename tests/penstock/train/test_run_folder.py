"""The record of runs: what a listing of them reads does not grow with their events."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import loader
from penstock.train import run_folder
from penstock.train.launch.launcher import RunStatus
from penstock.train.run_folder import RunFolder
from penstock.train.submitting import summaries, summary
from penstock.train.windows import ROW, window_bytes


class CountedStore:
    """A store that counts calls."""

    def __init__(self, store: loader.Root) -> None:
        self.store, self.calls = store.store, Counter[str]()

    def __getattr__(self, name: str) -> Any:
        if name in ("get", "head", "list", "put"):
            self.calls[name] += 1
        return getattr(self.store, name)


class EndedRuns:
    """A launcher whose runs have ended."""

    def status(self, run: str) -> RunStatus:
        return RunStatus(state="ended")


def record(folder: RunFolder, n_events: int, n_attempts: int = 2) -> None:
    for _ in range(n_attempts):
        attempt = folder.begin_attempt({"ranks": 1})
        folder.put_event(attempt, 0, "ranks_up", 0, {})
        for number in range(1, n_events):
            folder.put_event(attempt, number, "saved", attempt * 100 + number, {"took_us": 1})


@pytest.mark.parametrize("n_events", [2, 12])
def test_listing_reads_the_newest_events_only(tmp_path: Path, n_events: int) -> None:
    root = loader.Root(tmp_path / "root")
    for run in ("a", "b", "c"):
        record(RunFolder(root.store, run), n_events)
    waits = RunFolder(root.store, "a").begin_attempt({})
    RunFolder(root.store, "a").put_event(waits, 0, "ranks_up", 0, {})
    RunFolder(root.store, "b").put_window(2, 900, b"")
    RunFolder(root.store, "c").ask_to_stop("ann")
    root.store = counted = CountedStore(root)
    listed = summaries(root, EndedRuns())
    assert counted.calls == {"list": 1, "get": 4}, (
        "one for each newest event, and one for a run without a step"
    )
    facts = [(run.run, len(run.attempts), run.step, run.newest.name, run.stopping) for run in listed]
    newest = 200 + n_events - 1
    assert facts == [
        ("a", 3, newest, "ranks_up", False),
        ("b", 2, 900, "saved", False),
        ("c", 2, newest, "saved", True),
    ]


def test_one_run_is_read_whole_and_in_order(tmp_path: Path) -> None:
    root = loader.Root(tmp_path / "root")
    record(RunFolder(root.store, "a"), 30)
    run = summary(RunFolder(root.store, "a"), EndedRuns())
    assert [(event.attempt, event.number) for event in run.events] == [
        (n, k) for n in (1, 2) for k in range(30)
    ]
    assert list(run.attempts) == [1, 2]


def test_many_windows_are_read_by_an_even_choice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_folder, "MOST_WINDOWS", 4)
    folder = RunFolder(loader.Root(tmp_path / "root").store, "a")
    for attempt, steps in ((1, range(1, 7)), (2, range(7, 12))):
        for step in steps:
            row = np.zeros(1, ROW)
            row["end_step"] = step
            folder.put_window(attempt, *window_bytes(row.tobytes()))
    rows = folder.windows()
    chosen = list(zip(rows["attempt"].tolist(), rows["end_step"].tolist(), strict=True))
    assert chosen == [(1, 1), (1, 4), (1, 6), (2, 7), (2, 10), (2, 11)], "the last of each start among them"
