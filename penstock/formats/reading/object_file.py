"""An object of a store as a read-only file: pinned to its listing, read in large requests."""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from loader.dataset.columnar.arrow_columns import arrow_errors
from loader.storage import Blob, ObjectInfo, Store

from .window import Window


class ObjectFile(io.RawIOBase):
    """Reads an object; not thread-safe. Close it after use."""

    def __init__(self, store: Store, info: ObjectInfo, scattered: bool = False) -> None:
        """Open the object. scattered: True if the reader jumps to and fro. Raises: ObjectNotFound; Changed."""
        self._window, self._at = Window(store, info, scattered), 0
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
        """Return `nbytes` bytes, fewer only at the end. Raises: Changed; StoreError."""
        n_left = max(0, self._window.nbytes - self._at)
        if not n_left:
            return b""  # a damaged file may seek anywhere
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
    """Open an object. Raises: Corrupt; NotSupported; Changed; StoreError; as `arrow_errors` with its name."""
    with ObjectFile(store, info) as file, arrow_errors(file.path):
        yield file


class Unpacked:
    """Bytes of one decompressed object, which stands for a store."""

    def __init__(self, url: str, data: bytes) -> None:
        self.url, self._data = url, data

    def get_range(self, key: str, offset: int, nbytes: int, etag: str | None = None) -> Blob:
        """Return bytes from an offset on, fewer at the end."""
        return Blob(self._data[offset : offset + nbytes], "")
