"""The engine interface: an engine submits an attempt at a job and reports its status.

A new engine is one file here, and one line in `cluster.ENGINES`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

AttemptState = Literal["waiting", "running", "ended", "unknown"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptStatus:
    """An attempt's status, from its engine."""

    state: AttemptState
    """"ended": no runner waits or runs. "unknown": the engine's answer does not show it."""
    reason: str = ""
    """Engine's reason why runners wait, or ""."""
    waiting: int = 0
    """Waiting runners."""
    running: int = 0
    """Active runners."""
    place: str = ""
    """Location, such as 'Slurm job 12 in partition long', or ""."""


class Engine(Protocol):
    """Runs attempts, named 'pk-<job>-<token>-<attempt>', on one machine or cluster.

    Every method but `close` raises EngineUnreachable if the engine does not respond.
    """

    poll_s: float
    """Minimum seconds between polls of an attempt."""

    def submit(self, name: str, runner: Sequence[str], n_blocks: int, final: Sequence[int] = (0,)) -> None:
        """Submit an attempt.

        runner: command that receives --element and --elements.
        final: exit codes after which a runner is not restarted.
        Raises: EngineUnreachable, although the attempt may exist; InvalidCluster if the engine refuses the job.
        """
        ...

    def find(self, name: str) -> bool:
        """Return whether the engine has an attempt with this name."""
        ...

    def status(self, name: str) -> AttemptStatus:
        """Return a submitted attempt's status."""
        ...

    def cancel(self, name: str) -> None:
        """Cancel an attempt; return when its last process has ended."""
        ...

    def withdraw(self, name: str) -> None:
        """Drop what is left of an attempt whose job is done, without waiting. Logs stay.

        Does nothing where an element that begins later ends by itself: it finds the job done.
        """
        ...

    def logs(self, name: str, element: int) -> str:
        """Return the last 64 KiB of a runner's output, or ""."""
        ...

    def close(self) -> None:
        """End everything that cannot outlive this process."""
        ...
