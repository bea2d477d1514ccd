"""One worker as its trainer sees it: a process, a socket, and what was asked of it and is not answered."""

import multiprocessing.spawn
import os
import signal
import socket
import subprocess
import sys
from collections import deque
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.util import _args_from_interpreter_flags  # type: ignore[attr-defined]

from ..making.prefetch import Made
from .messages import Kind, Message, connection, receive, send
from .open_files import NO_FILES
from .parent_watch import GRACE_S
from .shared_memory import Segment


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """Steps asked of a worker."""

    number: int
    """Number of the task."""
    steps: range
    """The steps."""
    future: Future[Made]
    """Future of their batches."""
    segment: Segment | None
    """Segment for them; None where the worker makes one."""


class WorkerProcess:
    """Started at once; loads what it was sent by itself. Not thread-safe."""

    def __init__(self, sent_fd: int) -> None:
        """Start the process. Raises: OSError."""
        self.socket, theirs = connection()
        code = (
            f"import sys; sys.path[:] = {[path for path in sys.path if isinstance(path, str)]}; "
            f"from {__package__}.worker_main import main; "
            f"main({theirs.fileno()}, {sent_fd}, {os.getpid()})"
        )
        command = [os.fsdecode(multiprocessing.spawn.get_executable()), *_args_from_interpreter_flags()]
        try:
            self._process = subprocess.Popen(
                [*command, "-c", code],
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(), sent_fd),
                process_group=0,  # Ctrl-C is for the trainer
            )
        except BaseException:
            self.socket.close()
            raise
        finally:
            theirs.close()
        self.pid = self._process.pid
        self.is_ready = False
        self.lacks_files = False
        self.tasks: deque[Task] = deque()
        self._known: set[int] = set()

    def ask(self, task: Task) -> None:
        """Queue steps. Raises: EOFError where the worker is gone; the task counts as asked."""
        self.tasks.append(task)
        message = Message(Kind.MAKE, task.number, task.steps.start, len(task.steps))
        if task.segment is None:
            send(self.socket, message)
            return
        message = message._replace(segment=task.segment.number, nbytes=task.segment.nbytes)
        new = task.segment.number not in self._known
        send(self.socket, message, task.segment.fd if new else None)
        self._known.add(task.segment.number)

    def drop(self) -> None:
        """Begin nothing of what was asked for so far. Raises: EOFError where the worker is gone."""
        send(self.socket, Message(Kind.DROP))

    def forget(self, segment: int) -> None:
        """Tell that a segment is not used any more. Raises: EOFError where the worker is gone."""
        if segment in self._known:
            self._known.remove(segment)
            send(self.socket, Message(Kind.FORGET, segment=segment))

    def answers(self) -> list[tuple[Message, int | None]]:
        """Return its answers since the last time. Raises: EOFError where it is gone and has no more to say."""
        found: list[tuple[Message, int | None]] = []
        try:
            while (got := receive(self.socket, wait=False)) is not None:
                found.append(got)
        except EOFError:
            if not found:
                raise
        return found

    def answered(self, number: int) -> tuple[Task, list[Task]]:
        """Return (the task of an answer, earlier ones whose answers were lost: by an interrupt, in their receipt)."""
        lost = []
        while self.tasks[0].number != number:
            lost.append(self.tasks.popleft())
        return self.tasks.popleft(), lost

    def hang_up(self) -> None:
        """Let it end. Does not wait."""
        with suppress(OSError):  # it has ended
            self.socket.shutdown(socket.SHUT_RDWR)

    def wait(self) -> str:
        """Return its end, after `hang_up` or by itself, in words; a worker that does not end is killed.

        `lacks_files` is known then.
        """
        try:
            code = self._process.wait(GRACE_S + 4)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        self.socket.close()
        self.lacks_files = code == NO_FILES
        return _signal_name(-code) if code < 0 else f"exit code {code}"


def _signal_name(number: int) -> str:
    try:
        name = signal.Signals(number).name
    except ValueError:
        name = str(number)
    return f"signal {name}" + (", as the kernel does when memory runs out" if name == "SIGKILL" else "")
