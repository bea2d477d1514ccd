"""Range reads of one object from nginx: requests and processor seconds, client by client."""

import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import Random
from typing import Any

from .. import page
from ..contest import PeerError, Runner
from ..throughput import say
from .clients import CLIENTS, TLS_CLIENTS
from .servers import nginx

OBJECT, OBJECT_BYTES = "object", 256 * 2**20
SMALL, PAGE = 64 * 2**10, 2**20
"""A range of some samples, and what the loader's cache asks for."""
AT_ONCE = 16
ASKED = {"nginx": tuple(CLIENTS), "nginx-tls": TLS_CLIENTS}
"""Server -> clients."""
WARM_S, TURN_S = 0.2, 1.0
GIB = 2**30
AIMS = {"s3fs": 4.0, "obstore": 1 / 1.15}
"""penstock's requests per second are at least so many times those of."""
KEPT_FOR = 1.5
"""obstore's processor time over penstock's, for ranges of 1 MiB over TLS: below it reading S3 directly goes."""

Turns = Mapping[int, page.Turns]
"""Bytes of a range -> client -> turns."""


@contextmanager
def _served(server: str, folder: Path, block: bytes) -> Iterator[tuple[str, str]]:
    """(endpoint, certificate of its authority) of a server that has the object, made of blocks. Raises: NoServer."""
    blocks = OBJECT_BYTES // len(block)
    with nginx(folder, tls=server == "nginx-tls") as (endpoint, bucket, authority):
        with (bucket / OBJECT).open("wb") as file:
            for _ in range(blocks):
                file.write(block)
        (bucket / OBJECT).chmod(0o644)
        yield endpoint, authority


def measure(server: str, folder: Path, rounds: int, until: float) -> tuple[Turns, dict[str, str]]:
    """Turns, and why a client does not take part. In each round every client has its turn, alone; the order of clients
    turns over from round to round; none begins after `until` (monotonic). Raises: NoServer."""
    block = Random(5).randbytes(2**20)
    turns: dict[int, dict[str, list[Mapping[str, Any]]]] = {size: {} for size in (SMALL, PAGE)}
    failed: dict[str, str] = {}
    with _served(server, folder, block) as (endpoint, authority), ExitStack() as stack:
        runners = {}
        for name in ASKED[server]:
            runner = stack.enter_context(
                Runner(name, folder / f"{name}.log", module="benchmarks.stores.clients")
            )
            try:
                runner.ask(
                    "open",
                    endpoint=endpoint,
                    key=OBJECT,
                    nbytes=OBJECT_BYTES,
                    expected=block[-16:].hex(),
                    authority=authority,
                )
                runners[name] = runner
            except PeerError as error:
                failed[name] = str(error)
        for runner in runners.values():
            with runner.running():
                pass
        for number in range(rounds):
            for size, of in turns.items():
                asked = {"concurrency": AT_ONCE, "size": size}
                for name in _turned(list(runners), number):
                    with runners[name].running():
                        runners[name].ask("turn", **asked, seconds=WARM_S)
                        turn = runners[name].ask("turn", **asked, seconds=TURN_S)
                    of.setdefault(name, []).append(turn)
            say(f"reads from {server}: round {number + 1} of {rounds}")
            if time.monotonic() > until:
                break
    return turns, failed


def cpu_per_gib(turn: Mapping[str, Any], size: int) -> float:
    """The client's own processor seconds for a GiB."""
    return float(turn["cpu_s"] / (turn["samples"] * size) * GIB)


HEAD = f"""\
## Range reads

Random ranges of an object of {OBJECT_BYTES // 2**20} MiB, {AT_ONCE} at once, from nginx (page cache, no signatures).
Reading S3 directly stays while obstore takes {KEPT_FOR:g} times the processor time for 1 MiB over TLS.

| ranges | penstock, requests/s | than obstore | than s3fs | than boto3 |
| --- | --- | --- | --- | --- |"""


def rows(server: str, turns: Turns) -> Iterator[str]:
    """Rows of the table."""
    for size, of in turns.items():
        cells = [f"{size // 1024} KiB{' over TLS' if server == 'nginx-tls' else ''}"]
        for name in CLIENTS:
            if name not in of:
                cells.append("")
                continue
            cpu_s = statistics.median(cpu_per_gib(turn, size) for turn in of[name])
            if name == "penstock":
                cells.append(f"{statistics.median(map(page.rate, of[name])):,.0f}; {cpu_s:.1f} s")
            else:
                found = page.ratios(of, "penstock", name)
                reached = statistics.median(found) >= AIMS.get(name, 0)
                cells.append(f"{page.judged(page.shown(found), reached)}; {cpu_s:.1f} s")
        yield f"| {' | '.join(cells)} |"


def _turned(names: Sequence[str], by: int) -> list[str]:
    by %= len(names)
    return [*names[by:], *names[:by]]
