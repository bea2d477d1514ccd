"""How long a test waits for what should come: a busy machine is as slow as it likes."""

import os
import subprocess
import time
from collections.abc import Callable
from typing import Any

PATIENCE_S = float(os.environ.get("PENSTOCK_PATIENCE_S", "600"))
"""Seconds without progress after which a wait fails. Planted bugs set fewer: there it may never come."""


def until(
    holds: Callable[[], object],
    what: object = "",
    progress: Callable[[], object] = bool,
    process: "subprocess.Popen[Any] | None" = None,
) -> None:
    """Wait until it holds, as long as `progress` returns something new within PATIENCE_S; at most three times as long.

    It looks again after 1 ms, and at last each 0.1 s; with a process, whose moment may pass, each 1 ms.

    Args:
        holds: Whether the wait is over.
        what: For the failure; a function is called.
        progress: Returns something new as long as there is hope.
        process: Must not end before.
    """
    latest = time.monotonic() + 3 * PATIENCE_S
    seen, end_at = progress(), time.monotonic() + PATIENCE_S
    pause_s, longest_s = 0.001, 0.1 if process is None else 0.001

    def describe() -> object:
        return what() if callable(what) else what

    while not holds():
        assert process is None or process.poll() is None, f"it ended with {process.returncode}: {describe()}"
        if (now := progress()) != seen:
            seen, end_at = now, min(time.monotonic() + PATIENCE_S, latest)
        assert time.monotonic() < end_at, f"nothing in {PATIENCE_S} s, or not in three times: {describe()}"
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, longest_s)
