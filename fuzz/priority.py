"""The scheduling of a process that has encoded AV1."""

import os
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def ordinary_priority() -> Iterator[None]:
    """Around an encoder's life. SVT-AV1 gives the thread that opens it the highest real-time priority, where it may
    (as root), and never takes it back: whatever that thread starts later keeps every core from all other processes."""
    if not hasattr(os, "sched_setscheduler"):  # Linux has it
        yield
        return
    policy, parameters = os.sched_getscheduler(0), os.sched_getparam(0)
    try:
        yield
    finally:
        os.sched_setscheduler(0, policy, parameters)
