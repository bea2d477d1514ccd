"""One request to a node's server and its answer, with blocking calls.

A thread reads up to 256 KiB after a head, and sends both at once. `os.sendfile` sends longer ranges: over loopback it
took 0.8 times the processor time for 1 MiB, and 1.7 to 2 times for 100 kB.
"""

import os
import socket
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import NamedTuple

from .heads import RequestHead, answer_head, page_answer_head

BODY_S = 5.0
"""Seconds without progress after which a body is given up, in either direction."""
ANSWER_S = 30.0
"""Most seconds for one answer: a slow reader must not occupy a thread for longer."""
PIECE_BYTES = 2**18
"""Bytes of a body that are received, or read from a file, at once. They stay in a processor's cache."""
GATHERED_BYTES = 2**16
"""Bytes of several files that are sent together: the reader can receive them while the next ones are read."""
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"

_REASONS = {
    200: "OK",
    400: "Bad Request",
    401: "Unauthorized",
    403: "Forbidden",
    404: "Not Found",
    409: "Conflict",
    411: "Length Required",
    413: "Content Too Large",
    416: "Range Not Satisfiable",
    431: "Request Header Fields Too Large",
    500: "Internal Server Error",
    503: "Service Unavailable",
    507: "Insufficient Storage",
}

SHORTER = "a page's file became shorter while it was sent"
_pieces = threading.local()


class ReaderConnection:
    """A connection of a reader."""

    __slots__ = ("begun", "is_busy", "since_s", "socket")

    def __init__(self, accepted: socket.socket) -> None:
        self.socket = accepted
        self.begun = b""
        """Bytes of the next request that have come."""
        self.since_s = time.monotonic()
        """When the connection became idle, or the head began."""
        self.is_busy = False

    def __del__(self) -> None:
        with suppress(OSError):
            self.socket.close()


def _thread_piece() -> memoryview:
    """Return the memory of this thread for bytes of files."""
    try:
        view: memoryview = _pieces.view
    except AttributeError:
        view = memoryview(bytearray(PIECE_BYTES))
        _pieces.view = view
    return view


class FileRange(NamedTuple):
    """Bytes of an open file."""

    descriptor: int
    offset: int
    """First byte in the file."""
    nbytes: int


class BrokenExchange(OSError):
    """The other side was too slow, or left."""


class Exchange:
    """One request and its answer. Exactly one of the `send_` methods must be called."""

    __slots__ = ("_begun", "_connection", "_deadline_s", "_unread", "head", "is_answered", "is_reusable")

    def __init__(self, connection: ReaderConnection, head: RequestHead, begun: bytes) -> None:
        self.head = head
        self._connection = connection
        self._begun = begun
        """Bytes of the body that came with the head."""
        self._unread = head.nbytes
        self._deadline_s = time.monotonic() + ANSWER_S
        self.is_reusable = True
        self.is_answered = False

    def body(self, memory: memoryview | None = None) -> Iterator[bytes | memoryview]:
        """Yield the body in pieces of `memory`, each valid until the next. Raises: BrokenExchange."""
        if self.head.headers.get("expect", "").lower() == "100-continue":
            # The caller sends its body only now, so that a refusal costs no bytes.
            self._send(CONTINUE)
        if self._begun:
            piece = self._begun
            self._begun = b""
            self._unread -= len(piece)
            yield piece
        if memory is None:
            memory = memoryview(bytearray(min(PIECE_BYTES, self._unread)))
        while self._unread:
            expected = min(len(memory), self._unread)
            try:
                count = self._connection.socket.recv_into(memory, expected, socket.MSG_WAITALL)
            except OSError as error:
                raise BrokenExchange(f"a body stopped: {error}") from error
            if not count:
                raise BrokenExchange("a body was cut off")
            self._check_time()
            self._unread -= count
            yield memory[:count]

    def send_text(self, status: int, text: str) -> None:
        """Answer with a line of text. Raises: BrokenExchange."""
        self._begin()
        body = text.encode() + b"\n"
        is_last = not self.is_reusable
        self._send(answer_head(status, _REASONS[status], len(body), is_last=is_last) + body)

    def send_bytes(self, data: bytes) -> None:
        """Answer 206 with the whole of some data, which clients read as they read a file. Raises: BrokenExchange."""
        self._begin()
        head = page_answer_head(0, len(data), len(data))
        self._send(head, socket.MSG_MORE)
        self._send(data)

    def send_files(self, head: bytes, files: Iterable[FileRange]) -> None:
        """Answer with a head and bytes of open files. Raises: BrokenExchange; OSError if a file is unreadable."""
        self._begin()
        view = _thread_piece()
        filled = len(head)
        view[:filled] = head
        for file in files:
            offset = file.offset
            stop = offset + file.nbytes
            while offset < stop:
                if filled > GATHERED_BYTES:
                    self._send(view[:filled])
                    filled = 0
                end = min(PIECE_BYTES, filled + stop - offset)
                count = os.preadv(file.descriptor, [view[filled:end]], offset)
                if not count:
                    raise BrokenExchange(SHORTER)
                filled += count
                offset += count
        self._send(view[:filled])

    def send_file(self, head: bytes, descriptor: int, offset: int, nbytes: int) -> None:
        """Answer with a head and bytes of an open file. Raises: BrokenExchange; OSError if the file is unreadable."""
        if len(head) + nbytes > PIECE_BYTES:
            self._begin()
            self._send(head, socket.MSG_MORE)
            self._send_large(descriptor, offset, nbytes)
            return
        view = _thread_piece()
        begin = len(head)
        view[:begin] = head
        count = os.preadv(descriptor, [view[begin : begin + nbytes]], offset)
        if nbytes and not count:
            raise BrokenExchange(SHORTER)
        self._begin()
        self._send(view[: begin + count])
        if count < nbytes:
            raise BrokenExchange(SHORTER)

    def _send_large(self, descriptor: int, offset: int, nbytes: int) -> None:
        """Send bytes of a file without copying them into this process."""
        stop = offset + nbytes
        while offset < stop:
            try:
                count = os.sendfile(self._connection.socket.fileno(), descriptor, offset, stop - offset)
            except OSError as error:
                raise BrokenExchange(f"an answer stopped: {error}") from error
            if not count:
                raise BrokenExchange(SHORTER)
            self._check_time()
            offset += count

    def _begin(self) -> None:
        """Begin the answer. A connection with an unread body can take no further request."""
        if self.is_answered:
            raise BrokenExchange("an exchange failed after its answer had begun")
        self.is_answered = True
        if self._unread > len(self._begun):
            self.is_reusable = False
        elif self._begun:  # the whole body came with the head: it is dropped
            self._unread -= len(self._begun)
            self._begun = b""

    def _send(self, data: bytes | memoryview, flags: int = 0) -> None:
        """Send all bytes. Raises: BrokenExchange."""
        view = memoryview(data)
        while view:
            try:
                count = self._connection.socket.send(view, flags)
            except OSError as error:
                raise BrokenExchange(f"an answer stopped: {error}") from error
            self._check_time()
            view = view[count:]

    def _check_time(self) -> None:
        if time.monotonic() > self._deadline_s:
            raise BrokenExchange(f"an exchange took longer than {ANSWER_S:g} s")
