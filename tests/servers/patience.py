"""How long a test waits for what should come: a busy machine is as slow as it likes."""

import os
import time
from collections.abc import Callable

PATIENCE_S = float(os.environ.get("PENSTOCK_PATIENCE_S", "600"))
"""Seconds without progress after which a wait fails. Planted bugs set fewer: there it may never come."""


def until(holds: Callable[[], object], what: object = "", progress: Callable[[], object] = bool) -> None:
    """Wait until it holds, as long as `progress` returns something new within PATIENCE_S; at most three times as long.

    what: for the failure; a function is called.
    """
    latest = time.monotonic() + 3 * PATIENCE_S
    seen, end_at = progress(), time.monotonic() + PATIENCE_S
    while not holds():
        if (now := progress()) != seen:
            seen, end_at = now, min(time.monotonic() + PATIENCE_S, latest)
        assert time.monotonic() < end_at, (
            f"nothing in {PATIENCE_S} s, or not in three times: {what() if callable(what) else what}"
        )
        time.sleep(0.1)
