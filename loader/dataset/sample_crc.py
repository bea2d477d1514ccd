"""One checksum per sample, of the checksums of its fields: what the delivered digest covers."""

from collections.abc import Mapping
from functools import lru_cache, partial
from itertools import accumulate

import numpy as np

from .crc_linear import U32, looked_up, table_of
from .sample_places import Int64s
from .shard import crc32c


def sample_crcs(crcs: Mapping[str, Int64s]) -> Int64s:
    """int64 [n]: CRC-32C over (field name, zero byte, CRC-32C of its bytes as little-endian uint32) of a sample's
    fields, by name. crcs: field -> int64 [n].

    That of the message with zeros for all checksums, XOR what each checksum adds (`crc_linear`). O(fields) operations
    on arrays.
    """
    names = sorted(crcs)
    blank, tables = _tables(tuple(names))
    out = np.full(len(crcs[names[0]]), blank, np.uint32)
    for name, table in zip(names, tables, strict=True):
        out ^= looked_up(table, crcs[name])
    return out.astype(np.int64)


@lru_cache(maxsize=256)
def _tables(names: tuple[str, ...]) -> tuple[int, tuple[U32, ...]]:
    """The CRC of the message with zeros for all checksums; per name, what its checksum adds to it."""
    stretches = [name.encode() + bytes(5) for name in names]
    message = b"".join(stretches)
    blank, ends = crc32c(message), accumulate(map(len, stretches))

    def adds(end: int, bit: int) -> int:
        number = (1 << bit).to_bytes(4, "little")
        return crc32c(message[: end - 4] + number + message[end:]) ^ blank

    return blank, tuple(table_of(partial(adds, end)) for end in ends)
