"""The processor cores that this process may use."""

import os


def n_cores() -> int:
    """Return the number of cores that this process may use: those of its affinity, else all of the machine."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
