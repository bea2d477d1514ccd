"""Extremes of a stream per column, and checked ranges of a field."""

import os

import numpy as np
import pytest

import loader
from loader.errors import Corrupt, DecodeFailed
from loader.modalities import encode
from loader.modalities.row_blocks import index_rows
from loader.modalities.row_blocks import read_rows as read_blocks
from penstock.view.episodes import stream_summary, verified_field
from penstock.view.episodes.stream_summary import StreamSummary, read_rows, spread, stream_layout
from penstock.view.episodes.verified_field import BLOCK_BYTES, PASS_BYTES
from penstock.view.episodes.verified_field import verify_field as open_field
from tests.refusals import refusal


def write_field(tmp_path, array, name="state.npy"):
    with loader.Root(tmp_path / "root").write("arm") as writer:
        writer.add("ep", {name: array})
    version = loader.Root(tmp_path / "root").open("arm@1")
    return open_field(version, 0, name)


def flip(tmp_path, field, at):
    """Change a byte of a stored field, as a disk does: the file's times stay."""
    path = tmp_path / "root" / field.address.path
    times = path.stat()
    data = bytearray(path.read_bytes())
    data[field.address.offset + at] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


class Ranges:
    """A store of one array; it counts requests."""

    def __init__(self, array):
        self.array, self.n, self.nbytes = array, 0, 0

    def __call__(self, monkeypatch):
        read = verified_field.VerifiedField._read

        def count_range(field, offset, nbytes):
            self.n, self.nbytes = self.n + 1, self.nbytes + nbytes
            return read(field, offset, nbytes)

        monkeypatch.setattr(verified_field.VerifiedField, "_read", count_range)
        return self


VALUES = np.array([0.0, 1.0, -2.5, 7.0, np.nan, np.inf, -np.inf, 1e300])
LARGEST = np.finfo(np.float32).max


@pytest.mark.parametrize("n", [0, 1, 7, 59, 60])
def test_columns_are_the_extremes_of_their_rows(tmp_path, n):
    draws = np.random.default_rng(n)
    array = VALUES[draws.integers(0, len(VALUES), (n, 2))]
    field = write_field(tmp_path, array)
    for rows_each in (1, 2, 3, 5):
        summary = make_summary(field, rows_each)
        for _ in range(60):
            first, stop = draws.integers(0, n + 3, 2).tolist()
            check_columns(array, summary, first, stop, int(draws.integers(1, 20)))


def check_columns(array, summary, first, stop, n_columns):
    columns, end = summary.columns(first, stop, n_columns, range(2)), min(stop, len(array))
    if end <= first:
        assert len(columns.rows) == 0
        return
    each = 1 if end - first <= n_columns * summary.rows_each else summary.rows_each
    starts = columns.rows.tolist()
    assert 1 <= len(starts) <= n_columns + 1
    assert starts[0] == first // each * each
    assert len({*np.diff(starts).tolist()}) <= 1
    stops = [*starts[1:], min(-(-end // each) * each, len(array))]
    for number, (start, after) in enumerate(zip(starts, stops, strict=True)):
        for dim in range(2):
            own = array[start:after, dim]
            own = np.clip(own[np.isfinite(own)], -LARGEST, LARGEST).astype(np.float32)
            expected = (own.min(), own.max()) if len(own) else (np.nan, np.nan)
            drawn = [columns.low[dim, number], columns.high[dim, number]]
            assert np.array_equal(drawn, expected, equal_nan=True)


def make_summary(field, rows_each):
    """A summary of buckets of so many rows."""
    summary = StreamSummary(field, stream_layout(field))
    summary.rows_each = rows_each
    n = -(-summary.n_rows // rows_each)
    summary._low = np.full((n, summary.dims), np.nan, np.float32)
    summary._high = summary._low.copy()
    summary._fill()
    return summary


@pytest.mark.parametrize("dtype", [np.bool_, np.uint8, np.int64, np.float16, np.float32, np.float64])
def test_every_dtype_is_drawn(tmp_path, dtype):
    array = (np.arange(24).reshape(8, 3) % 5).astype(dtype)
    field = write_field(tmp_path, array)
    columns = StreamSummary(field, stream_layout(field)).columns(0, 8, 100, range(3))
    assert np.array_equal(columns.low.T, array.astype(np.float32))
    assert columns.rows.tolist() == list(range(8))


def test_range_reads_its_blocks_and_checks_them(tmp_path, monkeypatch):
    array = np.random.default_rng(0).standard_normal(
        (400_000, 4)
    )  # 12.8 MB: three requests of a pass and a part
    field = write_field(tmp_path, array)
    counted = Ranges(array)(monkeypatch)
    layout = stream_layout(field)
    summary = StreamSummary(field, layout)
    assert counted.n == 2 + array.nbytes // PASS_BYTES  # the head, and the pass
    counted.n = counted.nbytes = 0
    columns = summary.columns(5000, 5400, 1000, range(4))
    assert (counted.n, counted.nbytes <= 2 * BLOCK_BYTES) == (1, True)
    assert np.array_equal(columns.low, array[5000:5400].T.astype(np.float32))
    flip(tmp_path, field, len(layout.head) + 5100 * 32)
    with refusal(Corrupt, what="block", within="field 'state.npy'", given=2 * BLOCK_BYTES):
        summary.columns(5000, 5400, 1000, range(4))
    assert summary.columns(200_000, 200_010, 1000, range(4)).low.shape == (
        4,
        10,
    )  # other blocks are unchanged


def test_flipped_byte_is_named(tmp_path):
    field = write_field(tmp_path, np.arange(3_000_000, dtype=np.int16))
    flip(tmp_path, field, 4_000_000)
    with refusal(Corrupt, what="CRC-32C", within="field 'state.npy'"):
        StreamSummary(field, stream_layout(field))
    with refusal(Corrupt, what="CRC-32C", within="field 'state.npy'"):
        field.read(0, 10)


def test_memory_does_not_grow_with_the_stream(tmp_path):
    sizes = []
    for n in (400_000, 1_600_000):
        (tmp_path / str(n)).mkdir()
        field = write_field(tmp_path / str(n), np.zeros((n, 8), np.float32))
        summary = StreamSummary(field, stream_layout(field))
        sizes.append(summary.nbytes)
        assert summary.columns(0, n, 1000, range(8)).low.shape[1] <= 1000
    assert max(sizes) <= stream_summary.LEVEL_BYTES


def test_range_of_wide_rows_reads_a_bounded_part(tmp_path, monkeypatch):
    """With few buckets, any range has fewer rows than columns times their rows."""
    monkeypatch.setattr(stream_summary, "LEVEL_BYTES", 2**16)
    values = np.arange(5000 * 64, dtype=np.float32).reshape(5000, 64)
    field = write_field(tmp_path, values)
    summary, ranges = StreamSummary(field, stream_layout(field)), Ranges(values)
    ranges(monkeypatch)
    for first, stop in ((0, 5000), (100, 4000), (4000, 4100), (4990, 5000)):
        read = summary.columns(first, stop, 4096, range(64))
        assert read.low.min() <= values[first].min()
        assert read.high.max() >= values[stop - 1].max()
        assert ranges.nbytes <= 2**16 + 2 * BLOCK_BYTES
        ranges.nbytes = 0
    assert ranges.n == 2


def test_what_is_no_stream_is_told_apart(tmp_path):
    (tmp_path / "texts").mkdir()
    assert stream_layout(write_field(tmp_path / "texts", np.array(["a", "b"]))) is None
    (tmp_path / "one").mkdir()
    assert stream_layout(write_field(tmp_path / "one", np.array(3.0))) is None
    fortran = np.lib.format.magic(1, 0) + b""
    (tmp_path / "rows").mkdir()
    data = npy(np.asfortranarray(np.arange(6.0).reshape(2, 3)))
    assert data.startswith(fortran)
    with refusal(DecodeFailed, what="order", given="Fortran"):
        stream_layout(write_field(tmp_path / "rows", data))
    (tmp_path / "short").mkdir()
    whole = npy(np.arange(6.0))
    with refusal(DecodeFailed, what="size", given=len(whole) - 8, accepted=len(whole)):
        stream_layout(write_field(tmp_path / "short", whole[:-8]))


def npy(array):
    import io

    sink = io.BytesIO()
    np.lib.format.write_array(sink, array)
    return sink.getvalue()


def with_rows(tmp_path, array):
    """The field of a stored array, and its row blocks."""
    with loader.Root(tmp_path / "root").write("arm") as writer:
        writer.add("ep", {"state.npy": array, "state.npy.rows": index_rows(encode("state.npy", array))})
    version = loader.Root(tmp_path / "root").open("arm@1")
    rows = open_field(version, 0, "state.npy.rows").whole()
    return open_field(version, 0, "state.npy"), read_blocks(rows)


@pytest.mark.parametrize("dims", [4, 5000 // 7])
def test_row_blocks_read_a_stream_bit_by_bit(tmp_path, monkeypatch, dims):
    """Each call reads one part and leaves the rest without values; in the end they are the extremes of one pass."""
    array = np.random.default_rng(0).standard_normal((12_900_001 // (8 * dims), dims))
    array[0], array[-1] = 90, -90
    field, blocks = with_rows(tmp_path, array)
    whole = StreamSummary(field, stream_layout(field)).columns(0, len(array), 100, range(4))
    field, _ = with_rows(tmp_path / "again", array)
    field.check_blocks(blocks)
    counted = Ranges(array)(monkeypatch)
    summary = StreamSummary(field, stream_layout(field))
    assert (counted.n, summary.is_narrow(500, 510, 1000)) == (1, True)  # the head
    assert np.array_equal(
        summary.columns(500, 510, 1000, range(4)).low, array[500:510, :4].T.astype(np.float32)
    )
    assert counted.nbytes <= 3 * 2**16
    counted.nbytes = 0
    shares, drawn = [], []
    while not shares or shares[-1] < 1:
        shares.append(summary.read_more(-1.0))
        columns = summary.columns(0, len(array), 100, range(4))
        known = np.isfinite(columns.low)
        assert (columns.low[known] >= whole.low[known]).all()
        assert (columns.high[known] <= whole.high[known]).all()
        drawn.append(known.mean())
    assert len(shares) == 4
    assert 0.2 < drawn[0] < 0.5
    assert drawn == sorted(drawn)
    assert np.array_equal(columns.low, whole.low)
    assert np.array_equal(columns.high, whole.high)
    assert array.nbytes <= counted.nbytes <= array.nbytes + 8 * 2 * 2**16


def test_damaged_block_of_rows_is_named_at_once(tmp_path):
    array = np.random.default_rng(0).standard_normal((200_000, 4))
    field, blocks = with_rows(tmp_path, array)
    field.check_blocks(blocks)
    flip(tmp_path, field, len(blocks.layout.head) + 5100 * 32)
    assert len(read_rows(field, stream_layout(field), 0, 2048)) == 2048
    with refusal(Corrupt, what="row block", within="field 'state.npy'", given=131_200):
        read_rows(field, stream_layout(field), 5100, 5101)
    with refusal(Corrupt, what="row block", within="field 'state.npy'", given=131_200):
        StreamSummary(field, stream_layout(field)).read_more(9.0)
    other, _ = with_rows(tmp_path / "other", array + 1)
    with refusal(DecodeFailed, what="row blocks", within="field 'state.npy'"):
        other.check_blocks(blocks)


@pytest.mark.parametrize("n", [0, 1, 2, 7, 8, 9, 100])
def test_order_that_is_spread_covers_every_value_evenly(n):
    order = spread(range(n))[::-1]
    assert sorted(order) == list(range(n))
    for k in range(2, n + 1):
        gaps = np.diff(sorted([*order[:k], n]))
        assert gaps.max() <= 4 * n / k
