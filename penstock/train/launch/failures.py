"""Decide whether a run that failed begins again, and when."""

import os
import re
import sys
from dataclasses import dataclass

from ...compute.locked_processes import LOG_BYTES
from ..run_folder import RunFolder

FIRST_S, LONGEST_S = 10.0, 600.0
_ERROR = re.compile(r"(?!\s|[WE][0-9]{4} |torch\.distributed\.elastic\.).*(?:Error|Exception)")
"""Last line of a traceback, and none of torchrun's report."""
_RANK = re.compile(r"(?: *[0-9]+: |\[rank[0-9]+\]:(?! ))?(?:\[rank[0-9]+\]: )?")
"""Names of a rank before its line: the launcher's, and torch's own in a traceback."""


@dataclass(slots=True)
class Failures:
    """Failures of a run so far."""

    step: int | None = None
    """Steps done at the last failure; None before the first."""
    line: str = ""
    """Its last line."""
    wait_s: float = FIRST_S
    """Seconds to wait after the next failure."""

    def next_start_s(self, step: int | None, line: str) -> float | None:
        """Return the seconds to wait after a failure: 10 s, doubled up to 10 min while no step is made.

        None ends the run: the second failure at one step with the same last line is not the machine's. step: None if
        the record cannot be read, which ends no run.
        """
        if step is None:
            step = self.step
        elif (self.step, self.line) == (step, line):
            return None
        wait_s = self.wait_s if self.step == step else FIRST_S
        self.step, self.line, self.wait_s = step, line, min(2 * wait_s, LONGEST_S)
        return wait_s


def last_step(folder: RunFolder) -> int | None:
    """Return the steps done when the newest start ended, by its record; -1 before any.

    None if the record cannot be read. Windows count too: else failures at different steps between two checkpoints would
    look alike.
    """
    try:
        events = folder.events()
        newest = events[-1].attempt if events else 0
        windows = [key.end_step for key in folder.window_keys(newest)]
    except Exception as error:  # noqa: BLE001 - a failing store costs the record, never the training
        print(f"penstock: could not read the record: {error}", file=sys.stderr, flush=True)
        return None
    return max([*(event.step for event in events if event.attempt == newest), *windows], default=-1)


def last_error(log: str, begin: int = 0) -> str:
    """Return the last line of a traceback in a log, or its last line. begin: bytes of the log before this start."""
    with open(log, "rb") as file:
        file.seek(max(begin, os.fstat(file.fileno()).st_size - LOG_BYTES))
        lines = file.read().decode(errors="replace").splitlines()
    lines = [_RANK.sub("", line, count=1) for line in lines]
    return ([line for line in lines if is_error(line)] or lines or [""])[-1]


def is_error(line: str) -> bool:
    """Return whether a line ends a traceback."""
    return bool(_ERROR.match(line))
