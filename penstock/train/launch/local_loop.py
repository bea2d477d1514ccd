"""Begin a run on this machine, again and again, until it ends: the process behind `penstock train submit`.

Standard input: the run's file as JSON. The output of this process and of the ranks goes to the inherited log.
"""

import json
import os
import sys
import time

import loader
from loader.json_text import parse_json_object

from ..run import AGAIN
from ..run_folder import RunFolder
from ..run_spec import RunSpec, spec_of
from .failures import Failures, last_error, last_step
from .node_start import environment, run_node, torchrun
from .run_log import SPANS, times_of


def run_until_ended(spec: RunSpec, log: str) -> int:
    """Run a training to its end; return its last exit status. log: file that its ranks write to."""
    folder, failures = RunFolder(loader.Root(spec.record).store, spec.run), Failures()
    attempt = _starts(log)
    while True:
        begin = os.path.getsize(log)
        _note(log, "begun_us", log=begin)
        variables = environment(spec, os.environ) | {"PENSTOCK_ATTEMPT": str(attempt)}
        status, line = run_node(torchrun(spec), variables)
        _note(log, "ended_us")
        attempt += 1
        if status == 0:
            return 0
        if status == AGAIN:
            print(f"penstock: {spec.run} stopped, and begins again", flush=True)
            continue
        wait_s = failures.next_start_s(last_step(folder), line or last_error(log, begin))
        if wait_s is None:
            print(
                f"penstock: {spec.run} failed twice at one step with the same last line; it is over",
                flush=True,
            )
            return status
        print(
            f"penstock: {spec.run} failed with status {status}; it begins again in {wait_s:.0f} s", flush=True
        )
        time.sleep(wait_s)


def _starts(log: str) -> int:
    """Return the number of starts so far, of earlier submits too."""
    with open(f"{log}{SPANS}", "a+") as file:
        file.seek(0)
        return sum("begun_us" in times for times in times_of(file))


def _note(log_file: str, what: str, **facts: int) -> None:
    """Write a time beside the log: the accounting of this machine."""
    with open(f"{log_file}{SPANS}", "a") as file:
        file.write(json.dumps({what: time.time_ns() // 1000, **facts}) + "\n")


def main() -> int:
    """Run the training of the standard input."""
    log = sys.argv[1]
    return run_until_ended(spec_of(parse_json_object(sys.stdin.read()), "the standard input"), log)


if __name__ == "__main__":
    sys.exit(main())
