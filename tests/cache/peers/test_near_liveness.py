"""A near save's wait for a node: long for a slow disk, short for a node that answers nothing.

Planted: a wait for the whole request without a question; a node that is given up after the first wait.
"""

import socket
import threading
import time
from contextlib import closing, suppress

import pytest

from loader.cache.peers import near_client
from loader.cache.peers.near_client import NearClient, NearFault
from loader.native import crc32c
from tests.servers.patience import PATIENCE_S

DATA = b"x" * 1000
PART = "0123456789abcdef-00000.safetensors"
QUESTIONS = 3
PIECE = 2**16


class SlowNode:
    """Takes one file. Answers questions if `is_alive`, and the file after QUESTIONS of them."""

    def __init__(self, *, is_alive):
        self._is_alive = is_alive
        self._questions = threading.Semaphore(0)
        self._listener = socket.create_server(("127.0.0.1", 0))
        host, port = self._listener.getsockname()
        self.address = f"{host}:{port}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self):
        self._listener.close()

    def _accept(self):
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection):
        with connection, connection.makefile("rb") as file:
            while line := file.readline():
                while file.readline().strip():
                    pass
                if line.startswith(b"PUT"):
                    connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
                    file.read(len(DATA))
                    for _ in range(QUESTIONS):
                        self._questions.acquire()
                    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nstored")
                elif self._is_alive:
                    self._questions.release()
                    connection.sendall(b"HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\nno")


class SlowReader:
    """Takes 64 kB of a file every 10 ms: slowly, but never so that it stands still."""

    def __init__(self):
        self._listener = socket.create_server(("127.0.0.1", 0))
        # Else the kernel takes the whole file at once.
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, PIECE)
        host, port = self._listener.getsockname()
        self.address = f"{host}:{port}"
        self._has_client_left = threading.Event()
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self):
        self._listener.close()
        assert self._has_client_left.wait(PATIENCE_S)

    def _serve(self):
        connection, _ = self._listener.accept()
        with connection:
            connection.recv(4096)
            connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
            with suppress(ConnectionError):
                while connection.recv(PIECE):
                    time.sleep(0.01)
        self._has_client_left.set()


@pytest.fixture
def node(request):
    node = SlowNode(is_alive=request.param)
    yield node
    node.close()


@pytest.fixture
def client(monkeypatch):
    monkeypatch.setattr(near_client, "PROGRESS_S", 0.2)
    client = NearClient(None, request_s=5.0)
    yield client
    client.close()


def put(client, node):
    client.put(node.address, "run", 1, PART, [DATA], crc32c(DATA))


@pytest.mark.parametrize("node", [True], indirect=True)
def test_put_waits_for_a_slow_disk(node, client):
    put(client, node)


@pytest.mark.parametrize("node", [False], indirect=True)
def test_put_gives_up_a_silent_node_before_its_deadline(node, client):
    with pytest.raises(NearFault, match=r"it took longer than 0\.2 s"):
        put(client, node)


@pytest.mark.parametrize("node", [True], indirect=True)
def test_put_ends_at_its_deadline_although_the_node_answers_others(node, monkeypatch):
    monkeypatch.setattr(near_client, "PROGRESS_S", 0.2)
    with (
        closing(NearClient(None, request_s=0.5)) as client,
        pytest.raises(NearFault) as caught,
    ):
        put(client, node)
    assert str(caught.value) == f"{node.address}: its disk or the network is slow: it did not answer in time"


def test_put_ends_at_its_deadline_although_a_slow_network_takes_bytes():
    data = bytes(2**25)
    with (
        closing(SlowReader()) as node,
        closing(NearClient(None, request_s=0.5)) as client,
        pytest.raises(NearFault) as caught,
    ):
        client.put(node.address, "run", 1, PART, [data], crc32c(data))
    words = "the network or its disk is slow: it did not take a file in time"
    assert str(caught.value) == f"{node.address}: {words}"
