"""A store that takes its time: a folder served as an S3 bucket, every answer `latency_s` after its request.

    python -m benchmarks.latency_server FOLDER --latency-ms 20        prints its URL; ends when its stdin does

What a store in the same region is to a training job: 10 to 30 ms per request, and as many at once as one likes. All
share a link of `--gbits`, if one is given; a body arrives when the link has carried all before it. It
reads only (GET and HEAD of objects, with ranges, and listings), unless it is `--writable`: then it also creates small
objects and deletes. Roots are written to the folder. It takes its share of the cores that the loader under test would
have: `--measure` tells what it serves at most.
"""

import argparse
import asyncio
import json
import mmap
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape, unescape

BUCKET = "bucket"
DELETED_KEY = re.compile(rb"<Key>([^<]*)</Key>")
CONTENT_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
SEND_BUFFER_BYTES = 4 * 2**20
"""A body goes to the kernel in one call; asyncio would copy what is left of it."""
OPTIONS = {"key": "latency", "secret": "latency"}
"""What the server accepts: anything."""
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "latency",
    "AWS_SECRET_ACCESS_KEY": "latency",
    "AWS_DEFAULT_REGION": "us-east-1",
}
"""The same, as boto3 takes it from the environment."""


class Folder:
    """The objects of a bucket, mapped into memory, what was asked for, and the link to who asks."""

    def __init__(self, path: Path, gbits: float, *, writable: bool) -> None:
        """gbits: 10^9 bits that the link carries in a second; 0 is without limit."""
        self.writable = writable
        self.path, self._gbits, self._link_is_free = path, gbits, 0.0
        self._mapped: dict[str, memoryview] = {}
        self.requests = self.nbytes = 0
        self.record: list[dict[str, Any]] | None = None
        """Each request since the last question, if they are recorded."""

    def recorded(self, method: str, target: str, headers: dict[str, str], at_s: float) -> None:
        """Note a request: its client is the access key that signed it."""
        if self.record is not None:
            signature = headers.get("authorization", "") + unquote(target)
            client = re.search(r"Credential=([^/]+)/", signature)
            self.record.append(
                {
                    "at_s": at_s,
                    "method": method,
                    "target": target,
                    "range": headers.get("range", ""),
                    "client": client[1] if client else "",
                }
            )

    def carried(self, nbytes: int, now: float) -> float:
        """Return the time at which the link will have carried so many bytes more."""
        if self._gbits:
            self._link_is_free = max(now, self._link_is_free) + 8 * nbytes / (1e9 * self._gbits)
        return self._link_is_free

    def body(self, key: str) -> memoryview | None:
        if key not in self._mapped:
            path = self.path / key
            if not path.is_file():
                return None
            if path.stat().st_size == 0:
                return memoryview(b"")
            with open(path, "rb") as file:
                self._mapped[key] = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        return self._mapped[key]

    def create(self, key: str, body: bytes) -> None:
        """Write an object, or replace it."""
        path = self.path / key
        path.parent.mkdir(parents=True, exist_ok=True)
        # A name that is not a object's: readers of the folder see whole objects only.
        partial = path.with_name(f".{path.name}.partial")
        partial.write_bytes(body)
        partial.replace(path)
        self._mapped.pop(key, None)

    def delete(self, key: str) -> None:
        self._mapped.pop(key, None)
        (self.path / key).unlink(missing_ok=True)

    def keys(self, prefix: str) -> Iterator[tuple[str, int]]:
        for folder, _, names in os.walk(self.path):
            for name in names:
                path = Path(folder, name)
                key = path.relative_to(self.path).as_posix()
                if key.startswith(prefix):
                    yield key, path.stat().st_size


class Connection(asyncio.Protocol):
    """One connection; its requests are answered one after another, as HTTP/1.1 has it."""

    def __init__(self, folder: Folder, latency_s: float) -> None:
        self._folder, self._latency_s = folder, latency_s
        self._received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        # Else the body waits for the client's acknowledgement of the header: 40 ms.
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        transport.set_write_buffer_limits(high=64 * 2**20)

    def data_received(self, data: bytes) -> None:
        self._received += data
        while b"\r\n\r\n" in self._received:
            head, _, rest = self._received.partition(b"\r\n\r\n")
            sent = CONTENT_LENGTH.search(head)
            nbytes = int(sent[1]) if sent else 0
            if len(rest) < nbytes:
                return
            self._received = rest[nbytes:]
            sent_body = rest[:nbytes]
            request, *lines = head.decode().split("\r\n")
            method, target, _ = request.split()
            fields = (line.partition(":") for line in lines)
            headers = {name.lower(): value.strip() for name, _, value in fields}
            loop = asyncio.get_running_loop()
            self._folder.recorded(method, target, headers, loop.time())
            loop.call_later(self._latency_s, self._answer, method, target, headers, sent_body)

    def _answer(self, method: str, target: str, headers: dict[str, str], sent_body: bytes) -> None:
        if self._transport.is_closing():
            return
        parts = urlsplit(target)
        key = unquote(parts.path).removeprefix(f"/{BUCKET}").removeprefix("/")
        self._folder.requests += 1
        body = self._folder.body(key) if key else None
        if method == "PUT" and self._folder.writable:
            self._put(key, headers, sent_body, is_there=body is not None)
        elif (
            method == "POST" and self._folder.writable
        ):  # a request to delete: uploads in parts are none here
            entries = b""
            for deleted in DELETED_KEY.findall(sent_body):
                self._folder.delete(unescape(deleted.decode()))
                entries += b"<Deleted><Key>" + deleted + b"</Key></Deleted>"
            result = b"<DeleteResult>" + entries + b"</DeleteResult>"
            self._send(200, result, len(result), method)
        elif method not in ("GET", "HEAD"):
            self._send(403, b"<Error><Code>AccessDenied</Code></Error>", 40, method)
        elif not key:
            listing = _listing(self._folder, parse_qs(parts.query))
            self._send(200, listing, len(listing), method)
        elif body is None:
            self._send(404, b"<Error><Code>NoSuchKey</Code></Error>", 37, method)
        elif "range" in headers:
            low, _, high = headers["range"].removeprefix("bytes=").partition("-")
            stop = min(len(body), int(high) + 1) if low and high else len(body)
            piece = body[int(low) if low else len(body) - int(high) : stop]
            low = str(stop - len(piece))
            extra = f"Content-Range: bytes {low}-{stop - 1}/{len(body)}\r\n"
            self._send(206, piece, len(piece), method, extra)
        else:
            self._send(200, body, len(body), method)

    def _put(self, key: str, headers: dict[str, str], body: bytes, *, is_there: bool) -> None:
        if is_there and headers.get("if-none-match") == "*":
            refusal = b"<Error><Code>PreconditionFailed</Code></Error>"
            self._send(412, refusal, len(refusal), "PUT")
            return
        self._folder.create(key, body)
        self._send(200, b"", 0, "PUT")

    def _send(self, status: int, body: bytes | memoryview, nbytes: int, method: str, extra: str = "") -> None:
        lines = (
            f'HTTP/1.1 {status} X\r\nContent-Length: {nbytes}\r\nETag: "e"\r\n'
            f"Last-Modified: Wed, 21 Oct 2015 07:28:00 GMT\r\n{extra}\r\n"
        )
        self._transport.write(lines.encode())
        if method != "HEAD":
            self._folder.nbytes += nbytes
            loop = asyncio.get_running_loop()
            if (at := self._folder.carried(nbytes, loop.time())) > loop.time():
                loop.call_at(at, self._transport.write, body)
            else:
                self._transport.write(body)


def _listing(folder: Folder, query: dict[str, list[str]]) -> bytes:
    keys = sorted(folder.keys(query.get("prefix", [""])[0]))
    entries = "".join(
        f"<Contents><Key>{escape(key)}</Key><Size>{nbytes}</Size>"
        '<LastModified>2015-10-21T07:28:00.000Z</LastModified><ETag>"e"</ETag></Contents>'
        for key, nbytes in keys
    )
    return f"<ListBucketResult><IsTruncated>false</IsTruncated>{entries}</ListBucketResult>".encode()


async def serve(
    path: Path,
    latency_s: float,
    gbits: float,
    *,
    record: bool = False,
    writable: bool = False,
    host: str = "127.0.0.1",
) -> None:
    """Until stdin ends; first a line with the URL, at the end one with requests and bytes."""
    loop = asyncio.get_running_loop()
    folder = Folder(path, gbits, writable=writable)
    folder.record = [] if record else None
    listener = socket.create_server((host, 0), backlog=1024)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
    server = await loop.create_server(lambda: Connection(folder, latency_s), sock=listener)
    print(f"http://{host}:{listener.getsockname()[1]}", flush=True)

    def asked() -> None:
        """A line on stdin: how much was served since the line before. Its end: over."""
        if not (line := sys.stdin.readline()):
            ended.set()
            return
        if line.strip():
            print(json.dumps(folder.record), flush=True)
            folder.record = []
            return
        print(f"{folder.requests} {folder.nbytes}", flush=True)
        folder.requests = folder.nbytes = 0

    ended = asyncio.Event()
    loop.add_reader(sys.stdin.fileno(), asked)
    await ended.wait()
    server.close()


class Served:
    """A running server: `options` open `s3://bucket/...` on it."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        assert process.stdout is not None
        self._process = process
        self.options = {**OPTIONS, "endpoint_url": process.stdout.readline().strip()}

    def served(self) -> tuple[int, int]:
        """(requests, bytes) answered since the last call."""
        requests, nbytes = self._answer("").split()
        return int(requests), int(nbytes)

    def recorded(self) -> list[dict[str, Any]]:
        """Return the requests since the last call: at_s, method, target, range, client. Needs `record`."""
        return list(json.loads(self._answer("requests")))

    def _answer(self, question: str) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{question}\n")
        self._process.stdin.flush()
        return self._process.stdout.readline()


@contextmanager
def latency_store(
    folder: Path,
    latency_s: float = 0.02,
    gbits: float = 0,
    *,
    record: bool = False,
    writable: bool = False,
    host: str = "127.0.0.1",
    prefix: Sequence[str] = (),
) -> Iterator[Served]:
    """A server process over a folder; it ends with the block, and with this process.

    host: address that it listens on. prefix: beginning of its command line.
    """
    command = [
        *prefix,
        sys.executable,
        "-m",
        "benchmarks.latency_server",
        str(folder),
        "--latency-ms",
        str(1e3 * latency_s),
        "--gbits",
        str(gbits),
        "--host",
        host,
        *(["--record"] if record else []),
        *(["--writable"] if writable else []),
    ]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield Served(process)
        assert process.stdin is not None
        process.stdin.close()


def measure(folder: Path, in_flight: int = 32, seconds: float = 3.0) -> dict[str, float]:
    """What the server gives at most, by the client that the loader uses: requests/s of 30 KB and MB/s of 1 MiB."""
    import secrets
    import time
    from concurrent.futures import ThreadPoolExecutor

    from loader.storage import Store, open_store

    (folder / "limit").write_bytes(secrets.token_bytes(64 * 2**20))
    out = {}
    with latency_store(folder) as server, ThreadPoolExecutor(in_flight) as pool:
        store: Store = open_store(f"s3://{BUCKET}", server.options)
        for name, nbytes in (("requests_per_second", 30_000), ("mb_per_second", 2**20)):

            def read(number: int, nbytes: int = nbytes) -> None:
                store.get_range("limit", number * nbytes % (63 * 2**20), nbytes)

            start, done = time.perf_counter(), 0
            while time.perf_counter() - start < seconds:
                done += len(list(pool.map(read, range(done, done + 8 * in_flight))))
            rate = done / (time.perf_counter() - start)
            out[name] = rate if nbytes < 2**20 else rate * nbytes / 1e6
        store.close()
    return out


def main() -> None:
    given = argparse.ArgumentParser(description=__doc__)
    given.add_argument("folder", type=Path)
    given.add_argument("--latency-ms", type=float, default=20.0)
    given.add_argument("--gbits", type=float, default=0.0, help="of the link that answers share; 0: no limit")
    given.add_argument("--record", action="store_true", help="each request, for a line `requests` on stdin")
    given.add_argument("--host", default="127.0.0.1", help="address to listen on")
    given.add_argument("--writable", action="store_true", help="create and delete objects, too")
    given.add_argument("--measure", action="store_true", help="what it gives at most, instead of serving")
    options = given.parse_args()
    if options.measure:
        print(measure(options.folder))
    else:
        latency_s = options.latency_ms / 1e3
        asyncio.run(
            serve(
                options.folder,
                latency_s,
                options.gbits,
                record=options.record,
                writable=options.writable,
                host=options.host,
            )
        )


if __name__ == "__main__":
    main()
