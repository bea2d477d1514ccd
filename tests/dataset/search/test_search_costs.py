"""Costs of a search that do not depend on the machine: threads, memory of embeddings, and decoded columns of keys."""

import os
import subprocess
import sys
import tracemalloc

import faiss
import numpy as np
import pyarrow.parquet as pq
import pytest

import loader
from loader.dataset.names import hashes_of
from loader.dataset.search import key_hashes
from loader.dataset.search.embedding_codes import code_ranges, encode, faiss_scan
from loader.dataset.search.vectors import _unit_vectors
from loader.dataset.tables import parquet, table_rows
from loader.dataset.versions import sample_search
from loader.dataset.versions.samples_table import live_ordinals
from loader.dataset.writing import run_samples
from loader.errors import SampleNotFound
from tests.refusals import refusal

NUMBERS = 64


class Ranges:
    """The part of a `How` that `encode` reads."""

    def __init__(self, vectors):
        self.ranges = code_ranges(vectors)


def embeddings(n):
    """Stored embeddings; some of them have no direction, also at the ends of pieces."""
    vectors = np.random.default_rng(n).normal(size=(n, NUMBERS)).astype(np.float16)
    vectors[[0, 255]] = 0
    vectors[256, 3] = np.nan
    vectors[257, 5] = -np.inf
    is_filled = np.arange(n) != n - 1
    return vectors, is_filled


@pytest.mark.parametrize("n", [300, 256, 1_000])
def test_directions_and_codes_are_those_of_whole_arrays(n):
    stored, is_filled = embeddings(max(n, 258))
    vectors = _unit_vectors(stored, is_filled)
    wide = stored.astype(np.float32)
    largest = np.abs(wide).max(axis=1)
    is_valid = is_filled & np.isfinite(largest) & (largest > 0)
    assert vectors.is_valid.tolist() == is_valid.tolist()
    scaled = wide[is_valid] / largest[is_valid, None]
    lengths = np.sqrt(np.einsum("ij,ij->i", scaled, scaled))
    assert np.array_equal(vectors.rows[is_valid], scaled / lengths[:, None])
    assert not vectors.rows[~is_valid].any()
    ranges = Ranges(vectors.rows[is_valid])
    low, high = ranges.ranges
    steps = (vectors.rows - low) / (high - low) * np.float32(255)
    assert np.array_equal(encode(vectors.rows, ranges), np.clip(steps, 0, 255).astype(np.uint8))


def test_every_float16_has_the_direction_of_its_float32():
    halves = np.arange(2**16, dtype=np.uint16).view(np.float16)
    rows = np.stack([halves, np.ones_like(halves)], axis=1)
    narrow = _unit_vectors(rows, np.ones(len(rows), bool))
    wide = _unit_vectors(rows.astype(np.float32), np.ones(len(rows), bool))
    assert np.array_equal(narrow.is_valid, np.isfinite(halves))
    assert np.array_equal(narrow.is_valid, wide.is_valid)
    assert np.array_equal(narrow.rows.view(np.uint32), wide.rows.view(np.uint32))


def test_embeddings_take_little_memory_beside_their_result():
    for n in (2_048, 16_384):
        stored, is_filled = embeddings(n)
        tracemalloc.start()
        vectors = _unit_vectors(stored, is_filled)
        codes = encode(vectors.rows, Ranges(vectors.rows))
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        results = vectors.rows.nbytes + vectors.is_valid.nbytes + codes.nbytes
        assert peak - results < 2**20


def test_scan_takes_one_thread_and_leaves_the_setting():
    """faiss's other threads spin while one scans for a query: they double the processor time."""
    index = faiss.IndexScalarQuantizer(NUMBERS, faiss.ScalarQuantizer.QT_8bit, faiss.METRIC_INNER_PRODUCT)
    vectors = np.random.default_rng(0).normal(size=(50, NUMBERS)).astype(np.float32)
    index.train(vectors)
    index.add(vectors)
    n_threads = []

    class Watched:
        def search(self, *arguments, **options):
            n_threads.append(faiss.omp_get_max_threads())
            return index.search(*arguments, **options)

    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(3)
    try:
        rows, _ = faiss_scan(faiss, Watched(), vectors[7], 1, np.arange(50) < 49)
        assert faiss.omp_get_max_threads() == 3
    finally:
        faiss.omp_set_num_threads(before)
    assert rows.tolist() == [7]
    assert n_threads == [1]


def test_few_keys_are_found_by_decoding_the_keys(tmp_path, monkeypatch):
    monkeypatch.setattr(run_samples.put_rows, "__defaults__", (16,))
    defaults = parquet.table_bytes.__kwdefaults__
    monkeypatch.setattr(parquet.table_bytes, "__kwdefaults__", {**defaults, "row_group_rows": 16})
    monkeypatch.setattr(parquet.put_table, "__defaults__", (16,))
    n_decoded = {}
    for n in (64, 512):
        root = loader.Root(tmp_path / str(n))
        with root.write("d") as writer:
            for i in range(n):
                writer.add(f"k{i}", {"a.txt": "x"})
        version = root.exclude("d", ["k3"], reason="r")
        keys = version.keys(np.arange(len(version)))
        columns = []

        class Watched(pq.ParquetFile):
            def read_row_group(self, number, columns, use_threads, _columns=columns):
                _columns.append(columns)
                return super().read_row_group(number, columns=columns, use_threads=use_threads)

        with monkeypatch.context() as patch:
            patch.setattr(table_rows.pq, "ParquetFile", Watched)
            ordinals = live_ordinals(version, ["k5", "missing", "k3", f"k{n - 1}"])
        assert ordinals.tolist() == [keys.index("k5"), -1, -1, keys.index(f"k{n - 1}")]
        assert columns.count(["key"]) == n // 16
        n_decoded[n] = columns.count(["part", "row"])
    assert max(n_decoded.values()) <= 3  # one for each key that is there


def test_search_imports_no_pandas(tmp_path):
    """pyarrow imports it for Python's values and for masks, which takes a server's first search 0.4 s."""
    (tmp_path / "pandas.py").touch()
    root = loader.Root(tmp_path / "root")
    with root.write("d") as writer:
        for i in range(3):
            writer.add(
                f"k{i}", {"embedding.npy": np.arange(4.0) + i, "caption.txt": f"red cup {i}"}, {"w": i}
            )
    root.exclude("d", ["k2"], reason="blurred")
    code = (
        "import sys, loader; version = loader.Root(sys.argv[1]).open('d');"
        "assert version.search(like='k0').keys();"
        "assert version.search(like='k1', where='w > 0').keys() == ['k1'];"
        "assert len(version.search('red cup')) == 2; print('pandas' in sys.modules)"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    command = [sys.executable, "-c", code, root.url]
    output = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
    assert output == "False\n"


def test_second_key_reads_its_rows_only(tmp_path, monkeypatch):
    root = loader.Root(tmp_path / "root")
    for batch in range(2):
        with root.write("d") as writer:
            for i in range(20):
                writer.add(f"k{batch}-{i}", {"embedding.npy": np.arange(4.0) + i})
    version = root.exclude("d", ["k0-3"], reason="r")
    n_scans = []

    def record_scan(version, keys, live_ordinals=live_ordinals):
        n_scans.append(len(keys))
        return live_ordinals(version, keys)

    monkeypatch.setattr(sample_search, "live_ordinals", record_scan)
    monkeypatch.setattr(
        key_hashes, "hashes_of", lambda keys: hashes_of(keys) // 2**61
    )  # most keys share a hash
    keys = version.keys(np.arange(len(version)))
    for key in ("k1-7", "k0-0", "k1-19", "k0-0"):
        assert key in version.keys(version.search(like=key, k=3).ordinals)
    together = version.search(like=["k0-1", "k1-1"], k=3)
    assert together.ordinals[0] in (keys.index("k0-1"), keys.index("k1-1"))
    for key in ("k0-3", "missing", "\ud800"):
        with refusal(SampleNotFound, what="like", where="d@3", given=key):
            version.search(like=key)
    assert n_scans == [1, 1]  # the first lookup, and the text that is not a key
