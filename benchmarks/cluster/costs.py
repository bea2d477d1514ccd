"""Costs of a page from a peer: processor time of both sides, and memory of a server."""

import os
import socket
import time
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import count, islice
from pathlib import Path
from typing import NamedTuple

from loader.cache.cached_ranges import Content
from loader.cache.cached_store import CachedStore
from loader.cache.node_cache import OpenCache
from loader.cache.page_cache import Grant
from loader.cache.pages import page_name
from loader.cache.peers.peer_cache import PeerCache
from loader.cache.spec import NodeCache
from loader.storage import ByteRange, open_store

from .bare_sockets import bare_sockets_us
from .cluster import Node

PAGES = 64
READS = 3200
ROUNDS = 5
KEY = f"{1:064x}"
"""The object of all pages."""
PAGE_BYTES = 2**20
CUT_BYTES = 100_000
CONNECTIONS = 1000


class PageCosts(NamedTuple):
    """Processor time of 100 kB, in us."""

    disk_us: float
    """From the page of a folder of this node."""
    reader_us: float
    """Of the reader of a peer's page."""
    server_us: float
    """Of the peer's server."""
    sockets_us: float
    """Of both sides, if the kernel alone sends the bytes of an open file."""

    @property
    def ratio(self) -> float:
        """Both sides as a multiple of the disk's."""
        return (self.reader_us + self.server_us) / self.disk_us


def page_costs(folder: Path, pages_per_call: Sequence[int]) -> list[PageCosts]:
    """Return the costs of a page for each number of pages that a call reads: the least of ROUNDS each."""
    owner = Node(folder / "owner", 2**30)
    reader = Node(folder / "reader", 2**30)
    try:
        owner.serve()
        reader.serve()
        peers = [owner.address, reader.address]
        local = OpenCache(NodeCache(path=owner.folder, limit_bytes=2**30), _count)
        remote = PeerCache(NodeCache(path=reader.folder, limit_bytes=2**30, peers=peers), _count)
        numbers = list(islice((number for number in count() if not remote.is_own(_page(number))), PAGES))
        for number in numbers:
            name = _page(number)
            grant = local.read(name, (), claim=PAGE_BYTES)
            assert isinstance(grant, Grant)
            local.put(name, grant.nonce, os.urandom(PAGE_BYTES))
        assert owner.server is not None
        server_pid = owner.server.pid
        costs = [_least_costs(local, remote, server_pid, numbers, n) for n in pages_per_call]
        remote.close()
        local.close()
    finally:
        owner.kill()
        reader.kill()
    return costs


def _least_costs(
    local: OpenCache,
    remote: PeerCache,
    server_pid: int,
    numbers: Sequence[int],
    n: int,
) -> PageCosts:
    """Return the least of ROUNDS costs of calls that read n pages each."""
    disk_us: list[float] = []
    reader_us: list[float] = []
    server_us: list[float] = []
    sockets_us: list[float] = []
    for _ in range(ROUNDS):
        disk_us.append(_reader_us(local, numbers, n))
        begun_s = _process_s(server_pid)
        reader_us.append(_reader_us(remote, numbers, n))
        server_us.append((_process_s(server_pid) - begun_s) / READS * 1e6)
        sockets_us.append(bare_sockets_us(READS, CUT_BYTES, n))
    return PageCosts(min(disk_us), min(reader_us), min(server_us), min(sockets_us))


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


def _reader_us(cache: OpenCache | PeerCache, numbers: Sequence[int], n: int) -> float:
    """Return the processor time of a range that a loader reads through its cache, n ranges at a time.

    A batch reads one range, and reading ahead one list of ranges. numbers: of pages of one object.
    """
    origin = open_store(f"memory://cluster-{id(cache)}")
    content = Content(KEY, (max(numbers) + 1) * PAGE_BYTES)
    store = CachedStore(origin, cache, lambda key: content, 0.0)
    calls: list[list[ByteRange]] = []
    for begin in range(0, READS, n):
        ranges: list[ByteRange] = []
        for read in range(begin, begin + n):
            page = numbers[read % PAGES]
            one_range = ByteRange(page * PAGE_BYTES + read * 1009 % 900_000, CUT_BYTES)
            ranges.append(one_range)
        calls.append(ranges)
    store.lend_ranges(KEY, [(number * PAGE_BYTES, CUT_BYTES) for number in numbers])
    begun_s = time.process_time()
    for call in calls:
        if n == 1:
            store.lend_ranges(KEY, call)
        else:
            store.get_cached_ranges([(KEY, call)])
    return (time.process_time() - begun_s) / READS * 1e6


def _page(number: int) -> str:
    return page_name(KEY, PAGE_BYTES, number)


def _process_s(pid: int) -> float:
    """Return the processor time of another process of this user. /proc counts ticks of 10 ms only."""
    clock = (~pid << 3) | 2  # the kernel's number of a process's clock: clock_getcpuclockid(3)
    return time.clock_gettime(clock)


def _resident_mb(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def _count(name: str, amount: int) -> None: ...
