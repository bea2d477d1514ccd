"""Steady speed: contestants that are open side by side take turns; all but one are stopped."""

import math
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from .contest import PeerError, Runner
from .data import Data, make
from .photos import resizer
from .rows import AS_IT_COMES, LIMIT, TITLES, Row

WARM_S, TURN_S, CHECKED = 0.25, 0.6, 20
SETTLE_S = 6.0
"""What comes as it is chooses meanwhile, and not in its turns, between which it is stopped."""

Turns = dict[str, list[dict[str, Any]]]
"""Name of a contestant -> what each of its turns measured, and its start."""


class Bench:
    """Peers, their data in a folder, and the log that their libraries write."""

    def __init__(self, folder: Path, peers: Iterable[str], scale: float = 1, workers: int = 2) -> None:
        self.folder, self.scale, self.workers = folder, scale, workers
        self.log = folder / "peers.log"
        self.known: dict[str, dict[str, Any]] = {}
        self.failed: dict[str, str] = {}
        self.record: Callable[[dict[str, Any]], None] = lambda turn: None
        self._prepared: set[Path] = set()
        for peer in peers:
            try:
                with self.runner(peer) as runner:
                    self.known[peer] = runner.ask("hello")
            except PeerError as error:
                self.failed[peer] = str(error)
                say(f"{peer}: {error}")

    def runner(self, peer: str) -> Runner:
        """Raises: PeerError."""
        return Runner(peer, self.log)

    @property
    def versions(self) -> dict[str, str]:
        return {peer: hello["version"] for peer, hello in self.known.items() if hello["version"]}

    def data(self, row: Row) -> Path:
        """The row's samples, made at its first use."""
        folder = self.folder / row.kind
        if not folder.exists():
            say(f"making {row.kind}")
            make(row.kind, folder, self.samples(row))
        return folder

    def samples(self, row: Row) -> int:
        return max(20 * row.batch, round(row.samples * self.scale))

    def mean_bytes(self, row: Row) -> float:
        """Stored bytes of a sample."""
        return Data(row.kind, self.data(row)).mean_bytes

    def prepared(self, row: Row, peer: str) -> Path:
        """The row's samples in a peer's format, made at the first use. Raises: PeerError."""
        data, folder = self.data(row), self.folder / f"{row.kind}-{peer}"
        if folder not in self._prepared and not folder.exists():
            with self.runner(peer) as runner:
                runner.ask("prepare", within_s=300, kind=row.kind, data=str(data), folder=str(folder))
            self._prepared.add(folder)  # of some nothing is written
        return folder

    def remove(self, kind: str) -> None:
        """Delete the samples of a kind, in every format; who wants them again makes them again."""
        self._prepared.clear()
        for path in self.folder.glob(f"{kind}*"):
            shutil.rmtree(path)

    def task(self, row: Row, peer: str, label: str) -> dict[str, Any]:
        """The `Task` of a contestant, as JSON. Raises: PeerError."""
        scratch = self.folder / "scratch" / f"{row.name}-{peer}-{label}".replace(" ", "-")
        scratch.mkdir(parents=True, exist_ok=True)
        return {
            "kind": row.kind,
            "data": str(self.data(row)),
            "folder": str(self.prepared(row, peer)),
            "scratch": str(scratch),
            "batch": row.batch,
            "decode": row.decode,
            "crop": resizer() if row.crop else "",
            "workers": self.workers,
        }

    def ways(self, name: str) -> list[tuple[str, str]]:
        """(peer, label) of all who take part in a row: what comes as it is, the limit, and the others as listed."""
        ways = [(peer, label) for peer, hello in self.known.items() for label in hello["rows"].get(name, [])]
        return sorted(ways, key=lambda way: (not way[1].startswith(AS_IT_COMES), way[0] != LIMIT))

    def title(self, peer: str, label: str) -> str:
        """The contestant's name in tables; "{}" in its label is the number of workers."""
        return f"{TITLES.get(peer, peer)}, {label.format(self.workers)}"


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def measure(
    bench: Bench,
    row: Row,
    rounds: int,
    turn_s: float = TURN_S,
    within_s: float = math.inf,
    n_checked: int = CHECKED,
) -> tuple[Turns, dict[str, float], dict[str, str]]:
    """(turns, twentieths of the data set that a batch has samples of, why others have no turns), by contestant.

    Round 0 warms: worker processes begin, files come into the page cache, and samples are checked against what they
    should be. The order of the contestants moves on by one each round. within_s: after so long no round begins, but
    the first; and after two thirds of it no contestant.
    """
    turns: Turns = {}
    spread: dict[str, float] = {}
    failed: dict[str, str] = {}
    begun = time.monotonic()
    with ExitStack() as stack:
        runners: dict[str, Runner] = {}
        opened: dict[str, dict[str, Any]] = {}
        for peer, label in bench.ways(row.name):
            name = bench.title(peer, label)
            try:
                if time.monotonic() - begun > 2 / 3 * within_s:
                    raise PeerError("no time was left")
                task = bench.task(row, peer, label)
                runners[name] = stack.enter_context(bench.runner(peer))
                opened[name] = _open(runners[name], row, peer, label, task, turn_s, n_checked)
                if "groups" in opened[name]:
                    spread[name] = opened[name]["groups"]
                say(f"{row.name}, {name}: {opened[name]['rate']:.0f}/s at first")
            except PeerError as error:
                failed[name] = str(error)
                say(f"{row.name}, {name}: {error}")
        names = [name for name in runners if name not in failed]
        for number, in_turn in turns_in_order(names, rounds, begun + within_s):
            for name in in_turn:
                with runners[name].running():
                    turn = runners[name].ask("turn", warm_s=WARM_S, seconds=turn_s)
                turns.setdefault(name, []).append(opened[name] | turn)
                bench.record(
                    {"row": row.name, "workers": bench.workers, "contestant": name, "round": number, **turn}
                )
            say(f"{row.name}: round {number + 1} of {rounds}")
    return {name: turns[name] for name in names}, spread, failed


def turns_in_order(names: Sequence[str], rounds: int, until_s: float) -> Iterator[tuple[int, Sequence[str]]]:
    """Yield the number of each round, and its contestants; another one begins each. One round is always made.

    until_s: of the monotonic clock, after which no further round begins.
    """
    for number in range(rounds if names else 0):
        if number and time.monotonic() > until_s:
            return
        first = number % len(names)
        yield number, [*names[first:], *names[:first]]


def _open(
    runner: Runner,
    row: Row,
    peer: str,
    label: str,
    task: Mapping[str, Any],
    turn_s: float,
    n_checked: int,
) -> dict[str, Any]:
    """The start, the choice and the spread of a contestant whose samples are right. Raises: PeerError."""
    with runner.running():
        runner.ask("hello")  # imported, before the clock of the first batch starts
        runner.ask("open", row=row.name, label=label, task=task)
        found: dict[str, Any] = runner.ask("first")
        warm_s = SETTLE_S if label.startswith(AS_IT_COMES) else WARM_S
        first = runner.ask("turn", warm_s=warm_s, seconds=turn_s)
        if peer != LIMIT or found:
            found["groups"] = checked(runner.ask("check", within_s=180, n=n_checked))
        return found | runner.ask("settled") | {"rate": first["samples"] / first["seconds"]}


def checked(found: Mapping[str, Any]) -> float:
    """Raises: PeerError."""
    if found["wrong"]:
        raise PeerError(f"{found['wrong']} samples were not what was written")
    return float(found["groups"])
