"""What a release reads of batches that are in a version already: a record each, several at once."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import loader
from assets.stages import StageRecord, append_record
from assets.version import audit_waiting, publish_batches
from benchmarks.scale import publish
from loader.dataset.publish import open_record
from tests.dataset.stores import Counting


class Meeting(Counting):
    """Reading a record waits until another thread reads one too."""

    def __init__(self, store: Any) -> None:
        super().__init__(store)
        self._both = threading.Barrier(2)

    def get(self, key: str) -> Any:
        if key.startswith("stages/"):
            self._both.wait(timeout=60)
        return Counting.__getattr__(self, "get")(key)


class Lagging:
    """Listings do not know of the second record of a batch yet."""

    def __init__(self, store: Any) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def list(self, *given: Any) -> Iterator[Any]:
        return (info for info in self._store.list(*given) if not info.key.endswith("2.json"))


def record(partition: str, txn: str, verdict: Any = "published") -> StageRecord:
    return StageRecord(
        dataset="d",
        stage="samples",
        partition=partition,
        verdict=verdict,
        run_id="r",
        code_version="1",
        fingerprint="f",
        body={"txn": txn, "parts": [{}]},
    )


@pytest.fixture
def root(tmp_path: Path) -> Iterator[loader.Root]:
    with loader.Root(tmp_path) as opened:
        opened.create()
        yield opened


def grow(root: loader.Root, to: int) -> None:
    at = len(root.state.versions("d"))
    for number in range(at, to):
        append_record(root.store, record(f"{number:06d}-x", publish(root, number, 1)))


def test_a_published_batch_costs_a_release_two_requests_at_any_size(root: loader.Root) -> None:
    found = {}
    plain = root.store
    for n in (4, 12):
        grow(root, n)
        counting = Meeting(plain)
        root._use(counting)
        assert publish_batches(root, "d", "r").published == ()
        found[n] = counting.under("stages")
        root._use(plain)
    assert found[12] - found[4] == 2 * 8


def test_a_failure_that_is_not_listed_yet_is_seen(root: loader.Root) -> None:
    grow(root, 1)
    waiting = root.begin("d")
    append_record(root.store, record("000009-y", waiting))
    append_record(root.store, record("000009-y", waiting, verdict="failed"))
    root._use(Lagging(root.store))
    assert audit_waiting(root, "d", "r") == []
    newest = root.state.newest("d")
    assert newest is not None
    assert open_record(root.store, newest).number == 1
