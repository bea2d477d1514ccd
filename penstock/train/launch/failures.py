"""Decide whether a run that failed begins again, and when."""

from dataclasses import dataclass, field

FIRST_S, LONGEST_S = 10.0, 600.0


@dataclass(slots=True)
class Failures:
    """Failures of a run so far."""

    _last: tuple[int, str] | None = None
    _wait_s: float = field(default=FIRST_S)

    def next_start_s(self, step: int, last_line: str) -> float | None:
        """Return the seconds to wait after a failure: 10 s, doubled up to 10 min while no step is made.

        None ends the run: the second failure at one step with the same last line is not the machine's.
        """
        if self._last == (step, last_line):
            return None
        if self._last is None or self._last[0] != step:
            self._wait_s = FIRST_S
        wait_s, self._last = self._wait_s, (step, last_line)
        self._wait_s = min(2 * self._wait_s, LONGEST_S)
        return wait_s
