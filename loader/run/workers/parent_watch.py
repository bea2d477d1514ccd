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

    It looks at both: a child that the trainer forked holds the socket open as long as it lives. Then the worker has
    GRACE_S to end by itself.
    """

    def __init__(self, sock: socket.socket, trainer_fd: int) -> None:
        """Start the thread. trainer_fd: process descriptor of the trainer; -1 before Linux 5.3, which has none."""
        self._sock, self._trainer_fd = sock, trainer_fd
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
        if self._trainer_fd >= 0:
            poll.register(self._trainer_fd, select.POLLIN)
        poll.poll()
        self._ended.wait(GRACE_S)
        os._exit(0)


def descriptor_of_parent(parent: int) -> int:
    """Return a descriptor of the process that started this one; -1 before Linux 5.3. Ends with it, if it is gone."""
    fd = -1
    with suppress(OSError):
        fd = os.pidfd_open(parent)
    if os.getppid() != parent:  # its number may be another's
        os._exit(0)
    return fd
