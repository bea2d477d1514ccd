"""Processes on this machine: a poison unit costs itself, not the map and not its neighbours.

A thread per worker takes the next unit, hands it to a process of its own, and waits for the reply, the end of the
process, or the timeout. `pool` tells the outcome of a unit whose process dies.
"""

import pickle
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from loader.cores import n_cores
from loader.errors import InvalidRuntime

from .answers import NotAnAnswer, Types, answer_types, decoded
from .contract import Failure, Outcome, Progress, check_workers, checked, checked_limits, failure_of
from .environment import worker_environment
from .pool import Pool, Reply, Stopped, Task

T = TypeVar("T")
R = TypeVar("R")

AHEAD_BYTES = 64 * 2**20
"""No further unit is begun while values of this size wait for the consumer ..."""
AHEAD_UNITS = 1024
"""... or while this many units are begun and not consumed."""


@dataclass(slots=True, eq=False, kw_only=True)
class _Map(Task):
    """A map under way. Everything is guarded by the engine's condition."""

    units: Sequence[Any]
    limits: Sequence[float]  # s, of each unit
    types: Types
    taken: int = 0  # units begun, from the first
    consumed: int = 0
    done: int = 0
    told: int = 0  # of `done`, to `progress`
    waiting: dict[int, Reply] = field(default_factory=dict)
    waiting_bytes: int = 0
    threads: list[threading.Thread] = field(default_factory=list)
    error: BaseException | None = None

    def may_take(self) -> bool:
        """Return whether another unit may begin: always the one that the consumer waits for."""
        ahead = self.taken - self.consumed
        return not ahead or (ahead < AHEAD_UNITS and self.waiting_bytes < AHEAD_BYTES)

    def put(self, index: int, reply: Reply) -> None:
        """Keep a reply for the consumer."""
        self.waiting[index] = reply
        self.waiting_bytes += _nbytes(reply)
        self.done += 1

    def consume(self, index: int) -> Reply | None:
        """Return the reply to a unit, if it is there."""
        reply = self.waiting.pop(index, None)
        if reply is not None:
            self.waiting_bytes -= _nbytes(reply)
            self.consumed = index + 1
        return reply


class LocalCompute:
    """An engine of local processes.

    workers: units that run at once, over all its maps; None: one per core. variables: environment variables that its
    workers get besides the short list.

    Raises: InvalidRuntime.
    """

    isolates = True

    def __init__(self, workers: int | None = None, variables: Collection[str] = ()) -> None:
        self._variables = tuple(variables)
        self._n_workers = check_workers(workers) or n_cores()
        self._changed = threading.Condition()
        self._pool = Pool(self._n_workers, self._changed)
        self._maps: set[_Map] = set()
        self._closed = False

    def map(
        self,
        function: Callable[[T], R],
        units: Sequence[T],
        *,
        timeout_s: float | Sequence[float],
        progress: Progress | None = None,
        variables: Collection[str] = (),
    ) -> Iterator[Outcome[R]]:
        """See `Compute.map`."""
        limits = checked_limits(timeout_s, len(units))
        work = _Map(
            function=checked(function),
            environment=worker_environment((*self._variables, *variables)),
            units=units,
            limits=limits,
            types=answer_types(function),
        )
        return self._outcomes(work, progress)

    def close(self) -> None:
        """See `Compute.close`."""
        with self._changed:
            self._closed = True
            maps = list(self._maps)
        for work in maps:
            self._cancel(work)
        self._pool.close()

    def _outcomes(self, work: _Map, progress: Progress | None) -> Iterator[Outcome[R]]:
        with self._changed:
            if self._closed:
                raise InvalidRuntime("this engine was closed; open another one")
            self._maps.add(work)
        try:
            for number in range(min(self._n_workers, len(work.units))):
                thread = threading.Thread(
                    target=self._work, args=(work,), name=f"compute-{number}", daemon=True
                )
                thread.start()
                work.threads.append(thread)
            for index in range(len(work.units)):
                yield _outcome(self._next(work, index, progress), work.types)
        finally:
            self._cancel(work)

    def _cancel(self, work: _Map) -> None:
        """Stop the map; when this returns, no process works for it."""
        self._pool.stop(work)
        if threading.current_thread() not in work.threads:  # where the garbage collector may close a map
            for thread in work.threads:
                thread.join()
        with self._changed:
            self._maps.discard(work)

    def _next(self, work: _Map, index: int, progress: Progress | None) -> Reply:
        """Wait for one unit's reply, and tell of the progress meanwhile."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: index in work.waiting or work.done > work.told or work.stopped)
                if work.error is not None:
                    raise work.error
                reply = work.consume(index)
                if reply is None and work.stopped:
                    raise InvalidRuntime("this engine was closed in the middle of a map")
                news, work.told = work.done > work.told, work.done
                self._changed.notify_all()
            if news and progress is not None:
                progress(work.told, len(work.units))
            if reply is not None:
                return reply

    def _work(self, work: _Map) -> None:
        """Run unit after unit, in a thread."""
        try:
            while (index := self._take(work)) is not None:
                reply = self._reply(work, index)
                with self._changed:
                    work.put(index, reply)
                    self._changed.notify_all()
        except Stopped:
            return
        except BaseException as error:  # noqa: BLE001 - raised again where the outcomes are asked for
            with self._changed:
                work.error = work.error or error
            self._pool.stop(work)

    def _take(self, work: _Map) -> int | None:
        """Return the number of the next unit; None after the last. Raises: Stopped."""
        with self._changed:
            self._changed.wait_for(lambda: work.stopped or work.taken == len(work.units) or work.may_take())
            if work.stopped:
                raise Stopped
            if work.taken == len(work.units):
                return None
            work.taken += 1
            return work.taken - 1

    def _reply(self, work: _Map, index: int) -> Reply:
        unit = work.units[index]
        try:
            body = pickle.dumps(unit, protocol=5)
        except Exception as error:  # noqa: BLE001 - __reduce__ may raise anything
            return failure_of(error)
        return self._pool.run(work, body, work.limits[index])


def _outcome(reply: Reply, types: Types) -> Outcome[Any]:
    if isinstance(reply, Failure):
        return Outcome(error=reply)
    try:
        return Outcome(value=decoded(reply, types))
    except NotAnAnswer as error:
        return Outcome(error=failure_of(error))


def _nbytes(reply: Reply) -> int:
    return 0 if isinstance(reply, Failure) else len(reply)
