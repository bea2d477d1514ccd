"""Drain and return the nodes of a cluster: Slurm's by its commands, Kubernetes' by the condition `PenstockReads`.

False asks NVSentinel, or an operator's rule, to cordon the node. Penstock evicts no pod and cordons nothing itself.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol

from loader.errors import InvalidCluster

from ..compute.cluster import Cluster
from ..compute.engines.kubernetes_api import Json, KubernetesApi
from ..compute.engines.slurm import HELD, SlurmQueue

_log = logging.getLogger(__name__)
CONDITION = "PenstockReads"
"""Type of the nodes' condition."""
_PREFIX = "pk-"
"""Beginning of the names of penstock's jobs on Slurm."""


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

    def states(self) -> dict[str, NodeState]:
        """Return all nodes by name."""
        lines = self._queue.answer(["sinfo", "-h", "-a", "-N", "-o", "%N|%T|%E"]).splitlines()
        states = dict[str, NodeState]()
        for line in lines:
            name, state, reason = line.strip().split("|", 2)
            in_service = not state.startswith(("drain", "down", "fail", "unk", "error"))
            states[name] = NodeState(in_service=in_service, reason="" if reason == "none" else reason)
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
        if not self._queue.release(jobs):
            _log.warning("Slurm lets only an operator release %s", ", ".join(jobs))
            return []
        return [f"Slurm job {job}" for job in jobs]


class KubernetesNodes:
    """Nodes of one cluster. Raises: EngineUnreachable; InvalidCluster if the server refuses."""

    def __init__(self, api: KubernetesApi) -> None:
        self._api = api

    def release_runs(self) -> list[str]:
        """Return nothing: Kubernetes holds no run."""
        return []

    def states(self) -> dict[str, NodeState]:
        """Return all nodes by name."""
        return {node["metadata"]["name"]: _state(node) for node in self._api.nodes()}

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
    conditions = node.get("status", {}).get("conditions", [])
    own: Json = next((one for one in conditions if one["type"] == CONDITION), {})
    if own.get("status") == "False":
        return NodeState(in_service=False, reason=str(own.get("message", "")))
    cordoned = bool(node.get("spec", {}).get("unschedulable"))
    return NodeState(in_service=not cordoned, reason="cordoned" if cordoned else "")


def _kubernetes(cluster: Cluster) -> NodeControl:
    return KubernetesNodes(KubernetesApi(cluster.kubernetes.context, cluster.kubernetes.namespace))


CONTROLS: Mapping[str, Callable[[Cluster], NodeControl]] = {
    "kubernetes": _kubernetes,
    "slurm": lambda cluster: SlurmNodes(SlurmQueue(cluster.submit)),
}
"""Engine of a cluster's file -> its nodes."""


def control_of(cluster: Cluster) -> NodeControl:
    """Return the nodes of a cluster. Raises: InvalidCluster."""
    if cluster.engine not in CONTROLS:
        raise InvalidCluster(
            f"engine = {cluster.engine!r} drains no nodes; accepted: {', '.join(sorted(CONTROLS))}"
        )
    return CONTROLS[cluster.engine](cluster)
