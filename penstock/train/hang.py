"""End a rank that hangs, with the stacks of its threads in the log. The launcher then begins the gang again."""

import faulthandler
import logging
import statistics
from collections import deque
from time import monotonic

_log = logging.getLogger(__name__)
STDERR = 2
"""File number of standard error, which tests and notebooks may replace in `sys`."""
LEAST_S = 600.0
STEPS = 10
"""A step that takes longer than so many median ones, and than `LEAST_S`, is a hang."""
STEADY = 32
"""Steps after which their median is known, and between two updates of it: an update takes 10 us."""
PART = 60
"""Arming again within 1/60 of the limit does nothing: arming starts a thread, 0.1 ms on a busy machine."""


class HangWatch:
    """Dumps all threads' stacks to standard error and exits with 1, unless it is armed anew in time."""

    def __init__(self) -> None:
        self._steps_s = deque[float](maxlen=101)
        self._n_steps = 0
        self._armed_until_s = 0.0
        self._has_warned = False
        self.median_s = 0.0
        """Median of the last steps' seconds; 0 before the first."""

    @property
    def steady_median_s(self) -> float:
        """The median once it is of enough steps; 0 until then."""
        if self._n_steps >= STEADY:
            return self.median_s
        return 0.0

    def step(self, seconds: float) -> None:
        """Note a step's seconds, and wait for the next one from now on."""
        self._steps_s.append(seconds)
        self._n_steps += 1
        if self._n_steps <= STEADY or self._n_steps % STEADY == 0:
            self.median_s = statistics.median(self._steps_s)
        self.arm()

    def arm(self) -> None:
        """Begin to wait anew."""
        limit_s = max(STEPS * self.median_s, LEAST_S)
        if self._armed_until_s < monotonic() + limit_s:
            slack_s = limit_s / PART
            self._armed_until_s = monotonic() + limit_s + slack_s
            # A C thread without the interpreter's lock, so it works while Python code holds it.
            faulthandler.dump_traceback_later(limit_s + slack_s, exit=True, file=STDERR)

    def disarm(self) -> None:
        """Wait no longer."""
        self._armed_until_s = 0.0
        faulthandler.cancel_dump_traceback_later()

    def warn_of_grace(self, save_s: float, grace_s: float) -> None:
        """Warn once if a stop may come too late for the checkpoint, which takes `save_s`."""
        # The ranks agree one step late, so a stop takes up to two steps.
        needed_s = 2 * self.median_s + save_s
        if needed_s <= grace_s or self._has_warned:
            return
        self._has_warned = True
        _log.warning(
            "two steps and a checkpoint take %.0f s, and the launcher waits %.0f s after its signal (grace_s): a "
            "stop may come too late for the checkpoint",
            needed_s,
            grace_s,
        )
