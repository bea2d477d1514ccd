"""The table of parts of a version: a million shards are not decoded to be opened."""

from collections import Counter

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loader.dataset.shards.numbered_rows import ShardRows
from loader.dataset.shards.parts_table import PartsTable
from loader.dataset.shards.shards_file import ShardsFile
from loader.dataset.tables.parquet import table_bytes
from loader.errors import Corrupt
from tests.refusals import refusal


def shards(parts, groups):
    columns = {"part": parts, "group": groups, "n_rows": pa.array([3] * len(parts), pa.int64())}
    columns["path"] = [f"{part}-{group}" for part, group in zip(parts, groups, strict=True)]
    return pa.table(columns)


@pytest.mark.parametrize("few", [0, 2**14])
@settings(max_examples=30, deadline=None, derandomize=True)
@given(
    st.lists(st.sets(st.sampled_from("abc"), min_size=1), min_size=1, max_size=9), st.booleans(), st.data()
)
def test_parts_are_told_with_and_without_hashing_them(few, layout, added, data):
    """Shards of a part side by side, and those of a group that came later behind all, in whatever order.

    Few shards are told by Python's functions, many by Arrow's.
    """
    rows = [(f"p{i}", group) for i, groups in enumerate(layout) for group in sorted(groups)]
    later = [(f"p{i}", "g") for i in data.draw(st.permutations(range(len(layout))))] if added else []
    tables = [shards(*zip(*some, strict=True)) for some in (rows, later) if some]
    files = []
    for i, table in enumerate(tables):
        files.append(ShardsFile(f"t{i}", table_bytes(table, "shards", row_group_rows=2)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("loader.dataset.shards.parts_table.FEW_SHARDS", few)
        check_parts(files, layout, added)


def check_parts(files, layout, added):
    table = PartsTable(ShardRows(files), [], "test@1")
    assert table.find_shard("p0") is None
    assert table.ids.to_pylist() == [f"p{i}" for i in range(len(layout))]
    for i, groups in enumerate(layout):
        for group in "abcg":
            there = group in groups or (group == "g" and added)
            assert bool(table.has_group(group)[i]) == there
            if there:
                assert table.shard(group, i)["path"] == f"p{i}-{group}"
                assert table.find_shard(f"p{i}-{group}") == table.shard(group, i)


@pytest.mark.parametrize("few", [0, 2**14])
def test_first_shard_at_a_shared_path_is_found_in_tables_of_any_size(monkeypatch, few):
    """Groups of registered samples share the shard of their objects."""
    monkeypatch.setattr("loader.dataset.shards.parts_table.FEW_SHARDS", few)
    table = shards(["p0", "p0", "p1", "p1"], ["a", "b", "a", "b"])
    table = table.set_column(3, "path", pa.array(["own", "shared", "shared", "shared"]))
    rows = ShardRows([ShardsFile("t", table_bytes(table, "shards", row_group_rows=2))])
    parts = PartsTable(rows, [], "test@1")
    first = parts.find_shard("shared")
    assert (first["part"], first["group"]) == ("p0", "b")


def test_rows_are_decoded_on_demand(monkeypatch):
    monkeypatch.setattr("loader.dataset.shards.numbered_rows.CACHE_ROWS", 8)
    table = shards([f"p{i}" for i in range(50)], ["g"] * 50)
    rows = ShardRows([ShardsFile("t", table_bytes(table, "shards", row_group_rows=4))])
    assert len(rows) == 50
    for at in (0, 49, 3, 4, 49, 0):
        assert rows.row(at)["part"] == f"p{at}"
        assert rows.cache.size <= 8
    assert rows.columns("path")["path"].to_pylist() == table["path"].to_pylist()
    with refusal(Corrupt, what="table", given="ArrowInvalid"):
        ShardRows([ShardsFile("t", b"PAR1 nothing PAR1")])


@pytest.mark.parametrize("n", [48, 480])
@pytest.mark.parametrize("groups", [["g"], ["a", "b", "c"]])
def test_names_of_parts_are_decoded_on_demand(monkeypatch, n, groups):
    """What opening decodes of n shards: of each its group and its rows, and its name where parts have several; of one
    that is asked for its row group, whatever there are."""
    decoded = Counter()

    def read(self, group, names=None):
        table = read_group(self, group, names)
        decoded.update(dict.fromkeys(names or ["all"], table.num_rows))
        return table

    read_group = ShardsFile.read_group
    monkeypatch.setattr(ShardsFile, "read_group", read)
    parts = [f"p{i // len(groups)}" for i in range(n)]
    table = shards(parts, groups * (n // len(groups)))
    rows = ShardRows([ShardsFile("t", table_bytes(table, "shards", row_group_rows=4))])
    made = PartsTable(rows, [], "test@1")
    assert decoded == {"group": n, "n_rows": n} | ({"part": n} if len(groups) > 1 else {})
    decoded.clear()
    assert made.shard(groups[0], len(made) - 1)["path"] == f"{parts[-1]}-{groups[0]}"
    assert made.id(len(made) - 1) == parts[-1]
    assert decoded == {"all": 4}
    assert made.ids.to_pylist() == list(dict.fromkeys(parts)) == [made.id(i) for i in range(len(made))]
