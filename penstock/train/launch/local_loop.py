"""Begin a run on this machine, again and again, until it ends: the process behind `penstock train submit`.

Standard input: the run's file as JSON. The output of this process and of the ranks goes to the inherited log.
"""

import json
import os
import sys
import time

import loader
from loader.json_text import parse_json_object

from ...compute.locked_processes import LOG_BYTES
from ..run import AGAIN
from ..run_folder import RunFolder
from ..run_spec import RunSpec, spec_of
from .failures import Failures
from .node_start import environment, run_node, torchrun

SPANS = ".spans"
"""Ending of the file with the times of the starts."""


def run_until_ended(spec: RunSpec, log: str) -> int:
    """Run a training to its end; return its last exit status. log: file that its ranks write to."""
    folder, failures = RunFolder(loader.Root(spec.record).store, spec.run), Failures()
    attempt = 0
    while True:
        _note(log, "begun_us")
        status = run_node(torchrun(spec), environment(spec, os.environ) | {"PENSTOCK_ATTEMPT": str(attempt)})
        _note(log, "ended_us")
        attempt += 1
        if status == 0:
            return 0
        if status == AGAIN:
            print(f"penstock: {spec.run} stopped, and begins again", flush=True)
            continue
        wait_s = failures.next_start_s(_step(folder), _last_line(log))
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


def _note(log: str, what: str) -> None:
    """Write a time beside the log: the accounting of this machine."""
    with open(f"{log}{SPANS}", "a") as file:
        file.write(json.dumps({what: time.time_ns() // 1000}) + "\n")


def _step(folder: RunFolder) -> int:
    """Return the steps done when the newest start ended, according to its record."""
    try:
        events = folder.events()
    except Exception as error:  # noqa: BLE001 - a failing store costs the record, never the training
        print(f"penstock: could not read the record: {error}", flush=True)
        return -1
    return events[-1].step if events else -1


def _last_line(log: str) -> str:
    """Return the last line of a traceback: what the ranks wrote before torchrun's report."""
    with open(log, "rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - LOG_BYTES))
        lines = file.read().decode(errors="replace").splitlines()
    errors = [
        line
        for line in lines
        if ("Error" in line or "Exception" in line) and not line.startswith(("W", "E", " "))
    ]
    return (errors or lines or [""])[-1]


def main() -> int:
    """Run the training of the standard input."""
    log = sys.argv[1]
    return run_until_ended(spec_of(parse_json_object(sys.stdin.read()), "the standard input"), log)


if __name__ == "__main__":
    sys.exit(main())
