"""The answer of an object store to a range, whose body is still to be read: obstore's here, and `wire.Wire`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

from ..listing import etag_of
from .http_connection import Broken, Wire

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


class Following:
    """Reads of one object that follow each other, up to `stop`: an answer may go on behind what is wanted now, so that
    the next read asks for nothing. What is hashed then is still in the processor's cache.

    Who is slow to go on lets the server wait; when that hangs up, the next read asks for the rest. Not thread-safe.
    """

    def __init__(self, stop: int) -> None:
        self.stop, self.etag = stop, ""  # of the object, once there was an answer
        self._answer: Answer | None = None
        self._at = self._end = 0

    @property
    def is_under_way(self) -> bool:
        """Whether an answer goes on."""
        return self._answer is not None

    def begin(self, answer: Answer, at: int, etag: str) -> None:
        """With an answer whose body begins with the object's byte `at`."""
        self._answer, self._at, self.etag = answer, at, etag
        self._end = at + (answer.left if isinstance(answer, Wire) else 0)

    def into(self, at: int, view: memoryview) -> Iterator[int]:
        """Fill `view` with what comes of the object from byte `at` on, if an answer goes on there; how many bytes came,
        each time that some came. Raises: as the answer's."""
        answer, self._answer = self._answer, None
        if answer is None or self._at != at:
            return
        for count in answer.into(view):
            at += count
            yield count
        # By what it had to begin with: from the end of its body on others may ask its connection.
        if at < self._end:
            self._answer, self._at = answer, at
