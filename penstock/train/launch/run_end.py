"""The end of a run: send it to people, wait for it, and follow its output until then."""

import os
import sys
import time
from collections.abc import Iterator

from loader.errors import EngineUnreachable, InvalidRuntime, PenstockError
from loader.redaction import redact

from ...alerts import Alert, Severity, channels, send
from ...text import line_text
from ..run_folder import RunFolder
from .launcher import Launcher, RunStatus
from .run_log import rank_lines

ALERTS = "PENSTOCK_ALERTS"
"""Variable with the channels of alerts, on the machine of the launcher."""
ASK_S = 2.0
"""Seconds between two looks at a run that a person waits for."""
TIMED_OUT = 124
"""Exit status of a wait that is over before the run, as timeout(1) has it."""
LAST_EVENTS = ("ended", "stopped")


def send_end(folder: RunFolder, status: int) -> None:
    """Send the alert of a run that is over. An alert that fails costs no run its exit status."""
    setting = os.environ.get(ALERTS, "")
    if not setting:
        return
    try:
        to = channels(setting)
    except ValueError as error:
        print(f"penstock: {ALERTS}: {error}", file=sys.stderr, flush=True)
        return
    severity: Severity = "error" if status else "resolved"
    alert = Alert(name="training-over", severity=severity, dataset="", what=_end_words(folder, status))
    for problem in send(alert, to):
        print(f"penstock: {problem}", file=sys.stderr, flush=True)


def _end_words(folder: RunFolder, status: int) -> str:
    """Return how a run ended, in a sentence."""
    try:
        events = folder.events()
    except PenstockError:  # the record is damaged or its store fails
        events = []
    steps = [event.step for event in events]
    step = max(steps, default=0)
    if status:
        words = f"failed with status {status} after {step:,} steps"
    elif events and events[-1].name == "stopped":
        words = f"was stopped after {step:,} steps; penstock train resume continues it"
    else:
        words = f"ended after {step:,} steps"
    return line_text(redact(f"{folder.run} {words} (record {folder.store.url})"))


def wait_until_ended(folder: RunFolder, launcher: Launcher, timeout_s: float | None = None) -> int | None:
    """Wait for a run, and return its exit status; None if the time is over before. timeout_s: None for no limit.

    A scheduler that does not answer is asked again. Raises: InvalidRuntime for a run that the launcher does not know.
    """
    until_s = None
    if timeout_s is not None:
        until_s = time.monotonic() + timeout_s
    while True:
        try:
            status = launcher.status(folder.run)
        except EngineUnreachable as error:
            print(f"penstock: {error}; asking again", file=sys.stderr, flush=True)
        else:
            if status.state in ("ended", "unknown"):
                return _exit_status(folder, status)
        # A sleep beyond the limit would end late and find nothing more.
        if until_s is not None and time.monotonic() + ASK_S > until_s:
            return None
        time.sleep(ASK_S)


def _exit_status(folder: RunFolder, status: RunStatus) -> int:
    """Return a run's exit status by its launcher, or else by its record: 0 if it ended or was stopped, 1 else."""
    if status.exit_status is not None:
        return status.exit_status
    events = folder.events()
    if status.state == "unknown" and not events:
        raise InvalidRuntime(
            f"{folder.run}: its launcher does not know it, and it has no event; pass --cluster of its cluster",
            what="exit status",
            where=folder.run,
            given=status.state,
        )
    if not events:
        return 1
    is_whole = events[-1].name in LAST_EVENTS
    return 0 if is_whole else 1


def follow_output(
    folder: RunFolder, launcher: Launcher, rank: int | None = None, begin: int | None = None
) -> Iterator[str]:
    """Yield what a run writes, until it has ended. rank: only its lines, without its name.

    begin: byte of its log to begin at; None for the last 64 KiB.
    """
    if rank is not None:
        rank = launcher.label(folder.run, rank)
    rest = ""
    while True:
        has_ended = launcher.status(folder.run).state in ("ended", "unknown")  # before the last part is read
        part = launcher.log_part(folder.run, begin)
        while part.text:
            begin = part.end
            # Whole lines only: a part may end within one, before the rank's name of the next.
            lines, _, rest = (rest + part.text).rpartition("\n")
            yield from filter_lines(lines, rank)
            part = launcher.log_part(folder.run, begin)
        if has_ended:
            yield from filter_lines(rest, rank)
            return
        time.sleep(ASK_S)


def filter_lines(lines: str, rank: int | None) -> Iterator[str]:
    """Yield lines, or only a rank's, with a line's end; nothing if there is none."""
    text = lines if rank is None else rank_lines(lines, rank)
    if text:
        yield f"{text}\n"
