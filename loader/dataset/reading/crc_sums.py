"""CRC-32C as a linear map: sums of many messages at once, moved and joined without their bytes.

The delivered digest covers one sum per sample, made of its fields' sums.

A CRC of messages of one length is affine in their bits: an XOR of one term for each bit. Four tables of 256, one per
byte of a checksum, look up the term of a whole checksum.
"""

from collections.abc import Callable, Mapping
from functools import lru_cache, partial, reduce
from itertools import accumulate

import numpy as np
from google_crc32c import extend
from numpy.typing import NDArray

from ..shards.shard import crc32c
from .places import Int64s

U32 = NDArray[np.uint32]


def table_of(adds: Callable[[int], int]) -> U32:
    """Return uint32 [4, 256]: the term of a byte at that place of a 32-bit number. adds: bit -> its term."""
    table = np.zeros((4, 256), np.uint32)
    for bit in range(32):
        byte, low = divmod(bit, 8)
        table[byte, 1 << low : 2 << low] = table[byte, : 1 << low] ^ np.uint32(adds(bit))
    return table


def looked_up(table: U32, numbers: NDArray[np.integer]) -> U32:
    """Return uint32, of the shape of `numbers`: the term of each of these 32-bit numbers."""
    first, *others = (table[byte][(numbers >> (8 * byte)) & 0xFF] for byte in range(4))
    return reduce(np.bitwise_xor, others, first)


def moved_crc(crc: int, nbytes: int) -> np.uint32:
    """Return the term of crc(A) in crc(A + B), where B has so many bytes, at least one.

    crc(A + B) is this term XOR crc(B).
    """
    return np.uint32(looked_up(_moved(nbytes), np.array([crc], np.uint32))[0])


def joined_crcs(crcs: U32, nbytes: int) -> U32:
    """Return uint32 [m]: the CRC-32C of n messages of `nbytes` bytes each, joined, out of the CRC-32C of each.

    crcs: uint32 [m, n]; n and nbytes are at least 1. O(m * n); keeps tables of 4 KiB * n for (n, nbytes).
    """
    n_joined, n = crcs.shape
    places = np.arange(4 * n) * 256 + crcs.astype("<u4").view(np.uint8).reshape(n_joined, 4 * n)
    out: U32 = np.bitwise_xor.reduce(_joined(n, nbytes).take(places), axis=1)
    return out


@lru_cache(maxsize=64)
def _joined(n: int, nbytes: int) -> U32:
    """Return uint32 [n * 4 * 256]: the term of the CRC-32C of each of n messages in that of all, byte by byte."""
    tables = [table_of(lambda bit: 1 << bit)]  # of the last: itself
    while len(tables) < n:
        tables.append(looked_up(_moved(nbytes), tables[-1]))
    return np.concatenate(tables[::-1], axis=None)


@lru_cache(maxsize=1024)
def _moved(nbytes: int) -> U32:
    """Return uint32 [4, 256]: the term of a CRC-32C in that of a message with so many bytes more. O(log nbytes)."""
    if nbytes == 1:
        blank = extend(0, b"\0")
        return table_of(lambda bit: extend(1 << bit, b"\0") ^ blank)
    half = _moved(nbytes // 2)
    even = looked_up(half, half)
    return looked_up(_moved(1), even) if nbytes % 2 else even


def sample_crcs(crcs: Mapping[str, Int64s]) -> Int64s:
    """Return int64 [n]: one CRC-32C per sample over its fields, by name.

    The message is, for each field: name, zero byte, CRC-32C of its bytes as little-endian uint32. Its CRC is that of
    the message with zeros for all checksums, XOR the term of each checksum (`joined_crcs`). O(fields) operations on
    arrays.

    crcs: field -> int64 [n].
    """
    names = sorted(crcs)
    blank, tables = _tables(tuple(names))
    out = np.full(len(crcs[names[0]]), blank, np.uint32)
    for name, table in zip(names, tables, strict=True):
        out ^= looked_up(table, crcs[name])
    return out.astype(np.int64)


@lru_cache(maxsize=256)
def _tables(names: tuple[str, ...]) -> tuple[int, tuple[U32, ...]]:
    """Return the CRC of the message with zeros for all checksums; per name, the table of its checksum's term."""
    stretches = [name.encode() + bytes(5) for name in names]
    message = b"".join(stretches)
    blank, ends = crc32c(message), accumulate(map(len, stretches))

    def adds(end: int, bit: int) -> int:
        number = (1 << bit).to_bytes(4, "little")
        return crc32c(message[: end - 4] + number + message[end:]) ^ blank

    return blank, tuple(table_of(partial(adds, end)) for end in ends)
