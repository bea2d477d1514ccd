"""An HTTP/1.1 server in this process that answers as an origin says, or misbehaves as it is told.

An origin is a function of a `Request` that gives (status, body, headers): a store of the tests' own (`s3.py`,
`gcs.py`), or `forward_origin`, a real server behind this one. Faults are told per request, in the order of their
arrival.

    int             that status, and nothing done
    "drop"          no answer, nothing done
    "commit-drop"   done, no answer
    "commit-stall"  done, then silence until the client gives up
    "reset"         done, and RST in the middle of the body
    "cut"           done, half a body, then the connection closes
    "no-http"       done, and the answer's first line is not HTTP
    "stall"         done, half a body, then silence until the client gives up
    "flip"          one byte of the body is wrong
    "short"         fewer bytes than Content-Range says
    "etag"          another ETag than the object's
    anything else   no fault
"""

import http.client
import socket
import ssl
import struct
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import parse_qs, unquote, urlsplit

_CODES = {503: "SlowDown", 429: "TooManyRequests"}
_OF_ONE_HOP = {"connection", "keep-alive", "transfer-encoding", "content-length", "expect", "te", "upgrade"}


@dataclass(frozen=True, slots=True)
class Request:
    """Header names in small letters; target: as it was sent, percent-encoded."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes

    @property
    def path(self) -> str:
        """Percent-decoded."""
        return unquote(urlsplit(self.target).path)

    @property
    def query(self) -> dict[str, str]:
        return {name: values[0] for name, values in parse_qs(urlsplit(self.target).query, True).items()}


Answer = tuple[int, bytes, dict[str, str]]
Origin = Callable[[Request], Answer]


class HttpServer:
    """Threads over sockets, one per connection. `requests` and `headers` record what arrived."""

    def __init__(self, origin: Origin, tls: ssl.SSLContext | None = None, port: int = 0) -> None:
        """tls: what it proves itself by; None for plain http. port: 0 for any."""
        self.origin, self._tls = origin, tls
        self.faults: deque[int | str | None] = deque()
        self.fault_of: Callable[[Request], int | str | None] = lambda _: (
            self.faults.popleft() if self.faults else None
        )
        self.requests: list[str] = []
        self.headers: list[dict[str, str]] = []
        self._lock, self._closing = threading.Lock(), threading.Event()
        self._listener = socket.create_server(("127.0.0.1", port), backlog=256)
        self.port = self._listener.getsockname()[1]
        self.endpoint = f"{'http' if tls is None else 'https'}://127.0.0.1:{self.port}"
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def close(self) -> None:
        self._closing.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join()

    def _accept(self) -> None:
        while not self._closing.is_set():
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._serve, args=(connection,))
            self._threads.append(thread)
            thread.start()

    def _serve(self, connection: socket.socket) -> None:
        connection.settimeout(10.0)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._tls is not None:
            try:
                connection = self._tls.wrap_socket(connection, server_side=True)
            except OSError:  # the client does not trust it
                connection.close()
                return
        connection.settimeout(0.05)
        with connection:
            try:
                while (request := self._read(connection)) and self._respond(connection, request):
                    pass
            except OSError:
                return

    def _read(self, connection: socket.socket) -> Request | None:
        data = bytearray()
        while (end := data.find(b"\r\n\r\n")) < 0:
            piece = self._receive(connection)
            if not piece:
                return None
            data += piece
        first, *lines = data[:end].decode("latin-1").split("\r\n")
        method, target, _ = first.split()
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        if "100-continue" in headers.get("expect", "").lower():
            connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        body = data[end + 4 :]
        while len(body) < int(headers.get("content-length", 0)):
            piece = self._receive(connection)
            if not piece:
                return None
            body += piece
        return Request(method, target, headers, bytes(body))

    def _receive(self, connection: socket.socket) -> bytes:
        while not self._closing.is_set():
            try:
                return connection.recv(2**18)
            except TimeoutError:
                continue
            except OSError:
                return b""
        return b""

    def _respond(self, connection: socket.socket, request: Request) -> bool:
        """Whether the connection stays open."""
        with self._lock:
            self.requests.append(f"{request.method} {request.target}")
            self.headers.append(request.headers)
            fault = self.fault_of(request)
        if fault == "drop":
            return False
        if isinstance(fault, int):
            code = _CODES.get(fault, "Told")
            status, body, said = fault, f"<Error><Code>{code}</Code></Error>".encode(), {"etag": '"e"'}
        else:
            status, body, said = self.origin(request)
        if fault == "commit-drop":
            return False
        if fault == "commit-stall":
            self._receive(connection)
            return False
        if fault == "flip" and body:
            body = bytes([body[0] ^ 1]) + body[1:]
        if fault == "short":
            body = body[:-1]
        headers = {"content-length": str(len(body)), **said}
        if fault == "etag":
            headers["etag"] = '"another"'
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        head = f"HTTP/1.1 {status} X\r\n{lines}\r\n"
        sent = b"" if request.method == "HEAD" else body
        if fault == "no-http":
            head = f"SSH-2.0-OpenSSH\r\n{head}"
        if fault in ("reset", "stall", "cut", "no-http"):
            connection.settimeout(30.0)
            connection.sendall(head.encode("latin-1") + sent[: len(sent) // 2])
            connection.settimeout(0.05)
            if fault in ("cut", "no-http"):
                return False
            if fault == "stall":
                self._receive(connection)  # until the client gives up
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            return False
        connection.settimeout(30.0)  # a client that is slow to take it is not a fault
        connection.sendall(head.encode("latin-1") + sent)
        connection.settimeout(0.05)
        return True


def forward_origin(endpoint: str) -> Origin:
    """The server at `endpoint`, seen through this one. The Host stays the client's: signatures name it."""
    place = urlsplit(endpoint)

    def forward(request: Request) -> Answer:
        connection = http.client.HTTPConnection(str(place.hostname), place.port, timeout=60)
        try:
            sent = {name: value for name, value in request.headers.items() if name not in _OF_ONE_HOP}
            connection.request(request.method, request.target, request.body, sent)
            answer = connection.getresponse()
            body = answer.read()
            headers = {name.lower(): value for name, value in answer.getheaders()}
        finally:
            connection.close()
        kept = {name: value for name, value in headers.items() if name not in _OF_ONE_HOP}
        if request.method == "HEAD" and "content-length" in headers:
            kept["content-length"] = headers["content-length"]
        return answer.status, body, kept

    return forward
