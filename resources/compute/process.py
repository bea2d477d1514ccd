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
from dataclasses import dataclass
from pathlib import Path

from loader.errors import InvalidRuntime, Unpicklable

from . import worker
from .answers import NotAnAnswer, failure_told
from .contract import Failure

START_TIMEOUT_S = 300.0
"""For a worker to start and import what its function needs."""

_SCRIPT = str(Path(worker.__file__).resolve())
_FROM_OUTSIDE = (signal.SIGKILL, signal.SIGTERM)


@dataclass(frozen=True, slots=True, kw_only=True)
class Death:
    """A worker died. how: 'was killed by SIGSEGV'; by_outsider: by a signal that others send, such as the
    kernel out of memory; n_units: how many it had taken, the last included."""

    how: str
    by_outsider: bool
    n_units: int


class Worker:
    """A worker process, used by one thread at a time. Only `kill` may come from any thread.

    It leads a process group: what a unit starts dies with it. environment: all of its own; it is a new program, so that
    nothing of this one's memory is in it. Raises: InvalidRuntime when it cannot start.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.environment = environment
        self.function: bytes | None = None
        self.alive = True
        self._n_units = 0
        self._lock = threading.Lock()  # between reaping the process and signalling it
        with contextlib.ExitStack() as undo:
            try:
                self._scratch = tempfile.mkdtemp(prefix="penstock-worker-")
                undo.callback(shutil.rmtree, self._scratch, ignore_errors=True)
                self._sock, theirs = socket.socketpair()
                undo.callback(self._sock.close)
                with theirs:
                    life, self._life = os.pipe()
                    undo.callback(os.close, self._life)
                    try:
                        self._process = self._start(theirs.fileno(), life)
                    finally:
                        os.close(life)
            except OSError as error:
                raise InvalidRuntime(
                    f"a worker process cannot start ({error}); use fewer workers, or look at the limits on "
                    "processes and open files, and at the space for temporary files"
                ) from error
            undo.pop_all()

    def _start(self, sock: int, life: int) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(
            [sys.executable, "-P", _SCRIPT, str(sock), str(life), self._scratch],
            stdin=subprocess.DEVNULL,
            env=dict(self.environment),
            pass_fds=(sock, life),
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        """Of the process, and of its group."""
        return self._process.pid

    def load(self, function: bytes) -> Death | None:
        """Give it the pickled function that the next units are for. Raises: Unpicklable when it has none of it."""
        paths = [path or os.getcwd() for path in sys.path]
        body = pickle.dumps((paths, function))
        reply = self._ask(worker.FUNCTION, body, START_TIMEOUT_S)
        if isinstance(reply, Death):
            return reply
        if reply is None:
            self.end()
            raise InvalidRuntime(
                f"importing what the function needs took more than {START_TIMEOUT_S:.0f} s in a worker process"
            )
        kind, answer = reply
        if kind == worker.FAILED:
            self.end()
            _, reason = _told(answer)
            raise Unpicklable(
                f"a worker process cannot load the function: {reason}\nThe function, and all that it holds, "
                "must stand in modules that can be imported, not in __main__, a notebook or another function"
            )
        self.function = function
        return None

    def run(self, unit: bytes, timeout_s: float) -> bytearray | Failure | Death:
        """The encoded value of a pickled unit, or what became of it. After a Death, or a timeout, it is over."""
        self._n_units += 1
        reply = self._ask(worker.UNIT, unit, timeout_s)
        if isinstance(reply, Death):
            return reply
        if reply is None:
            self.end()
            return Failure(code="timeout", reason=f"took longer than {timeout_s:g} s and was killed")
        kind, body = reply
        if kind == worker.VALUE:
            return body
        code, reason = _told(body)
        return Failure(code="memory" if code == "memory" else "exception", reason=reason)

    def _ask(self, kind: bytes, body: bytes, timeout_s: float) -> tuple[bytes, bytearray] | Death | None:
        """Its reply; None at the timeout."""
        try:
            self._sock.settimeout(timeout_s)
            deadline_s = time.monotonic() + timeout_s
            worker.send(self._sock, kind, body)
            return worker.receive(self._sock, deadline_s)
        except TimeoutError:
            return None
        except (EOFError, OSError, ValueError):
            return self._died(self.end())

    def _died(self, status: int) -> Death:
        if status >= 0:
            return Death(how=f"exited with status {status}", by_outsider=False, n_units=self._n_units)
        number = -status
        name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
        return Death(how=f"was killed by {name}", by_outsider=number in _FROM_OUTSIDE, n_units=self._n_units)

    def kill(self) -> None:
        """End it at once, whatever it does; the thread that uses it sees a Death. From any thread."""
        with self._lock:
            self._signal()

    def ask_to_end(self) -> None:
        """An idle worker leaves by itself; `end` after it."""
        with contextlib.suppress(OSError):  # it is gone already
            self._sock.shutdown(socket.SHUT_WR)

    def end(self, grace_s: float = 0) -> int:
        """End it with all that it started; remove its temporary files. Once it is over, the same again.

        grace_s: how long it has for leaving by itself, after `ask_to_end`.
        Returns its exit status, negative for a signal.
        """
        if self.alive:
            self.alive = False
            if grace_s > 0:
                with contextlib.suppress(OSError):
                    self._sock.settimeout(grace_s)
                    self._sock.recv(1)  # ends with the process
            with self._lock:
                self._signal()
                self._process.wait()
            self._sock.close()
            os.close(self._life)
            shutil.rmtree(self._scratch, ignore_errors=True)
        return self._process.returncode

    def _signal(self) -> None:
        # The group's number stays taken for as long as its leader is not reaped: nobody else is ever hit.
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)


def _told(body: bytearray) -> tuple[str, str]:
    try:
        return failure_told(body)
    except NotAnAnswer as error:
        return "exception", str(error)
