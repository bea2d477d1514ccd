"""Read ranges of a stored field, each checked, without keeping the field in memory.

Row blocks check a range from the start. Without them the first pass reads the whole field, checks its CRC-32C, and
keeps one CRC-32C per block (0.06 per mille of its bytes). Later ranges read and check whole blocks. Rejected: reading
the field again for each of a browser's requests.
"""

from collections.abc import Iterator, Sequence
from threading import Lock

import numpy as np
from google_crc32c import extend
from google_crc32c import value as crc32c

import loader
from loader.dataset.shards.address import UNKNOWN_CRC, FieldAddress
from loader.errors import Corrupt, DecodeFailed
from loader.modalities.row_blocks import RowBlocks

BLOCK_BYTES = 64 * 2**10
"""Bytes of a block."""
PASS_BYTES = 64 * BLOCK_BYTES
"""A request of the first pass, in bytes."""
KEPT_BYTES = 2**20
"""Largest field kept whole, in bytes."""


class VerifiedField:
    """A field; thread-safe."""

    def __init__(self, version: loader.Version, address: FieldAddress, where: str) -> None:
        """where: the sample's address, for errors."""
        self._store = version.shard_store
        self.address = address
        self._where = where
        self._crcs: Sequence[int] = []
        # of the blocks
        self._begins = 0
        self._block_bytes = BLOCK_BYTES
        self._data: bytes | None = None
        self._etag: str | None = None
        self._lock = Lock()

    @property
    def nbytes(self) -> int:
        """Most memory in bytes."""
        return 1024 + self.address.nbytes // BLOCK_BYTES * 36 + min(self.address.nbytes, KEPT_BYTES)

    @property
    def is_checked(self) -> bool:
        """True once blocks have checksums, so that a range costs only its blocks."""
        return len(self._crcs) > 0

    @property
    def has_rows(self) -> bool:
        """True if row blocks check its ranges."""
        return self._begins > 0

    def check_blocks(self, rows: RowBlocks) -> None:
        """Check ranges by row blocks. Raises: DecodeFailed if they are of another array."""
        if rows.crc32c != self.address.crc32c != UNKNOWN_CRC or rows.nbytes != self.address.nbytes:
            message = f"{self._where}: its row blocks belong to another array; recompute them"
            raise DecodeFailed(
                message, what="row blocks", where=self._where, given=rows.nbytes, accepted=self.address.nbytes
            )
        self._begins = len(rows.layout.head)
        self._block_bytes = rows.part(0)[1]
        self._crcs = rows.crcs.tolist()

    def keep(self, data: bytes) -> None:
        """Keep all bytes, checked by the caller."""
        self._data = data
        # Marks the field as checked; ranges of it never reach a block.
        self._crcs = [crc32c(data)]

    def head(self, nbytes: int) -> bytes:
        """Return the first bytes, unchecked; fewer if the field is shorter."""
        if self._data is not None:
            return self._data[:nbytes]
        return self._read(0, min(nbytes, self.address.nbytes))

    def chunks(self) -> Iterator[bytes]:
        """Yield the bytes in order. Raises: Corrupt, after the last, if the CRC-32C differs."""
        if self._data is not None:
            yield self._data
            return
        crcs = list[int]()
        crc = 0
        data = b""
        for first in range(0, self.address.nbytes, PASS_BYTES):
            data = self._read(first, min(PASS_BYTES, self.address.nbytes - first))
            for at in range(0, len(data), BLOCK_BYTES):
                crcs.append(crc32c(data[at : at + BLOCK_BYTES]))
            crc = extend(crc, data)
            yield data
        if crc != self.address.crc32c != UNKNOWN_CRC:
            expected = f"{self.address.crc32c:08x}"
            message = f"{self._where}: its CRC-32C is {crc:08x}, not {expected}"
            raise Corrupt(message, what="CRC-32C", where=self._where, given=f"{crc:08x}", accepted=expected)
        # The field was one chunk, so `data` is all of it.
        if self.address.nbytes <= KEPT_BYTES:
            self._data = data
        if not self.has_rows:
            self._crcs = crcs

    def whole(self) -> bytes:
        """Return all bytes, checked. Raises: Corrupt."""
        if self._data is not None:
            return self._data
        return b"".join(self.chunks())

    def read(self, offset: int, nbytes: int) -> bytes:
        """Return checked bytes. Raises: Corrupt."""
        with self._lock:
            if not self.is_checked:
                # Under the lock: two requests for one field share the pass.
                for _ in self.chunks():
                    pass
        if self._data is not None:
            return self._data[offset : offset + nbytes]
        size = self._block_bytes
        first = (offset - self._begins) // size
        begin = self._begins + first * size
        # Whole blocks, since a checksum covers a block.
        end = min(self.address.nbytes, begin + -(-(offset + nbytes - begin) // size) * size)
        data = self._read(begin, end - begin)
        for number, at in enumerate(range(0, len(data), size), first):
            if crc32c(data[at : at + size]) != self._crcs[number]:
                why = "is damaged" if self.has_rows else "changed while it was shown"
                message = f"{self._where}: the block at byte {begin + at} {why}"
                what = "row block" if self.has_rows else "block"
                raise Corrupt(message, what=what, where=self._where, given=begin + at)
        return data[offset - begin : offset - begin + nbytes]

    def _read(self, offset: int, nbytes: int) -> bytes:
        if not nbytes:
            return b""
        blob = self._store.get_range(self.address.path, self.address.offset + offset, nbytes, self._etag)
        # Later reads ask for the same object: an overwritten one must not mix with this one's blocks.
        self._etag = blob.etag
        return blob.data


def verify_field(version: loader.Version, ordinal: int, field: str) -> VerifiedField:
    """Return a sample's field. Raises: InvalidRuntime; StoreError."""
    (address,) = version.address(np.array([ordinal]), [field])
    return VerifiedField(version, address.fields[field], address.describe(field))
