"""Send range requests directly to S3, signed by obstore, over `http_connection.py`.

A range through obstore takes two to three times the processor time, for copies and thread wake-ups. Only the plain case
is handled here; after any other response the caller uses obstore, so no S3 rule is implemented twice.
"""

from __future__ import annotations

import ssl
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from threading import Lock
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from ..requests import count_request
from ..spec import Runtime
from .connection import client_errors
from .http_connection import PLAIN, Broken, HttpConnection, Place
from .listing import quote_etag

if TYPE_CHECKING:
    from obstore.store import ObjectStore as Client

SIGNED_FOR = timedelta(minutes=15)
SIGNED_AGAIN_S = 450.0
"""Seconds until a URL is signed again: half of its lifetime, because clocks differ."""
SIGNED_KEYS = 4096
"""Most cached signed URLs (0.7 KiB each); beyond that, all are dropped."""
LOOKED_AT_S = 1.0
"""Idle seconds after which a connection is polled before use."""
IDLE_S = 15.0
"""Idle seconds after which a connection is dropped; servers close after 20 s."""
REFUSALS = 3
"""Consecutive rejected responses that pause direct requests for PAUSE_S."""
PAUSE_S = 60.0

_NO_KEY = b"<Code>NoSuchKey</Code>"
_YES = {"true", "1", "on", "yes", "y"}
_CREDENTIAL_STATUSES = {400, 401, 403}
_STORE_STATUSES = {408, 416, 429, 500, 502, 503, 504}
"""Statuses that obstore would get too: the request and its signature are not the reason."""


@dataclass(frozen=True, slots=True)
class Server:
    """A server that answers signed requests."""

    place: Place
    """Host, port and TLS settings."""
    fields: str
    """Request text after the object's path."""


@dataclass(frozen=True, slots=True)
class Signed:
    """A signed request without its range."""

    place: Place
    """Host, port and TLS settings."""
    text: bytes = field(repr=False)
    """Bytes of the request, up to the numbers of its range."""
    until: float
    """`time.monotonic` value, in seconds, until which the signature is used."""


class Direct:
    """Sends direct requests for one store. Thread-safe. Connections are reused."""

    def __init__(self, runtime: Runtime, *, proxies: bool) -> None:
        """proxies: False if no proxy is configured."""
        self._runtime = runtime
        self._proxies = proxies
        self._lock = Lock()
        self._idle: deque[HttpConnection] = deque()
        self._signed: dict[str, Signed] = {}
        self._tls: ssl.SSLContext | None = None
        self._servers: dict[str, Server] = {}
        self._refusals = 0  # since the last success
        self._resumes = 0.0  # time, of `time.monotonic`, until which obstore gets all requests

    @property
    def is_on(self) -> bool:
        return time.monotonic() >= self._resumes

    def request(
        self, obstore: Any, client: Client, path: str, start: int, stop: int
    ) -> HttpConnection | None:
        """Return a response with bytes [start, stop) of an object, or as many as exist; None: use obstore.

        Raises: OSError, with obstore's text (`errors.translate`).
        """
        if not self.is_on:
            return None
        signed = self._signed.get(path)
        if signed is None or signed.until < time.monotonic():
            signed = self._sign(obstore, client, path)
            if signed is None:
                self.refused()
                return None
        request = b"%s%d-%d\r\n\r\n" % (signed.text, start, stop - 1)
        try:
            connection = self._sent(signed.place, request, stop - start)
        except ssl.SSLError:
            self.refused()  # obstore has its own certificates
            return None
        if connection.status == PLAIN and connection.first == start and start + connection.nbytes <= stop:
            self._refusals = 0
            connection.etag = quote_etag(connection.etag)
            return connection
        status = connection.status
        text = connection.text
        connection.discard()  # other threads may use it from here on
        _raise_store_error(status, text)
        if self._signed.pop(path, None) is signed:  # else another thread got the same response
            if status in _CREDENTIAL_STATUSES:
                self._signed.clear()  # signed by credentials that may have expired
            self.refused()
        count_request()  # this request; the caller counted obstore's
        return None

    def close(self) -> None:
        self._signed.clear()
        with suppress(IndexError):
            while True:
                self._idle.pop().close()

    def __del__(self) -> None:
        self.close()

    def _sent(self, place: Place, request: bytes, nbytes: int) -> HttpConnection:
        """Return a connection that has sent the request: an idle one, or else a new one."""
        while (connection := self._idle_one()) is not None:
            try:
                connection.request(request, nbytes, self._keep)
            except Broken as error:
                if not error.at_once:
                    raise
                count_request(retry=True)  # closed while idle, independent of this request
            else:
                return connection
        connection = HttpConnection(place, self._runtime.connect_timeout_s, self._runtime.timeout_s)
        connection.request(request, nbytes, self._keep)
        return connection

    def _idle_one(self) -> HttpConnection | None:
        while self._idle:
            try:
                connection = self._idle.pop()
            except IndexError:
                break  # another thread took the last one
            idle_s = time.monotonic() - connection.idle_since
            if idle_s < IDLE_S and (idle_s < LOOKED_AT_S or connection.is_quiet()):
                return connection
            connection.close()
        return None

    def _keep(self, connection: HttpConnection) -> None:
        connection.idle_since = time.monotonic()
        self._idle.append(connection)
        with suppress(IndexError):  # other threads take them too
            while self._idle[0].idle_since + IDLE_S < connection.idle_since:
                self._idle.popleft().close()

    def _sign(self, obstore: Any, client: Client, path: str) -> Signed | None:
        """Return a signed request for a path, and remember it; None if obstore must read the object."""
        now = time.monotonic()
        try:
            signed = obstore.sign(client, "GET", path, SIGNED_FOR)
        except client_errors():
            return None  # obstore raises the reason when it reads the object itself
        slash = signed.find("/", signed.find("://") + 3)
        server = self._servers.get(signed[:slash]) or self._find_server(signed[:slash])
        if server is None or slash < 0:
            return None
        text = f"GET {signed[slash:]}{server.fields}Range: bytes=".encode("ascii")
        if len(self._signed) >= SIGNED_KEYS:
            self._signed.clear()
        self._signed[path] = request = Signed(server.place, text, now + SIGNED_AGAIN_S)
        return request

    def _find_server(self, origin: str) -> Server | None:
        """Return the server of scheme://host:port, and remember it; None if only obstore may connect to it."""
        address = urlsplit(origin)
        host = address.hostname
        is_tls = address.scheme == "https"
        if not is_tls and str(self._runtime.client.get("allow_http", True)).lower() not in _YES:
            return None
        if not host or (self._proxies and _is_proxied(address.scheme, address.netloc)):
            return None
        try:
            if is_tls:
                place = Place(host, address.port or 443, self._context())
            else:
                place = Place(host, address.port or 80, None)
        except ValueError:  # includes ssl.SSLError: obstore may accept the certificate
            return None
        fields = f" HTTP/1.1\r\nHost: {address.netloc}\r\nUser-Agent: penstock\r\nAccept: */*\r\n"
        self._servers[origin] = server = Server(place, fields)
        return server

    def _context(self) -> ssl.SSLContext:
        with self._lock:
            if self._tls is None:
                context = ssl.create_default_context()
                context.set_alpn_protocols(["http/1.1"])
                certificate = self._runtime.client.get("root_certificate")
                if isinstance(certificate, bytes):
                    certificate = certificate.decode()
                if certificate:
                    context.load_verify_locations(cadata=certificate)
                self._tls = context
            return self._tls

    def refused(self) -> None:
        self._refusals += 1
        if self._refusals >= REFUSALS:
            self._refusals = 0
            self._resumes = time.monotonic() + PAUSE_S


def _is_proxied(scheme: str, netloc: str) -> bool:
    from urllib.request import getproxies, proxy_bypass  # 20 ms that most training runs do not need

    proxies = getproxies()
    return bool(proxies.get(scheme) or proxies.get("all")) and not proxy_bypass(netloc)


def _raise_store_error(status: int, text: bytes) -> None:
    """Raise the error of a response that obstore would get too."""
    if status == 404 and _NO_KEY in text:
        raise FileNotFoundError(f"status code: {status} {text.decode('utf-8', 'replace')}")
    if status in _STORE_STATUSES:
        raise OSError(f"status code: {status} {text.decode('utf-8', 'replace')}")
