"""Requests to other nodes' servers: kept connections, deadlines, and peers that are left out for a while.

A fault of a peer must cost a training at most half a second, once. A peer that refuses, resets, lies about a length or
is late is therefore left out for LEFT_OUT_S seconds, doubling to LEFT_OUT_MOST_S; then one request at a time tests it.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from ...storage.cloud.http_connection import PLAIN, Broken, HttpConnection, Place
from ..addresses import split_address

logger = logging.getLogger(__name__)

CONNECT_S = 0.25
LATE_S = 0.25
"""Seconds after which an answer is late, if the peers' usual time is short."""
LATE_FACTOR = 3.0
"""An answer is late after this many times the peers' 99th percentile."""
CONGESTED_FACTOR = 3.0
"""While more than half of the peers are late, the network is busy: wait this many times as long."""
MOST_WAIT_S = 2.0
"""Longest deadline of a request, in a busy network too."""
BODY_S = 0.25
"""Seconds for the body of an answer, in addition to its bytes at SLOW_BYTES_PER_S."""
SLOW_BYTES_PER_S = 100e6
LEFT_OUT_S = 5.0
LEFT_OUT_MOST_S = 60.0
KEPT = 2
"""Connections kept to each peer."""
IDLE_S = 10.0
"""Seconds after which a kept connection is closed."""
LATENCIES = 512
"""Newest answers whose times give the 99th percentile."""
SORT_ANSWERS = 64
"""Answers after which the 99th percentile is computed anew: sorting takes longer than an answer."""
LIES = 3
"""Wrong pages within LIES_S for which a peer is left out."""
LIES_S = 3600.0


class PeerFault(OSError):
    """A peer did not answer as it should."""


@dataclass(slots=True)
class _Peer:
    """State of one peer. Guarded by the client's lock."""

    place: Place
    idle: list[HttpConnection] = field(default_factory=list)
    left_out_until_s: float = 0.0
    left_out_s: float = 0.0
    """Seconds of the last exclusion; 0 while the peer is healthy."""
    is_tested: bool = False
    """True while one request tests a peer that was left out."""
    lies_s: deque[float] = field(default_factory=lambda: deque(maxlen=LIES))


@dataclass(slots=True)
class PeerAnswer:
    """The head of an answer. If `status` is 206, the body waits in `connection`."""

    status: int
    text: str
    """Body of any other answer."""
    etag: str
    connection: HttpConnection


class PeerClient:
    """Sends requests to peers. Thread-safe.

    token: secret that the servers expect; None for servers on the loopback interface. page_bytes: the cache's.
    clock: seconds. has_warnings: True logs each peer that is left out, once.
    """

    def __init__(
        self,
        token: str | None,
        page_bytes: int,
        clock: Callable[[], float] = time.monotonic,
        *,
        has_warnings: bool = True,
    ) -> None:
        self._has_warnings = has_warnings
        self._body_s = BODY_S + page_bytes / SLOW_BYTES_PER_S
        self._authorization = ""
        if token is not None:
            self._authorization = f"Authorization: Bearer {token}\r\n"
        self._clock = clock
        self._peers: dict[str, _Peer] = {}
        self._lock = threading.Lock()
        self._latencies_s: deque[float] = deque(maxlen=LATENCIES)
        self._answers = 0
        self._late_s = LATE_S

    def is_left_out(self, address: str) -> bool:
        """Return whether requests to a peer are refused without being sent."""
        peer = self._peers.get(address)
        return peer is not None and self._clock() < peer.left_out_until_s

    def left_out(self) -> list[str]:
        """Return the addresses of the peers that are left out now."""
        addresses = sorted(self._peers)
        return [address for address in addresses if self.is_left_out(address)]

    def begin(self, address: str, method: str, path: str, headers: str = "", body: bytes = b"") -> "PeerCall":
        """Send a request, and return the call whose answer can be read. headers: lines that end with CR LF.

        Raises: PeerFault at once if the peer is left out or cannot be reached.
        """
        peer = self._admit(address)
        if body:
            headers += f"Content-Length: {len(body)}\r\n"
        head = f"{method} {path} HTTP/1.1\r\nHost: {address}\r\n{self._authorization}{headers}\r\n"
        call = PeerCall(self, address, peer, head.encode("latin-1") + body)
        call.send()
        return call

    def deadline_s(self) -> float:
        """Return the seconds that an answer may take."""
        return self._late_s

    def report_wrong_page(self, address: str) -> None:
        """Count wrong bytes from a peer, and leave it out if there were LIES within an hour."""
        with self._lock:
            peer = self._peers.get(address)
            if peer is None:
                return
            now_s = self._clock()
            peer.lies_s.append(now_s)
            is_liar = len(peer.lies_s) == LIES and now_s - peer.lies_s[0] < LIES_S
            if is_liar:
                peer.left_out_until_s = now_s + LIES_S
        if is_liar:
            logger.warning(
                "node cache: %s answered %d wrong pages within an hour and is left out for an hour; check its disk and "
                "memory",
                address,
                LIES,
            )

    def close(self) -> None:
        """Close the kept connections."""
        with self._lock:
            idle: list[HttpConnection] = []
            for peer in self._peers.values():
                idle += peer.idle
                peer.idle.clear()
        for connection in idle:
            connection.close()

    def _admit(self, address: str) -> _Peer:
        with self._lock:
            peer = self._peers.get(address)
            if peer is None:
                host, port = split_address(address)
                peer = self._peers[address] = _Peer(Place(host, port, None))
            if self._clock() < peer.left_out_until_s or peer.is_tested:
                raise PeerFault(f"{address} is left out")
            peer.is_tested = peer.left_out_s > 0
            return peer

    def connection(self, peer: _Peer) -> tuple[HttpConnection, bool]:
        """Return a connection, and whether it is a new one. Raises: Broken."""
        now_s = self._clock()
        stale = []
        with self._lock:
            chosen = None
            while peer.idle and chosen is None:
                candidate = peer.idle.pop()
                if now_s - candidate.idle_since <= IDLE_S and candidate.is_quiet():
                    chosen = candidate
                else:
                    stale.append(candidate)
        for candidate in stale:
            candidate.close()
        if chosen is not None:
            return chosen, False
        return HttpConnection(peer.place, CONNECT_S, self._body_s), True

    def keep(self, peer: _Peer, connection: HttpConnection) -> None:
        connection.idle_since = self._clock()
        with self._lock:
            if len(peer.idle) < KEPT:
                peer.idle.append(connection)
                return
        connection.close()

    def succeeded(self, peer: _Peer, seconds: float) -> None:
        with self._lock:
            peer.left_out_s = 0.0
            peer.is_tested = False
            self._latencies_s.append(seconds)
            self._answers += 1
            if self._answers % SORT_ANSWERS == 0:
                self._set_late()

    def failed(self, address: str, peer: _Peer, error: Exception) -> None:
        with self._lock:
            first = peer.left_out_s == 0
            peer.is_tested = False
            peer.left_out_s = min(LEFT_OUT_MOST_S, max(LEFT_OUT_S, 2 * peer.left_out_s))
            peer.left_out_until_s = self._clock() + peer.left_out_s
            self._set_late()
        if first and self._has_warnings:
            logger.warning(
                "node cache: %s is left out for %g s: %s; its pages come from the bucket. "
                "Check `penstock cache ls`",
                address,
                peer.left_out_s,
                error,
            )

    def _set_late(self) -> None:
        usual_s = 0.0
        if self._latencies_s:
            ordered = sorted(self._latencies_s)
            usual_s = ordered[int(0.99 * (len(ordered) - 1))]
        late_s = max(LATE_S, LATE_FACTOR * usual_s)
        n_late = sum(peer.left_out_s > 0 for peer in self._peers.values())
        if 2 * n_late > len(self._peers) > 1:
            late_s *= CONGESTED_FACTOR
        self._late_s = min(MOST_WAIT_S, late_s)


class PeerCall:
    """One request that was sent. Read its answer with `answer`, then the body, then call `done`."""

    def __init__(self, client: PeerClient, address: str, peer: _Peer, request: bytes) -> None:
        self.address = address
        self._client = client
        self._peer = peer
        self._request = request
        self._connection: HttpConnection | None = None
        self._begun_s = time.monotonic()

    def send(self) -> None:
        """Send the request. Raises: PeerFault."""
        for _ in range(2):
            is_new = True
            try:
                connection, is_new = self._client.connection(self._peer)
                self._connection = connection
                connection.send(self._request)
                return
            except OSError as error:
                # The server may have closed a kept connection a moment ago.
                if is_new:
                    raise self.fault(error) from error
        raise self.fault(OSError(0, "kept connections are closed"))

    def answer(self, nbytes: int, deadline_s: float) -> PeerAnswer:
        """Read the head of the answer. nbytes: most bytes of a body. deadline_s: of `time.monotonic`.

        Raises: PeerFault.
        """
        connection = self._connection
        assert connection is not None
        try:
            wait_s = max(0.001, deadline_s - time.monotonic())
            if not connection.has_data(wait_s):
                raise Broken(f"no answer within {time.monotonic() - self._begun_s:.2f} s")
            status = connection.read_head(nbytes, self._keep)
        except OSError as error:
            raise self.fault(error) from error
        text = ""
        if status != PLAIN:
            text = connection.text.decode("utf-8", "replace").strip()
        if status == 0:
            raise self.fault(OSError(0, "its answer is no HTTP, or is cut off"))
        return PeerAnswer(status, text, connection.etag, connection)

    def body(self, first: int, nbytes: int) -> bytes:
        """Return the body of a 206, which must be these bytes of the page. Raises: PeerFault."""
        connection = self._connection
        assert connection is not None
        if (connection.first, connection.nbytes) != (first, nbytes):
            raise self.fault(OSError(0, f"it answered bytes {connection.first} +{connection.nbytes}"))
        try:
            data = connection.all()
        except OSError as error:
            raise self.fault(error) from error
        self.done()
        return data

    def done(self) -> None:
        """Record that the whole answer was read, and keep the connection."""
        if self._connection is not None:
            self._connection.discard()
        self._client.succeeded(self._peer, time.monotonic() - self._begun_s)

    def abandon(self) -> None:
        """Close the connection without reading the answer."""
        if self._connection is not None:
            self._connection.close()

    def fault(self, error: OSError) -> PeerFault:
        """Leave the peer out, close the connection, and return the error to raise."""
        if self._connection is not None:
            with suppress(OSError):
                self._connection.close()
        self._client.failed(self.address, self._peer, error)
        return PeerFault(f"{self.address}: {error}")

    def _keep(self, connection: HttpConnection) -> None:
        self._client.keep(self._peer, connection)
