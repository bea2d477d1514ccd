"""Reading an object from front to back through bounded ranges.

A native response stream that is consumed slowly dies (its timeout covers the whole body); bounded ranges
fetched at full speed into memory do not, and each can be retried alone.
"""

import io
from typing import BinaryIO, cast

from .store import Store

FIRST_BYTES = 2**20  # readers of a header alone fetch no more than this
MAX_BYTES = 16 * 2**20  # then each fetch doubles, up to here


class RangeReader(io.RawIOBase):
    """A sequential raw reader of one object, pinned to the version that it saw first."""

    def __init__(self, store: Store, key: str) -> None:
        """Raises: ObjectNotFound."""
        info = store.head(key)
        self._store, self._key = store, key
        self._nbytes, self._etag = info.nbytes, info.etag
        self._offset = 0  # of the next fetch
        self._fetch_bytes = FIRST_BYTES
        self._chunk = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: object) -> int:
        """Fill `buffer` as far as the chunk at hand goes. Raises: Changed; Corrupt; Transient."""
        target = memoryview(cast(bytearray, buffer)).cast("B")
        if not self._chunk and self._offset < self._nbytes:
            nbytes = min(self._fetch_bytes, self._nbytes - self._offset)
            data = self._store.get_range(self._key, self._offset, nbytes, self._etag).data
            self._chunk = memoryview(data)
            self._offset += nbytes
            self._fetch_bytes = min(self._fetch_bytes * 2, MAX_BYTES)
        count = min(len(target), len(self._chunk))
        target[:count] = self._chunk[:count]
        self._chunk = self._chunk[count:]
        return count


def open_reader(store: Store, key: str) -> BinaryIO:
    """A buffered sequential reader of `key`. Raises: ObjectNotFound."""
    return cast(BinaryIO, io.BufferedReader(RangeReader(store, key), buffer_size=128 * 2**10))
