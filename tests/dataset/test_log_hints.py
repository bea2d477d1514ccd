"""State hints: believed only when they belong to the log, and what opening and refreshing cost."""

import hashlib
import json
import logging
from uuid import uuid4

import pytest

from loader.dataset.entries import canonical, entry_key
from loader.dataset.hints import HINT_EVERY, dump_state, hint_key, old_hints
from loader.dataset.log import Log
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
        return self._ask("list", prefix)


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


def opened(store):
    """(the state a fresh reader sees, his requests)"""
    store.requests.clear()
    return Log(store).state, list(store.requests)


def warned(caplog):
    return [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]


def test_600_entries_fold_alike_with_and_without_hints(store):
    log = Log(store)
    grow(log, 600)
    assert hints(store) == [hint_key(256), hint_key(512)]
    assert store.get(hint_key(512)).data == canonical(json.loads(store.get(hint_key(512)).data))
    with_hints, requests = opened(store)
    store.store.delete_many(hints(store))
    without, more_requests = opened(store)
    assert with_hints == without == log.state == log.verify()
    assert len(requests) < 130 < 600 < len(more_requests)
    assert hints(store) == [hint_key(512)]  # the reader puts back the one that saves the most
    assert opened(store)[0] == log.state


def test_opening_costs_the_entries_since_the_hint_whatever_the_log_has(store):
    log = Log(store)
    counts = {}
    for size in (HINT_EVERY + 10, 8 * HINT_EVERY + 10):
        grow(log, size - log.state.n)
        counts[size] = len(opened(store)[1])
    assert len(set(counts.values())) == 1, counts
    # one listing, one hint, its entry, 10 entries and what may come after them
    assert counts[HINT_EVERY + 10] == 3 + 10 + 1


def test_a_refresh_costs_one_request_when_there_is_nothing_new(store):
    log, other = Log(store), Log(store)
    grow(log, 20)
    other.refresh()
    store.requests.clear()
    assert other.state == log.state
    store.requests.clear()
    other.refresh()
    assert store.requests == [("get", entry_key(21))]


def test_an_append_costs_one_probe_and_one_put(store):
    log = Log(store)
    grow(log, 5)
    store.requests.clear()
    log.begin("photos")
    assert store.requests == [("get", entry_key(6)), ("put_if_absent", entry_key(6))]


def broken(data):
    return data[:-9]


def flipped(data):
    return data.replace(b'"status":"committed"', b'"status":"aborted"', 1)


def of_another_log(data):
    other = Log(open_store(f"memory://hints-{uuid4().hex}"))
    grow(other, 256)
    return dump_state(other.state)


@pytest.mark.parametrize(
    "damage", [broken, flipped, of_another_log, lambda data: b"[]", lambda data: b"\xff"]
)
def test_a_hint_that_is_not_of_this_log_is_ignored_and_replaced(store, damage, caplog):
    log = Log(store)
    grow(log, 270)
    good = store.get(hint_key(256)).data
    store.put(hint_key(256), damage(good))
    state, _ = opened(store)
    assert state == log.state
    assert [hint_key(256) in m for m in warned(caplog)] == [True]
    assert store.get(hint_key(256)).data == good


def test_a_hint_of_a_newer_format_is_ignored_and_left_alone(store, caplog):
    log = Log(store)
    grow(log, 270)
    newer = canonical(json.loads(store.get(hint_key(256)).data) | {"format": 2})
    store.put(hint_key(256), newer)
    assert opened(store)[0] == log.state
    assert "format 2" in warned(caplog)[0]
    assert store.get(hint_key(256)).data == newer


@pytest.mark.parametrize("name", ["log/state-x.json", "log/state-000000000999.json", "log/state-1.json"])
def test_a_stray_hint_is_ignored(store, name):
    log = Log(store)
    grow(log, 3)
    store.put(name, b"{}")
    assert opened(store)[0] == log.state


@pytest.mark.parametrize("error", [Forbidden, Transient])
def test_a_hint_that_cannot_be_written_listed_or_read_is_done_without(store, error, caplog):
    log = Log(store)
    store.fails = [("put", "log/state-", error)]
    grow(log, 257)
    assert hints(store) == []
    assert hint_key(256) in warned(caplog)[0]
    assert opened(store)[0] == log.state
    store.fails = []
    opened(store)
    assert hints(store) == [hint_key(256)]
    store.fails = [("list", "log/", error)]
    assert opened(store)[0] == log.state
    store.fails = [("get", "log/state-", error)]
    assert opened(store)[0] == log.state


def test_a_hint_is_canonical_json_and_the_old_ones_can_be_collected(store):
    log = Log(store)
    grow(log, 6 * HINT_EVERY)
    log.append(lambda state: {"kind": "begin", "txn": "ü", "dataset": "d", "parent": None})
    for data in (store.get(hint_key(512)).data, dump_state(log.state)):
        assert data == canonical(json.loads(data))
    old = [info.key for info in old_hints(store)]
    assert old == [hint_key(256), hint_key(512)]
    store.store.delete_many(old)
    assert opened(store)[0] == log.state
