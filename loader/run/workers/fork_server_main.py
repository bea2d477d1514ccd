"""A fork server process: imports what workers need, and forks them until its trainer hangs up or dies.

It forks with one thread, no open store and no CUDA: another thread's lock stays locked in the child.
"""

import gc
import importlib
import logging
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.util import _args_from_interpreter_flags  # type: ignore[attr-defined]
from typing import NoReturn

from .messages import (
    NO_FILES,
    ForkRequest,
    MessageKind,
    WaitRequest,
    WorkerMessage,
    answer,
    is_want_of_files,
    receive_request,
    send,
)
from .parent_watch import STOP_SIGNALS, survive_stop_signals

logger = logging.getLogger(__name__)

MODULES = (
    "loader.run.workers.worker_main",
    "loader.order.random.philox_generators",
)
"""Modules that every worker needs."""


def main(modules: Iterable[str], control_fd: int, trainer_fd: int = -1) -> NoReturn:
    """Run the fork server.

    modules: imported besides `MODULES`. trainer_fd: process descriptor of the trainer; -1 if the kernel has none.
    """
    survive_stop_signals()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # a trainer that ignores it would leave nothing to wait for
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])  # for sigtimedwait
    for fd in (control_fd, trainer_fd):
        if fd >= 0:
            os.set_inheritable(fd, False)
    server = _Server(socket.socket(fileno=control_fd), trainer_fd)
    try:
        server.run(modules)
    except (EOFError, ConnectionError):
        pass
    except OSError as error:
        if not is_want_of_files(error):
            raise
        os._exit(NO_FILES)  # the trainer's error names the limit
    os._exit(0)


class _Server:
    def __init__(self, control: socket.socket, trainer_fd: int) -> None:
        self._control = control
        self._trainer_fd = trainer_fd
        self._pids: dict[int, int] = {}  # number of a worker -> its process number
        self._ended: dict[int, int] = {}  # process number -> exit code, until the trainer asks
        self._has_warned_of_threads = False

    def run(self, modules: Iterable[str]) -> NoReturn:
        with _environment("JE_ARROW_MALLOC_CONF", "background_thread:false"):
            # Arrow starts a thread for jemalloc, although it allocates by mimalloc.
            self._import([*MODULES, *modules])
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        if self._trainer_fd >= 0:
            poll.register(self._trainer_fd, select.POLLIN)
        while True:
            if any(fd == self._trainer_fd for fd, _ in poll.poll()):
                raise EOFError
            request = receive_request(self._control)
            self._reap()
            if isinstance(request, WaitRequest):
                answer(self._control, request, self._wait(request))
            else:
                self._import(request.modules)
                self._start(request)

    def _import(self, modules: Iterable[str]) -> None:
        gc.disable()
        for name in modules:
            if name not in sys.modules:
                with suppress(ImportError):  # the worker that needs it raises this error
                    importlib.import_module(name)
        gc.enable()
        if n_threads() > 1:
            # OpenBLAS ends its threads at any fork, and starts them again at the next use.
            pid = os.fork()
            if pid == 0:
                os._exit(0)
            os.waitpid(pid, 0)
        for stream in (sys.stdout, sys.stderr):
            stream.flush()  # otherwise every worker would write it again
        gc.freeze()  # workers' collectors then copy no pages of these objects

    def _start(self, request: ForkRequest) -> None:
        with socket.socket(fileno=request.socket) as sock:
            try:
                if n_threads() == 1:
                    pid = self._fork(request)
                else:
                    pid = self._spawn(request)
            except OSError as error:
                send(sock, WorkerMessage(MessageKind.NOT_STARTED, error.errno or 0))
                return
            finally:
                for fd in (request.sent, request.stdout, request.stderr):
                    os.close(fd)
            self._pids[request.number] = pid
            with suppress(EOFError):  # it has ended, or the trainer hung up
                send(sock, WorkerMessage(MessageKind.STARTED, pid))

    def _fork(self, request: ForkRequest) -> int:
        pid = os.fork()
        if pid:
            return pid
        try:
            os.setpgid(0, 0)
            self._control.close()
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])
            os.dup2(request.stdout, 1)
            os.dup2(request.stderr, 2)
            os.close(request.stdout)
            os.close(request.stderr)
            from numpy.random import seed

            from .worker_main import main as work  # imported by now

            seed()  # otherwise all workers would draw the same numbers
            work(request.socket, request.sent, self._trainer_fd)
        except BaseException:  # noqa: BLE001 - this process is not the server
            sys.excepthook(*sys.exc_info())
        finally:
            os._exit(1)

    def _spawn(self, request: ForkRequest) -> int:
        """Start a worker as a new interpreter, since this process has threads. Return its process number."""
        if not self._has_warned_of_threads:
            self._has_warned_of_threads = True
            logger.warning(
                "worker processes start more slowly: a library of this environment starts threads when it is imported, "
                "and a process with threads cannot be forked (%d threads)",
                n_threads(),
            )
        fds = [request.socket, request.sent]
        if self._trainer_fd >= 0:
            fds.append(self._trainer_fd)
        for fd in fds:
            os.set_inheritable(fd, True)
        code = (
            f"import sys; sys.path[:] = {sys.path}; "
            f"from {__package__}.worker_main import main; main({', '.join(map(str, fds))})"
        )
        try:
            return os.posix_spawn(
                sys.executable,
                [sys.executable, *_args_from_interpreter_flags(), "-c", code],
                os.environ,
                file_actions=[
                    (os.POSIX_SPAWN_DUP2, request.stdout, 1),
                    (os.POSIX_SPAWN_DUP2, request.stderr, 2),
                ],
                setpgroup=0,
                setsigmask=STOP_SIGNALS,
            )
        finally:
            for fd in fds:
                os.set_inheritable(fd, False)

    def _wait(self, request: WaitRequest) -> int:
        pid = self._pids.pop(request.number, None)
        if pid is None:
            return 1  # it could not be started
        until = time.monotonic() + request.timeout_s
        while pid not in self._ended:
            remaining_s = until - time.monotonic()
            if remaining_s <= 0:
                os.kill(pid, signal.SIGKILL)
            signal.sigtimedwait([signal.SIGCHLD], max(remaining_s, 0.01))
            self._reap()
        return self._ended.pop(pid)

    def _reap(self) -> None:
        with suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                self._ended[ended[0]] = os.waitstatus_to_exitcode(ended[1])


@contextmanager
def _environment(name: str, value: str) -> Iterator[None]:
    if name in os.environ:
        yield
        return
    os.environ[name] = value
    try:
        yield
    finally:
        del os.environ[name]


def n_threads() -> int:
    return len(os.listdir("/proc/self/task"))
