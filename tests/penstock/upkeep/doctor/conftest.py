"""Servers that lie: moto behind a gateway that changes requests and answers as it is told; answers out of a table."""

import http.server
import itertools
import logging
import re
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from email.utils import formatdate
from urllib.parse import parse_qs, urlsplit

import pytest

from loader.storage import Store, open_store
from penstock.upkeep.doctor.store_probes import Scratch
from tests.servers.s3 import boto3_client

KEYS = {"key": "AKIAPLANTEDKEY", "secret": "PLANTEDsecretPLANTED"}
_numbers = itertools.count()


class Gateway:
    """moto, one request at a time, behind what some gateways do. `lie` is one word of:

    replaces (a create-only write replaces), races (it looks, waits for another request, and writes), stale (a read
    gives what was there before the last write), etag (one ETag for everything), keeps (deletes do nothing), flips (one
    byte of longer bodies), rots (one of those above 100,000 bytes), loses (a listing shows one key less), unsorted (it
    shows its first key last).
    denied: words of a query that are answered 403; told: word of a query -> the body of the answer; ahead_s: of the
    Date header.
    """

    def __init__(self, app: Callable[..., object]) -> None:
        self.app, self.turn = app, threading.Lock()
        self.lie, self.denied, self.told, self.ahead_s = "", set[str](), dict[str, str](), 0.0
        self.requests: list[str] = []
        self._waiting, self._arrived = 0, threading.Condition()

    def __call__(self, environ, start_response):
        query = environ.get("QUERY_STRING", "")
        self.requests.append(f"{environ['REQUEST_METHOD']} {environ['PATH_INFO']}?{query}")
        words = set(parse_qs(query, keep_blank_values=True))
        if words & self.denied:
            start_response("403 Forbidden", [])
            return [b"<Error><Code>AccessDenied</Code></Error>"]
        for word in words & self.told.keys():
            start_response("200 OK", [])
            return [self.told[word].encode()]
        if self.lie == "keeps" and environ["REQUEST_METHOD"] == "POST" and "delete" in words:
            start_response("200 OK", [])
            return [b"<DeleteResult><Deleted><Key>gone</Key></Deleted></DeleteResult>"]
        held = self._before(environ)
        said = []
        with self.turn:
            if held is None:
                body = b"".join(self.app(environ, lambda *status: said.append(status)))
            else:
                body = held
        status, headers = said[0][:2] if said else _stale(body, environ)
        headers, body = self._after(environ, headers, body)
        start_response(status, [one for one in headers if one[0].lower() != "date"])
        return [body]

    def _before(self, environ) -> bytes | None:
        creates = environ.get("HTTP_IF_NONE_MATCH") == "*"
        if creates and self.lie == "replaces":
            del environ["HTTP_IF_NONE_MATCH"]
        if creates and self.lie == "races" and re.search(r"create/\d", environ["PATH_INFO"]):
            with self._arrived:
                self._waiting += 1
                self._arrived.notify_all()
                if self._arrived.wait_for(lambda: self._waiting >= 2, timeout=10):
                    del environ["HTTP_IF_NONE_MATCH"]
        if self.lie == "stale" and "/fresh/" in environ["PATH_INFO"] and environ["REQUEST_METHOD"] == "GET":
            return b"one"
        return None

    def _after(self, environ, headers, body):
        listed, before = b"<ListBucketResult" in body, body
        if self.lie == "etag":
            headers = [(name, '"same"' if name.lower() == "etag" else value) for name, value in headers]
        long = {"flips": 60_000, "rots": 100_000}.get(self.lie)
        if long and environ["REQUEST_METHOD"] == "GET" and len(body) > long and not listed:
            body = body[:100] + bytes([body[100] ^ 1]) + body[101:]
        entries = re.findall(rb"<Contents>.*?</Contents>", body, re.DOTALL) if listed else []
        if len(entries) > 5 and self.lie in ("loses", "unsorted"):
            body = body.replace(entries[0], b"")
            if self.lie == "unsorted":
                body = body.replace(entries[-2], entries[-2] + entries[0])
        if body is not before:
            headers = [one for one in headers if one[0].lower() != "content-length"]
            headers += [("Content-Length", str(len(body)))]
        return headers, body


def _stale(body: bytes, environ) -> tuple[str, list[tuple[str, str]]]:
    """The head of an answer that nobody wrote; ranges of it begin at 0."""
    headers = [("ETag", '"stale"'), ("Content-Length", str(len(body)))]
    if "HTTP_RANGE" not in environ:
        return "200 OK", headers
    return "206 Partial Content", [*headers, ("Content-Range", f"bytes 0-{len(body) - 1}/{len(body)}")]


@pytest.fixture(scope="session")
def running():
    """(gateway, endpoint) for all tests."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # third-party imports
        from moto.server import DomainDispatcherApplication, create_backend_app
        from werkzeug.serving import WSGIRequestHandler, make_server
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    gateway = Gateway(DomainDispatcherApplication(create_backend_app))

    class Handler(WSGIRequestHandler):
        def date_time_string(self, timestamp: float | None = None) -> str:
            return formatdate(time.time() + gateway.ahead_s, usegmt=True)

    server = make_server("127.0.0.1", 0, gateway, threaded=True, request_handler=Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    endpoint = f"http://127.0.0.1:{server.server_port}"
    client = boto3_client({**KEYS, "endpoint_url": endpoint})
    client.create_bucket(Bucket="doctor")
    yield gateway, endpoint, client
    client.close()
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def gateway(running, monkeypatch) -> Iterator[Gateway]:
    """It behaves until it is told otherwise, and again after the test."""
    for name in ("AWS_PROFILE", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    gateway = running[0]
    gateway.requests.clear()
    yield gateway
    gateway.lie, gateway.denied, gateway.told, gateway.ahead_s, gateway._waiting = "", set(), {}, 0.0, 0


@pytest.fixture
def s3(running, gateway) -> dict[str, object]:
    """Options of the gateway; its pauses are short."""
    return {**KEYS, "endpoint_url": running[1], "retry_base_s": 0.001}


@pytest.fixture
def bucket(running, gateway):
    """boto3, and a fresh bucket."""
    name = f"bucket-{next(_numbers)}"
    running[2].create_bucket(Bucket=name)
    return running[2], name


@pytest.fixture
def store(s3) -> Iterator[Store]:
    opened = open_store(f"s3://doctor/test-{next(_numbers)}", s3)
    yield opened
    opened.close()


@pytest.fixture
def scratch(store: Store) -> Scratch:
    return Scratch(store)


@pytest.fixture
def answers():
    """answers(lambda path, query: (status, headers, body)) -> the endpoint of a server that says so."""
    servers = []

    def start(answer: Callable[[str, dict[str, list[str]]], tuple[int, dict[str, str], bytes]]) -> str:
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                parts = urlsplit(self.path)
                status, headers, body = answer(parts.path, parse_qs(parts.query))
                self.send_response(status)
                for name, value in {**headers, "Content-Length": str(len(body))}.items():
                    self.send_header(name, value)
                self.end_headers()
                if self.command == "GET":
                    self.wfile.write(body)

            do_HEAD = do_GET

            def log_message(self, *_: object) -> None:
                """Quiet."""

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        servers.append((server, thread))
        return f"http://127.0.0.1:{server.server_port}"

    yield start
    for server, thread in servers:
        server.shutdown()
        thread.join()
        server.server_close()
