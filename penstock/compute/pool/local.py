"""Run units in processes on this machine, each fed by a thread, or in the caller's thread."""

import pickle
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from loader.cores import n_cores
from loader.errors import InvalidRuntime

from .answers import NotAnAnswer, Types, answer_types, decode_answer
from .contract import Failure, Outcome, Progress, check_limits, check_workers, error_failure, pickle_function
from .environment import worker_environment
from .process import MapStopped, MapTask, Pool, Reply
from .worker import encode_result

T = TypeVar("T")
R = TypeVar("R")


class InlineCompute:
    """Engine that runs a unit when its outcome is requested.

    Units are pickled and values encoded as elsewhere. Time limits are ignored.
    """

    isolates = False

    def __init__(self, workers: int | None = None, variables: Collection[str] = ()) -> None:
        check_workers(workers)
        self._closed = False

    def map(
        self,
        function: Callable[[T], R],
        units: Sequence[T],
        *,
        timeout_s: float | Sequence[float],
        progress: Progress | None = None,
        variables: Collection[str] = (),
        gpus: Sequence[str] = (),
    ) -> Iterator[Outcome[R]]:
        check_limits(timeout_s, len(units))
        return self._outcomes(pickle_function(function), units, progress)

    def _outcomes(
        self, pickled: bytes, units: Sequence[T], progress: Progress | None
    ) -> Iterator[Outcome[R]]:
        function: Callable[[T], R] = pickle.loads(pickled)  # noqa: S301 - pickled by this process
        types = answer_types(function)
        for position, unit in enumerate(units):
            if self._closed:
                raise InvalidRuntime(
                    "this engine was closed; open another one", what="engine", given="closed"
                )
            outcome = _run_here(function, unit, types)
            if progress is not None:
                progress(position + 1, len(units))
            yield outcome

    def close(self) -> None:
        self._closed = True


def _run_here(function: Callable[[T], R], unit: T, types: Types) -> Outcome[R]:
    try:
        value = function(pickle.loads(pickle.dumps(unit, protocol=5)))  # noqa: S301 - pickled by this process
        return Outcome(value=decode_answer(encode_result(value), types))
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever the function raises is the outcome
        return Outcome(error=error_failure(error))


AHEAD_BYTES = 64 * 2**20
"""No more units start while values of this size wait for the consumer ..."""
AHEAD_UNITS = 1024
"""... or while this many started units are not consumed."""
LOT_S = 0.02
"""Target duration, in s, of a lot: the units sent to a worker together."""
LOT_BYTES = 32 * 2**10
"""Largest pickled bytes of a lot: it fits a socket's buffer."""
LOT_UNITS = 64
"""Most units in a lot."""


@dataclass(slots=True, eq=False, kw_only=True)
class _Map(MapTask):
    """A running map, guarded by the engine's lock."""

    units: Sequence[Any]
    limits: Sequence[float]  # in s, per unit
    n_workers: int
    news: threading.Condition  # notifies the consumer
    room: threading.Condition  # notifies threads that wait to take units
    types: Types
    awaited: int = -1  # the unit that the consumer waits for; -1: it is notified of every unit
    begun: int = 0  # number of units started
    given_back: list[int] = field(default_factory=list)  # taken units that a worker did not start, sorted
    lot: int = 1  # most units in the next lot
    consumed: int = 0
    done: int = 0
    reported: int = 0  # units reported to `progress` as done
    waiting: dict[int, Reply] = field(default_factory=dict)
    waiting_bytes: int = 0
    threads: list[threading.Thread] = field(default_factory=list)
    error: BaseException | None = None

    def may_take(self) -> bool:
        """Return whether a thread may take units now: a bounded number ahead of the consumer."""
        ahead = self.begun - self.consumed
        within = ahead < AHEAD_UNITS and self.waiting_bytes < AHEAD_BYTES
        has_more = self.begun < len(self.units)
        # With no unit ahead the consumer waits, and one may start in any case.
        return bool(self.given_back) or (has_more and (not ahead or within))

    def take(self) -> Sequence[int]:
        """Take the next lot: one unit that another thread gave back, else up to `lot` new ones."""
        if self.given_back:
            return [self.given_back.pop(0)]
        # At most half of each worker's share of the rest.
        share = (len(self.units) - self.begun) // (2 * self.n_workers)
        n = max(1, min(self.lot, share, AHEAD_UNITS - self.begun + self.consumed))
        self.begun += n
        return range(self.begun - n, self.begun)

    def give_back(self, units: Sequence[int]) -> None:
        self.given_back = sorted([*self.given_back, *units])
        self.room.notify_all()

    def size_lot(self, n_units: int, seconds: float, nbytes: int) -> None:
        """Set the size of the next lots, by the units, seconds and bytes of one that has ended."""
        growth = min(2.0, LOT_S / max(seconds, 1e-6), LOT_BYTES / max(nbytes, 1))
        self.lot = min(max(1, int(n_units * growth)), LOT_UNITS)

    def put(self, index: int, reply: Reply) -> None:
        """Store a unit's reply for the consumer."""
        self.waiting[index] = reply
        self.waiting_bytes += _nbytes(reply)
        self.done += 1
        if self.awaited in (-1, index):
            self.news.notify()

    def consume(self, index: int) -> Reply | None:
        """Return a unit's reply and make room for more units; None if the unit has not ended."""
        reply = self.waiting.pop(index, None)
        if reply is not None:
            self.waiting_bytes -= _nbytes(reply)
            self.consumed = index + 1
            self.room.notify_all()
        return reply


class LocalCompute:
    """Engine that runs units in local processes.

    workers: units at once, over all maps; None: one per core. variables: more environment variables. Raises:
    InvalidRuntime.
    """

    isolates = True

    def __init__(self, workers: int | None = None, variables: Collection[str] = ()) -> None:
        self._variables = tuple(variables)
        self._n_workers = check_workers(workers) or n_cores()
        self._lock = threading.RLock()
        self._pool = Pool(self._n_workers, self._lock)
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
        gpus: Sequence[str] = (),
    ) -> Iterator[Outcome[R]]:
        limits = check_limits(timeout_s, len(units))
        news = threading.Condition(self._lock)
        room = threading.Condition(self._lock)
        work = _Map(
            function=pickle_function(function),
            environment=worker_environment((*self._variables, *variables)),
            gpus=tuple(gpus),
            units=units,
            limits=limits,
            n_workers=self._n_workers,
            types=answer_types(function),
            news=news,
            room=room,
            waiting_for=(news, room),
        )
        return self._outcomes(work, progress)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            maps = list(self._maps)
        for work in maps:
            self._cancel(work)
        self._pool.close()

    def _outcomes(self, work: _Map, progress: Progress | None) -> Iterator[Outcome[R]]:
        with self._lock:
            if self._closed:
                raise InvalidRuntime(
                    "this engine was closed; open another one", what="engine", given="closed"
                )
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
        if threading.current_thread() not in work.threads:  # garbage collection may close a map there
            for thread in work.threads:
                thread.join()
        with self._lock:
            self._maps.discard(work)

    def _next(self, work: _Map, index: int, progress: Progress | None) -> Reply:
        """Wait for a unit's reply; report progress meanwhile, in the consumer's thread."""
        while True:
            with self._lock:
                work.awaited = -1 if progress else index
                work.news.wait_for(
                    lambda: index in work.waiting or (progress and work.done > work.reported) or work.stopped
                )
                if work.error is not None:
                    raise work.error
                reply = work.consume(index)
                if reply is None and work.stopped:
                    raise InvalidRuntime(
                        "this engine was closed in the middle of a map", what="map", given="closed"
                    )
                news = work.done > work.reported
                work.reported = work.done
            if news and progress is not None:
                progress(work.reported, len(work.units))
            if reply is not None:
                return reply

    def _work(self, work: _Map) -> None:
        """Run lots until none is left; the body of each thread of a map."""
        try:
            while lot := self._take(work):
                self._run(work, lot)
        except MapStopped:
            return
        except BaseException as error:  # noqa: BLE001 - re-raised where the outcomes are requested
            with self._lock:
                work.error = work.error or error
            self._pool.stop(work)

    def _take(self, work: _Map) -> Sequence[int]:
        with self._lock:
            work.room.wait_for(lambda: work.stopped or work.done == len(work.units) or work.may_take())
            if work.stopped:
                raise MapStopped
            return work.take() if work.may_take() else ()

    def _run(self, work: _Map, lot: Sequence[int]) -> None:
        """Run a lot on one worker, and give back the units that it did not start."""
        bodies: list[bytes] = []
        n_units = 0
        nbytes = 0
        spent_s = 0.0
        replies: Iterable[tuple[Reply, float]] = ()
        for index in lot:
            body = _pickle_unit(work.units[index])
            if isinstance(body, Failure):
                # It is the reply if the unit is the lot's first; else another lot begins with the unit.
                replies = [(body, 0.0)]
                break
            nbytes += len(body)
            if bodies and nbytes > LOT_BYTES:
                break
            bodies.append(body)
        owed = list(lot)  # units whose outcome this thread must still report

        def give_back(n: int) -> None:
            with self._lock:
                work.give_back(owed[len(owed) - n :])
            del owed[len(owed) - n :]

        if bodies:
            give_back(len(lot) - len(bodies))
            limits_s = [work.limits[index] for index in owed]
            replies = self._pool.run(work, bodies, limits_s, give_back)
        for reply, seconds in replies:
            with self._lock:
                work.put(owed.pop(0), reply)
            n_units = n_units + 1
            nbytes = nbytes + _nbytes(reply)
            spent_s = spent_s + seconds
        give_back(len(owed))
        work.size_lot(n_units, spent_s, nbytes)


def _pickle_unit(unit: Any) -> bytes | Failure:
    try:
        return pickle.dumps(unit, protocol=5)
    except Exception as error:  # noqa: BLE001 - __reduce__ may raise anything
        return error_failure(error)


def _outcome(reply: Reply, types: Types) -> Outcome[Any]:
    if isinstance(reply, Failure):
        return Outcome(error=reply)
    try:
        return Outcome(value=decode_answer(reply, types))
    except NotAnAnswer as error:
        return Outcome(error=error_failure(error))


def _nbytes(reply: Reply) -> int:
    return 0 if isinstance(reply, Failure) else len(reply)
