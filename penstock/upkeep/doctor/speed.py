"""The speed of a store: requests of several sizes, by several threads at once, each cell for a fixed time."""

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from random import Random
from threading import Barrier
from typing import Literal, NamedTuple

from loader.storage import Store

from ...units import size
from .scratch import Scratch

READ_BYTES = (64 * 2**10, 2**20, 16 * 2**20)
WRITE_BYTES = (64 * 2**10, 4 * 2**20)
CONCURRENCIES = (1, 4, 16, 64)
WRITERS = (1, 8)
IN_FLIGHT_BYTES = 256 * 2**20
"""Bytes; cells that would hold more than this are left out."""
OBJECT_BYTES = 64 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """The measurement of one cell."""

    verb: Literal["read", "write"]
    """Reads or writes."""
    nbytes: int
    """Bytes of a request."""
    concurrency: int
    """Threads at once."""
    n_requests: int
    """Requests of all threads."""
    requests_per_second: float
    """Requests of all threads per second."""
    bytes_per_second: float
    """Bytes of all threads per second."""
    median_s: float
    """The median latency of single requests, in seconds."""
    p99_s: float
    """Their 99 % quantile."""
    cpu_s_per_gib: float
    """This process's processor time, in seconds per GiB."""


class Cell(NamedTuple):
    """A kind of request to measure."""

    verb: Literal["read", "write"]
    """Reads or writes."""
    nbytes: int
    """Bytes of a request."""
    concurrency: int
    """Threads at once."""


def cells() -> Iterator[Cell]:
    """Yield the cells to measure: reads from small to large, then writes."""
    for verb, sizes, threads in (("read", READ_BYTES, CONCURRENCIES), ("write", WRITE_BYTES, WRITERS)):
        for nbytes in sizes:
            for concurrency in threads:
                if nbytes * concurrency <= IN_FLIGHT_BYTES:
                    yield Cell("read" if verb == "read" else "write", nbytes, concurrency)


def prepare(scratch: Scratch) -> str:
    """Return the key of an object to read from. Raises: StoreError."""
    key = scratch.key("speed/object")
    scratch.store.put(key, Random(3).randbytes(2**20) * (OBJECT_BYTES // 2**20))
    return key


def measured(scratch: Scratch, source: str, cell: Cell, seconds: float) -> Speed:
    """Measure a cell for so long, with one request per thread at least. Raises: StoreError."""
    store, data = scratch.store, Random(4).randbytes(cell.nbytes) if cell.verb == "write" else b""
    targets = (
        [scratch.key(f"speed/{cell.nbytes}-{thread}") for thread in range(cell.concurrency)] if data else []
    )

    def once(thread: int, random: Random) -> None:
        if data:
            store.put(targets[thread], data)
        else:
            _read(store, source, random.randrange(OBJECT_BYTES - cell.nbytes + 1), cell.nbytes)

    cpu_s, begun = time.process_time(), time.perf_counter()
    latencies = sorted(_repeated(once, cell.concurrency, seconds))
    took, cpu_s = time.perf_counter() - begun, time.process_time() - cpu_s
    moved = len(latencies) * cell.nbytes
    return Speed(
        verb=cell.verb,
        nbytes=cell.nbytes,
        concurrency=cell.concurrency,
        n_requests=len(latencies),
        requests_per_second=len(latencies) / took,
        bytes_per_second=moved / took,
        median_s=latencies[len(latencies) // 2],
        p99_s=latencies[min(len(latencies) - 1, len(latencies) * 99 // 100)],
        cpu_s_per_gib=cpu_s / moved * 2**30,
    )


def table(speeds: Sequence[Speed]) -> Iterator[str]:
    """Yield lines of a table, the first its header."""
    heads = f"{'size':>8} {'at once':>8} {'requests/s':>11} {'MB/s':>9} {'median ms':>10} {'p99 ms':>9}"
    yield f"{'':<6}{heads} {'CPU s/GiB':>10}"
    for one in speeds:
        yield (
            f"{one.verb:<6}{whole_size(one.nbytes):>8} {one.concurrency:>8} {one.requests_per_second:>11,.0f} "
            f"{one.bytes_per_second / 1e6:>9,.0f} {1e3 * one.median_s:>10.2f} {1e3 * one.p99_s:>9.2f} "
            f"{one.cpu_s_per_gib:>10.1f}"
        )


def whole_size(nbytes: int) -> str:
    """Return a size such as '64 KiB': sizes here are powers of two."""
    return size(nbytes).replace(".0 ", " ")


def _read(store: Store, key: str, offset: int, nbytes: int) -> None:
    store.get_range(key, offset, nbytes)


def _repeated(once: Callable[[int, Random], None], concurrency: int, seconds: float) -> list[float]:
    """Return the seconds of every call."""
    start = Barrier(concurrency)

    def work(thread: int) -> list[float]:
        random, took = Random(thread), list[float]()
        start.wait()
        until = time.perf_counter() + seconds
        while True:
            begun = time.perf_counter()
            once(thread, random)
            ended = time.perf_counter()
            took.append(ended - begun)
            if ended >= until:
                return took

    with ThreadPoolExecutor(concurrency) as threads:
        return [seconds for one in threads.map(work, range(concurrency)) for seconds in one]
