"""Decide which of the proved nodes may be drained. Pure: no store, no clock."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from .suspects import ALERT_EVERY_US, MINUTE_US

DRAIN_EVERY_US = 10 * MINUTE_US
"""Time from one drain to the next."""
DRAINED_SHARE = 0.02
"""Share of the nodes that may be drained at once; one node always may."""
DRAINS_OF_A_NODE = 2
"""After so many drains, a person repairs or removes the node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drain:
    """A node that was drained."""

    node: str
    """Name of the node."""
    drained_us: int
    """UTC microseconds of the drain."""
    returned_us: int | None = None
    """UTC microseconds of its return; None while it is drained."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Outcome of the caps."""

    drain: tuple[str, ...] = ()
    """Nodes to drain now: at most one."""
    waiting: Mapping[str, str] = field(default_factory=dict)
    """Proved node that stays in service -> reason."""
    alert: str = ""
    """Message for the operator; "": none."""


def caps(
    proved: Iterable[str],
    drains: Sequence[Drain],
    n_nodes: int,
    now_us: int,
    alerts_us: Iterable[int] = (),
    n_suspects: int = 0,
) -> Decision:
    """Return which of the proved nodes to drain.

    At most one node in 10 min, 2 % of all nodes (at least one) at once, no node a third time. Beyond that it alerts,
    once a day. If more nodes are suspects than may be drained, the cause is common to them: after one drain, none for
    a day.

    drains: All drains so far. alerts_us: Times of earlier alerts. n_suspects: Suspects, those not yet proved included.
    """
    drained: set[str] = set()
    times_of_node: Counter[str] = Counter()
    newest_us: int | None = None
    for drain in drains:
        times_of_node[drain.node] += 1
        if drain.returned_us is None:
            drained.add(drain.node)
        if newest_us is None or drain.drained_us > newest_us:
            newest_us = drain.drained_us
    share = int(n_nodes * DRAINED_SHARE)
    limit = max(1, share)
    waiting: dict[str, str] = {}
    free: list[str] = []
    candidates = set(proved) - drained
    for node in sorted(candidates):
        if times_of_node[node] >= DRAINS_OF_A_NODE:
            waiting[node] = f"penstock drained it {DRAINS_OF_A_NODE} times before: repair or remove it"
        else:
            free.append(node)
    # Without `n_suspects`, the proved nodes count.
    n_accused = max(len(free), n_suspects)
    has_common_cause = n_accused + len(drained) > limit
    pause_us = ALERT_EVERY_US if has_common_cause else DRAIN_EVERY_US
    nodes_to_drain = free[:1]
    reason = "one node in 10 min"
    if len(drained) >= limit:
        nodes_to_drain = []
        reason = f"{len(drained)} of {n_nodes} nodes are drained, and {limit} may be"
    elif newest_us is not None and now_us - newest_us < pause_us:
        nodes_to_drain = []
        reason = "penstock drained a node less than 10 min ago"
        if has_common_cause:
            reason = "many nodes fail at once: search for a common cause, such as the store or a check"
    for node in free:
        if node not in nodes_to_drain:
            waiting[node] = reason
    alert = ""
    if waiting and _is_alert_due(alerts_us, now_us):
        alert = _alert_text(waiting)
    return Decision(
        drain=tuple(nodes_to_drain),
        waiting=waiting,
        alert=alert,
    )


def _is_alert_due(alerts_us: Iterable[int], now_us: int) -> bool:
    newest_us = max(alerts_us, default=None)
    if newest_us is None:
        return True
    return now_us - newest_us >= ALERT_EVERY_US


def _alert_text(waiting: Mapping[str, str]) -> str:
    """Return the alert about proved nodes that stay in service; it names ten. waiting: node -> reason."""
    named = sorted(waiting.items())[:10]
    reasons = [f"{node} ({reason})" for node, reason in named]
    text = "not drained: " + "; ".join(reasons)
    n_others = len(waiting) - len(named)
    if n_others:
        text += f" and {n_others} more"
    return text
