"""The samples of a run come table by table, and what is stored is as if they came at once."""

from uuid import uuid4

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loader.dataset.names import hashes_of
from loader.dataset.tables import parquet
from loader.dataset.tables.columns import KEYS_SCHEMA
from loader.dataset.tables.parquet import get_table, put_table
from loader.dataset.tables.stats import RunStats, column_stats, smallest
from loader.dataset.writing import run_samples
from loader.dataset.writing.run_samples import RunKeys, RunSamples, by_rows, put_rows
from loader.errors import DuplicateKey
from loader.storage import open_store
from tests.refusals import refusal

SIZES = st.lists(st.integers(0, 9), min_size=1, max_size=6)


def sample_table(n, first=0, part="p"):
    """Samples with keys of their own, metadata of each kind, nulls among them."""
    rows = range(first, first + n)
    columns = {
        "part": [part] * n,
        "row": list(range(n)),
        "key": [f"k{i}" for i in rows],
        "raw_key": [None if i % 3 == 0 else f"o{i % 2}" for i in rows],
    }
    own = [pa.array(columns.get(field.name, [None] * n), field.type) for field in KEYS_SCHEMA]
    table = pa.table(own, schema=KEYS_SCHEMA)
    table = table.append_column("x", pa.array([i / 7 if i % 4 else None for i in rows], pa.float64()))
    return table.append_column("is", pa.array([i % 2 == 0 for i in rows], pa.bool_()))


def sample_tables(sizes):
    starts = np.cumsum([0, *sizes]).tolist()
    return [
        sample_table(n, first, f"p{at}") for at, (n, first) in enumerate(zip(sizes, starts, strict=False))
    ]


@settings(max_examples=40, deadline=None, derandomize=True)
@given(sizes=SIZES, rows=st.integers(1, 7))
def test_table_that_comes_in_pieces_is_stored_as_it_would_be_whole(sizes, rows):
    store = open_store(f"memory://run-samples-{uuid4().hex}")
    tables = sample_tables(sizes)
    whole = pa.concat_tables(tables)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parquet, "HASHED_FROM_ROWS", 12)
        patch.setattr(run_samples, "HASHED_FROM_ROWS", 12)
        found = put_rows(store, "pieces", tables, whole.schema, "samples-keys", whole.num_rows, rows)
        assert found.n_rows == whole.num_rows
        assert get_table(store, found).equals(whole)
        assert bool(found.footer_sha256) == (whole.num_rows >= 12)
        same = put_table(store, "whole", whole, "samples-keys", rows)
        assert (found.sha256, found.footer_sha256) == (same.sha256, same.footer_sha256)


@given(sizes=SIZES, rows=st.integers(1, 7))
def test_all_row_groups_but_the_last_are_full(sizes, rows):
    tables = sample_tables(sizes)
    groups = list(by_rows(tables, rows))
    n = sum(sizes)
    assert [group.num_rows for group in groups] == [rows] * (n // rows) + [n % rows] * (n % rows > 0)
    assert pa.concat_tables([sample_table(0), *groups]).equals(pa.concat_tables(tables))


@given(sizes=SIZES)
def test_statistics_of_pieces_are_those_of_the_whole(sizes):
    """To the last bit: sums of floats too."""
    tables = sample_tables(sizes)
    whole = pa.concat_tables(tables)
    stats = RunStats(smallest(hashes_of(whole["key"])))
    for table in tables:
        stats.add(table.drop_columns(["part", "row"]))
    assert stats.table().equals(column_stats(whole))


def test_column_of_many_values_is_not_counted_in_pieces_either(monkeypatch):
    monkeypatch.setattr("loader.dataset.tables.stats.MAX_CATEGORIES", 3)
    tables = [pa.table({"a": values}) for values in (["x", "y"], ["z", "x"], ["w"], ["x"])]
    stats = RunStats([])
    for table in tables:
        stats.add(table)
    assert stats.table().equals(column_stats(pa.concat_tables(tables)))
    assert stats.table().to_pylist()[0]["categories_complete"] is False


def test_first_key_that_repeats_is_named(monkeypatch):
    """Keys decide: with one hash for all, too."""
    tables = [sample_table(5), sample_table(5, 5), sample_table(3, 7)]
    for hashes in (hashes_of, lambda keys: np.zeros(len(keys), np.int64)):
        monkeypatch.setattr(run_samples, "hashes_of", hashes)
        with refusal(DuplicateKey, what="key", where="this version", given="k7"):
            RunSamples(tables, 13, {})
        assert len(RunSamples(tables[:2], 10, {}).keys.hashes) == 10


@given(names=st.lists(st.integers(0, 9), unique=True), bits=st.sampled_from([0, 1, 63]))
def test_keys_without_some(names, bits):
    """Whether hashes are all different, or two or one for all."""
    with pytest.MonkeyPatch.context() as patch:
        few = (1 << bits) - 1
        patch.setattr(run_samples, "hashes_of", lambda keys: hashes_of(keys) & few)
        gone = {f"k{name}": "why" for name in names}
        run = RunSamples([sample_table(4), sample_table(6, 4, "q")], 10, {})
        rows, unmatched = run.find_rows(gone)
        assert not unmatched
        found = {(part, row) for (part, _), some in rows.items() for row in some}
        assert found == {("p", name) if name < 4 else ("q", name - 4) for name in names}
        left = run.keys.without(gone.keys())
        kept = [f"k{i}" for i in range(10) if i not in names]
        assert left.hashes.tolist() == sorted((hashes_of(kept) & few).tolist())
        assert left.find_keys(np.unique(left.hashes)) == kept
        assert run.find_rows({**gone, "k99": "why"}) == (rows, {"k99"})


def test_keys_by_their_hashes():
    keys = RunKeys.of(["a", "b", "c"])
    assert keys.find_keys(np.sort(hashes_of(["c", "a", "z"]))) == ["a", "c"]
    assert keys.find_keys(np.empty(0, np.int64)) == []
