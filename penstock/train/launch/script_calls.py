"""Calls of a batch script on Slurm.

`next FAILURES RECORD RUN LOG BYTES` prints the seconds until a failed run begins again, and exits with 3 if it is over.
FAILURES is a file that keeps the failures so far. BYTES is the size of the log before this start.

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
from .failures import Failures, is_scheduler_line, last_error, last_step
from .run_end import send_end

OVER = 3


def next_start(file: str, record: str, run: str, log: str, size: str) -> int:
    """Print the seconds to wait."""
    path = Path(file)
    failures = Failures(**parse_json_object(path.read_text())) if path.exists() else Failures()
    line = last_error(log, int(size))
    step = None if is_scheduler_line(line) else last_step(RunFolder(loader.Root(record).store, run))
    wait_s = failures.next_start_s(step, line)
    if wait_s is None:
        print(
            f"penstock: {run} failed twice at one step with the same last line; it is over", file=sys.stderr
        )
        return OVER
    path.write_text(json.dumps(asdict(failures)))
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
