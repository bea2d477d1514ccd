"""One object of a store, read in few requests: large ones where what is wanted lies close together."""

import os
from array import array
from collections import deque
from collections.abc import Sequence

from loader.errors import Changed
from loader.native import IN_MEMORY, UNKNOWN_CRC, OpenFile, crc32c
from loader.storage import ObjectInfo, Store
from loader.storage.store import disk_of

LOCAL_BYTES = 4 * 2**10
"""Read at once of a file, at first and after a jump: a header or two."""
LOCAL_MOST_BYTES = 256 * 2**10
"""Read at once of a file whose members are small: a call for each would wait for the interpreter's lock."""
LOCAL_JUMP_BYTES = 16 * 2**10
"""A gap in a file that is jumped over."""
FIRST_BYTES = 256 * 2**10
"""Read at once of a bucket's object, at first and after a jump."""
MOST_BYTES = 8 * 2**20
"""Read at once of a bucket's object where no jump pays."""
JUMP_BYTES = 2**20
"""A gap that is jumped over: at 20 ms and 50 MB/s a request takes as long as so many bytes."""

SCATTERED_BYTES = 2**20
"""Read at once of a bucket's object whose reader goes to and fro: what lies behind is seldom wanted."""
SCATTERED_PIECES = 32
"""Earlier reads that are kept for such a reader, which comes back to them."""

SMALL_MEMBERS = 4
"""Reads that one request served, of an object whose members are small: all of it is read, in the largest requests."""


class Neighbours:
    """Notes that walks over the archives of one bucket leave each other; thread-safe."""

    are_small = False
    """True where the newest answer had small members: the next walk begins with a request of the largest size."""


class Window:
    """Reads an object pinned to what its listing said; not thread-safe, closed by its user."""

    def __init__(
        self,
        store: Store,
        info: ObjectInfo,
        scattered: bool = False,
        neighbours: Neighbours | None = None,
    ) -> None:
        """Open the object.

        scattered: its reader goes to and fro. neighbours: of an archive that is walked.

        Raises: ObjectNotFound; Changed.
        """
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
        """Return at most `nbytes` bytes from `offset`, fewer at the end of the object alone. Raises: Changed."""
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
        """Return bytes beside those that a walk reads, which goes on as if nobody had asked. Raises: as the store.

        Costs nothing where they are at hand, and else a request.
        """
        if self._file is not None:
            return os.pread(self._file, nbytes, offset)
        low = offset - self._start
        if low >= 0 and low + nbytes <= len(self._data):
            return self._data[low : low + nbytes]
        return bytes(self._store.get_range(self._info.key, offset, nbytes, self._info.etag or None).data)

    def at_hand(self) -> tuple[OpenFile, int]:
        """Return what can be read without a request, the file or the bytes held, and its first byte in the object."""
        return ((IN_MEMORY, self._data), self._start) if self._file is None else ((self._file, None), 0)

    def served(self, reads: int) -> None:
        """Count reads of what was at hand."""
        self._served += reads

    @property
    def sums(self) -> bool:
        """True where contents of the archive are summed: none was jumped over."""
        return self._checksums is not None and self._checksums.go_on

    def sum(self, places: Sequence[int], crcs: Sequence[int]) -> None:
        """Take the contents that were found next in the archive that is walked. As `Checksums.take`."""
        if self._checksums is not None:
            self._checksums.take(places, crcs, self._start, self._data)

    def crcs(self) -> Sequence[int]:
        """Return the CRC-32C of each content of the archive that was walked; none where one was jumped over."""
        return self._checksums.all() if self._checksums is not None else ()

    def close(self) -> None:
        """Close the file."""
        if self._neighbours is not None and len(self._data) >= JUMP_BYTES:
            self._neighbours.are_small = self._served_many()
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _served_many(self) -> bool:
        """Return whether members are small, by the reads that the last request served."""
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
            data = b""  # behind the end of an object that is cut
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
    """CRC-32C of the contents of an archive, one behind the other, as long as the walk reads all of them."""

    def __init__(self) -> None:
        self._crcs: array[int] | None = array("q")
        self._at, self._left = 0, 0
        """First byte of the last content that was not summed, and how many there are from it on."""

    @property
    def go_on(self) -> bool:
        """True as long as no content was jumped over."""
        return self._crcs is not None

    @property
    def lack_bytes(self) -> bool:
        """True where the last content was not read to its end."""
        return self._left > 0

    def all(self) -> Sequence[int]:
        """Return the checksum of each content; none where one was jumped over."""
        return () if self._crcs is None or self._left else self._crcs

    def take(self, places: Sequence[int], crcs: Sequence[int], start: int, data: bytes) -> None:
        """Take the next contents.

        places: first byte and bytes of each. crcs: of each, or `UNKNOWN_CRC`. data: bytes of the archive from `start`
        on, with what was read of the last content.
        """
        if self._crcs is None:
            return
        if self._left or UNKNOWN_CRC in crcs[:-1]:
            self._crcs = None  # the rest of one was not read
            return
        self._crcs.extend(crcs)
        if crcs[-1] == UNKNOWN_CRC:
            self._crcs[-1] = 0
            self._at, self._left = places[-2:]
            self.read(start, data)

    def read(self, start: int, data: bytes) -> None:
        """Sum the bytes of the last content in what was read. data: bytes of the archive from `start` on."""
        begin = self._at - start
        if self._crcs and self._left and begin >= 0:
            some = memoryview(data)[begin : begin + self._left]
            self._crcs[-1] = crc32c(some, self._crcs[-1])
            self._at, self._left = self._at + len(some), self._left - len(some)
