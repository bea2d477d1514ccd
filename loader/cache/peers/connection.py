"""A connection to a peer's server: requests are sent together, and their answers come in order.

The body of an answer goes from the socket into its own memory, with one system call and without the interpreter's
lock. The kernel enforces the usual deadline: polling first would cost another system call for each answer.
"""

import select
import socket
import struct
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from errno import ECONNRESET

from ...storage.cloud.http_connection import Place, dial
from .heads import ANSWER_HEAD_BYTES, HEAD_BYTES, HEAD_END

ADDRESSES = 2
"""Addresses of a host that are tried: it may have one of each family, and one of them may lead nowhere."""
KEPT = 2
"""Connections kept to each peer."""
IDLE_S = 10.0
"""Seconds after which a kept connection is closed."""
KEPT_MOST = 4
"""Connections kept to each peer of a small cluster: as many as are in flight (`health.IN_FLIGHT`)."""
_SERVER_CONNECTIONS = 4096
_NODE_PROCESSES = 32
"""Processes of a node that connect to a server: 8 ranks with 4 workers each."""
_REMAINDER = 0.9
"""Least part of the kernel's wait until a deadline for which the kernel enforces it."""


class PeerConnection:
    """A connection, for one thread at a time. Its methods raise OSError, after which it cannot be used.

    wait_s: longest wait of one receipt, about the usual deadline. send_s: longest time without progress of a request.
    """

    __slots__ = ("_begun", "_socket", "_wait_s", "idle_since_s")

    def __init__(self, place: Place, connect_s: float, wait_s: float, send_s: float) -> None:
        self._wait_s = wait_s
        self._begun = b""
        """Bytes that came with the last head and belong to what follows."""
        self.idle_since_s = 0.0
        self._socket = dial(place, connect_s)
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._socket.settimeout(None)
            receive_limit = _timeval(wait_s)
            send_limit = _timeval(send_s)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, receive_limit)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, send_limit)
        except BaseException:
            self._socket.close()
            raise

    @property
    def has_unread(self) -> bool:
        """True if the peer sent more than was asked for."""
        return bool(self._begun)

    def send(self, data: bytes) -> None:
        """Send requests."""
        self._socket.sendall(data)

    def read_head(self, deadline_s: float) -> bytes:
        """Return the next answer's head, with its empty line. deadline_s: of `time.monotonic`."""
        data = self._begun or self._receive(ANSWER_HEAD_BYTES, 0, deadline_s)
        end = data.find(HEAD_END)
        while end < 0:
            if len(data) > HEAD_BYTES:
                raise OSError(0, f"its answer has a head of more than {HEAD_BYTES} bytes, or is not HTTP")
            data += self._receive(ANSWER_HEAD_BYTES, 0, deadline_s)
            end = data.find(HEAD_END)
        end += len(HEAD_END)
        self._begun = data[end:]
        return data[:end]

    def read_body(self, nbytes: int, deadline_s: float) -> bytes:
        """Return the bytes that follow a head."""
        if not nbytes:
            return b""
        if not self._begun:
            data = self._receive(nbytes, socket.MSG_WAITALL, deadline_s)
            if len(data) == nbytes:
                return data
        else:
            data = self._begun[:nbytes]
            self._begun = self._begun[nbytes:]
        pieces = [data]
        missing = nbytes - len(data)
        while missing:
            piece = self._receive(missing, socket.MSG_WAITALL, deadline_s)
            pieces.append(piece)
            missing -= len(piece)
        return b"".join(pieces)

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def _receive(self, nbytes: int, flags: int, deadline_s: float) -> bytes:
        """Return the next bytes, at least one. nbytes: most. Raises: TimeoutError at the deadline; OSError."""
        wait_s = deadline_s - time.monotonic()
        # The kernel waits `_wait_s` whatever is left until the deadline. A much nearer deadline needs a poll.
        if wait_s < _REMAINDER * self._wait_s and not self._has_data(wait_s):
            raise TimeoutError
        while True:
            try:
                data = self._socket.recv(nbytes, flags)
            except BlockingIOError:  # the kernel's name for its timeout
                if time.monotonic() >= deadline_s:
                    raise TimeoutError from None
                continue  # the deadline is later than the kernel's wait
            if not data:
                raise ConnectionResetError(ECONNRESET, "the peer closed the connection")
            return data

    def _has_data(self, wait_s: float) -> bool:
        """Wait for bytes, or for the peer's end; return whether there are any before `wait_s` have passed."""
        wait_ms = 1000.0 * max(0.0, wait_s)
        poller = select.poll()
        poller.register(self._socket, select.POLLIN)
        events = poller.poll(wait_ms)
        return bool(events)


def connect(
    place: Place,
    addresses: Sequence[str],
    connect_s: float,
    wait_s: float,
    send_s: float,
) -> PeerConnection:
    """Return a connection to one of a host's addresses. connect_s: for all together. Raises: OSError."""
    until_s = time.monotonic() + connect_s
    *others, last = addresses[:ADDRESSES]
    for host in others:
        remaining_s = until_s - time.monotonic()
        with suppress(OSError):
            return PeerConnection(place._replace(host=host), remaining_s / ADDRESSES, wait_s, send_s)
    remaining_s = max(0.01, until_s - time.monotonic())
    return PeerConnection(place._replace(host=last), remaining_s, wait_s, send_s)


def idle_connections(nodes: int) -> int:
    """Return the connections that a process keeps to each peer. All processes' together must fit a server.

    With 2 of them 2,100 questions of an epoch opened 200 connections, with 4 they open 26.
    """
    fitting = _SERVER_CONNECTIONS // (_NODE_PROCESSES * nodes)
    return min(KEPT_MOST, max(KEPT, fitting))


class IdleConnections:
    """Connections that wait for the next call, `most` of them. Thread-safe."""

    def __init__(self, most: int = KEPT) -> None:
        self._most = most
        self._connections: list[PeerConnection] = []
        self._is_closed = False
        self._lock = threading.Lock()

    def take(self, now_s: float) -> PeerConnection | None:
        """Return the connection that was kept last, which the server may have closed; None without one."""
        oldest_s = now_s - IDLE_S
        with self._lock:
            if not self._connections:
                return None
            connection = self._connections.pop()
        if connection.idle_since_s >= oldest_s:
            return connection
        connection.close()
        self._close_idle()  # the others are older
        return None

    def keep(self, connection: PeerConnection, now_s: float) -> None:
        """Keep a connection for the next call, or close it."""
        connection.idle_since_s = now_s
        if not connection.has_unread:
            with self._lock:
                if len(self._connections) < self._most and not self._is_closed:
                    self._connections.append(connection)
                    return
        connection.close()

    def close(self) -> None:
        """Close all connections. A running call closes its own at its end."""
        self._is_closed = True
        self._close_idle()

    def _close_idle(self) -> None:
        with self._lock:
            connections = self._connections
            self._connections = []
        for connection in connections:
            connection.close()


def _timeval(seconds: float) -> bytes:
    """Return a time limit as the kernel's `struct timeval`."""
    whole_s = int(seconds)
    microseconds = int(1e6 * (seconds - whole_s))
    return struct.pack("@ll", whole_s, max(1, microseconds))  # the kernel takes zeros for no limit
