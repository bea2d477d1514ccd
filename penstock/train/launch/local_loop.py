"""Begin a run on this machine, again and again, until it ends: the process behind `penstock train submit`.

Standard input: the run's file as JSON. The output of this process and of the ranks goes to the inherited log. A later
submit leaves a changed file beside the log, in the private folder of this user: the next start has it.
"""

import errno
import json
import os
import sys
import time
from contextlib import suppress
from pathlib import Path

import loader
from loader.errors import InvalidSpec
from loader.json_text import parse_json_object

from ...units import utc_us
from ..run import AGAIN
from ..run_folder import RunFolder
from ..run_spec import RunSpec, parse_spec
from .failures import OVER_WORDS, Failures, last_step, note_failure, note_kill, read_failure
from .node_start import environment, run_node, torchrun
from .run_end import send_end
from .run_log import RANKS, SPANS, parse_starts, ranks_of_starts

NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
NO_ROOM_S = 60.0
"""Seconds until a start that found a full disk is tried again."""
NOT_STARTED = 127
"""Exit status of a run whose command never started."""


def run_until_ended(spec: RunSpec, log: str, file: str = "") -> int:
    """Run a training to its end; return its last exit status.

    log: file that its ranks write to. file: one that holds the run's newest file; "": it does not change.

    A full disk ends no run: notes are lost, and a start that finds no room is tried again.
    """
    root = loader.Root(spec.record)
    folder = RunFolder(root.store, spec.run)
    failures = Failures()
    ranks_lock = f"{log}{RANKS}"
    attempt = _starts(log) - 1
    while True:
        spec = _newest(spec, file)
        # The traceback of this start lies after it.
        begin = os.path.getsize(log)
        attempt += 1
        # Once lines have the names of ranks, all later ones have: `logs --rank 0` looks for the name.
        has_names = spec.ranks_per_node > 1 or _most_ranks(log) > 1
        if _note(log, "begun_us", log=begin, ranks=spec.ranks_per_node, loop_pid=os.getpid()):
            attempt = _starts(log) - 1
        variables = environment(spec, os.environ) | {"PENSTOCK_ATTEMPT": str(attempt)}
        try:
            status, failure = run_node(torchrun(spec, tee=has_names), variables, ranks_lock)
        except OSError as error:
            if _waits_after_refusal(failures, error):
                continue
            _say(f"{spec.run} did not start for an hour; it is over")
            return NOT_STARTED
        finally:
            _note(log, "ended_us")
        # A file that changed meanwhile asks for another start, such as more steps.
        if status == 0 and _newest(spec, file) == spec:
            return 0
        if status in (0, AGAIN):
            _say(f"{spec.run} stopped, and restarts")
            continue
        note_kill(folder, failure.last_step, restarts=attempt)
        failure = failure if failure.line else read_failure(log, begin)
        wait_s = failures.next_start_s(last_step(folder), failure.line)
        is_over = wait_s is None
        note_failure(folder, failures, failure, restarts=attempt, status=status, is_over=is_over)
        if wait_s is None:
            _say(f"{spec.run} {OVER_WORDS}")
            return status
        _say(f"{spec.run} failed with status {status}; it restarts in {wait_s:.0f} s")
        time.sleep(wait_s)


def _waits_after_refusal(failures: Failures, error: OSError) -> bool:
    """Wait until a start that the machine refused is tried again; return False if the run is over."""
    wait_s: float | None = NO_ROOM_S
    if error.errno not in NO_ROOM:
        wait_s = failures.next_start_s(None, error.strerror or "")
    if wait_s is None:
        return False
    _say(f"the run did not start: {error}; retrying in {wait_s:.0f} s")
    time.sleep(wait_s)
    return True


def put_file(path: Path, spec: RunSpec) -> bool:
    """Store a run's file for its next start; return whether it replaces a different one."""
    try:
        is_changed = _read(str(path)) != spec
    except (OSError, ValueError, InvalidSpec):
        # An unreadable file is a different one; a missing one is not replaced.
        is_changed = path.exists()
    name = f"{path.name}.{os.getpid()}"
    unfinished = path.with_name(name)
    text = json.dumps(spec.to_json())
    unfinished.unlink(missing_ok=True)  # of a killed process with this number
    # Its variables are for this user only: created with its mode, it is open to others at no moment.
    unfinished.touch(0o600, exist_ok=False)
    unfinished.write_text(text)
    # Renamed, so that the loop never reads half a file.
    unfinished.replace(path)
    return is_changed


def _newest(spec: RunSpec, file: str) -> RunSpec:
    """Return the run's newest file; the one so far if that cannot be read."""
    if not file:
        return spec
    try:
        newest = _read(file)
    except (OSError, ValueError, InvalidSpec) as error:
        _say(f"could not read the newest file of {spec.run}: {error}")
        return spec
    return newest if newest.run == spec.run else spec


def _read(file: str) -> RunSpec:
    text = Path(file).read_text()
    return parse_spec(parse_json_object(text), file)


def _starts(log: str) -> int:
    """Return the number of starts so far, of earlier submits too."""
    try:
        with open(f"{log}{SPANS}") as file:
            return sum("begun_us" in times for times in parse_starts(file))
    except OSError:  # none yet
        return 0


def _most_ranks(log: str) -> int:
    """Return the ranks of the largest start so far; 0 before the first."""
    try:
        with open(f"{log}{SPANS}") as file:
            return max(ranks_of_starts(file), default=0)
    except OSError:  # none yet
        return 0


def _note(log_file: str, what: str, **facts: int) -> bool:
    """Write a time beside the log, the accounting of this machine; return False on a full disk."""
    try:
        with open(f"{log_file}{SPANS}", "a") as file:
            file.write(json.dumps({what: utc_us(), **facts}) + "\n")
    except OSError as error:
        _say(f"could not note a time: {error}")
        return False
    return True


def _say(text: str) -> None:
    with suppress(OSError):  # the log is on the full disk
        print(f"penstock: {text}", flush=True)


def main() -> int:
    """Run the training of the standard input."""
    spec = parse_spec(parse_json_object(sys.stdin.read()), "the standard input")
    log = sys.argv[1]
    status = run_until_ended(spec, *sys.argv[1:])
    _note(log, "exit_us", status=status)
    root = loader.Root(spec.record)
    send_end(RunFolder(root.store, spec.run), status)
    return status


if __name__ == "__main__":
    sys.exit(main())
