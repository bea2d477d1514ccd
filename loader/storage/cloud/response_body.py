"""An object store's answer to a range, whose body is still to be read: obstore's, and `http_connection.Wire`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .http_connection import Broken
from .listing import etag_of

CHUNK_BYTES = (
    2**18
)  # of a body of obstore's, handed on as it arrives: memory of this size stays with the process


class NativeAnswer:
    """obstore's answer."""

    def __init__(self, answer: Any) -> None:
        meta = answer.meta
        self._answer = answer
        self.etag, self.size = etag_of(meta), int(meta["size"])

    def all(self) -> bytes:
        found: bytes = self._answer.bytes().to_bytes()
        return found

    def into(self, view: memoryview) -> Iterator[int]:
        """Fill `view` to its end."""
        for piece in self._answer.stream(min_chunk_size=CHUNK_BYTES):
            if len(piece) > len(view):
                raise Broken("more bytes came than were asked for")
            view[: len(piece)] = piece
            view = view[len(piece) :]
            yield len(piece)
