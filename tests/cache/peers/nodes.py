"""Nodes of a cluster's cache on this machine: a folder and a server process each."""

import os
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import ExitStack, contextmanager

import pytest

from loader.cache.cached_store import CachedStore
from loader.cache.object_sets import ObjectSet
from loader.cache.peers import client, health, peer_cache
from loader.cache.peers.lifetime import live_server
from loader.cache.peers.peer_cache import PeerCache
from loader.cache.peers.serve import ServeSettings, open_server
from loader.cache.spec import NodeCache
from tests.servers.patience import PATIENCE_S

PAGE = 4096
TOKEN = "a-token-of-these-tests"


class Node:
    """One node: its folder, its server, and readers on it."""

    def __init__(self, folder, limit_pages=100_000, page_bytes=PAGE):
        self.folder = folder
        self.limit_bytes = limit_pages * page_bytes
        self.page_bytes = page_bytes
        self.process = None
        self.address = None
        self._stack = ExitStack()

    def start(self):
        """Serve by a thread of this process, again at the address of before."""
        listen = self.address or "127.0.0.1:0"
        server = self._stack.enter_context(open_server(ServeSettings(cache=self.spec(None), listen=listen)))
        thread = threading.Thread(target=server.run)
        thread.start()
        self._stack.callback(thread.join, PATIENCE_S)
        self._stack.callback(server.stop)
        self.address = live_server(str(self.folder)).address

    def stop(self):
        self._stack.close()

    def start_process(self, log=subprocess.DEVNULL):
        """Serve by a process, which can be killed."""
        command = [sys.executable, "-m", "loader.cache.peers.serve", "--path", str(self.folder)]
        command += ["--listen", self.address or "127.0.0.1:0", "--page-bytes", str(self.page_bytes)]
        command += ["--limit-bytes", str(self.limit_bytes)]
        self.process = subprocess.Popen(command, stderr=log)
        self._stack.callback(self.kill)
        deadline_s = time.monotonic() + PATIENCE_S
        while (record := live_server(str(self.folder))) is None:
            assert self.process.poll() is None, "the server ended"
            assert time.monotonic() < deadline_s, "the server does not come up"
            time.sleep(0.02)
        self.address = record.address

    def kill(self):
        self.process.kill()
        self.process.wait(PATIENCE_S)

    def spec(self, peers):
        return NodeCache(
            path=self.folder, limit_bytes=self.limit_bytes, page_bytes=self.page_bytes, peers=peers
        )


PATIENT = {
    client: ("CONNECT_S", "BODY_S"),
    health: ("LATE_S", "MOST_WAIT_S"),
    peer_cache: ("SEND_S", "CLOSE_S"),
}
"""Deadlines of readers, set to DEADLINE_S, which no busy machine exceeds."""
DEADLINE_S = 20.0


@contextmanager
def running_nodes(folder, n, *, is_patient=True, **settings):
    """Yield n nodes whose servers run. is_patient: readers wait long, so that a busy machine leaves no peer out."""
    nodes = [Node(folder / f"node{number}", **settings) for number in range(n)]
    with ExitStack() as stack:
        patched = stack.enter_context(pytest.MonkeyPatch.context())
        if is_patient:
            for module, names in PATIENT.items():
                for name in names:
                    patched.setattr(module, name, DEADLINE_S)
        for node in nodes:
            node.start()
            stack.callback(node.stop)
        yield nodes


class Reader:
    """A loader's cache on a node, and a store that is read through it."""

    def __init__(self, node, peers, origin):
        self.counts = Counter()
        self.cache = PeerCache(node.spec(peers), self._count, lambda: [objects(origin)])
        self.store = CachedStore(origin, self.cache, origin.content, 0.0)

    def _count(self, name, amount):
        self.counts[name.removeprefix("cache_")] += amount

    def close(self):
        self.cache.close()


def objects(origin):
    """Return the set of an origin's objects."""
    contents = [origin.content(key) for key in origin.sizes]
    return ObjectSet.of([(content.sha256, content.nbytes) for content in contents])


def wait_claims(node, key=None):
    """Wait until no claim is in the folder of a node."""
    deadline_s = time.monotonic() + PATIENCE_S
    while os.listdir(node.folder / "claims"):
        assert time.monotonic() < deadline_s, "a claim was left"
        time.sleep(0.01)
