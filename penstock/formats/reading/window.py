"""Read an object in few requests, which grow while reads are close together."""

import os
from array import array
from collections import deque
from collections.abc import Sequence

from loader.errors import Changed
from loader.native import IN_MEMORY, UNKNOWN_CRC, OpenFile, crc32c
from loader.storage import ObjectInfo, Store
from loader.storage.store import disk_of

LOCAL_BYTES = 4 * 2**10
"""First read of a file, and after a jump, in bytes: a tar header or two."""
LOCAL_MOST_BYTES = 256 * 2**10
"""Maximum read of a file, in bytes; one system call per small member would wait for the GIL each time."""
LOCAL_JUMP_BYTES = 16 * 2**10
"""Minimum gap that is skipped in a file, in bytes."""
FIRST_BYTES = 256 * 2**10
"""First request, and after a jump, in bytes."""
MOST_BYTES = 8 * 2**20
"""Maximum request size, in bytes."""
JUMP_BYTES = 2**20
"""Minimum gap that is skipped in a bucket's object, in bytes: 20 ms at 50 MB/s."""

SCATTERED_BYTES = 2**20
"""Maximum request size if reads jump back and forth, in bytes."""
SCATTERED_PIECES = 32
"""Number of earlier requests kept if reads jump back and forth."""

SMALL_MEMBERS = 4
"""Number of reads per request from which members count as small."""


class Neighbours:
    """State shared by the windows of a bucket's archives; thread-safe."""

    are_small = False
    """True if the last members were small; the next window then starts with the largest request."""


class ObjectWindow:
    """Reads an object pinned to its listing; not thread-safe. Close it after use."""

    def __init__(
        self,
        store: Store,
        info: ObjectInfo,
        scattered: bool = False,
        neighbours: Neighbours | None = None,
    ) -> None:
        """Open the object. scattered: True if reads jump back and forth. neighbours: given for an archive."""
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
        """Return `nbytes` bytes from `offset` on, fewer only at the object's end."""
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
        """Return bytes without any effect on later request sizes."""
        if self._file is not None:
            return os.pread(self._file, nbytes, offset)
        low = offset - self._start
        if low >= 0 and low + nbytes <= len(self._data):
            return self._data[low : low + nbytes]
        return bytes(self._store.get_range(self._info.key, offset, nbytes, self._info.etag or None).data)

    def at_hand(self) -> tuple[OpenFile, int]:
        """Return the open file or the buffered bytes, and the offset of the first byte."""
        return ((IN_MEMORY, self._data), self._start) if self._file is None else ((self._file, None), 0)

    def served(self, reads: int) -> None:
        """Add to the number of reads served from the buffer."""
        self._served += reads

    @property
    def sums(self) -> bool:
        """True while members' contents are checksummed, which ends once one is skipped."""
        return self._checksums is not None and self._checksums.go_on

    def sum(self, places: Sequence[int], crcs: Sequence[int]) -> None:
        """Checksum the next members. Arguments: as for `Checksums.take`."""
        if self._checksums is not None:
            self._checksums.take(places, crcs, self._start, self._data)

    def crcs(self) -> Sequence[int]:
        """Return the CRC-32C of each member's content; empty if one was skipped."""
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
            offset, size = offset - gap, size + gap  # includes the rest of a content in the request
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
    """CRC-32C of each member's content in an archive, as long as all are read."""

    def __init__(self) -> None:
        self._crcs: array[int] | None = array("q")
        self._at, self._n_left = 0, 0
        """Offset and length of the part of the last content that is not yet checksummed."""

    @property
    def go_on(self) -> bool:
        """True until a content is skipped."""
        return self._crcs is not None

    @property
    def lack_bytes(self) -> bool:
        """True if the end of the last content is unread."""
        return self._n_left > 0

    def all(self) -> Sequence[int]:
        """Return each content's checksum; empty if one was skipped."""
        return () if self._crcs is None or self._n_left else self._crcs

    def take(self, places: Sequence[int], crcs: Sequence[int], start: int, data: bytes) -> None:
        """Add the next members' contents.

        places: flat offsets and lengths. crcs: `UNKNOWN_CRC` if not read. data: object's bytes from `start` on.
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
        """Add bytes to the last content's checksum. data: object's bytes from `start` on."""
        begin = self._at - start
        if self._crcs and self._n_left and begin >= 0:
            content = memoryview(data)[begin : begin + self._n_left]
            self._crcs[-1] = crc32c(content, self._crcs[-1])
            self._at, self._n_left = self._at + len(content), self._n_left - len(content)
