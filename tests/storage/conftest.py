"""Stores to test, and an S3 server in this process that misbehaves as it is told."""

import itertools
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import version
from urllib.parse import parse_qs, unquote, urlsplit

import pytest

from loader.storage import Store, open_store

KEY, SECRET = "AKIAPLANTEDKEY", "PLANTEDsecretPLANTED"
BUCKET = "bucket"
_numbers = itertools.count()


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """One way to open a fresh, empty store. creates: it has an atomic create."""

    name: str
    open: Callable[[], Store]
    creates: bool = True


@pytest.fixture(autouse=True)
def no_credentials_from_outside(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """No test sees the credentials, profiles or endpoints of whoever runs it."""
    for name in (
        "ACCESS_KEY_ID",
        "SECRET_ACCESS_KEY",
        "SESSION_TOKEN",
        "PROFILE",
        "REGION",
        "DEFAULT_REGION",
    ):
        monkeypatch.delenv(f"AWS_{name}", raising=False)
    for name in ("AWS_ENDPOINT", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"):
        monkeypatch.delenv(name, raising=False)
    nowhere = str(tmp_path_factory.getbasetemp() / "no-such-file")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", nowhere)
    monkeypatch.setenv("AWS_CONFIG_FILE", nowhere)


@pytest.fixture
def s3_options(s3: dict[str, str]) -> dict[str, object]:
    return {**s3, "retry_base_s": 0.001}


def _has_s3fs() -> bool:
    """Whether the s3fs that is installed can create atomically; beside a new boto3 pip takes one of 2020."""
    return [int(part) for part in version("s3fs").split(".")[:2]] >= [2024, 10]


NAMES = ["local", "file-url", "memory", "s3", "fsspec-memory", *(["s3fs"] if _has_s3fs() else [])]


@pytest.fixture(params=NAMES)
def backend(request: pytest.FixtureRequest, tmp_path) -> Backend:
    name: str = request.param
    number = next(_numbers)
    root = tmp_path / "ein Ordner ü"
    if name == "local":
        return Backend(name=name, open=lambda: open_store(str(root)))
    if name == "file-url":
        return Backend(name=name, open=lambda: open_store(root.as_uri()))
    if name == "memory":
        return Backend(name=name, open=lambda: open_store(f"memory://test-{number}/some/prefix"))
    if name == "fsspec-memory":
        url = f"memory://test-{number}/some/prefix"
        return Backend(name=name, open=lambda: open_store(url, {"fsspec": {}}), creates=False)
    options = request.getfixturevalue("s3_options")
    if name == "s3fs":
        own = {
            "key": options["key"],
            "secret": options["secret"],
            "client_kwargs": {"endpoint_url": options["endpoint_url"]},
        }
        options = {"fsspec": own, "retry_base_s": 0.001}
    return Backend(name=name, open=lambda: open_store(f"s3://{BUCKET}/test-{number}/prefix", options))


@pytest.fixture
def store(backend: Backend) -> Iterator[Store]:
    opened = backend.open()
    yield opened
    opened.close()


class FaultServer:
    """A minimal S3 over sockets. `faults` are taken one per request; without one it behaves.

    A fault is a status (int), or a word:
    drop (no answer, nothing done), commit-drop (done, no answer), reset (RST in the middle of the body),
    stall (half a body, then silence), flip (one byte wrong), short (fewer bytes than Content-Range says),
    etag (another ETag).
    """

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.faults: deque[int | str] = deque()
        self.uploads: dict[str, dict[int, bytes]] = {}
        self.requests: list[str] = []
        self.headers: list[dict[str, str]] = []
        self.page_keys = 3
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
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
        connection.settimeout(0.05)
        with connection, connection.makefile("rb") as stream:
            while (head := self._read_head(connection)) and not stream.closed:
                try:
                    if not self._answer(connection, *head):
                        return
                except OSError:
                    return

    def _read_head(self, connection: socket.socket) -> tuple[str, str, dict[str, str], bytes] | None:
        data = b""
        while b"\r\n\r\n" not in data:
            piece = self._receive(connection)
            if not piece:
                return None
            data += piece
        head, _, body = data.partition(b"\r\n\r\n")
        lines = head.decode().split("\r\n")
        method, target, _ = lines[0].split()
        headers = {
            name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])
        }
        while len(body) < int(headers.get("content-length", 0)):
            body += self._receive(connection)
        return method, target, headers, body

    def _receive(self, connection: socket.socket) -> bytes:
        while not self._closing.is_set():
            try:
                return connection.recv(2**16)
            except TimeoutError:
                continue
            except OSError:
                return b""
        return b""

    def _answer(self, connection, method: str, target: str, headers: dict[str, str], body: bytes) -> bool:
        with self._lock:
            self.requests.append(f"{method} {target}")
            self.headers.append(headers)
            fault = self.faults.popleft() if self.faults else None
            if isinstance(fault, int):
                code = {503: b"SlowDown", 429: b"TooManyRequests"}.get(fault, b"Told")
                answer = (fault, b"<Error><Code>" + code + b"</Code></Error>", "", '"e"')
            elif fault == "drop":
                return False
            else:
                answer = self._do(method, target, headers, body)
        if fault == "commit-drop":
            return False
        status, content, extra, etag = answer
        if fault == "flip":
            content = bytes([content[0] ^ 1]) + content[1:]
        if fault == "short":
            content = content[:-1]
        if fault == "etag":
            etag = '"another"'
        lines = (
            f"HTTP/1.1 {status} X\r\nContent-Length: {len(content)}\r\nETag: {etag}\r\n"
            f"Last-Modified: Wed, 21 Oct 2015 07:28:00 GMT\r\n{extra}\r\n"
        )
        sent = b"" if method == "HEAD" else content
        if fault in ("reset", "stall"):
            connection.sendall(lines.encode() + sent[: len(sent) // 2])
            if fault == "stall":
                self._receive(connection)  # until the client gives up
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            return False
        connection.sendall(lines.encode() + sent)
        return True

    def _do(self, method: str, target: str, headers: dict[str, str], body: bytes):
        parts = urlsplit(target)
        key = unquote(parts.path)[len(BUCKET) + 2 :]
        query = parse_qs(parts.query, keep_blank_values=True)
        if method == "POST" or "partNumber" in query:
            return self._upload(method, key, query, body)
        if method == "DELETE":
            self.uploads.pop(query["uploadId"][0], None)
            return 204, b"", "", '"e"'
        if method == "PUT":
            if headers.get("if-none-match") == "*" and key in self.objects:
                return 412, b"<Error><Code>PreconditionFailed</Code></Error>", "", '"e"'
            self.objects[key] = body
            return 200, b"", "", _etag(body)
        if not key:
            return self._list(query)
        if key not in self.objects:
            return 404, b"<Error><Code>NoSuchKey</Code></Error>", "", '"e"'
        data = self.objects[key]
        if "range" in headers and method == "GET":
            low, high = (int(number) for number in headers["range"].removeprefix("bytes=").split("-"))
            piece = data[low : high + 1]
            extra = f"Content-Range: bytes {low}-{low + len(piece) - 1}/{len(data)}\r\n"
            return 206, piece, extra, _etag(data)
        return 200, data, "", _etag(data)

    def _upload(self, method: str, key: str, query: dict[str, list[str]], body: bytes):
        if "uploads" in query:
            name = f"upload-{len(self.requests)}"
            self.uploads[name] = {}
            xml = (
                f"<InitiateMultipartUploadResult><UploadId>{name}</UploadId></InitiateMultipartUploadResult>"
            )
            return 200, xml.encode(), "", '"e"'
        if query["uploadId"][0] not in self.uploads:
            return 404, b"<Error><Code>NoSuchUpload</Code></Error>", "", '"e"'
        parts = self.uploads[query["uploadId"][0]]
        if method == "PUT":
            parts[int(query["partNumber"][0])] = body
            return 200, b"", "", _etag(body)
        self.objects[key] = b"".join(parts[number] for number in sorted(parts))
        del self.uploads[query["uploadId"][0]]
        return (
            200,
            b"<CompleteMultipartUploadResult><ETag>e</ETag></CompleteMultipartUploadResult>",
            "",
            '"e"',
        )

    def _list(self, query: dict[str, list[str]]):
        prefix = query.get("prefix", [""])[0]
        after = query.get("continuation-token", [""])[0]
        keys = sorted(key for key in self.objects if key.startswith(prefix) and key > after)
        page, rest = keys[: self.page_keys], keys[self.page_keys :]
        entries = "".join(
            f"<Contents><Key>{key}</Key><Size>{len(self.objects[key])}</Size>"
            f"<LastModified>2015-10-21T07:28:00.000Z</LastModified><ETag>{_etag(self.objects[key])}</ETag></Contents>"
            for key in page
        )
        token = f"<NextContinuationToken>{page[-1]}</NextContinuationToken>" if rest else ""
        more = str(bool(rest)).lower()
        xml = f"<ListBucketResult><IsTruncated>{more}</IsTruncated>{token}{entries}</ListBucketResult>"
        return 200, xml.encode(), "", '"e"'


def _etag(data: bytes) -> str:
    return f'"{hash(data) & 0xFFFFFFFF:x}"'


@pytest.fixture
def faulty() -> Iterator[FaultServer]:
    server = FaultServer()
    yield server
    server.close()


@pytest.fixture
def faulty_store(faulty: FaultServer) -> Iterator[Store]:
    """Its pauses are short and its deadline is long: only the number of faults decides."""
    options = {"key": KEY, "secret": SECRET, "endpoint": faulty.endpoint, "timeout_s": 0.5}
    budget = {"retry_base_s": 0.001, "retry_cap_s": 0.002, "retry_deadline_s": 20}
    opened = open_store(f"s3://{BUCKET}", {**options, **budget})
    yield opened
    opened.close()
