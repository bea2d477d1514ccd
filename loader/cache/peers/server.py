"""The server of a node's pages: a few threads wait for heads and answer.

A cluster of 64 nodes with 8 ranks and 4 workers each has 2,000 connections to every server, and nearly all are idle.
A thread for each would take 2,000 stacks, so THREADS threads wait on one `epoll`. It gives each event to one of them.
A thread takes what has come without waiting; once a head is complete, it answers with blocking calls. Handing heads
from a loop to other threads took twice the processor time. A thread reads up to 256 KiB behind the head, and sends both
at once. `os.sendfile` sends longer ranges: over loopback it took 0.8 times the processor time for 1 MiB, and 1.7 to 2
times for 100 kB. Memory: a head's bytes for each connection, a body's piece for each thread.
"""

import hmac
import logging
import os
import select
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Protocol

from .heads import (
    HEAD_BYTES,
    HEAD_END,
    BadHead,
    PageRequest,
    RequestHead,
    answer_head,
    page_answer_head,
    parse_head,
    parse_page_request,
)

logger = logging.getLogger(__name__)

THREADS = 16
THREAD_NAME = "penstock-cache-server"
MOST_CONNECTIONS = 4096
"""One more is closed at once."""
HEAD_S = 5.0
"""Seconds within which a head must be complete."""
BODY_S = 5.0
"""Seconds without progress after which a body is given up, in either direction."""
ANSWER_S = 30.0
"""Most seconds for one answer: a slow reader must not occupy a thread for longer."""
IDLE_S = 30.0
"""Seconds without a request after which a connection is closed. Readers close theirs after a third of it."""
RECEIVE_BYTES = 2**14
"""Bytes of requests that are received at once: a reader sends all questions of a call together."""
PIECE_BYTES = 2**18
"""Bytes of a body that are received, or read from a file, at once. They stay in a processor's cache."""
LOOK_S = 0.5
"""Longest wait of the loop between two looks for idle connections."""
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
_NO_BODY = RequestHead("GET", "", 0, {})
_pieces = threading.local()


def _thread_piece() -> memoryview:
    """Return the memory of this thread for bytes of files."""
    try:
        view: memoryview = _pieces.view
    except AttributeError:
        view = memoryview(bytearray(PIECE_BYTES))
        _pieces.view = view
    return view


class BrokenExchange(OSError):
    """The other side was too slow, or left."""


class Exchange:
    """One request and its answer. Exactly one of the `send_` methods must be called."""

    __slots__ = ("_begun", "_connection", "_deadline_s", "_unread", "head", "is_answered", "is_reusable")

    def __init__(self, connection: "_Connection", head: RequestHead, begun: bytes) -> None:
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
        if self.is_answered:
            raise BrokenExchange("an exchange failed after its answer had begun")
        self.is_answered = True
        # The next request would begin with an unread body.
        if self._unread > len(self._begun):
            self.is_reusable = False
        elif self._begun:
            self._unread -= len(self._begun)
            self._begun = b""

    def _send(self, data: bytes | memoryview, flags: int = 0) -> None:
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


class RequestHandler(Protocol):
    """Answers requests, several at a time."""

    def send_page(self, exchange: Exchange, request: PageRequest) -> None:
        """Answer an authorised request for a page. Raises: BrokenExchange, BadHead, OSError."""

    def answer(self, exchange: Exchange) -> None:
        """Answer one authorised request. Raises: BrokenExchange, BadHead, OSError."""


class PeerServer:
    """Serves one folder's pages until `stop`.

    token: secret that every request must bear; None accepts all, for a listener on the loopback interface only.
    """

    def __init__(self, listener: socket.socket, handler: RequestHandler, token: str | None) -> None:
        self._listener = listener
        self._handler = handler
        self._authorization: bytes | None = None
        if token is not None:
            self._authorization = f"Bearer {token}".encode()
        self._connections: dict[int, _Connection] = {}
        self._lock = threading.Lock()
        self._epoll = select.epoll()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._is_stopping = False
        self._is_listening = True
        self.ended = threading.Event()
        """Set once `run` begins to end."""
        self._logged: set[str] = set()

    @property
    def connections(self) -> int:
        """Open connections."""
        return len(self._connections)

    def stop(self) -> None:
        """Let `run` return. Safe in a signal handler."""
        self._is_stopping = True
        os.eventfd_write(self._wake, 1)

    def run(self) -> None:
        """Serve until `stop`, then close everything."""
        self._listener.setblocking(False)
        # One event for each registration: no other thread sees a connection while one answers it.
        self._epoll.register(self._listener, select.EPOLLIN | select.EPOLLONESHOT)
        self._epoll.register(self._wake, select.EPOLLIN)
        threads: list[threading.Thread] = []
        for number in range(THREADS):
            thread = threading.Thread(target=self._serve, name=f"{THREAD_NAME}-{number}", daemon=True)
            threads.append(thread)
        for thread in threads:
            thread.start()
        try:
            while not self._is_stopping:
                self._close_idle()
                if not self._is_listening:
                    self._listen()
                # Not an event's `wait`: a signal handler that sets it could wait for its lock for ever.
                select.select([self._wake], [], [], LOOK_S)
        finally:
            self.ended.set()
            for thread in threads:
                thread.join(ANSWER_S)
            for connection in list(self._connections.values()):
                self._close(connection)
            self._listener.close()
            self._epoll.close()
            os.close(self._wake)

    def _serve(self) -> None:
        """Take one event after the other, until `stop` makes the wake-up descriptor readable for all threads."""
        while True:
            for descriptor, _ in self._epoll.poll(-1, 1):
                if self._is_stopping:
                    return
                if descriptor == self._listener.fileno():
                    self._accept()
                    continue
                connection = self._connections.get(descriptor)
                if connection is not None:
                    self._receive(connection)

    def _listen(self) -> None:
        """Watch the listener again."""
        self._is_listening = True
        self._epoll.modify(self._listener, select.EPOLLIN | select.EPOLLONESHOT)

    def _accept(self) -> None:
        while True:
            try:
                accepted, _ = self._listener.accept()
            except BlockingIOError:
                self._listen()
                return
            except ConnectionAbortedError:
                continue  # the caller left before it was accepted
            except OSError as error:
                # Too many open files: the connections that exist go on. The listener stays ready, so that watching it
                # at once would occupy a core: `run` does so after a while.
                self._log("accept", f"cannot accept a connection: {error}; raise `ulimit -n` of this server")
                self._is_listening = False
                return
            if len(self._connections) >= MOST_CONNECTIONS:
                self._log(
                    "connections", f"more than {MOST_CONNECTIONS} connections; the next ones are closed"
                )
                accepted.close()
                continue
            # The kernel enforces the timeouts: Python's own cost two more system calls for each read.
            limit = struct.pack("@ll", int(BODY_S), 0)
            try:
                accepted.setblocking(True)
                accepted.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
                accepted.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
                if accepted.family in (socket.AF_INET, socket.AF_INET6):
                    accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            except OSError:
                accepted.close()
                continue
            connection = _Connection(accepted)
            with self._lock:
                self._connections[accepted.fileno()] = connection
            self._epoll.register(accepted.fileno(), select.EPOLLIN | select.EPOLLONESHOT)

    def _receive(self, connection: "_Connection") -> None:
        """Take what has come, and answer the requests that are complete."""
        connection.is_busy = True
        try:
            data = connection.socket.recv(RECEIVE_BYTES, socket.MSG_DONTWAIT)
        except BlockingIOError:
            self._watch(connection)
            return
        except OSError:
            data = b""
        if not data:
            self._close(connection)
            return
        if not connection.begun:
            connection.since_s = time.monotonic()
        connection.begun += data
        while HEAD_END in connection.begun or len(connection.begun) > HEAD_BYTES:
            if not self._is_open_after_answer(connection):
                self._close(connection)
                return
            connection.since_s = time.monotonic()
        self._watch(connection)

    def _is_open_after_answer(self, connection: "_Connection") -> bool:
        """Answer one request; return whether the connection stays open."""
        try:
            return self._answer(connection)
        except BrokenExchange:
            return False
        except Exception as error:  # noqa: BLE001 - one request must not end the thread
            self._log(type(error).__name__, f"a request failed: {type(error).__name__}: {error}")
            return False

    def _watch(self, connection: "_Connection") -> None:
        connection.is_busy = False
        try:
            self._epoll.modify(connection.socket.fileno(), select.EPOLLIN | select.EPOLLONESHOT)
        except (OSError, ValueError):
            self._close(connection)

    def _close_idle(self) -> None:
        now_s = time.monotonic()
        for connection in list(self._connections.values()):
            limit_s = HEAD_S if connection.begun else IDLE_S
            if not connection.is_busy and now_s - connection.since_s > limit_s:
                self._close(connection)

    def _close(self, connection: "_Connection") -> None:
        with self._lock:
            descriptor = connection.socket.fileno()
            if self._connections.get(descriptor) is connection:
                del self._connections[descriptor]
            connection.socket.close()

    def _answer(self, connection: "_Connection") -> bool:
        """Answer the request that a connection has begun. Return whether the connection stays open."""
        request = parse_page_request(connection.begun)
        if request is not None:
            exchange = Exchange(connection, _NO_BODY, b"")
            connection.begun = connection.begun[request.end :]
            self._handle(exchange, request.authorization, request.page)
            return exchange.is_reusable
        data, end, begun = connection.begun.partition(HEAD_END)
        if not end or len(data) > HEAD_BYTES:
            return self._refuse(connection, 431, f"a head has at most {HEAD_BYTES} bytes")
        try:
            head = parse_head(data)
        except BadHead as error:
            return self._refuse(connection, error.status, str(error))
        body = begun[: head.nbytes]
        connection.begun = begun[head.nbytes :]
        exchange = Exchange(connection, head, body)
        authorization = head.headers.get("authorization", "")
        self._handle(exchange, authorization.encode("latin-1"), None)
        return exchange.is_reusable

    def _refuse(self, connection: "_Connection", status: int, text: str) -> bool:
        """Answer a head that cannot be understood. Return False: where the next one begins is unknown."""
        exchange = Exchange(connection, _NO_BODY, b"")
        exchange.is_reusable = False
        exchange.send_text(status, text)
        return False

    def _handle(self, exchange: Exchange, authorization: bytes, page: PageRequest | None) -> None:
        """Answer a request, for a page in the usual form or for anything. Raises: BrokenExchange."""
        if self._authorization is not None and not hmac.compare_digest(authorization, self._authorization):
            # Before the body is read: its size is the caller's word.
            exchange.send_text(401, "the token is missing or wrong: set PENSTOCK_CACHE_TOKEN to the server's")
            self._log("token", "refused a request without the right token")
            return
        try:
            if page is not None:
                self._handler.send_page(exchange, page)
            else:
                self._handler.answer(exchange)
        except BadHead as error:
            exchange.send_text(error.status, str(error))
        except BrokenExchange:
            raise
        except OSError as error:
            self._log("disk", f"a request failed: {error}")
            exchange.send_text(500, "the disk of this server failed; its log has the error")

    def _log(self, kind: str, text: str) -> None:
        if kind not in self._logged:
            self._logged.add(kind)
            logger.warning("%s (logged once)", text)


class _Connection:
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
