"""The record of runs: what a listing of them reads does not grow with their events."""

import threading
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import loader
from loader.dataset.tables.parquet import parse_table, table_bytes
from loader.errors import Corrupt, Transient
from penstock.checkpoints import planned_steps
from penstock.nodes.signs import read_signs
from penstock.train import intervals, run_folder
from penstock.train.intervals import ROW, TABLE, interval_bytes
from penstock.train.launch.launcher import RunStatus
from penstock.train.record_writer import RunRecord
from penstock.train.replay_run import step_nodes
from penstock.train.run_folder import RunFolder, runs
from penstock.train.submitting import briefs, summaries, summary
from penstock.verbs.train import _newest
from tests.refusals import refusal
from tests.servers.patience import PATIENCE_S


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

    def statuses(self, runs: Sequence[str]) -> dict[str, RunStatus]:
        return {run: self.status(run) for run in runs}


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
    RunFolder(root.store, "b").put_interval(2, 900, b"")
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


def test_damaged_or_foreign_object_hides_no_run(tmp_path: Path) -> None:
    root = loader.Root(tmp_path / "root")
    for run in ("a", "b"):
        record(RunFolder(root.store, run), 2)
    root.store.put("trainings/a/events/000009-000000.json", b"{")
    for key in ("README", "x,y/spec.json", "é/attempts/000001.json", f"{'n' * 101}/stop"):
        root.store.put(f"trainings/{key}", b"{}")
    listed = summaries(root, EndedRuns())
    assert [run.run for run in listed] == runs(root.store) == ["a", "b"]
    assert "000009-000000.json is not a valid event" in listed[0].problem
    assert (listed[1].problem, listed[1].newest.name) == ("", "saved")
    assert "is not a valid event" in _newest(listed[0])


def test_one_run_is_read_whole_and_in_order(tmp_path: Path) -> None:
    root = loader.Root(tmp_path / "root")
    record(RunFolder(root.store, "a"), 30)
    run = summary(RunFolder(root.store, "a"), EndedRuns())
    assert [(event.attempt, event.number) for event in run.events] == [
        (n, k) for n in (1, 2) for k in range(30)
    ]
    assert list(run.attempts) == [1, 2]
    RunFolder(root.store, "a").put_interval(2, 900, b"")
    assert summary(RunFolder(root.store, "a"), EndedRuns()).step == 900, "as `ls` has it"


def test_many_intervals_are_read_by_an_even_choice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_folder, "MOST_INTERVALS", 4)
    folder = RunFolder(loader.Root(tmp_path / "root").store, "a")
    for attempt, steps in ((1, range(1, 7)), (2, range(7, 12))):
        for step in steps:
            row = np.zeros(1, ROW)
            row["end_step"] = step
            folder.put_interval(attempt, *interval_bytes(row.tobytes()))
    rows = folder.intervals()
    chosen = list(zip(rows["attempt"].tolist(), rows["end_step"].tolist(), strict=True))
    assert chosen == [(1, 1), (1, 4), (1, 6), (2, 7), (2, 10), (2, 11)], "the last of each start among them"


def peak(folder: RunFolder) -> int:
    """Return the most bytes that sums of a run's intervals take at once, arrow's among them."""
    tracemalloc.start()
    before = pa.total_allocated_bytes()
    most, alive = 0, folder.store.get

    def get(key: str) -> Any:
        nonlocal most
        most = max(most, pa.total_allocated_bytes() - before)
        return alive(key)

    folder.store = CountedStore(folder)  # type: ignore[arg-type, assignment]
    folder.store.get = get  # type: ignore[method-assign]
    folder.interval_sums()
    most += tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return most


def test_memory_of_sums_does_not_grow_with_intervals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_folder, "AT_ONCE", 1)
    ranks = np.zeros(1000, ROW)
    ranks["rank"], ranks["node"] = np.arange(1000), [f"m{rank // 8}" for rank in range(1000)]
    peaks = []
    for n_intervals in (4, 24):
        folder = RunFolder(loader.Root(tmp_path / str(n_intervals)).store, "a")
        for step in range(1, n_intervals + 1):
            ranks["end_step"] = step
            folder.put_interval(1, *interval_bytes(ranks.tobytes()))
        peaks.append(peak(folder))
    assert peaks[1] < 2 * peaks[0]


class BusyStore:
    """A store that knows how many intervals are read at once. together: how many it waits for before it answers."""

    def __init__(self, store: Any, together: int) -> None:
        self._store, self._lock, self.now, self.most = store, threading.Lock(), 0, 0
        self._together = threading.Barrier(together)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def get(self, key: str) -> Any:
        if "/windows/" not in key:
            return self._store.get(key)
        with self._lock:
            self.now += 1
            self.most = max(self.most, self.now)
        self._together.wait(PATIENCE_S)
        time.sleep(0.02)
        with self._lock:
            self.now -= 1
        return self._store.get(key)


@pytest.mark.parametrize(("large", "most"), [(False, 8), (True, 1)])
def test_large_intervals_are_in_memory_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, large: bool, most: int
) -> None:
    store = BusyStore(loader.Root(tmp_path).store, most)
    folder = RunFolder(store, "a")
    row = np.zeros(1, ROW)
    for step in range(1, 9):
        row["end_step"], row["node"], row["ended_us"] = step, b"m1", time.time_ns() // 1000
        folder.put_interval(1, *interval_bytes(row.tobytes()))
    monkeypatch.setattr(run_folder, "LARGE_BYTES", 0 if large else 10**6)
    assert len(folder.interval_sums()) == 8
    assert store.most == most
    store.most = 0
    assert len(read_signs(store, time.time_ns() // 1000).intervals) == 8
    assert store.most == most


def test_starts_of_one_moment_have_two_numbers(tmp_path: Path) -> None:
    """Else they would share intervals and events."""
    store = loader.Root(tmp_path / "root").store
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("time.time_ns", lambda: 7_000)
        patched.setattr(RunFolder, "_starts", lambda folder: iter(()))  # neither lists the other
        for _ in range(2):
            record = RunRecord(store, "a", {"ranks": 1, "node": "m1"})
            record.event("ranks_up", 0)
            record.close()
    assert list(RunFolder(store, "a").attempts()) == [1, 2]
    assert [event.attempt for event in RunFolder(store, "a").events()] == [1, 2]


def test_forged_start_with_a_high_number_changes_no_other(tmp_path: Path) -> None:
    folder = RunFolder(loader.Root(tmp_path / "root").store, "a")
    folder.begin_attempt({"ranks": 1})
    folder.store.put(folder.key("attempts/999999.json"), b"{}")
    assert [folder.begin_attempt({"ranks": ranks}) for ranks in (2, 3)] == [2, 3]


def test_start_whose_answer_was_lost_has_one_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = RunFolder(loader.Root(tmp_path / "root").store, "a")
    folder.begin_attempt({"ranks": 1})
    put, lost = folder.store.put_if_absent, threading.Event()

    def put_if_absent(key: str, data: bytes) -> None:
        put(key, data)
        if key.endswith("attempts/000002.json") and not lost.is_set():
            lost.set()
            raise Transient("no answer")

    monkeypatch.setattr(folder.store, "put_if_absent", put_if_absent)
    record = RunRecord(folder.store, "a", {"ranks": 1})
    record.event("ranks_up", 0)
    assert lost.wait(PATIENCE_S)
    record.event("ended", 9)
    record.close()
    assert list(folder.attempts()) == [1, 2]
    assert [(event.attempt, event.name) for event in folder.events()] == [(2, "ranks_up"), (2, "ended")]


EVENT = b'{"event":"saved","at_us":1,"step":1}'


@pytest.mark.parametrize(
    ("name", "data", "read"),
    [
        ("spec.json", b'{"run":"b","command":["true"],"record":"r"}', RunFolder.spec),
        ("spec.json", b'{"run":"a","command":["true"],"record":"r","nodes":"0"}', RunFolder.spec),
        ("spec.json", b"[]", RunFolder.spec),
        ("attempts/000001.json", b'{"at_us":"7"}', RunFolder.attempts),
        ("attempts/000001.json", b'{"ranks":1}', RunFolder.attempts),
        ("attempts/000001.json", b'{"at_us":7,"ranks":1e400}', RunFolder.attempts),
        ("events/000001-000001.json", b'{"event":"saved","at_us":1e400,"step":1}', RunFolder.events),
        ("events/000001-000001.json", b'{"event":"saved","at_us":1,"step":true}', RunFolder.events),
        (
            "events/000001-000001.json",
            b'{"event":"saved","at_us":1,"step":1,"took_us":"x"}',
            RunFolder.events,
        ),
        (
            "events/000001-000001.json",
            b'{"event":"saved","at_us":%d,"step":1}' % 10**40,
            RunFolder.events,
        ),
        ("windows/000001-000000000001.parquet", b"PAR1", RunFolder.interval_sums),
        ("attempts/000001.json", b'{"at_us":7}' + b" " * 2**20, RunFolder.attempts),
        ("events/000001-000001.json", EVENT + b" " * 2**20, RunFolder.events),
    ],
)
def test_forged_object_is_named(
    tmp_path: Path, name: str, data: bytes, read: Callable[[RunFolder], Any]
) -> None:
    folder = RunFolder(loader.Root(tmp_path / "root").store, "a")
    folder.store.put(folder.key(name), data)
    kinds = {"spec.json": "file of the run", "attempts": "start", "events": "event", "windows": "table"}
    with refusal(Corrupt, what=kinds[name.partition("/")[0]], where=f"{folder.store.url}/{folder.key(name)}"):
        read(folder)


@pytest.mark.parametrize("folder_of", [RunFolder.attempts, RunFolder.events])
def test_record_of_more_objects_than_a_run_has_is_read_no_further(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder_of: Callable[[RunFolder], Any]
) -> None:
    folder = RunFolder(loader.Root(tmp_path / "root").store, "a")
    record(folder, n_events=2, n_attempts=4)
    assert len(folder_of(folder)) >= 4
    monkeypatch.setattr(run_folder, "MOST_OBJECTS", 3)
    with refusal(Corrupt, what=folder_of.__name__, where=folder.store.url, accepted=[3, 33554432]):
        folder_of(folder)
    assert [brief.run for brief in briefs(folder.store)] == ["a"]


@pytest.mark.parametrize(
    ("column", "values", "what"),
    [
        ("ended_us", pa.array(["now"]), "table of intervals"),
        ("ended_us", pa.array([None], pa.int64()), "rows"),
        ("wait_s", pa.array([float("nan")]), "seconds"),
        ("node", None, "table of intervals"),
        ("rank", pa.array([], pa.int32()), "rows"),
    ],
)
def test_forged_interval_is_named(tmp_path: Path, column: str, values: pa.Array | None, what: str) -> None:
    folder = RunFolder(loader.Root(tmp_path / "root").store, "a")
    table = parse_table(interval_bytes(np.zeros(1, ROW).tobytes())[1], "here")
    place = table.column_names.index(column)
    if values is None:
        table = table.remove_column(place)
    elif not len(values):
        table = table.slice(0, 0)
    else:
        table = table.set_column(place, column, values)
    folder.put_interval(1, 5, table_bytes(table, TABLE))
    with refusal(Corrupt, what=what, within="windows/000001-000000000005.parquet"):
        folder.interval_sums()
    if column != "wait_s":
        with refusal(Corrupt, what=what, within="/windows/"):
            folder.intervals()


def test_objects_that_are_no_intervals_count_for_nobody(tmp_path: Path) -> None:
    """One rule for every reader: `train`, `seen --runs`, signs of nodes and replays."""
    folder = RunFolder(loader.Root(tmp_path / "root").store, "a")
    folder.begin_attempt({"at_us": 1, "node": "m1"})
    folder.put_event(1, 0, "first_batch", 0, {"plan": "p"}, at_us=1)
    for name in ("1-900.parquet", "000001-x.parquet", "000001-000000000900.parquet.tmp", "x/900"):
        folder.store.put(folder.key(f"windows/{name}"), b"no table")
    assert folder.interval_keys() == []
    assert folder.interval_sums() == []
    assert [(one.first, one.end) for one in planned_steps._start_plans(folder.store, "a")] == [(0, 1)]
    assert read_signs(folder.store, 10**15).intervals == []
    assert step_nodes(folder, 0, 1000) == ()
    assert briefs(folder.store)[0].interval_step == 0


@pytest.mark.parametrize("name", ["m[1-1000]", "m1,m2", "", "-x", "m1 m2", "ALL\n"])
def test_node_of_a_record_is_no_list_of_nodes(tmp_path: Path, name: str) -> None:
    """It would leave out others: sbatch reads lists."""
    folder = RunFolder(loader.Root(tmp_path / "root").store, "a")
    row = np.zeros(1, ROW)
    row["end_step"], row["node"] = 9, name.encode()
    folder.put_interval(1, *interval_bytes(row.tobytes()))
    with refusal(Corrupt, what="node", accepted="a host name", within="trainings/a/windows/"):
        step_nodes(folder, 3, 5)


HUGE = 1_500 * 2**20


def test_huge_event_is_not_read(tmp_path: Path) -> None:
    """Whoever writes the record chooses its size; the file has a hole, so a reader would take 1.5 GiB."""
    root = loader.Root(tmp_path / "root")
    for run in ("a", "b"):
        record(RunFolder(root.store, run), 2)
    with (tmp_path / "root" / "trainings" / "a" / "events" / "000009-000000.json").open("wb") as file:
        file.truncate(HUGE)
    tracemalloc.start()
    listed = summaries(root, EndedRuns())
    assert f"it has {HUGE:,} bytes" in listed[0].problem
    assert (listed[1].problem, listed[1].newest.name) == ("", "saved")
    with refusal(Corrupt, what="events", where=f"{tmp_path}/root", accepted=[100000, 33554432]):
        summary(RunFolder(root.store, "a"), EndedRuns())
    assert tracemalloc.get_traced_memory()[1] < 2**24
    tracemalloc.stop()


@pytest.mark.parametrize("name", ["spec.json", "changes/000001.json"])
def test_huge_file_of_a_run_is_not_read(tmp_path: Path, name: str) -> None:
    root = loader.Root(tmp_path / "root")
    record(RunFolder(root.store, "a"), 2)
    path = tmp_path / "root" / "trainings" / "a" / name
    path.parent.mkdir(exist_ok=True)
    with path.open("wb") as file:
        file.truncate(HUGE)
    with refusal(Corrupt, where=f"{root.url}/trainings/a/{name}", given=HUGE, accepted=2**20):
        RunFolder(root.store, "a").spec()


def test_events_of_a_run_are_bounded_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_folder, "MOST_EVENT_BYTES", 500)
    folder = RunFolder(loader.Root(tmp_path / "root").store, "a")
    record(folder, 2, n_attempts=1)
    assert len(folder.events()) == 2
    record(folder, 9)
    with refusal(Corrupt, what="events", where=f"{tmp_path}/root", accepted=[100000, 500]):
        folder.events()


def test_small_files_of_very_many_rows_are_read_by_a_choice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Equal rows compress to nothing: six intervals have some KB, and 100 MB in memory."""
    monkeypatch.setattr(intervals, "MOST_ROW_BYTES", 2**25)
    folder = RunFolder(loader.Root(tmp_path / "root").store, "a")
    ranks = np.zeros(50_000, ROW)
    for step in range(1, 7):
        ranks["end_step"] = step
        folder.put_interval(1, *interval_bytes(ranks.tobytes()))
    assert sum(key.nbytes for key in folder.interval_keys()) < 2**20
    steps = folder.intervals()["end_step"]
    assert len(steps) * 270 < 2**25, "the columns of numbers of a row have 270 bytes"
    assert steps.max() == 6, "the last interval is among them"


def test_one_interval_of_too_many_rows_is_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intervals, "MOST_ROW_BYTES", 1000)
    folder = RunFolder(loader.Root(tmp_path / "root").store, "a")
    ranks = np.zeros(9, ROW)
    folder.put_interval(1, *interval_bytes(ranks.tobytes()))
    with refusal(Corrupt, what="windows", where=f"{tmp_path}/root/trainings/a/windows/", accepted=1000):
        folder.intervals()
