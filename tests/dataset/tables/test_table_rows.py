"""Single rows of large tables: by row groups, each held against its SHA-256."""

import hashlib
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest

from loader.dataset.tables import table_rows
from loader.dataset.tables.parquet import (
    HASHED_FROM_ROWS,
    TableFile,
    codes,
    get_table,
    put_named_table,
    put_table,
)
from loader.dataset.tables.parquet_ranges import footer_nbytes
from loader.dataset.tables.table_rows import distinct, get_rows, run_codes
from loader.errors import Corrupt
from loader.storage import open_store
from tests.refusals import refusal

SIZES = (20_000, 60_000)


def label_table(n):
    numbers = np.arange(n)
    names = [hashlib.sha256(b"%d" % i).hexdigest() for i in range(n)]
    return pa.table({"row": numbers, "sha": names, "label": [f"l{i % 7}" for i in range(n)]})


@pytest.fixture(scope="module")
def tables():
    """n -> (store, file, table); row groups of 4,096 rows."""
    made = {}
    for n in SIZES:
        store = open_store(f"memory://table-rows-{n}")
        table = label_table(n)
        made[n] = store, put_table(store, "t", table, "samples-keys", 4096), table
    return made


class Counted:
    """Counts requests and bytes."""

    def __init__(self, store):
        self.store, self.url, self.requests, self.nbytes = store, store.url, 0, 0

    def get(self, key):
        return self._counted([self.store.get(key)])[0]

    def get_range(self, key, offset, nbytes, etag=None):
        return self._counted([self.store.get_range(key, offset, nbytes, etag)])[0]

    def get_ranges(self, key, spans, *, etag=None):
        self.requests += len(spans) - 1
        return self._counted(self.store.get_ranges(key, spans, etag=etag))

    def _counted(self, blobs):
        self.requests += 1
        self.nbytes += sum(len(blob.data) for blob in blobs)
        return blobs


@pytest.mark.parametrize("n", SIZES)
def test_rows_come_in_the_requested_order(tables, n):
    store, file, table = tables[n]
    assert file.nbytes > table_rows.WHOLE_BELOW_BYTES
    rows = np.random.default_rng(0).integers(0, n, 300)
    assert get_rows(store, file, rows).to_pylist() == table.take(rows).to_pylist()
    edges = np.array([4096, n - 1, 4095, 0, 4096])
    assert get_rows(store, file, edges, ["sha"]).to_pylist() == table.select(["sha"]).take(edges).to_pylist()


def test_row_of_many_costs_as_much_as_one_of_few(tables):
    costs = []
    for n in SIZES:
        store, file, table = tables[n]
        counted = Counted(store)
        assert get_rows(counted, file, np.array([5000]))["sha"].to_pylist() == [table["sha"][5000].as_py()]
        costs.append((counted.requests, counted.nbytes))
    assert costs[0] == costs[1]
    assert costs[0][0] == 2
    assert costs[0][1] < tables[SIZES[0]][1].nbytes


def test_footer_larger_than_the_tail_is_read_in_two():
    store = open_store("memory://table-rows-footer")
    table = label_table(SIZES[0])
    file = put_table(store, "t", table, "samples-keys", 32)
    assert footer_nbytes(store.get("t").data) > table_rows.TAIL_BYTES
    counted = Counted(store)
    assert get_rows(counted, file, np.array([7])).to_pylist() == table.slice(7, 1).to_pylist()
    assert counted.requests == 3


def test_table_that_names_no_footer_is_read_whole(tables):
    store, file, table = tables[SIZES[0]]
    counted = Counted(store)
    earlier = TableFile.from_json({k: v for k, v in file.to_json().items() if k != "footer_sha256"})
    assert get_rows(counted, earlier, np.array([7])).to_pylist() == table.slice(7, 1).to_pylist()
    assert (counted.requests, counted.nbytes) == (1, file.nbytes)


def test_only_large_tables_of_samples_name_their_footer():
    store = open_store("memory://table-rows-kinds")
    many, few = label_table(HASHED_FROM_ROWS), label_table(HASHED_FROM_ROWS - 1)
    for put in (put_table, put_named_table):
        assert put(store, "many", many, "samples-metadata").footer_sha256
        assert not put(store, "few", few, "samples-metadata").footer_sha256
        assert not put(store, "other", many, "stats").footer_sha256
    file = put_named_table(store, "many", many, "samples-metadata")
    assert TableFile.from_json(file.to_json()) == file
    assert get_table(store, file).equals(many)


def test_flipped_byte_of_what_is_read_is_told(tables):
    """A damaged footer would end the process in Arrow's reader: it is checked before."""
    _, file, table = tables[SIZES[0]]
    good = tables[SIZES[0]][0].get("t").data
    footer = footer_nbytes(good)
    store = open_store("memory://table-rows-damaged")
    first = 4 + 1000  # of the first row group
    places = [*range(len(good) - footer, len(good), 97), len(good) - 1, len(good) - 8, first]
    for at in places:
        damaged = bytearray(good)
        damaged[at] ^= 4
        store.put("t", bytes(damaged))
        what = "row group 0" if at == first else "its footer"
        with refusal(Corrupt, what=what, where=f"{store.url}/t"):
            get_rows(store, file, np.array([7]))
    assert get_rows(store, file, np.array([5000])).to_pylist() == table.slice(5000, 1).to_pylist()
    store.put("t", good[: len(good) // 2])
    with pytest.raises(Corrupt):
        get_rows(store, file, np.array([7]))
    store.put("t", good)
    with refusal(Corrupt, what="its footer", where="memory://table-rows-damaged/t", accepted="00"):
        get_rows(store, replace(file, footer_sha256="00"), np.array([7]))


@pytest.mark.parametrize("values", [[], [3], [1, 1, 2, 9], [9, 1, 9, -4, 1], [5] * 6])
def test_distinct_values_are_those_of_numpy(values):
    given = np.array(values, np.int64)
    assert distinct(given).tolist() == np.unique(given).tolist()
    assert given.tolist() == values, "the argument is not sorted in place"


@pytest.mark.parametrize("texts", [[], ["a"], ["a"] * 20 + ["b"] * 20 + ["a"] * 20, ["a", "b", "c"] * 9])
@pytest.mark.parametrize("n_chunks", [1, 3])
def test_run_codes_name_each_row_as_codes_do(texts, n_chunks):
    bounds = np.linspace(0, len(texts), n_chunks + 1).astype(int).tolist()
    chunks = [texts[first:end] for first, end in pairwise(bounds)]
    column = pa.chunked_array(chunks, pa.string())
    for encode in (codes, run_codes):
        values, code = encode(column)
        assert [values[i].as_py() for i in code.tolist()] == texts
    if len(texts) == 60:
        assert run_codes(column)[0].to_pylist() == ["a", "b", "a"]
