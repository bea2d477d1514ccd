"""Raw images from a store that answers after 20 ms: the start, steady speed, and going on in mid-epoch.

Every race is a process of its own with nothing cached: what is timed begins when its libraries are imported, and ends
with the last batch. The store's own process takes its share of the cores from everybody.
"""

import shutil
from pathlib import Path
from typing import Any

from .contest import PeerError
from .latency_server import Served, latency_store
from .rows import LIMIT, Store
from .throughput import Bench, Turns, checked, say

LIMIT_S, CHECKED = 10.0, 10


def measure(bench: Bench, row: Store, rounds: int) -> tuple[Turns, dict[str, float], dict[str, str]]:
    """As `throughput.measure`; each turn is a race from nothing over `row.part` of an epoch, or from the state at
    `row.resume_at` of one to its first batch, with the bytes that the store had served by then."""
    turns: Turns = {}
    spread: dict[str, float] = {}
    failed: dict[str, str] = {}
    ways = bench.ways(row.name)
    samples = int(row.part * bench.samples(row))
    with latency_store(bench.folder, row.latency_s) as server:
        states = {}
        for peer, label in ways:
            name = bench.title(peer, label)
            try:
                bench.prepared(row, peer)
                if row.resume_at:
                    with bench.runner(peer) as runner:
                        after = int(row.resume_at * bench.samples(row)) // row.batch * row.batch
                        states[name] = runner.ask(
                            "state", samples=after, task=task(bench, row, peer, label, server)
                        )
            except PeerError as error:
                failed[name] = str(error)
                say(f"{row.name}, {name}: {error}")
        for number in range(rounds):
            for peer, label in ways:
                name = bench.title(peer, label)
                if name in failed:
                    continue
                given = task(bench, row, peer, label, server) | states.get(name, {})
                try:
                    with bench.runner(peer) as runner:
                        runner.ask("hello")
                        runner.ask("open", row=row.name, label=label, task=given)
                        server.served()
                        turn = runner.ask("race", samples=max(samples, row.batch), limit_s=LIMIT_S)
                        turn["requests"], turn["bytes"] = server.served()
                        if number == 0 and peer != LIMIT:
                            spread[name] = checked(runner.ask("check", n=CHECKED))
                    turns.setdefault(name, []).append(turn)
                except PeerError as error:
                    failed[name] = str(error)
                    say(f"{row.name}, {name}: {error}")
            say(f"{row.name}: round {number + 1} of {rounds}")
    return {name: found for name, found in turns.items() if name not in failed}, spread, failed


def task(bench: Bench, row: Store, peer: str, label: str, server: Served) -> dict[str, Any]:
    """The contestant's task, with its own folder emptied."""
    given = bench.task(row, peer, label) | {"store": server.options["endpoint_url"]}
    shutil.rmtree(given["scratch"])
    Path(given["scratch"]).mkdir()
    return given
