"""The interface of engines: an engine places an attempt at a job and reports its status.

An attempt's name is its handle: any process can compute it. Only the job's folder records finished blocks. An engine
is one file here, and one line of `cluster.ENGINES`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptStatus:
    """Status of an attempt, from its engine."""

    state: Literal["waiting", "running", "ended", "unknown"]
    """"ended": nothing waits or runs. "unknown": the engine's answer shows neither."""
    reason: str = ""
    """Why runners wait, in the engine's words, or ""."""
    waiting: int = 0
    """Runners that wait."""
    running: int = 0
    """Runners that run."""
    place: str = ""
    """The attempt for people: 'Slurm job 12 in partition long', or ""."""


class Engine(Protocol):
    """Attempts on one machine or cluster, by name: 'pk-<job>-<token>-<attempt>'.

    Every method but `close` raises EngineUnreachable if the engine does not respond.
    """

    poll_s: float
    """Minimum seconds between polls of an attempt."""

    def submit(self, name: str, runner: Sequence[str], n_blocks: int, final: Sequence[int] = (0,)) -> None:
        """Place an attempt.

        runner: command that receives --element and --elements.
        final: exit codes after which a runner does not begin again.

        Raises: EngineUnreachable, although the attempt may exist; InvalidCluster for a refused job.
        """
        ...

    def find(self, name: str) -> bool:
        """Return whether the engine has an attempt of this name."""
        ...

    def status(self, name: str) -> AttemptStatus:
        """Return the state of an attempt that was placed."""
        ...

    def cancel(self, name: str) -> None:
        """Cancel an attempt; return when its last process has ended."""
        ...

    def logs(self, name: str, element: int) -> str:
        """Return the last 64 KiB that a runner wrote, or ""."""
        ...

    def close(self) -> None:
        """End all that cannot outlive this process."""
        ...
