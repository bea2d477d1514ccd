"""A small world to run the real append protocol in: a modelled store, processes, faults, crashes.

Real are `decide_*`, `commit_or_build`, `seal`, `fold` and `settle`. Modelled are the store and the loop
around them: `append` reads and decides in one step (a reader knows exactly the log of the moment of its last
probe) and writes in another; anything may happen in between. A write may be stored and answered; stored, and
the answer lost; or answered with an error and land later, or never.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from loader.dataset.log.append import settle
from loader.dataset.log.entries import Entry, parse, seal
from loader.dataset.log.fold import fold
from loader.dataset.log.rules import CommitBody, Done, commit_or_build
from loader.dataset.log.state import State
from loader.errors import Corrupt, PenstockError

Append = Callable[[State, CommitBody | None], tuple[Mapping[str, object] | Done[object], CommitBody | None]]


@dataclass(frozen=True, slots=True)
class Rules:
    """The real functions; a mutant replaces one."""

    settle: Callable[[Entry, list[Entry]], str] = settle
    commit_or_build: Callable[..., tuple[Mapping[str, object] | Done[object], CommitBody | None]] = (
        commit_or_build
    )
    decide_again: bool = True  # after another writer's entry took the place


class Violation(Exception):
    """The model found a history, or a belief, that must not be."""


@dataclass(frozen=True, slots=True)
class Role:
    """A process: its appends, one after the other. `txn` and `adds` are what the checks hold it to."""

    name: str
    appends: tuple[Append, ...]
    txn: str | None = None
    adds: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Process:
    """Where a process is. end: None while it runs, "crashed", an error's name, or what it believes it did."""

    stage: int = 0
    log: int = 0  # the log it decided on
    write: bytes | None = None  # the entry it is about to create
    failed: bool = False  # that write was answered with an error
    body: CommitBody | None = None
    end: str | None = None


@dataclass(frozen=True, slots=True)
class World:
    """log: its number in `Histories`; flying: writes answered with an error that may still land."""

    log: int
    processes: tuple[Process, ...]
    flying: frozenset[tuple[int, bytes]] = frozenset()
    faults: int = 0
    crashes: int = 0


class Histories:
    """Every log that was reached, as a tree: each is its parent plus one entry, folded and checked once."""

    def __init__(self, check: Callable[[list[Entry]], None]) -> None:
        self._check = check
        self._children: dict[tuple[int, bytes], int] = {}
        self.states: list[State] = [State()]
        self._parents, self._entries = [0], [None]  # type: tuple[list[int], list[Entry | None]]

    def entries(self, log: int) -> list[Entry]:
        found: list[Entry] = []
        while log:
            entry = self._entries[log]
            if entry is not None:
                found.append(entry)
            log = self._parents[log]
        return found[::-1]

    def extended(self, log: int, data: bytes) -> int:
        known = self._children.get((log, data))
        if known is not None:
            return known
        entry = parse(self.states[log].n + 1, data)
        try:
            state = fold(self.states[log], entry)
        except Corrupt as e:
            raise Violation(f"readers refuse the log: {e}") from e
        self.states.append(state)
        self._parents.append(log)
        self._entries.append(entry)
        number = self._children[log, data] = len(self.states) - 1
        self._check(self.entries(number))
        return number


def steps(world: World, roles: tuple[Role, ...], histories: Histories, rules: Rules) -> Iterator[World]:
    """Every world that one step of one process, the store or chance makes of this one."""
    n = histories.states[world.log].n
    for place, data in sorted(world.flying):
        if place == n + 1:
            landed = histories.extended(world.log, data)
            yield replace(world, log=landed, flying=world.flying - {(place, data)})
    for i, process in enumerate(world.processes):
        if process.end is not None:
            continue
        if process.write is None or process.failed:
            yield _replace_process(world, i, _read_and_decide(world, i, roles[i], histories, rules))
        else:
            yield from _write(world, i, roles[i], histories)
        if world.crashes:
            crashed = replace(process, end="crashed", write=None, body=None, failed=False)
            yield replace(_replace_process(world, i, crashed), crashes=world.crashes - 1)


def _replace_process(world: World, i: int, process: Process) -> World:
    changed = (*world.processes[:i], process, *world.processes[i + 1 :])
    return replace(world, processes=changed)


def _read_and_decide(world: World, i: int, role: Role, histories: Histories, rules: Rules) -> Process:
    process = world.processes[i]
    state = histories.states[world.log]
    if process.write is not None:
        n = histories.states[process.log].n + 1
        mine = parse(n, process.write)
        verdict = rules.settle(mine, histories.entries(world.log)[n - 1 :])
        if verdict == "won":
            return _next(process, role, f"appended {mine.body.get('number', '')}")
        if not rules.decide_again and verdict == "lost":
            blind = seal(state.n + 1, state.prev, mine.nonce, 0, {**mine.body, "kind": mine.kind})
            return replace(process, log=world.log, write=blind.data, failed=False)
    try:
        decision, body = role.appends[process.stage](state, process.body)
    except PenstockError as e:
        return replace(process, end=type(e).__name__, write=None, body=None, failed=False)
    if isinstance(decision, Done):
        return _next(process, role, f"found {getattr(decision.value, 'number', '')}")
    # One nonce per append, as in reality; another time for each try, so that tries differ in their bytes.
    entry = seal(state.n + 1, state.prev, f"{role.name}.{process.stage}", world.faults, decision)
    return replace(process, log=world.log, write=entry.data, failed=False, body=body)


def _write(world: World, i: int, role: Role, histories: Histories) -> Iterator[World]:
    process = world.processes[i]
    data = process.write or b""
    n = histories.states[process.log].n + 1
    failed = _replace_process(world, i, replace(process, failed=True))
    if histories.states[world.log].n >= n:
        if histories.entries(world.log)[n - 1].data == data:  # our own delayed write: the store says created
            yield _replace_process(world, i, _create_entry(process, role, n, data))
        else:
            yield failed
        return
    stored = histories.extended(world.log, data)
    yield replace(_replace_process(world, i, _create_entry(process, role, n, data)), log=stored)
    if world.faults:
        yield replace(failed, log=stored, faults=world.faults - 1)
        yield replace(failed, flying=world.flying | {(n, data)}, faults=world.faults - 1)


def _create_entry(process: Process, role: Role, n: int, data: bytes) -> Process:
    return _next(process, role, f"appended {parse(n, data).body.get('number', '')}")


def _next(process: Process, role: Role, belief: str) -> Process:
    if process.stage + 1 < len(role.appends):
        return Process(stage=process.stage + 1)
    return Process(stage=process.stage + 1, end=belief)
