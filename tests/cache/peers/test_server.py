"""The server of pages: heads, bodies, tokens, slow and hostile callers."""

import errno
import os
import socket
import threading
import time
from contextlib import ExitStack, contextmanager, suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loader.cache.peers import server as server_module
from loader.cache.peers.heads import HEAD_BYTES, BadHead, page_answer_head, parse_head
from loader.cache.peers.server import PeerServer
from tests.servers.patience import PATIENCE_S

TOKEN = "a-token-of-this-test"
PAGE = os.urandom(300_000)


class FileAnswers:
    """Serves the bytes of one file, and stores bodies."""

    def __init__(self, path):
        self.path = path
        path.write_bytes(PAGE)
        self._descriptor = os.open(path, os.O_RDONLY)
        self.bodies = []

    def answer(self, exchange):
        head = exchange.head
        if head.method == "PUT":
            if head.nbytes > 2 * len(PAGE):
                raise BadHead(413, "too long")
            self.bodies.append(b"".join(bytes(piece) for piece in exchange.body()))
            exchange.send_text(200, "stored")
        elif head.path == "/v1/fails":
            raise OSError("the disk is gone")
        elif (wanted := head.byte_range()) is None:
            exchange.send_text(404, "no page")
        else:
            start, stop = wanted
            head = page_answer_head(start, stop, len(PAGE))
            exchange.send_file(head, self._descriptor, start, stop - start)


@contextmanager
def serve_answers(answers, token=TOKEN):
    listener = socket.create_server(("127.0.0.1", 0))
    address = listener.getsockname()
    server = PeerServer(listener, answers, token)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        yield server, address
    finally:
        server.stop()
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


@pytest.fixture
def answers(tmp_path):
    return FileAnswers(tmp_path / "page")


def request(method="GET", path="/v1/page", body=b"", token=TOKEN, **headers):
    lines = [f"{method} {path} HTTP/1.1", f"Content-Length: {len(body)}"]
    if token:
        lines.append(f"Authorization: Bearer {token}")
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + body


def read_answer(file):
    """Return the status and the body of one answer."""
    line = file.readline()
    if not line:
        return 0, b""  # the connection ended
    status = int(line.split()[1])
    nbytes = 0
    while (line := file.readline()) not in (b"\r\n", b""):
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            nbytes = int(value)
    return status, file.read(nbytes)


def ask(address, data):
    with socket.create_connection(address, 5) as connection, connection.makefile("rb") as file:
        connection.sendall(data)
        return read_answer(file)


def test_ranges_have_their_bytes(answers):
    with serve_answers(answers) as (_, address):
        assert ask(address, request(Range="bytes=100-299999")) == (206, PAGE[100:])
        assert ask(address, request(Range="bytes=7-7")) == (206, PAGE[7:8])


def test_file_that_became_shorter_ends_the_connection_within_its_answer(answers):
    os.truncate(answers.path, 280_000)
    with serve_answers(answers) as (_, address):
        status, body = ask(address, request(Range="bytes=0-299999"))
        assert (status, body) == (206, PAGE[:280_000])
        status, body = ask(address, request(Range="bytes=270000-299999"))
        assert (status, body) == (206, PAGE[270_000:280_000])
        assert ask(address, request(Range="bytes=290000-299999")) == (0, b"")


def test_requests_that_come_together_are_answered_in_order(answers):
    with serve_answers(answers) as (_, address):
        data = b"".join(request(Range=f"bytes={at}-{at + 9}") for at in range(50))
        with socket.create_connection(address, 5) as connection, connection.makefile("rb") as file:
            connection.sendall(data)
            assert [read_answer(file) for _ in range(50)] == [(206, PAGE[at : at + 10]) for at in range(50)]


def test_body_may_come_in_pieces(answers):
    with serve_answers(answers) as (_, address):
        data = request("PUT", body=PAGE)
        with socket.create_connection(address, 5) as connection, connection.makefile("rb") as file:
            for at in range(0, len(data), 70_000):
                connection.sendall(data[at : at + 70_000])
            assert read_answer(file)[0] == 200
            connection.sendall(request(Range="bytes=0-0"))
            assert read_answer(file) == (206, PAGE[:1])
    assert answers.bodies == [PAGE]


@pytest.mark.parametrize("token", [None, "", "a-token-of-this-tes", TOKEN + "x"])
def test_body_without_the_right_token_is_not_read(answers, token):
    with serve_answers(answers) as (_, address):
        assert ask(address, request("PUT", body=PAGE, token=token))[0] == 401
    assert answers.bodies == []


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"GET /v1/../x HTTP/1.0\r\n\r\n", 400),
        (b"BREW /v1/x HTTP/1.1\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\r\n\r\n", 400),
        (b"GET /v1/x HTTP/1.1\r\nA: b\r\na: c\r\n\r\n", 400),
        (b"GET /v1/x HTTP/1.1\r\nContent-Length: -1\r\n\r\n", 400),
        (b"PUT /v1/x HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", 411),
        (b"GET /v1/x HTTP/1.1\r\nX: " + b"x" * HEAD_BYTES + b"\r\n\r\n", 431),
        (request(Range="bytes=5-2"), 416),
        (request(Range="bytes=-5"), 416),
        (request("PUT", body=b"")[:-4].replace(b"Length: 0", b"Length: 700000") + b"\r\n\r\n", 413),
        (request(path="/v1/fails"), 500),
    ],
)
def test_wrong_request_has_its_status(answers, data, status):
    with serve_answers(answers) as (_, address):
        assert ask(address, data)[0] == status
        assert ask(address, request(Range="bytes=0-0"))[0] == 206


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=400))
def test_any_head_is_parsed_or_refused(data):
    status = 200
    try:
        path = parse_head(data).path
    except BadHead as error:
        path = "/v1/"
        status = error.status
    assert path.startswith("/v1/")
    assert status in (200, 400, 411, 416)


def test_idle_and_slow_callers_leave_the_others_alone(answers, monkeypatch):
    monkeypatch.setattr(server_module, "HEAD_S", 0.2)
    monkeypatch.setattr(server_module, "IDLE_S", 0.2)
    monkeypatch.setattr(server_module, "LOOK_S", 0.05)
    with serve_answers(answers) as (server, address):
        slow = [socket.create_connection(address, 5) for _ in range(100)]
        for connection in slow[:50]:
            connection.sendall(b"GET /v1/x")
        assert ask(address, request(Range="bytes=0-0"))[0] == 206
        for connection in slow:
            assert connection.recv(1) == b""  # the server closed it
            connection.close()
        deadline_s = time.monotonic() + PATIENCE_S
        while server.connections and time.monotonic() < deadline_s:
            time.sleep(0.01)
        assert server.connections == 0


def test_callers_who_stop_in_a_body_free_their_threads(answers, monkeypatch):
    monkeypatch.setattr(server_module, "BODY_S", 1)
    with serve_answers(answers) as (_, address):
        slow = [socket.create_connection(address, 5) for _ in range(2 * server_module.THREADS)]
        for connection in slow:
            connection.sendall(request("PUT", body=PAGE)[:1000])
        assert ask(address, request(Range="bytes=0-0"))[0] == 206
        for connection in slow:
            connection.close()


def test_connections_above_the_most_are_closed(answers, monkeypatch):
    monkeypatch.setattr(server_module, "MOST_CONNECTIONS", 3)
    with serve_answers(answers) as (_, address), ExitStack() as stack:
        first, *others = (stack.enter_context(socket.create_connection(address, 5)) for _ in range(3))
        for connection in (first, *others):
            connection.sendall(request(Range="bytes=0-0"))
            assert connection.recv(20).startswith(b"HTTP/1.1 206")
        with socket.create_connection(address, 5) as one_more:
            assert one_more.recv(1) == b""
        first.close()
        deadline_s = time.monotonic() + PATIENCE_S
        while not is_answered(address):
            assert time.monotonic() < deadline_s, "the place of a closed connection stays occupied"


class FullListener(socket.socket):
    """A listener in a process that has too many open files."""

    accepts = 0

    def accept(self):
        self.accepts += 1
        raise OSError(errno.EMFILE, "too many open files")


def test_full_process_does_not_ask_for_connections_all_the_time(answers, monkeypatch):
    monkeypatch.setattr(server_module, "LOOK_S", 60.0)
    listener = FullListener()
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    server = PeerServer(listener, answers, TOKEN)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    with socket.create_connection(listener.getsockname(), 5):
        time.sleep(0.1)
        assert 1 <= listener.accepts <= 2
    server.stop()
    thread.join(PATIENCE_S)


class AbortedListener(socket.socket):
    """A listener whose next connection ends before it is accepted."""

    aborts = False

    def accept(self):
        if self.aborts:
            self.aborts = False
            raise ConnectionAbortedError
        return super().accept()


def test_caller_who_leaves_at_once_delays_no_other(answers, monkeypatch):
    monkeypatch.setattr(server_module, "LOOK_S", 60.0)
    listener = AbortedListener()
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    server = PeerServer(listener, answers, TOKEN)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    for aborts in (False, True):
        listener.aborts = aborts
        assert ask(listener.getsockname(), request(Range="bytes=0-0"))[0] == 206
    server.stop()
    thread.join(PATIENCE_S)


def is_answered(address):
    with suppress(ConnectionError), socket.create_connection(address, 5) as connection:
        connection.sendall(request(Range="bytes=0-0"))
        return bool(connection.recv(20))
    return False
