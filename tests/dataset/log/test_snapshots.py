"""State hints: believed only when they belong to the log, and what opening and refreshing cost."""

import hashlib
import json
import logging
from uuid import uuid4

import pytest

from loader.dataset.log.entries import canonical, entry_key
from loader.dataset.log.log import Log
from loader.dataset.log.snapshots import HINT_EVERY, LogListing, dump_state, hint_key, list_log, old_hints
from loader.errors import Forbidden, Transient
from loader.storage import open_store


class Counted:
    """A store that counts its requests; `fails` are (verb, key prefix, error) to raise instead."""

    def __init__(self, store):
        self.store, self.url, self.requests, self.fails = store, store.url, [], []

    def _ask(self, verb, key, *args):
        self.requests.append((verb, key))
        for failing, prefix, error in self.fails:
            if verb == failing and key.startswith(prefix):
                raise error(f"{verb} {key}")
        return getattr(self.store, verb)(key, *args)

    def get(self, key):
        return self._ask("get", key)

    def put(self, key, data):
        return self._ask("put", key, data)

    def put_if_absent(self, key, data):
        return self._ask("put_if_absent", key, data)

    def list(self, prefix="", start_after=None):
        return self._ask("list", prefix, start_after)


@pytest.fixture
def store():
    return Counted(open_store(f"memory://hints-{uuid4().hex}"))


def grow(log, entries):
    """Append `entries` entries: begin and commit by turns, and at the end a begin."""
    for k in range(entries):
        if k % 2 == 0:
            txn = log.begin("photos").txn
        else:
            sha256 = hashlib.sha256(txn.encode()).hexdigest()
            log.append(lambda s, txn=txn, sha256=sha256: commit(s, txn, sha256))


def commit(state, txn, sha256):
    newest = state.newest("photos")
    return {
        "kind": "commit",
        "txn": txn,
        "dataset": "photos",
        "number": len(state.versions("photos")) + 1,
        "id": f"v-{sha256}",
        "manifest": "m.json",
        "sha256": sha256,
        "parent": newest.id if newest else None,
        "denies": 0,
    }


def hints(store):
    return [info.key for info in store.store.list("log/state-")]


def fresh_state(store):
    """(the state a fresh reader sees, his requests)"""
    store.requests.clear()
    return Log(store).state, list(store.requests)


def warnings(caplog):
    return [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]


def test_file_that_is_no_hint_is_none_and_takes_the_place_of_none(store):
    """Whatever lies beside them: a collector deletes it no more than it keeps it for one of the newest."""
    named = [hint_key(256 * n) for n in range(1, 6)]
    odd = [
        "notes.txt",
        "000000000001.bak",
        "000000009999",
        "00000000001.json",
        "0000000000011.json",
        "x000000009999.json",
    ]
    for key in [*named, *(f"log/state-{name}" for name in odd)]:
        store.put(key, b"x")
    assert [info.key for info in old_hints(store)] == named[:1]
    assert list_log(store.store) == LogListing(hints=(256, 512, 768, 1024, 1280), last=0)


def test_600_entries_fold_alike_with_and_without_hints(store):
    log = Log(store)
    grow(log, 600)
    assert hints(store) == [hint_key(256), hint_key(512)]
    assert store.get(hint_key(512)).data == canonical(json.loads(store.get(hint_key(512)).data))
    with_hints, requests = fresh_state(store)
    store.store.delete_many(hints(store))
    without, more_requests = fresh_state(store)
    assert with_hints == without == log.state == log.verify()
    assert len(requests) < 130 < 600 < len(more_requests)
    assert hints(store) == [hint_key(512)]  # the reader puts back the one that saves the most
    assert fresh_state(store)[0] == log.state


def test_opening_costs_the_entries_since_the_hint_whatever_the_log_has(store):
    log = Log(store)
    counts = {}
    for size in (HINT_EVERY + 10, 8 * HINT_EVERY + 10):
        grow(log, size - log.state.n)
        counts[size] = len(fresh_state(store)[1])
    assert len(set(counts.values())) == 1, counts
    # one listing, one hint, 10 entries, of which the first says the hint's checksum, and what may come after them
    assert counts[HINT_EVERY + 10] == 2 + 10 + 1


def test_refresh_costs_one_request_when_there_is_nothing_new(store):
    log, other = Log(store), Log(store)
    grow(log, 20)
    other.refresh()
    store.requests.clear()
    assert other.state == log.state
    store.requests.clear()
    other.refresh()
    assert store.requests == [("get", entry_key(21))]


def test_append_costs_one_probe_one_listing_and_one_put(store):
    log = Log(store)
    grow(log, 5)
    store.requests.clear()
    log.begin("photos")
    assert store.requests == [("get", entry_key(6)), ("list", "log/"), ("put_if_absent", entry_key(6))]


def cut_short(data):
    return data[:-9]


def flip_status(data):
    return data.replace(b'"status":"committed"', b'"status":"aborted"', 1)


def of_another_log(data):
    other = Log(open_store(f"memory://hints-{uuid4().hex}"))
    grow(other, 256)
    return dump_state(other.state)


@pytest.mark.parametrize(
    "damage", [cut_short, flip_status, of_another_log, lambda data: b"[]", lambda data: b"\xff"]
)
def test_hint_that_is_not_of_this_log_is_ignored_and_replaced(store, damage, caplog):
    log = Log(store)
    grow(log, 270)
    good = store.get(hint_key(256)).data
    store.put(hint_key(256), damage(good))
    state, _ = fresh_state(store)
    assert state == log.state
    assert [hint_key(256) in m for m in warnings(caplog)] == [True]
    assert store.get(hint_key(256)).data == good


def test_hint_of_a_newer_format_is_ignored_and_left_alone(store, caplog):
    log = Log(store)
    grow(log, 270)
    newer = canonical(json.loads(store.get(hint_key(256)).data) | {"format": 3})
    store.put(hint_key(256), newer)
    assert fresh_state(store)[0] == log.state
    assert "format 3" in warnings(caplog)[0]
    assert store.get(hint_key(256)).data == newer


@pytest.mark.parametrize("name", ["log/state-x.json", "log/state-000000000999.json", "log/state-1.json"])
def test_stray_hint_is_ignored(store, name):
    log = Log(store)
    grow(log, 3)
    store.put(name, b"{}")
    assert fresh_state(store)[0] == log.state


@pytest.mark.parametrize("error", [Forbidden, Transient])
def test_hint_that_cannot_be_written_listed_or_read_is_ignored(store, error, caplog):
    log = Log(store)
    store.fails = [("put", "log/state-", error)]
    grow(log, 257)
    assert hints(store) == []
    assert hint_key(256) in warnings(caplog)[0]
    assert fresh_state(store)[0] == log.state
    store.fails = []
    fresh_state(store)
    assert hints(store) == [hint_key(256)]
    store.fails = [("list", "log/", error)]
    assert fresh_state(store)[0] == log.state
    store.fails = [("get", "log/state-", error)]
    assert fresh_state(store)[0] == log.state


def test_hint_is_canonical_json_and_the_old_ones_can_be_collected(store):
    log = Log(store)
    grow(log, 6 * HINT_EVERY)
    log.append(lambda state: {"kind": "begin", "txn": "ü", "dataset": "d", "parent": None})
    for data in (store.get(hint_key(512)).data, dump_state(log.state)):
        assert data == canonical(json.loads(data))
    old = [info.key for info in old_hints(store)]
    assert old == [hint_key(256), hint_key(512)]
    store.store.delete_many(old)
    assert fresh_state(store)[0] == log.state


@pytest.mark.parametrize("n", [2 * HINT_EVERY + 3, 4 * HINT_EVERY + 3])
def test_log_on_a_disk_is_opened_by_its_hints_alone(store, tmp_path, n):
    """Of n entries: the names of their hints are looked at, the newest hint is read, and what comes behind it. Then
    whatever lies behind the last entry, up to the first hint."""
    grow(Log(store), n)
    for info in store.store.list("log/"):
        target = tmp_path / info.key
        target.parent.mkdir(exist_ok=True)
        target.write_bytes(store.store.get(info.key).data)
    disk = Counted(open_store(str(tmp_path)))
    looked_at = []
    listing = disk.list
    disk.list = lambda *given: (looked_at.append(one.key) or one for one in listing(*given))
    assert Log(disk).state == Log(store).state
    assert looked_at == [*(hint_key(k) for k in range(HINT_EVERY, n, HINT_EVERY)), hint_key(HINT_EVERY)]
    gets = [key for verb, key in disk.requests if verb == "get"]
    assert gets.count(hint_key(n - 3)) == 1
    assert {entry_key(k) for k in range(n - 2, n + 2)} <= set(gets)
    assert entry_key(n - 3) not in gets
    assert len(gets) < 32  # and up to 16 that are not there, whatever n is


def resume_state(store, known):
    """(the state that a reader sees who goes on behind one that was read before, his requests)"""
    store.requests.clear()
    log = Log(store)
    log.resume(known)
    return log.state, list(store.requests)


@pytest.mark.parametrize("n", [3, HINT_EVERY + 3])
def test_log_that_was_read_before_costs_two_requests_and_what_is_new(store, n):
    log = Log(store)
    grow(log, n)
    known = log.known
    assert resume_state(store, known) == (known, [("get", entry_key(n)), ("get", entry_key(n + 1))])
    log.begin("photos")
    assert resume_state(store, known)[0] == log.state != known
    checked = []
    other = Log(store, check_readable=lambda: checked.append(True))
    other.resume(known)
    assert other.state == log.state
    assert checked


@pytest.mark.parametrize("entries", [0, 2, 5, 9])
def test_what_was_read_of_another_log_is_not_believed(store, entries):
    """As when a root is deleted and made anew, or restored as it was before: shorter, as long, longer."""
    grow(Log(store), 5)
    earlier = Log(store).state
    store.store.delete_many([info.key for info in list(store.store.list())])
    log = Log(store)
    grow(log, entries)
    assert resume_state(store, earlier)[0] == log.state
    assert log.state.n == entries
