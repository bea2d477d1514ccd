"""Nodes that read one bucket through each other's pages."""

import os
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress

import pytest

from loader.cache import object_sets
from loader.cache.object_sets import ObjectSet
from loader.cache.page_cache import Absence, Grant
from loader.cache.pages import page_name
from loader.cache.peers import client as client_module
from loader.cache.peers import health
from loader.cache.peers import members as members_module
from loader.cache.peers import peer_cache as peer_cache_module
from loader.cache.peers.client import PeerClient
from loader.cache.peers.connection import IdleConnections, PeerConnection, idle_connections
from loader.cache.peers.server import MOST_CONNECTIONS
from loader.cache.running_loaders import RunningLoaders
from loader.errors import Transient
from loader.storage import ByteRange
from loader.storage.cloud.http_connection import Place
from tests.cache.origin import make_origin, read_objects
from tests.cache.peers.nodes import PAGE, TOKEN, Reader, running_nodes, wait_claims
from tests.servers.patience import PATIENCE_S

SIZES = {f"object{number}": 10 * PAGE + 100 * number for number in range(8)}


@pytest.fixture
def origin(tmp_path):
    return make_origin(tmp_path / "bucket", SIZES)


def read_all(store):
    read_objects(store, SIZES)


def test_second_reader_sends_no_request(tmp_path, origin):
    with running_nodes(tmp_path, 3) as nodes:
        peers = [node.address for node in nodes]
        first = Reader(nodes[0], peers, origin)
        read_all(first.store)
        assert sum(nbytes for _, _, nbytes in origin.asked) == sum(SIZES.values())
        first.close()
        for node in nodes:
            wait_claims(node)
        origin.asked.clear()
        for node in nodes:
            reader = Reader(node, peers, origin)
            read_all(reader.store)
            assert reader.counts["peer_hits"] > 0
            assert reader.counts["peer_us"] > reader.counts["store_us"] == 0
            assert reader.counts["peer_misses"] == reader.counts["peer_down"] == 0
            reader.close()
        assert origin.asked == []


def test_readers_at_once_read_each_byte_about_once(tmp_path, origin):
    with running_nodes(tmp_path, 3) as nodes:
        peers = [node.address for node in nodes]
        readers = [Reader(node, peers, origin) for node in nodes for _ in range(2)]
        threads = [threading.Thread(target=read_all, args=(reader.store,)) for reader in readers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
        for reader in readers:
            reader.close()
        read = sum(nbytes for _, _, nbytes in origin.asked)
        assert read <= 1.1 * sum(SIZES.values())


@pytest.mark.parametrize("dead", [1, 2])
def test_bytes_are_right_without_some_peers(tmp_path, origin, dead):
    with running_nodes(tmp_path, 3) as nodes:
        peers = [node.address for node in nodes]
        reader = Reader(nodes[0], peers, origin)
        for node in nodes[3 - dead :]:
            node.stop()
        read_all(reader.store)
        assert reader.counts["peer_down"] > 0
        reader.close()


def test_peer_that_comes_back_is_asked_again(tmp_path, origin, monkeypatch):
    monkeypatch.setattr(health, "PROBE_S", 0.05)
    with running_nodes(tmp_path, 2) as nodes:
        peers = [node.address for node in nodes]
        reader = Reader(nodes[0], peers, origin)
        nodes[1].stop()
        read_all(reader.store)
        assert reader.cache._client.left_out() == [peers[1]]
        nodes[1].start()
        wait_readmission(reader)
        read_all(reader.store)
        origin.asked.clear()
        reader.close()
        reader = Reader(nodes[0], peers, origin)
        read_all(reader.store)
        assert origin.asked == []
        reader.close()


def test_peer_that_was_late_once_is_back_with_its_next_answer(tmp_path, origin):
    """A busy node must not send its pages' readers to the bucket for seconds."""
    with running_nodes(tmp_path, 2) as nodes:
        peers = [node.address for node in nodes]
        reader = Reader(nodes[0], peers, origin)
        read_all(reader.store)
        reader.close()
        reader = Reader(nodes[0], peers, origin)
        origin.asked.clear()
        client = reader.cache._client
        client.failed(peers[1], client._peer(peers[1]), "no answer within 0.25 s", time.monotonic())
        wait_readmission(reader)
        read_all(reader.store)
        assert origin.asked == []
        assert reader.counts["peer_hits"] > 0
        reader.close()


def wait_readmission(reader):
    """Wait until a probe has ended each exclusion, although no reader asks."""
    deadline_s = time.monotonic() + PATIENCE_S
    while reader.cache._client.left_out():
        assert time.monotonic() < deadline_s, "no probe brings the peer back"
        time.sleep(0.01)


@pytest.mark.parametrize("status", [401, 503])
def test_probe_that_is_refused_keeps_a_peer_left_out(tmp_path, origin, monkeypatch, status):
    monkeypatch.setattr(health, "PROBE_S", 0.001)
    probed = threading.Event()
    heads = []

    def refuse(head):
        heads.append(head)
        if len(heads) > 3:
            probed.set()
        return answer(status, b"no")

    with running_nodes(tmp_path, 1) as nodes, false_peer(refuse) as refusing:
        reader = Reader(nodes[0], [nodes[0].address, refusing], origin)
        client = reader.cache._client
        client.failed(refusing, client._peer(refusing), "test", time.monotonic())
        assert probed.wait(PATIENCE_S)
        assert {head.split()[1] for head in heads} == {b"/v1/pages/" + b"0" * 40}
        assert client.left_out() == [refusing]
        reader.close()


def test_pauses_between_probes_double_after_silence_and_relapses():
    peer = health.Peer(None, None)
    pauses_s = []
    assert peer.exclude(1000.0)
    for _ in range(9):
        pauses_s.append(peer.pause_s)
        peer.note_silence()
    assert pauses_s == [0.25, 0.5, 1, 2, 4, 8, 16, 32, 60]
    peer.readmit(1100.0)
    assert not peer.is_left_out
    assert not peer.exclude(1109.0)
    assert peer.pause_s == 60
    peer.readmit(1200.0)
    assert peer.exclude(1210.0)
    assert peer.pause_s == 0.25
    pauses_s = []
    for _ in range(6):
        peer.readmit(1211.0)
        peer.exclude(1212.0)
        pauses_s.append(peer.pause_s)
    assert pauses_s == [5, 10, 20, 40, 60, 60]


def test_calls_that_run_at_once_have_one_fault(tmp_path, origin):
    with running_nodes(tmp_path, 2) as nodes:
        reader = Reader(nodes[0], [node.address for node in nodes], origin)
        client = reader.cache._client
        peer = client._peer(nodes[1].address)
        begun_s = time.monotonic()
        for _ in range(4):
            client.failed(nodes[1].address, peer, "test", begun_s)
        assert peer.pause_s == health.PROBE_S
        wait_readmission(reader)
        # Begun before the probe was answered, and late since: no news.
        client.failed(nodes[1].address, peer, "test", begun_s)
        assert client.left_out() == []
        reader.close()


def test_no_claim_outlives_a_read_that_fails(tmp_path, origin):
    def fail():
        raise Transient("the bucket does not answer")

    with running_nodes(tmp_path, 2) as nodes:
        peers = [node.address for node in nodes]
        reader = Reader(nodes[0], peers, origin)
        origin.before = fail
        for key in SIZES:
            with pytest.raises(Transient):
                reader.store.get_ranges(key, [ByteRange(0, 5 * PAGE)])
            for node in nodes:
                assert os.listdir(node.folder / "claims") == []
        origin.before = lambda: None
        read_all(reader.store)
        reader.close()


def test_page_beyond_the_queue_is_dropped_with_its_claim(tmp_path, origin, monkeypatch):
    monkeypatch.setattr(peer_cache_module, "QUEUE_BYTES", PAGE)
    with running_nodes(tmp_path, 2) as nodes:
        reader = Reader(nodes[0], [node.address for node in nodes], origin)
        read_all(reader.store)
        reader.close()
        for node in nodes:
            wait_claims(node)


def test_page_that_would_not_be_sent_is_not_read_whole(tmp_path, origin, monkeypatch):
    """A page that the full queue drops leaves the bucket again: it is read by ranges instead."""
    monkeypatch.setattr(peer_cache_module, "QUEUE_BYTES", 2 * PAGE)
    with running_nodes(tmp_path, 2) as nodes:
        reader = Reader(nodes[0], [node.address for node in nodes], origin)
        is_over = threading.Event()
        send = reader.cache._tell

        def wait(*arguments, **options):
            assert is_over.wait(PATIENCE_S)
            return send(*arguments, **options)

        monkeypatch.setattr(reader.cache, "_tell", wait)
        for key, nbytes in SIZES.items():
            for low in range(0, nbytes, PAGE):
                reader.store.get_ranges(key, [ByteRange(low, 10)])
        is_over.set()
        reader.close()
        whole = [nbytes for _, _, nbytes in origin.asked if nbytes > 10]
        own = [path for path in (nodes[0].folder / "pages").rglob("*") if path.is_file()]
        # Two wait in the queue, and one is being sent.
        assert len(own) < len(whole) <= len(own) + 3


def test_share_follows_the_members_behind_a_name(tmp_path, origin, monkeypatch):
    pages = sum(-(-nbytes // PAGE) for nbytes in SIZES.values())
    addresses = []
    monkeypatch.setattr(members_module, "_addresses", lambda name, port: list(addresses))
    monkeypatch.setattr(members_module, "REFRESH_S", 0.0)
    monkeypatch.setattr(object_sets, "SUPERSEDED_S", 0.0)  # as minutes later
    with running_nodes(tmp_path, 2, limit_pages=pages // 4 + 2) as nodes:
        addresses += [nodes[0].address]
        reader = Reader(nodes[0], ("dns:cache:7070",), origin)
        read_all(reader.store)
        (alone,) = objects_of_loaders(nodes[0].folder)
        assert 0.2 < reader.cache.local.share.share < 0.3
        addresses += [nodes[1].address]
        reader.cache.beat()
        (divided,) = objects_of_loaders(nodes[0].folder)
        assert divided != alone
        assert 0.4 < reader.cache.local.share.share < 0.6
        addresses.pop()
        reader.cache.beat()
        assert objects_of_loaders(nodes[0].folder) == {alone}
        assert 0.2 < reader.cache.local.share.share < 0.3
        reader.close()


def test_division_among_nodes_shows_once_it_is_whole(tmp_path, origin, monkeypatch):
    """A thread that asks meanwhile must not name the set of another number of nodes."""
    of_shares = ObjectSet.of_shares
    with running_nodes(tmp_path, 2) as nodes:
        reader = Reader(nodes[0], [node.address for node in nodes], origin)
        cache = reader.cache
        read_all(reader.store)

        def check_shares(objects, n_nodes):
            assert cache._sets_nodes != cache._nodes
            return of_shares(objects, n_nodes)

        monkeypatch.setattr(ObjectSet, "of_shares", check_shares)
        before = cache._set_id()
        cache._nodes = 5
        assert cache._set_id() not in ("", before)
        assert cache._sets_nodes == 5
        reader.close()


def objects_of_loaders(folder):
    """Return the ids of the sets that running loaders name."""
    return {set_id for one in RunningLoaders(str(folder)).read() for set_id in one.sets}


@pytest.mark.parametrize("count", [1000, 1_000_000])
def test_server_knows_a_list_of_a_million_objects(tmp_path, origin, count):
    body = b"".join(number.to_bytes(8, "big") + (1000).to_bytes(8, "little") for number in range(count))
    large = ObjectSet.of_shares(ObjectSet("", body), 1)
    with running_nodes(tmp_path, 1) as nodes:
        client = PeerClient(None, PAGE)
        # A list that nobody has asked for makes room for the next one.
        for objects in (ObjectSet.of_shares(large, 2), large):
            path = f"/v1/sets/{objects.id}"
            answer = client.ask(nodes[0].address, "PUT", path, body=objects.body, wait_s=20)
            assert answer.status == 200
            stored = nodes[0].folder / "wanted" / objects.id
            assert stored.read_bytes() == objects.body
            os.utime(stored, (0, time.time() - 600))
        client.close()


def test_late_put_frees_no_other_claim(tmp_path, origin):
    with running_nodes(tmp_path, 2) as nodes:
        peers = [node.address for node in nodes]
        first = Reader(nodes[0], peers, origin).cache
        second = Reader(nodes[0], peers, origin).cache
        name = remote_name(first)
        grant = first.read(name, (), claim=PAGE)
        assert isinstance(grant, Grant)
        assert second.read(name, (), claim=PAGE) is Absence.COMING
        first.release(name, grant.nonce)
        other = second.read(name, (), claim=PAGE)
        assert isinstance(other, Grant)
        first.put(name, grant.nonce, bytes(PAGE))
        first.release(name, grant.nonce)
        assert first.read(name, (), claim=PAGE) is Absence.COMING
        second.put(name, other.nonce, bytes(PAGE))
        answer = first.read(name, [slice(0, 10)], wait_s=5.0)
        assert bytes(answer[0]) == bytes(10)
        first.close()
        second.close()


def remote_name(cache):
    """Return the name of a page that the other node owns."""
    names = (page_name(f"{number:064x}", PAGE, 0) for number in range(1000))
    return next(name for name in names if cache._owner(name) is not None)


@contextmanager
def false_peer(respond):
    """Yield the address of a server that answers each head with what `respond(head)` returns; None closes."""
    listener = socket.create_server(("127.0.0.1", 0))
    connections = []

    def serve(connection):
        with connection, suppress(OSError):
            while head := connection.recv(65536):
                data = respond(head)
                if data is None:
                    return
                connection.sendall(data)

    def accept():
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            thread = threading.Thread(target=serve, args=(connection,), daemon=True)
            connections.append(connection)
            thread.start()

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    host, port = listener.getsockname()
    try:
        yield f"{host}:{port}"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(PATIENCE_S)
        for connection in connections:
            connection.close()


def answer(status, body, **headers):
    lines = [f"HTTP/1.1 {status} X", f"Content-Length: {len(body)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + body


FAULTS = {
    "closes": lambda head: None,
    "no HTTP": lambda head: b"SSH-2.0-x\r\n\r\n",
    "another status": lambda head: answer(503, b"busy"),
    "another length": lambda head: answer(206, b"x" * 7, Content_Range="bytes 0-6/4096", ETag="x"),
    "another place": lambda head: answer(206, b"x" * 5, Content_Range="bytes 99999-100003/4096", ETag="x"),
    "too long": lambda head: answer(206, b"x" * 9000, Content_Range="bytes 0-4/4096", ETag="x"),
    "cut": lambda head: answer(206, b"x" * 5000, Content_Range="bytes 0-4999/5000", ETag="x")[:60],
    "endless head": lambda head: b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 100_000,
    "wrong token": lambda head: answer(401, b"the token is missing or wrong"),
    "another page size": lambda head: answer(413, b"a page has 1 to 8192 bytes"),
    "false claim": lambda head: answer(404, b"granted ../../x"),
    "nothing": lambda head: b"",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faulty_peer_costs_no_byte_and_little_time(tmp_path, origin, fault):
    with (
        running_nodes(tmp_path, 1, is_patient=False) as nodes,
        false_peer(FAULTS[fault]) as false_address,
    ):
        reader = Reader(nodes[0], [nodes[0].address, false_address], origin)
        read_all(reader.store)
        reader.close()


def test_late_peer_is_left_out_at_once(tmp_path, origin, monkeypatch):
    monkeypatch.setattr(health, "PROBE_S", 600.0)
    heads = []
    with (
        running_nodes(tmp_path, 1, is_patient=False) as nodes,
        false_peer(lambda head: heads.append(head) or b"") as late,
    ):
        reader = Reader(nodes[0], [nodes[0].address, late], origin)
        read_all(reader.store)
        # All questions of the first call that the peer owns, and none after it.
        assert 0 < len(heads) <= 11
        assert reader.cache._client.left_out() == [late]
        reader.close()


def test_patient_client_waits_longer_also_after_faults():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
    hasty = client_module.PeerClient(None, PAGE)
    patient = client_module.PeerClient(None, PAGE, late_s=1.5)
    for client in (hasty, patient):
        with pytest.raises(health.PeerFault):
            client.ask(address, "GET", "/", wait_s=1.0)
        assert client.left_out() == [address]
    assert (hasty.deadline_s(), patient.deadline_s()) == (health.LATE_S, 1.5)


def test_liar_is_left_out_after_three_wrong_pages(tmp_path, origin):
    with running_nodes(tmp_path, 2) as nodes:
        reader = Reader(nodes[0], [node.address for node in nodes], origin)
        read_all(reader.store)
        reader.close()
        pages = [path for path in (nodes[1].folder / "pages").rglob("*") if path.is_file()]
        nodes[1].stop()
        for path in pages:
            damaged = bytearray(path.read_bytes())
            damaged[100] ^= 1
            path.write_bytes(damaged)
        nodes[1].start()
        reader = Reader(nodes[0], [node.address for node in nodes], origin)
        # The server checks a file before the first byte goes out.
        read_all(reader.store)
        reader.close()


def test_peers_with_a_token(tmp_path, origin, monkeypatch):
    monkeypatch.setenv("PENSTOCK_CACHE_TOKEN", TOKEN)
    with running_nodes(tmp_path, 2) as nodes:
        peers = [node.address for node in nodes]
        reader = Reader(nodes[0], peers, origin)
        read_all(reader.store)
        assert reader.counts["peer_down"] == 0
        reader.close()
        monkeypatch.setenv("PENSTOCK_CACHE_TOKEN", TOKEN + "x")
        reader = Reader(nodes[0], peers, origin)
        read_all(reader.store)
        assert reader.counts["peer_hits"] == 0
        assert reader.counts["peer_down"] > 0
        reader.close()


def test_nodes_with_other_members_read_the_same_bytes(tmp_path, origin):
    with running_nodes(tmp_path, 3) as nodes:
        peers = [node.address for node in nodes]
        readers = [Reader(nodes[0], peers, origin), Reader(nodes[1], peers[:2], origin)]
        for _ in range(2):
            for reader in readers:
                read_all(reader.store)
        for reader in readers:
            assert reader.counts["peer_down"] == 0
            reader.close()


def test_threads_that_ask_at_once_keep_their_connections(tmp_path, origin, monkeypatch):
    opened = []
    new_connection = client_module.PeerClient.new_connection

    def record_connection(client, peer):
        opened.append(peer)
        return new_connection(client, peer)

    with running_nodes(tmp_path, 2) as nodes:
        peers = [node.address for node in nodes]
        reader = Reader(nodes[0], peers, origin)
        read_all(reader.store)
        wait_claims(nodes[1])
        monkeypatch.setattr(client_module.PeerClient, "new_connection", record_connection)
        barrier = threading.Barrier(health.IN_FLIGHT)

        def read_often():
            for _ in range(8):
                barrier.wait()
                read_all(reader.store)

        with ThreadPoolExecutor(health.IN_FLIGHT) as pool:
            threads = [pool.submit(read_often) for _ in range(health.IN_FLIGHT)]
        for thread in threads:
            thread.result()
        reader.close()
    assert len(opened) <= health.IN_FLIGHT


def test_connection_of_a_call_that_outlives_its_client_is_closed():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        place = Place(*listener.getsockname(), None)
        connection = PeerConnection(place, 1.0, 1.0, 1.0)
        idle = IdleConnections()
        idle.close()
        idle.keep(connection, time.monotonic())
        accepted, _ = listener.accept()
        with accepted:
            assert accepted.recv(1) == b""


def test_kept_connections_of_all_processes_fit_a_server():
    for nodes in range(1, 65):
        assert 2 <= idle_connections(nodes) <= health.IN_FLIGHT
        assert nodes * 32 * idle_connections(nodes) <= MOST_CONNECTIONS


def test_calls_to_one_peer_are_few_at_a_time(tmp_path, origin, monkeypatch):
    """A burst of reads opens no more connections than a server of many readers accepts."""
    waiting = threading.Semaphore(0)
    may_answer = threading.Event()
    at_once = []

    def respond(head):
        at_once.append(head)
        waiting.release()
        assert may_answer.wait(PATIENCE_S)
        return answer(404, b"not stored") * head.count(b"GET ")

    with running_nodes(tmp_path, 1) as nodes, false_peer(respond) as slow:
        reader = Reader(nodes[0], [nodes[0].address, slow], origin)
        name = remote_name(reader.cache)
        threads = [threading.Thread(target=reader.cache.read, args=(name, [slice(0, 5)])) for _ in range(12)]
        for thread in threads:
            thread.start()
        for _ in range(health.IN_FLIGHT):
            assert waiting.acquire(timeout=PATIENCE_S)
        assert not waiting.acquire(timeout=0.1)
        may_answer.set()
        for thread in threads:
            thread.join(PATIENCE_S)
        assert len(at_once) == len(threads)
        reader.close()


def test_readers_of_a_dead_peer_do_not_ask_the_bucket_at_once(tmp_path, origin):
    """Each call that finds a dead peer draws a pause, and later calls neither ask the peer nor wait."""
    pauses_s = []
    with running_nodes(tmp_path, 2) as nodes:
        reader = Reader(nodes[0], [node.address for node in nodes], origin)
        client = reader.cache._client
        client._sleep = pauses_s.append
        client._rng = lambda: 1.0
        nodes[1].stop()
        read_all(reader.store)
        assert pauses_s == [health.PAUSES.base_s]
        for number in range(10):
            address = f"127.0.0.1:{number + 1}"
            client.failed(address, client._peer(address), "test", time.monotonic())
        client.pause_after_fault()
        assert pauses_s[1:] == [health.PAUSES.cap_s]
        reader.close()
