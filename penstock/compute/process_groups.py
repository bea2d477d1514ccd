"""End a child and its process group, without a signal to a later process of its number.

The system gives a number away again once its process was waited for. So a child is watched without that, and its group
gets the signal before.
"""

import os
import signal
import subprocess
import time
from contextlib import suppress
from typing import Any

LOOK_S = 0.02


def has_ended(process: "subprocess.Popen[Any]") -> bool:
    """Return whether a child has ended. Its number stays its own until `wait` or `poll`."""
    if process.returncode is not None:
        return True
    # WNOWAIT leaves the child a zombie, which keeps its number.
    return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None


def end_group(process: "subprocess.Popen[Any]", term_s: float = 0.0, *, whole_group: bool = False) -> int:
    """End a child that leads a group, then its group by SIGKILL; return its exit status.

    term_s: seconds that a live child has after SIGTERM. whole_group: True to send that to its group, too.
    No signal is sent for a child that was waited for before.
    """
    if process.returncode is not None:
        return process.returncode
    if term_s and not has_ended(process):
        with suppress(ProcessLookupError):
            if whole_group:
                os.killpg(process.pid, signal.SIGTERM)
            else:
                os.kill(process.pid, signal.SIGTERM)
        until_s = time.monotonic() + term_s
        while not has_ended(process) and time.monotonic() < until_s:
            time.sleep(LOOK_S)
    with suppress(ProcessLookupError):
        # Its children too: one that outlives it could keep a GPU.
        os.killpg(process.pid, signal.SIGKILL)
    return process.wait()
