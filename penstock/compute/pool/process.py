"""The parent's side of one worker process."""

import contextlib
import os
import pickle
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path

from loader.errors import InvalidRuntime, Unpicklable

from . import worker
from .answers import failure_told
from .contract import Failure

START_TIMEOUT_S = 300.0
"""Seconds for a worker to start and import what its function needs."""

_SCRIPT = str(Path(worker.__file__).resolve())
_FROM_OUTSIDE = (signal.SIGKILL, signal.SIGTERM)


class Death(Exception):
    """A worker died. how: 'was killed by SIGSEGV'.

    by_outsider: by a signal that others send, such as the kernel out of memory; n_units: the number of units that it
    had taken, the last included.
    """

    def __init__(self, status: int, n_units: int) -> None:
        self.how = f"exited with status {status}"
        if status < 0:
            known = -status in set(signal.Signals)
            self.how = f"was killed by {signal.Signals(-status).name if known else f'signal {-status}'}"
        self.by_outsider = -status in _FROM_OUTSIDE
        self.n_units = n_units
        super().__init__(self.how)


class Worker:
    """A worker process, used by one thread at a time. Only `kill` may come from any thread.

    It leads a process group: processes that a unit starts die with it. environment: all of its own. The worker is a new
    program, so that nothing of this one's memory is in it.

    Raises: InvalidRuntime when it cannot start.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.environment = environment
        self.function: bytes | None = None
        self.alive = True
        self._n_units = 0
        self._lock = threading.RLock()  # between reaping the process and signalling it
        try:
            with contextlib.ExitStack() as ours, contextlib.ExitStack() as theirs:
                scratch = tempfile.mkdtemp(prefix="penstock-worker-")
                ours.callback(shutil.rmtree, scratch, ignore_errors=True)
                self._sock, sock = socket.socketpair()
                ours.enter_context(self._sock)
                theirs.enter_context(sock)
                life, end_of_life = os.pipe()
                theirs.callback(os.close, life)
                ours.callback(os.close, end_of_life)
                self._process = subprocess.Popen(
                    [sys.executable, "-P", _SCRIPT, str(sock.fileno()), str(life), scratch],
                    stdin=subprocess.DEVNULL,
                    env=dict(environment),
                    pass_fds=(sock.fileno(), life),
                    start_new_session=True,
                )
                self._held = ours.pop_all()
        except OSError as error:
            raise InvalidRuntime(
                f"a worker process cannot start ({error}); use fewer workers, or look at the limits on "
                "processes and open files, and at the space for temporary files"
            ) from error

    def load(self, function: bytes) -> None:
        """Give the worker the pickled function of the next units, unless it has it. `end` it after any error.

        Raises: Unpicklable when it cannot load it; InvalidRuntime when that takes too long; Death.
        """
        if function == self.function:
            return
        paths = [path or os.getcwd() for path in sys.path]
        try:
            kind, body = self._ask(worker.FUNCTION, pickle.dumps((paths, function)), START_TIMEOUT_S)
        except TimeoutError as error:
            raise InvalidRuntime(
                f"importing what the function needs took more than {START_TIMEOUT_S:.0f} s in a worker process"
            ) from error
        if kind == worker.FAILED:
            _, reason = failure_told(body)
            raise Unpicklable(
                f"a worker process cannot load the function: {reason}\nThe function, and all that it holds, "
                "must stand in modules that can be imported, not in __main__, a notebook or another function"
            )
        self.function = function

    def run(self, unit: bytes, timeout_s: float) -> bytearray | Failure:
        """Return the encoded value of a pickled unit, or the failure; after a timeout the worker is over.

        Raises: Death.
        """
        self._n_units += 1
        try:
            kind, body = self._ask(worker.UNIT, unit, timeout_s)
        except TimeoutError:
            self.end()
            return Failure(code="timeout", reason=f"took longer than {timeout_s:g} s and was killed")
        if kind == worker.VALUE:
            return body
        code, reason = failure_told(body)
        return Failure(code="memory" if code == "memory" else "exception", reason=reason)

    def _ask(self, kind: bytes, body: bytes, timeout_s: float) -> tuple[bytes, bytearray]:
        """Return the worker's reply. Raises: TimeoutError; Death."""
        try:
            self._sock.settimeout(timeout_s)
            deadline_s = time.monotonic() + timeout_s
            worker.send(self._sock, kind, body)
            return worker.receive(self._sock, deadline_s)
        except TimeoutError:
            raise
        except (EOFError, OSError, ValueError) as error:
            raise Death(self.end(), self._n_units) from error

    def kill(self) -> None:
        """End it at once, whatever it does; the thread that uses it sees a Death. From any thread."""
        with self._lock:
            # The group's number stays taken for as long as its leader is not reaped: nobody else is ever hit.
            if self._process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self._process.pid, signal.SIGKILL)

    def ask_to_end(self) -> None:
        """Ask an idle worker to leave by itself; `end` after it."""
        with contextlib.suppress(OSError):  # it is gone already
            self._sock.shutdown(socket.SHUT_WR)

    def end(self, grace_s: float = 0) -> int:
        """End it with all that it started, remove its temporary files, and return its exit status.

        The status is negative for a signal; once it is over, it is the same again. grace_s: seconds for leaving by
        itself, after `ask_to_end`.
        """
        if self.alive:
            self.alive = False
            if grace_s > 0:
                with contextlib.suppress(OSError):
                    self._sock.settimeout(grace_s)
                    self._sock.recv(1)  # ends with the process
            with self._lock:
                self.kill()
                self._process.wait()
            self._held.close()
        return self._process.returncode
