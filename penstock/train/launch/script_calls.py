"""Calls of a batch script on Slurm.

`next FAILURES RECORD RUN LOG BYTES STATUS RESTARTS` prints the seconds until a failed run begins again.
It exits with 3 if the run is over. FAILURES is a file that keeps the failures so far. BYTES is the size of the log
before this start.

`ended RECORD RUN STATUS` sends the alert of the end.

`cancel RECORD RUN` stores that a person cancelled the job: a start after it makes no step.
"""

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path

import loader
from loader.json_text import parse_json_object

from ..run_folder import RunFolder
from ..step_file import read_last_step
from .failures import OVER_WORDS, Failures, last_step, note_failure, note_kill, read_failure
from .run_end import send_end

OVER = 3


def next_start(file: str, record: str, run: str, log: str, size: str, status: str, restarts: str) -> int:
    """Print the seconds to wait, and store why the start ended."""
    path = Path(file)
    failures = Failures(**parse_json_object(path.read_text())) if path.exists() else Failures()
    failure = read_failure(log, int(size))
    folder = RunFolder(loader.Root(record).store, run)
    note_kill(folder, read_last_step(path.with_name("step")), restarts=int(restarts))
    wait_s = failures.next_start_s(last_step(folder), failure.line)
    path.write_text(json.dumps(asdict(failures)))  # before the record: its store may be slow
    is_over = wait_s is None
    note_failure(folder, failures, failure, restarts=int(restarts), status=int(status), is_over=is_over)
    if wait_s is None:
        print(f"penstock: {run} {OVER_WORDS}", file=sys.stderr)
        return OVER
    print(round(wait_s))
    return 0


def note_cancel(record: str, run: str) -> int:
    """Store the request to stop, unless `penstock train cancel` or `stop` stored one."""
    folder = RunFolder(loader.Root(record).store, run)
    if not folder.is_to_stop():
        folder.ask_to_stop("scancel")
    return 0


def note_end(record: str, run: str, status: str) -> int:
    """Send the alert of the end, if the environment names a channel."""
    send_end(RunFolder(loader.Root(record).store, run), int(status))
    return 0


CALLS: Mapping[str, Callable[..., int]] = {"next": next_start, "cancel": note_cancel, "ended": note_end}


if __name__ == "__main__":
    sys.exit(CALLS[sys.argv[1]](*sys.argv[2:]))
