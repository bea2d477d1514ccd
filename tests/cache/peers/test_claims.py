"""No claim outlives the call that took it: whatever fails, no later reader waits for a page that nobody brings."""

import itertools
import os
import subprocess
import sys
import time
from functools import partial
from queue import Full

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loader.cache import claims as claims_module
from loader.cache.peers.client import PeerClient
from loader.cache.peers.heads import PageRequest, page_request_head
from loader.errors import Transient
from loader.storage import ByteRange, open_store
from tests.cache.origin import Origin, body
from tests.cache.peers.nodes import PAGE, Reader, running_nodes, wait_claims
from tests.servers.patience import PATIENCE_S

KEYS = ("a", "b", "c")
NBYTES = 6 * PAGE + 17
_numbers = itertools.count()

CALL = st.tuples(
    st.integers(0, 1),  # reader
    st.sampled_from(KEYS),
    st.integers(0, NBYTES - 1),
    st.integers(1, 3 * PAGE),
    st.sampled_from(["works", "fails", "queue is full", "answers late", "peer is left out before the put"]),
)


@pytest.fixture(scope="module")
def nodes(tmp_path_factory):
    with running_nodes(tmp_path_factory.mktemp("nodes"), 2) as running:
        yield running


def new_origin():
    """Return an origin whose pages nobody has."""
    store = open_store(f"memory://claims-{next(_numbers)}")
    sizes = {f"{key}{next(_numbers)}": NBYTES for key in KEYS}
    for key, nbytes in sizes.items():
        store.put(key, body(key, nbytes))
    return Origin(store, sizes)


def fail():
    raise Transient("the bucket does not answer")


@settings(max_examples=30, deadline=None)
@given(calls=st.lists(CALL, min_size=1, max_size=12))
def test_no_claim_outlives_its_call(nodes, calls):
    origin = new_origin()
    peers = [node.address for node in nodes]
    readers = [Reader(node, peers, origin) for node in nodes]
    keys = dict(zip(KEYS, origin.sizes, strict=True))
    for number, key, start, nbytes, how in calls:
        reader = readers[number]
        span = ByteRange(start, min(nbytes, NBYTES - start))
        if how == "queue is full":
            reader.cache._queue.put_nowait = refuse
        origin.before = lambda: None
        if how == "fails":
            origin.before = fail
        if how == "peer is left out before the put":
            origin.before = partial(drop_peers, reader.cache._client)
        if how == "answers late":
            # The peer grants its pages after the reader has gone on with ranges of the bucket.
            reader.cache._client.deadline_s = lambda: 0.0
        try:
            (blob,) = reader.store.get_ranges(keys[key], [span])
        except Transient:
            assert how == "fails"
        else:
            assert blob.data == body(keys[key], NBYTES)[span.offset : span.offset + span.nbytes]
        finally:
            reader.cache._queue.__dict__.pop("put_nowait", None)
            reader.cache._client.__dict__.pop("deadline_s", None)
        for node in nodes:
            wait_claims(node)
        forgive(reader.cache._client)
    for reader in readers:
        reader.close()


def refuse(item):
    raise Full


def drop_peers(client):
    """Let a client leave out all of its peers, as after a fault."""
    for address, peer in client._peers.items():
        client.failed(address, peer, "a fault of this test", time.monotonic())


def forgive(client):
    for peer in client._peers.values():
        peer.is_left_out = False


def test_release_before_its_request_leaves_no_claim(tmp_path):
    nonce = "0123456789abcdef" * 2
    with running_nodes(tmp_path, 1) as nodes:
        address = nodes[0].address
        client = PeerClient(None, PAGE)
        claims = nodes[0].folder / "claims"
        page = PageRequest("0" * 40, (0, 10), PAGE, nonce, "")
        question = page_request_head(address, "", page).encode()
        release = {
            "path": f"/v1/claims/{page.name}",
            "headers": f"Penstock-Nonce: {nonce}\r\n",
            "wait_s": 20.0,
        }
        deadline_s = time.monotonic() + PATIENCE_S
        # Requests on several connections may overtake each other.
        assert client.ask(address, "DELETE", **release).status == 200
        assert client.begin(address, [question]).answer(deadline_s, page.cut).text == "not stored"
        assert os.listdir(claims) == []
        other = page_request_head(address, "", page._replace(nonce=nonce[::-1])).encode()
        assert client.begin(address, [other]).answer(deadline_s, page.cut).text == "granted"
        # The same request again: its first answer was lost.
        assert client.begin(address, [other]).answer(deadline_s, page.cut).text == "granted"
        assert client.ask(address, "DELETE", **release).status == 200
        assert os.listdir(claims) == [page.name]
        client.close()


HOLDER = """
import sys, time
from tests.cache.peers.nodes import Node, PAGE, objects
from loader.cache.page_cache import Grant
from loader.cache.pages import page_name
from loader.cache.peers.peer_cache import PeerCache
from loader.cache.spec import NodeCache
folder, page, *peers = sys.argv[1:]
cache = PeerCache(NodeCache(path=folder, limit_bytes=10**8, page_bytes=int(page), peers=peers), lambda *_: None)
names = sys.stdin.readline().split()
assert all(isinstance(cache.read(name, (), claim=int(page)), Grant) for name in names)
print("claimed", flush=True)
time.sleep(600)
"""


def test_claims_of_a_killed_reader_expire(tmp_path, monkeypatch):
    origin = new_origin()
    with running_nodes(tmp_path, 2) as nodes:
        peers = [node.address for node in nodes]
        reader = Reader(nodes[0], peers, origin)
        names = [reader.store.page_name(key, number) for key in origin.sizes for number in range(7)]
        holder = subprocess.Popen(
            [sys.executable, "-c", HOLDER, str(nodes[0].folder), str(PAGE), *peers],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            text=True,
        )
        try:
            holder.stdin.write(" ".join(names) + "\n")
            holder.stdin.flush()
            assert holder.stdout.readline() == "claimed\n"
        finally:
            holder.kill()
            holder.communicate()
        # While the claims are valid, the ranges come from the bucket.
        for key, nbytes in origin.sizes.items():
            (blob,) = reader.store.get_ranges(key, [ByteRange(0, nbytes)])
            assert blob.data == body(key, nbytes)
        assert reader.counts["peer_hits"] == 0
        monkeypatch.setattr(claims_module, "CLAIM_S", 0.0)
        time.sleep(0.01)
        for _ in range(2):
            for key, nbytes in origin.sizes.items():
                reader.store.get_ranges(key, [ByteRange(0, nbytes)])
            for node in nodes:
                wait_claims(node)
        assert reader.counts["peer_hits"] > 0
        reader.close()
