"""Watch a cluster's nodes: prove suspects, drain them within the caps, and return what penstock drained.

Only an operator runs it, on one machine or several. Evidence is stored before a drain, and the scheduler's reason names
the case: a watcher that dies between the two finds it again. The record only names suspects; a node is ours if the
scheduler's reason names penstock.
"""

import logging
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from loader.errors import Conflict, InvalidCluster, InvalidRuntime, PenstockError
from loader.storage import Store

from ..units import utc_us
from .caps import DRAIN_EVERY_US, Drain, caps
from .cases import Case, CaseBook, case_number, drains, reason_text, settlement_us
from .control import NodeControl, NodeState
from .notices import Notices, Subject
from .proof import NodeProof, NodeProver, ProofQueue, case_evidence
from .signs import Losses, SignReader, Spans
from .suspects import ALERT_EVERY_US, SLOW_READS, Suspect, suspects

_log = logging.getLogger(__name__)
REVIEW_S = 15.0
"""Seconds between two reviews."""
CLEAN_ROUNDS = 3
ROUND_S = 600.0
"""Clean checks in a row that return a node, and seconds between them."""
RETURNS = 4
"""Most drained nodes that are checked in a review."""
BY = "penstock node watch"


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
    news: list[str] = field(default_factory=list)
    """Lines that differ from the last ones about the same."""

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
        self._control = control
        self._prover = prover
        self._apply = apply
        self._book = CaseBook(store)
        self._signs = SignReader(store, spans, losses)
        self._opened: dict[int, Case] = {}
        """Number -> case of this watcher whose node is not drained yet, such as after a refused drain."""
        self._own = set[int]()
        """Numbers of the cases that this watcher opened: their times are by its clock."""
        self._proofs = ProofQueue()
        self._clean: dict[tuple[int, str], tuple[int, float]] = {}
        """(number of the case, node) -> (clean checks in a row, monotonic time of the next check)."""
        self._alerted_us: dict[str, int] = {}
        """Subject of an alert as in `CaseBook.alert_us` -> time of this watcher's newest one, also of a dry run's."""
        self._released: list[str] = []
        """Released jobs that no review has named yet: the record may fail after the release."""
        self._notices = Notices()
        self._current = set[Subject]()
        """Subjects of the current review's lines."""

    def review(self, result: NodeReview | None = None) -> NodeReview:
        """Review once.

        result: New review to fill: if this raises, it has the lines and alerts so far, which do not come again.
        Raises: EngineUnreachable; StoreError.
        """
        result = NodeReview() if result is None else result
        # First: a record that fails holds no run.
        if self._apply:
            self._released += self._control.release_runs()
        known = self._book.read()
        states = self._control.states()  # after the cases: a case of now is not one of a node that came back
        now_us = utc_us()
        if self._apply:
            known = self._reconcile(known, states)
        signs = self._signs.read(now_us, states)
        in_service = {node for node, state in states.items() if state.in_service}
        named = suspects(signs, now_us, settlement_us(known))
        result.suspects = [one for one in named if one.node in in_service]
        self._current.clear()
        why = "the scheduler held it after lost nodes or a failed launch"
        for job in self._released:
            self._say(result, job, "held", f"{job} waits again: {why}")
        self._released.clear()
        for node, state in states.items():
            if state.problem:
                text = f"{node} cannot be read, and penstock neither drains nor returns it: {state.problem}"
                self._say(result, node, "problem", text)
                self._alert(result, f"{node} unread", text, now_us)
        for suspect in self._proofs.due(result.suspects, now_us):
            self._prove(result, suspect, states)
        self._drain(result, known, states, now_us)
        self._return(result, states)
        lasting = {suspect.node for suspect in result.suspects} | _ours(states).keys()
        self._notices.drop(lambda about: about not in self._current and about.name not in lasting)
        return result

    def _prove(self, result: NodeReview, suspect: Suspect, states: dict[str, NodeState]) -> None:
        """Prove or refute a suspicion, and add what came of it to the review."""
        if suspect.sign == SLOW_READS:
            suspect = replace(suspect, others=_healthy(states, result.suspects, first=suspect.others))
        try:
            proof = self._prover.prove(suspect)
        except InvalidCluster:  # the cluster's file is to blame, for each node
            raise
        except PenstockError as error:  # one node that cannot be checked stops no other
            text = f"cannot be checked: {type(error).__name__}: {error}"
            proof = NodeProof(is_bad=False, text=text, is_tested=False)
            self._alert(result, f"{suspect.node} unchecked", f"{suspect.node} {proof.text}", utc_us())
        self._proofs.add(suspect, proof, utc_us())
        text = f"{suspect.node}: {suspect.text}; {proof.text}"
        if suspect.node in self._proofs.unconfirmed:
            text += "; it is drained if a second measurement, 10 min later, or another run confirms it"
        self._say(result, suspect.node, suspect.sign, text)
        if suspect.sign == SLOW_READS and (proof.is_bad or not proof.is_tested):
            self._alert(result, f"{suspect.node} slow", f"slow node {text}", utc_us())

    def _say(self, result: NodeReview, name: str, kind: str, text: str) -> None:
        """Add a line to a review. name: node or job that it is about."""
        subject = Subject(name, kind)
        self._current.add(subject)
        result.lines.append(text)
        if self._notices.is_new(subject, text):
            result.news.append(text)

    def _alert(self, result: NodeReview, about: str, text: str, now_us: int) -> None:
        """Add an alert to a review, unless a watcher raised one about the same within a day."""
        newest_us = max(self._book.alert_us(about), self._alerted_us.get(about, 0))
        if now_us - newest_us < ALERT_EVERY_US:
            return
        if self._apply:
            is_ours = self._book.put_alert(text, about)
            if not is_ours:
                return
        self._alerted_us[about] = now_us
        result.alert = "; ".join(filter(None, [result.alert, text]))

    def _reconcile(self, known: list[Case], states: dict[str, NodeState]) -> list[Case]:
        """Return the cases after storing drains and returns that the scheduler has and the record lacks."""
        for case in known:
            state = states.get(case.node)
            if state is not None and state.problem:
                continue
            is_drained = (
                state is not None and not state.in_service and case_number(state.reason) == case.number
            )
            if is_drained and case.is_pending:
                self._book.put_end(case.number, "drained", "seen at the scheduler")
            elif case.is_open and not is_drained:
                self._book.put_end(case.number, "returned", "seen at the scheduler")
        return self._book.cases

    def _drain(
        self, result: NodeReview, known: list[Case], states: dict[str, NodeState], now_us: int
    ) -> None:
        """Drain the proved node that the caps allow, if any; without `apply` only say so."""
        # A refused drain of this watcher is tried again below, and must not count against itself.
        counted = [case for case in known if not (case.is_pending and case.number in self._opened)]
        so_far = drains(counted, now_us, self._own)
        so_far += _new_drains(_ours(states), so_far)
        # The alerts of the caps are about "": no single node.
        alerted_us = max(self._book.alert_us(), self._alerted_us.get("", 0))
        proved = self._proofs.proved
        n_suspects = len(self._proofs.open_suspects(result.suspects))
        decision = caps(proved, so_far, len(states), now_us, [alerted_us], n_suspects)
        for node in decision.drain:
            # Read again: proofs take minutes, and a person may have acted meanwhile.
            state = self._control.states().get(node, NodeState(in_service=False))
            if not state.in_service:
                self._say(result, node, "drain", f"{node} left service meanwhile")
                continue
            _, proof = proved[node]
            text = reason_text(proof.text)
            if self._apply:
                try:
                    self._drain_node(result, node, text)
                except Conflict as error:
                    text = f"{node} stays in service: another watcher drains: {error}"
                    self._say(result, node, "drain", text)
            else:
                result.drained.append(node)
                self._say(result, node, "drain", f"{node} would be drained: {text}")
        for node, why in decision.waiting.items():
            self._say(result, node, "drain", f"{node} stays in service: {why}")
        if decision.alert:
            self._alert(result, "", decision.alert, now_us)

    def _drain_node(self, result: NodeReview, node: str, text: str) -> None:
        """Drain a node under a new case, or under one whose drain was refused. Raises: Conflict; EngineUnreachable."""
        since_us = utc_us() - DRAIN_EVERY_US  # older ones do not count for other watchers
        case: Case | None = None
        for pending in self._book.cases:
            is_refused = pending.is_pending and pending.number in self._opened
            if is_refused and pending.node == node and pending.opened_us > since_us:
                case = self._opened[pending.number]
                break
        if case is None:
            evidence = case_evidence(*self._proofs.proved[node])
            case = self._book.open(node, text, evidence, BY)
        self._opened[case.number] = case
        self._own.add(case.number)
        # After the evidence: a watcher that dies here finds the pending case again.
        self._control.drain(node, case.reason)
        # Before the record: if the store fails there, the next review finds the node drained, and has no line.
        result.drained.append(node)
        self._say(result, node, "drain", f"{node} is drained: {case.text}")
        self._book.put_end(case.number, "drained", BY)
        del self._opened[case.number], self._proofs.proved[node]

    def _return(self, result: NodeReview, states: dict[str, NodeState]) -> None:
        """Check nodes with a reason of penstock at the scheduler; return each one that stays clean."""
        ours = {(number, node) for node, number in _ours(states).items()}  # two records may have one number
        self._clean = {key: pair for key, pair in self._clean.items() if key in ours}
        for key in ours:
            # A round after the drain: a check right after it would find the same state.
            self._clean.setdefault(key, (0, time.monotonic() + ROUND_S))
        due = [key for key, (_, next_s) in self._clean.items() if time.monotonic() >= next_s]
        # The nodes that wait longest come first.
        for number, node in sorted(due, key=lambda key: self._clean[key][1])[:RETURNS]:
            rounds, _ = self._clean[number, node]
            if self._is_clean(result, node, number, states):
                rounds += 1
            else:
                rounds = 0
            self._clean[number, node] = rounds, time.monotonic() + ROUND_S
            self._say(result, node, "return", f"{node}: {rounds} of {CLEAN_ROUNDS} clean checks")
            if rounds >= CLEAN_ROUNDS:
                self._resume(result, node, number)

    def _is_clean(self, result: NodeReview, node: str, number: int, states: dict[str, NodeState]) -> bool:
        """Return whether a drained node passes its checks. number: of its case, which has the ranges to read."""
        is_slow = self._book.sign(number) == SLOW_READS
        healthy = None
        if is_slow:
            healthy = _healthy(states, result.suspects)
        try:
            return self._prover.is_clean(node, self._book.faults(number), healthy)
        except InvalidCluster:
            raise
        except PenstockError as error:
            text = f"{node} stays drained: its checks end in {type(error).__name__}: {error}"
            self._say(result, node, "problem", text)
            self._alert(result, f"{node} unchecked", text, utc_us())
            return False

    def _resume(self, result: NodeReview, node: str, number: int) -> None:
        """Return a node to service, if it is still drained for this case."""
        state = self._control.states().get(node, NodeState(in_service=True))
        # An operator may have drained it for a reason of their own since.
        if state.in_service or case_number(state.reason) != number:
            text = f"{node} has another reason or is in service: it is no longer ours"
            self._say(result, node, "return", text)
            return
        if self._apply:
            self._control.resume(node)
        result.returned.append(node)
        if self._apply:
            self._book.put_end(number, "returned", BY)


def _ours(states: dict[str, NodeState]) -> dict[str, int]:
    """Return the nodes that penstock drained -> number of the case, by the scheduler's reasons."""
    numbers = {node: case_number(state.reason) for node, state in states.items() if not state.in_service}
    return {node: number for node, number in numbers.items() if number is not None}


def _healthy(
    states: dict[str, NodeState], suspects: Sequence[Suspect], first: Sequence[str] = ()
) -> tuple[str, ...]:
    """Return nodes in service without a sign against them, in random order. first: nodes to put first."""
    accused = {suspect.node for suspect in suspects}
    healthy = [node for node, state in states.items() if state.in_service and node not in accused]
    # Random, so that the same two nodes do not bear every measurement.
    random.SystemRandom().shuffle(healthy)
    # `first`: nodes of the suspect's own intervals read the same data at the same time.
    return tuple(sorted(healthy, key=lambda node: node not in first))


def _new_drains(ours: dict[str, int], so_far: list[Drain]) -> list[Drain]:
    """Return drains of nodes that the record has as returned, or not at all."""
    recorded = {one.node for one in so_far if one.returned_us is None}
    return [Drain(node=node, drained_us=0) for node in ours if node not in recorded]


def drain_by_hand(store: Store, control: NodeControl, node: str, reason: str, by: str) -> Case:
    """Drain a node for an operator's reason.

    Raises: InvalidRuntime without a reason; Conflict if the node is unknown or out of service.
    """
    if not reason.strip():
        raise InvalidRuntime(
            f"the reason for draining {node} is {reason!r}; pass text for the next operator",
            what="reason",
            where=node,
            given=reason,
            accepted="text for the next operator",
        )
    state = _state(control, node)
    if not state.in_service:
        raise Conflict(
            f"{node} is out of service already: {state.reason or 'no reason'}",
            what="state",
            where=node,
            given=state.reason,
            accepted="in service",
        )
    book = CaseBook(store)
    while True:
        book.read()
        try:
            case = book.open(node, reason, {"sign": "operator"}, by)
        except Conflict:  # a watcher took the number
            continue
        control.drain(node, case.reason)
        book.put_end(case.number, "drained", by)
        return case


def return_by_hand(store: Store, control: NodeControl, node: str, by: str) -> int:
    """Return a node that penstock drained; return the case's number. Raises: Conflict if another drained it."""
    state = _state(control, node)
    number = case_number(state.reason)
    if state.in_service or number is None:
        words = "in service"
        if not state.in_service:
            words = f"out of service, and not by penstock: {state.reason}"
        raise Conflict(
            f"{node} is {words}; penstock returns only nodes whose reason begins with 'penstock q-'",
            what="state",
            where=node,
            given=state.reason,
            accepted="a reason that begins with 'penstock q-'",
        )
    control.resume(node)
    CaseBook(store).put_end(number, "returned", by)
    return number


def _state(control: NodeControl, node: str) -> NodeState:
    """Return a node's state. Raises: Conflict for an unknown node, or one whose state cannot be read."""
    states = control.states()
    if node not in states:
        names = sorted(states)[:10]
        raise Conflict(
            f"the cluster has no node {node!r}; it has {', '.join(names)}",
            what="node",
            given=node,
            accepted=names,
        )
    state = states[node]
    if state.problem:
        message = f"{node} cannot be read, and penstock neither drains nor returns it: {state.problem}"
        raise Conflict(message, what=node, given=state.problem)
    return state


def review_once(watch: NodeWatch, show: Callable[[NodeReview], None]) -> NodeReview:
    """Return a review; if it raises, show its lines and alerts so far, which do not come again."""
    review = NodeReview()
    try:
        return watch.review(review)
    except Exception:
        if review.news or review.alert:
            show(review)
        raise


def watch_nodes(watch: NodeWatch, show: Callable[[NodeReview], None], ends: Callable[[float], bool]) -> None:
    """Review again and again. ends: waits some seconds, and returns whether to end."""
    problem = ""
    while True:
        try:
            show(review_once(watch, show))
        except Exception as error:  # noqa: BLE001 - the next review tries a store or scheduler again
            before = problem
            problem = f"{type(error).__name__}: {error}"
            if problem != before:
                _log.warning("could not review the nodes: %s", problem)
        else:
            if problem:
                _log.warning("reviews the nodes again after: %s", problem)
            problem = ""
        if ends(REVIEW_S):
            return
