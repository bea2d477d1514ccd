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
from typing import TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

U64 = NDArray[np.uint64]
I64 = NDArray[np.int64]
Keys: TypeAlias = int | U64
"""One key for all elements, or a key per element."""
Sizes: TypeAlias = int | I64
"""One size for all elements, or a size per element."""

MASK = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15  # 2^64 / golden ratio, odd: splitmix64's increment
MIX_1 = 0xBF58476D1CE4E5B9  # the two multipliers of splitmix64's finaliser (Steele et al., OOPSLA 2014)
MIX_2 = 0x94D049BB133111EB


def encode_field(value: int | str) -> bytes:
    """Return one encoded field of a key: u32 little-endian length, then `i` + decimal or `s` + UTF-8."""
    if isinstance(value, str):
        body = b"s" + value.encode("utf-8")
    else:
        body = b"i%d" % value
    length = struct.pack("<I", len(body))
    return length + body


def hash_fields(*fields: int | str) -> int:
    """Return 64 bits of blake2b (digest size 8, read little-endian) over the framed fields."""
    message = b"".join(encode_field(field) for field in fields)
    digest = hashlib.blake2b(message, digest_size=8).digest()
    return int.from_bytes(digest, "little")


def key(
    seed: int,
    source: str,
    purpose: str,
    epoch: int,
    *ids: int | str,
) -> int:
    """Return the 64-bit key for one purpose in one epoch of one source; 0 <= seed < 2^64, 0 <= epoch."""
    return hash_fields(seed, source, purpose, epoch, *ids)


def mix64(z: int) -> int:
    """Return z mixed by the splitmix64 finaliser, a bijection of [0, 2^64)."""
    z ^= z >> 30
    z = (z * MIX_1) & MASK
    z ^= z >> 27
    z = (z * MIX_2) & MASK
    return z ^ (z >> 31)


def sub(k: int, a: int) -> int:
    """Return `mix64(k + (a + 1) * GOLDEN)` modulo 2^64: for a fixed k, a bijection in a."""
    return mix64((k + (a + 1) * GOLDEN) & MASK)  # names for the terms cost `unperm_one` 5 %


def sub_array(k: Keys, a: Keys) -> U64:
    """Return `sub` elementwise, broadcasting; at least one argument is a uint64 array of rank 1 or more."""
    step = (a + 1) * GOLDEN
    if isinstance(step, int):
        step &= MASK  # numpy refuses an int beyond 64 bits; arrays wrap by themselves
    state = np.asarray(step + k, dtype=np.uint64)
    return _mix_in_place(state)


def _mix_in_place(z: U64) -> U64:
    """Return `mix64` of each value, in the memory of `z`."""
    z ^= z >> 30
    z *= MIX_1  # uint64 products wrap at 2^64, as the mask does in `mix64`
    z ^= z >> 27
    z *= MIX_2
    z ^= z >> 31
    return z


Numbers = TypeVar("Numbers", I64, U64, I64 | U64)

ARGSORT_MAX = 128  # above it a table costs more than the network: a seek would take 90 ms at large thresholds
FEISTEL_ROUNDS = 8  # 6 fail the pair-difference test at n = 8, 16, 64
_ROWS_AT_ONCE = 8192  # bounds the memory of the per-row sort to ROWS * 128 * 8 bytes = 8 MiB


def perm(
    k: Keys,
    n: Sizes,
    x: I64,
) -> I64:
    """Return the images of x under the permutation of [0, n) with key k.

    k: one key (int) or a key per element (uint64 [len(x)]).
    n: one size (int) or, with a key per element, a size per element (int64 [len(x)]).
    x: int64 [len(x)], 0 <= x < n.
    Returns int64 [len(x)] in [0, n).
    """
    if not isinstance(n, int):
        assert not isinstance(k, int)  # a size per element comes with a key per element
        return _perm_each(k, n, x)
    if n == 1 or x.size == 0:
        return np.zeros(x.shape, dtype=np.int64)
    if n > ARGSORT_MAX:
        return _feistel(k, n, x)

    # Small n: sort the hashes of 0 ... n - 1.
    if isinstance(k, int):
        columns = np.arange(n, dtype=np.uint64)
        hashes = sub_array(k, columns)
        permutation = np.argsort(hashes, kind="stable")  # [n]
        return permutation[x].astype(np.int64, copy=False)

    image = np.empty(x.shape, dtype=np.int64)
    for first in range(0, len(x), _ROWS_AT_ONCE):
        stop = first + _ROWS_AT_ONCE
        rows = slice(first, stop)
        image[rows] = _argsort_rows(k[rows], n, x[rows])
    return image


def _perm_each(
    k: U64,
    n: I64,
    x: I64,
) -> I64:
    """Return `perm` with a key and a size per element; a size above `ARGSORT_MAX` takes the network."""
    image = np.zeros(x.shape, dtype=np.int64)  # where n = 1, zero is the image

    is_large = n > ARGSORT_MAX
    large = np.flatnonzero(is_large)  # rows for the network
    if large.size:
        image[large] = _feistel(
            k[large],
            n[large],
            x[large],
        )

    is_small = (n > 1) & ~is_large
    small = np.flatnonzero(is_small)
    for first in range(0, len(small), _ROWS_AT_ONCE):
        stop = first + _ROWS_AT_ONCE
        rows = small[first:stop]
        image[rows] = _argsort_rows(
            k[rows],
            n[rows],
            x[rows],
        )
    return image


def _argsort_rows(
    k: U64,
    n: Sizes,
    x: I64,
) -> I64:
    """Return `argsort_stable(sub(k, 0..n-1))[x]` with one key per row: the column of the row's x-th smallest hash."""
    longest = np.max(n)
    columns = np.arange(longest, dtype=np.uint64)
    key_column = k[:, None]  # [rows, 1]
    hashes = sub_array(key_column, columns)  # [rows, longest]
    if not isinstance(n, int):
        row_length = n.astype(np.uint64)
        length_column = row_length[:, None]  # [rows, 1]
        is_padding = columns >= length_column
        hashes[is_padding] = MASK  # the largest value, which sorts after the row's own hashes

    # A row's own hashes are distinct. So sorting the values is enough, which is several times faster than argsort.
    ascending = np.sort(hashes, axis=1)
    row = np.arange(len(x))
    ranked = ascending[row, x]  # [rows]: each row's x-th smallest hash
    del ascending  # with a second matrix in memory the next comparison takes 8 % longer
    ranked_column = ranked[:, None]  # [rows, 1]
    is_ranked = hashes == ranked_column
    index = np.argmax(is_ranked, axis=1)  # [rows]: the column that holds it
    return np.asarray(index, dtype=np.int64)


def _feistel(
    k: Keys,
    n: Sizes,
    x: I64,
) -> I64:
    """Return `perm` by the network. The rectangle holds fewer than n + a values: few have to walk."""
    a: Keys
    b: Keys
    bound: Keys
    if isinstance(n, int):
        a, b = _sides(n)
        bound = n
    else:
        a, b = _sides_each(n)
        bound = n.astype(np.uint64)
    keys = _round_keys(k)

    out = _rounds(
        keys,
        a,
        b,
        x.astype(np.uint64),
    )
    over = np.flatnonzero(out >= bound)  # rows whose value is in the rectangle, but not below n
    while over.size:  # walk along the cycle: apply the network to those again
        keys_over = [select_rows(round_keys, over) for round_keys in keys]
        a_over = select_rows(a, over)
        b_over = select_rows(b, over)
        image = _rounds(
            keys_over,
            a_over,
            b_over,
            out[over],
        )
        out[over] = image
        bound_over = select_rows(bound, over)
        is_over = image >= bound_over
        over = over[is_over]
    return out.astype(np.int64)


def _round_keys(k: Keys) -> list[Keys]:
    """Return the key of each round of the network."""
    keys: list[Keys] = []
    for r in range(FEISTEL_ROUNDS):
        if isinstance(k, int):
            keys.append(sub(k, r))
        else:
            keys.append(sub_array(k, r))
    return keys


def _sides(n: int) -> tuple[int, int]:
    """Return (a, b) of the smallest rectangle with a = ceil(sqrt(n)) rows that holds n values; n > 1."""
    a = isqrt(n - 1) + 1  # ceil(sqrt(n))
    b = -(-n // a)  # rounded up
    return a, b


def _sides_each(n: I64) -> tuple[U64, U64]:
    """Return `_sides` of each size."""
    a = _root(n - 1) + 1
    b = -(-n // a)
    rows = a.astype(np.uint64)
    columns = b.astype(np.uint64)
    return rows, columns


def _root(n: I64) -> I64:
    """Return floor(sqrt(n)) of each value (int64 [m])."""
    # A double has 53 bits, an int64 has 63: the estimate is off by one at most, in either direction.
    # `-=` and `+=` take bool as 0 and 1.
    estimate = np.sqrt(n)
    root: I64 = estimate.astype(np.int64)
    is_above = root * root > n
    root -= is_above
    following = root + 1
    is_below = following * following <= n
    root += is_below
    return root


def select_rows(value: int | Numbers, rows: I64 | NDArray[np.bool_]) -> int | Numbers:
    """Return the values of these rows; a number counts for all rows."""
    if isinstance(value, int):
        return value
    return value[rows]


def _rounds(
    keys: Sequence[Keys],
    a: Keys,
    b: Keys,
    x: U64,
) -> U64:
    """Return x after the network over [0, a*b): even rounds change the quotient, odd rounds the remainder."""
    quotient: U64 = np.floor_divide(x, b)
    remainder: U64 = x - quotient * b  # numpy divides faster than it computes mod
    for r, k in enumerate(keys):
        if r % 2 == 0:
            hashes = sub_array(k, remainder)
            quotient = _add_mod(quotient, hashes, a)
        else:
            hashes = sub_array(k, quotient)
            remainder = _add_mod(remainder, hashes, b)
    image: U64 = np.multiply(quotient, b) + remainder
    return image


def _add_mod(
    value: U64,
    addend: U64,
    modulus: Keys,
) -> U64:
    """Return `(value + addend) mod modulus` without overflow; 0 <= value < modulus."""
    multiple = addend // modulus * modulus  # numpy divides by a scalar much faster than it computes mod
    total = addend - multiple
    total += value  # below 2 * modulus
    is_over = total >= modulus
    total -= is_over * np.asarray(modulus, np.uint64)  # bool * int would be int64, which uint64 does not take
    return total


def unperm(
    k: int,
    n: int,
    y: I64,
) -> I64:
    """Return the x that `perm` maps to each y (int64), by the network: only for n > `ARGSORT_MAX`."""
    a, b = _sides(n)
    keys = _round_keys(k)
    out = y.astype(np.uint64)
    over = np.arange(len(y))  # all rows at first, then the rows whose value is not below n
    while over.size:  # walk back along the cycle
        image = out[over]
        quotient: U64 = np.floor_divide(image, b)
        remainder: U64 = image - quotient * b
        for r in range(FEISTEL_ROUNDS)[::-1]:
            # uint64 has no negative values, so a - hash % a is added to subtract the hash. The sum with `back` has no
            # name, because numpy then reuses its memory: a name costs 18 % at 65,536 values.
            if r % 2 == 0:
                hashes = sub_array(keys[r], remainder)
                back = a - hashes % a
                quotient = (quotient + back) % a
            else:
                hashes = sub_array(keys[r], quotient)
                back = b - hashes % b
                remainder = (remainder + back) % b
        former = quotient * b + remainder
        out[over] = former
        over = over[former >= n]
    return out.astype(np.int64)


def unperm_one(
    k: int,
    n: int,
    y: int,
) -> int:
    """Return the x that `perm` maps to y, for any n: faster than arrays for a few values."""
    if n == 1:
        return 0
    if n <= ARGSORT_MAX:  # `perm` sorts hashes: x is the rank of y's hash
        own_hash = sub(k, y)
        rank = 0
        for other in range(n):
            if sub(k, other) < own_hash:
                rank += 1
        return rank

    a, b = _sides(n)
    keys = [sub(k, r) for r in range(FEISTEL_ROUNDS)]
    while True:  # walk back along the cycle
        quotient, remainder = divmod(y, b)
        for r in reversed(range(FEISTEL_ROUNDS)):
            if r % 2 == 0:
                quotient = (quotient - sub(keys[r], remainder)) % a
            else:
                remainder = (remainder - sub(keys[r], quotient)) % b
        y = quotient * b + remainder
        if y < n:
            return y
