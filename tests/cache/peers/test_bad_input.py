"""What a cluster may do wrong: each fault has one line that says what to do, and the same bytes are read."""

import json
import logging
import os
import resource
import signal
import socket
import threading
import time
from contextlib import suppress

import pytest

from loader.cache.page_cache import Grant
from loader.cache.pages import MARKER, page_name
from loader.cache.peers.client import PeerClient
from loader.cache.peers.heads import CLAIM, NONCE
from loader.cache.peers.serve import ServeSettings, open_server
from loader.errors import InvalidRuntime
from loader.storage import ByteRange
from tests.cache.origin import body, make_origin, read_objects
from tests.cache.peers.nodes import PAGE, TOKEN, Node, Reader, running_nodes, wait_claims
from tests.cache.peers.test_peer_cache import answer, false_peer
from tests.servers.patience import PATIENCE_S

SIZES = {f"object{number}": 6 * PAGE for number in range(6)}
NONCE_TEXT = "0123456789abcdef" * 2
WAIT_S = 20.0


@pytest.fixture
def origin(tmp_path):
    return make_origin(tmp_path / "bucket", SIZES)


def read_all(store):
    read_objects(store, SIZES)


def warnings(caplog):
    """Return the warnings of caches and servers."""
    records = [record for record in caplog.records if record.name.startswith("loader.cache")]
    lines = [record.getMessage() for record in records if record.levelno >= logging.WARNING]
    return [line for line in lines if "serving at" not in line]


def the_warning(caplog):
    (line,) = warnings(caplog)
    return line


def test_name_that_is_no_page_is_refused(tmp_path):
    paths = ("pages/../../token", "pages/abc", "pages/" + "G" * 40, "claims/x", "sets/x")
    with running_nodes(tmp_path, 1) as nodes:
        before = sorted(str(entry) for entry in nodes[0].folder.rglob("*"))
        client = PeerClient(None, PAGE)
        for path in paths:
            for method in ("GET", "PUT", "DELETE", "POST"):
                refused = client.ask(nodes[0].address, method, f"/v1/{path}", wait_s=WAIT_S)
                assert refused.status in (400, 404)
                assert refused.text
        assert sorted(str(entry) for entry in nodes[0].folder.rglob("*")) == before
        client.close()


def claim_page(client, address):
    """Claim a page at a node; return its name."""
    name = page_name("0" * 64, PAGE, 0)
    headers = f"{CLAIM}: {PAGE} {NONCE_TEXT}\r\n"
    assert client.ask(address, "GET", f"/v1/pages/{name}", headers=headers, wait_s=WAIT_S).text == "granted"
    return name


@pytest.mark.parametrize(
    ("data", "checksum", "status"),
    [(b"x" * (PAGE + 1), "00000000", 413), (b"x" * PAGE, "00000000", 400), (b"", "00000000", 413)],
)
def test_wrong_page_is_not_stored(tmp_path, data, checksum, status):
    with running_nodes(tmp_path, 1) as nodes:
        client = PeerClient(None, PAGE)
        name = claim_page(client, nodes[0].address)
        headers = f"{NONCE}: {NONCE_TEXT}\r\npenstock-checksum: {checksum}\r\n"
        path = f"/v1/pages/{name}"
        stored = client.ask(nodes[0].address, "PUT", path, headers=headers, body=data, wait_s=WAIT_S)
        assert stored.status == status
        wait_claims(nodes[0])
        assert [path for path in (nodes[0].folder / "pages").rglob("*") if path.is_file()] == []
        client.close()


def test_page_that_is_cut_is_not_stored(tmp_path):
    with running_nodes(tmp_path, 1) as nodes:
        client = PeerClient(None, PAGE)
        name = claim_page(client, nodes[0].address)
        request = client.request(
            nodes[0].address, "PUT", f"/v1/pages/{name}", f"{NONCE}: {NONCE_TEXT}\r\n", b"x" * 100
        )
        host, port = nodes[0].address.split(":")
        with socket.create_connection((host, int(port))) as connection:
            connection.sendall(request[:-1])
        wait_claims(nodes[0])
        assert [path for path in (nodes[0].folder / "pages").rglob("*") if path.is_file()] == []
        client.close()


def test_peer_of_another_page_size_is_ignored(tmp_path, origin, caplog):
    with (
        running_nodes(tmp_path / "a", 1, page_bytes=2 * PAGE) as nodes,
        running_nodes(tmp_path / "b", 1) as others,
    ):
        reader = Reader(nodes[0], [nodes[0].address, others[0].address], origin)
        read_all(reader.store)
        assert f"{others[0].address} is left out" in the_warning(caplog)
        assert "use one page size on all nodes" in the_warning(caplog)
        reader.close()


@pytest.mark.parametrize("token", [None, TOKEN + "x"])
def test_wrong_token_has_a_line_on_both_sides(tmp_path, origin, caplog, monkeypatch, token):
    monkeypatch.setenv("PENSTOCK_CACHE_TOKEN", TOKEN)
    with running_nodes(tmp_path, 2) as nodes:
        if token is None:
            monkeypatch.delenv("PENSTOCK_CACHE_TOKEN")
        else:
            monkeypatch.setenv("PENSTOCK_CACHE_TOKEN", token)
        reader = Reader(nodes[0], [node.address for node in nodes], origin)
        read_all(reader.store)
        reader.close()
        by_server, by_reader = sorted(warnings(caplog), key=lambda line: "left out" in line)
        assert "without the right token" in by_server
        assert "set PENSTOCK_CACHE_TOKEN to the server's" in by_reader


def test_name_that_does_not_resolve_is_ignored(tmp_path, origin, caplog, monkeypatch):
    look_up = socket.getaddrinfo

    def fail(host, *arguments, **options):
        if host == "nowhere":
            raise socket.gaierror(-2, "Name or service not known")
        return look_up(host, *arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", fail)
    with running_nodes(tmp_path, 1) as nodes:
        reader = Reader(nodes[0], [nodes[0].address, "nowhere:7070"], origin)
        read_all(reader.store)
        assert "the name nowhere does not resolve" in the_warning(caplog)
        assert "check the peers' names" in the_warning(caplog)
        reader.close()


def test_resolver_that_hangs_holds_no_read(tmp_path, origin, caplog, monkeypatch):
    may_answer = threading.Event()
    look_up = socket.getaddrinfo
    main = threading.current_thread()

    def hang(host, *arguments, **options):
        if host == "slow" and threading.current_thread() is not main:
            assert may_answer.wait(PATIENCE_S)
        return look_up("127.0.0.1" if host == "slow" else host, *arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", hang)
    monkeypatch.setattr("loader.cache.peers.training_nodes.is_local", lambda address: "slow" not in address)
    with running_nodes(tmp_path, 1, is_patient=False) as nodes:
        reader = Reader(nodes[0], [nodes[0].address, "slow:7070"], origin)
        read_all(reader.store)  # while the resolver hangs
        assert any("the name slow is not resolved" in line for line in warnings(caplog))
        may_answer.set()
        reader.close()


@pytest.mark.parametrize("part", ["head", "body"])
def test_peer_that_sends_a_byte_now_and_then_is_dropped(tmp_path, origin, caplog, part):
    head = answer(206, b"x" * 3000, Content_Range="bytes 0-2999/4096", ETag="x")
    data = {
        "head": b"HTTP/1.1 200 " + b"x" * 3000,
        "body": head,
    }[part]
    at_once = data.index(b"x" * 10)
    sent = []

    def serve(listener):
        connection, _ = listener.accept()
        with connection, suppress(OSError):
            connection.recv(65536)
            connection.sendall(data[:at_once])
            for byte in data[at_once:]:
                connection.sendall(bytes([byte]))
                sent.append(byte)
                time.sleep(0.01)

    with (
        running_nodes(tmp_path, 1, is_patient=False) as nodes,
        socket.create_server(("127.0.0.1", 0)) as listener,
    ):
        thread = threading.Thread(target=serve, args=(listener,), daemon=True)
        thread.start()
        host, port = listener.getsockname()
        reader = Reader(nodes[0], [nodes[0].address, f"{host}:{port}"], origin)
        key, number = next(
            (key, number) for key in SIZES for number in range(6) if not is_own(reader, key, number)
        )
        (blob,) = reader.store.get_ranges(key, [ByteRange(number * PAGE, 3000)])
        assert blob.data == body(key, SIZES[key])[number * PAGE :][:3000]
        assert len(sent) < 1500  # of 3,000 bytes in 30 s or more
        assert "is left out" in the_warning(caplog)
        reader.close()


def is_own(reader, key, number):
    return reader.cache.is_own(reader.store.page_name(key, number))


def test_liar_is_left_out_for_an_hour(tmp_path, origin, caplog):
    def lie(head):
        if head.startswith(b"POST /v1/checks/"):
            return answer(200, b"wrong")
        answers = b""
        for request in head.split(b"\r\n\r\n")[:-1]:
            first, last = request.split(b"Range: bytes=")[1].split(b"\r\n")[0].split(b"-")
            nbytes = int(last) + 1 - int(first)
            span = f"bytes {int(first)}-{int(last)}/{PAGE}"
            answers += answer(206, b"!" * nbytes, Content_Range=span, ETag="x")
        return answers

    with running_nodes(tmp_path, 1) as nodes, false_peer(lie) as liar:
        reader = Reader(nodes[0], [nodes[0].address, liar], origin)
        every = [(key, number) for key in SIZES for number in range(6)]
        numbers = [(key, number) for key, number in every if not is_own(reader, key, number)]
        for key, number in numbers[:3]:
            (blob,) = reader.store.get_ranges(key, [ByteRange(number * PAGE, 10)])
            assert blob.data == b"!" * 10
            # As after a field whose CRC-32C is wrong: the bucket has the bytes, and the owner checks its page.
            blob = reader.store.get_range(key, number * PAGE, 10)
            assert blob.data == body(key, SIZES[key])[number * PAGE :][:10]
        deadline_s = time.monotonic() + PATIENCE_S
        while not warnings(caplog):
            assert time.monotonic() < deadline_s
            time.sleep(0.01)
        assert reader.cache._client.left_out() == [liar]
        assert "3 wrong pages within an hour" in the_warning(caplog)
        assert "check its disk and memory" in the_warning(caplog)
        read_all(reader.store)
        reader.close()


def test_full_disk_of_a_peer_keeps_no_page(tmp_path, origin):
    with running_nodes(tmp_path, 1) as nodes:
        full = Node(tmp_path / "full")
        log = tmp_path / "log"
        with log.open("wb") as output:
            full.start_process(output)
        try:
            # The kernel refuses to write a page, as on a full disk.
            resource.prlimit(full.process.pid, resource.RLIMIT_FSIZE, (PAGE // 2, PAGE // 2))
            reader = Reader(nodes[0], [nodes[0].address, full.address], origin)
            read_all(reader.store)
            read_all(reader.store)
            reader.close()
            wait_claims(full)
            assert [path for path in (full.folder / "pages").rglob("*") if path.is_file()] == []
        finally:
            full.process.send_signal(signal.SIGTERM)
            full.process.wait(PATIENCE_S)
        lines = [line for line in log.read_text().splitlines() if "serving at" not in line]
        assert len(lines) == 1
        assert "cannot write" in lines[0]
        assert "Check the disk and its space" in lines[0]


def test_second_server_of_a_folder_names_the_first(tmp_path):
    with running_nodes(tmp_path, 1) as nodes:
        settings = ServeSettings(cache=nodes[0].spec(None), listen="127.0.0.1:0")
        with pytest.raises(InvalidRuntime) as raised, open_server(settings):
            pass
        assert nodes[0].address in str(raised.value)
        assert "use that one, or another folder" in str(raised.value)


def test_folder_of_the_format_before_is_served(tmp_path, origin):
    folder = tmp_path / "node1"
    (folder / "pages" / "00").mkdir(parents=True, mode=0o700)
    folder.chmod(0o700)
    (folder / MARKER).write_text(json.dumps({"format": 1}))
    (folder / "pages" / "00" / ("0" * 40)).write_bytes(bytes(PAGE))
    with running_nodes(tmp_path, 2) as nodes:
        reader = Reader(nodes[0], [node.address for node in nodes], origin)
        read_all(reader.store)
        assert reader.counts["peer_down"] == 0
        reader.close()
        assert (folder / MARKER).read_bytes() == b'{"format": 2}\n'


def test_folder_of_a_later_format_is_not_served(tmp_path):
    folder = tmp_path / "later"
    folder.mkdir(mode=0o700)
    (folder / MARKER).write_text(json.dumps({"format": 3}))
    node = Node(folder)
    with pytest.raises(InvalidRuntime) as raised:
        node.start()
    assert "use another folder, or the newer penstock" in str(raised.value)


@pytest.mark.parametrize("jump_s", [-86400, 86400])
def test_clock_that_jumps_stops_no_reader(tmp_path, origin, caplog, jump_s):
    with running_nodes(tmp_path, 2) as nodes:
        peers = [node.address for node in nodes]
        reader = Reader(nodes[0], peers, origin)
        names = [reader.store.page_name(key, 0) for key in SIZES]
        claimed = [name for name in names if isinstance(reader.cache.read(name, (), claim=PAGE), Grant)]
        assert claimed
        then_s = time.time() + jump_s
        for node in nodes:
            for path in node.folder.rglob("*"):
                # A file that is being written gets its name meanwhile.
                if path.is_file() and path.parent.name != "writing":
                    os.utime(path, (then_s, then_s))
        # Nobody waits for a claim of another time.
        other = Reader(nodes[1], peers, origin)
        for name in claimed:
            grant = other.cache.read(name, (), claim=PAGE)
            assert isinstance(grant, Grant)
            other.cache.release(name, grant.nonce)
        read_all(other.store)
        assert other.counts["peer_down"] == 0
        assert warnings(caplog) == []
        reader.close()
        other.close()
