"""Keys, the only source of randomness in the order, from blake2b and splitmix64; and permutations keyed by them.

`key` turns names and numbers into 64 bits, `sub` derives further ones per sample, exactly modulo 2^64. Never
`seed + epoch`: seed 42 in epoch 1 would be seed 43 in epoch 0.

`perm(k, n, x)` is position x of the permutation of [0, n) under key k, without a table of size n. If n is small, it
sorts hashes. Otherwise it runs a generalised Feistel network over the smallest a*b rectangle that holds n. It walks
along the cycle until the value is below n (Black & Rogaway, "Ciphers with Arbitrary Finite Domains", 2002).
"""

import hashlib
import struct
from collections.abc import Sequence
from math import isqrt
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

U64 = NDArray[np.uint64]
I64 = NDArray[np.int64]

MASK = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15  # 2^64 / golden ratio, odd: splitmix64's increment
MIX_1 = 0xBF58476D1CE4E5B9  # the two multipliers of splitmix64's finaliser (Steele et al., OOPSLA 2014)
MIX_2 = 0x94D049BB133111EB


def framed(value: int | str) -> bytes:
    """Return one encoded field of a key: u32 little-endian length, then `i` + decimal or `s` + UTF-8."""
    if isinstance(value, str):
        body = b"s" + value.encode("utf-8")
    else:
        body = b"i%d" % value
    return struct.pack("<I", len(body)) + body


def hash_fields(*fields: int | str) -> int:
    """Return 64 bits of blake2b (digest size 8, read little-endian) over the framed fields."""
    message = b"".join(framed(field) for field in fields)
    digest = hashlib.blake2b(message, digest_size=8).digest()
    return int.from_bytes(digest, "little")


def key(seed: int, source: str, purpose: str, epoch: int, *ids: int | str) -> int:
    """Return the 64-bit key for one purpose in one epoch of one source; 0 <= seed < 2^64, 0 <= epoch."""
    return hash_fields(seed, source, purpose, epoch, *ids)


def mix64(z: int) -> int:
    """Return z mixed by the splitmix64 finaliser, a bijection of [0, 2^64)."""
    z = ((z ^ (z >> 30)) * MIX_1) & MASK
    z = ((z ^ (z >> 27)) * MIX_2) & MASK
    return z ^ (z >> 31)


def sub(k: int, a: int) -> int:
    """Return `mix64(k + (a + 1) * GOLDEN)` modulo 2^64: for a fixed k, a bijection in a."""
    return mix64((k + (a + 1) * GOLDEN) & MASK)


def sub_array(k: int | U64, a: int | U64) -> U64:
    """Return `sub` elementwise, broadcasting; at least one argument is a uint64 array of rank 1 or more."""
    step = (a + 1) * GOLDEN
    if isinstance(step, int):
        step &= MASK  # numpy refuses an int beyond 64 bits; arrays wrap by themselves
    return _mix_in_place(np.asarray(step + k, dtype=np.uint64))


def _mix_in_place(z: U64) -> U64:
    z ^= z >> 30
    z *= MIX_1
    z ^= z >> 27
    z *= MIX_2
    z ^= z >> 31
    return z


Numbers = TypeVar("Numbers", I64, U64, I64 | U64)

ARGSORT_MAX = 128  # above it a table costs more than the network: a seek would take 90 ms at large thresholds
FEISTEL_ROUNDS = 8  # 6 fail the pair-difference test at n = 8, 16, 64
_ROWS_AT_ONCE = 8192  # bounds the memory of the per-row sort to ROWS * 128 * 8 bytes = 8 MiB


def perm(k: int | U64, n: int | I64, x: I64) -> I64:
    """Return the images of x under the permutation of [0, n) with key k.

    k: one key (int) or a key per element (uint64 [len(x)]).
    n: one size (int) or, with a key per element, a size per element (int64 [len(x)]).
    x: int64 [len(x)], 0 <= x < n.
    Returns int64 [len(x)] in [0, n).
    """
    if not isinstance(n, int):
        assert not isinstance(k, int)
        return _each_its_size(k, n, x)
    if n == 1 or not x.size:
        return np.zeros(x.shape, dtype=np.int64)
    if n > ARGSORT_MAX:
        return _feistel(k, n, x)
    if isinstance(k, int):
        hashes = sub_array(k, np.arange(n, dtype=np.uint64))
        table = np.argsort(hashes, kind="stable")  # [n]: the whole permutation
        return table[x].astype(np.int64, copy=False)
    out = np.empty(x.shape, dtype=np.int64)
    for first in range(0, len(x), _ROWS_AT_ONCE):
        rows = slice(first, first + _ROWS_AT_ONCE)
        out[rows] = _sorted_rows(k[rows], n, x[rows])
    return out


def _each_its_size(k: U64, n: I64, x: I64) -> I64:
    """Return `perm` with a key and a size per element; a size above `ARGSORT_MAX` takes the network."""
    out = np.zeros(x.shape, dtype=np.int64)  # the result where n = 1
    large = np.flatnonzero(n > ARGSORT_MAX)
    if large.size:
        out[large] = _feistel(k[large], n[large], x[large])
    small = np.flatnonzero((n > 1) & (n <= ARGSORT_MAX))
    for first in range(0, len(small), _ROWS_AT_ONCE):
        rows = small[first : first + _ROWS_AT_ONCE]
        out[rows] = _sorted_rows(k[rows], n[rows], x[rows])
    return out


def _sorted_rows(k: U64, n: int | I64, x: I64) -> I64:
    """Return `argsort_stable(sub(k, 0..n-1))[x]` with one key per row: the column of the row's x-th smallest hash."""
    # Hashes in a row are distinct, so their values are sorted, several times faster than positions. Shorter rows are
    # padded with the largest values.
    columns = np.arange(np.max(n), dtype=np.uint64)[None, :]  # [1, longest]
    hashes = sub_array(k[:, None], columns)  # [rows, longest]
    if not isinstance(n, int):
        hashes[columns >= n[:, None].astype(np.uint64)] = MASK
    rows = np.arange(len(x))
    ranked = np.sort(hashes, axis=1)[rows, x]  # [rows]: the x-th smallest hash
    index = np.argmax(hashes == ranked[:, None], axis=1)
    return np.asarray(index, dtype=np.int64)


def _feistel(k: int | U64, n: int | I64, x: I64) -> I64:
    """Return `perm` by the network. The rectangle holds fewer than n + a values: few have to walk."""
    root: int | I64
    if isinstance(n, int):
        root = isqrt(n - 1)
    else:
        root = _root(n - 1)
    ceil_root = root + 1  # ceil(sqrt(n))
    a = _unsigned(ceil_root)
    b = _unsigned(-(-n // ceil_root))
    bound = _unsigned(n)

    keys: list[int | U64]
    if isinstance(k, int):
        keys = [sub(k, r) for r in range(FEISTEL_ROUNDS)]
    else:
        keys = [sub_array(k, r) for r in range(FEISTEL_ROUNDS)]
    out = _rounds(keys, a, b, x.astype(np.uint64))
    over = np.flatnonzero(out >= bound)
    while over.size:  # walk along the cycle
        keys_over = [at(key, over) for key in keys]
        out[over] = _rounds(keys_over, at(a, over), at(b, over), out[over])
        over = over[out[over] >= at(bound, over)]
    return out.astype(np.int64)


def unperm(k: int, n: int, y: I64) -> I64:
    """Return the x that `perm` maps to y (int64): n > `ARGSORT_MAX`, one key."""
    a = isqrt(n - 1) + 1
    b = -(-n // a)
    keys = [sub(k, r) for r in range(FEISTEL_ROUNDS)]
    out = y.astype(np.uint64)
    over = np.arange(len(y))
    while over.size:  # walk back along the cycle
        quotient: U64 = np.floor_divide(out[over], b)
        right: U64 = out[over] - quotient * b
        for r in range(FEISTEL_ROUNDS)[::-1]:
            # uint64 has no negative values: a - hash % a stands for -hash.
            if r % 2 == 0:
                back = a - sub_array(keys[r], right) % a
                quotient = (quotient + back) % a
            else:
                back = b - sub_array(keys[r], quotient) % b
                right = (right + back) % b
        out[over] = quotient * b + right
        over = over[out[over] >= n]
    return out.astype(np.int64)


def _unsigned(value: int | I64) -> int | U64:
    if isinstance(value, int):
        return value
    return value.astype(np.uint64)


def _root(n: I64) -> I64:
    """Return floor(sqrt(n)) of each value (int64 [m])."""
    root: I64 = np.sqrt(n).astype(np.int64)  # a double has 53 bits: off by one at most
    root -= root * root > n
    root += (root + 1) * (root + 1) <= n
    return root


def at(value: int | Numbers, rows: I64 | NDArray[np.bool_]) -> int | Numbers:
    """Return the values of these rows; a number counts for all rows."""
    if isinstance(value, int):
        return value
    return value[rows]


def _rounds(keys: Sequence[int | U64], a: int | U64, b: int | U64, x: U64) -> U64:
    """Return x after the network over [0, a*b): even rounds change the quotient, odd rounds the remainder."""
    quotient: U64 = np.floor_divide(x, b)
    right: U64 = x - quotient * b
    for r, k in enumerate(keys):
        if r % 2 == 0:
            quotient = _add_mod(quotient, sub_array(k, right), a)
        else:
            right = _add_mod(right, sub_array(k, quotient), b)
    out: U64 = np.multiply(quotient, b) + right
    return out


def _add_mod(value: U64, addend: U64, modulus: int | U64) -> U64:
    """Return `(value + addend) mod modulus` without overflow; 0 <= value < modulus."""
    total = addend - addend // modulus * modulus  # numpy divides by a scalar much faster than it computes mod
    total += value
    total -= (total >= modulus) * np.asarray(modulus, np.uint64)
    return total
