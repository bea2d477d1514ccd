"""`perm(k, n, x)`: position x of the permutation of [0, n) that the key k picks, without a table of size n.

Small n sorts hashes. Larger n runs a generalised Feistel network over the smallest a*b rectangle that
holds n and walks along the cycle until the value is below n again (Black & Rogaway, "Ciphers with
Arbitrary Finite Domains", 2002). Formulas: docs/order.md, "Permutations".
"""

from collections.abc import Sequence
from math import isqrt

import numpy as np

from .keys import I64, U64, sub, sub_array

ARGSORT_MAX = 128  # above it a table is dearer than the network: a seek would cost 90 ms at large thresholds
FEISTEL_ROUNDS = 8  # 6 fail the pair-difference test at n = 8, 16, 64
_ROWS_AT_ONCE = 8192  # bounds the memory of the per-row sort to ROWS * 128 * 8 bytes = 8 MiB


def perm(k: int | U64, n: int, x: I64) -> I64:
    """Where the permutation of [0, n) under k sends each x.

    k: one key (int) or a key per element (uint64 [len(x)]). x: int64 [len(x)], 0 <= x < n.
    Returns int64 [len(x)] in [0, n).
    """
    if n == 1 or not x.size:
        return np.zeros(x.shape, dtype=np.int64)
    if n > ARGSORT_MAX:
        return _feistel(k, n, x)
    if isinstance(k, int):
        hashes = sub_array(k, np.arange(n, dtype=np.uint64))
        return np.argsort(hashes, kind="stable")[x].astype(np.int64, copy=False)
    out = np.empty(x.shape, dtype=np.int64)
    for first in range(0, len(x), _ROWS_AT_ONCE):
        rows = slice(first, first + _ROWS_AT_ONCE)
        out[rows] = _sorted_rows(k[rows], n, x[rows])
    return out


def _sorted_rows(k: U64, n: int, x: I64) -> I64:
    """`argsort_stable(sub(k, 0..n-1))[x]` with a key per row: the column of the row's x-th smallest hash.

    The hashes of a row are distinct (`sub` is a bijection in a), so finding the value finds the column;
    sorting values is several times faster in numpy than sorting positions."""
    hashes = sub_array(k[:, None], np.arange(n, dtype=np.uint64)[None, :])
    wanted = np.sort(hashes, axis=1)[np.arange(len(x)), x]
    found = np.argmax(hashes == wanted[:, None], axis=1)
    return np.asarray(found, dtype=np.int64)


def _feistel(k: int | U64, n: int, x: I64) -> I64:
    a = isqrt(n - 1) + 1  # ceil(sqrt(n))
    b = -(-n // a)
    if isinstance(k, int):
        scalars = [sub(k, r) for r in range(FEISTEL_ROUNDS)]
        out = _rounds(scalars, a, b, x.astype(np.uint64))
        over = np.flatnonzero(out >= n)
        while over.size:
            out[over] = _rounds(scalars, a, b, out[over])
            over = over[out[over] >= n]
        return out.astype(np.int64)
    rows = [sub_array(k, r) for r in range(FEISTEL_ROUNDS)]
    out = _rounds(rows, a, b, x.astype(np.uint64))
    over = np.flatnonzero(out >= n)
    while over.size:
        out[over] = _rounds([row[over] for row in rows], a, b, out[over])
        over = over[out[over] >= n]
    return out.astype(np.int64)


def _rounds(keys: Sequence[int | U64], a: int, b: int, x: U64) -> U64:
    """The network over [0, a*b): even rounds move the quotient, odd rounds the remainder."""
    left = x // b
    right = x - left * b
    for r, k in enumerate(keys):
        if r % 2 == 0:
            left = _add_mod(left, sub_array(k, right), a)
        else:
            right = _add_mod(right, sub_array(k, left), b)
    return left * b + right


def _add_mod(value: U64, addend: U64, modulus: int) -> U64:
    """`(value + addend) mod modulus` as if without overflow; 0 <= value < modulus."""
    total = addend - addend // modulus * modulus  # numpy divides by a scalar much faster than it takes mod
    total += value
    total -= (total >= modulus) * np.uint64(modulus)
    return total
