"""Drain and return the nodes of a cluster: Slurm's by its commands, Kubernetes' by the condition `PenstockReads`.

False asks NVSentinel, or an operator's rule, to cordon the node. Penstock evicts no pod and cordons nothing itself.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol

from loader.errors import EngineUnreachable, InvalidCluster

from ..compute.cluster import Cluster
from ..compute.engines.kubernetes_api import Json, KubernetesApi
from ..compute.engines.slurm import HELD, SlurmQueue
from ..compute.engines.slurm_rows import parse_rows
from ..text import clean
from .notices import Notices, Subject

_log = logging.getLogger(__name__)
CONDITION = "PenstockReads"
"""Type of the nodes' condition."""
_PREFIX = "pk-"
"""Beginning of the names of penstock's jobs on Slurm."""
_REASON = 400
"""Most characters of a scheduler's reason that are shown; penstock's own have 160."""
_OUT_OF_SERVICE = ("drain", "down", "fail", "unk", "error", "inval", "future")
"""Beginnings of Slurm's words for nodes on which no job begins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeState:
    """A node as its scheduler has it."""

    in_service: bool
    """True if jobs may begin on it."""
    reason: str = ""
    """Why they may not, in one line."""
    problem: str = ""
    """Why the node cannot be read; "" if it can be. penstock neither drains nor returns such a node."""


class NodeControl(Protocol):
    """A cluster's nodes. Methods raise EngineUnreachable."""

    def states(self) -> dict[str, NodeState]:
        """Return all nodes by name."""
        ...

    def drain(self, node: str, reason: str) -> None:
        """Take a node out of service."""
        ...

    def resume(self, node: str) -> None:
        """Put a node into service."""
        ...

    def release_runs(self) -> list[str]:
        """Release trainings that the scheduler holds for ever after lost nodes; return their jobs."""
        ...


class SlurmNodes:
    """Nodes of one Slurm. Raises: EngineUnreachable."""

    def __init__(self, queue: SlurmQueue) -> None:
        self._queue = queue
        self._notices = Notices()

    def states(self) -> dict[str, NodeState]:
        """Return all nodes by name."""
        rows = parse_rows(self._queue.answer, ["sinfo", "--noheader", "--all", "--Node"], ["%N", "%T", "%E"])
        # A node in several partitions has a row for each, with the same state.
        states = {row[0]: _slurm_state(row) for row in rows.whole}
        # The output is cut off in this row. A node whose name is whole counts as unreadable, not as lost.
        if rows.rest:
            name = rows.rest[0]
            if not name:
                raise EngineUnreachable(
                    "sinfo's answer is cut off before a node's name",
                    what="sinfo",
                    given="an answer that is cut off",
                )
            states[name] = _unreadable(rows.rest)
        return states

    def drain(self, node: str, reason: str) -> None:
        """Let no further job begin on a node."""
        self._queue.answer(["scontrol", "update", f"nodename={node}", "state=drain", f"reason={reason}"])

    def resume(self, node: str) -> None:
        """Let jobs begin on a node again."""
        self._queue.answer(["scontrol", "update", f"nodename={node}", "state=resume"])

    def release_runs(self) -> list[str]:
        """Release trainings and data jobs of penstock that Slurm holds for ever; return their places."""
        # A job's name may hold a line's end: only Slurm's own words stand in the first answer, and few of the second's.
        lines = self._queue.answer(["squeue", "-h", "-a", "-t", "PENDING,REQUEUE_HOLD", "-o", "%i|%r"])
        held = [
            job for job, _, reason in (line.partition("|") for line in lines.splitlines()) if reason in HELD
        ]
        if not held:
            return []
        lines = self._queue.answer(["squeue", "-h", "-a", f"--jobs={','.join(held)}", "-o", "%i|%.3j"])
        jobs = [job for job in held if f"{job}|{_PREFIX}" in lines.splitlines()]
        is_released = self._queue.release(jobs)
        if not is_released:
            if self._notices.is_new(Subject("held jobs", "release"), ", ".join(jobs)):
                _log.warning("Slurm lets only an operator release %s", ", ".join(jobs))
            return []
        return [f"Slurm job {job}" for job in jobs]


def _slurm_state(row: Sequence[str]) -> NodeState:
    """Return the state of a node. row: its name, state and reason, as sinfo prints them."""
    _, state, reason = row
    if not state:
        return _unreadable(row)
    # Slurm appends flags such as "*" or "$" to a state, hence beginnings.
    in_service = not state.startswith(_OUT_OF_SERVICE)
    if reason == "none":  # sinfo's word for no reason
        return NodeState(in_service=in_service)
    return NodeState(in_service=in_service, reason=clean(reason, _REASON))


def _unreadable(row: Sequence[str]) -> NodeState:
    text = clean(" | ".join(row), 200)
    return NodeState(in_service=False, problem=f"sinfo prints {text!r} in place of name, state and reason")


class KubernetesNodes:
    """Nodes of one cluster. Raises: EngineUnreachable; InvalidCluster if the server refuses."""

    def __init__(self, api: KubernetesApi) -> None:
        self._api = api

    def release_runs(self) -> list[str]:
        """Return nothing: Kubernetes holds no run."""
        return []

    def states(self) -> dict[str, NodeState]:
        """Return all nodes by name."""
        return {str(node["metadata"]["name"]): _state(node) for node in self._api.nodes()}

    def drain(self, node: str, reason: str) -> None:
        """Set the condition False."""
        self._set(node, "False", "PenstockQuarantine", reason)

    def resume(self, node: str) -> None:
        """Set the condition True."""
        self._set(node, "True", "PenstockChecksPassed", "its reads and checks are right")

    def _set(self, node: str, status: str, reason: str, message: str) -> None:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        times = {"lastHeartbeatTime": now, "lastTransitionTime": now}
        self._api.set_condition(
            node, {"type": CONDITION, "status": status, "reason": reason, "message": message, **times}
        )


def _state(node: Json) -> NodeState:
    """Return the state of a node of Kubernetes, by penstock's condition first."""
    try:
        conditions = (node.get("status") or {}).get("conditions") or []
        own: Json = next((one for one in conditions if one["type"] == CONDITION), {})
        cordoned = bool((node.get("spec") or {}).get("unschedulable"))
    except (AttributeError, KeyError, TypeError) as error:
        return NodeState(in_service=False, problem=f"its conditions cannot be read: {error!r}")
    if own.get("status") == "False":
        return NodeState(in_service=False, reason=clean(own.get("message") or "", _REASON))
    # A person cordoned it, and decides: penstock does not return it.
    if cordoned:
        return NodeState(in_service=False, reason="cordoned")
    return NodeState(in_service=True)


def _kubernetes(cluster: Cluster) -> NodeControl:
    return KubernetesNodes(KubernetesApi(cluster.kubernetes.context, cluster.kubernetes.namespace))


CONTROLS: Mapping[str, Callable[[Cluster], NodeControl]] = {
    "kubernetes": _kubernetes,
    "slurm": lambda cluster: SlurmNodes(SlurmQueue(cluster.submit)),
}
"""Engine of a cluster's file -> its nodes."""


def node_control(cluster: Cluster) -> NodeControl:
    """Return the nodes of a cluster. Raises: InvalidCluster."""
    if cluster.engine not in CONTROLS:
        message = f"engine = {cluster.engine!r} drains no nodes; accepted: {', '.join(sorted(CONTROLS))}"
        raise InvalidCluster(message, what="engine", given=cluster.engine, accepted=sorted(CONTROLS))
    return CONTROLS[cluster.engine](cluster)
