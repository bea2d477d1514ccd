"""Records of training runs after a takedown: windows and failures name no denied sample, and stay readable."""

import json

import numpy as np
import pytest

from loader.dataset.tables.parquet import parse_table
from penstock.train.run_folder import RunFolder
from penstock.train.windows import ROW, SLOW_TEXTS, window_bytes

SECRET = "ZQALICEZQ"


def put_window(store, end_step, *keys):
    """Store a window with a row per rank, whose slowest sample has the key."""
    rows = np.zeros(len(keys), ROW)
    rows["rank"], rows["end_step"], rows["node"] = range(len(keys)), end_step, b"m3"
    rows["slow_s"] = 0.5
    for row, key in zip(rows, keys, strict=True):
        row["slow_sample"] = "\0".join(["fetch", "photos", key, "photos@1", "data/a.tar"]).encode()
    RunFolder(store, "big-7").put_window(1, *window_bytes(rows.tobytes()))


def names_left(kit, root, n):
    return [one["path"] for one in kit.prove(root, n)["places"] if not one["clean"]]


@pytest.fixture
def denied(kit, root):
    kit.write(root, "photos", {"p1": SECRET, "p2": "bob"})
    return kit.deny(root)


def test_windows_lose_the_denied_sample_and_keep_their_figures(kit, root, denied):
    put_window(root.store, 10, "p1", "p2")
    put_window(root.store, 20, "p2", "")
    kept = root.store.get("trainings/big-7/windows/000001-000000000020.parquet").data
    kit.take_down(root, denied)
    rows = RunFolder(root.store, "big-7").windows()
    assert rows["slow_key"].tolist() == ["", "p2", "p2", ""]
    assert all(rows[f"slow_{name}"][0] == "" for name in SLOW_TEXTS)
    assert rows["slow_s"].tolist() == [0.5] * 4
    assert root.store.get("trainings/big-7/windows/000001-000000000020.parquet").data == kept
    kit.sweep(root)
    assert names_left(kit, root, denied) == []


def test_proof_finds_a_window_of_a_run_that_still_trained(kit, root, denied):
    kit.take_down(root, denied)
    kit.sweep(root)
    put_window(root.store, 30, "p2", "p1")
    path = "trainings/big-7/windows/000001-000000000030.parquet"
    assert names_left(kit, root, denied) == [path]
    kit.take_down(root, denied)
    assert names_left(kit, root, denied) == []
    assert parse_table(root.store.get(path).data, path)["slow_key"].to_pylist() == ["p2", ""]


def test_failure_that_quotes_a_sample_loses_its_name(kit, root, denied):
    path = f"trainings/big-7/failures/{'0' * 16}-000001.json"
    body = {"format": 1, "step": 3, "line": f"Corrupt: {SECRET} of photos@1", "wait_s": 10}
    root.store.put(path, json.dumps(body).encode())
    kit.take_down(root, denied)
    kit.sweep(root)
    assert json.loads(root.store.get(path).data) == {**body, "line": "Corrupt: (taken down) of photos@1"}
    assert names_left(kit, root, denied) == []


@pytest.mark.parametrize("data", [b"PAR1", b"{", b""])
@pytest.mark.parametrize("name", ["windows/000001-000000000009.parquet", f"failures/{'0' * 16}-000001.json"])
def test_damaged_object_stops_no_takedown_and_goes(kit, root, denied, name, data):
    put_window(root.store, 10, "p1")
    root.store.put(path := f"trainings/a/{name}", data)
    kit.take_down(root, denied)
    kit.sweep(root)
    assert path not in [info.key for info in root.store.list("trainings/")]
    assert names_left(kit, root, denied) == []
