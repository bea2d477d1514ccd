"""Bands of minhash signatures: two documents with an equal band are compared, all others are not.

A signature is 14 bands of 8 values, and each band has one hash of 64 bits. Documents of similarity s have an equal band
with a chance of 1 - (1 - s^8)^14: 0.9996 at 0.9, 0.92 at 0.8, 0.05 at 0.5.
"""

from typing import Any

import numpy as np

from ..featurizers.texts.minhash import BAND_VALUES, N_BANDS, N_VALUES, NO_WORD
from .hamming import Int64s, UInt64s

UInt32s = np.ndarray[Any, np.dtype[np.uint32]]
Int32s = np.ndarray[Any, np.dtype[np.int32]]
Bools = np.ndarray[Any, np.dtype[np.bool_]]

ALONE = -1
"""Bucket of a band that no other document has."""
_ROWS_AT_ONCE = 2**15
"""Rows hashed or compared at once: 15 MiB of signatures."""
# Of splitmix64: every bit of a band changes each bit of its hash with a chance of one half.
_MULTIPLIERS = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
_SHIFTS = (np.uint64(30), np.uint64(27), np.uint64(31))


def has_words(signatures: UInt32s) -> Bools:
    """Return bool [n]: True for documents of at least one word. signatures: uint32 [n, 112]."""
    is_known: Bools = (signatures != NO_WORD).any(axis=1)
    return is_known


def band_hashes(signatures: UInt32s) -> UInt64s:
    """Return uint64 [n, 14]: hash of each band's number and values. signatures: uint32 [n, 112]."""
    n = len(signatures)
    hashes = np.empty((n, N_BANDS), np.uint64)
    for first in range(
        0,
        n,
        _ROWS_AT_ONCE,
    ):
        block = signatures[first : first + _ROWS_AT_ONCE]
        bands = block.reshape(
            len(block),
            N_BANDS,
            BAND_VALUES,
        )
        mixed = hashes[first : first + _ROWS_AT_ONCE]
        # A hash begins with its band's number: equal values in different bands are no match.
        mixed[:] = np.arange(
            1,
            N_BANDS + 1,
            dtype=np.uint64,
        )
        for value in range(BAND_VALUES):
            mixed ^= bands[:, :, value]
            _mix(mixed)
    return hashes


def _mix(values: UInt64s) -> None:
    """Replace each value by a bijection of it."""
    values ^= values >> _SHIFTS[0]
    values *= _MULTIPLIERS[0]
    values ^= values >> _SHIFTS[1]
    values *= _MULTIPLIERS[1]
    values ^= values >> _SHIFTS[2]


def first_equals(
    signatures: UInt32s,
    hashes: UInt64s,
) -> Int64s:
    """Return int64 [n]: the first document with the same signature. hashes: their bands', uint64 [n, 14]."""
    digest = np.zeros(len(hashes), np.uint64)
    for band in range(hashes.shape[1]):
        digest ^= hashes[:, band]
        _mix(digest)
    _, first_rows, group = np.unique(
        digest,
        return_index=True,
        return_inverse=True,
    )
    first: Int64s = first_rows[group].astype(np.int64)
    # Two signatures with one digest are as good as impossible. Then they are compared as any other two.
    differs = (
        n_equal_values(
            signatures,
            first,
            np.arange(len(first)),
        )
        < N_VALUES
    )
    first[differs] = np.flatnonzero(differs)
    return first


def n_equal_values(
    signatures: UInt32s,
    rows: Int64s,
    others: Int64s,
) -> Int64s:
    """Return int64 [m]: number of equal values of the signatures in `rows` and in `others`, int64 [m]."""
    n_equal = np.empty(len(rows), np.int64)
    for first in range(
        0,
        len(rows),
        _ROWS_AT_ONCE,
    ):
        span = slice(first, first + _ROWS_AT_ONCE)
        is_equal = signatures[rows[span]] == signatures[others[span]]
        n_equal[span] = np.count_nonzero(is_equal, axis=1)
    return n_equal


def shared_buckets(hashes: UInt64s) -> Int32s:
    """Return int32 [n, 14]: number of each band's bucket, `ALONE` if no other document has the band."""
    buckets = np.full(
        hashes.shape,
        ALONE,
        np.int32,
    )
    n_buckets = 0
    for band in range(hashes.shape[1]):
        column = hashes[:, band]
        order = np.argsort(column, kind="stable")
        ordered = column[order]
        is_first = np.ones(len(ordered), bool)
        is_first[1:] = ordered[1:] != ordered[:-1]
        group = np.cumsum(is_first) - 1  # [n]: number of each hash, among the band's distinct ones
        is_shared = np.bincount(group) > 1  # [groups]
        number = np.cumsum(is_shared) - 1 + n_buckets  # [groups]
        of_group = np.where(
            is_shared,
            number,
            ALONE,
        )
        buckets[order, band] = of_group[group]
        n_buckets += int(np.count_nonzero(is_shared))
    return buckets
