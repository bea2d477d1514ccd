"""Signs read again and again from a record: each one once, at a cost that does not grow with the record."""

import secrets
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loader.dataset.log.entries import canonical
from loader.dataset.reading.read_faults import ReadFault
from loader.errors import StoreError, Transient
from loader.storage import ObjectInfo, Store, open_store
from penstock.compute.cluster import Cluster
from penstock.nodes import recent_keys, signs
from penstock.nodes.node_check import CHECKS, CheckStatus, NodeCheckResult, put_failures
from penstock.nodes.recent_keys import LATE_KEYS, MOST_OBJECTS
from penstock.nodes.signs import LIST_ALL_US, SignReader
from penstock.nodes.suspects import MINUTE_US, LossDifference
from penstock.train.goodput.run_usage import run_goodput
from penstock.train.intervals import ROW, interval_bytes
from penstock.train.launch.launcher import Span
from penstock.train.launch.slurm_job import SlurmJobs
from penstock.train.record_writer import put_faults
from penstock.train.run_folder import RunFolder

DAY_US = 24 * 60 * MINUTE_US
SECOND_US = 1_000_000


def now_us() -> int:
    return time.time_ns() // 1000


class Counted:
    """Counts requests: one per object, and one per page of listed keys."""

    def __init__(self, store: Store) -> None:
        self._store, self.requests, self.failing = store, 0, ""
        self.ahead_us: int | None = None  # of the store's clock; None: it dates no objects

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def get(self, key: str) -> Any:
        self.requests += 1
        if self.failing and self.failing in key:
            raise Transient("planted")
        return self._store.get(key)

    def head(self, key: str) -> Any:
        self.requests += 1
        return self._store.head(key)

    def list(self, prefix: str = "", start_after: str | None = None) -> Iterator[ObjectInfo]:
        self.requests += 1
        for number, info in enumerate(self._store.list(prefix, start_after)):
            self.requests += number % 100 == 99  # pages of a hundred keys
            if self.ahead_us is not None:
                info = replace(info, modified_us=now_us() + self.ahead_us)
            yield info


@pytest.fixture
def store() -> Counted:
    return Counted(open_store(f"memory://signs-{secrets.token_hex(8)}"))


def put_fault(folder: RunFolder, node: str, at_us: int, begin: int = 0) -> None:
    fault = ReadFault("data/a.tar", begin, begin + 10, "00000000", "11111111", "s3://lab", "read", at_us)
    put_faults(folder, {"node": node, "attempt": 1, "rank": 0}, [fault])


def put_interval(folder: RunFolder, attempt: int, step: int, nodes: Sequence[str], ended_us: int = 0) -> None:
    rows = np.zeros(len(nodes), ROW)
    rows["node"], rows["end_step"] = [node.encode() for node in nodes], step
    rows["ended_us"], rows["slow_read_s"] = ended_us or now_us(), 0.02
    folder.put_interval(attempt, *interval_bytes(rows.tobytes()))


def live(store: Store, run: str, n: int) -> RunFolder:
    """A run with a history: n starts, events, intervals, faults."""
    folder = RunFolder(store, run)
    for number in range(n):
        folder.begin_attempt({"node": "m1"})
        folder.put_event(number + 1, 0, "saved", number, {})
        put_interval(folder, number + 1, number + 1, ["m1", "m2"])
        put_fault(folder, "m1", now_us())
    return folder


@pytest.mark.parametrize("n", [5, 250])
def test_cost_of_a_review_does_not_grow_with_the_record(store: Counted, n: int) -> None:
    for number in range(n):
        ended = RunFolder(store, f"ended-{number}")
        ended.put_event(1, 0, "ended", 9, {})
        body = canonical({"format": 1, "at_us": 1, "node": "m1", "check": "c", "text": "t"})
        store.put_if_absent(f"{CHECKS}{number:016d}-m1-{number:08x}.json", body)
    folder = live(store, "big", n)
    spans_of = list[str]()

    def spans(run: str) -> list[Span]:
        spans_of.append(run)
        return []

    reader, later_us = SignReader(store, spans), now_us() + DAY_US + 10 * MINUTE_US
    reader.read(now_us())
    reader.read(later_us)
    spans_of.clear()
    requests = list[int]()
    for seconds in (15, 30, 75):
        store.requests = 0
        reader.read(later_us + seconds * SECOND_US)
        requests.append(store.requests)
    assert requests[:2] == [3, 3], "names of runs, checks, and the run's faults"
    assert requests[2] == 6, "and its intervals, attempts and events"
    assert spans_of == [], "no accounting of a run without news"
    put_interval(folder, n, 1000, ["m1"])
    store.requests = 0
    reader.read(later_us + 140 * SECOND_US)
    assert store.requests == 7
    assert spans_of == ["big"]


@pytest.mark.parametrize("ahead_us", [0, 3650 * DAY_US])
def test_ended_runs_are_not_read_for_ever_if_the_store_dates_them_in_the_future(
    store: Counted, ahead_us: int
) -> None:
    store.ahead_us = ahead_us
    for number in range(5):
        RunFolder(store, f"ended-{number}").put_event(1, 0, "ended", 9, {})
    reader = SignReader(store)
    reader.read(now_us())
    reader.read(now_us() + 40 * DAY_US)
    store.requests = 0
    reader.read(now_us() + 40 * DAY_US + MINUTE_US)
    assert store.requests == 2, "names of runs, and checks"


def test_each_sign_is_read_once_and_a_new_run_is_seen(store: Counted) -> None:
    folder, reader = live(store, "big", 2), SignReader(store)
    first = reader.read(now_us())
    assert (len(first.faults), len(first.intervals), [one.number for one in first.attempts]) == (2, 4, [1])
    put_fault(folder, "m2", now_us())
    put_fault(live(store, "new", 1), "m3", now_us())
    put_failures(store, "m4", [NodeCheckResult(check="c", status=CheckStatus.FAILED, text="hot")])
    signs = reader.read(now_us() + 2 * MINUTE_US)
    assert sorted(fault.node for fault in signs.faults) == ["m1", "m1", "m1", "m2", "m3"]
    assert [check.node for check in signs.checks] == ["m4"]
    assert {interval.run for interval in signs.intervals} == {"big", "new"}
    again = reader.read(now_us() + 4 * MINUTE_US)
    assert (len(again.faults), len(again.intervals), len(again.checks)) == (5, 6, 1)
    assert reader.read(now_us() + 90 * MINUTE_US).faults == []


def test_objects_with_names_of_an_earlier_release_are_read(store: Counted) -> None:
    folder = live(store, "big", 1)
    (info,) = store.list(folder.key("faults/"))
    old = store.get(info.key).data
    store.put_if_absent(folder.key("faults/m1-0123456789abcdef.json"), old)
    check = canonical({"format": 1, "node": "m9", "at_us": now_us(), "check": "c", "text": "t"})
    store.put_if_absent(f"{CHECKS}m9-0123456789abcdef.json", check)
    reader = SignReader(store)
    for _ in range(2):
        signs = reader.read(now_us())
        assert (len(signs.faults), [one.node for one in signs.checks]) == (2, ["m9"])


def test_damaged_and_forged_objects_hide_no_others(store: Counted) -> None:
    folder = live(store, "big", 2)
    later = f"{now_us() + 9:016d}"
    for key in (
        folder.key(f"faults/{later}-m1-0.json"),
        folder.key("events/000001-000001.json"),
        folder.key("attempts/000003.json"),
        folder.key("windows/000001-000000000009.parquet"),
        folder.key("windows/x.parquet"),
        f"{CHECKS}{later}-m1-0.json",
    ):
        store.put_if_absent(key, b"{")
    store.put_if_absent(folder.key("events/000002-000001.json"), b'{"event":"failed","at_us":1e999,"step":1}')
    store.put_if_absent("trainings/-odd/attempts/000001.json", b"{}")
    put_fault(folder, "$(reboot)", now_us())
    put_failures(store, "m 4", [NodeCheckResult(check="c", status=CheckStatus.FAILED, text="hot")])
    signs = SignReader(store).read(now_us())
    assert {fault.node for fault in signs.faults} == {"m1"}
    assert (len(signs.intervals), len(signs.attempts), signs.checks) == (4, 1, [])


@pytest.mark.parametrize("kind", ["faults", "windows", "attempts", "events"])
def test_store_that_fails_costs_no_sign(store: Counted, kind: str) -> None:
    live(store, "big", 3)
    reader = SignReader(store)
    store.failing = f"{kind}/"
    with pytest.raises(StoreError):
        reader.read(now_us())
    store.failing = ""
    signs = reader.read(now_us())
    assert (len(signs.faults), len(signs.intervals), [one.number for one in signs.attempts]) == (3, 6, [1, 2])


@pytest.mark.parametrize("kind", ["attempts", "events", "compare"])
def test_change_is_judged_after_a_store_failed_for_long(store: Counted, kind: str) -> None:
    folder, compared = live(store, "big", 2), list[str]()
    first_us = now_us()

    def losses(run: str) -> list[LossDifference]:
        if store.failing == "compare":
            raise Transient("planted")
        compared.append(run)
        return []

    reader = SignReader(store, losses=losses)
    reader.read(first_us)
    reader.read(first_us + 20 * MINUTE_US)
    assert compared == ["big"], "nothing changed"
    folder.begin_attempt({"node": "m1"})
    put_interval(folder, 2, 9, ["m1", "m2"])
    folder.put_event(2, 1, "failed", 9, {})
    folder.put_event(3, 0, "saved", 9, {})
    store.failing = kind
    for minutes in (30, 45):
        with pytest.raises(StoreError):
            reader.read(first_us + minutes * MINUTE_US)
    store.failing = ""
    signs = reader.read(first_us + 60 * MINUTE_US)
    assert ([one.number for one in signs.attempts], compared) == ([1, 2], ["big"] * 2)


def test_very_many_faults_are_read_over_several_reviews(store: Counted) -> None:
    folder = live(store, "big", 0)
    folder.begin_attempt({})
    for number in range(MOST_OBJECTS + 10):
        put_fault(folder, "m1", now_us(), number)
    reader = SignReader(store)
    assert [len(reader.read(now_us()).faults) for _ in range(2)] == [MOST_OBJECTS, MOST_OBJECTS + 10]


def test_steps_of_attempts_come_from_events_and_intervals(store: Counted) -> None:
    folder = RunFolder(store, "big")
    for number in (1, 2):
        folder.begin_attempt({"node": "m1"})
        folder.put_event(number, 0, "saved", 10 * number, {})
        put_interval(folder, number, 10 * number + 5, ["m1"])
    folder.put_event(2, 1, "failed", 27, {})
    attempts = SignReader(store).read(now_us()).attempts
    assert [(one.end_step, one.saved_step, one.failed) for one in attempts] == [
        (15, 10, True),
        (27, 20, True),
    ]


def crash_run(store: Store, run: str) -> RunFolder:
    """A run whose first start failed on m1 and m2."""
    folder = RunFolder(store, run)
    for _ in range(2):
        folder.begin_attempt({"node": "m1"})
    put_interval(folder, 1, 9, ["m1", "m2"])
    return folder


def test_first_reading_that_fails_is_repeated_for_runs_that_ended(store: Counted) -> None:
    crash_run(store, "old")
    reader, later_us = SignReader(store), now_us() + 2 * DAY_US
    store.failing = "attempts/"
    with pytest.raises(StoreError):
        reader.read(later_us)
    store.failing = ""
    for seconds in (15, 90):
        signs = reader.read(later_us + seconds * SECOND_US)
        assert [one.nodes for one in signs.attempts] == [("m1", "m2")]


@pytest.mark.parametrize("fails", ["store", "interval"])
def test_nodes_of_an_old_start_are_read_again_or_dropped(tmp_path: Path, fails: str) -> None:
    """Its intervals are older than those that are read for slow nodes."""
    store = Counted(open_store(str(tmp_path)))
    folder, later_us = crash_run(store, "old"), now_us() + 3 * 60 * MINUTE_US
    crash_run(store, "other")
    if fails == "interval":
        store.put_if_absent(folder.key("windows/000001-000000000010.parquet"), b"PAR1")
    reader = SignReader(store)
    if fails == "store":
        store.failing = "old/windows/"
        with pytest.raises(StoreError):
            reader.read(later_us)
        store.failing = ""
    nodes = {one.run: one.nodes for one in reader.read(later_us + 15 * SECOND_US).attempts}
    assert nodes == {"old": ("m1",) if fails == "interval" else ("m1", "m2"), "other": ("m1", "m2")}


@pytest.mark.parametrize("kind", ["attempts", "events", "windows"])
def test_very_many_forged_keys_hide_no_later_sign(store: Counted, kind: str) -> None:
    folder, reader = live(store, "big", 2), SignReader(store)
    for number in range(2 * LATE_KEYS):
        store.put_if_absent(folder.key(f"{kind}/99{number:04d}-999999999999.parquet"), b"{")
    reader.read(now_us())
    put_interval(folder, 2, 1000, ["m9"])
    folder.put_event(2, 1, "failed", 1000, {})
    store.put_if_absent(folder.key("attempts/000003.json"), canonical({"at_us": now_us()}))
    signs = reader.read(now_us() + LIST_ALL_US)
    assert "m9" in {interval.node for interval in signs.intervals}
    assert [one.number for one in signs.attempts] == [1, 2]


@pytest.mark.parametrize("behind_us", [10 * MINUTE_US, -10 * MINUTE_US, -DAY_US])
def test_signs_of_a_node_with_another_clock_count(store: Counted, behind_us: int) -> None:
    folder, reader = live(store, "big", 0), SignReader(store)
    folder.begin_attempt({})
    put_fault(folder, "m1", now_us() - behind_us)
    body = canonical({"node": "m2", "at_us": now_us() - behind_us, "check": "c", "text": "hot"})
    store.put_if_absent(f"{CHECKS}{now_us():016d}-m2-0.json", body)
    put_interval(folder, 1, 9, ["m3"], ended_us=now_us() - behind_us)
    later_us = now_us() + 40 * MINUTE_US
    for at_us in (now_us(), later_us):
        signs = reader.read(at_us)
        assert [one.node for one in (*signs.faults, *signs.checks, *signs.intervals)] == ["m1", "m2", "m3"]
        assert all(one.at_us <= now_us() for one in (*signs.faults, *signs.checks))
        assert all(one.ended_us <= now_us() for one in signs.intervals)


@pytest.mark.parametrize("reads", [1, 2])
def test_forged_faults_of_one_node_hide_no_other_node(
    store: Counted, monkeypatch: pytest.MonkeyPatch, reads: int
) -> None:
    monkeypatch.setattr(recent_keys, "MOST_OBJECTS", 20)
    monkeypatch.setattr(signs, "MOST_SIGNS", 30)
    folder = live(store, "big", 0)
    folder.begin_attempt({})
    for number in range(40):
        put_fault(folder, "m1", now_us(), number)
    for number in range(3):
        put_fault(folder, "m2", now_us(), 100 + number)
        put_fault(folder, "forged", now_us(), 200 + number)
    reader = SignReader(store)
    for _ in range(reads):
        faults = reader.read(now_us(), ["m1", "m2"]).faults
    assert [one.begin for one in faults if one.node == "m2"] == [100, 101, 102]
    assert {one.node for one in faults} == {"m1", "m2"}


@pytest.mark.parametrize(
    "name", ["windows/x", "windows/999999-999999999999.parquet", "events/999999-999999.json"]
)
def test_forged_last_key_hides_no_later_sign(store: Counted, name: str) -> None:
    folder, reader = live(store, "big", 100), SignReader(store)
    store.put_if_absent(folder.key(name), b"{")
    reader.read(now_us())
    put_interval(folder, 100, 1000, ["m9"])
    folder.put_event(100, 1, "failed", 1000, {})
    signs = reader.read(now_us() + 2 * MINUTE_US)
    assert "m9" in {interval.node for interval in signs.intervals}
    assert signs.attempts[-1].number == 100


def test_event_that_comes_after_those_of_the_next_start_counts(store: Counted) -> None:
    folder, reader = live(store, "big", 2), SignReader(store)
    assert [one.failed for one in reader.read(now_us()).attempts] == [True]
    folder.put_event(1, 1, "stopped", 5, {})
    assert [one.failed for one in reader.read(now_us() + 2 * MINUTE_US).attempts] == [False]


@pytest.mark.parametrize("ahead_us", [9 * MINUTE_US, 0, -9 * MINUTE_US])
def test_preemption_on_a_node_with_another_clock_is_no_crash(store: Counted, ahead_us: int) -> None:
    """Its start begins before, or after, the time that the scheduler gave to it."""
    folder, begun_us = RunFolder(store, "big"), now_us() - 60 * MINUTE_US
    folder.begin_attempt({"node": "m1", "at_us": begun_us + SECOND_US + ahead_us})
    folder.begin_attempt({"node": "m2", "at_us": begun_us + 50 * MINUTE_US})
    spans = [
        Span(begun_us=begun_us, ended_us=begun_us + 5 * SECOND_US, state="PREEMPTED"),
        Span(begun_us=begun_us + 50 * MINUTE_US, ended_us=None, state="RUNNING"),
    ]
    (attempt,) = SignReader(store, lambda run: spans).read(now_us()).attempts
    assert (attempt.number, attempt.failed) == (1, False)


def test_start_is_no_crash_on_a_cluster_without_accounting(store: Counted, tmp_path: Path) -> None:
    """A preemption without a grace leaves no event. Goodput takes the record only."""
    live(store, "big", 2)
    slurm = tmp_path / "slurm"
    slurm.write_text("#!/bin/sh\necho 'Slurm accounting storage is disabled' >&2\nexit 1\n")
    slurm.chmod(0o755)
    launcher = SlurmJobs(str(tmp_path), Cluster(engine="slurm", submit=(str(slurm),)))
    assert SignReader(store, launcher.spans).read(now_us()).attempts == []
    assert [one.attempt for one in run_goodput(RunFolder(store, "big"), launcher)] == [1, 2]


def test_interval_has_a_row_per_node(store: Counted) -> None:
    folder = RunFolder(store, "big")
    rows = np.zeros(5, ROW)
    rows["node"], rows["end_step"], rows["ended_us"] = [b"m1", b"m1", b"m2", b"m1", b"m2"], 9, now_us()
    rows["slow_read_s"] = [0.1, 0.3, 0, 0.2, 0]
    folder.put_interval(1, *interval_bytes(rows.tobytes()))
    intervals = SignReader(store).read(now_us()).intervals
    assert [(one.node, one.slow_read_s) for one in intervals] == [("m1", 0.2), ("m2", 0.0)]


def test_run_of_a_node_whose_clock_is_ahead_at_midnight_is_read(store: Counted) -> None:
    reader, folder = SignReader(store), RunFolder(store, "new")
    midnight_us = (now_us() // DAY_US + 2) * DAY_US
    reader.read(midnight_us - 2 * MINUTE_US)
    day = time.strftime("%Y-%m-%d", time.gmtime(midnight_us / 1e6))
    store.put_if_absent(f"nodes/runs/{day}/new", b"")
    put_fault(folder, "m3", midnight_us)
    (info,) = store.list(folder.key("faults/"))
    store.put_if_absent(folder.key(f"faults/{midnight_us:016d}-m3-0.json"), store.get(info.key).data)
    assert [one.node for one in reader.read(midnight_us - MINUTE_US).faults] == ["m3"]


def test_very_large_object_is_left_out_and_named_once(
    store: Counted, caplog: pytest.LogCaptureFixture
) -> None:
    folder = live(store, "big", 1)
    store.put_if_absent(folder.key("events/000001-000077.json"), b" " * 2**24)
    store.put_if_absent(folder.key(f"faults/{now_us():016d}-m1-0.json"), b" " * 2**24)
    store.put_if_absent(f"{CHECKS}{now_us():016d}-m1-0.json", b" " * 2**24)
    store.failing = "-m1-0.json"
    reader = SignReader(store)
    for _ in range(2):
        assert len(reader.read(now_us() + 2 * MINUTE_US).faults) == 1
    left_out = [text for text in caplog.messages if "16,777,216 bytes" in text]
    assert [sum(kind in text for text in left_out) for kind in ("faults/", "checks/", "events/")] == [1, 1, 1]


def test_forged_faults_do_not_fill_the_memory(store: Counted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signs, "MOST_SIGNS", 1500)
    folder = live(store, "big", 1)
    faults = [ReadFault("a", n, n + 1, "", "", "", "read", now_us()) for n in range(3000)]
    for number in range(3):
        put_faults(folder, {"node": f"m{number}", "attempt": 1, "rank": 0}, faults)
    read = sorted(SignReader(store).read(now_us()).faults, key=lambda one: (one.node, one.begin))
    assert [(one.node, one.begin) for one in read[::500]] == [("m0", 2500), ("m1", 2500), ("m2", 2500)]
