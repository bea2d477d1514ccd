"""Records of training runs after a takedown: intervals and failures name no denied sample, and stay readable."""

import json
import threading
import time
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from loader.dataset.tables.parquet import parse_table, table_bytes
from loader.errors import Transient
from penstock.denied.find import find
from penstock.denied.record import read_record
from penstock.train.intervals import ROW, SLOW_TEXTS, interval_bytes
from penstock.train.run_folder import RunFolder
from penstock.upkeep.takedown.derived import Edits
from penstock.upkeep.takedown.run_records import MOST_BYTES, run_record_edits
from penstock.upkeep.takedown.scan import Scan
from penstock.upkeep.takedown.takedown_run import deny_entry, keys_tables

SECRET = "ZQALICEZQ"


def put_interval(store, end_step, *keys):
    """Store an interval with a row per rank, whose slowest sample has the key."""
    rows = np.zeros(len(keys), ROW)
    rows["rank"], rows["end_step"], rows["node"] = range(len(keys)), end_step, b"m3"
    rows["slow_s"] = 0.5
    for row, key in zip(rows, keys, strict=True):
        row["slow_sample"] = "\0".join(["fetch", "photos", key, "photos@1", "data/a.tar"]).encode()
    RunFolder(store, "big-7").put_interval(1, *interval_bytes(rows.tobytes()))


def names_left(kit, root, n):
    return [one["path"] for one in kit.prove(root, n)["places"] if not one["clean"]]


def run_marks(root, n):
    return [find(keys_tables(root, deny_entry(root, n), None), "photos").marks]


def record_edits(store, root, n, newer=None):
    return list(run_record_edits(store, run_marks(root, n), ([] if newer is None else newer).append))


@pytest.fixture
def denied_root(kit, root):
    kit.write(root, "photos", {"p1": SECRET, "p2": "bob"})
    return kit.deny(root)


def test_intervals_lose_the_denied_sample_and_keep_their_figures(kit, root, denied_root):
    put_interval(root.store, 10, "p1", "p2")
    put_interval(root.store, 20, "p2", "")
    kept = root.store.get("trainings/big-7/windows/000001-000000000020.parquet").data
    kit.take_down(root, denied_root)
    rows = RunFolder(root.store, "big-7").intervals()
    assert rows["slow_key"].tolist() == ["", "p2", "p2", ""]
    assert all(rows[f"slow_{name}"][0] == "" for name in SLOW_TEXTS)
    assert rows["slow_s"].tolist() == [0.5] * 4
    assert root.store.get("trainings/big-7/windows/000001-000000000020.parquet").data == kept
    kit.sweep(root)
    assert names_left(kit, root, denied_root) == []


def test_proof_finds_a_interval_of_a_run_that_still_trained(kit, root, denied_root):
    kit.take_down(root, denied_root)
    kit.sweep(root)
    put_interval(root.store, 30, "p2", "p1")
    path = "trainings/big-7/windows/000001-000000000030.parquet"
    assert names_left(kit, root, denied_root) == [path]
    kit.take_down(root, denied_root)
    assert names_left(kit, root, denied_root) == []
    assert parse_table(root.store.get(path).data, path)["slow_key"].to_pylist() == ["p2", ""]


def test_failure_that_quotes_a_sample_loses_its_name(kit, root, denied_root):
    path = f"trainings/big-7/failures/{'0' * 16}-000001.json"
    body = {"format": 1, "step": 3, "line": f"Corrupt: {SECRET} of photos@1", "wait_s": 10}
    root.store.put(path, json.dumps(body).encode())
    kit.take_down(root, denied_root)
    kit.sweep(root)
    assert json.loads(root.store.get(path).data) == {**body, "line": "Corrupt: (taken down) of photos@1"}
    assert names_left(kit, root, denied_root) == []


@pytest.mark.parametrize("data", [b"PAR1", b"{", b""])
@pytest.mark.parametrize("name", ["windows/000001-000000000009.parquet", f"failures/{'0' * 16}-000001.json"])
def test_damaged_object_stops_no_takedown_and_goes(kit, root, denied_root, name, data):
    put_interval(root.store, 10, "p1")
    root.store.put(path := f"trainings/a/{name}", data)
    kit.take_down(root, denied_root)
    kit.sweep(root)
    assert path not in [info.key for info in root.store.list("trainings/")]
    assert names_left(kit, root, denied_root) == []


NO_TEXT = pa.Array.from_buffers(
    pa.string(), 1, [None, pa.py_buffer(np.array([0, 2], np.int32)), pa.py_buffer(b"\xff\xfe")]
)
FORGED = {
    "two keys": pa.table([pa.array(["p1"]), pa.array(["p1"])], names=["slow_key", "slow_key"]),
    "two paths": pa.table([pa.array(["p1"])] * 3, names=["slow_key", "slow_path", "slow_path"]),
    "number": pa.table({"slow_key": ["p1", "p2"], "slow_stage": [1, 2]}),
    "long text": pa.table({"slow_key": [*["x" * 5_000] * 9, "p1"]}),
    "key is not text": pa.table({"slow_key": NO_TEXT}),
    "path is not text": pa.table({"slow_key": pa.array(["p1"]), "slow_path": NO_TEXT}),
}


@pytest.mark.parametrize("table", FORGED.values(), ids=FORGED)
def test_forged_interval_stops_no_takedown_and_goes(root, denied_root, table):
    path = "trainings/a/windows/000001-000000000009.parquet"
    root.store.put(path, table_bytes(table, "training-window"))
    (edits,) = record_edits(root.store, root, denied_root)
    assert edits == Edits(deletes=(path,))


def test_failure_with_a_fraction_stops_no_takedown_and_goes(root, denied_root):
    path = f"trainings/a/failures/{'0' * 16}-000001.json"
    root.store.put(path, json.dumps({"line": SECRET, "wait_s": 0.5}).encode())
    (edits,) = record_edits(root.store, root, denied_root)
    assert edits == Edits(deletes=(path,))


def test_interval_of_a_newer_release_is_kept_named_and_stops_no_takedown(kit, root, denied_root):
    """A trainer may forge the number: the proof names the object, and the others are edited."""
    path = "trainings/a/windows/000001-000000000009.parquet"
    newer = pa.table({"slow_key": ["p1"]}).replace_schema_metadata({"penstock.schema": "1000"})
    sink = pa.BufferOutputStream()
    pq.write_table(newer, sink)
    root.store.put(path, data := sink.getvalue().to_pybytes())
    put_interval(root.store, 10, "p1", "p2")
    report = kit.take_down(root, denied_root)
    assert report.newer == [path]
    assert f"not searched, of a newer release by its own word: {path}" in report.text()
    assert root.store.get(path).data == data
    kit.sweep(root)
    assert RunFolder(root.store, "big-7").intervals()["slow_key"].tolist() == ["", "p2"]
    assert names_left(kit, root, denied_root) == [path]


class CountedStore:
    """A store that counts the bytes of objects that are read at once. sizes: key -> size that it lists instead."""

    def __init__(self, store, sizes):
        self.url, self._store, self._sizes = store.url, store, sizes
        self.read, self._now, self.most, self._lock = [], 0, 0, threading.Lock()

    def list(self, prefix, *rest):
        for info in self._store.list(prefix, *rest):
            yield replace(info, nbytes=self._sizes.get(info.key, info.nbytes))

    def get(self, key):
        data = self._store.get(key)
        with self._lock:
            self.read.append(key)
            self._now += 1
            self.most = max(self.most, self._now)
        time.sleep(0.02)
        with self._lock:
            self._now -= 1
        return data


def test_large_objects_are_read_one_by_one_and_larger_ones_never(root, denied_root):
    keys = [f"trainings/big-7/windows/000001-{step:012d}.parquet" for step in range(1, 6)]
    for step in range(1, 6):
        put_interval(root.store, step, "p1")
    sizes = dict.fromkeys(keys[:3], MOST_BYTES - 10) | {keys[3]: MOST_BYTES + 1}
    store = CountedStore(root.store, sizes)
    edits = record_edits(store, root, denied_root)
    assert [path for one in edits for path in one.deletes] == [keys[3]]
    assert sorted(path for one in edits for path in one.puts) == [*keys[:3], keys[4]]
    assert (store.most, keys[3] in store.read) == (1, False)


def test_proof_reads_no_object_that_is_larger_than_a_interval(root, denied_root):
    put_interval(root.store, 10, "p2")
    (info,) = root.store.list("trainings/")
    store = CountedStore(root.store, {info.key: MOST_BYTES + 1})
    scan = Scan(root, read_record(root.store, denied_root), {"photos": run_marks(root, denied_root)[0]})
    scan._store = store
    assert list(scan.verdicts(store.list("trainings/"))) == [(info.key, "Corrupt")]
    assert store.read == []


class FailingStore:
    """A store that lists its objects, and fails to read them."""

    def __init__(self, store):
        self.url, self.list = store.url, store.list

    def get(self, key):
        raise Transient(f"{self.url}/{key}: 503")


def test_failing_store_is_no_damage(root, denied_root):
    put_interval(root.store, 10, "p1")
    with pytest.raises(Transient):
        record_edits(FailingStore(root.store), root, denied_root)
