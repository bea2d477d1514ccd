"""A stored bitmap gives what one in memory does, and reads only the pages that it needs."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import loader
from benchmarks.episode_start import AT, DATASET, DECODE, make_root
from benchmarks.latency_server import BUCKET, latency_store
from loader.dataset.shards.bitmap import BLOCK_BITS, SelectTable, pack
from loader.dataset.versions import window_tables
from loader.dataset.versions.window_tables import StoredBits, kept_windows_bytes, load_kept
from loader.order.random.keyed_permutation import I64
from loader.storage import open_store

PAGE_BITS = 2 * BLOCK_BITS


@pytest.fixture(autouse=True)
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages of two blocks."""
    monkeypatch.setattr(window_tables, "PAGE_BYTES", PAGE_BITS // 8)
    monkeypatch.setattr(window_tables, "_PAGE_BITS", PAGE_BITS)


class Recorded:
    """A store that records the ranges that are read."""

    def __init__(self, data: bytes) -> None:
        self.store, self.url, self.ranges = (
            open_store("memory://kept-bits"),
            "memory://kept-bits",
            list[Any](),
        )
        self.store.put("windows/x.parquet", data)

    def head(self, key: str) -> Any:
        return self.store.head(key)

    def get_range(self, key: str, offset: int, nbytes: int) -> Any:
        self.ranges.append((offset, nbytes))
        return self.store.get_range(key, offset, nbytes)

    def get_ranges(self, key: str, spans: Any, **limits: Any) -> Any:
        self.ranges += [tuple(span) for span in spans]
        return self.store.get_ranges(key, spans, **limits)


def store_bits(bits: np.ndarray, first: I64) -> tuple[Recorded, Any]:
    packed = np.frombuffer(pack(bits), np.uint8)
    kept = np.concatenate([[0], np.cumsum(bits, dtype=np.int64)])[first]
    store = Recorded(kept_windows_bytes(first, kept, packed, {"path": "windows/x.parquet"}))
    loaded = load_kept(store, "windows/x.parquet", len(first))  # type: ignore[arg-type]
    assert loaded is not None
    assert np.array_equal(loaded[0], kept)
    assert np.array_equal(loaded[1].first, first)
    return store, loaded[1].members


NUMBERS = st.integers(0, 2**32)
"""A number to look up, modulo the numbers that a bitmap has."""


@settings(max_examples=40)
@given(
    n=st.integers(0, 5 * PAGE_BITS),
    share=st.sampled_from([0.0, 0.002, 0.5, 1.0]),
    lookups=st.lists(st.tuples(st.lists(NUMBERS, max_size=20), NUMBERS, NUMBERS), min_size=4, max_size=4),
)
# Few drawn bitmaps reach the second block of a later page, whose counts need those of the pages before it.
@example(
    n=5 * PAGE_BITS,
    share=1.0,
    lookups=[([PAGE_BITS + BLOCK_BITS + 5], PAGE_BITS + BLOCK_BITS + 9, 5 * PAGE_BITS)],
)
def test_stored_bits_equal_those_in_memory(
    n: int, share: float, lookups: list[tuple[list[int], int, int]]
) -> None:
    bits = np.random.default_rng(n).random(n) < share
    _, members = store_bits(bits, np.array([0, n]))
    table = SelectTable(pack(bits), n)
    for numbers, one_end, other_end in lookups:
        ranks = np.array(numbers, np.int64) % max(1, len(table))
        if not len(table):
            ranks = ranks[:0]
        assert np.array_equal(members.select(ranks), table.select(ranks))
        start, stop = sorted([one_end % (n + 1), other_end % (n + 1)])
        assert np.array_equal(members.bits(start, stop), bits[start:stop])
        assert members.rank(start) == table.rank(start)
    data_of = pickle.dumps(StoredBits(members._store.store, "windows/x.parquet", n, members._pages))
    again = pickle.loads(data_of)  # noqa: S301 - our own bytes
    assert again.after(n // 3).packed() == table.after(n // 3).packed()
    assert members.packed() == pack(bits)
    assert len(members) == len(table)


def test_only_pages_of_drawn_windows_are_read_and_once() -> None:
    bits = np.random.default_rng(0).random(129 * PAGE_BITS + 100) < 0.5
    store, members = store_bits(bits, np.array([0, 50, len(bits)]))
    ((_, nbytes),) = store.ranges
    assert nbytes == window_tables.TAIL_BYTES + 3 * window_tables.ROW_BYTES
    store.ranges.clear()
    chosen = np.flatnonzero(bits)
    at = np.searchsorted(chosen, [10, 10 + PAGE_BITS * 4, 20 + PAGE_BITS * 4, len(bits) - 5])
    assert np.array_equal(members.select(at), chosen[at])
    page = PAGE_BITS // 8
    assert store.ranges == [(4, page), (4 + 4 * page, page), (4 + 129 * page, 13)]
    members.select(at)
    assert len(store.ranges) == 3


def test_long_footer_and_long_rows_are_read_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(window_tables, "ROW_BYTES", 0)
    lengths = np.random.default_rng(0).integers(0, 2**9, 60_000)
    first = np.append(0, np.cumsum(lengths))
    bits = np.random.default_rng(1).random(int(first[-1])) < 0.5
    store, members = store_bits(bits, first)
    assert len(store.ranges) == 3  # the end, the rest of the footer, the rows
    assert members.packed() == pack(bits)


def requests(folder: Path, keep: str | None, middle: bool) -> dict[str, int]:
    """Return kind -> requests of a process's first batch."""
    with latency_store(folder, 0, record=True) as server:
        with loader.Root(f"s3://{BUCKET}", options=server.options) as root:
            windows = loader.windows(
                root.open(f"{DATASET}@1").select(*AT), anchor="action.npy", at=AT, keep=keep
            )
            plan = loader.plan({DATASET: windows}, seed=7, global_batch=16)
            with loader.Loader(plan, framework="numpy", decode=DECODE, workers=0, steps=10**6) as read:
                read.load_state_dict(plan.state(len(windows) // 32 if middle else 0))
                next(read)
        counts = dict.fromkeys(("index", "shard", "windows", "other"), 0)
        for one in server.recorded():
            target = one["target"].partition("?")[0]
            kind = "index" if ".index." in target else "shard" if target.endswith(".tar") else "other"
            counts["windows" if target.startswith(f"/{BUCKET}/windows/") else kind] += 1
    return counts


def test_requests_of_a_first_batch_do_not_grow_with_episodes(tmp_path: Path) -> None:
    counts: dict[Any, dict[str, int]] = {}
    for n_parts in (20, 80):
        folder = tmp_path / str(n_parts)
        make_root(folder, 21 * n_parts, 21)
        with loader.Root(str(folder)) as root:
            for keep in (None, "keep.npy"):
                loader.windows(root.open(f"{DATASET}@1").select(*AT), anchor="action.npy", at=AT, keep=keep)
        for keep in (None, "keep.npy"):
            for middle in (False, True):
                counts[keep, middle, n_parts] = requests(folder, keep, middle)
    for (keep, middle, n_parts), own in counts.items():
        assert own["index"] <= 16, (keep, n_parts)
        assert own["shard"] <= 2 * 16  # streams and packet tables, then the frames
        assert own["other"] == counts[None, middle, 20]["other"] <= 14
        assert own["windows"] <= (1 if keep is None else 2 + 16)
    assert counts[None, True, 80]["windows"] == counts[None, True, 20]["windows"]
