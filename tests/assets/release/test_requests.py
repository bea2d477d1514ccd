"""What a release reads of batches that are in a version already: nothing, once that is remembered."""

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import loader
from assets.gate_settings import GATE
from assets.release.gate_run import Audit
from assets.release.settled_batches import MIN_NEW_ENTRIES
from assets.release.version_asset import Publisher, audit_waiting, publish_batches
from benchmarks.scale import publish
from loader.dataset.versions.version import Version
from loader.errors import Forbidden, StageNotPublished
from penstock.stages import StageRecord, append_record, existing_records, newest_listed
from tests.dataset.stores import Counting
from tests.proxy_stores import ProxyStore
from tests.refusals import refusal
from tests.servers.patience import PATIENCE_S


class Meeting(Counting):
    """Reading a record waits until another thread reads one too."""

    def __init__(self, store: Any) -> None:
        super().__init__(store)
        self._both = threading.Barrier(2)

    def get(self, key: str) -> Any:
        if key.startswith("stages/"):
            self._both.wait(timeout=PATIENCE_S)
        return Counting.__getattr__(self, "get")(key)


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


def test_published_batch_costs_two_requests_until_it_is_remembered(root: loader.Root) -> None:
    found = {}
    for n in (4, 12):
        grow(root, n)
        found[n] = requests_of_a_release(root, Meeting)
    assert found[12] - found[4] == 2 * 8


def test_release_costs_the_same_after_any_number_of_batches(root: loader.Root) -> None:
    for n in (MIN_NEW_ENTRIES, 2 * MIN_NEW_ENTRIES):
        grow(root, n)
        publish_batches(root, "d", "r")  # remembers
        grow(root, n + 3)
        assert requests_of_a_release(root) == 2 * (1 + 3)  # a listing and a record each, twice


def test_what_is_remembered_may_be_lost_or_damaged(root: loader.Root) -> None:
    plain = root.store
    grow(root, MIN_NEW_ENTRIES)
    publish_batches(root, "d", "r")
    (path,) = [info.key for info in plain.list("tables/")]
    assert requests_of_a_release(root) == 2
    plain.put(path, b"not Parquet")
    assert requests_of_a_release(root) == 1 + MIN_NEW_ENTRIES + 1  # and remembers again
    plain.delete_many([path])
    assert requests_of_a_release(root) == 1 + MIN_NEW_ENTRIES + 1


def test_record_that_was_replaced_is_read_again(root: loader.Root) -> None:
    plain = root.store
    grow(root, MIN_NEW_ENTRIES)
    publish_batches(root, "d", "r")
    first = next(info.key for info in plain.list("stages/"))
    plain.put(first, plain.get(first).data + b" ")
    assert requests_of_a_release(root) == 2 * (1 + 1)


def test_batch_that_was_published_and_failed_since_is_seen(root: loader.Root) -> None:
    grow(root, MIN_NEW_ENTRIES)
    publish_batches(root, "d", "r")
    append_record(root.store, record("000000-x", root.begin("d"), verdict="failed"))
    with refusal(StageNotPublished, what="batches", where="d", given=["000000-x"]):
        publish_batches(root, "d", "r")


def test_batch_of_copies_is_settled(root: loader.Root) -> None:
    grow(root, MIN_NEW_ENTRIES - 1)
    append_record(root.store, replace(record("000099-x", ""), body={"txn": "", "parts": []}))
    publish_batches(root, "d", "r")
    assert requests_of_a_release(root) == 2


def test_batch_that_another_release_has_settled_meanwhile_is_taken(root: loader.Root) -> None:
    grow(root, MIN_NEW_ENTRIES)
    (record_of_first, *_) = existing_records(root.store, newest_listed(root.store, "d", "samples")).values()
    verdict = replace(record_of_first, stage="version")
    audit = Audit(record=verdict, results=(), fresh=True)
    publish_batches(root, "d", "r")  # remembers it
    publisher = Publisher(root=root, dataset="d", run_id="r", gate=GATE, spec=None)
    release = publisher.publish_passed([audit])
    assert release.published == (record_of_first.partition,)
    assert [one.number for one in release.versions] == [1]


def test_hint_that_cannot_be_written_stops_nothing(
    root: loader.Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    def raise_forbidden(*_: Any) -> None:
        raise Forbidden("no right to write there")

    grow(root, MIN_NEW_ENTRIES)
    monkeypatch.setattr(root.store, "put", raise_forbidden)
    assert publish_batches(root, "d", "r").published == ()


def requests_of_a_release(root: loader.Root, store: type[Counting] = Counting) -> int:
    """Of records, and listings of them."""
    plain = root.store
    counting = store(plain)
    root._use(counting)
    assert publish_batches(root, "d", "r").published == ()
    root._use(plain)
    return counting.under("stages")


def test_failure_that_is_not_listed_yet_is_seen(root: loader.Root) -> None:
    grow(root, 1)
    waiting = root.begin("d")
    append_record(root.store, record("000009-y", waiting))
    append_record(root.store, record("000009-y", waiting, verdict="failed"))
    # Listings do not have the second record of a batch yet.
    shown = lambda store, *given: (one for one in store.list(*given) if not one.key.endswith("2.json"))  # noqa: E731
    root._use(ProxyStore(root.store, list=shown))  # type: ignore[arg-type]
    assert audit_waiting(root, "d", "r") == []
    newest = root.state.newest("d")
    assert newest is not None
    assert Version.of_record(root.store, newest).number == 1
