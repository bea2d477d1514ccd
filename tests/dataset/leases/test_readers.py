"""A lease lasts as long as anything that reads: the root that opened a version, or the version itself."""

import gc
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import loader
from loader.dataset.log.leases import list_leases
from loader.errors import ObjectNotFound, VersionRetired
from tests.proxy_stores import ObservedStore
from tests.refusals import refusal
from tests.servers.patience import PATIENCE_S, until


def test_version_keeps_its_lease_when_the_root_is_dropped(tmp_path: Path) -> None:
    root = loader.Root(tmp_path / "root")
    with root.write("photos") as writer:
        writer.add("a", {"cls": 1})
    store, version = root.store, root.open("photos@1")
    del root, writer
    gc.collect()
    assert [lease.versions for lease in list_leases(store)] == [(version.id,)]
    view = version.select("cls")
    del version
    gc.collect()
    assert len(list(list_leases(store))) == 1, "a view reads too"
    del view
    gc.collect()
    assert list(list_leases(store)) == []


@pytest.mark.parametrize("has_read_log", [False, True])
@pytest.mark.parametrize("collected", [False, True])
def test_version_that_is_retired_before_the_lease_exists_is_not_opened(
    url: str, collected: bool, has_read_log: bool
) -> None:
    """By whoever did not see the lease: also where a collector has deleted what is read beside it."""
    root = loader.Root(url)
    with root.write("photos") as writer:
        writer.add("a", {"cls": 1})

    def retire_at_put(verb: str, key: str) -> None:
        if verb == "put" and key.startswith("leases/"):
            root.retire("photos@1", reason="leaked")
            if collected:
                root.store.delete_many([info.key for info in root.store.list("data/")])

    reader = loader.Root(url)
    reader._use(ObservedStore(reader.store, retire_at_put))
    if has_read_log:
        assert reader.datasets() == ["photos"]  # a root that has not read the log guesses the version
    with refusal(VersionRetired, given="leaked"):
        reader.open("photos@1")


def test_version_is_handed_out_when_its_lease_is_there(url: str) -> None:
    """And the log was read again after it, whatever else is read meanwhile."""
    root = loader.Root(url)
    with root.write("photos") as writer:
        writer.add("a", {"cls": 1})
    log: list[tuple[str, int]] = []

    def record_leases(verb: str, key: str) -> None:
        if key.startswith("log/") and verb == "get":
            leases = list(root.store.list("leases/"))
            log.append((key, len(leases)))

    reader = loader.Root(url)
    reader._use(ObservedStore(reader.store, record_leases))
    version = reader.open("photos@1")
    end = "log/000000000003.json"
    assert log[-1] == (end, 1)
    assert [key for key, _ in log].count(end) == 2
    assert [lease.versions for lease in list_leases(root.store)] == [(version.id,)]


def test_open_does_not_fail_for_tables_that_it_reads_ahead_of_their_use(url: str) -> None:
    root = loader.Root(url)
    with root.write("photos") as writer:
        writer.add("a", {"cls": 1})
    root.store.delete_many([writer.version.manifest["shards"][0]["path"]])
    version = loader.Root(url).open("photos")
    assert len(version) == 1
    with pytest.raises(ObjectNotFound):
        version.keys(np.arange(1))


class Locked:
    """A store that takes a lock for each request, as a limit of requests does."""

    def __init__(self, store: Any) -> None:
        self.store, self.lock = store, threading.Lock()

    def __getattr__(self, name: str) -> Any:
        verb = getattr(self.store, name)
        if not callable(verb):
            return verb

        def call(*args: Any, **kwargs: Any) -> Any:
            with self.lock:
                return verb(*args, **kwargs)

        return call


def test_root_is_collected_while_its_thread_holds_a_lock_of_the_store(tmp_path: Path) -> None:
    root = loader.Root(tmp_path)
    with root.write("photos") as writer:
        writer.add("a", {"cls": 1})
    store = Locked(root.store)
    reader = loader.Root(tmp_path)
    reader._use(store)
    version = reader.open("photos@1")
    assert len(list(list_leases(root.store))) == 1
    readers, done = [reader, version], threading.Event()
    del reader, version

    def collect() -> None:
        with store.lock:
            readers.clear()
            gc.collect()
        done.set()

    threading.Thread(target=collect, daemon=True).start()
    assert done.wait(PATIENCE_S)
    until(lambda: not list(list_leases(root.store)))
