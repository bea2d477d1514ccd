"""`python -m benchmarks.items`: penstock beside torch's DataLoader, Grain and StatefulDataLoader over one dataset.

Each contestant is a process of its own, and they take turns. Processor time and memory are those of all its processes.
Memory is counted as PSS, so a page that several share counts once. A peer that is not installed is named as absent. The
table goes to docs/benchmarks.md.
"""

import argparse
import os
import platform
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import sections
from ..contest import PeerError, Runner
from ..data import make
from ..throughput import say, turns_in_order
from . import page
from .datasets import write_photos

PEERS = ("penstock", "torch", "torchdata", "grain")
BATCH = 256
WARM_S = 1.0
SETTLE_S = 4.0  # `auto` chooses meanwhile
TURN_S = 3.0
RESUME_STEP = 1_000_000


@dataclass(frozen=True, kw_only=True)
class Row:
    """What is measured."""

    title: str
    n: int
    """Items; MiB for arrays."""
    batch: int = BATCH
    measures: str
    """Request of the contestant: "turn", "epoch" or "resume"."""


ROWS = {
    "photos": Row(title="photos: decode, crop", n=4_000, batch=64, measures="turn"),
    "small": Row(title="items of 1 us", n=200_000, measures="turn"),
    "arrays": Row(title="500 MiB of arrays", n=500, measures="epoch"),
    "strings": Row(title="1e6 Python strings", n=1_000_000, measures="epoch"),
    "resume": Row(title="resume at step 1e6 of 1e9 items", n=1_000_000_000, measures="resume"),
}

Values = dict[str, list[dict[str, Any]]]
"""Contestant -> what it measured in each round."""


def parser() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(prog="python -m benchmarks.items", description=__doc__)
    options.add_argument("--rows", default=",".join(ROWS), help="of: %(default)s")
    options.add_argument("--peers", default=",".join(PEERS), help="of: %(default)s")
    options.add_argument("--workers", type=int, default=2)
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--scale", type=float, default=1, help="datasets of this part of their size")
    options.add_argument("--note", default="", help="a sentence for the section, about the machine")
    options.add_argument("--out", type=Path, help="write here, not to docs/benchmarks.md")
    return options


def main() -> int:
    given = parser().parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that all processes are ended
    with tempfile.TemporaryDirectory() as temporary:
        text = run(given, Path(temporary))
    sections.write("benchmarks.items", text, given.out)
    print(text)
    return 0


def run(given: argparse.Namespace, folder: Path) -> str:
    """Return the section of the page."""
    peers = Peers(given.peers.split(","), folder)
    tables = []
    for name in given.rows.split(","):
        row = ROWS[name]
        if name == "photos":
            n_photos = scaled(row.n, given.scale)
            write_photos(make("images", folder / "images", n_photos), folder / "photos")
        values, failed = measured(peers, name, given)
        tables.append(page.Table(name=name, title=row.title, values=values, failed=failed))
    command = ["python -m benchmarks.items"]
    usual = vars(parser().parse_args([]))
    for option in ("rows", "peers", "workers", "rounds", "scale"):
        value = getattr(given, option)
        if value != usual[option]:
            command.append(f"--{option} {value}")
    machine = f"{platform.machine()}, Python {platform.python_version()}, {os.cpu_count()} cores"
    say(page.details(tables))
    return page.section(" ".join(command), machine, given.note, peers.versions, peers.absent, tables)


class Peers:
    """The contestants that are installed."""

    def __init__(self, names: list[str], folder: Path) -> None:
        self.folder = folder
        self.labels: dict[str, dict[str, list[str]]] = {}
        self.versions: dict[str, str] = {}
        self.absent: dict[str, str] = {}
        for name in names:
            try:
                with self.runner(name) as runner:
                    hello = runner.ask("hello")
            except PeerError as error:
                self.absent[name] = str(error)
                continue
            self.labels[name] = hello["labels"]
            self.versions[name] = hello["version"]

    def runner(self, name: str) -> Runner:
        return Runner(name, self.folder / "log", "benchmarks.items.contestant")

    def ways(self, row: str) -> Iterator[tuple[str, str]]:
        for name, labels in self.labels.items():
            for label in labels.get(row, []):
                yield name, label


def measured(peers: Peers, name: str, given: argparse.Namespace) -> tuple[Values, dict[str, str]]:
    """Return what each contestant measured, and why others did not."""
    row = ROWS[name]
    values: Values = {}
    failed: dict[str, str] = {}
    with ExitStack() as stack:
        runners: dict[str, Runner] = {}
        for peer, label in peers.ways(name):
            title = f"{page.TITLES.get(peer, peer)}, {label.format(given.workers)}"
            task = {
                "row": name,
                "label": label,
                "folder": str(peers.folder / "photos"),
                "n": scaled(row.n, given.scale),
                "batch": row.batch,
                "workers": given.workers,
            }
            try:
                if row.measures != "turn":
                    alone_values = alone(peers, peer, task, row, given)
                    values[title] = list(alone_values)
                    continue
                runner = stack.enter_context(peers.runner(peer))
                with runner.running():
                    first = opened(runner, task)
                    runner.ask("turn", within_s=300, warm_s=SETTLE_S * given.scale, seconds=0.1)
                runners[title] = runner
                values[title] = []
                say(f"{name}, {title}: {first}")
            except PeerError as error:
                failed[title] = str(error)
                values.pop(title, None)
                say(f"{name}, {title}: {error}")
        for _, in_turn in turns_in_order(list(runners), given.rounds, float("inf")):
            for title in in_turn:
                with runners[title].running():
                    turn = runners[title].ask(
                        "turn", within_s=300, warm_s=WARM_S * given.scale, seconds=TURN_S * given.scale
                    )
                values[title].append(turn)
    return values, failed


def alone(
    peers: Peers,
    peer: str,
    task: dict[str, Any],
    row: Row,
    given: argparse.Namespace,
) -> Iterator[dict[str, Any]]:
    """Yield what a contestant measures in a new process for each round."""
    for _ in range(given.rounds):
        with started(peers, peer) as runner:
            first = opened(runner, task, waits=row.measures == "epoch")
            if row.measures == "resume":
                found = runner.ask("resume", within_s=300, step=scaled(RESUME_STEP, given.scale))
            else:
                found = runner.ask("epoch", within_s=600)
        say(f"{task['row']}, {peer}, {task['label']}: {first | found}")
        yield first | found


@contextmanager
def started(peers: Peers, peer: str) -> Iterator[Runner]:
    with peers.runner(peer) as runner, runner.running():
        yield runner


def opened(runner: Runner, task: dict[str, Any], *, waits: bool = True) -> dict[str, Any]:
    """Open a contestant; return its first batch's seconds if that is waited for."""
    runner.ask("hello")  # imports come before the clock of the first batch
    runner.ask("open", **task)
    if not waits:
        return {}
    first: dict[str, Any] = runner.ask("first", within_s=300)
    return first


def scaled(n: int, scale: float) -> int:
    return max(1, round(n * scale))


if __name__ == "__main__":
    raise SystemExit(main())
