"""Decide whether a run that failed begins again, and when."""

import os
import re
import sys
from dataclasses import dataclass

from ..run_folder import RunFolder

FIRST_S, LONGEST_S = 10.0, 600.0
MOST_BYTES = 16 * 2**20
"""Bytes of a log that are searched for a failure: tracebacks of thousands of ranks."""
_ERROR = re.compile(r"(?!\s|[WE][0-9]{4} |torch\.distributed\.elastic\.).*(?:Error|Exception)")
"""Last line of a traceback, and none of torchrun's report."""
_RANK_END = re.compile(r"srun: error: [^:]+: tasks? [^:]+: (?:Exited with exit code|Out Of Memory)")
"""Slurm's line for ranks that ended by themselves."""
_RANK = re.compile(r"(?: *([0-9]+): |\[rank([0-9]+)\]:(?! ))?(?:\[rank([0-9]+)\]: )?")
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

        None ends the run: the second failure at one step with the same last line is not the machine's fault.

        step: None if the record cannot be read or the scheduler failed, which ends no run.
        """
        if step is not None and (self.step, self.line) == (step, line):
            return None
        wait_s = self.wait_s if step in (None, self.step) else FIRST_S
        self.wait_s = min(2 * wait_s, LONGEST_S)
        if step is not None:
            self.step, self.line = step, line
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
    """Return the last line of the earliest traceback in a log, or its last line. begin: bytes before this start.

    Without a traceback, Slurm's first line on the end of a rank comes before the last line.
    A rank's last traceback counts. The other ranks fail by the first one, in words that differ: "Connection closed
    by peer [10.0.0.7]:41234".
    """
    with open(log, "rb") as file:
        file.seek(max(begin, os.fstat(file.fileno()).st_size - MOST_BYTES))
        text = file.read().decode(errors="replace")
    lines, failing, errors = list[str](), set[str | None](), dict[str | None, tuple[int, str]]()
    for whole in text.splitlines():
        name = _RANK.match(whole)
        assert name is not None
        rank, line = name[1] or name[2] or name[3], whole[name.end() :]
        if line.startswith("Traceback "):
            failing.add(rank)
        elif rank in failing and is_error(line):
            failing.remove(rank)
            errors[rank] = len(lines), line
        lines.append(line)
    if errors:
        return min(errors.values())[1]
    if by_error := [line for line in lines if is_error(line)]:
        return by_error[-1]
    return next(filter(_RANK_END.match, lines), (lines or [""])[-1])


def is_scheduler_line(line: str) -> bool:
    """Return whether a last line is of Slurm's own trouble, which is no failure of the run."""
    return line.startswith(("srun: ", "slurmstepd")) and not _RANK_END.match(line)


def is_error(line: str) -> bool:
    """Return whether a line ends a traceback."""
    return bool(_ERROR.match(line))
