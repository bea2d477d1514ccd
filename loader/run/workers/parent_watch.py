"""End a worker with its trainer, and not by a signal that a scheduler sends to every process of a job."""

import os
import select
import signal
import socket
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType
from typing import NoReturn

from .forked_children import Handler

GRACE_S = 1.0
"""Seconds that a worker has to finish its batch."""


class ParentWatch:
    """A thread that waits until the trainer's process ends or closes its socket, and ends the worker after GRACE_S.

    It watches both: a child that the trainer forked keeps the socket open.
    """

    def __init__(self, sock: socket.socket, trainer_fd: int) -> None:
        self._sock = sock
        self._trainer_fd = trainer_fd
        self._ended = threading.Event()
        threading.Thread(target=self._run, name="penstock-watch", daemon=True).start()

    def end(self) -> NoReturn:
        self._ended.set()
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        os._exit(0)

    def _run(self) -> None:
        poll = select.poll()
        poll.register(self._sock, 0)  # hang-ups are always reported
        if self._trainer_fd >= 0:
            poll.register(self._trainer_fd, select.POLLIN)
        poll.poll()
        self._ended.wait(GRACE_S)
        os._exit(0)


def descriptor_of_parent(parent: int) -> int:
    """Return a descriptor of the parent process, -1 before Linux 5.3; exit if the parent is gone."""
    fd = -1
    with suppress(OSError):
        fd = os.pidfd_open(parent)
    if os.getppid() != parent:  # its number may have been reused
        os._exit(0)
    return fd


STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)


@contextmanager
def stop_signals_blocked() -> Iterator[None]:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def survive_stop_signals(numbers: Sequence[signal.Signals] = STOP_SIGNALS) -> None:
    """Ignore the signals from now on. SIG_IGN would be inherited by programs that a decoder starts."""
    for number in numbers:
        signal.signal(number, stay_alive)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)


def stay_alive(number: int, frame: FrameType | None) -> None:
    """Handle a signal by doing nothing."""


def default_handlers(numbers: Sequence[signal.Signals] = STOP_SIGNALS) -> dict[signal.Signals, Handler]:
    """Return signal -> Python's own handler."""
    handlers: dict[signal.Signals, Handler] = dict.fromkeys(numbers, signal.SIG_DFL)
    if signal.SIGINT in handlers:
        handlers[signal.SIGINT] = signal.default_int_handler
    return handlers
