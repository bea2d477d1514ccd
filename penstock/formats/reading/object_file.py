"""Read objects as files and streams: pinned to their listing, in large requests."""

import io
import lzma
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from loader.dataset.columnar.arrow_columns import arrow_errors
from loader.errors import Corrupt
from loader.storage import Blob, ObjectInfo, Store

from .window import ObjectWindow

BOMB_BYTES, BOMB_TIMES = 2**30, 1000
"""Limit on an object's decompressed size: this many bytes, or this many times its own size if that is more."""
_READ_BYTES = 2**20
_XZ_MEMORY_BYTES = 2**28


class ObjectFile(io.RawIOBase):
    """A read-only file of one object; not thread-safe. Close it after use."""

    def __init__(self, store: Store, info: ObjectInfo, scattered: bool = False) -> None:
        """Open the object. scattered: True if reads jump back and forth."""
        self._window, self._at = ObjectWindow(store, info, scattered), 0
        self.path = self._window.name

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._window.nbytes}[whence]
        self._at = max(0, start + offset)
        return self._at

    def read(self, nbytes: int | None = -1) -> bytes:
        """Return `nbytes` bytes, fewer only at the end."""
        n_left = max(0, self._window.nbytes - self._at)
        if not n_left:
            return b""  # a damaged file may make its reader seek anywhere
        data = self._window.read(self._at, n_left if nbytes is None or nbytes < 0 else min(nbytes, n_left))
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
            self._window.close()
        super().close()


@contextmanager
def opened(store: Store, info: ObjectInfo) -> Iterator[ObjectFile]:
    """Open an object as a file; Arrow's errors become Corrupt or NotSupported."""
    with ObjectFile(store, info) as file, arrow_errors(file.path):
        yield file


class Unpacked:
    """A stand-in for a store, with the bytes of one decompressed object."""

    def __init__(self, url: str, data: bytes) -> None:
        self.url, self._data = url, data

    def get_range(self, key: str, offset: int, nbytes: int, etag: str | None = None) -> Blob:
        return Blob(self._data[offset : offset + nbytes], "")


class ByteStream:
    """Decompressed bytes, read forward up to a limit; not thread-safe. Arrow errors are raised unchanged."""

    def __init__(self, file: ObjectFile, codec: str | None, nbytes: int) -> None:
        """Open the stream. codec: Arrow's compression name, or xz. nbytes: size of the object."""
        source: Any = file
        if codec == "xz":
            source = _Xz(file)
        elif codec:
            source = pa.CompressedInputStream(pa.PythonFile(file, "r"), codec)
        self._source, self._nbytes = source, nbytes
        self.most = max(BOMB_BYTES, BOMB_TIMES * nbytes) if codec else nbytes
        self.name, self.at = file.path, 0

    def read(self, nbytes: int) -> bytes:
        """Return `nbytes` bytes, fewer only at the end. Raises: Corrupt for a decompression bomb; OSError."""
        pieces, n_left = [], nbytes
        while n_left and (piece := self._source.read(min(n_left, _READ_BYTES))):
            pieces.append(piece)
            n_left -= len(piece)
            self._count(len(piece))
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

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
    """Decompressed bytes of an .xz file, which may have several streams."""

    def __init__(self, file: ObjectFile) -> None:
        self._file = file
        self._stream: lzma.LZMADecompressor | None = None

    def read(self, nbytes: int) -> bytes:
        while True:
            data = b""
            if self._stream is None or self._stream.eof:
                data = (self._stream.unused_data if self._stream else b"") or self._file.read(_READ_BYTES)
                if not data:
                    return b""
                self._stream = lzma.LZMADecompressor(lzma.FORMAT_XZ, _XZ_MEMORY_BYTES)
            elif self._stream.needs_input and not (data := self._file.read(_READ_BYTES)):
                raise EOFError("its compressed bytes end too soon")
            try:
                piece = self._stream.decompress(data, nbytes)
            except lzma.LZMAError as error:
                raise OSError(f"it is damaged xz: {error}") from error
            if piece:
                return piece
