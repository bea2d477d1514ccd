"""A lease lasts as long as anything that reads: the root that opened a version, or the version itself."""

import gc
from pathlib import Path

import loader
from loader.dataset.heartbeat import list_leases


def test_a_version_keeps_its_lease_when_the_root_is_dropped(tmp_path: Path) -> None:
    root = loader.Root(tmp_path / "root")
    with root.write("photos") as writer:
        writer.add("a", {"cls": 1})
    store, version = root.store, root.open("photos@1")
    del root, writer
    gc.collect()
    assert [lease.version_id for lease in list_leases(store)] == [version.id]
    view = version.select("cls")
    del version
    gc.collect()
    assert len(list(list_leases(store))) == 1, "a view reads too"
    del view
    gc.collect()
    assert list(list_leases(store)) == []
