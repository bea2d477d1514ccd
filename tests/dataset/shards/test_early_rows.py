"""Row groups that are requested together with the footer: a guess, which changes no row and no error."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from loader.dataset.shards import index as index_module
from loader.dataset.shards import index_cache
from loader.dataset.shards.index import ROW_GROUP_ROWS, IndexFile, IndexPlace, index_bytes
from loader.dataset.shards.index_cache import IndexCache
from loader.errors import Corrupt, ObjectNotFound, Transient
from loader.storage import open_store
from loader.storage.store import Blob
from tests.refusals import refusal

PAGES = bytes(32 * 50)
GROUPS = 5


@pytest.fixture(autouse=True)
def indexes_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_module, "WHOLE_BELOW_BYTES", 0)
    monkeypatch.setattr(index_cache, "WHOLE_BELOW_BYTES", 0)


class Ranges:
    """A store of one index that keeps the ranges it is asked for; `answer` may replace a blob."""

    def __init__(self, data: bytes) -> None:
        self.store = open_store("memory://early-rows")
        self.store.put("i.parquet", data)
        self.url, self.asked = self.store.url, list[tuple[int, int]]()

    def answer(self, offset: int, blob: Blob) -> Blob:
        return blob

    def get_range(self, key: str, offset: int, nbytes: int, etag: str | None = None) -> Blob:
        self.asked.append((offset, nbytes))
        return self.answer(offset, self.store.get_range(key, offset, nbytes, etag))


def store_ranges(n_rows: int, sizes: Any = None, n_fields: int = 1) -> tuple[Ranges, IndexPlace]:
    rng = np.random.default_rng(1)
    keys = [f"{key:016x}" for key in rng.integers(0, 2**63, n_rows)]
    fields = {}
    for number in range(n_fields):
        nbytes = rng.integers(3000, 5000, n_rows) if sizes is None else sizes
        offset = np.cumsum(nbytes) - nbytes
        fields[f"f{number}"] = np.stack([offset, nbytes, rng.integers(0, 2**32, n_rows)], 1).astype(np.int64)
    data = index_bytes(keys, fields, PAGES)
    place = IndexPlace.measure("i.parquet", data, len(PAGES))
    return Ranges(data), IndexPlace.of(place.row() | {"path": "s.tar", "n_rows": n_rows}, n_fields)


def same(store: Ranges, place: IndexPlace, group: int) -> None:
    got = IndexCache(store).rows(place, group * ROW_GROUP_ROWS)
    expected = IndexFile(store.store, place).read_group(group)
    assert got.keys == expected.keys
    assert (got.places == expected.places).all()


@pytest.mark.parametrize("n_fields", [1, 5])
@pytest.mark.parametrize("group", range(GROUPS))
def test_guess_has_the_row_group(group: int, n_fields: int) -> None:
    store, place = store_ranges((GROUPS - 1) * ROW_GROUP_ROWS + 700, n_fields=n_fields)
    same(store, place, group)
    assert len(store.asked) == 2, "footer and rows, neither twice"
    read = sum(nbytes for _, nbytes in store.asked)
    assert read < index_module.TAIL_BYTES + 1.5 * place.nbytes / GROUPS


def test_second_row_group_of_an_open_index_is_read_exactly() -> None:
    store, place = store_ranges(GROUPS * ROW_GROUP_ROWS)
    cache = IndexCache(store)
    cache.rows(place, 0)
    guess = store.asked[0]
    cache.rows(place, ROW_GROUP_ROWS)
    assert len(store.asked) == 3
    assert store.asked[2][1] < guess[1] * 1.1


def test_wrong_guess_costs_a_request() -> None:
    sizes = np.r_[
        np.full(2 * ROW_GROUP_ROWS, 7), np.random.default_rng(2).integers(1, 2**40, 3 * ROW_GROUP_ROWS)
    ]
    store, place = store_ranges(GROUPS * ROW_GROUP_ROWS, sizes)
    same(store, place, 2)
    assert len(store.asked) == 3


def damage_blob(offset: int, blob: Blob) -> Blob:
    return Blob(bytes([blob.data[0] ^ 1]) + bytes(len(blob.data) - 1), blob.etag)


def replace_blob(offset: int, blob: Blob) -> Blob:
    return Blob(blob.data, "another")


@pytest.mark.parametrize("answer", [damage_blob, replace_blob])
def test_guess_of_wrong_bytes_is_read_again(answer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    store, place = store_ranges(GROUPS * ROW_GROUP_ROWS)
    tail = place.nbytes - index_module.TAIL_BYTES
    pending: Iterator[Any] = iter([answer])

    def once(offset: int, blob: Blob) -> Blob:
        change = None if offset == tail else next(pending, None)
        return blob if change is None else change(offset, blob)

    monkeypatch.setattr(store, "answer", once)
    same(store, place, 1)
    assert len(store.asked) == 3


def test_damaged_row_group_is_corrupt(monkeypatch: pytest.MonkeyPatch) -> None:
    store, place = store_ranges(GROUPS * ROW_GROUP_ROWS)
    tail = place.nbytes - index_module.TAIL_BYTES
    monkeypatch.setattr(
        store, "answer", lambda offset, blob: blob if offset == tail else damage_blob(offset, blob)
    )
    with refusal(Corrupt, what="row group 1", where="memory://early-rows/i.parquet"):
        IndexCache(store).rows(place, ROW_GROUP_ROWS)


def test_missing_index_is_named() -> None:
    store, place = store_ranges(GROUPS * ROW_GROUP_ROWS)
    store.store.delete_many(["i.parquet"])
    with pytest.raises(ObjectNotFound):
        IndexCache(store).rows(place, 0)


def test_failed_guess_is_left_to_the_second_read(monkeypatch: pytest.MonkeyPatch) -> None:
    store, place = store_ranges(GROUPS * ROW_GROUP_ROWS)
    tail = place.nbytes - index_module.TAIL_BYTES
    failures = iter([Transient("busy")])

    def fail_once(offset: int, blob: Blob) -> Blob:
        error = None if offset == tail else next(failures, None)
        if error is not None:
            raise error
        return blob

    monkeypatch.setattr(store, "answer", fail_once)
    same(store, place, 3)


def test_local_indexes_are_not_guessed(tmp_path: Any) -> None:
    """A thread costs more there than a second read."""
    store, place = store_ranges(GROUPS * ROW_GROUP_ROWS)
    data = store.store.get("i.parquet").data
    local = open_store(str(tmp_path))
    local.put("i.parquet", data)
    assert IndexCache(local)._file_and_rows(place, 1)[1] is None
