"""Read one object in few requests, whose size grows while reads stay close together."""

import os
from array import array
from collections import deque
from collections.abc import Sequence

from loader.errors import Changed
from loader.native import IN_MEMORY, UNKNOWN_CRC, OpenFile, crc32c
from loader.storage import ObjectInfo, Store
from loader.storage.store import disk_of

LOCAL_BYTES = 4 * 2**10
"""First read of a file, and after a jump: a header or two."""
LOCAL_MOST_BYTES = 256 * 2**10
"""Read size for small members: a system call each would wait for the GIL."""
LOCAL_JUMP_BYTES = 16 * 2**10
"""Smallest gap in a file that is skipped."""
FIRST_BYTES = 256 * 2**10
"""First read of a bucket's object, and after a jump."""
MOST_BYTES = 8 * 2**20
"""Largest read of a bucket's object."""
JUMP_BYTES = 2**20
"""Smallest gap that is skipped: a request's time at 20 ms and 50 MB/s."""

SCATTERED_BYTES = 2**20
"""Largest read for a reader that jumps, and seldom needs the bytes behind."""
SCATTERED_PIECES = 32
"""Earlier reads kept for such a reader."""

SMALL_MEMBERS = 4
"""Reads per request from which members count as small."""


class Neighbours:
    """State shared by the walks over one bucket's archives; thread-safe."""

    are_small = False
    """True if the last members were small: the next walk begins with the largest request."""


class ObjectWindow:
    """Reads an object pinned to its listing; not thread-safe. Close it after use."""

    def __init__(
        self,
        store: Store,
        info: ObjectInfo,
        scattered: bool = False,
        neighbours: Neighbours | None = None,
    ) -> None:
        """Open the object. scattered: True if the reader jumps. neighbours: for an archive."""
        self.name, self.nbytes = f"{store.url}/{info.key}", info.nbytes
        self._store, self._info = store, info
        self._start, self._data, self._size, self._served = 0, b"", 0, 0
        self._scattered, self._pieces = scattered, deque[tuple[int, bytes]](maxlen=SCATTERED_PIECES)
        self._neighbours = neighbours
        self._checksums = Checksums() if neighbours else None
        self._file: int | None = None
        if (disk := disk_of(store)) is not None:
            self._file = disk.open_same(info.key, info.etag)
            if self._file is None:
                raise Changed(f"{self.name} was written while it was being registered; register again")
            self._neighbours = None

    def read(self, offset: int, nbytes: int) -> bytes:
        """Return `nbytes` bytes from `offset`, fewer only at the end of the object."""
        low = offset - self._start
        if low >= 0 and low + nbytes <= len(self._data):
            self._served += 1
            return self._data[low : low + nbytes]
        for start, data in self._pieces:
            if start <= offset and offset + nbytes <= start + len(data):
                return data[offset - start : offset - start + nbytes]
        nbytes = max(0, min(nbytes, self.nbytes - offset))
        if not (low >= 0 and low + nbytes <= len(self._data)):
            self._fetch(offset, nbytes)
            low = offset - self._start
        return self._data[low : low + nbytes]

    def aside(self, offset: int, nbytes: int) -> bytes:
        """Return bytes without changing the request sizes of the walk."""
        if self._file is not None:
            return os.pread(self._file, nbytes, offset)
        low = offset - self._start
        if low >= 0 and low + nbytes <= len(self._data):
            return self._data[low : low + nbytes]
        return bytes(self._store.get_range(self._info.key, offset, nbytes, self._info.etag or None).data)

    def at_hand(self) -> tuple[OpenFile, int]:
        """Return the open file or the buffered bytes, and the offset of their first byte."""
        return ((IN_MEMORY, self._data), self._start) if self._file is None else ((self._file, None), 0)

    def served(self, reads: int) -> None:
        """Count reads that the buffer served."""
        self._served += reads

    @property
    def sums(self) -> bool:
        """True while contents are summed, because none was skipped."""
        return self._checksums is not None and self._checksums.go_on

    def sum(self, places: Sequence[int], crcs: Sequence[int]) -> None:
        """Add the next contents of the archive. As `Checksums.take`."""
        if self._checksums is not None:
            self._checksums.take(places, crcs, self._start, self._data)

    def crcs(self) -> Sequence[int]:
        """Return the CRC-32C of each content; empty if one was skipped."""
        return self._checksums.all() if self._checksums is not None else ()

    def close(self) -> None:
        if self._neighbours is not None and len(self._data) >= JUMP_BYTES:
            self._neighbours.are_small = self._served_many()
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _served_many(self) -> bool:
        return self._served >= max(SMALL_MEMBERS, len(self._data) // JUMP_BYTES)

    def _fetch(self, offset: int, nbytes: int) -> None:
        first, most, jump = FIRST_BYTES, MOST_BYTES, JUMP_BYTES
        if self._file is not None:
            first, most, jump = LOCAL_BYTES, LOCAL_MOST_BYTES, LOCAL_JUMP_BYTES
        gap = offset - self._start - len(self._data)
        if self._neighbours is not None:
            if self._data:
                self._neighbours.are_small = gap < jump and self._served_many()
            elif offset == 0 and (self._neighbours.are_small or self.nbytes <= jump):
                first = most
        if not self._data or gap >= jump:
            self._size = first
        elif self._scattered:
            self._size = min(2 * self._size, most, SCATTERED_BYTES)
        elif self._served_many():
            self._size = most
        else:
            self._size = min(2 * self._size, most)
        self._served = 0
        size = min(max(nbytes, self._size), self.nbytes - offset)
        if self._checksums is not None and self._checksums.lack_bytes and 0 < gap < jump:
            offset, size = offset - gap, size + gap  # the rest of a content, in the same request
        if size <= 0:
            data = b""  # beyond the end of a truncated object
        elif self._file is not None:
            data = os.pread(self._file, size, offset)
        else:
            data = self._store.get_range(self._info.key, offset, size, self._info.etag or None).data
            if self._scattered and self._data:
                self._pieces.append((self._start, self._data))
        self._start, self._data = offset, data
        if self._checksums is not None:
            self._checksums.read(offset, data)


class Checksums:
    """CRC-32C of an archive's contents, as long as the walk reads all of them."""

    def __init__(self) -> None:
        self._crcs: array[int] | None = array("q")
        self._at, self._n_left = 0, 0
        """First byte of the last content that is not summed yet, and bytes from there."""

    @property
    def go_on(self) -> bool:
        """True as long as no content was skipped."""
        return self._crcs is not None

    @property
    def lack_bytes(self) -> bool:
        """True if the end of the last content is still unread."""
        return self._n_left > 0

    def all(self) -> Sequence[int]:
        """Return the checksum of each content; empty if one was skipped."""
        return () if self._crcs is None or self._n_left else self._crcs

    def take(self, places: Sequence[int], crcs: Sequence[int], start: int, data: bytes) -> None:
        """Add the next contents.

        places: first byte and length of each. crcs: `UNKNOWN_CRC` if not read. data: from `start` on.
        """
        if self._crcs is None:
            return
        if self._n_left or UNKNOWN_CRC in crcs[:-1]:
            self._crcs = None  # the rest of a content was not read
            return
        self._crcs.extend(crcs)
        if crcs[-1] == UNKNOWN_CRC:
            self._crcs[-1] = 0
            self._at, self._n_left = places[-2:]
            self.read(start, data)

    def read(self, start: int, data: bytes) -> None:
        """Sum bytes of the last content. data: bytes from `start` on."""
        begin = self._at - start
        if self._crcs and self._n_left and begin >= 0:
            content = memoryview(data)[begin : begin + self._n_left]
            self._crcs[-1] = crc32c(content, self._crcs[-1])
            self._at, self._n_left = self._at + len(content), self._n_left - len(content)
