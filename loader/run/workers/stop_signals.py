"""Signals that a scheduler sends to every process of a job. The trainer handles them: it may save a checkpoint."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)


@contextmanager
def stop_signals_blocked() -> Iterator[None]:
    """Start a process in this block: it is not ended before it calls `survive_stop_signals`."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def survive_stop_signals() -> None:
    """Ignore the signals from now on. SIG_IGN would be inherited by a decoder's processes."""
    for number in STOP_SIGNALS:
        signal.signal(number, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
