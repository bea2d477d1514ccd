"""What is explored, and the mutants that have to turn it red."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from unittest.mock import patch

from loader.dataset.log import fold as folding
from loader.dataset.log.rules import CommitBody, Done, commit_or_build, decide_commit
from loader.dataset.log.state import State

from .explore import Scenario
from .roles import adds_group, adds_parts, collects, holds, moves, retires, takedown_role
from .world import Rules


def scenarios(extra: int = 0) -> tuple[Scenario, ...]:
    """The scenarios; `extra` adds that many faults and crashes to each, and the widest scenarios."""

    def one(name, roles, before=lambda r: (), faults=1, crashes=1):
        return Scenario(name=name, roles=roles, before=before, faults=faults + extra, crashes=crashes + extra)

    def v1(r: Rules):
        return (adds_parts(r, "setup", "t0", "a", "b"),)

    def v2(r: Rules):
        return (*v1(r), adds_parts(r, "setup2", "t9", "c"))

    return (
        one("two publishers", lambda r: (adds_parts(r, "A", "t1", "x"), adds_parts(r, "B", "t2", "y"))),
        one("a zombie attempt", lambda r: (adds_parts(r, "A", "t1", "x"), adds_parts(r, "Z", "t1", "x"))),
        one(
            "a zombie attempt and a collector",
            lambda r: (adds_parts(r, "A", "t1", "x"), adds_parts(r, "Z", "t1", "x"), collects("gc", "t1")),
        ),
        one(
            "publisher and takedown",
            lambda r: (adds_parts(r, "A", "t1", "x", "y"), takedown_role("D", "x"), takedown_role("E", "a")),
            v1,
        ),
        one(
            "publisher and a collector that wrongly aborts",
            lambda r: (adds_parts(r, "A", "t1", "x"), collects("gc", "t1"), collects("gc2", "t1")),
        ),
        one(
            "publisher, takedown, collector",
            lambda r: (adds_parts(r, "A", "t1", "x"), takedown_role("D", "x"), collects("gc", "t1")),
        ),
        one(
            "added group and added parts",
            lambda r: (adds_group(r, "G", "t1", "latents"), adds_parts(r, "A", "t2", "x")),
            v1,
        ),
        one(
            "one group twice",
            lambda r: (adds_group(r, "G", "t1", "latents"), adds_group(r, "H", "t2", "latents")),
            v1,
        ),
        one(
            "added group, takedown, retirement",
            lambda r: (adds_group(r, "G", "t1", "latents"), takedown_role("D", "a"), retires("R", 2)),
            v2,
        ),
        one("two holds", lambda r: (holds("hold1"), holds("hold2")), v1, faults=2),
        one(
            "an alias there and back",
            lambda r: (moves("move1", "prod", 1, 2), moves("move2", "prod", 2, 1)),
            lambda r: (*v2(r), moves("setup3", "prod", None, 1)),
            faults=2,
        ),
        *(_wide() if extra else ()),
    )


def _wide() -> tuple[Scenario, ...]:
    return (
        Scenario(
            name="three publishers",
            roles=lambda r: tuple(adds_parts(r, n, f"t{n}", n.lower()) for n in "ABC"),
            faults=1,
            crashes=1,
        ),
        Scenario(
            name="two publishers, takedown, collector",
            roles=lambda r: (
                adds_parts(r, "A", "t1", "x"),
                adds_parts(r, "B", "t2", "y"),
                takedown_role("D", "x"),
                collects("gc", "t1"),
            ),
            faults=1,
            crashes=1,
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """A rule taken out of the protocol. scenario: where it must show; says: how the violation begins;
    refused: whether a reader can see from the log alone that it broke a rule."""

    name: str
    rules: Rules
    scenario: str
    says: str
    refused: bool = True

    def lax(self) -> AbstractContextManager[object]:
        """Readers that check no commit, so that the writers' rule is what is tested."""
        return patch.object(folding, "_check_commit", lambda draft, entry, record: None)


Decided = tuple[Mapping[str, object] | Done[object], CommitBody | None]


def _ignoring(status: str) -> Callable[..., Decided]:
    """`commit_or_build` for a transaction that is taken for an open one when it is `status`."""

    def decide_wrongly(
        state: State, txn: str, body: CommitBody | None, build: Callable[[State], CommitBody]
    ) -> Decided:
        known = state.txns[txn]
        if known.status == status:
            reopened = replace(known, status="open", number=None)
            state = replace(state, txns={**state.txns, txn: reopened})
        return commit_or_build(state, txn, body, build)

    return decide_wrongly


def _denies_of_the_first_build(
    state: State, txn: str, body: CommitBody | None, build: Callable[[State], CommitBody]
) -> Decided:
    """`commit_or_build` that knows only the takedowns it read when it began."""
    begun = state.txns[txn].n
    known = replace(state, denies=tuple(d for d in state.denies if d.n < begun))
    return commit_or_build(known, txn, body, build)


def _no_rebase(
    state: State, txn: str, body: CommitBody | None, build: Callable[[State], CommitBody]
) -> Decided:
    """`commit_or_build` that keeps its first manifest whatever came first."""
    decision, body = commit_or_build(state, txn, None, build) if body is None else (None, body)
    if decision is not None:
        return decision, body
    newest = state.newest(state.txns[txn].dataset)
    claimed = replace(body, parent=newest.id if newest else None, denies=state.last_deny)
    return decide_commit(state, txn, claimed), body


MUTANTS = (
    Mutant(
        name="no abort fence",
        rules=Rules(commit_or_build=_ignoring("aborted")),
        scenario="publisher and a collector that wrongly aborts",
        says="an aborted transaction was committed",
    ),
    Mutant(
        name="blind retry at n+1",
        rules=Rules(decide_again=False),
        scenario="two publishers",
        says="version numbers have a gap or a double",
    ),
    Mutant(
        name="takedowns not read again",
        rules=Rules(commit_or_build=_denies_of_the_first_build),
        scenario="publisher and takedown",
        says="denied content was committed",
    ),
    Mutant(
        name="no check for the same transaction",
        rules=Rules(commit_or_build=_ignoring("committed")),
        scenario="a zombie attempt",
        says="one transaction made two versions",
    ),
    Mutant(
        name="no nonce check after an error",
        rules=Rules(settle=lambda mine, tail: "lost" if tail else "absent"),
        scenario="two holds",
        says="one append was written twice",
        refused=False,
    ),
    Mutant(
        name="no nonce check after an error, of an alias",
        rules=Rules(settle=lambda mine, tail: "lost" if tail else "absent"),
        scenario="an alias there and back",
        says="a process ended with found 2 and its entry is in the log",
        refused=False,
    ),
    Mutant(
        name="no rebase",
        rules=Rules(commit_or_build=_no_rebase),
        scenario="two publishers",
        says="an update is lost",
        refused=False,
    ),
)
