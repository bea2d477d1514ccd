"""End a rank that hangs, with the stacks of its threads in the log. The launcher then begins the gang again."""

import faulthandler
import statistics
from collections import deque

STDERR = 2
"""File number of standard error, which tests and notebooks may replace in `sys`."""
LEAST_S = 600.0
STEPS = 10
"""A step that takes longer than so many median ones, and than `LEAST_S`, is a hang."""


class HangWatch:
    """Dumps all threads' stacks to standard error and exits with 1, unless it is armed anew in time."""

    def __init__(self) -> None:
        self._steps_s = deque[float](maxlen=101)

    @property
    def median_s(self) -> float:
        """Median of the last steps' seconds; 0 before the first."""
        return statistics.median(self._steps_s) if self._steps_s else 0.0

    def step(self, seconds: float) -> None:
        """Note a step's seconds, and wait for the next one from now on."""
        self._steps_s.append(seconds)
        self.arm()

    def arm(self) -> None:
        """Begin to wait anew."""
        limit_s = max(STEPS * self.median_s, LEAST_S)
        faulthandler.dump_traceback_later(limit_s, exit=True, file=STDERR)

    def disarm(self) -> None:
        """Wait no longer."""
        faulthandler.cancel_dump_traceback_later()
