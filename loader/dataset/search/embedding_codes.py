"""Codes of embeddings: one byte a number, and the scan for the best of them.

A code is the place of a number in 255 equal steps of the number's range. The query is weighted by the steps, so a scan
reads no ranges: its scores lack a constant, and only rank. The caller compares the best with the stored embeddings.
A core that reads 1e6 codes of 512 numbers in 16 ms scans them with faiss in 22 ms, with NumPy in 120 ms. For a tenth
of them NumPy's gathers take 12 ms, faiss's selector 23 ms. Signs (one bit a number) are an eighth of the size, but lose
a third of the neighbours where embeddings have no clusters.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pyarrow as pa

from ..shards.bitmap import Bools
from ..tables.parquet import Int64s
from .index_record import IndexRecord
from .segments import SegmentKind
from .vectors import Floats

Codes = np.ndarray[Any, np.dtype[np.uint8]]
STEPS = 255
NUMPY_MOST_CODES = 200_000
"""Most codes that numpy scans without faiss."""
GATHERED_SHARE = 0.25
"""Share of selected rows below which numpy, which gathers them, is faster than faiss, which asks for each row."""
_ROWS_IN_CACHE = 256
"""Rows of a piece: 512 KiB as float32 with 512 numbers."""
_MARGIN = 0.05
"""Share of a range that is added at each end, for embeddings of later versions."""
_LEAST_SPAN = 1e-6


def code_kind(record: IndexRecord) -> SegmentKind:
    """Return the kind of segments with codes of a field."""
    columns = pa.schema([("code", pa.binary(record.numbers))])
    return SegmentKind(
        name="codes",
        columns=columns,
        most_value_bytes=record.numbers,
    )


def code_ranges(vectors: Floats) -> tuple[Floats, Floats]:
    """Return (low, high), float32 [numbers], of unit vectors [n, numbers], with a margin."""
    low = vectors.min(axis=0)
    high = vectors.max(axis=0)
    margin = np.maximum((high - low) * _MARGIN, _LEAST_SPAN)
    return (low - margin).astype(np.float32), (high + margin).astype(np.float32)


def encode(vectors: Floats, record: IndexRecord) -> Codes:
    """Return uint8 [n, numbers]: codes of unit vectors, float32 [n, numbers]."""
    low, high = record.ranges
    span = high - low
    codes = np.empty(vectors.shape, np.uint8)
    # In pieces that stay in the processor's cache, as one pass after another over all rows takes half as long again.
    for start in range(0, len(vectors), _ROWS_IN_CACHE):
        piece = slice(start, start + _ROWS_IN_CACHE)
        steps = vectors[piece] - low
        steps /= span
        steps *= STEPS
        np.clip(
            steps,
            0,
            STEPS,
            out=steps,
        )
        codes[piece] = steps
    return codes


def code_weights(query: np.ndarray, record: IndexRecord) -> Floats:
    """Return float32 [numbers]: weights of codes for a query, [numbers], of length 1.

    Codes times weights are query @ decoded numbers, but for a constant of the query.
    """
    low, high = record.ranges
    step = (high - low) / np.float32(STEPS)
    weights: Floats = query.astype(np.float32) * step
    return weights


def numpy_scan(
    codes: Codes,
    weights: Floats,
    n_best: int,
    rows: Int64s,
) -> tuple[Int64s, Floats]:
    """Return (rows, scores) of the codes with the highest scores among some rows, int64 [n], ascending.

    codes: uint8 [all rows, numbers]. weights: float32 [numbers]. The order of the result is not defined.
    """
    scores = np.empty(len(rows), np.float32)
    narrow = np.empty((_ROWS_IN_CACHE, len(weights)), np.uint8)
    wide = np.empty((_ROWS_IN_CACHE, len(weights)), np.float32)
    for start in range(0, len(rows), _ROWS_IN_CACHE):
        block = rows[start : start + _ROWS_IN_CACHE]
        n = len(block)
        # With "raise", numpy would fill a copy first. With an index, `codes[block]`, it takes twice the time.
        np.take(
            codes,
            block,
            axis=0,
            out=narrow[:n],
            mode="clip",
        )
        numbers = wide[:n]
        numbers[:] = narrow[:n]
        # `einsum` and not `@`: the idle threads of a matrix product spin.
        np.einsum(
            "ij,j->i",
            numbers,
            weights,
            out=scores[start : start + n],
        )
    best = np.arange(len(rows))
    if n_best < len(rows):
        best = np.argpartition(-scores, n_best)[:n_best]
    return rows[best], scores[best]


def import_faiss() -> Any:
    """Return the module faiss, or None without the extra `search`."""
    try:
        import faiss
    except ImportError:
        return None
    return faiss


def faiss_head(
    faiss: Any,
    record: IndexRecord,
    n_codes: int,
) -> bytes:
    """Return the bytes of a faiss index file before its codes.

    faiss itself writes the head of an index of one code; the two counts of codes in it are replaced.
    """
    # One range for all numbers, 0 to 255: a query has the weights of codes. With the ranges of each number faiss takes
    # half as long again.
    index = faiss.IndexScalarQuantizer(
        record.numbers,
        faiss.ScalarQuantizer.QT_8bit_uniform,
        faiss.METRIC_INNER_PRODUCT,
    )
    trained = np.array([0, STEPS], np.float32)
    faiss.copy_array_to_vector(trained, index.sq.trained)
    index.is_trained = True
    index.add_sa_codes(np.zeros((1, record.numbers), np.uint8))
    data: bytes = faiss.serialize_index(index).tobytes()
    head = bytearray(data[: -record.numbers])
    _replace_count(head, _N_CODES_AT, 1, n_codes)
    _replace_count(head, len(head) - 8, record.numbers, n_codes * record.numbers)
    return bytes(head)


_N_CODES_AT = 8
"""Byte of the count of codes in a faiss file: after four letters and the count of numbers, int32."""


def _replace_count(
    head: bytearray,
    at: int,
    before: int,
    after: int,
) -> None:
    stored = int.from_bytes(head[at : at + 8], "little")
    if stored != before:
        raise ImportError(f"this release of faiss writes {stored} at byte {at} of an index, not {before}")
    head[at : at + 8] = after.to_bytes(8, "little")


@contextmanager
def _one_thread(faiss: Any) -> Iterator[None]:
    """Let faiss use one thread inside: it splits queries among its threads, and the idle ones of one query spin.

    They double the processor time of a scan, and delay it while the other cores are busy. The setting is the calling
    thread's only.
    """
    n_threads = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1)
    try:
        yield
    finally:
        faiss.omp_set_num_threads(n_threads)


def faiss_scan(
    faiss: Any,
    index: Any,
    weights: Floats,
    n_best: int,
    selected: Bools,
) -> tuple[Int64s, Floats]:
    """Return (rows, scores) of the codes with the highest scores among the selected ones, bool [codes].

    index: an open faiss index with the codes. weights: float32 [numbers].
    """
    parameters = None
    if not selected.all():
        bits = np.packbits(selected, bitorder="little")
        selector = faiss.IDSelectorBitmap(bits)
        parameters = faiss.SearchParameters(sel=selector)
    with _one_thread(faiss):
        scores, rows = index.search(
            weights[None],
            n_best,
            params=parameters,
        )
    is_present = rows[0] >= 0  # fewer than n_best were selected
    return rows[0][is_present], scores[0][is_present]
