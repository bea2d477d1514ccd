"""Watch a cluster's nodes: prove suspects, drain them within the caps, and return what penstock drained.

Only an operator runs it. Evidence is stored before a node is drained. The scheduler's reason names the case, so a
watcher that dies between the two finds it again.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from loader.errors import Conflict
from loader.storage import Store

from .proof import NodeProof, NodeProver, evidence_of
from .quarantine import (
    Case,
    alerts_us,
    case_faults,
    case_number,
    cases,
    drains,
    open_case,
    put_alert,
    put_drained,
    put_returned,
    settled_us,
)
from .signs import Losses, Spans, read_signs
from .suspects import NodeSigns, Suspect, caps, suspects

_log = logging.getLogger(__name__)
LOOK_S = 15.0
"""Seconds between two reviews."""
PROOFS, PROVE_AGAIN_S = 4, 600.0
"""Most proofs in a review; seconds until a suspect without a newer sign is proved again."""
CLEAN_ROUNDS, ROUND_S = 3, 600.0
"""Clean checks in a row that return a node, and seconds between them."""
TEXT = 160
"""Most characters of the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeState:
    """A node as its scheduler has it."""

    in_service: bool
    """True if jobs may begin on it."""
    reason: str = ""
    """Why they may not."""


class NodeControl(Protocol):
    """A cluster's nodes. Methods raise EngineUnreachable."""

    def states(self) -> dict[str, NodeState]:
        """Return all nodes by name."""
        ...

    def drain(self, node: str, reason: str) -> None:
        """Take a node out of service."""
        ...

    def give_back(self, node: str) -> None:
        """Put a node into service."""
        ...


@dataclass(slots=True, kw_only=True)
class NodeReview:
    """Outcome of one review; without `apply`, of what it would do."""

    suspects: list[Suspect] = field(default_factory=list)
    """Nodes in service with signs against them."""
    lines: list[str] = field(default_factory=list)
    """Sentences for a person."""
    drained: list[str] = field(default_factory=list)
    """Names of drained nodes."""
    returned: list[str] = field(default_factory=list)
    """Names of returned nodes."""
    alert: str = ""
    """Message for the operator; "": none."""

    def to_json(self) -> dict[str, Any]:
        """Return the facts for `--json`."""
        named = [{"node": one.node, "sign": one.sign, "text": one.text} for one in self.suspects]
        return {"suspects": named, "drained": self.drained, "returned": self.returned, "alert": self.alert}


class NodeWatch:
    """Looks at a record's signs and a cluster's nodes. apply: False only reports what it would do."""

    def __init__(
        self,
        store: Store,
        control: NodeControl,
        prover: NodeProver,
        *,
        apply: bool,
        spans: Spans | None = None,
        losses: Losses | None = None,
    ) -> None:
        self._store, self._control, self._prover, self._apply = store, control, prover, apply
        self._spans, self._losses = spans, losses
        self._tried: dict[tuple[str, str], tuple[int, float]] = {}
        self._proved: dict[str, tuple[Suspect, NodeProof]] = {}
        self._clean: dict[int, tuple[int, float]] = {}

    def review(self) -> NodeReview:
        """Review once. Raises: EngineUnreachable; Corrupt; StoreError."""
        now_us, states = time.time_ns() // 1000, self._control.states()
        known = self._reconciled(cases(self._store), states)
        signs: NodeSigns = read_signs(self._store, now_us, self._spans, self._losses)
        result = NodeReview(
            suspects=[
                one
                for one in suspects(signs, now_us, settled_us(known))
                if states.get(one.node, NodeState(in_service=False)).in_service
            ]
        )
        self._drain(result, known, len(states), now_us)
        self._return(result, [case for case in known if case.is_open])
        return result

    def _reconciled(self, known: list[Case], states: dict[str, NodeState]) -> list[Case]:
        """Return the cases after noting drains and returns that the scheduler has and the record lacks."""
        changed = False
        for case in known:
            state = states.get(case.node)
            drained = state is not None and case_number(state.reason) == case.number and not state.in_service
            if not self._apply:
                continue
            if drained and case.drained_us is None:
                put_drained(self._store, case.number, "seen at the scheduler")
                changed = True
            elif case.is_open and not drained:
                put_returned(self._store, case.number, "seen at the scheduler")
                changed = True
        return cases(self._store) if changed else known

    def _drain(self, result: NodeReview, known: list[Case], n_nodes: int, now_us: int) -> None:
        self._prove(result)
        nodes = {suspect.node for suspect in result.suspects}
        self._proved = {node: pair for node, pair in self._proved.items() if node in nodes}
        proved = {node: pair for node, pair in self._proved.items() if node in nodes}
        untried = {one.node for one in result.suspects if (one.node, one.sign) not in self._tried}
        n_suspects = len(untried | proved.keys())
        decision = caps(proved, drains(known), n_nodes, now_us, alerts_us(self._store), n_suspects)
        for node in decision.drain:
            suspect, proof = proved[node]
            text = " ".join(proof.text.split())[:TEXT]
            if not self._control.states().get(node, NodeState(in_service=False)).in_service:
                result.lines.append(f"{node} left service meanwhile")
                continue
            result.drained.append(node)
            if self._apply:
                begun = [case for case in known if case.node == node and case.drained_us is None]
                case = (  # a refused drain is tried again under its case
                    begun[-1]
                    if begun
                    else open_case(
                        self._store, node, text, evidence_of(suspect, proof), "penstock node watch"
                    )
                )
                self._control.drain(node, case.reason)
                put_drained(self._store, case.number, "penstock node watch")
                del self._proved[node]
            result.lines.append(f"{node} {'is' if self._apply else 'would be'} drained: {text}")
        result.lines += [f"{node} stays in service: {why}" for node, why in decision.waiting.items()]
        result.alert = decision.alert
        if decision.alert and self._apply:
            put_alert(self._store, decision.alert)

    def _prove(self, result: NodeReview) -> None:
        """Try to prove some of the suspects: those with a new sign, or after a while."""
        due = [one for one in result.suspects if time.monotonic() >= self._next_proof(one)]
        for suspect in due[:PROOFS]:
            proof = self._prover.prove(suspect)
            self._tried[suspect.node, suspect.sign] = suspect.at_us, time.monotonic() + PROVE_AGAIN_S
            result.lines.append(f"{suspect.node}: {suspect.text}; {proof.text}")
            if proof.is_bad:
                self._proved[suspect.node] = suspect, proof
            elif suspect.node in self._proved and self._proved[suspect.node][0].sign == suspect.sign:
                del self._proved[suspect.node]

    def _next_proof(self, suspect: Suspect) -> float:
        at_us, next_s = self._tried.get((suspect.node, suspect.sign), (0, 0.0))
        return 0.0 if suspect.at_us > at_us and suspect.node not in self._proved else next_s

    def _return(self, result: NodeReview, open_cases: list[Case]) -> None:
        for case in open_cases:
            rounds, next_s = self._clean.get(case.number, (0, time.monotonic() + ROUND_S))
            if time.monotonic() < next_s:
                self._clean[case.number] = rounds, next_s
                continue
            rounds = (
                rounds + 1 if self._prover.is_clean(case.node, case_faults(self._store, case.number)) else 0
            )
            self._clean[case.number] = rounds, time.monotonic() + ROUND_S
            result.lines.append(f"{case.node}: {rounds} of {CLEAN_ROUNDS} clean checks")
            if rounds >= CLEAN_ROUNDS:
                state = self._control.states().get(case.node, NodeState(in_service=True))
                if state.in_service or case_number(state.reason) != case.number:
                    result.lines.append(
                        f"{case.node} has another reason or is in service: it is no longer ours"
                    )
                    continue
                result.returned.append(case.node)
                if self._apply:
                    self._control.give_back(case.node)
                    put_returned(self._store, case.number, "penstock node watch")


def drain_by_hand(store: Store, control: NodeControl, node: str, reason: str, by: str) -> Case:
    """Drain a node for an operator's reason. Raises: Conflict if it is unknown or out of service."""
    state = _state(control, node)
    if not state.in_service:
        raise Conflict(f"{node} is out of service already: {state.reason or 'no reason'}")
    case = open_case(store, node, " ".join(reason.split())[:TEXT], {"sign": "operator"}, by)
    control.drain(node, case.reason)
    put_drained(store, case.number, by)
    return case


def return_by_hand(store: Store, control: NodeControl, node: str, by: str) -> int:
    """Return a node that penstock drained; return the case's number. Raises: Conflict if another drained it."""
    state = _state(control, node)
    number = case_number(state.reason)
    if state.in_service or number is None:
        words = "in service" if state.in_service else f"out of service, and not by penstock: {state.reason}"
        raise Conflict(
            f"{node} is {words}; penstock returns only nodes whose reason begins with 'penstock q-'"
        )
    control.give_back(node)
    put_returned(store, number, by)
    return number


def _state(control: NodeControl, node: str) -> NodeState:
    states = control.states()
    if node not in states:
        raise Conflict(f"the cluster has no node {node!r}; it has {', '.join(sorted(states)[:10])}")
    return states[node]


def watch_until(watch: NodeWatch, show: Callable[[NodeReview], None], ends: Callable[[float], bool]) -> None:
    """Review again and again. ends: waits some seconds, and returns whether to end."""
    while True:
        try:
            show(watch.review())
        except Exception as error:  # noqa: BLE001 - a store or scheduler that fails is asked again
            _log.warning("could not review the nodes: %s: %s", type(error).__name__, error)
        if ends(LOOK_S):
            return
