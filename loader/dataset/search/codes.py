"""Codes of embeddings: one byte a number, and the scan for the best of them.

A code is the place of a number in 255 equal steps of the number's range, as faiss's scalar quantizer `QT_8bit`. numpy
makes equal codes with and without faiss. A scan only ranks: the caller compares the best with the stored embeddings.
faiss scans 1e6 codes of 512 numbers in 85 ms, numpy 13 times slower. Signs (one bit a number) are an eighth of the
size, but lose a third of the neighbours where embeddings have no clusters.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pyarrow as pa

from ..shards.bitmap import Bools
from ..tables.parquet import Int64s
from .how import How
from .segments import SegmentKind
from .vectors import Floats

Codes = np.ndarray[Any, np.dtype[np.uint8]]
STEPS = 255
NUMPY_MOST_CODES = 200_000
"""Most codes that numpy scans: 0.3 s of 512 numbers."""
_NUMPY_ROWS = 8192
_ENCODED_ROWS = 256
_MARGIN = 0.05
"""Share of a range that is added at each end, for embeddings of later versions."""
_LEAST_SPAN = 1e-6


def code_kind(how: How) -> SegmentKind:
    """Return the kind of segments with codes of a field."""
    columns = pa.schema([("code", pa.binary(how.numbers))])
    return SegmentKind(
        name="codes",
        columns=columns,
        most_value_bytes=how.numbers,
    )


def code_ranges(vectors: Floats) -> tuple[Floats, Floats]:
    """Return (low, high), float32 [numbers], of unit vectors [n, numbers], with a margin."""
    low = vectors.min(axis=0)
    high = vectors.max(axis=0)
    margin = np.maximum((high - low) * _MARGIN, _LEAST_SPAN)
    return (low - margin).astype(np.float32), (high + margin).astype(np.float32)


def encode(
    vectors: Floats,
    how: How,
    codes: Codes,
) -> None:
    """Write the codes of unit vectors, float32 [n, numbers], to uint8 [n, numbers]."""
    low, high = how.ranges
    span = high - low
    # In pieces that stay in the processor's cache, as one pass after another over all rows takes half as long again.
    for start in range(0, len(vectors), _ENCODED_ROWS):
        piece = slice(start, start + _ENCODED_ROWS)
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


def numpy_scan(
    codes: Codes,
    how: How,
    query: np.ndarray,
    n_best: int,
    rows: Int64s,
) -> tuple[Int64s, Floats]:
    """Return (rows, scores) of the codes most similar to a query among some rows, int64 [n], ascending.

    codes: uint8 [all rows, numbers]. query: [numbers], of length 1. The order of the result is not defined.
    """
    low, high = how.ranges
    # The middle of a step is the decoded number: score = query @ (low + (code + 0.5) * step).
    step = (high - low) / np.float32(STEPS)
    weights = query.astype(np.float32) * step
    constant = float(query @ low + weights.sum() / 2)
    scores = np.empty(len(rows), np.float32)
    for start in range(0, len(rows), _NUMPY_ROWS):
        block = rows[start : start + _NUMPY_ROWS]
        scores[start : start + len(block)] = codes[block].astype(np.float32) @ weights
    scores += constant
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
    how: How,
    n_codes: int,
) -> bytes:
    """Return the bytes of a faiss index file before its codes.

    faiss itself writes the head of an index of one code; the two counts of codes in it are replaced.
    """
    index = faiss.IndexScalarQuantizer(
        how.numbers,
        faiss.ScalarQuantizer.QT_8bit,
        faiss.METRIC_INNER_PRODUCT,
    )
    low, high = how.ranges
    trained = np.concatenate([low, high - low])
    faiss.copy_array_to_vector(trained, index.sq.trained)
    index.is_trained = True
    index.add_sa_codes(np.zeros((1, how.numbers), np.uint8))
    data: bytes = faiss.serialize_index(index).tobytes()
    head = bytearray(data[: -how.numbers])
    _replace_count(head, _N_CODES_AT, 1, n_codes)
    _replace_count(head, len(head) - 8, how.numbers, n_codes * how.numbers)
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
    query: np.ndarray,
    n_best: int,
    selected: Bools,
) -> tuple[Int64s, Floats]:
    """Return (rows, scores) of the codes most similar to a query among the selected ones, bool [codes].

    index: an open faiss index with the codes.
    """
    bits = np.packbits(selected, bitorder="little")
    selector = faiss.IDSelectorBitmap(bits)
    parameters = faiss.SearchParameters(sel=selector)
    with _one_thread(faiss):
        scores, rows = index.search(
            query.astype(np.float32)[None],
            n_best,
            params=parameters,
        )
    is_present = rows[0] >= 0  # fewer than n_best were selected
    return rows[0][is_present], scores[0][is_present]
