"""Near checkpoints on a node's server: whole files or none, strict names, bounds."""

import os
import socket
import threading
import time
from contextlib import suppress

import pytest

from loader.cache.peers import near_answers, near_files
from loader.cache.peers.lifetime import live_server
from loader.cache.peers.near_client import NearClient, NearFault
from loader.cache.peers.near_files import NearFile, NearStep
from loader.cache.peers.serve import ServeSettings, open_server
from loader.cache.spec import NodeCache
from loader.native import crc32c
from penstock.checkpoints import marker
from tests.cache.peers.nodes import TOKEN, running_nodes
from tests.cache.peers.test_server import ask, request
from tests.servers.patience import PATIENCE_S

RUN = "run-7"
PART = "0123456789abcdef-00000.safetensors"
INDEX = "0123456789abcdef-index.json"
DATA = os.urandom(3 * 2**20 + 17)


def put_checksum(data):
    """Return the checksum that a PUT announces."""
    return f"{crc32c(data):08x}"


def place(address):
    host, _, port = address.rpartition(":")
    return host, int(port)


def put(path, data=DATA, **headers):
    token = headers.pop("token", TOKEN)
    return request("PUT", path, data, token, **{"penstock-checksum": put_checksum(data), **headers})


@pytest.fixture
def node(tmp_path, monkeypatch):
    monkeypatch.setenv("PENSTOCK_CACHE_TOKEN", TOKEN)
    with running_nodes(tmp_path, 1) as (one,):
        yield one


@pytest.fixture
def client():
    one = NearClient(TOKEN)
    yield one
    one.close()


def test_keys_are_those_of_a_root():
    assert near_files.part_key(RUN, 20, PART) == marker.part_key(RUN, 20, PART)
    assert near_files.marker_key(RUN, 20) == marker.marker_key(RUN, 20)


def test_step_is_stored_listed_read_and_deleted(node, client):
    text = b"a marker" * 10_000
    client.put(node.address, RUN, 20, PART, [memoryview(DATA)], crc32c(DATA))
    client.put(node.address, RUN, 20, INDEX, [b"{", b"}"], crc32c(b"{}"))
    client.put(node.address, RUN, 40, PART, [b"next"], crc32c(b"next"))
    client.put_marker(node.address, RUN, 20, text, crc32c(text))

    stored = client.run(node.address, RUN)
    assert stored.markers == {20: text}
    assert sorted(stored.files) == [
        NearFile(20, PART, len(DATA)),
        NearFile(20, INDEX, 2),
        NearFile(40, PART, 4),
    ]
    assert client.runs(node.address) == {RUN: [NearStep(20, True, len(DATA) + 2), NearStep(40, False, 4)]}
    assert client.read(node.address, RUN, 20, PART, 0, len(DATA)) == DATA
    assert client.read(node.address, RUN, 20, PART, 1_000_000, 2_000_001) == DATA[1_000_000:2_000_001]
    local = near_files.NearFiles(near_files.near_folder(node.spec(None)))
    assert local.run(RUN) == stored

    assert client.delete(node.address, RUN, 20) == len(DATA) + 2
    assert client.delete(node.address, RUN, 20) == 0
    assert client.runs(node.address) == {RUN: [NearStep(40, False, 4)]}
    assert os.listdir(node.folder / "near/checkpoints" / RUN / "parts") == ["000000000040"]
    with pytest.raises(NearFault, match="404"):
        client.read(node.address, RUN, 20, PART, 0, 1)


def test_later_file_of_a_name_replaces_it(node, client):
    for data in (DATA, b"short"):
        client.put(node.address, RUN, 20, PART, [data], crc32c(data))
    assert client.run(node.address, RUN).files == [NearFile(20, PART, 5)]


@pytest.mark.parametrize(
    ("path", "status"),
    [
        (f"/v1/near/{RUN}/20/{PART}", 404),
        (f"/v1/near/{RUN}/000000000020/{PART.upper()}", 404),
        (f"/v1/near/{RUN}/000000000020/{PART}.tmp", 404),
        (f"/v1/near/{RUN}/000000000020/0123456789abcdef-1.safetensors", 404),
        (f"/v1/near/{RUN}/000000000020/..", 404),
        (f"/v1/near/../000000000020/{PART}", 404),
        (f"/v1/near/.hidden/000000000020/{PART}", 404),
        (f"/v1/near//000000000020/{PART}", 404),
        (f"/v1/nearer/{RUN}/000000000020/{PART}", 404),
        (f"/v1/near/{'r' * 129}/000000000020/{PART}", 404),
        (f"/v1/near/{RUN}/000000000020/../../../../x", 404),
        (f"/v1/near/{RUN}/000000000020/%2e%2e", 400),
    ],
)
def test_other_names_are_refused(node, path, status):
    assert ask(place(node.address), put(path, b"x"))[0] == status
    assert not (node.folder / "near").exists()


@pytest.mark.parametrize(
    ("data", "headers", "status"),
    [
        (b"x", {"penstock-checksum": put_checksum(b"y")}, 400),
        (b"x", {"penstock-checksum": "no checksum"}, 400),
        (b"", {}, 413),
        (b"x" * 101, {}, 413),
    ],
)
def test_wrong_body_leaves_no_file(node, monkeypatch, data, headers, status):
    monkeypatch.setattr(near_answers, "FILE_BYTES", 100)
    path = f"/v1/near/{RUN}/000000000020/{PART}"
    assert ask(place(node.address), put(path, data, **headers))[0] == status
    assert near_names(node) == []


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
def test_request_without_the_token_is_refused(node, method):
    path = f"/v1/near/{RUN}/000000000020"
    if method != "DELETE":
        path += f"/{PART}"
    assert ask(place(node.address), request(method, path, token="another"))[0] == 401
    assert ask(place(node.address), request(method, path, token=None))[0] == 401
    assert not (node.folder / "near").exists()


def test_body_that_is_cut_leaves_no_file(node):
    data = put(f"/v1/near/{RUN}/000000000020/{PART}")
    with socket.create_connection(place(node.address), 5) as connection:
        connection.sendall(data[:-1])
        connection.shutdown(socket.SHUT_WR)
        with suppress(ConnectionError):
            assert connection.recv(100) == b""
    assert near_names(node) == []


def test_full_disk_is_said_before_the_body_comes(node, client, monkeypatch):
    monkeypatch.setattr(near_files, "SPARE_BYTES", 2**62)
    with pytest.raises(NearFault, match="507: the disk of this node has 0 bytes"):
        client.put(node.address, RUN, 20, PART, [DATA], crc32c(DATA))
    assert near_names(node) == []


def test_node_that_receives_enough_files_is_asked_again(tmp_path, monkeypatch):
    monkeypatch.setattr(near_answers, "AT_ONCE", 1)
    with running_nodes(tmp_path, 1) as (node,):
        data = put(f"/v1/near/{RUN}/000000000020/{INDEX}", token=None)
        hasty = NearClient(None, request_s=0.05)
        patient = NearClient(None)
        with socket.create_connection(place(node.address), 5) as connection:
            connection.sendall(data[:-1])
            until_refused(hasty, node)
            thread = threading.Thread(
                target=patient.put, args=(node.address, RUN, 20, PART, [b"x"], crc32c(b"x"))
            )
            thread.start()
            connection.sendall(data[-1:])
            assert connection.recv(100).startswith(b"HTTP/1.1 200")
            thread.join(PATIENCE_S)
        assert len(patient.run(node.address, RUN).files) == 2
        hasty.close()
        patient.close()


def until_refused(client, node):
    """Send files until one is refused because the node receives another one."""
    refusal = ""
    deadline_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline_s:
        try:
            client.put(node.address, RUN, 40, PART, [b"x"], crc32c(b"x"))
        except NearFault as error:
            refusal = str(error)
            break
        client.delete(node.address, RUN, 40)
    assert "503" in refusal


def test_folder_of_several_users_has_no_near_checkpoints(tmp_path):
    cache = NodeCache(path=tmp_path / "cache", limit_bytes=2**20, page_bytes=4096, shared=True)
    with open_server(ServeSettings(cache=cache, listen="127.0.0.1:0")) as server:
        thread = threading.Thread(target=server.run)
        thread.start()
        address = live_server(os.fspath(cache.path)).address
        client = NearClient(None)
        with pytest.raises(NearFault, match="403"):
            client.runs(address)
        client.close()
        server.stop()
        thread.join(PATIENCE_S)


def test_answer_that_is_no_list_is_a_fault(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer():
            for body in (b"[1]", b'{"markers": [], "files": []}', b"{"):
                connection, _ = listener.accept()
                with connection:
                    connection.recv(4096)
                    size = len(body)
                    head = f"Content-Length: {size}\r\nContent-Range: bytes 0-{size - 1}/{size}\r\nETag: x"
                    connection.sendall(
                        f"HTTP/1.1 206 x\r\n{head}\r\nConnection: close\r\n\r\n".encode() + body
                    )

        thread = threading.Thread(target=answer)
        thread.start()
        client = NearClient(None)
        host, port = listener.getsockname()
        for _ in range(3):
            with pytest.raises(NearFault, match="no list"):
                client.run(f"{host}:{port}", RUN)
        thread.join(PATIENCE_S)
        client.close()


def near_names(node):
    """Return the files of steps in a node's near folder, unfinished ones too, once its server is done with them."""
    deadline_s = time.monotonic() + PATIENCE_S
    while True:
        names = [path.name for path in (node.folder / "near/checkpoints").rglob("*") if path.is_file()]
        if not any(name.startswith(".tmp-") for name in names) or time.monotonic() > deadline_s:
            return names
        time.sleep(0.01)
