"""The index: what was written is read, a row costs a bounded number of bytes, damage is named."""

import io
import itertools
import threading
from dataclasses import replace

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loader.dataset.shards import index as module
from loader.dataset.shards import index_cache
from loader.dataset.shards.index import (
    ROW_GROUP_ROWS,
    WHOLE_BELOW_BYTES,
    IndexFile,
    IndexPlace,
    index_bytes,
)
from loader.dataset.shards.index_cache import IndexCache
from loader.dataset.shards.shard import PAGE_BYTES
from loader.errors import Changed, Corrupt, Transient
from loader.storage import open_store
from tests.refusals import refusal
from tests.servers.patience import PATIENCE_S, until

CI = settings(max_examples=25, deadline=None, derandomize=True)
int64s = st.integers(0, 2**40)


def same(rows, keys, fields):
    low, high = rows.first_row, rows.first_row + len(rows.keys)
    assert rows.keys == keys[low:high]
    for field, table in fields.items():
        found = np.stack([rows.offset[field], rows.nbytes[field], rows.crc32c[field]], axis=1)
        assert np.array_equal(found, table[low:high])
    assert rows.offset.keys() == rows.nbytes.keys() == rows.crc32c.keys() == fields.keys()


def make_index(n, names=("jpg", "a.txt"), key="key/{:07d}"):
    rng = np.random.default_rng(n)
    keys = [key.format(i) for i in range(n)]
    fields = {name: rng.integers(0, 2**32, (n, 3)) for name in names}
    for table in fields.values():
        table[:, 0] = np.sort(table[:, 0])
    return keys, fields, index_bytes(keys, fields)


@CI
@given(
    st.lists(st.text(st.characters(codec="utf-8"), max_size=20), max_size=40),
    st.lists(
        st.sampled_from(["x", "x_offset", "x.offset", "key", "row", "x_nbytes", "-"]), max_size=4, unique=True
    ),
    st.data(),
)
def test_roundtrip(fresh_url, keys, names, data):
    rows = st.lists(st.tuples(int64s, int64s, int64s), min_size=len(keys), max_size=len(keys))
    fields = {name: np.array(data.draw(rows), np.int64).reshape(len(keys), 3) for name in names}
    stored = index_bytes(keys, fields)
    store = open_store(fresh_url())
    store.put("i.parquet", stored)
    index = IndexFile(store, IndexPlace.measure("i.parquet", stored))
    assert index.n_rows == len(keys)
    if keys:
        same(index.read_group(0), keys, fields)


@pytest.fixture(scope="module")
def fresh_url():
    """Many fresh places within one test."""
    numbers = itertools.count()
    return lambda: f"memory://index-{next(numbers)}"


@pytest.fixture
def put(url, stores):
    def put(data, written=None, earlier=False):
        """(a store that has `data`, the place of `written`): the same unless it is to be damaged. earlier: as releases
        wrote it that knew no SHA-256 of indexes."""
        store = stores.Counting(open_store(url))
        store.put("i.parquet", data)
        store.calls.clear()
        place = IndexPlace.measure("i.parquet", written or data)
        return store, replace(place, footer_sha256="") if earlier else place

    return put


def test_row_groups_have_2048_rows(put):
    _, _, data = make_index(5000)
    metadata = pq.ParquetFile(io.BytesIO(data)).metadata
    rows = [metadata.row_group(g).num_rows for g in range(metadata.num_row_groups)]
    assert rows == [2048, 2048, 904]


def test_small_index_is_read_in_one_request(put):
    keys, fields, data = make_index(5000)
    assert len(data) < WHOLE_BELOW_BYTES
    store, place = put(data)
    index = IndexFile(store, place)
    for group in range(3):
        same(index.read_group(group), keys, fields)
    assert store.total == 1


@pytest.mark.parametrize("names", [("jpg",), tuple(f"field{i}.bin" for i in range(12))])
def test_large_index_is_read_by_row_group(put, names):
    """Also where its footer is larger than the tail read first (12 fields: 37 columns in 30 row groups)."""
    keys, fields, data = make_index(60_000, names)
    assert len(data) > WHOLE_BELOW_BYTES
    store, place = put(data)
    index = IndexFile(store, place)
    opening = store.total
    footer = int.from_bytes(data[-8:-4], "little")
    assert opening == (1 if footer + 8 <= module.TAIL_BYTES else 2)
    for group in (7, 0, 29):
        same(index.read_group(group), keys, fields)
    assert store.total == opening + 3
    whole = pq.read_table(io.BytesIO(data))
    assert index.read_group(11).keys == whole["key"].to_pylist()[11 * 2048 : 12 * 2048]
    assert store.nbytes < len(data) / 2
    assert [index.row_group_number(row) for row in (0, 2047, 2048, 59_999)] == [0, 0, 1, 29]


def test_footer_case_is_tested():
    _, _, data = make_index(60_000, tuple(f"field{i}.bin" for i in range(12)))
    assert int.from_bytes(data[-8:-4], "little") > module.TAIL_BYTES


def read_all(store, place):
    index = IndexFile(store, place)
    return [index.read_group(g) for g in range(index.row_group_number(index.n_rows - 1) + 1)]


@pytest.mark.parametrize("earlier", [False, True])
def test_damaged_small_index_is_corrupt(put, earlier):
    _, _, data = make_index(300)
    damaged = bytearray(data)
    damaged[len(data) // 4] ^= 1
    store, place = put(bytes(damaged), data, earlier)
    what = "CRC-32C" if earlier else "row group 0"
    with refusal(Corrupt, what=what, where=f"{store.url}/i.parquet"):
        read_all(store, place)


@pytest.mark.parametrize("earlier", [False, True])
def test_flipped_page_of_a_large_index_is_corrupt(put, earlier):
    keys, fields, data = make_index(60_000)
    metadata = pq.ParquetFile(io.BytesIO(data)).metadata
    column = metadata.row_group(5).column(3)
    damaged = bytearray(data)
    damaged[column.data_page_offset + column.total_compressed_size // 2] ^= 0x10
    store, place = put(bytes(damaged), data, earlier)
    index = IndexFile(store, place)
    same(index.read_group(4), keys, fields)
    url = f"{store.url}/i.parquet"
    page = {"what": "table", "given": "OSError"}
    row_group = {"what": "row group 5", "where": url}
    with refusal(Corrupt, **(page if earlier else row_group)) as caught:
        index.read_group(5)
    assert url in str(caught.value)


@pytest.mark.parametrize("earlier", [False, True])
def test_any_flip_in_a_large_index_is_corrupt_or_harmless(put, monkeypatch, earlier):
    """The footer has a checksum, for a damaged one crashes Parquet readers; so have the pages, but of an earlier
    release not their headers. Whatever a flip makes of those, wrong rows never come out."""
    monkeypatch.setattr(module, "WHOLE_BELOW_BYTES", 1)
    keys, fields, data = make_index(2 * ROW_GROUP_ROWS + 100, ("x", "y"))
    assert len(data) > module.TAIL_BYTES
    footer = len(data) - int.from_bytes(data[-8:-4], "little") - 8
    metadata = pq.ParquetFile(io.BytesIO(data)).metadata
    headers = [metadata.row_group(1).column(c).data_page_offset + i for c in range(7) for i in range(45)]
    rng = np.random.default_rng(0)
    refused = []
    for at in [*headers, *rng.integers(footer, len(data), 200).tolist()]:
        damaged = bytearray(data)
        damaged[at] ^= 1 << int(rng.integers(8))
        store, place = put(bytes(damaged), data, earlier)
        try:
            same(IndexFile(store, place).read_group(1), keys, fields)
        except Corrupt as error:
            refused.append((at, str(error)))
    assert all("i.parquet" in said for _, said in refused)
    assert sum(at >= footer for at, _ in refused) == 200
    found = sum(at < footer for at, _ in refused)
    assert 50 < found < len(headers) if earlier else found == len(headers)


def forge_index():
    """An index that gives each row another one's bytes, whole as Parquet sees it."""
    keys, fields, _ = make_index(300)
    return index_bytes(keys, {name: table[::-1].copy() for name, table in fields.items()})


def test_index_of_other_rows_with_the_checksums_of_the_first_is_corrupt(put):
    """Whoever replaces it can have any CRC-32C; by that alone, as of earlier releases, it is read."""
    _, fields, data = make_index(300)
    other = forge_index()
    store, place = put(other, data)
    crcs = IndexPlace.measure("i.parquet", other)
    place = replace(place, nbytes=len(other), crc32c=crcs.crc32c, footer_crc32c=crcs.footer_crc32c)
    with refusal(Corrupt, what="its footer", where=f"{store.url}/i.parquet"):
        read_all(store, place)
    (rows,) = read_all(store, replace(place, footer_sha256=""))
    assert rows.offset["jpg"].tolist() == fields["jpg"][::-1, 0].tolist()


@pytest.mark.parametrize("n", [300, 60_000])
def test_hashes_of_pages_are_read_by_those_who_want_them(put, n):
    """Whoever reads rows reads no more than Parquet looks at to find its footer."""
    keys, fields, _ = make_index(n)
    pages = np.random.default_rng(1).bytes(32 * 8000)
    data = index_bytes(keys, fields, pages)
    store, place = put(data)
    place = IndexPlace.measure("i.parquet", data, len(pages))
    index = IndexFile(store, place)
    same(index.read_group(0), keys, fields)
    assert store.nbytes <= max(module.TAIL_BYTES, len(data) - len(pages))
    assert index.page_hashes(8000 * PAGE_BYTES - 1).digests == pages
    with refusal(Corrupt, what="hashes of pages", where=index.url, given=256000, accepted=524288001):
        index.page_hashes(8000 * PAGE_BYTES + 1)
    same_table = pq.read_table(io.BytesIO(data))
    assert same_table["key"].to_pylist() == keys
    damaged = bytearray(data)
    damaged[4 + 32 * 17] ^= 1
    store, _ = put(bytes(damaged))
    with refusal(Corrupt, what="its hashes of pages", where=index.url):
        IndexFile(store, place).page_hashes(8000 * PAGE_BYTES)


@pytest.mark.parametrize("cut", [1, 100, 3000])
def test_truncated_index_is_corrupt(put, cut):
    _, _, data = make_index(5000)
    store, place = put(data[:-cut], data)
    with refusal(Corrupt, what="range", where=f"{store.url}/i.parquet", given=[4, 118669]):
        read_all(store, place)


def test_row_groups_of_another_size_are_corrupt(put, monkeypatch):
    """Rows are found by division: an index whose groups are smaller would give other samples' places."""
    monkeypatch.setattr(module, "ROW_GROUP_ROWS", 1000)
    _, _, data = make_index(5000)
    monkeypatch.undo()
    store, place = put(data)
    with refusal(Corrupt, what="row groups", where=f"{store.url}/i.parquet", given=[1000], accepted=2048):
        IndexFile(store, place)


def test_replaced_index_is_noticed(put, monkeypatch):
    monkeypatch.setattr(module, "WHOLE_BELOW_BYTES", 1)
    _, _, data = make_index(8000)
    store, place = put(data)
    index = IndexFile(store, place)
    store.put("i.parquet", data)
    with refusal(Changed, what="etag", where=index.url, given="2", accepted="1"):
        index.read_group(0)


def test_cache_is_bounded_and_shared_by_threads(put):
    from concurrent.futures import ThreadPoolExecutor

    keys, fields, data = make_index(9000)
    store, place = put(data)
    one_group = ROW_GROUP_ROWS * (80 + 24 * 2)
    cache = IndexCache(store, capacity_bytes=2 * one_group)
    with ThreadPoolExecutor(8) as pool:
        for rows in pool.map(lambda row: cache.rows(place, row), [*range(0, 9000, 90)] * 3):
            same(rows, keys, fields)
    assert cache._groups.size <= 2 * one_group
    assert len(cache._groups._held) <= 2
    [(_, file)] = cache._files.items()
    assert cache._files.size == file.held_bytes


def test_index_used_least_recently_is_closed(put, monkeypatch):
    monkeypatch.setattr(index_cache, "MAX_OPEN_FILES", 2)
    _, _, data = make_index(100)
    store, place = put(data)
    places = []
    for number in range(3):
        path = f"{number}.parquet"
        store.put(path, data)
        places.append(replace(place, path=path))
    cache = IndexCache(store)
    for number in (0, 1, 0, 2):
        cache.page_hashes(places[number], 100)
    assert [path for path, _ in cache._files.items()] == ["0.parquet", "2.parquet"]


def test_warm_cache_asks_nothing(put):
    _, _, data = make_index(9000)
    store, place = put(data)
    cache = IndexCache(store)
    for row in range(0, 9000, 100):
        cache.rows(place, row)
    assert store.total == 1


def test_what_threads_want_at_once_is_read_once(put):
    keys, _, data = make_index(3_000, ("jpg",))
    store, place = put(data)
    gate = threading.Event()

    class Slow:
        url = store.url

        def get_range(self, *args, **kwargs):
            assert gate.wait(PATIENCE_S)
            return store.get_range(*args, **kwargs)

    cache, found = IndexCache(Slow()), []
    threads = [
        threading.Thread(target=lambda row=row: found.append((row, cache.rows(place, row))))
        for row in (5, 6, 7, 2_500, 2_600)
    ]
    for thread in threads:
        thread.start()
    until(lambda: len(cache._groups.turns._changed._waiters) >= 4)  # all but the one that reads
    gate.set()
    for thread in threads:
        thread.join()
    assert store.total == 1
    for row, rows in found:
        assert rows.keys[row - rows.first_row] == keys[row]


def test_read_that_failed_is_nobodys_turn(put):
    keys, _, data = make_index(100, ("jpg",))
    store, place = put(data)
    failures = iter([Transient("no answer")])

    class Once:
        url = store.url

        def get_range(self, *args, **kwargs):
            for failure in failures:
                raise failure
            return store.get_range(*args, **kwargs)

    cache = IndexCache(Once())
    with pytest.raises(Transient):
        cache.rows(place, 0)
    assert cache.rows(place, 0).keys[:3] == keys[:3]
