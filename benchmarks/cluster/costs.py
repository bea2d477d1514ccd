"""Costs of a page from a peer: processor time of both sides, and memory of a server."""

import os
import socket
import time
from contextlib import ExitStack
from itertools import count, islice
from pathlib import Path

from loader.cache.answers import Grant
from loader.cache.cached_store import CachedStore, Content
from loader.cache.node_cache import OpenCache
from loader.cache.pages import page_name
from loader.cache.peers.peer_cache import PeerCache
from loader.cache.spec import NodeCache
from loader.storage import ByteRange, open_store

from .cluster import Node

PAGES = 64
READS = 3000
PAGE_BYTES = 2**20
CUT_BYTES = 100_000
CONNECTIONS = 1000
TICKS = os.sysconf("SC_CLK_TCK")


def page_costs(folder: Path) -> tuple[float, float, float]:
    """Return the processor time of 100 kB in us: from the disk, and of a peer's reader and server."""
    owner = Node(folder / "owner", 2**30)
    reader = Node(folder / "reader", 2**30)
    try:
        owner.serve()
        reader.serve()
        peers = [owner.address, reader.address]
        local = OpenCache(NodeCache(path=owner.folder, limit_bytes=2**30), _count)
        remote = PeerCache(NodeCache(path=reader.folder, limit_bytes=2**30, peers=peers), _count)
        candidates = (f"{number:064x}" for number in count())
        keys = list(islice((key for key in candidates if not remote.is_own(_page(key))), PAGES))
        for key in keys:
            name = _page(key)
            grant = local.read(name, (), claim=PAGE_BYTES)
            assert isinstance(grant, Grant)
            local.put(name, grant.nonce, os.urandom(PAGE_BYTES))
        local_us = _reader_us(local, keys)
        assert owner.server is not None
        before_s = _process_s(owner.server.pid)
        peer_us = _reader_us(remote, keys)
        server_us = (_process_s(owner.server.pid) - before_s) / READS * 1e6
        remote.close()
        local.close()
    finally:
        owner.kill()
        reader.kill()
    return local_us, peer_us, server_us


def connection_memory_mb(folder: Path) -> float:
    """Return the resident memory of a server while 1,000 connections have begun heads and bodies."""
    node = Node(folder, 2**30)
    try:
        node.serve()
        assert node.server is not None
        host, port = node.address.split(":")
        head = (
            b"PUT /v1/pages/"
            + b"0" * 40
            + b" HTTP/1.1\r\nPenstock-Nonce: 1-1\r\nContent-Length: 1048576\r\n\r\n"
        )
        with ExitStack() as stack:
            peak = 0.0
            for number in range(CONNECTIONS):
                connection = stack.enter_context(socket.create_connection((host, int(port))))
                connection.setblocking(False)
                connection.send(head + bytes(60_000) if number % 2 else head[:60])
            until_s = time.monotonic() + 3
            while time.monotonic() < until_s:
                peak = max(peak, _resident_mb(node.server.pid))
                time.sleep(0.05)
            return peak
    finally:
        node.kill()


def _reader_us(cache: OpenCache | PeerCache, keys: list[str]) -> float:
    """Return the processor time of a range that a loader reads through its cache. keys: of objects of one page."""
    origin = open_store(f"memory://cluster-{id(cache)}")
    store = CachedStore(origin, cache, lambda key: Content(key, PAGE_BYTES), 0.0)
    for key in keys:
        store.get_ranges(key, [ByteRange(0, CUT_BYTES)])
    begun_s = time.process_time()
    for number in range(READS):
        store.get_ranges(keys[number % PAGES], [ByteRange(number * 1009 % 900_000, CUT_BYTES)])
    return (time.process_time() - begun_s) / READS * 1e6


def _page(sha256: str) -> str:
    return page_name(sha256, PAGE_BYTES, 0)


def _process_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def _resident_mb(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def _count(name: str, amount: int) -> None: ...
