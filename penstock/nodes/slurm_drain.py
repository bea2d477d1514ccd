"""Drain and return nodes of Slurm, through the commands of the cluster's file."""

from ..compute.engines.slurm import HELD, SlurmQueue
from .watch import NodeState

_PREFIX = "pk-"
"""Beginning of the names of penstock's jobs."""


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
        """Let jobs of penstock wait again that Slurm holds for ever; return their places."""
        # A job's name may hold a line's end: only Slurm's own words stand in the first answer, and few of the second's.
        lines = self._queue.answer(["squeue", "-h", "-a", "-t", "PENDING,REQUEUE_HOLD", "-o", "%i|%r"])
        held = [
            job for job, _, reason in (line.partition("|") for line in lines.splitlines()) if reason in HELD
        ]
        if not held:
            return []
        lines = self._queue.answer(["squeue", "-h", "-a", f"--jobs={','.join(held)}", "-o", "%i|%.3j"])
        jobs = [job for job in held if f"{job}|{_PREFIX}" in lines.splitlines()]
        self._queue.release(jobs)
        return [f"Slurm job {job}" for job in jobs]
