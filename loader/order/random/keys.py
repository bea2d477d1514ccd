"""Keys: the only source of randomness in the order, from blake2b and the splitmix64 finaliser.

`key` turns names and numbers into 64 bits (docs/order.md, "Keys"); `sub` derives further 64-bit values
from a key, cheaply enough to do so per sample. Both are exact integer arithmetic modulo 2^64 and the
same on every machine. Never `seed + epoch`: with it seed 42 in epoch 1 would be seed 43 in epoch 0.
"""

import hashlib
import struct

import numpy as np
from numpy.typing import NDArray

U64 = NDArray[np.uint64]
I64 = NDArray[np.int64]

MASK = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15  # 2^64 / golden ratio, odd: splitmix64's increment
MIX_1 = 0xBF58476D1CE4E5B9  # the two multipliers of splitmix64's finaliser (Steele et al., OOPSLA 2014)
MIX_2 = 0x94D049BB133111EB


def framed(value: int | str) -> bytes:
    """One field of a key: u32 little-endian length, then `i` + decimal or `s` + UTF-8."""
    body = b"s" + value.encode("utf-8") if isinstance(value, str) else b"i%d" % value
    return struct.pack("<I", len(body)) + body


def hash_fields(*fields: int | str) -> int:
    """64 bits of blake2b (digest size 8, read little-endian) over the framed fields."""
    digest = hashlib.blake2b(b"".join(framed(field) for field in fields), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def key(seed: int, source: str, purpose: str, epoch: int, *ids: int | str) -> int:
    """The 64-bit key of one purpose in one epoch of one source; 0 <= seed < 2^64, 0 <= epoch."""
    return hash_fields(seed, source, purpose, epoch, *ids)


def mix64(z: int) -> int:
    """The splitmix64 finaliser, a bijection of [0, 2^64)."""
    z = ((z ^ (z >> 30)) * MIX_1) & MASK
    z = ((z ^ (z >> 27)) * MIX_2) & MASK
    return z ^ (z >> 31)


def sub(k: int, a: int) -> int:
    """`mix64(k + (a + 1) * GOLDEN)` modulo 2^64: for a fixed k, a bijection in a."""
    return mix64((k + (a + 1) * GOLDEN) & MASK)


def mix64_array(z: U64) -> U64:
    """`mix64` of every element; returns a new uint64 array of the same shape."""
    return _mix_in_place(z.astype(np.uint64))


def sub_array(k: int | U64, a: int | U64) -> U64:
    """`sub` elementwise, broadcasting; at least one argument is a uint64 array (of one dimension or more:
    numpy warns about the overflow of its scalars, and wraps its arrays silently, as is wanted here)."""
    step = ((a + 1) * GOLDEN) & MASK if isinstance(a, int) else (a + 1) * GOLDEN
    return _mix_in_place(np.asarray(step + k, dtype=np.uint64))


def _mix_in_place(z: U64) -> U64:
    z ^= z >> 30
    z *= MIX_1
    z ^= z >> 27
    z *= MIX_2
    z ^= z >> 31
    return z
