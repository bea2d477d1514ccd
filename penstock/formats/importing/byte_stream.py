"""Read an object from its beginning to its end, decompressed, up to a limit."""

import lzma
from typing import Any

import pyarrow as pa

from loader.errors import Corrupt

from ..reading.object_file import ObjectFile
from .read_units import BOMB_BYTES, BOMB_TIMES

_READ_BYTES = 2**20
_XZ_MEMORY_BYTES = 2**28


class ByteStream:
    """Reads forward; not thread-safe. Arrow raises its errors through `object_file.opened`."""

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
        """Return `nbytes` bytes, fewer only at the end. Raises: Corrupt for a bomb; ArrowException; OSError."""
        pieces, n_left = [], nbytes
        while n_left and (piece := self._source.read(min(n_left, _READ_BYTES))):
            pieces.append(piece)
            n_left -= len(piece)
            self._count(len(piece))
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def skip(self, nbytes: int) -> None:
        """Skip `nbytes` bytes, fewer only at the end. Raises: as `read`."""
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
    """Bytes of an .xz file, which may have several concatenated streams."""

    def __init__(self, file: ObjectFile) -> None:
        self._file = file
        self._stream: lzma.LZMADecompressor | None = None

    def read(self, nbytes: int) -> bytes:
        """Return at most `nbytes` bytes, none only at the end."""
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
