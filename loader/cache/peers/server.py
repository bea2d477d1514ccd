"""The server of a node's pages: a few threads wait for heads and answer.

A cluster of 64 nodes with 8 ranks and 4 workers each has 2,000 connections to every server, and nearly all are idle.
A thread for each would take 2,000 stacks, so THREADS threads wait on one `epoll`. It gives each event to one of them.
A thread takes what has come without waiting; once a head is complete, it answers with blocking calls. Handing heads
from a loop to other threads took twice the processor time. Memory: a head's bytes for each connection, a body's piece
for each thread.
"""

import hmac
import logging
import os
import select
import socket
import struct
import threading
import time
from typing import Protocol

from .exchange import ANSWER_S, BODY_S, BrokenExchange, Exchange, ReaderConnection
from .heads import (
    HEAD_BYTES,
    HEAD_END,
    BadHead,
    PageRequest,
    RequestHead,
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
IDLE_S = 30.0
"""Seconds without a request after which a connection is closed. Readers close theirs after a third of it."""
RECEIVE_BYTES = 2**14
"""Bytes of requests that are received at once: a reader sends all questions of a call together."""
LOOK_S = 0.5
"""Longest wait of the loop between two looks for idle connections."""
_NO_BODY = RequestHead("GET", "", 0, {})


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
        self._connections: dict[int, ReaderConnection] = {}
        self._lock = threading.Lock()
        self._epoll = select.epoll()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._is_stopping = False
        self._is_listening = True
        self.ended = threading.Event()
        """Set once `run` begins to end."""
        self._logged: set[str] = set()  # kinds of warnings, each logged once

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
        """Take the new connections that wait, and watch each for its requests."""
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
            connection = ReaderConnection(accepted)
            with self._lock:
                self._connections[accepted.fileno()] = connection
            self._epoll.register(accepted.fileno(), select.EPOLLIN | select.EPOLLONESHOT)

    def _receive(self, connection: ReaderConnection) -> None:
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
        # A head that is too long is answered too: with a refusal.
        while HEAD_END in connection.begun or len(connection.begun) > HEAD_BYTES:
            is_open = self._answer_one(connection)
            if not is_open:
                self._close(connection)
                return
            connection.since_s = time.monotonic()
        self._watch(connection)

    def _answer_one(self, connection: ReaderConnection) -> bool:
        """Answer one request; return whether the connection stays open. An error closes it."""
        try:
            return self._answer(connection)
        except BrokenExchange:
            return False
        except Exception as error:  # noqa: BLE001 - one request must not end the thread
            self._log(type(error).__name__, f"a request failed: {type(error).__name__}: {error}")
            return False

    def _watch(self, connection: ReaderConnection) -> None:
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

    def _close(self, connection: ReaderConnection) -> None:
        with self._lock:
            descriptor = connection.socket.fileno()
            if self._connections.get(descriptor) is connection:
                del self._connections[descriptor]
            connection.socket.close()

    def _answer(self, connection: ReaderConnection) -> bool:
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

    def _refuse(self, connection: ReaderConnection, status: int, text: str) -> bool:
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
