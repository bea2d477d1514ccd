"""The bytes of an object from its beginning to its end, decompressed on the way, up to a limit."""

import lzma
from typing import Any

import pyarrow as pa

from loader.errors import Corrupt

from ..reading.object_file import ObjectFile
from .read_units import BOMB_BYTES, BOMB_TIMES

_READ_BYTES = 2**20
_XZ_MEMORY_BYTES = 2**28


class ByteStream:
    """Reads forward; not thread-safe. Errors of Arrow inside are those of `object_file.opened`."""

    def __init__(self, file: ObjectFile, codec: str | None, nbytes: int) -> None:
        """Begin at the first byte. codec: Arrow's name of the compression, or xz. nbytes: of the object."""
        source: Any = file
        if codec == "xz":
            source = _Xz(file)
        elif codec:
            source = pa.CompressedInputStream(pa.PythonFile(file, "r"), codec)
        self._source, self._nbytes = source, nbytes
        self.most = max(BOMB_BYTES, BOMB_TIMES * nbytes) if codec else nbytes
        self.name, self.at = file.path, 0

    def read(self, nbytes: int) -> bytes:
        """Return so many bytes, fewer at the end alone. Raises: Corrupt for a bomb; ArrowException; OSError."""
        pieces, left = [], nbytes
        while left and (piece := self._source.read(min(left, _READ_BYTES))):
            pieces.append(piece)
            left -= len(piece)
            self._count(len(piece))
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def skip(self, nbytes: int) -> None:
        """Pass over so many bytes, fewer at the end alone. Raises: as `read`."""
        while nbytes and (piece := self._source.read(min(nbytes, _READ_BYTES))):
            nbytes -= len(piece)
            self._count(len(piece))

    def _count(self, nbytes: int) -> None:
        self.at += nbytes
        if self.at > self.most:
            raise Corrupt(
                f"{self.name}: {self._nbytes:,} bytes became more than {self.most:,}; an object that is compressed "
                "so much is taken for a mistake or an attack: write it uncompressed"
            )


class _Xz:
    """Bytes of an .xz file, which may be several streams one behind the other."""

    def __init__(self, file: ObjectFile) -> None:
        self._file = file
        self._stream: lzma.LZMADecompressor | None = None

    def read(self, nbytes: int) -> bytes:
        """Return at most so many bytes; none at the end alone. Raises: OSError where it is damaged; EOFError."""
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
                made = self._stream.decompress(data, nbytes)
            except lzma.LZMAError as error:
                raise OSError(f"it is no sound xz: {error}") from error
            if made:
                return made
