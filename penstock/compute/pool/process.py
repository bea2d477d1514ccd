"""Worker processes from the parent's side: started on demand, reused, and replaced when they die.

A unit whose process dies failed, unless something else may have killed it:

- A signal or exit in the process's first unit: the unit crashed.
- A signal or exit in a later unit: it runs once more, in a new process.
- SIGKILL or SIGTERM, as when memory is short: it runs once more, with no other unit beside it.
- A MemoryError: likewise.

A second death or MemoryError is final, as is a timeout.
"""

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
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from loader.errors import InvalidRuntime, Unpicklable
from loader.storage.disk.scratch import HeldFolder

from . import worker
from .answers import decode_failure
from .contract import Failure, build_failure
from .environment import share_variables
from .import_path import import_path

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
                self._messages = worker.Messages(self._sock)
                self._held = ours.pop_all()
        except OSError as error:
            raise InvalidRuntime(
                f"a worker process cannot start ({error}); use fewer workers, or look at the limits on "
                "processes and open files, and at the space for temporary files",
                what="worker",
                given=type(error).__name__,
            ) from error

    def load(self, function: bytes) -> None:
        """Send the pickled function unless the worker has it. After any error, call `end`.

        Raises: Unpicklable; InvalidRuntime after a timeout; Death.
        """
        if function == self.function:
            return
        paths = import_path()
        try:
            self._send(worker.message(worker.FUNCTION, pickle.dumps((paths, function))), START_TIMEOUT_S)
            kind, body = self._receive(time.monotonic() + START_TIMEOUT_S)
        except TimeoutError as error:
            raise InvalidRuntime(
                f"importing what the function needs took more than {START_TIMEOUT_S:.0f} s in a worker process",
                what="import",
                accepted=START_TIMEOUT_S,
            ) from error
        if kind == worker.FAILED:
            _, reason = decode_failure(body)
            raise Unpicklable(
                f"a worker process cannot load the function: {reason}\nThe function, and all that it holds, "
                "must stand in modules that can be imported, not in __main__, a notebook or another function",
                what="function",
                given=reason,
            )
        self.function = function

    def run(
        self, units: Sequence[bytes], limits_s: Sequence[float], given_back: Callable[[int], None]
    ) -> Iterator[tuple[Reply, float]]:
        """Yield (reply, seconds) for each pickled unit, in order; recalled units have no reply.

        A timeout ends the iterator and the worker. given_back: receives how many of the last units had not started
        after `RECALL_S`. Raises: Death if the process dies in the first unit without a reply; WorkerFailed.
        """
        n_units = len(units)  # fewer once units are recalled
        place = 0  # of the next reply
        # A single unit starts at once: nothing can be recalled.
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
                        raise  # the unit's own timeout
                    # The unit may go on. Other workers may run the units behind it.
                    n_back = self._take_back()
                    recall_s = math.inf
                    n_units -= n_back
                    given_back(n_back)
                    if place == n_units:  # not even the next unit had started
                        return
                    kind, body = self._receive(deadline_s)
            except TimeoutError:
                self.end()
                reason = f"took longer than {limits_s[place]:g} s and was killed"
                yield Failure(code="timeout", reason=reason), limits_s[place]
                return
            place += 1
            self._n_units += 1
            reply = body if kind == worker.VALUE else build_failure(*decode_failure(body))
            yield reply, time.monotonic() - begun_s

    def _take_back(self) -> int:
        """Take back the tickets of the units that have not started; return their number.

        A unit starts with the next ticket, GO. With the ticket SKIP the worker drops it.
        """
        try:
            # From the worker's end, which this process has open too.
            tickets = self._tickets[1].recv(_MANY, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return 0
        self._tickets[0].sendall(worker.SKIP * len(tickets))
        # The others are SKIP, from an earlier call.
        return tickets.count(worker.GO)

    def _send(self, messages: bytes, timeout_s: float) -> None:
        """Send messages. Raises: TimeoutError; Death."""
        try:
            self._sock.settimeout(timeout_s)
            self._sock.sendall(messages)
        except TimeoutError:
            raise
        except OSError as error:
            raise Death(self.end(), self._n_units + 1) from error

    def _receive(self, deadline_s: float) -> tuple[bytes, bytearray]:
        """Return the next message's kind and body. deadline_s: of `time.monotonic`. Raises: TimeoutError; Death."""
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


_GRACE_S = 2.0  # for idle workers to exit by themselves


class MapStopped(Exception):
    """The task was cancelled."""


@dataclass(slots=True, eq=False, kw_only=True)
class MapTask:
    """State shared by a map's units."""

    function: bytes
    """Pickled function."""
    environment: Mapping[str, str]
    """Environment of the task's workers."""
    gpus: Sequence[str] = ()
    """Shares of GPUs, one per running unit; empty if units need none."""
    stopped: bool = False
    """True once the map is cancelled."""
    busy: set[Worker] = field(default_factory=set)
    """Workers that run the task's units."""
    waiting_for: Sequence[threading.Condition] = ()
    """Other conditions that the task's threads wait for."""


class Pool:
    """Thread-safe worker processes, at most n_workers units at once. lock: guards pool and tasks."""

    def __init__(self, n_workers: int, lock: threading.RLock) -> None:
        self._n_workers = n_workers
        self._changed = threading.Condition(lock)
        self._idle: list[Worker] = []
        self._turns = 0  # turns in use: a unit takes one, a unit that must run by itself takes all
        self._want_alone = 0
        self._gpus: set[str] = set()  # shares in use

    def stop(self, task: MapTask) -> None:
        """Cancel a task: its threads leave `run` with `MapStopped`."""
        with self._changed:
            task.stopped = True
            for worker in task.busy:
                worker.kill()
            for condition in (self._changed, *task.waiting_for):
                condition.notify_all()

    def close(self) -> None:
        """End the idle workers."""
        with self._changed:
            idle = self._idle
            self._idle = []
        _end(idle)

    def run(
        self,
        task: MapTask,
        units: Sequence[bytes],
        limits_s: Sequence[float],
        given_back: Callable[[int], None],
    ) -> Iterator[tuple[Reply, float]]:
        """Yield (reply, seconds) for each pickled unit, in order; a unit without a reply did not start.

        given_back: as for `Worker.run`. Raises: MapStopped; WorkerFailed; Unpicklable and InvalidRuntime if no worker
        can start.
        """
        place = 0
        is_finished = True
        how = "lacked memory"
        alone = True
        try:
            with contextlib.closing(self._run_once(task, units, limits_s, given_back)) as replies:
                for reply, seconds in replies:
                    if isinstance(reply, Failure) and reply.code == "memory":
                        is_finished = False  # units beside it may have taken the memory
                        break
                    place += 1
                    yield reply, seconds
        except Death as first:
            if not first.by_outsider and first.n_units == 1:
                yield Failure(code="crashed", reason=f"its process {first.how}"), 0.0
                return
            is_finished = False
            how = first.how
            alone = first.by_outsider
        if is_finished:
            return
        single = slice(place, place + 1)
        try:
            yield from self._run_once(
                task, units[single], limits_s[single], given_back, fresh=True, alone=alone
            )
        except Death as second:
            again = "a new one, with nothing beside it," if alone else "a new one"
            yield Failure(code="crashed", reason=f"its process {how}; {again} {second.how}"), 0.0

    def _run_once(
        self,
        task: MapTask,
        units: Sequence[bytes],
        limits_s: Sequence[float],
        given_back: Callable[[int], None],
        *,
        fresh: bool = False,
        alone: bool = False,
    ) -> Generator[tuple[Reply, float]]:
        """Run units on one worker, each once. fresh: on a new process. `alone`: with no other unit beside them.

        Raises: Death of the process while it ran them; else as `run`.
        """
        last: list[tuple[Reply, float]] = []
        with self._turn(task, alone=alone) as environment:
            for other in (fresh, True):  # an idle worker may have died meanwhile
                with self._worker(task, environment, fresh=other) as worker:
                    try:
                        worker.load(task.function)
                    except Death as death:
                        how = death.how
                        continue
                    for number, replied in enumerate(worker.run(units, limits_s, given_back), 1):
                        if number < len(units):
                            yield replied
                        else:
                            last = [replied]
                break
            else:
                raise InvalidRuntime(
                    f"a worker process {how} while it imported what the function needs, and so did the one "
                    "before; its standard error may say more",
                    what="import",
                    given=how,
                )
        yield from last  # yielded only now: the map may end on it, and would kill a busy worker

    @contextmanager
    def _turn(self, task: MapTask, *, alone: bool) -> Iterator[Mapping[str, str]]:
        """Wait for a turn, or for all of them; yield the environment of its worker. Raises: MapStopped."""
        workers = 1
        if alone:
            workers = self._n_workers
        with self._changed:
            self._want_alone += alone
            self._changed.wait_for(lambda: task.stopped or self._is_turn(task, alone))
            self._want_alone -= alone
            if task.stopped:
                self._changed.notify_all()
                raise MapStopped
            self._turns += workers
            gpus = self._free(task)[:1]
            self._gpus.update(gpus)
        try:
            if alone:
                self.close()  # idle workers use memory too
            yield {**task.environment, **share_variables(gpus[0])} if gpus else task.environment
        finally:
            with self._changed:
                self._turns -= workers
                self._gpus.difference_update(gpus)
                self._changed.notify_all()

    def _free(self, task: MapTask) -> Sequence[str]:
        return [share for share in task.gpus if share not in self._gpus]

    def _is_turn(self, task: MapTask, alone: bool) -> bool:
        if task.gpus and not self._free(task):
            return False
        if alone:
            return self._turns == 0
        return self._turns < self._n_workers and not self._want_alone

    @contextmanager
    def _worker(self, task: MapTask, environment: Mapping[str, str], *, fresh: bool) -> Iterator[Worker]:
        """Yield an idle or a new worker. Ends it after an error; else it is idle again. fresh: a new one."""
        worker = (None if fresh else self._take(task.function, environment)) or Worker(environment)
        with self._changed:
            task.busy.add(worker)
        try:
            if task.stopped:  # `stop` ran too early to see the worker
                raise MapStopped
            yield worker
        except BaseException:
            worker.end()  # a reply may still be on its way
            raise
        finally:
            with self._changed:
                task.busy.discard(worker)
                stopped = task.stopped
                if worker.alive and not stopped:
                    self._idle.append(worker)
            if stopped:
                worker.end()
                raise MapStopped

    def _take(self, function: bytes, environment: Mapping[str, str]) -> Worker | None:
        """Return an idle worker with this environment, or make room. One map's secrets never reach another map."""
        with self._changed:
            fitting = [turn for turn in self._idle if turn.environment == environment]
            chosen = sorted(fitting, key=lambda turn: turn.function == function)[-1:] or self._idle[:1]
            self._idle = [turn for turn in self._idle if turn not in chosen]
        if fitting:
            return chosen[0]
        _end(chosen)
        return None


def _end(idle: Sequence[Worker]) -> None:
    for idle_worker in idle:
        idle_worker.ask_to_end()
    deadline_s = time.monotonic() + _GRACE_S
    for idle_worker in idle:
        idle_worker.end(max(deadline_s - time.monotonic(), 0.01))
