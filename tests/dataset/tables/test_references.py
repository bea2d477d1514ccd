"""The one list of what a version consists of: with it a version can be copied, and nothing of it is missing."""

import hashlib

import pytest

import loader
from loader.dataset.tables.manifest import Reference, references, table_references
from loader.errors import Corrupt
from penstock.upkeep.verify.version import verify
from tests.refusals import refusal


@pytest.fixture
def version(root):
    for name in ("a", "b"):
        with root.write("d", part_samples=2) as writer:
            for i in range(5):
                writer.add(f"{name}{i}", {"x": b"x%d" % i}, metadata={"w": i})
    root.add_group("d", "g", {"t.txt": lambda sample: "t"})
    root.exclude("d", ["a1"], reason="blurred")
    return root.open("d")


def test_every_object_is_named_with_its_size_and_hash(version):
    found = list(references(version.store, version.manifest))
    assert len({one.path for one in found}) == len(found)
    assert {one.kind for one in found} >= {"shards", "samples", "stats", "exclusions", "shard", "index"}
    assert sum(one.kind == "shard" for one in found) == sum(one.kind == "index" for one in found) == 12
    for one in found:
        data = version.store.get(one.path).data
        assert len(data) == one.nbytes
        assert one.sha256 == (None if one.kind == "index" else hashlib.sha256(data).hexdigest())


def test_copy_of_what_is_named_is_a_whole_version(version, root, tmp_path):
    copy = loader.Root(str(tmp_path))
    paths = [one.path for one in references(version.store, version.manifest)]
    # Parents are versions of their own: a copy of the last alone has the log, and its own manifest.
    paths += [root.record(version.id).manifest, "penstock.json"]
    paths += [info.key for info in root.store.list("log/")]
    for path in paths:
        copy.store.put(path, root.store.get(path).data)
    report = verify(copy, version.id, full=True)
    assert (report.problems, report.shards) == ([], 12)


def test_lists_of_a_newer_release_are_named_too(version):
    file = {"path": "data/x/y/new.parquet", "nbytes": 7, "sha256": "0" * 64, "n_rows": 1, "more": True}
    found = list(table_references({**version.manifest, "novelties": [file], "words": ["x"]}))
    assert Reference(path="data/x/y/new.parquet", nbytes=7, sha256="0" * 64, kind="novelties") in found


def test_damaged_shards_table_is_not_believed(version):
    path = version.manifest["shards"][0]["path"]
    version.store.put(path, b"x" + version.store.get(path).data[1:])
    with refusal(Corrupt, what="sha256", where=f"{version.store.url}/{path}"):
        list(references(version.store, version.manifest))
