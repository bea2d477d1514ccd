"""Fields of arrays as small lines in a version's table."""

import shutil

import numpy as np
import pytest

import loader
from penstock.view.inspect.version_record import version_record
from penstock.view.kinds import field_sparks
from tests.view.test_web import Served


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sparks") / "root"
    arrays = [
        np.arange(200, dtype=np.float32),
        np.array([[1.0, 3.0], [2.0, np.nan], [5.0, 7.0]]),
        np.float32(4),
        np.zeros(20_000),
    ]
    with loader.Root(folder) as root, root.write("d") as writer:
        for number, array in enumerate(arrays):
            writer.add(f"k{number}", {"wave.npy": array, "cls": number}, metadata={"label": "cat"})
    return folder


def test_lines_are_drawn_of_small_arrays(folder):
    with loader.Root(folder) as root:
        rows = {row.key: row for row in version_record(root.open("d@1"), columns=("wave.npy", "label")).rows}
    sparks = {key: row.sparks["wave.npy"] for key, row in rows.items() if row.sparks}
    assert sparks.keys() == {"k0", "k1"}
    assert sparks["k0"].text == "wave.npy: 200 values, 0 to 199"
    assert sparks["k1"].text == "wave.npy: 3 values, 2 to 6"
    assert len(sparks["k0"].points.split()) == field_sparks.MOST_POINTS
    assert rows["k3"].columns == {"label": "cat"}


def test_damaged_array_hides_no_other_row(folder, tmp_path):
    (shard,) = folder.rglob("*.tar")
    data = bytearray(shard.read_bytes())
    copy = tmp_path / "root"
    shutil.copytree(folder, copy)
    at = data.find(np.arange(200, dtype=np.float32).tobytes())
    data[at + 8] ^= 1
    (copy / shard.relative_to(folder)).write_bytes(data)
    with loader.Root(copy) as root:
        rows = version_record(root.open("d@1"), columns=("wave.npy",)).rows
    assert [row.key for row in rows if row.sparks] == ["k1"]
    assert len(rows) == 4


def test_table_shows_lines_and_offers_other_columns(folder):
    served = Served(folder, recipe=None)
    try:
        page = served.get("/v/d/1?as=table&cols=wave.npy").text
        assert page.count('<svg class="spark"') == 2
        assert "<option>label</option>" in page
        assert 'aria-label="Remove wave.npy"' in page
        assert 'role="alert"' in served.get("/v/d/1?as=table&cols=waves").text
    finally:
        served.close()
