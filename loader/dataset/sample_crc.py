"""One checksum per sample, of the checksums of its fields: what the delivered digest covers."""

from collections.abc import Mapping
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from .sample_places import Int64s
from .shard import crc32c

U32 = NDArray[np.uint32]


def sample_crcs(crcs: Mapping[str, Int64s]) -> Int64s:
    """int64 [n]: CRC-32C over (field name, zero byte, CRC-32C of its bytes as little-endian uint32) of a sample's
    fields, by name. crcs: field -> int64 [n].

    A CRC of messages of one length is affine in their bits: that of the message with zeros for all checksums, XOR
    what each byte of a checksum contributes by itself, which is looked up. O(fields) operations on arrays.
    """
    names = sorted(crcs)
    blank, tables = _tables(tuple(names))
    out = np.full(len(crcs[names[0]]), blank, np.uint32)
    for name, table in zip(names, tables, strict=True):
        crc = crcs[name]
        for byte in range(4):
            out ^= table[byte][(crc >> (8 * byte)) & 0xFF]
    return out.astype(np.int64)


@lru_cache(maxsize=256)
def _tables(names: tuple[str, ...]) -> tuple[int, tuple[U32, ...]]:
    """The CRC of the message with zeros for all checksums; per name, uint32 [4, 256]: what a byte at that place of its
    checksum adds to it."""
    stretches = [name.encode() + bytes(5) for name in names]
    message = bytearray(b"".join(stretches))
    blank, end, tables = crc32c(message), 0, []
    for stretch in stretches:
        end += len(stretch)
        table = np.zeros((4, 256), np.uint32)
        for byte in range(4):
            # Linear: what a value adds is the XOR of what its bits add.
            for bit in range(8):
                message[end - 4 + byte] = 1 << bit
                table[byte, 1 << bit : 2 << bit] = table[byte, : 1 << bit] ^ np.uint32(
                    crc32c(message) ^ blank
                )
            message[end - 4 + byte] = 0
        tables.append(table)
    return blank, tuple(tables)
