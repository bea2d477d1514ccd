"""The parent's side of a worker process."""

import contextlib
import math
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from loader.errors import InvalidRuntime, Unpicklable
from loader.storage.disk.scratch import HeldFolder

from . import worker
from .answers import failure_told
from .contract import Failure

START_TIMEOUT_S = 300.0
"""Seconds for a worker to start and import the function's module."""
RECALL_S = 0.05
"""Seconds until the parent takes back units that have not started."""

_MANY = 4096
_SCRIPT = str(Path(worker.__file__).resolve())
Reply = bytearray | Failure
"""Unit's encoded value, or its failure."""
_FROM_OUTSIDE = (signal.SIGKILL, signal.SIGTERM)


class Death(Exception):
    """A worker died.

    how: such as 'was killed by SIGSEGV'. n_units: units that it had taken, including the last.
    by_outsider: True for a signal that others send, such as the kernel if memory is short.
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
    """A worker process, used by one thread at a time; any thread may call `kill`.

    It leads a process group, so processes that a unit starts die with it. Raises: InvalidRuntime if it cannot start.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.environment = environment
        self.function: bytes | None = None
        self.alive = True
        self._n_units = 0  # units that had a reply
        self._lock = threading.RLock()  # between reaping the process and signalling it
        try:
            with contextlib.ExitStack() as ours, contextlib.ExitStack() as theirs:
                scratch = HeldFolder("worker")
                ours.callback(scratch.close)
                self._sock, sock = socket.socketpair()
                ours.enter_context(self._sock)
                theirs.enter_context(sock)
                self._tickets = socket.socketpair()  # no timeout on either: the worker has the second one too
                for end in self._tickets:
                    ours.enter_context(end)
                life, end_of_life = os.pipe()
                theirs.callback(os.close, life)
                ours.callback(os.close, end_of_life)
                # the worker also holds the folder: it may outlive this process by a moment
                descriptors = (sock.fileno(), self._tickets[1].fileno(), life, scratch.descriptor)
                self._process = subprocess.Popen(
                    [sys.executable, "-P", _SCRIPT, *map(str, descriptors), str(scratch.path)],
                    stdin=subprocess.DEVNULL,
                    env=dict(environment),
                    pass_fds=descriptors,
                    start_new_session=True,
                )
                self._messages, self._held = worker.Messages(self._sock), ours.pop_all()
        except OSError as error:
            raise InvalidRuntime(
                f"a worker process cannot start ({error}); use fewer workers, or look at the limits on "
                "processes and open files, and at the space for temporary files"
            ) from error

    def load(self, function: bytes) -> None:
        """Send the pickled function unless the worker has it. After any error, call `end`.

        Raises: Unpicklable; InvalidRuntime after a timeout; Death.
        """
        if function == self.function:
            return
        paths = [path or os.getcwd() for path in sys.path]
        try:
            self._send(worker.message(worker.FUNCTION, pickle.dumps((paths, function))), START_TIMEOUT_S)
            kind, body = self._receive(time.monotonic() + START_TIMEOUT_S)
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

    def run(
        self, units: Sequence[bytes], limits_s: Sequence[float], given_back: Callable[[int], None]
    ) -> Iterator[tuple[Reply, float]]:
        """Yield (reply, seconds) for each pickled unit, in order; recalled units have no reply.

        A timeout ends the iterator and the worker. given_back: receives how many of the last units had not started
        after `RECALL_S`. Raises: Death if the process dies in the first unit without a reply.
        """
        n_units, place = len(units), 0
        recall_s = time.monotonic() + RECALL_S if n_units > 1 else math.inf
        self._send(b"".join(worker.message(worker.UNIT, unit) for unit in units), limits_s[0])
        self._tickets[0].sendall(worker.GO * n_units)
        while place < n_units:
            begun_s = time.monotonic()
            deadline_s = begun_s + limits_s[place]
            try:
                try:
                    kind, body = self._receive(min(deadline_s, recall_s))
                except TimeoutError:
                    if deadline_s <= recall_s:
                        raise
                    n_back, recall_s = self._take_back(), math.inf
                    n_units -= n_back
                    given_back(n_back)
                    if place == n_units:
                        return
                    kind, body = self._receive(deadline_s)
            except TimeoutError:
                self.end()
                reason = f"took longer than {limits_s[place]:g} s and was killed"
                yield Failure(code="timeout", reason=reason), limits_s[place]
                return
            place += 1
            self._n_units += 1
            yield body if kind == worker.VALUE else _failure(body), time.monotonic() - begun_s

    def _take_back(self) -> int:
        try:
            tickets = self._tickets[1].recv(_MANY, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return 0
        self._tickets[0].sendall(
            worker.SKIP * len(tickets)
        )  # some may belong to units that the parent took back earlier
        return tickets.count(worker.GO)

    def _send(self, messages: bytes, timeout_s: float) -> None:
        try:
            self._sock.settimeout(timeout_s)
            self._sock.sendall(messages)
        except TimeoutError:
            raise
        except OSError as error:
            raise Death(self.end(), self._n_units + 1) from error

    def _receive(self, deadline_s: float) -> tuple[bytes, bytearray]:
        try:
            return self._messages.next(deadline_s)
        except TimeoutError:
            raise
        except (EOFError, OSError, ValueError) as error:
            raise Death(self.end(), self._n_units + 1) from error

    def kill(self) -> None:
        """Kill the process, from any thread; its user gets a Death."""
        with self._lock:
            # The group's id stays taken until its leader is reaped, so no other process is ever signalled.
            if self._process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self._process.pid, signal.SIGKILL)

    def ask_to_end(self) -> None:
        """Ask an idle worker to end; call `end` afterwards."""
        with contextlib.suppress(OSError):  # it has already exited
            self._sock.shutdown(socket.SHUT_WR)

    def end(self, grace_s: float = 0) -> int:
        """End the process and its children, remove temporary files; return the exit status, negative for a signal.

        grace_s: seconds to exit by itself after `ask_to_end`.
        """
        if self.alive:
            self.alive = False
            if grace_s > 0:
                with contextlib.suppress(OSError):
                    self._sock.settimeout(grace_s)
                    self._sock.recv(1)  # returns when the process ends
            with self._lock:
                self.kill()
                self._process.wait()
            self._held.close()
        return self._process.returncode


def _failure(body: bytearray) -> Failure:
    code, reason = failure_told(body)
    return Failure(code="memory" if code == "memory" else "exception", reason=reason)
