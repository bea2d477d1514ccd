"""The judge reads what the packages wrote, and says what is wrong where bytes were changed."""

import importlib
import json
import sys
from pathlib import Path

import pytest

import loader

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
try:
    log = importlib.import_module("judge.log")
    version = importlib.import_module("judge.version")
finally:
    sys.path.remove(str(HERE))


@pytest.fixture(scope="module")
def root_objects():
    """The objects of a root with parts, a group, labels, an exclusion, a tag and a hold."""
    root = loader.Root("memory://judged")
    with root.write("d", part_samples=2) as writer:
        for i in range(3):
            writer.add(f"k{i}", {"x": b"%d" % i}, {"w": i})
    root.add_group("d", "g", {"t.txt": lambda sample: "t"})
    root.annotate("d", "labels", {"k1": {"label": "cat"}}, author="ann")
    root.exclude("d", ["k0"], reason="blurred")
    root.tag("d@1", "first")
    root.hold("d@2", by="ann", why="a matter")
    root.close()
    return {info.key: root.store.get(info.key).data for info in root.store.list("")}


def read(objects):
    """Everything that the judge reads."""
    history = log.read_log(objects)
    reader = version.Reader(objects)
    return history, [reader.content(one) for one in history.every()]


def test_it_reads_what_was_written(root_objects):
    history, found = read(root_objects)
    assert found[-1][0] == {
        "k1": {"x": b"1", "t.txt": b"t", "column w": 1, "column label": "cat"},
        "k2": {"x": b"2", "t.txt": b"t", "column w": 2},
    }
    assert [len(content) for content, _ in found] == [3, 3, 3, 2]
    assert history.names == {("d", "first"): ("tag", 1)}
    assert history.holds == {("d", 2, "ann")}
    keys = set().union(*(keys for _, keys in found))
    assert {key for key in root_objects if key.startswith("data/")} - keys == {
        key for key in root_objects if key.endswith(".samples.parquet")
    }


def test_it_notices_every_object_that_is_gone_or_changed(root_objects):
    _, found = read(root_objects)
    entries = {key for key in root_objects if log.ENTRY.fullmatch(key)}
    for key in entries.union(*(keys for _, keys in found)):
        data = root_objects[key]
        middle = len(data) // 2
        changed = data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]
        for others in ({key: changed}, {}):
            objects = {name: one for name, one in root_objects.items() if name != key} | others
            if key == max(entries) and not others:
                continue  # the end of the log, which nothing follows
            with pytest.raises(log.Broken):
                read(objects)


def test_entry_that_breaks_a_rule_is_none(root_objects):
    last = json.loads(root_objects[max(key for key in root_objects if log.ENTRY.fullmatch(key))])
    n = last["n"] + 1
    prev = log.hashlib.sha256(root_objects[f"log/{n - 1:012d}.json"]).hexdigest()
    head = {"format": 1, "n": n, "nonce": "x", "prev": prev, "at_us": 0, "dataset": "d"}
    retire = {**head, "kind": "retire", "number": 1, "id": log.read_log(root_objects).versions["d"][0].id}
    assert log.read_log(root_objects | {f"log/{n:012d}.json": log.canonical(retire)}).versions["d"][0].retired
    for wrong in (
        {"n": n + 1},
        {"prev": ""},
        {"number": 9},
        {"id": "v-0"},
        {"kind": "erase"},
        {"checksum": "0"},
        {"at_us": 0.5},
    ):
        with pytest.raises(log.Broken):
            log.read_log(root_objects | {f"log/{n:012d}.json": log.canonical({**retire, **wrong})})
