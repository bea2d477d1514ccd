"""Worker processes, started on demand, reused, and replaced when they die.

A unit whose process dies failed, unless something else may have killed it:

- A signal or exit in the process's first unit: the unit crashed.
- A signal or exit in a later unit: it runs once more, in a new process.
- SIGKILL or SIGTERM, as when memory is short: it runs once more, with no other unit beside it.

A second death is final, as is a timeout.
"""

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from loader.errors import InvalidRuntime

from .contract import Failure
from .environment import bound_to
from .process import Death, Reply, Worker

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
            idle, self._idle = self._idle, []
        _end(idle)

    def run(
        self,
        task: MapTask,
        units: Sequence[bytes],
        limits_s: Sequence[float],
        given_back: Callable[[int], None],
    ) -> Iterator[tuple[Reply, float]]:
        """Yield (reply, seconds) for each pickled unit, in order; a unit without a reply did not start.

        given_back: as for `Worker.run`. Raises: MapStopped; Unpicklable and InvalidRuntime if no worker can start.
        """
        place = 0
        try:
            for replied in self._run_once(task, units, limits_s, given_back):
                place += 1
                yield replied
            return
        except Death as death:
            first = death
        if not first.by_outsider and first.n_units == 1:
            yield Failure(code="crashed", reason=f"its process {first.how}"), 0.0
            return
        single = slice(place, place + 1)
        try:
            yield from self._run_once(
                task, units[single], limits_s[single], given_back, fresh=True, alone=first.by_outsider
            )
        except Death as second:
            again = "a new one, with nothing beside it," if first.by_outsider else "a new one"
            yield Failure(code="crashed", reason=f"its process {first.how}; {again} {second.how}"), 0.0

    def _run_once(
        self,
        task: MapTask,
        units: Sequence[bytes],
        limits_s: Sequence[float],
        given_back: Callable[[int], None],
        *,
        fresh: bool = False,
        alone: bool = False,
    ) -> Iterator[tuple[Reply, float]]:
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
                    "before; its standard error may say more"
                )
        yield from last  # yielded only now: the map may end on it, and would kill a busy worker

    @contextmanager
    def _turn(self, task: MapTask, *, alone: bool) -> Iterator[Mapping[str, str]]:
        workers = self._n_workers if alone else 1
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
            yield {**task.environment, **bound_to(gpus[0])} if gpus else task.environment
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
    for worker in idle:
        worker.ask_to_end()
    deadline_s = time.monotonic() + _GRACE_S
    for worker in idle:
        worker.end(max(deadline_s - time.monotonic(), 0.01))
