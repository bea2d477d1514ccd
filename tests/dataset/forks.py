"""Processes that all begin at once: `forks.py SCRIPT ...`, where SCRIPT's `run(**job)` does one job.

Each line of the input is a JSON list of jobs. Each job is done by a process of its own, a fork of this one, which has
imported everything and opened nothing; they wait until all of them are there. The answer is a line too: for each job
its exit status, and what it says: the value that `run` returned, the name of the error, or null if it was killed.
"""

import json
import os
import runpy
import subprocess
import sys
import traceback
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa


def fork(run, job, gate):
    """(pid, file) of a process that does `job` when `gate` is closed, and says in `file` what came of it."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writing)
        return pid, os.fdopen(reading, "rb")
    status = 1
    try:
        os.close(gate[1])
        os.read(gate[0], 1)
        said = run(**job)
        status = 0
    except Exception as error:  # noqa: BLE001 - whatever it is, it is told
        traceback.print_exc()
        said = f"{type(error).__module__}.{type(error).__name__}"
    os.write(writing, json.dumps(said).encode())
    os._exit(status)


def at_once(run, jobs):
    """[(exit status, what it says)] of one process for each job."""
    gate = os.pipe()
    running = [fork(run, job, gate) for job in jobs]
    for end in gate:
        os.close(end)
    done = []
    for pid, file in running:
        with file:
            said = file.read()
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        done.append((status, json.loads(said) if said else None))
    return done


@contextmanager
def processes(script, *arguments):
    """A function of jobs that gives what `at_once` does of them, by the script's `run`."""
    command = [sys.executable, __file__, script, *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as running:

        def do(*jobs):
            running.stdin.write(json.dumps(jobs) + "\n")
            running.stdin.flush()
            return json.loads(running.stdout.readline())

        yield do
        running.stdin.close()
        assert running.wait() == 0


def main(script, *arguments):
    os.fsync = lambda descriptor: None  # a power cut needs it, SIGKILL does not: written is written
    sys.argv = [script, *arguments]
    sys.path.append(str(Path(__file__).parents[2]))  # where `tests` is
    run = runpy.run_path(script)["run"]
    pa.array([0])  # looks for pandas, which takes longer than a job
    for line in sys.stdin:
        print(json.dumps(at_once(run, json.loads(line))), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
