"""The interface of engines: an engine places an attempt at a job and reports its status.

An attempt's name is its handle: a process that can compute it can find, poll and cancel the attempt. Only the job's
folder records which blocks are done. An engine is one file here, and one line of `cluster.ENGINES`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptStatus:
    """Status of an attempt, from its engine."""

    state: Literal["waiting", "running", "ended", "unknown"]
    """"ended": the engine answered, and nothing waits or runs. "unknown": the answer shows neither."""
    reason: str = ""
    """Why runners wait, in the engine's words and with their number; "" where none does."""
    waiting: int = 0
    """Runners that wait."""
    running: int = 0
    """Runners that run."""
    place: str = ""
    """Words by which a person finds the attempt: 'Slurm job 12 in partition long'; "" without any."""


class Engine(Protocol):
    """Attempts on one machine or cluster, by name: 'pk-<job>-<token>-<attempt>'.

    Every method but `close` raises EngineUnreachable for an engine that does not answer, which is no end.
    """

    poll_s: float
    """Seconds between two looks at an attempt, at least."""

    def submit(self, name: str, runner: Sequence[str], n_blocks: int, final: Sequence[int] = (0,)) -> None:
        """Place an attempt.

        runner: command that gets --element and --elements; it computes blocks element, element + elements ...
        final: exit codes of the runner after which it is not begun again.

        Raises: EngineUnreachable, after which it may have been placed; InvalidCluster for a job that is refused.
        """
        ...

    def find(self, name: str) -> bool:
        """Return whether the engine has an attempt of this name."""
        ...

    def status(self, name: str) -> AttemptStatus:
        """Return the state of an attempt that was placed."""
        ...

    def cancel(self, name: str) -> None:
        """Cancel an attempt, and return when its last process has ended."""
        ...

    def logs(self, name: str, element: int) -> str:
        """Return the last 64 KiB that a runner wrote, "" without any."""
        ...

    def close(self) -> None:
        """End what cannot outlive this process."""
        ...
