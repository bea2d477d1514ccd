"""The interface of launchers: a launcher starts a run's attempts, and returns its status.

A run's name is its handle. A launcher is one file here, and one line of `LAUNCHERS` in `submitting.py`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from ..run_spec import RunSpec
from .run_log import LogPart, MissingLog, RankStart


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStatus:
    """State of a run, from its launcher."""

    state: Literal["waiting", "running", "ended", "unknown"]
    """"ended": nothing waits or runs. "unknown": the launcher does not know the run."""
    place: str = ""
    """Words by which a person finds it: 'Slurm job 12 in partition long'."""
    reason: str = ""
    """Why it waits, in the scheduler's words; why it ended, if its launcher wrote that; "" while it runs."""
    exit_status: int | None = None
    """Exit status of a run that ended, if the launcher has it."""
    is_ending: bool = False
    """True while the processes of a start are ending: they may still store a request to stop."""


NEXT_START = "its next start has the changed file"
"""Words about a run that runs by the file before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Time that a scheduler gave to a run: one line of its accounting."""

    begun_us: int
    """UTC microseconds of its beginning."""
    ended_us: int | None
    """UTC microseconds of its end; None while it lasts."""
    nodes: int = 1
    """Number of nodes."""
    state: str = ""
    """State in the scheduler's word, such as PREEMPTED."""
    node_names: tuple[str, ...] = ()
    """Names of the nodes, if the scheduler has them."""
    starts: tuple[RankStart, ...] = ()
    """Starts of the ranks in it, in order; () if the launcher notes none."""


class Launcher(Protocol):
    """Runs on one machine or cluster.

    Every method raises EngineUnreachable if the scheduler does not answer, which does not mean that a run has ended.
    """

    def name(self) -> str:
        """Return the name of the machine or cluster. Launchers of one name have the same runs.

        Raises: InvalidCluster if the scheduler has no name.
        """
        ...

    def describe(self, spec: RunSpec) -> str:
        """Return what `submit` would hand to the scheduler, for `--dry-run`.

        Raises: InvalidSpec if it cannot honour a key.
        """
        ...

    def notes(self, spec: RunSpec) -> list[str]:
        """Return what the launcher does differently from what a reader of the run's file expects."""
        ...

    def check(self, spec: RunSpec) -> str:
        """Return the scheduler's answer to the run, for `--dry-run=server`; start nothing. Raises: InvalidSpec."""
        ...

    def submit(self, spec: RunSpec) -> str:
        """Begin a run, unless it waits or runs already; return where it is.

        If it waits or runs by another file, its next start has this one. Raises: InvalidSpec if it is refused.
        """
        ...

    def status(self, run: str) -> RunStatus:
        """Return the state of a run."""
        ...

    def statuses(self, runs: Sequence[str]) -> dict[str, RunStatus]:
        """Return the states of runs by name, for a list of all, with as few requests as the scheduler allows."""
        ...

    def why(self, run: str) -> str:
        """Return why a run waits: the scheduler's words, and the limits behind them; "" if it does not wait."""
        ...

    def cancel(self, run: str) -> None:
        """End a run for good; return when its last process has ended. It may save on a scheduler's SIGTERM."""
        ...

    def withdraw(self, run: str) -> None:
        """Take a run that waits out of the queue; a run that has begun meanwhile goes on."""
        ...

    def spans(self, run: str) -> list[Span]:
        """Return the times that the run was given, in order. Raises: EngineUnreachable, also without accounting."""
        ...

    def logs(self, run: str, rank: int | None = None, start: int | None = None) -> str:
        """Return the last 64 KiB that the run wrote; "" if it wrote nothing.

        rank: only this rank's lines. start: only the output of the start with this many restarts before it.

        Raises: InvalidRuntime for a start whose output is not there.
        """
        ...

    def log_part(self, run: str, begin: int | None, end: int | None = None) -> LogPart:
        """Return what the run wrote from a byte of its log on. begin: None for the last 64 KiB. end: byte after it.

        Raises: InvalidRuntime if the log is not a single file.
        """
        ...

    def log_range(self, run: str, start: int | None = None) -> tuple[int, int | None] | None:
        """Return the first byte of a start in the run's log, and the byte after its last; None for no single file.

        start: restarts before it; None for the newest.
        """
        ...

    def label(self, run: str, rank: int) -> int | None:
        """Return the rank whose name begins its lines; None if the lines of the only rank have no name."""
        ...

    def missing_log(self, run: str) -> MissingLog | None:
        """Return what is missing of the run's output; None if it can be read, or is in no file."""
        ...
