"""Range reads of one object, from nginx and from Ceph: requests and processor seconds, client by client."""

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
from .servers import ceph, nginx, store_of
from .transfers import make_bucket

OBJECT, OBJECT_BYTES = "object", {"nginx": 256 * 2**20, "nginx-tls": 256 * 2**20, "ceph": 64 * 2**20}
ONE, SMALL, PAGE = 8 * 2**10, 64 * 2**10, 2**20
"""A range of a sample, of some samples, and what the loader's cache asks for."""
CASES = {
    "nginx": ((1, SMALL), (16, SMALL), (64, SMALL), (16, PAGE)),
    "nginx-tls": ((1, SMALL), (16, SMALL), (64, SMALL), (1, PAGE), (16, PAGE)),
    "ceph": ((1, ONE), (1, SMALL), (16, ONE), (16, PAGE)),
}
"""Server -> (at once, bytes)."""
ASKED = {"nginx": tuple(CLIENTS), "nginx-tls": TLS_CLIENTS, "ceph": ("penstock", "obstore", "s3fs")}
"""Server -> clients."""
WARM_S, TURN_S = 0.2, 1.0
GIB = 2**30
AIMS = (("s3fs", 4.0), ("obstore", 1 / 1.15))
"""At 16 at once: penstock's requests per second are at least so many times those of."""
KEPT_FOR = 1.5
"""obstore's processor time over penstock's, at 16 ranges of 1 MiB over TLS: below it reading S3 directly goes."""

Turns = Mapping[tuple[int, int], page.Turns]
"""Case -> client -> turns."""


@contextmanager
def _served(server: str, folder: Path, block: bytes) -> Iterator[tuple[str, str]]:
    """(endpoint, certificate of its authority) of a server that has the object, made of blocks. Raises: NoServer."""
    blocks = OBJECT_BYTES[server] // len(block)
    if server == "ceph":
        with ceph(folder) as endpoint:
            make_bucket(endpoint)
            store = store_of(endpoint, "")
            store.put(OBJECT, block * blocks)
            store.close()
            yield endpoint, ""
        return
    with nginx(folder, tls=server == "nginx-tls") as (endpoint, bucket, authority):
        with (bucket / OBJECT).open("wb") as file:
            for _ in range(blocks):
                file.write(block)
        (bucket / OBJECT).chmod(0o644)
        yield endpoint, authority


def measure(server: str, folder: Path, rounds: int, until: float) -> tuple[Turns, dict[str, str]]:
    """Turns, and why a client does not take part. In each round every client has its turn, alone; the order of clients
    turns over from round to round; none begins after `until` (monotonic). Raises: NoServer."""
    cases, nbytes, block = CASES[server], OBJECT_BYTES[server], Random(5).randbytes(2**20)
    turns: dict[tuple[int, int], dict[str, list[Mapping[str, Any]]]] = {case: {} for case in cases}
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
                    nbytes=nbytes,
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
            for case in cases:
                asked = dict(zip(("concurrency", "size"), case, strict=True))
                for name in _turned(list(runners), number):
                    with runners[name].running():
                        runners[name].ask("turn", **asked, seconds=WARM_S)
                        turn = runners[name].ask("turn", **asked, seconds=TURN_S)
                    turns[case].setdefault(name, []).append(turn)
            say(f"reads from {server}: round {number + 1} of {rounds}")
            if time.monotonic() > until:
                break
    return turns, failed


def cpu_per_gib(turn: Mapping[str, Any], size: int) -> float:
    """The client's own processor seconds for a GiB."""
    return float(turn["cpu_s"] / (turn["samples"] * size) * GIB)


SAID = {
    "nginx": "## Range reads\n\n"
    "Random ranges of one object of {mib} MiB, from nginx on this machine (the page cache, no signatures).\n",
    "nginx-tls": "## Range reads over TLS\n\n"
    "Clients that take a certificate authority; nginx with OpenSSL.\n",
    "ceph": "## Range reads from Ceph\n\nAn object of {mib} MiB, from Ceph on this machine as installed.\n",
}


def section(server: str, turns: Turns, failed: Mapping[str, str]) -> Iterator[str]:
    """Markdown."""
    yield SAID[server].format(mib=OBJECT_BYTES[server] // 2**20)
    yield "| at once | KiB | client | requests/s | processor s/GiB | penstock is faster by |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for (concurrency, size), of in turns.items():
        at = f"{concurrency} | {size // 1024}"
        for name, found in of.items():
            rates = [page.rate(turn) for turn in found]
            cpu = [cpu_per_gib(turn, size) for turn in found]
            ratio = "" if name == "penstock" else page.shown(page.ratios(of, "penstock", name))
            shown = f"{page.shown(rates, 0)} | {statistics.median(cpu):.1f} | {ratio}"
            yield f"| {at} | {name} | {shown} |"
            at = "|"
    yield ""
    for name, why in failed.items():
        yield f"{name} does not take part: {why}\n"


def verdicts(turns: Turns) -> Iterator[str]:
    """Rows of the page's table of aims."""
    for (concurrency, size), of in turns.items():
        for name, at_least in AIMS if concurrency == 16 else ():
            if name in of:
                pairs = zip(of[name], of["penstock"], strict=True)
                cpu = [cpu_per_gib(a, size) / cpu_per_gib(b, size) for a, b in pairs]
                for what, found in (("rate", page.ratios(of, "penstock", name)), ("processor time", cpu)):
                    reached = "yes" if statistics.median(found) >= at_least else "no"
                    row = f"ranges of {size // 1024} KiB, 16 at once, {what} | {name} | {at_least:.2f}"
                    yield f"| {row} | {page.shown(found)} | {reached} |"


def tls_verdict(turns: Turns) -> Iterator[str]:
    """Row of the page's table of aims."""
    of = turns[16, PAGE]
    pairs = zip(of["obstore"], of["penstock"], strict=True)
    found = [cpu_per_gib(a, PAGE) / cpu_per_gib(b, PAGE) for a, b in pairs]
    reached = "yes" if statistics.median(found) >= KEPT_FOR else "no"
    row = f"ranges of {PAGE // 1024} KiB over TLS, 16 at once, processor time | obstore | {KEPT_FOR:.2f}"
    yield f"| {row} | {page.shown(found)} | {reached} |"


def _turned(names: Sequence[str], by: int) -> list[str]:
    by %= len(names)
    return [*names[by:], *names[:by]]
