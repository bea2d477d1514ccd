"""Requests to other nodes' servers: kept connections, deadlines, and peers that are left out for a while.

The requests of a call go to a peer together on one connection, and their answers come in order.

A fault of a peer must cost a training at most half a second, once. A peer that refuses, resets, lies about a length or
is late is therefore left out until a probe, for which no reader waits, is answered in time.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple

from ...storage.cloud.http_connection import Place
from ..addresses import split_address
from ..host_names import HostNames
from .connection import KEPT, IdleConnections, PeerConnection, connect
from .heads import AnswerHead, page_answer_start, parse_answer_head, parse_ranges_head
from .health import LIES, PAUSES, Deadlines, Peer, PeerFault, Probes, system_random

logger = logging.getLogger(__name__)

CONNECT_S = 0.25
BODY_S = 0.25
"""Seconds for the body of an answer, in addition to its bytes at SLOW_BYTES_PER_S."""
SLOW_BYTES_PER_S = 100e6
"""A call's deadline moves by the time that the bytes it received take at this rate."""
ROUND = 32
"""Requests that are sent at once."""
ROUND_BYTES = 2**16
"""Bytes after which a round ends. They must fit into a socket's buffers: no thread reads answers meanwhile."""
PARTIAL = 206
"""Status of an answer that is a page's bytes."""
TEXT_BYTES = 4096
"""Longest text of an answer."""
PROBE_PATH = f"/v1/pages/{0:040x}"
"""A probe asks for a page that no node has: its server looks into its folder, in a time that does not depend on it."""
PROBED = (200, 404)
"""Statuses of the answer to a probe, whether the page is there or not."""


class PeerAnswer(NamedTuple):
    """An answer."""

    status: int
    text: str
    """The body, unless it is the page's bytes."""
    data: bytes | None = None
    """The requested bytes of the page."""


class PeerClient:
    """Sends requests to peers. Thread-safe.

    token: secret that the servers expect; None for servers on the loopback interface. page_bytes: the cache's.
    has_warnings: True logs each peer that is left out, once. late_s: no answer is late before. kept: connections
    kept to each peer. `sleep` and `rng` are for tests.
    """

    def __init__(
        self,
        token: str | None,
        page_bytes: int,
        *,
        has_warnings: bool = True,
        late_s: float = 0.0,
        kept: int = KEPT,
        sleep: Callable[[float], None] = time.sleep,
        rng: Callable[[], float] = system_random,
    ) -> None:
        self._has_warnings = has_warnings
        self._kept = kept
        self._sleep = sleep
        self._rng = rng
        self.authorization = f"Authorization: Bearer {token}\r\n" if token is not None else ""
        """Line of a request's head."""
        self._peers: dict[str, Peer] = {}
        self._lock = threading.Lock()
        self._names = HostNames()
        self._deadlines = Deadlines(late_s)
        self._send_s = self._deadlines.least_s + page_bytes / SLOW_BYTES_PER_S
        self._probes = Probes(self._probe)

    def left_out(self) -> list[str]:
        """Return the addresses of the peers to which requests are refused without being sent."""
        with self._lock:
            peers = sorted(self._peers.items())
        return [address for address, peer in peers if self._is_excluded(peer)]

    def begin(self, address: str, requests: Sequence[bytes], *, is_forced: bool = False) -> "PeerCall":
        """Send requests, and return the call whose answers can be read in order.

        is_forced: also to a peer that is left out, and whatever the outcome, it does not change that.

        Raises: PeerFault at once if the peer is left out or cannot be reached.
        """
        peer = self._peer(address)
        if not is_forced:
            self._refuse_excluded(address, peer)  # without waiting for the limiter
        token = peer.limiter.acquire()
        if not is_forced:
            try:
                self._refuse_excluded(address, peer)
            except PeerFault:
                peer.limiter.release(token, throttled=False)
                raise
        call = PeerCall(
            self,
            address,
            peer,
            token,
            requests,
            is_forced=is_forced,
        )
        call.send()
        return call

    def pause_after_fault(self) -> None:
        """Wait before the bucket is read in the place of peers: longer, the more of them are left out."""
        n_left_out = max(1, len(self.left_out()))
        pause_s = PAUSES.pause_s(n_left_out, self._rng())
        self._sleep(pause_s)

    def request(self, address: str, method: str, path: str, headers: str = "", body: bytes = b"") -> bytes:
        """Return a request for `begin`. headers: lines that end with CR LF."""
        if body:
            headers += f"Content-Length: {len(body)}\r\n"
        head = f"{method} {path} HTTP/1.1\r\nHost: {address}\r\n{self.authorization}{headers}\r\n"
        return head.encode("latin-1") + body

    def ask(
        self,
        address: str,
        method: str,
        path: str,
        *,
        headers: str = "",
        body: bytes = b"",
        wait_s: float,
    ) -> PeerAnswer:
        """Send one request, and return its answer. headers: lines that end with CR LF. Raises: PeerFault."""
        request = self.request(address, method, path, headers, body)
        call = self.begin(address, [request])
        return call.answer(time.monotonic() + wait_s)

    def deadline_s(self) -> float:
        """Return the seconds that an answer may take."""
        return self._deadlines.late_s

    def report_wrong_page(self, address: str) -> None:
        """Count wrong bytes from a peer, and leave it out if there were LIES within an hour."""
        with self._lock:
            peer = self._peers.get(address)
            if peer is None:
                return
            is_liar = peer.note_lie(time.monotonic())
        if is_liar:
            logger.warning(
                "node cache: %s answered %d wrong pages within an hour and is left out for an hour; check its disk and "
                "memory",
                address,
                LIES,
            )

    def close(self) -> None:
        """End the probes, and close the kept connections."""
        self._probes.close()
        with self._lock:
            peers = list(self._peers.values())
        for peer in peers:
            peer.idle.close()

    def _peer(self, address: str) -> Peer:
        with self._lock:
            peer = self._peers.get(address)
            if peer is None:
                host, port = split_address(address)
                peer = self._peers[address] = Peer(Place(host, port, None), IdleConnections(self._kept))
            return peer

    def _is_excluded(self, peer: Peer) -> bool:
        return peer.is_left_out or time.monotonic() < peer.liar_until_s

    def _refuse_excluded(self, address: str, peer: Peer) -> None:
        if self._is_excluded(peer):
            fault = PeerFault(f"{address} is left out")
            fault.is_unsent = True
            fault.is_known = True
            raise fault

    def idle_connection(self, peer: Peer) -> PeerConnection | None:
        """Return a kept connection, which the server may have closed meanwhile."""
        return peer.idle.take(time.monotonic())

    def new_connection(self, peer: Peer) -> PeerConnection:
        """Return a new connection. Raises: OSError."""
        least_s = self._deadlines.least_s
        connect_s = max(CONNECT_S, least_s)
        addresses = self._names.addresses(peer.place.host, connect_s)
        return connect(peer.place, addresses, connect_s, least_s, self._send_s)

    def keep(self, peer: Peer, connection: PeerConnection) -> None:
        """Keep a connection for the next call, or close it."""
        peer.idle.keep(connection, time.monotonic())

    def note_success(self, seconds: float) -> None:
        """Note that a peer answered a call whose first answer took so long."""
        with self._lock:
            is_update_due = self._deadlines.add(seconds)
            if is_update_due:
                self._update_deadline()

    def failed(self, address: str, peer: Peer, reason: str, begun_s: float) -> None:
        """Leave a peer out after a call that began at `begun_s`, of `time.monotonic`."""
        with self._lock:
            # Calls that ran at the same time have one fault, not several.
            if peer.is_left_out or begun_s < peer.back_s:
                return
            was_healthy = peer.exclude(time.monotonic())
            self._update_deadline()
        self._probes.add(address, peer.pause_s)
        if was_healthy and self._has_warnings:
            logger.warning(
                "node cache: %s is left out until it answers in time: %s; its pages come from the bucket. "
                "Check `penstock cache ls`",
                address,
                reason,
            )

    def _probe(self, address: str) -> float | None:
        """Ask a peer that is left out; return the seconds until the next probe, None if it is back."""
        peer = self._peer(address)
        is_back = False
        with suppress(PeerFault):
            request = self.request(address, "GET", PROBE_PATH)
            call = self.begin(address, [request], is_forced=True)
            deadline_s = time.monotonic() + self.deadline_s()
            answer = call.answer(deadline_s)
            is_back = answer.status in PROBED
        with self._lock:
            if not is_back:
                peer.note_silence()
                return peer.pause_s
            peer.readmit(time.monotonic())
            self._update_deadline()
        return None

    def _update_deadline(self) -> None:
        n_late = sum(peer.is_left_out for peer in self._peers.values())
        self._deadlines.update(n_late, len(self._peers))


class PeerCall:
    """Requests to one peer. Read the answers in order; after the last one the connection is kept.

    If a method raises, the connection is closed.
    """

    def __init__(
        self,
        client: PeerClient,
        address: str,
        peer: Peer,
        token: int,
        requests: Sequence[bytes],
        *,
        is_forced: bool,
    ) -> None:
        self.address = address
        self._client = client
        self._peer = peer
        self._token: int | None = token
        """Place in the peer's limiter, until the call has ended."""
        self._requests = requests
        self._is_forced = is_forced
        self._n_sent = 0
        self._n_answered = 0
        self._first_answer_s = 0.0
        self._transfer_s = 0.0
        """Seconds that the bytes of the answers take at SLOW_BYTES_PER_S."""
        self._connection: PeerConnection | None = None
        self._may_be_closed = False
        """True for a kept connection before its first answer: the server may have closed it."""
        self._begun_s = time.monotonic()

    def send(self) -> None:
        """Send the next round of requests. Raises: PeerFault."""
        if self._connection is None:
            self._connection = self._client.idle_connection(self._peer)
            self._may_be_closed = self._connection is not None
        if self._connection is None:
            self._send_anew()
            return
        try:
            self._send(self._connection)
        except OSError as error:
            if not self._may_be_closed:
                raise self.fault(error) from error
            self._send_anew()

    def answer(self, deadline_s: float, cut: tuple[int, int] | None = None) -> PeerAnswer:
        """Read the next answer. Raises: PeerFault.

        deadline_s: of `time.monotonic`. cut: [start, stop) of the page whose bytes may come; None expects a text.
        """
        head = self._next_head(deadline_s)
        is_page = cut is not None and head.startswith(page_answer_start(*cut))
        if cut is not None and is_page:
            nbytes = cut[1] - cut[0]
            status = PARTIAL
        else:
            parsed = self._parse(head, cut)
            nbytes = parsed.nbytes
            status = parsed.status
        body = self._read_body(nbytes, deadline_s)
        if status == PARTIAL:
            return PeerAnswer(status, "", body)
        return PeerAnswer(status, body.decode("utf-8", "replace").strip())

    def begin_ranges(self, deadline_s: float, sizes: Sequence[int]) -> int:
        """Begin to read the next answer, to a list of ranges of these sizes; bit i is set if range i follows.

        Read the ranges with `read_piece`, then call `end_answer`. Raises: PeerFault.
        """
        head = self._next_head(deadline_s)
        parsed = parse_ranges_head(head, sizes)
        if parsed is None:
            other = self._parse(head, None)
            text = self._read_body(other.nbytes, deadline_s)[:200].decode("utf-8", "replace").strip()
            raise self.fault(OSError(0, f"it answered {other.status} to a list of ranges: {text}"))
        return parsed.present

    def read_piece(self, nbytes: int, deadline_s: float) -> bytes:
        """Return the next bytes of an answer's body. Raises: PeerFault."""
        assert self._connection is not None
        self._transfer_s += nbytes / SLOW_BYTES_PER_S
        try:
            return self._connection.read_body(nbytes, deadline_s + BODY_S + self._transfer_s)
        except OSError as error:
            raise self.fault(error) from error

    def end_answer(self) -> None:
        """Note that an answer's body is read, and end the call after the last one."""
        self._n_answered += 1
        if self._n_answered == len(self._requests):
            self._end()

    def _next_head(self, deadline_s: float) -> bytes:
        """Return the head of the next answer, after the next round of requests if need be. Raises: PeerFault."""
        if self._n_answered == self._n_sent:
            self.send()
        return self._read_head(deadline_s + self._transfer_s)

    def _read_body(self, nbytes: int, deadline_s: float) -> bytes:
        """Return the whole body of an answer. Raises: PeerFault."""
        body = self.read_piece(nbytes, deadline_s)
        self.end_answer()
        return body

    def close(self) -> None:
        """End the call. Answers that were not read are lost."""
        self._disconnect()
        self._leave(is_fault=False)

    def fault(self, error: OSError) -> PeerFault:
        """Leave the peer out, close the connection, and return the error to raise."""
        self._disconnect()
        self._leave(is_fault=True)
        text = str(error.strerror or error)
        if isinstance(error, TimeoutError):
            text = f"no answer within {time.monotonic() - self._begun_s:.2f} s"
        if not self._is_forced:
            self._client.failed(self.address, self._peer, text, self._begun_s)
        fault = PeerFault(f"{self.address}: {text}")
        fault.is_unsent = not self._n_sent
        return fault

    def _send(self, connection: PeerConnection) -> None:
        requests: list[bytes] = []
        nbytes = 0
        for request in self._requests[self._n_answered : self._n_answered + ROUND]:
            requests.append(request)
            nbytes += len(request)
            if nbytes > ROUND_BYTES:
                break
        self._n_sent = self._n_answered + len(requests)
        connection.send(b"".join(requests))

    def _send_anew(self) -> None:
        """Send the round over a new connection. Raises: PeerFault."""
        self._disconnect()
        self._may_be_closed = False
        try:
            self._connection = self._client.new_connection(self._peer)
            self._send(self._connection)
        except OSError as error:
            raise self.fault(error) from error

    def _read_head(self, deadline_s: float) -> bytes:
        assert self._connection is not None
        try:
            head = self._connection.read_head(deadline_s)
        except ConnectionError as error:
            if not self._may_be_closed:
                raise self.fault(error) from error
            self._send_anew()
            return self._read_head(deadline_s)
        except OSError as error:
            raise self.fault(error) from error
        self._may_be_closed = False
        if not self._n_answered:
            self._first_answer_s = time.monotonic() - self._begun_s
        return head

    def _parse(self, head: bytes, cut: tuple[int, int] | None) -> AnswerHead:
        """Parse a head that is not the usual one. Raises: PeerFault."""
        parsed = parse_answer_head(head)
        if parsed is None:
            raise self.fault(OSError(0, "its answer is not HTTP"))
        if parsed.status != PARTIAL:
            if parsed.nbytes > TEXT_BYTES:
                raise self.fault(OSError(0, f"its answer has a text of {parsed.nbytes} bytes"))
            return parsed
        if cut is None or parsed.cut != cut or parsed.nbytes != cut[1] - cut[0]:
            raise self.fault(
                OSError(0, f"it answered bytes {parsed.cut}, {parsed.nbytes} of them, not {cut}")
            )
        return parsed

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _leave(self, *, is_fault: bool) -> None:
        """Let another call to the peer begin."""
        if self._token is not None:
            self._peer.limiter.release(self._token, throttled=is_fault)
            self._token = None

    def _end(self) -> None:
        """Keep the connection, and note that the peer is healthy."""
        if self._connection is not None:
            self._client.keep(self._peer, self._connection)
            self._connection = None
        self._leave(is_fault=False)
        if not self._is_forced:
            self._client.note_success(self._first_answer_s)
