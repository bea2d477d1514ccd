"""A minimal HTTP/1.1 connection for ranges of S3 objects.

The body goes from the socket into the caller's memory with one copy and one system call per range, without the
interpreter's lock. After any other response the caller uses obstore.
"""

from __future__ import annotations

import re
import select
import socket
import ssl
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from errno import ECONNRESET
from io import BytesIO
from typing import NamedTuple

HEAD_BYTES = 16 * 2**10
"""Longest response head that is parsed, in bytes."""
SMALL_BYTES = 2**17
"""Largest body read together with its head and copied out, which is faster than allocating memory."""
PLAIN = 206

_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*(\d{1,18})[ \t]*\r", re.IGNORECASE)
_RANGE = re.compile(rb"\r\ncontent-range:[ \t]*bytes (\d{1,18})-(\d{1,18})/(\d{1,18})[ \t]*\r", re.IGNORECASE)
_ETAG = re.compile(rb"\r\netag:([^\r]*)\r", re.IGNORECASE)
_CLOSES = re.compile(rb"\r\nconnection:[ \t]*close[ \t]*\r", re.IGNORECASE)
_CODED = re.compile(rb"\r\ntransfer-encoding:", re.IGNORECASE)
_LAST_CHUNK = b"\r\n0\r\n\r\n"
_BODILESS = {204, 304}
_QUICKACK = getattr(socket, "TCP_QUICKACK", None)
"""Linux only: acknowledge immediately."""
_BEGINNING = 1024
"""Bytes of a large response that are peeked at to find its head."""


class Broken(OSError):
    """The connection ended or timed out. at_once: before any byte arrived."""

    def __init__(self, why: str, *, at_once: bool = False) -> None:
        super().__init__(f"HTTP error: {why}")  # obstore's wording, which `errors.translate` expects
        self.at_once = at_once


class Place(NamedTuple):
    """A server to connect to."""

    host: str
    """Host name or address."""
    port: int
    tls: ssl.SSLContext | None
    """TLS settings, or None."""


Keep = Callable[["HttpConnection"], object]


class HttpConnection:
    """A connection and its current response (`stream.Answer`), for one thread at a time.

    `status` belongs to the last response. If it is PLAIN, `first` and `nbytes` locate the body in the object, and
    `size` and `etag` are the object's. Otherwise `text` is the body, up to a limit.
    """

    __slots__ = (
        *("status", "first", "nbytes", "size", "etag", "text", "idle_since"),
        *("_socket", "_timeout_s", "_flags", "_quickack", "_keep", "_lasts"),
        *("_memory", "_view", "_at", "_stop", "_remaining"),
    )

    def __init__(self, place: Place, connect_timeout_s: float, timeout_s: float) -> None:
        """timeout_s: longest wait for data from the server. Raises: ssl.SSLError; Broken."""
        self._timeout_s = timeout_s
        self._keep: Keep | None = None  # set only during a request, to avoid a reference cycle
        self._memory = bytearray(SMALL_BYTES + HEAD_BYTES)
        self._view = memoryview(self._memory)
        self._at = 0  # [_at, _stop): range in memory of body bytes that came with the head and are unread
        self._stop = 0
        self._remaining = 0  # unread bytes of the body, those in memory included
        self._lasts = True  # False if the server or an error ends the connection
        self.status = 0
        self.etag = ""
        self.text = b""
        self.idle_since = 0.0
        self._socket, self._flags = _connect(place, connect_timeout_s, timeout_s)
        self._quickack = _QUICKACK if _acknowledges(self._socket) else None

    def request(self, request: bytes, nbytes: int, keep: Keep) -> int:
        """Send a GET, read the response head, and return the status. Raises: Broken.

        nbytes: most bytes that the body may have. keep: called with the connection once it is reusable.
        """
        self.send(request)
        return self.read_head(nbytes, keep)

    def send(self, request: bytes | memoryview) -> None:
        """Send a request whose response `read_head` reads. Raises: Broken."""
        try:
            self._socket.sendall(request)
        except OSError as error:
            raise self._timeout_error(error, at_once=True) from None
        except BaseException:
            self.close()
            raise

    def read_head(self, nbytes: int, keep: Keep) -> int:
        """Read the response head of the request sent, and return the status, like `request`. Raises: Broken."""
        self._keep = keep
        until = time.monotonic() + self._timeout_s
        n_received = 0  # bytes in memory
        head_end = -1  # where the empty line after the head begins; -1 until it is there
        most = _BEGINNING
        if nbytes <= SMALL_BYTES:
            most = len(self._memory)
        try:
            if self._quickack is not None:
                self._socket.setsockopt(socket.IPPROTO_TCP, self._quickack, 1)
            while head_end < 0 and n_received < HEAD_BYTES:
                peek = 0
                if self._flags and not n_received and most == _BEGINNING:
                    peek = socket.MSG_PEEK
                count = self._socket.recv_into(self._view[n_received:most], most - n_received, peek)
                if not count:
                    raise ConnectionResetError(ECONNRESET, "closed by the server")
                if n_received and time.monotonic() > until:
                    raise TimeoutError
                begin = max(0, n_received - 3)  # three of the four bytes may have come before
                n_received += count
                head_end = self._memory.find(b"\r\n\r\n", begin, n_received)
                most = max(most, HEAD_BYTES)
                if peek:  # read only the head, so that the whole body goes into separate memory
                    n_peeked = n_received
                    if head_end >= 0:
                        n_peeked = head_end + 4
                    n_received = self._socket.recv_into(self._view[:n_peeked])
        except OSError as error:
            raise self._timeout_error(error, at_once=not n_received) from None
        except BaseException:
            self.close()
            raise
        return self._understand(head_end, n_received, until)

    def all(self) -> bytes:
        end = self._at + self._remaining  # of the memory
        if end > len(self._memory):
            return self._large()
        n_received = self._stop
        until = time.monotonic() + self._timeout_s
        with self:
            self._remaining = end - n_received
            while n_received < end:
                n_received += self._receive(self._view[n_received:end])
                if n_received < end and time.monotonic() > until:
                    raise TimeoutError
        data = bytes(self._view[self._at : end])
        self._end()
        return data

    def _large(self) -> bytes:
        nbytes = self._remaining
        begun = b""
        if self._flags and self._at == self._stop:  # TLS has no flags
            # The kernel fills new memory; zeroing it first would hold the interpreter's lock.
            with self:
                begun = self._socket.recv(nbytes, self._flags)
                if not begun:
                    raise ConnectionResetError(ECONNRESET, "closed in the middle of an answer")
                self._remaining -= len(begun)
            if not self._remaining:
                self._end()
                return begun
        memory = BytesIO(begun)  # returns its memory as bytes without a copy
        memory.seek(nbytes - 1)
        memory.write(b"\0")
        with memory.getbuffer() as view:
            for _ in self.into(view[len(begun) :]):
                pass
        return memory.getvalue()

    def into(self, view: memoryview) -> Iterator[int]:
        """Fill `view` with the body's next bytes; yield the size of each read. Body or view may end first.

        Raises: Broken.
        """
        view = view[: self._remaining]
        with self:
            count = min(self._stop - self._at, len(view))
            if count:
                view[:count] = self._view[self._at : self._at + count]
                self._at += count
                self._remaining -= count
                view = view[count:]
                yield count
            until = time.monotonic() + self._timeout_s
            while view:
                count = self._receive(view)
                view = view[count:]
                yield count
                if view and time.monotonic() > until:
                    raise TimeoutError
        self._end()

    @property
    def remaining(self) -> int:
        return self._remaining

    def is_quiet(self) -> bool:
        return not self.has_data(0.0)

    def has_data(self, wait_s: float) -> bool:
        """Return whether the server sends data, or closes the connection, within `wait_s` seconds."""
        poller = select.poll()
        poller.register(self._socket, select.POLLIN)
        return bool(poller.poll(1000.0 * wait_s))

    def __enter__(self) -> None:
        """Start reading a body. An error inside the block closes the connection."""

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, OSError):
            raise self._timeout_error(error) from None
        if error is not None:
            self.close()

    def discard(self) -> None:
        if not self._remaining:
            self._end()
        else:
            self.close()

    def close(self) -> None:
        self._lasts = False
        self._socket.close()

    def __del__(self) -> None:
        if hasattr(self, "_socket"):
            self._socket.close()

    def _understand(self, head_end: int, n_received: int, until: float) -> int:
        """Parse the head in memory, and return the status; 0 for a response that obstore should get instead."""
        head = b""
        if head_end >= 0:
            head = bytes(self._view[: head_end + 2])  # the patterns need each line's end
        self._lasts = False
        self._at = 0
        self._stop = 0
        self._remaining = 0
        self.status = 0
        self.etag = ""
        self.text = b""
        if not head.startswith((b"HTTP/1.1 ", b"HTTP/1.0 ")) or not head[9:12].isdigit():
            return self.status
        self.status = int(head[9:12])
        # "in" is much faster than a case-insensitive pattern, and nearly always false.
        lasts = head[7:8] == b"1" and not (b"lose" in head and _CLOSES.search(head))
        length = _LENGTH.search(head)
        span = _RANGE.search(head)
        etag = _ETAG.search(head)
        is_coded = b"oding:" in head and _CODED.search(head)
        body_at = head_end + 4
        if self.status != PLAIN or is_coded or not (length and span and etag):
            is_bodiless = self.status < 200 or self.status in _BODILESS
            text_nbytes: int | None = None
            if is_bodiless:
                text_nbytes = 0
            elif length and not is_coded:
                text_nbytes = int(length[1])
            if self.status == PLAIN:
                self.status = 0
            self.etag = _match_text(etag)
            is_whole = self._read_text(body_at, n_received, text_nbytes, until)
            self._lasts = is_whole and lasts and not is_bodiless
            return self.status
        first, last, size = span.groups()
        self.first = int(first)
        self.nbytes = int(length[1])
        self.size = int(size)
        self.etag = _match_text(etag)
        if self.nbytes > int(last) + 1 - self.first or n_received - body_at > self.nbytes:
            raise self._timeout_error(OSError(0, "more bytes come than were asked for"))
        self._at = body_at
        self._stop = n_received
        self._remaining = self.nbytes
        self._lasts = lasts
        return PLAIN

    def _read_text(self, begin: int, n_received: int, nbytes: int | None, until: float) -> bool:
        """Read a body into `text`, up to a limit. Return whether it is whole."""
        # nbytes: None if an empty chunk ends it.
        end = HEAD_BYTES
        if nbytes is not None:
            end = min(begin + nbytes, HEAD_BYTES)

        def has_last_chunk() -> bool:
            # Start at the head's last line end: the only chunk may be the final one.
            return nbytes is None and self._memory.endswith(_LAST_CHUNK, begin - 2, n_received)

        with suppress(OSError):
            while n_received < end and not has_last_chunk():
                count = self._socket.recv_into(self._view[n_received:end])
                if not count or time.monotonic() > until:
                    break
                n_received += count
        self.text = bytes(self._view[begin:n_received])
        if nbytes is None:
            return has_last_chunk()
        return len(self.text) == nbytes

    def _receive(self, view: memoryview) -> int:
        count = self._socket.recv_into(view, len(view), self._flags)
        if not count:
            raise ConnectionResetError(ECONNRESET, "closed in the middle of an answer")
        self._remaining -= count
        return count

    def _end(self) -> None:
        if self._remaining or self._keep is None:
            return  # or another thread already uses it
        keep = self._keep
        self._keep = None
        if self._lasts:
            keep(self)
        else:
            self.close()

    def _timeout_error(self, error: OSError, *, at_once: bool = False) -> Broken:
        self.close()
        # The kernel reports a socket timeout as EAGAIN.
        if isinstance(error, (BlockingIOError, TimeoutError)):
            return Broken(f"it took longer than {self._timeout_s:g} s")
        return Broken(f"the connection broke: {error.strerror or type(error).__name__}", at_once=at_once)


def _acknowledges(sock: socket.socket) -> bool:
    """Return whether the socket supports immediate ACKs: not every kernel that identifies as Linux does."""
    if _QUICKACK is None:
        return False
    with suppress(OSError):
        sock.setsockopt(socket.IPPROTO_TCP, _QUICKACK, 1)
        return True
    return False


def _match_text(match: re.Match[bytes] | None) -> str:
    return match[1].strip().decode("latin-1") if match else ""


def _connect(place: Place, connect_timeout_s: float, timeout_s: float) -> tuple[socket.socket, int]:
    """Return (connected socket, flags for its `recv`). Raises: Broken; ssl.SSLError."""
    try:
        sock = dial(place, connect_timeout_s)
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.settimeout(connect_timeout_s)
            if place.tls is not None:
                sock = place.tls.wrap_socket(sock, server_hostname=place.host)
                sock.settimeout(timeout_s)
                return sock, 0
            # The kernel enforces the timeout: Python's own costs two more system calls per read.
            sock.settimeout(None)
            limit = struct.pack("@ll", int(timeout_s), max(1, int(timeout_s % 1 * 1e6)))
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
            return sock, socket.MSG_WAITALL
        except BaseException:
            sock.close()
            raise
    except ssl.SSLError:  # an OSError too; obstore may accept the certificate
        raise
    except OSError as error:
        raise Broken(f"no connection: {error.strerror or type(error).__name__}") from None


_answered: dict[str, int] = {}
"""Host -> address family that last responded, which is tried first."""


def dial(place: Place, timeout_s: float) -> socket.socket:
    """Return a socket connected to one of two host addresses, of different families if possible.

    They share the timeout. Raises: OSError.
    """
    addresses = socket.getaddrinfo(place.host, place.port, type=socket.SOCK_STREAM)
    first = _answered.get(place.host, addresses[0][0])
    addresses.sort(key=lambda info: info[0] != first)
    tried = addresses[:2]
    for info in addresses:
        if info[0] != addresses[0][0]:
            tried = [addresses[0], info]
            break
    until = time.monotonic() + timeout_s
    why = ""
    for number, (family, kind, protocol, _, address) in enumerate(tried):
        try:
            sock = socket.socket(family, kind, protocol)
            try:
                share_s = (until - time.monotonic()) / (len(tried) - number)
                sock.settimeout(max(0.01, share_s))
                sock.connect(address)
            except BaseException:
                sock.close()
                raise
        except OSError as error:
            why = why or error.strerror or type(error).__name__
        else:
            _answered[place.host] = family
            return sock
    raise OSError(0, why)
