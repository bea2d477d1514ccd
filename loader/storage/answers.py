"""The answer of an object store to a range, whose body is still to be read: obstore's here, and `wire.Wire`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

from .object_listing import etag_of
from .wire import Broken

CHUNK_BYTES = (
    2**18
)  # of a body of obstore's, handed on as it arrives: memory of this size stays with the process


class Answer(Protocol):
    """etag, size: of the object. It is read once."""

    etag: str
    size: int

    def all(self) -> bytes:
        """The body. Raises: what obstore raises; Broken."""

    def into(self, view: memoryview) -> Iterator[int]:
        """Fill `view` with what comes next; how many bytes came, each time that some came. It may end before `view`.

        Raises: as `all`.
        """


class NativeAnswer:
    """obstore's."""

    def __init__(self, answer: Any) -> None:
        meta = answer.meta
        self._answer = answer
        self.etag, self.size = etag_of(meta), int(meta["size"])

    def all(self) -> bytes:
        found: bytes = self._answer.bytes().to_bytes()
        return found

    def into(self, view: memoryview) -> Iterator[int]:
        """To its end."""
        for piece in self._answer.stream(min_chunk_size=CHUNK_BYTES):
            if len(piece) > len(view):
                raise Broken("more bytes came than were asked for")
            view[: len(piece)] = piece
            view = view[len(piece) :]
            yield len(piece)
