"""A piece of a file that looks like the whole file: what a Parquet reader is given of a remote object."""

import io


class Window(io.RawIOBase):
    """A read-only file of which only [start, start + len(data)) is here; reading elsewhere is an error."""

    def __init__(self, nbytes: int, start: int, data: bytes) -> None:
        self._nbytes, self._start, self._data, self._at = nbytes, start, data, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._nbytes}[whence]
        return self._at

    def read(self, size: int | None = -1) -> bytes:
        end = self._nbytes if size is None or size < 0 else min(self._at + size, self._nbytes)
        low, high = self._at - self._start, end - self._start
        if low < 0 or high > len(self._data):
            raise OSError(
                f"bytes [{self._at}:{end}] of an index lie outside the part that its footer promised"
            )
        self._at = end
        return self._data[low:high]
