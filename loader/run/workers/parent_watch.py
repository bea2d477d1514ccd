"""A worker ends when its trainer does, however that ended, and when the trainer hangs up."""

import os
import select
import socket
import sys
import threading
from contextlib import suppress
from typing import NoReturn

GRACE_S = 1.0
"""Seconds that a worker may still take over the batch that it is making."""


class Watch:
    """A thread that sleeps until the trainer's process is gone or has closed its end of the socket.

    Both are looked at: a child that the trainer forked holds the socket open as long as it lives. Where the kernel has
    no process descriptors (before Linux 5.3), the socket must do. Then the worker has GRACE_S to end by itself.
    """

    def __init__(self, sock: socket.socket, trainer: int) -> None:
        self._sock, self._trainer = sock, trainer
        self._ended = threading.Event()
        threading.Thread(target=self._run, name="penstock-watch", daemon=True).start()

    def end(self) -> NoReturn:
        """End the process at once: atexit and destructors have nothing to do."""
        self._ended.set()
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        os._exit(0)

    def _run(self) -> None:
        poll = select.poll()
        poll.register(self._sock, 0)  # hang-ups are always told
        with suppress(OSError):
            poll.register(os.pidfd_open(self._trainer), select.POLLIN)
        if (
            os.getppid() == self._trainer
        ):  # else it was gone before we looked, and its number may be another's
            poll.poll()
            self._ended.wait(GRACE_S)
        os._exit(0)
