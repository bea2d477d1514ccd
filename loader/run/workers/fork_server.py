"""The trainer's side of the fork server: a single-threaded process that imports once and forks all workers.

It is a new process (never forked from the trainer), kept for the next Loader until the environment, `sys.path` or
limits change. `multiprocessing.forkserver` is unsuitable: a process has one, which the training script or torch may
need, and its children run the training script again.
"""

import multiprocessing.spawn
import os
import resource
import select
import socket
import subprocess
import sys
import weakref
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from multiprocessing.util import _args_from_interpreter_flags  # type: ignore[attr-defined]
from threading import Lock
from typing import Any

from .messages import ForkRequest, WaitRequest, connection, receive_exit_code, send_fork, send_wait
from .parent_watch import stop_signals_blocked

_END_S = 1.0
_SILENT_S = 60.0  # includes a start from a slow file system


class ForkServer:
    """A fork server process. For any thread."""

    def __init__(self, modules: Iterable[str] = ()) -> None:
        """Start the process. modules: imported at once, while training starts."""
        self._control, theirs = connection()
        fds = [theirs.fileno()]
        with suppress(OSError):  # kernels before 5.3: it ends when the trainer's socket is closed
            fds.append(os.pidfd_open(os.getpid()))
        code = (
            f"import sys; sys.path[:] = {_paths()}; "
            f"from {__package__}.fork_server_main import main; main({list(modules)}, {', '.join(map(str, fds))})"
        )
        try:
            with stop_signals_blocked():
                self._process = subprocess.Popen(
                    [*_interpreter(), "-c", code],
                    stdin=subprocess.DEVNULL,
                    pass_fds=fds,
                    process_group=0,  # Ctrl-C is for the trainer
                )
        except BaseException:
            self._control.close()
            raise
        finally:
            theirs.close()
            for fd in fds[1:]:
                os.close(fd)
        self._turn = Lock()
        self._n_workers = 0
        self._unwaited: deque[tuple[int, float]] = deque()
        weakref.finalize(self, _end, self._control, self._process, os.getpid())

    def fork(self, worker_socket: socket.socket, sent_fd: int, modules: Iterable[str]) -> int:
        """Request a worker process that has imported these modules. Return a number for `wait` at once.

        The server sends the process number over the worker's socket. If the server is gone, the socket is closed.
        """
        nowhere = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        try:
            stdout, stderr = (fd if _is_open(fd) else nowhere for fd in (1, 2))
            with self._turn:
                self._n_workers += 1
                number = self._n_workers
                request = ForkRequest(number, worker_socket.fileno(), sent_fd, stdout, stderr, tuple(modules))
                with suppress(ConnectionError):
                    send_fork(self._control, request)
            self._wait_for_ended()
            return number
        finally:
            os.close(nowhere)

    def wait(self, number: int, timeout_s: float) -> int | None:
        """Return a worker's exit code, -n for signal n; kill it after the timeout.

        None if the server is gone. A server that does not respond is killed.
        """
        with self._turn:
            exit_code = self._exit_code(number, timeout_s)
        self._wait_for_ended()
        return exit_code

    def wait_later(self, number: int, timeout_s: float) -> None:
        """Wait for a worker now, or after the current request.

        Meant for finalizers, which the garbage collector may run in the middle of `fork` or `wait`, in the same thread.
        """
        self._unwaited.append((number, timeout_s))
        self._wait_for_ended()

    def _wait_for_ended(self) -> None:
        while self._unwaited and self._turn.acquire(blocking=False):
            try:
                while self._unwaited:
                    self._exit_code(*self._unwaited.popleft())
            finally:
                self._turn.release()

    def _exit_code(self, number: int, timeout_s: float) -> int | None:
        try:
            self._control.settimeout(timeout_s + _SILENT_S)
            send_wait(self._control, WaitRequest(number, timeout_s))
            return receive_exit_code(self._control, number)
        except (ConnectionError, EOFError):
            return None
        except TimeoutError:
            self._process.kill()
            return None

    def is_alive(self) -> bool:
        poll = select.poll()
        poll.register(self._control, 0)
        return not poll.poll(0)

    def exit_code(self) -> int:
        return self._process.wait()


_current: ForkServer | None = None
_setting: object = None
_turn = Lock()


def fork_server(modules: Iterable[str] = ()) -> ForkServer:
    """Return the server of this process. modules: what a new one imports at once."""
    global _current, _setting
    with _turn:
        setting = _server_state()
        if _current is None or _setting != setting or not _current.is_alive():
            _current = None  # ends after `wait` for its last worker
            _current = ForkServer(modules)
            _setting = setting
        return _current


def prepare(modules: Iterable[str] = ()) -> None:
    with suppress(OSError):  # raised again with the first worker
        fork_server(modules)


def _forget() -> None:
    global _current, _turn
    _current = None
    _turn = Lock()


os.register_at_fork(after_in_child=_forget)


def _server_state() -> tuple[Any, ...]:
    try:
        folder = os.getcwd()
    except OSError:  # the working directory was removed
        folder = ""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    return (*_interpreter(), *_paths()), dict(os.environ), folder, limit, os.sched_getaffinity(0)


def _interpreter() -> list[str]:
    return [os.fsdecode(multiprocessing.spawn.get_executable()), *_args_from_interpreter_flags()]


def _paths() -> list[str]:
    return [path for path in sys.path if isinstance(path, str)]


def _is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def _end(control: socket.socket, process: "subprocess.Popen[bytes]", trainer: int) -> None:
    if os.getpid() != trainer:
        control.close()
        return
    with suppress(OSError):  # the server is gone
        control.shutdown(socket.SHUT_RDWR)  # otherwise a forked child would hold it open
    control.close()
    try:
        process.wait(_END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
