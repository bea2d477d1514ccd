"""Compute one CRC-32C per sample from the checksums of its fields, for the digest of delivered batches.

The CRC of fixed-length messages is affine in their bits, so four tables of 256 terms, one per byte, give a checksum's
term.
"""

from collections.abc import Callable, Mapping
from functools import lru_cache, partial, reduce
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from ..shards.shard import crc32c
from .places import Int64s

U32 = NDArray[np.uint32]


def table_of(adds: Callable[[int], int]) -> U32:
    """Return uint32 [4, 256]: the term for each byte of a 32-bit number. adds: bit -> term."""
    table = np.zeros((4, 256), np.uint32)
    for bit in range(32):
        byte, low = divmod(bit, 8)
        table[byte, 1 << low : 2 << low] = table[byte, : 1 << low] ^ np.uint32(adds(bit))
    return table


def looked_up(table: U32, numbers: NDArray[np.integer]) -> U32:
    """Return uint32, shaped as `numbers`: the term for each 32-bit number."""
    first, *others = (table[byte][(numbers >> (8 * byte)) & 0xFF] for byte in range(4))
    return reduce(np.bitwise_xor, others, first)


def sample_crcs(crcs: Mapping[str, Int64s]) -> Int64s:
    """Return int64 [n]: one CRC-32C per sample over its fields, sorted by name. crcs: field -> int64 [n].

    The message has, for each field: name, zero byte, CRC-32C of the bytes as little-endian uint32. Its CRC is the CRC
    of the message with zeros for all checksums, XORed with each checksum's term. O(fields) array operations.
    """
    names = sorted(crcs)
    blank, tables = _tables(tuple(names))
    out = np.full(len(crcs[names[0]]), blank, np.uint32)
    for name, table in zip(names, tables, strict=True):
        out ^= looked_up(table, crcs[name])
    return out.astype(np.int64)


@lru_cache(maxsize=256)
def _tables(names: tuple[str, ...]) -> tuple[int, tuple[U32, ...]]:
    """Return (CRC of the message with zeros for checksums, one table of terms per name)."""
    stretches = [name.encode() + bytes(5) for name in names]
    message = b"".join(stretches)
    blank, ends = crc32c(message), accumulate(map(len, stretches))

    def adds(end: int, bit: int) -> int:
        number = (1 << bit).to_bytes(4, "little")
        return crc32c(message[: end - 4] + number + message[end:]) ^ blank

    return blank, tuple(table_of(partial(adds, end)) for end in ends)
