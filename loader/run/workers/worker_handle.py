"""The trainer's handle for one worker: a process, a socket, and its pending tasks."""

import os
import select
import signal
import socket
import sys
from collections import deque
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass

from ..making.prefetch import MadeBatches
from .batch_memory import MemorySegment
from .fork_server import fork_server
from .messages import NO_FILES, MessageKind, WorkerMessage, connection, receive, send
from .parent_watch import GRACE_S

_NEEDED = ("loader.cache", "loader.modalities", "loader.run.ahead", "loader.storage", "obstore")


@dataclass(frozen=True, slots=True, kw_only=True)
class StepsTask:
    number: int
    """Number of the task."""
    steps: range
    """Steps to make."""
    future: Future[MadeBatches]
    """Future of their batches."""
    segment: MemorySegment | None
    """Segment for the batches; None if the worker creates one."""


class WorkerProcess:
    """A worker, forked immediately, which loads its startup message by itself. Not thread-safe."""

    def __init__(self, sent_fd: int) -> None:
        self.pid: int | None = None
        self.server = fork_server()
        self.socket, theirs = connection()
        try:
            self._number = self.server.fork(theirs, sent_fd, imported_modules())
        except BaseException:
            self.socket.close()
            raise
        finally:
            theirs.close()
        self.is_ready = False
        self.lacks_files = False
        self.tasks: deque[StepsTask] = deque()
        self._known: set[int] = set()
        self._unread: list[tuple[WorkerMessage, int | None]] = []

    def ask(self, task: StepsTask) -> None:
        """Queue steps. Raises: EOFError if the worker is gone; the task is queued all the same."""
        self.tasks.append(task)
        message = WorkerMessage(MessageKind.MAKE, task.number, task.steps.start, len(task.steps))
        if task.segment is None:
            send(self.socket, message)
            return
        message = message._replace(segment=task.segment.number, nbytes=task.segment.nbytes)
        new = task.segment.number not in self._known
        send(self.socket, message, task.segment.fd if new else None)
        self._known.add(task.segment.number)

    def drop(self) -> None:
        send(self.socket, WorkerMessage(MessageKind.DROP))

    def forget(self, segment: int) -> None:
        if segment in self._known:
            self._known.remove(segment)
            send(self.socket, WorkerMessage(MessageKind.FORGET, segment=segment))

    def started_pid(self) -> int | None:
        """Wait for the process number and return it; None if the worker is gone."""
        with suppress(EOFError):
            while self.pid is None:
                self._receive(self._unread, wait=True)
        return self.pid

    def answers(self) -> list[tuple[WorkerMessage, int | None]]:
        """Return the worker's answers since the last call.

        Raises: EOFError after the last answer of a worker that is gone; OSError if it could not be started.
        """
        messages, self._unread = self._unread, []
        try:
            while self._receive(messages, wait=False):
                pass
        except EOFError:
            if not messages:
                raise
        return messages

    def _receive(self, into: list[tuple[WorkerMessage, int | None]], *, wait: bool) -> bool:
        got = receive(self.socket, wait=wait)
        if got is None:
            return False
        message = got[0]
        if message.kind == MessageKind.STARTED:
            self.pid = message.task
        elif message.kind == MessageKind.NOT_STARTED:
            raise OSError(message.task, f"no worker process can be forked: {os.strerror(message.task)}")
        else:
            into.append(got)
        return True

    def answered(self, number: int) -> tuple[StepsTask, list[StepsTask]]:
        """Return (the answered task, earlier tasks whose answers an interrupt lost)."""
        lost = []
        while self.tasks[0].number != number:
            lost.append(self.tasks.popleft())
        return self.tasks.popleft(), lost

    def hang_up(self) -> None:
        with suppress(OSError):  # it has ended
            self.socket.shutdown(socket.SHUT_RDWR)

    def leave(self) -> None:
        """Let the fork server wait for the worker's end, after `hang_up`. For finalizers, which must not wait."""
        self.server.wait_later(self._number, GRACE_S + 4)
        if self.pid is not None and not self.server.is_alive():
            _wait_for(self.pid, GRACE_S + 4)
        self.socket.close()

    def wait(self) -> str:
        """Return how the worker ended, as text; kill it after a timeout. Sets `lacks_files`."""
        code = self.server.wait(self._number, GRACE_S + 4)
        self.socket.close()
        if code is None and self.pid is not None:
            _wait_for(self.pid, GRACE_S + 4)
            return "an unknown cause, for its fork server had ended"
        if code is None:
            code = self.server.exit_code()
        self.lacks_files = code == NO_FILES
        return _signal_name(-code) if code < 0 else f"exit code {code}"


def imported_modules() -> list[str]:
    return [name for name in sys.modules if name.startswith(_NEEDED)]


def _wait_for(pid: int, timeout_s: float) -> None:
    with suppress(OSError):  # it has ended; or a kernel before 5.3, where it ends by itself
        watched = os.pidfd_open(pid)
        try:
            if not select.select([watched], [], [], timeout_s)[0]:
                signal.pidfd_send_signal(watched, signal.SIGKILL)
        finally:
            os.close(watched)


def _signal_name(number: int) -> str:
    try:
        name = signal.Signals(number).name
    except ValueError:
        name = str(number)
    return f"signal {name}" + (", as the kernel does when memory runs out" if name == "SIGKILL" else "")
