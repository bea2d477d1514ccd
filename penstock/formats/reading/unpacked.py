"""An object that was decompressed into memory, as far as a format that can be registered reads a store."""

from loader.storage import Blob


class Unpacked:
    """Bytes of one object, whatever its key."""

    def __init__(self, url: str, data: bytes) -> None:
        self.url, self._data = url, data

    def get_range(self, key: str, offset: int, nbytes: int, etag: str | None = None) -> Blob:
        """Return bytes from an offset on, fewer at the end."""
        return Blob(self._data[offset : offset + nbytes], "")
