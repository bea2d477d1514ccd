"""The interface of trackers: one run per name, and each step once. One is a file here, and a line of `TRACKERS`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from .run_facts import RunFacts

RunEnd = Literal["again", "finished", "stopped", "failed"]
"""End of a start: "again" waits to go on, "stopped" is a person's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackedStep:
    """Metrics of a step."""

    step: int
    """Global step."""
    at_us: int
    """Time of the first note, UTC microseconds."""
    values: Mapping[str, float]
    """Metric -> number."""


class Tracker(Protocol):
    """One run in a tracker. A thread beside the training calls it; any error is logged, and `begin` is called again."""

    settle_s: float
    """Seconds until a step that `log` took outlasts this process."""

    @property
    def knows_steps(self) -> bool:
        """True if `begin` asks the tracker for its last step; else the run's record has it."""
        ...

    def begin(self, facts: RunFacts, last: int) -> int:
        """Find or create the run and store its facts; return the last step that it has, -1 for none.

        last: last step by the run's record, which counts if the tracker cannot tell.
        """
        ...

    def log(self, steps: Sequence[TrackedStep]) -> None:
        """Store steps, which ascend and are new to it."""
        ...

    def close(self, end: RunEnd, checkpoint: str) -> None:
        """Store how the start ended. checkpoint: address of the newest, "" if there is none."""
        ...
