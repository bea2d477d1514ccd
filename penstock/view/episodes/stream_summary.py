"""Smallest and largest values of a long stream, for each column of a plot.

One pass keeps the extremes of up to `LEVEL_BYTES` of buckets. A wide view joins buckets; a narrow one reads its rows,
up to 16 MiB. So an hour at 1 kHz with 64 dimensions (0.9 GB) takes 16 MiB of memory and one read. With row blocks the
pass may stop and go on: each call reads for a limited time, spread over the stream; what is unread has no values.
Rejected: a few rows of each column, which miss peaks.
"""

import math
import time
from collections.abc import Sequence
from threading import Lock
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from loader.errors import DecodeFailed
from loader.modalities.array import FLAT, NpyLayout, npy_layout
from loader.modalities.fields import last_word

from .verified_field import PASS_BYTES, VerifiedField

LEVEL_BYTES = 16 * 2**20
"""Bytes of a stream's buckets, and of the rows that a range reads."""
MAX_DIMS = 4096
"""Most values of a row."""
_HEAD_BYTES = 12 * 2**10
_FLOAT = np.finfo(np.float32)

F32 = npt.NDArray[np.float32]
I64 = npt.NDArray[np.int64]


class ColumnExtremes(NamedTuple):
    """Extremes of a range of rows, one entry per column of a plot."""

    rows: I64
    """int64 [n]: columns' first rows."""
    low: F32
    """float32 [dims, n]; NaN without a finite value."""
    high: F32
    """float32 [dims, n]."""


def stream_layout(field: VerifiedField) -> NpyLayout | None:
    """Return the layout by an array's first bytes; None without rows of numbers. Raises: DecodeFailed."""
    word = last_word(field.address.field)
    if word in FLAT:
        n = field.address.nbytes // FLAT[word].itemsize
        return NpyLayout(b"", (n,), False, FLAT[word], field.address.nbytes)
    layout = npy_layout(field.head(_HEAD_BYTES))
    if not layout.shape or layout.dtype.kind not in "biuf":
        return None
    if layout.fortran and len(layout.shape) > 1:
        message = "an array in Fortran order has no rows to read; store it in C order"
        raise DecodeFailed(message, what="order", given="Fortran", accepted="C")
    nbytes = len(layout.head) + layout.nbytes
    if nbytes != field.address.nbytes:
        raise DecodeFailed(
            f"{layout.dtype} {list(layout.shape)} takes {nbytes} bytes, but {field.address.nbytes} are stored",
            what="size",
            given=field.address.nbytes,
            accepted=nbytes,
        )
    return layout


def n_dims(layout: NpyLayout) -> int:
    return math.prod(layout.shape[1:])


def read_rows(field: VerifiedField, layout: NpyLayout, first: int, stop: int) -> np.ndarray:
    """Return checked rows [stop - first, dims] in the stored dtype. Raises: Corrupt."""
    dims = n_dims(layout)
    n_rows = stop - first
    row_nbytes = dims * layout.dtype.itemsize
    start = len(layout.head) + first * row_nbytes
    data = field.read(start, n_rows * row_nbytes)
    return np.frombuffer(data, layout.dtype).reshape(n_rows, dims)


class StreamSummary:
    def __init__(self, field: VerifiedField, layout: NpyLayout) -> None:
        """Read the stream once; with row blocks, `read_more` does. Raises: DecodeFailed; Corrupt."""
        self.field = field
        self._layout = layout
        self.n_rows = layout.shape[0]
        self.dims = n_dims(layout)
        if self.dims > MAX_DIMS:
            raise DecodeFailed(f"{self.dims} values a row; up to {MAX_DIMS} are drawn")
        bucket_nbytes = 8 * max(1, self.dims)  # the smallest and largest value of each dimension
        # At least a plot's width, also for thousands of dimensions.
        most_buckets = max(1024, LEVEL_BYTES // bucket_nbytes)
        self.rows_each = max(1, -(-self.n_rows // most_buckets))
        """Rows of a bucket."""
        n_buckets = -(-self.n_rows // self.rows_each)
        # NaN draws nothing, so unread buckets are gaps.
        self._low = np.full((n_buckets, self.dims), np.nan, np.float32)
        self._high = self._low.copy()
        self._lock = Lock()
        nbytes_each = self.rows_each * self.dims * layout.dtype.itemsize
        buckets_each = max(1, PASS_BYTES // max(1, nbytes_each))
        # From the end of this list: after any time, the reads so far cover the stream evenly.
        starts = spread(range(0, n_buckets, buckets_each))
        self._spans = [range(start, min(n_buckets, start + buckets_each)) for start in starts]
        """Unread buckets, the next last."""
        self._n_spans = len(self._spans)
        if not field.has_rows:
            self._spans = []
            self._fill()

    @property
    def nbytes(self) -> int:
        """Memory in bytes."""
        return int(self._low.nbytes + self._high.nbytes)

    def _fill(self) -> None:
        """Read the whole stream in chunks, whose borders may lie anywhere."""
        row_nbytes = self.dims * self._layout.dtype.itemsize
        bucket_nbytes = self.rows_each * row_nbytes
        if not bucket_nbytes:
            return
        rest = bytearray()
        bucket = 0
        n_head = len(self._layout.head)
        for chunk in self.field.chunks():
            rest += memoryview(chunk)[n_head:]
            n_head = max(0, n_head - len(chunk))
            n_whole = len(rest) // bucket_nbytes
            if n_whole:
                n_values = n_whole * self.rows_each * self.dims
                rows = np.frombuffer(rest, self._layout.dtype, n_values)
                self._set(bucket, rows.reshape(n_whole, self.rows_each, self.dims))
                del rows  # a bytearray with a view cannot shrink
                bucket += n_whole
                del rest[: n_whole * bucket_nbytes]
        if rest:
            n_rows = len(rest) // row_nbytes
            rows = np.frombuffer(rest, self._layout.dtype, n_rows * self.dims)
            self._set(bucket, rows.reshape(1, -1, self.dims))

    def read_more(self, seconds: float) -> float:
        """Read for some time, at least 4 MiB; return the read share. Raises: Corrupt."""
        until = time.monotonic() + seconds
        while self._spans:
            with self._lock:
                if not self._spans:
                    break
                span = self._spans[-1]
                first = span.start * self.rows_each
                stop = min(self.n_rows, span.stop * self.rows_each)
                rows = read_rows(self.field, self._layout, first, stop)
                n_whole = len(rows) // self.rows_each
                whole = rows[: n_whole * self.rows_each]
                self._set(span.start, whole.reshape(n_whole, self.rows_each, self.dims))
                last = rows[len(whole) :]  # of the stream's last bucket
                if len(last):
                    # [1, rows, dims]: the stream's last bucket has fewer rows than the others.
                    self._set(span.start + n_whole, last[None])
                # After the read: a damaged block raises, and the next call tries it again.
                self._spans.pop()
            if time.monotonic() > until:
                break
        return 1 - len(self._spans) / max(1, self._n_spans)

    def _set(self, bucket: int, rows: np.ndarray) -> None:
        buckets = slice(bucket, bucket + len(rows))
        low, high = extremes(rows)
        self._low[buckets] = low
        self._high[buckets] = high

    def is_narrow(self, first: int, stop: int, n_columns: int) -> bool:
        """Return whether `columns` reads rows instead of buckets."""
        n = min(self.n_rows, stop) - max(0, first)
        nbytes = n * self.dims * self._layout.dtype.itemsize
        # Fewer buckets than columns would show steps; rows are then few enough to read.
        return n <= n_columns * self.rows_each and nbytes <= LEVEL_BYTES

    def columns(self, first: int, stop: int, n_columns: int, dims: range) -> ColumnExtremes:
        """Return the extremes of rows first ... stop - 1, in at most `n_columns` columns.

        They hold whole buckets: the first may begin, and the last end, outside the range. Raises: Corrupt.
        """
        first = max(0, first)
        stop = min(self.n_rows, stop)
        dim_slice = slice(dims.start, dims.stop)
        if stop <= first:
            none = np.empty((len(dims), 0), np.float32)
            return ColumnExtremes(np.empty(0, np.int64), none, none)
        if self.is_narrow(first, stop, n_columns):
            rows = read_rows(self.field, self._layout, first, stop)
            low = high = drawable(rows[:, dim_slice])
            first_row = first
            rows_each = 1
        else:
            first_bucket = first // self.rows_each
            end_bucket = -(-stop // self.rows_each)
            low = self._low[first_bucket:end_bucket, dim_slice]
            high = self._high[first_bucket:end_bucket, dim_slice]
            first_row = first_bucket * self.rows_each
            rows_each = self.rows_each
        # Rounded up, so that the columns are never more than asked for.
        group = -(-len(low) // n_columns)
        starts = np.arange(0, len(low), group)
        if group > 1:
            # [columns, dims]: each column joins `group` rows or buckets. fmin skips NaN.
            low = np.fmin.reduceat(low, starts)
            high = np.fmax.reduceat(high, starts)
        column_rows = first_row + starts.astype(np.int64) * rows_each
        return ColumnExtremes(column_rows, low.T, high.T)


def spread(values: Sequence[int]) -> list[int]:
    """Return the values in an order whose every suffix covers them evenly."""
    n_bits = max(0, len(values) - 1).bit_length()
    order = []
    for number in range(1 << n_bits):
        digits = f"{number:0{n_bits}b}"
        # Numbers with reversed binary digits fall evenly: 0, 4, 2, 6, 1, 5, 3, 7.
        index = int(digits[::-1], 2)
        if index < len(values):
            order.append(values[index])
    order.reverse()
    return order


def extremes(rows: np.ndarray) -> tuple[F32, F32]:
    """Return (smallest, largest) finite values, float32 [n, dims], of rows [n, each, dims]."""
    if rows.dtype.kind != "f":
        return drawable(rows.min(axis=1)), drawable(rows.max(axis=1))
    # NaN passes through minimum, so the check below sees it.
    low = np.minimum.reduce(rows, axis=1)
    high = np.maximum.reduce(rows, axis=1)
    is_finite = np.isfinite(low).all() and np.isfinite(high).all()
    if not is_finite:
        # fmin and fmax skip NaN, and take longer.
        finite = drawable(rows)
        low = np.fmin.reduce(finite, axis=1)
        high = np.fmax.reduce(finite, axis=1)
    return drawable(low), drawable(high)


def drawable(values: np.ndarray) -> F32:
    """Return float32; NaN for infinite values, the largest float32 for larger ones."""
    out: F32
    if values.dtype.kind != "f":
        out = values.astype(np.float32)
        return out
    with np.errstate(over="ignore", invalid="ignore"):
        out = np.clip(values, _FLOAT.min, _FLOAT.max).astype(np.float32)
    out[~np.isfinite(values)] = np.nan
    return out
