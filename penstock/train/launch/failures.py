"""Decide whether a run that failed begins again, and when."""

import os
import re
import sys
from dataclasses import dataclass, field

from loader.errors import Corrupt, FormatTooNew

from ...units import utc_us
from ..launched import secret_values
from ..record_objects.failed_starts import FailedStart, put_failed_start
from ..run_folder import RunFolder
from ..step_file import LastStep

FIRST_S = 10.0
"""Seconds before the next start after a first failure."""
LONGEST_S = 600.0
"""Longest such wait: it doubles while no step is made."""
UNREADABLE = -2
"""Steps of a run whose record is damaged, or has a newer format."""
SILENT_ENDS = 12
"""Failures alike in a row, while no step can be read, that end a run: an outage is not its fault."""
OVER_WORDS = "failed twice alike without a step between; it is over"
ENDS = ("failed", "stopped", "ended")
"""Events that a first rank stores at its end."""
MOST_LINES = 100
"""Most last lines to compare with."""
MOST_TEXT = 4000
"""Most characters of a traceback."""
LAST_LINES = 20
"""Lines that stand for a traceback if there is none."""
MOST_BYTES = 16 * 2**20
"""Bytes of a log that are searched for a failure: tracebacks of thousands of ranks."""
_ERROR = re.compile(r"(?!\s|[WE][0-9]{4} |torch\.distributed\.elastic\.).*(?:Error|Exception)")
"""Last line of a traceback, and none of torchrun's report."""
_ERROR_LINE = re.compile(r"[\w.]*(?:Error|Exception)(?::|$)")
"""A line that begins with the name of an error: metrics such as "val Error 0.1" are none."""
_CHAINS = ("During handling of the above exception", "The above exception was the direct cause")
"""Python's words between two tracebacks of one failure."""
_RANK_END = re.compile(r"srun: error: [^:]+: tasks? [^:]+: (.+)")
"""Slurm's line for ranks that ended, or that it ended."""
_MEMORY = re.compile(
    r"(?:srun|slurmstepd).*(?:Out Of Memory|oom[_-]kill|exceeded memory limit)", re.IGNORECASE
)
"""Slurm's line for ranks that it ended for their memory: the other ranks' tracebacks follow from it."""
_ADDRESS = re.compile(r"\[?[0-9a-fA-F:.]{4,}\]?:[0-9]{2,5}\b|\b0x[0-9a-fA-F]{6,}")
_NUMBER = re.compile(r"[0-9]+")
_RANK = re.compile(r"(?: *([0-9]+): |\[rank([0-9]+)\]:(?! ))?(?:\[rank([0-9]+)\]: )?")
"""Names of a rank before its line: the launcher's, and torch's own in a traceback."""


@dataclass(frozen=True, slots=True)
class RankFailure:
    """Why the ranks of a start ended, by what they wrote."""

    line: str = ""
    """Last line of the earliest traceback; without one a line of Slurm's, or the last line."""
    text: str = ""
    """The traceback, or the last lines; at most `MOST_TEXT` characters."""
    last_step: LastStep | None = None
    """Last step of the first rank, if it made one on this node."""


@dataclass(slots=True)
class Failures:
    """Failures of a run so far."""

    step: int | None = None
    """Steps done at the last failure; None before the first."""
    line: str = ""
    """Its last line."""
    wait_s: float = FIRST_S
    """Seconds to wait after the next failure."""
    lines: list[str] = field(default_factory=list)
    """Last lines of the failures at this step, without what differs from start to start."""
    unknown: list[str] = field(default_factory=list)
    """The same of failures while the store did not show the record."""
    ends: int = 0
    """Failures in a row without a step."""

    def next_start_s(self, step: int | None, line: str) -> float | None:
        """Return the seconds to wait after a failure: 10 s, doubled up to 10 min while no step is made.

        None ends the run: two failures alike without a step between them, whatever ended the ranks.

        step: `UNREADABLE` for a damaged record. None if the store does not show the record: then alike failures end the
            run once there were `SILENT_ENDS` in a row, after more than an hour.
        """
        alike = likeness(line)
        if step == UNREADABLE and self.step not in (None, UNREADABLE):
            # Damage after a step that was read is no evidence of a step between.
            step = None
        goes_on = step in (None, self.step)
        wait_s = self.wait_s if goes_on else FIRST_S
        self.wait_s = min(2 * wait_s, LONGEST_S)
        self.ends = self.ends + 1 if goes_on else 1
        if step is None:
            is_over = alike in self.unknown and self.ends >= SILENT_ENDS
            self.unknown = _append_line(self.unknown, alike)
        else:
            # Alike without a step between: it would fail a third time. Another failure may be an accident.
            is_over = goes_on and alike in self.lines
            if not goes_on:
                self.lines = []
                self.unknown = []
            self.lines = _append_line(self.lines, alike)
            self.step = step
            self.line = line
        if is_over:
            return None
        return wait_s


def _append_line(lines: list[str], line: str) -> list[str]:
    return [*lines, line][-MOST_LINES:]


def likeness(line: str) -> str:
    """Return a last line without addresses, and a line of Slurm's without nodes, tasks and numbers."""
    if line.startswith(("srun: ", "slurmstepd")):
        words = _RANK_END.match(line)
        return words[1] if words else _NUMBER.sub("#", line)
    return _ADDRESS.sub("ADDRESS", line)[:1000]


def last_step(folder: RunFolder) -> int | None:
    """Return the steps done when the newest start ended, by its record; -1 before any.

    None if the store does not show the record, as in an outage or with expired credentials. UNREADABLE if another try
    would not change the answer. Intervals count too: else failures at different steps between two checkpoints would
    look alike.
    """
    try:
        return _last_step(folder)
    except (Corrupt, FormatTooNew) as error:
        _warn(error)
        return UNREADABLE
    except Exception as error:  # noqa: BLE001 - a failing store costs the record, never the training
        _warn(error)
        return None


def _warn(error: Exception) -> None:
    print(f"penstock: could not read the record: {error}", file=sys.stderr, flush=True)


def _last_step(folder: RunFolder) -> int:
    """Return `last_step` of a record that can be read; UNREADABLE if neither events nor intervals can."""
    try:
        events = folder.events()
    except Corrupt as error:  # one damaged event hides no intervals
        _warn(error)
        keys = folder.interval_keys()
        newest = max((key.attempt for key in keys), default=0)
        return max((key.end_step for key in keys if key.attempt == newest), default=UNREADABLE)
    newest = 0
    if events:
        newest = events[-1].attempt
    intervals = [key.end_step for key in folder.interval_keys(newest)]
    return max([*(event.step for event in events if event.attempt == newest), *intervals], default=-1)


@dataclass(slots=True)
class _Traceback:
    """A rank's traceback in a log."""

    begin: int
    """Line at which it begins, or the first of a chain of tracebacks."""
    lines: list[str]
    """Its lines without the rank's name."""
    end: int = 0
    """Its last line."""


def _tracebacks(text: str) -> tuple[list[str], list[_Traceback]]:
    """Return lines without the ranks' names, and each rank's last traceback, the earliest end first."""
    lines = list[str]()
    # By rank, as lines of ranks mingle; None for lines without a rank's name.
    begun = dict[str | None, _Traceback]()
    ended = dict[str | None, _Traceback]()
    last_line = dict[str | None, str]()  # without blank lines
    for number, whole in enumerate(text.splitlines()):
        name_match = _RANK.match(whole)
        assert name_match is not None  # it matches an empty text
        rank = name_match[1] or name_match[2] or name_match[3]
        line = whole[name_match.end() :]
        if line.startswith("Traceback "):
            # One failure of several tracebacks begins at its first.
            is_chained = last_line.get(rank, "").startswith(_CHAINS) and rank in ended
            begun[rank] = _Traceback(ended[rank].begin if is_chained else number, [])
        if rank in begun:
            begun[rank].lines.append(line)
            if is_error(line):
                ended[rank] = begun.pop(rank)
                ended[rank].end = number
        if line.strip():
            last_line[rank] = line
        lines.append(line)
    return lines, sorted(ended.values(), key=lambda traceback: traceback.end)


def read_failure(log: str, begin: int = 0) -> RankFailure:
    """Return the earliest traceback in a log, or its last lines. begin: bytes before this start.

    If Slurm ended a rank for its memory, its line comes first; without a traceback, its line on the end of a rank.
    A rank's last traceback counts. The other ranks fail by the first one, in words that differ: "Connection closed
    by peer [10.0.0.7]:41234".
    """
    with open(log, "rb") as file:
        # The end of the log has the failure; a log of weeks does not fit into memory.
        file.seek(max(begin, os.fstat(file.fileno()).st_size - MOST_BYTES))
        text = file.read().decode(errors="replace")
    lines, tracebacks = _tracebacks(text)
    memory = [line for line in lines if _MEMORY.match(line)]
    if tracebacks:
        traceback = tracebacks[0].lines
        line = memory[0] if memory else traceback[-1]
        return RankFailure(line, _truncate([*memory[:1], *traceback]))
    ending = _truncate(lines[-LAST_LINES:])
    if errors := [line for line in lines if is_error(line)]:
        return RankFailure(errors[-1], ending)
    ends = [*memory, *filter(_RANK_END.match, lines)]
    return RankFailure(ends[0] if ends else (lines or [""])[-1], ending)


def failure_line(text: str) -> int | None:
    """Return the line at which the first failure in an output begins, counted from 0; None without a failure.

    It is the traceback that `read_failure` names, or Slurm's line before it. Without both, it is the first line of an
    error, or Slurm's line on the end of a rank.
    """
    lines, tracebacks = _tracebacks(text)
    begins = [traceback.begin for traceback in tracebacks[:1]]
    begins += [number for number, line in enumerate(lines) if _MEMORY.match(line)][:1]
    if not begins:
        for pattern in (_ERROR_LINE, _RANK_END):
            begins += [number for number, line in enumerate(lines) if pattern.match(line)][:1]
    return min(begins, default=None)


def _truncate(lines: list[str]) -> str:
    """Return lines as a text of at most MOST_TEXT characters, without its middle if it is longer."""
    text = "\n".join(line[:500] for line in lines)
    # Both ends count: where the traceback begins, and the error.
    half = MOST_TEXT // 2 - 20
    if len(text) <= MOST_TEXT:
        return text
    return f"{text[:half]}\n[...]\n{text[-half:]}"


def note_failure(
    folder: RunFolder, failures: Failures, failure: RankFailure, *, restarts: int, status: int, is_over: bool
) -> None:
    """Store why a start ended. A store that fails costs the record, never the training."""
    failed = FailedStart(
        at_us=utc_us(),
        restarts=max(0, restarts),
        status=status % 256,
        ends=failures.ends,
        is_over=is_over,
        line=failure.line[:1000],
        text=failure.text,
    )
    try:
        put_failed_start(folder.store, folder.key(""), failed, secret_values())
    except Exception as error:  # noqa: BLE001 - as above
        print(f"penstock: could not store why the start ended: {error}", file=sys.stderr, flush=True)


def note_kill(folder: RunFolder, last: LastStep | None, *, restarts: int) -> None:
    """Store that the first rank was killed after a step, if it stored no end itself. A failing store costs the event.

    restarts: starts before this one, by the launcher's count.
    """
    if last is None:
        return
    try:
        attempt, facts = folder.newest_attempt()
        if facts["restarts"] != restarts:  # the first rank did not come up
            return
        events = folder.events(attempt)
        if events and events[-1].name in ENDS:
            return
        number = 0
        if events:
            number = events[-1].number + 1
        at_us = utc_us()
        folder.put_event(attempt, number, "killed", last.step, {"took_us": at_us - last.at_us}, at_us)
    except Exception as error:  # noqa: BLE001 - as above
        print(f"penstock: could not store the last step: {error}", file=sys.stderr, flush=True)


def is_error(line: str) -> bool:
    """Return whether a line ends a traceback."""
    return bool(_ERROR.match(line))
