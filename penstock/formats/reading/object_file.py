"""Objects as files and streams: pinned to their listing, in large requests."""

import io
import lzma
import os
from array import array
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from loader.dataset.columnar.arrow_errors import arrow_errors
from loader.errors import Changed, Corrupt
from loader.native import IN_MEMORY, UNKNOWN_CRC, OpenFile, crc32c
from loader.storage import Blob, ObjectInfo, Store
from loader.storage.store import as_disk

LOCAL_BYTES = 4 * 2**10
"""Bytes of a file's first read, and of a read after a jump: a tar header or two."""
LOCAL_MOST_BYTES = 256 * 2**10
"""A file's largest read, in bytes; one system call per small member would wait for the GIL each time."""
LOCAL_JUMP_BYTES = 16 * 2**10
"""Smallest gap skipped in a file, in bytes."""
FIRST_BYTES = 256 * 2**10
"""First request, and after a jump, in bytes."""
MOST_BYTES = 8 * 2**20
"""Largest request, in bytes."""
JUMP_BYTES = 2**20
"""Smallest gap skipped in a bucket's object, in bytes: 20 ms at 50 MB/s."""

SCATTERED_BYTES = 2**20
"""Largest request if reads jump back and forth, in bytes."""
SCATTERED_PIECES = 32
"""Earlier requests kept if reads jump back and forth."""

SMALL_MEMBERS = 4
"""Reads per request from which members count as small."""


class Neighbours:
    """State shared by the readers of a bucket's archives; thread-safe."""

    are_small = False
    """True if the last members were small; the next reader then starts with the largest request."""


class ForwardReader:
    """Reads an object pinned to its listing; not thread-safe. Close it after use."""

    def __init__(
        self,
        store: Store,
        info: ObjectInfo,
        scattered: bool = False,
        neighbours: Neighbours | None = None,
    ) -> None:
        """scattered: reads jump back and forth. neighbours: given for an archive."""
        self.name = f"{store.url}/{info.key}"
        self.nbytes = info.nbytes
        self._store = store
        self._info = info
        self._start = 0  # offset of the buffer, `_data`
        self._data = b""
        self._size = 0  # of the last request, before limits
        self._served = 0  # reads from the buffer
        self._scattered = scattered
        self._pieces = deque[tuple[int, bytes]](maxlen=SCATTERED_PIECES)
        self._neighbours = neighbours
        self._checksums = Checksums() if neighbours else None
        self._file: int | None = None
        disk = as_disk(store)
        if disk is not None:
            # Kept open: a file that is replaced meanwhile has its old bytes here.
            self._file = disk.open_same(info.key, info.etag)
            if self._file is None:
                message = f"{self.name} was written while it was being registered; register again"
                raise Changed(message, what="object", where=self.name)
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
        if low < 0 or low + nbytes > len(self._data):
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
        return bytes(self._requested(offset, nbytes))

    def at_hand(self) -> tuple[OpenFile, int]:
        """Return the open file or buffered bytes, and its first byte's offset."""
        if self._file is None:
            return (IN_MEMORY, self._data), self._start
        return (self._file, None), 0

    def served(self, reads: int) -> None:
        """Add to the number of reads served from the buffer."""
        self._served += reads

    @property
    def sums(self) -> bool:
        """True while members' contents are checksummed, until one is skipped."""
        return self._checksums is not None and self._checksums.go_on

    def sum(self, places: Sequence[int], crcs: Sequence[int]) -> None:
        """Checksum the next members; see `Checksums.take`."""
        if self._checksums is not None:
            self._checksums.take(places, crcs, self._start, self._data)

    def crcs(self) -> Sequence[int]:
        """Return each member's CRC-32C; empty if one was skipped."""
        if self._checksums is None:
            return ()
        return self._checksums.all()

    def _requested(self, offset: int, nbytes: int) -> bytes:
        return self._store.get_range(self._info.key, offset, nbytes, self._info.etag or None).data

    def close(self) -> None:
        if self._neighbours is not None and len(self._data) >= JUMP_BYTES:
            self._neighbours.are_small = self._served_many()
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _served_many(self) -> bool:
        return self._served >= max(SMALL_MEMBERS, len(self._data) // JUMP_BYTES)

    def _fetch(self, offset: int, nbytes: int) -> None:
        """Replace the buffer by bytes from `offset` on, at least `nbytes` if the object has as many."""
        gap = offset - self._start - len(self._data)
        self._size = self._next_size(offset, gap)
        self._served = 0
        size = min(max(nbytes, self._size), self.nbytes - offset)
        jump = JUMP_BYTES if self._file is None else LOCAL_JUMP_BYTES
        if self._checksums is not None and self._checksums.lack_bytes and 0 < gap < jump:
            # Includes the rest of a content in the request.
            offset -= gap
            size += gap
        if size <= 0:
            data = b""  # beyond the end of a truncated object
        elif self._file is not None:
            data = os.pread(self._file, size, offset)
        else:
            data = self._requested(offset, size)
            if self._scattered and self._data:
                self._pieces.append((self._start, self._data))
        self._start = offset
        self._data = data
        if self._checksums is not None:
            self._checksums.read(offset, data)

    def _next_size(self, offset: int, gap: int) -> int:
        """Return the bytes of the next request: small after a jump, then twice the last. gap: bytes to skip."""
        first = FIRST_BYTES
        most = MOST_BYTES
        jump = JUMP_BYTES
        if self._file is not None:
            first = LOCAL_BYTES
            most = LOCAL_MOST_BYTES
            jump = LOCAL_JUMP_BYTES
        if self._neighbours is not None:
            if self._data:
                self._neighbours.are_small = gap < jump and self._served_many()
            elif offset == 0 and (self._neighbours.are_small or self.nbytes <= jump):
                first = most
        if not self._data or gap >= jump:
            return first
        if self._scattered:
            return min(2 * self._size, most, SCATTERED_BYTES)
        if self._served_many():
            return most
        return min(2 * self._size, most)


class Checksums:
    """CRC-32C of each member's content, as long as all are read."""

    def __init__(self) -> None:
        self._crcs: array[int] | None = array("q")
        # Offset and length of the last content's part without checksum.
        self._at = 0
        self._n_left = 0

    @property
    def go_on(self) -> bool:
        """True until a content is skipped."""
        return self._crcs is not None

    @property
    def lack_bytes(self) -> bool:
        """True if the last content's end is unread."""
        return self._n_left > 0

    def all(self) -> Sequence[int]:
        if self._crcs is None or self._n_left:
            return ()
        return self._crcs

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
        """Add bytes to the last content. data: object's bytes from `start` on."""
        begin = self._at - start
        if self._crcs and self._n_left and begin >= 0:
            content = memoryview(data)[begin : begin + self._n_left]
            self._crcs[-1] = crc32c(content, self._crcs[-1])
            self._at += len(content)
            self._n_left -= len(content)


BOMB_BYTES = 2**30
BOMB_TIMES = 1000
"""Most decompressed bytes of an object, or times its own size if that is more."""
_READ_BYTES = 2**20
_XZ_MEMORY_BYTES = 2**28


class ObjectFile(io.RawIOBase):
    """A read-only file of one object; not thread-safe. Close it after use."""

    def __init__(self, store: Store, info: ObjectInfo, scattered: bool = False) -> None:
        """scattered: reads jump back and forth."""
        self._reader = ForwardReader(store, info, scattered)
        self._at = 0
        self.path = self._reader.name

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._reader.nbytes}[whence]
        self._at = max(0, start + offset)
        return self._at

    def read(self, nbytes: int | None = -1) -> bytes:
        """Return `nbytes` bytes, fewer only at the end."""
        n_left = max(0, self._reader.nbytes - self._at)
        if not n_left:
            return b""  # a damaged file may make its reader seek anywhere
        if nbytes is None or nbytes < 0:
            nbytes = n_left
        data = self._reader.read(self._at, min(nbytes, n_left))
        self._at += len(data)
        return data

    def readall(self) -> bytes:
        return self.read()

    def readinto(self, buffer: Any) -> int:
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        if not self.closed:
            self._reader.close()
        super().close()


@contextmanager
def open_object(store: Store, info: ObjectInfo) -> Iterator[ObjectFile]:
    """Open an object as a file; Arrow's errors become Corrupt or NotSupported."""
    with ObjectFile(store, info) as file, arrow_errors(file.path):
        yield file


class Unpacked:
    """Stands in for a store, with one decompressed object."""

    def __init__(self, url: str, data: bytes) -> None:
        self.url = url
        self._data = data

    def get_range(self, key: str, offset: int, nbytes: int, etag: str | None = None) -> Blob:
        return Blob(self._data[offset : offset + nbytes], "")


class ByteStream:
    """Decompressed bytes, read forward up to a limit; not thread-safe. Arrow errors are raised unchanged."""

    def __init__(self, file: ObjectFile, codec: str | None, nbytes: int) -> None:
        """codec: Arrow's name, or xz. nbytes: size of the object."""
        self._source: Any = file
        self._nbytes = nbytes
        self.most = nbytes
        if codec:
            self.most = max(BOMB_BYTES, BOMB_TIMES * nbytes)
        if codec == "xz":
            self._source = _Xz(file)
        elif codec:
            self._source = pa.CompressedInputStream(pa.PythonFile(file, "r"), codec)
        self.name = file.path
        self.at = 0

    def read(self, nbytes: int) -> bytes:
        """Return `nbytes` bytes, fewer only at the end. Raises: Corrupt for a decompression bomb; OSError."""
        pieces = []
        n_left = nbytes
        while n_left and (piece := self._source.read(min(n_left, _READ_BYTES))):
            pieces.append(piece)
            n_left -= len(piece)
            self._count(len(piece))
        if len(pieces) == 1:
            return bytes(pieces[0])  # no copy: nearly all reads
        return b"".join(pieces)

    def skip(self, nbytes: int) -> None:
        """Skip `nbytes` bytes, fewer only at the end."""
        while nbytes and (piece := self._source.read(min(nbytes, _READ_BYTES))):
            nbytes -= len(piece)
            self._count(len(piece))

    def _count(self, nbytes: int) -> None:
        self.at += nbytes
        if self.at > self.most:
            raise Corrupt(
                f"{self.name}: {self._nbytes:,} bytes became more than {self.most:,}; an object that is compressed "
                "so much is probably a mistake or an attack: write it uncompressed"
            )


class _Xz:
    """Decompressed .xz file, of one or several streams."""

    def __init__(self, file: ObjectFile) -> None:
        self._file = file
        self._stream: lzma.LZMADecompressor | None = None

    def read(self, nbytes: int) -> bytes:
        while True:
            data = b""
            if self._stream is None or self._stream.eof:
                if self._stream is not None:
                    data = self._stream.unused_data  # the next stream's
                data = data or self._file.read(_READ_BYTES)
                if not data:
                    return b""
                # Bounded: a damaged header may ask for a dictionary of 4 GiB.
                self._stream = lzma.LZMADecompressor(lzma.FORMAT_XZ, _XZ_MEMORY_BYTES)
            elif self._stream.needs_input:
                data = self._file.read(_READ_BYTES)
                if not data:
                    raise EOFError("its compressed bytes end too soon")
            try:
                piece = self._stream.decompress(data, nbytes)
            except lzma.LZMAError as error:
                raise OSError(f"it is damaged xz: {error}") from error
            if piece:
                return piece
