"""Heartbeats: they count, they end, and no failure of theirs is fatal."""

import logging
import threading
from uuid import uuid4

import pytest

from loader.dataset.log.heartbeats import Beat, Heartbeat, new_holder, read_heartbeat
from loader.errors import InvalidName, Transient
from loader.storage import open_store
from tests.servers.patience import PATIENCE_S


class Refusing:
    """A store whose puts raise `error` while it is set; `beaten` is set by each put."""

    def __init__(self, store):
        self.store, self.url, self.error, self.puts = store, store.url, None, 0
        self.beaten = threading.Semaphore(0)

    def put(self, key, data):
        self.puts += 1
        self.beaten.release()
        if self.error:
            raise self.error("no")
        self.store.put(key, data)

    def get(self, key):
        return self.store.get(key)


@pytest.fixture
def store():
    return Refusing(open_store(f"memory://beats-{uuid4().hex}"))


def warnings(caplog):
    return [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]


def test_heartbeat_counts(store):
    heartbeat = Heartbeat(store, "t1", holder="me")
    assert read_heartbeat(store, "t1") is None
    assert heartbeat.beat()
    assert heartbeat.beat()
    assert read_heartbeat(store, "t1") == Beat(beat=2, holder="me")
    assert store.get("heartbeats/t1.json").data == b'{"beat":2,"holder":"me"}'


def test_another_attempt_moves_it_too(store):
    Heartbeat(store, "t1").beat()
    first = read_heartbeat(store, "t1")
    Heartbeat(store, "t1").beat()
    assert read_heartbeat(store, "t1") != first


def test_thread_beats_and_is_gone_after_close(store):
    others = set(threading.enumerate())
    with Heartbeat(store, "t1", every_s=0.001) as heartbeat:
        for _ in range(5):
            assert store.beaten.acquire(timeout=PATIENCE_S)
        assert len(set(threading.enumerate()) - others) == 1
    assert set(threading.enumerate()) <= others
    beat = read_heartbeat(store, "t1")
    assert beat.beat >= 5
    heartbeat.close()
    assert read_heartbeat(store, "t1") == beat


def test_beat_that_fails_is_logged_and_the_next_one_counts(store, caplog):
    heartbeat = Heartbeat(store, "t1")
    store.error = Transient
    assert not heartbeat.beat()
    assert "heartbeats/t1.json" in warnings(caplog)[0]
    store.error = None
    assert heartbeat.beat()
    assert read_heartbeat(store, "t1").beat == 2


def test_whatever_goes_wrong_with_a_beat_the_next_one_follows(store, caplog, monkeypatch):
    real, odd = store.put, [1, 1]

    def put(key, data):
        if odd and threading.current_thread() is not threading.main_thread():
            odd.pop()
            raise LookupError("a store of somebody's own")
        real(key, data)

    monkeypatch.setattr(store, "put", put)
    with Heartbeat(store, "t1", every_s=0.001):
        for _ in range(4):
            assert store.beaten.acquire(timeout=PATIENCE_S)
    assert "a store of somebody's own" in caplog.text


@pytest.mark.parametrize(
    "data",
    [
        b"{",
        b"null",
        b"[]",
        b"\xff",
        b'{"beat":1e999,"holder":"x"}',
        b'{"beat":1,"holder":"\\ud800"}',
        pytest.param(b"[" * 200_000, id="brackets"),
    ],
)
def test_sign_of_life_that_was_damaged_never_moves(store, caplog, data):
    store.put("heartbeats/t1.json", data)
    assert read_heartbeat(store, "t1") == Beat(beat=0, holder="")
    assert "heartbeats/t1.json" in warnings(caplog)[0]


def test_names_in_keys_are_checked():
    for name in ("", "../x", "a/b", "a" * 201):
        with pytest.raises(InvalidName):
            read_heartbeat(None, name)
    assert new_holder() != new_holder()
