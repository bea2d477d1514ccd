"""Drain and return nodes of Slurm, through the commands of the cluster's file."""

from ..compute.engines.slurm import SlurmQueue
from .watch import NodeState


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
