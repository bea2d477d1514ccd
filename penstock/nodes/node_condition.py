"""Mark nodes of Kubernetes by the condition `PenstockReads`: False asks NVSentinel, or an operator's rule, to cordon.

Penstock evicts no pod and cordons nothing itself.
"""

from datetime import UTC, datetime

from ..compute.engines.kubernetes_api import Json, KubernetesApi
from .watch import NodeState

CONDITION = "PenstockReads"


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
