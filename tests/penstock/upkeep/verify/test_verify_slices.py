"""Every kind of damage to a slice: verify names that, and nothing else."""

import json
import re

import numpy as np
import pyarrow as pa
import pytest

import loader
from loader.dataset.slices import remove_slice
from loader.dataset.tables.slice_record import read_slice, read_slice_table, slice_table_bytes
from penstock.upkeep.gc import Moment, Options, collect
from penstock.upkeep.verify.root import verify_root

WHO = {"by": "ann", "why": "odd"}
COLUMNS = ["ordinal", "part", "row", "key"]


@pytest.fixture
def root(tmp_path):
    root = loader.Root(tmp_path / "root")
    with root.write("d", part_samples=4) as writer:
        for i in range(12):
            writer.add(f"k{i:02d}", {"cls": i}, {"w": i})
    root.save_slice("d@1", "cups", ["k03", "k07"], **WHO)
    root.save_slice("d@1", "high", "w > 8", **WHO)
    root.save_slice("d@1", "ended", ["k01"], **WHO)
    remove_slice(root, "d", "ended", **WHO)
    return root


def problems(root):
    return [(one.address, one.what) for one in verify_root(loader.Root(root.url)).problems]


def test_slices_as_they_were_saved_have_no_problem(root):
    assert problems(root) == []
    root.exclude("d", ["k03"], reason="blurred")
    root.retire("d@1", reason="old")
    assert problems(root) == []
    assert verify_root(root).n_foreign == 0


def change_columns(root, name, **columns):
    """Store a list's table with other columns, under the same record."""
    record = read_slice(root.store, "d", name)
    table = read_slice_table(root.store, record, COLUMNS)
    for column, values in columns.items():
        position = table.column_names.index(column)
        table = table.set_column(position, column, pa.array(values, table.schema.field(column).type))
    root.store.put(record.table_path, slice_table_bytes(record, table))


@pytest.mark.parametrize(
    ("columns", "what"),
    [
        ({"key": ["k03", "k08"]}, "has other keys than d@1"),
        ({"row": [3, 9]}, "is stated as row 9 of a part with 4 rows"),
        ({"row": [0, 0]}, "no live sample of its part and row|other keys"),
        ({"ordinal": [0, 1]}, "the sha256 of its ordinals is"),
        ({"part": ["x", "y"]}, "no live sample of its part and row"),
    ],
)
def test_table_that_was_changed(root, columns, what):
    change_columns(root, "cups", **columns)
    ((address, text),) = problems(root)
    assert address == "slices/d/cups/000001.json"
    assert re.search(what, text), text


@pytest.mark.parametrize(
    ("name", "fields", "what"),
    [
        ("cups", {"name": "plates"}, "it was copied or renamed"),
        ("cups", {"version_id": f"v-{'0' * 64}"}, "the log has no version d@1 of the id"),
        ("cups", {"n_samples": 3}, "it has 2 rows of"),
        ("high", {"n_samples": 7}, "it states 7 samples"),
        ("high", {"where": "w > 7"}, "selects other samples"),
        ("high", {"where": "SELECT 1"}, "is refused"),
    ],
)
def test_record_that_was_changed(root, name, fields, what):
    path = f"slices/d/{name}/000001.json"
    body = json.loads(root.store.get(path).data)
    root.store.put(path, json.dumps({**body, **fields}).encode())
    ((address, text),) = problems(root)
    assert address == path
    assert what in text


def test_objects_that_no_slice_has(root):
    root.store.put("slices/d/photo.jpg", b"x")
    ((address, text),) = problems(root)
    assert address == "slices/d/photo.jpg"
    assert "no slice has an object of this name" in text


def test_collector_keeps_slices(root):
    before = {info.key for info in root.store.list("slices/")}
    root.exclude("d", ["k03"], reason="blurred")
    root.retire("d@1", reason="old")
    hour_us = 3_600_000_000
    for hours in (0, 100, 300):
        at = Moment(at_us=hours * hour_us, run="one", run_us=hours * hour_us)
        collect(root, Options(name="c"), apply=True, at=at)
    assert {info.key for info in root.store.list("slices/")} == before
    later = root.open("d")
    assert later.slice("cups").keys(later.slice("cups").version_ordinals(np.arange(1))) == ["k07"]
