"""Ranks of a script as processes: forks of this one, which has imported torch and penstock and opened nothing.

A line of the input is a JSON list of ranks: {"environment": ..., "arguments": [script, ...], "out": FILE}; the answer
is the list of their process numbers. FILE gets what a rank prints, FILE.status its exit status. All end with
the input, or an empty list. Until then a rank keeps its number, so that no signal to it ends another process.
"""

import atexit
import json
import os
import runpy
import signal
import sys
import threading
from typing import NoReturn

import torch
import torch.distributed
import torch.distributed.checkpoint

import loader

assert loader.Loader
assert torch


def rank(environment: dict[str, str], arguments: list[str], out: str) -> NoReturn:
    """Do what one rank does, from its birth to its end."""
    with open(out, "wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os.environ.update(environment)
    sys.argv = arguments
    status = 1
    try:
        runpy.run_path(arguments[0], run_name="__main__")
        status = 0
    except SystemExit as stop:
        status = stop.code if isinstance(stop.code, int) else 1
    except BaseException:  # noqa: BLE001 - as Python ends
        sys.excepthook(*sys.exc_info())
    finally:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def keep(pid: int, out: str) -> None:
    """Write a rank's exit status once it has ended."""
    # Once waited for, its number may be given to any process, or to a thread of one, which gets the signal then.
    ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert ended is not None
    status = ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
    with open(f"{out}.part", "w") as file:
        file.write(str(status))
    os.replace(f"{out}.part", f"{out}.status")


def main() -> None:
    pids = []
    for line in sys.stdin:
        jobs = json.loads(line)
        if not jobs:
            break
        started = [os.fork() or rank(**job) for job in jobs]
        for pid, job in zip(started, jobs, strict=True):
            threading.Thread(target=keep, args=(pid, job["out"]), daemon=True).start()
        pids += started
        print(json.dumps(started), flush=True)
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    main()
