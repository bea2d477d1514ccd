"""Requests of a scrape: three, and two for each live run, whatever the history holds."""

import secrets
import time
from collections.abc import Iterator
from typing import Any

import pytest

import loader
from loader.dataset.root import root_in_store
from loader.dataset.tables.small_tables import parse_small_table
from loader.storage import ObjectInfo, Store, open_store
from penstock.metrics.root_reader import RootReader
from penstock.train.run_folder import RunFolder
from tests.penstock.metrics.histories import even_steps, put_interval, put_start, put_steps

PAGE = 1000


class Counted:
    """Counts requests: one for each object, and one for each page of listed keys."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.requests = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def get(self, key: str, *more: Any, **options: Any) -> Any:
        self.requests += 1
        return self._store.get(key, *more, **options)

    def head(self, key: str) -> Any:
        self.requests += 1
        return self._store.head(key)

    def list(self, prefix: str = "", start_after: str | None = None) -> Iterator[ObjectInfo]:
        self.requests += 1
        for number, info in enumerate(self._store.list(prefix, start_after)):
            self.requests += number > 0 and number % PAGE == 0
            yield info


@pytest.fixture
def store() -> Counted:
    return Counted(open_store(f"memory://metrics-{secrets.token_hex(8)}"))


def begin_runs(root: loader.Root, n_runs: int, n_old: int) -> None:
    """Make a dataset, live runs with a short history, and `n_old` runs of last year."""
    with root.write("photos") as writer:
        writer.add("k", {"txt": "x"})
    now_us = time.time_ns() // 1000
    for number in range(n_runs):
        run = f"run-{number}"
        attempt = put_start(root.store, run, now_us)
        put_steps(root.store, run, even_steps(0, 3, now_us))
        put_interval(root.store, run, attempt, 3, now_us)
        RunFolder(root.store, run).put_event(attempt, 0, "first_batch", 0, {})
    for number in range(n_old):
        root.store.put(f"nodes/runs/2020-01-01/old-{number}", b"")


@pytest.mark.parametrize(("n_runs", "n_old"), [(2, 1500), (9, 0)])
def test_scrape_makes_three_requests_and_two_for_each_live_run(
    store: Counted, n_runs: int, n_old: int
) -> None:
    root = root_in_store(store, "crc32c")
    begin_runs(root, n_runs, n_old)
    reader = RootReader(root)
    reader.read()
    most = 3 + 2 * n_runs
    costs = []
    for scrape in range(8):
        now_us = time.time_ns() // 1000
        for number in range(n_runs):
            # A training writes an object of its log and an interval each minute.
            run = f"run-{number}"
            put_steps(store, run, even_steps(3 + 3 * scrape, 3, now_us))
            put_interval(store, run, 1, 6 + 3 * scrape, now_us)
        store.requests = 0
        reader.read()
        costs.append(store.requests)
    assert max(costs) <= most, costs
    assert len(reader.runs) == n_runs
    for _ in range(20):  # the writers pause, and the scrapes catch up
        reader.read()
    steps = {run.trail.last_step for run in reader.runs.values()}
    assert steps == {3 + 3 * 8 - 1}


def test_first_scrape_reads_each_object_and_parses_each_interval_once(
    store: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = root_in_store(store, "crc32c")
    begin_runs(root, 12, 0)
    parsed: list[str] = []

    def record_parse(data: bytes, name: str, *more: Any) -> Any:
        parsed.append(name)
        return parse_small_table(data, name, *more)

    monkeypatch.setattr("loader.dataset.tables.small_tables.parse_small_table", record_parse)
    store.requests = 0
    RootReader(root).read()
    # Of each run: its log and its record are listed, and start, steps, interval and event are read.
    assert store.requests <= 12 * 6 + 8
    assert len(parsed) == len(set(parsed)) == 12


def test_scrape_of_a_long_run_lists_only_new_objects(store: Counted) -> None:
    root = root_in_store(store, "crc32c")
    begin_runs(root, 1, 0)
    now_us = time.time_ns() // 1000
    for number in range(2500):
        store.put(f"trainings/run-0/windows/000001-{number + 100:012d}.parquet", b"")
        store.put(f"trails/run-0/0-of-1/{number + 100:019d}-{number:016x}.parquet", b"")
    put_steps(store, "run-0", even_steps(5000, 3, now_us))
    reader = RootReader(root)
    reader.read()
    costs = []
    for number in range(20):
        RunFolder(store, "run-0").put_event(1, number + 1, "saved", 5000 + number, {})
        store.requests = 0
        reader.read()
        costs.append(store.requests)
    # One turn in four goes through the logs of all runs, page by page.
    assert max(costs) <= 3 + 2, costs
    for _ in range(60):
        reader.read()
    assert reader.runs["run-0"].record.checkpoint[0] == 5019
