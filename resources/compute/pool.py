"""Worker processes that are started when first needed and used again, and what is done when one dies.

When a process dies in the middle of a unit, that unit failed, unless something else may have killed it:

    it died by                     it had run               the unit
    a signal, an exit              only this unit           has crashed
    a signal, an exit              other units before       runs once more in a new process: they may have left
                                                            damage behind
    SIGKILL, SIGTERM, not by us    any                      runs once more in a new process while nothing else
                                                            runs: so ends who is in the way when memory is short

A second death is final, and so is a timeout.
"""

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from loader.errors import InvalidRuntime

from .contract import Failure
from .process import Death, Worker

_GRACE_S = 2.0  # for idle workers to leave by themselves
Reply = bytearray | Failure
"""What came of a unit: its encoded value, or why there is none."""


class Stopped(Exception):
    """The task was cancelled."""


@dataclass(slots=True, eq=False, kw_only=True)
class Task:
    """What a map's units have in common: the pickled function, what its workers are started with, and those at it."""

    function: bytes
    environment: Mapping[str, str]
    stopped: bool = False
    busy: set[Worker] = field(default_factory=set)


class Pool:
    """Thread-safe. At most n_workers units run at once. changed: guards the pool and its tasks."""

    def __init__(self, n_workers: int, changed: threading.Condition) -> None:
        self._n_workers = n_workers
        self._changed = changed
        self._idle: list[Worker] = []
        self._turns = 0  # taken; a unit takes one, a unit that must be alone takes all
        self._want_alone = 0

    def stop(self, task: Task) -> None:
        """Cancel: threads that are in `run` for it come out with `Stopped`."""
        with self._changed:
            task.stopped = True
            for worker in task.busy:
                worker.kill()
            self._changed.notify_all()

    def close(self) -> None:
        """End the idle workers."""
        with self._changed:
            idle, self._idle = self._idle, []
        _end(idle)

    def run(self, task: Task, unit: bytes, timeout_s: float) -> Reply:
        """Run one pickled unit, twice if it may have been the victim of something else.

        Raises: Stopped; Unpicklable and InvalidRuntime when no worker can be had.
        """
        with self._turn(task, alone=False):
            first = self._run_once(task, unit, timeout_s, fresh=False)
        if not isinstance(first, Death):
            return first
        if not first.by_outsider and first.n_units == 1:
            return Failure(code="crashed", reason=f"its process {first.how}")
        with self._turn(task, alone=first.by_outsider):
            second = self._run_once(task, unit, timeout_s, fresh=True)
        if not isinstance(second, Death):
            return second
        again = "a new one, with nothing beside it," if first.by_outsider else "a new one"
        return Failure(code="crashed", reason=f"its process {first.how}; {again} {second.how}")

    @contextmanager
    def _turn(self, task: Task, *, alone: bool) -> Iterator[None]:
        """Wait until the unit may run beside what runs already. Raises: Stopped."""
        mine = self._n_workers if alone else 1
        with self._changed:
            self._want_alone += alone
            self._changed.wait_for(lambda: task.stopped or self._is_turn(alone))
            self._want_alone -= alone
            if task.stopped:
                self._changed.notify_all()
                raise Stopped
            self._turns += mine
        try:
            if alone:
                self.close()  # idle workers hold memory too
            yield
        finally:
            with self._changed:
                self._turns -= mine
                self._changed.notify_all()

    def _is_turn(self, alone: bool) -> bool:
        if alone:
            return self._turns == 0
        return self._turns < self._n_workers and not self._want_alone

    def _run_once(self, task: Task, unit: bytes, timeout_s: float, *, fresh: bool) -> Reply | Death:
        worker = self._loaded(task, fresh)
        try:
            return worker.run(unit, timeout_s)
        finally:
            self._give_back(task, worker)

    def _loaded(self, task: Task, fresh: bool) -> Worker:
        """A busy worker that has the function."""
        worker = self._take(task, fresh)
        death = self._load(task, worker)
        if death is not None:  # an idle worker that had died meanwhile, or it was short of memory
            worker = self._take(task, fresh=True)
            death = self._load(task, worker)
        if death is None:
            return worker
        raise InvalidRuntime(
            f"a worker process {death.how} while it imported what the function needs, and so did the one "
            "before; its standard error may say more"
        )

    def _load(self, task: Task, worker: Worker) -> Death | None:
        if worker.function == task.function:
            return None
        try:
            death = worker.load(task.function)
        except BaseException:
            self._give_back(task, worker)
            raise
        if death is not None:
            self._give_back(task, worker)
        return death

    def _take(self, task: Task, fresh: bool) -> Worker:
        """An idle worker, one that has the function if there is one, or a new one. Raises: Stopped.

        Never one with another environment: what one map may know is none of another's business.
        """
        others: list[Worker] = []
        with self._changed:
            idle = [] if fresh else [one for one in self._idle if one.environment == task.environment]
            same = [worker for worker in idle if worker.function == task.function]
            if idle and not task.stopped:
                worker = (same or idle)[-1]
                self._idle.remove(worker)
                task.busy.add(worker)
                return worker
            if not fresh and self._idle:
                others.append(self._idle.pop(0))  # makes room for the new one
        _end(others)
        worker = Worker(task.environment)
        with self._changed:
            task.busy.add(worker)
            stopped = task.stopped
        if stopped:
            self._give_back(task, worker)
        return worker

    def _give_back(self, task: Task, worker: Worker) -> None:
        """Keep the worker for the next unit, unless it is over. Raises: Stopped."""
        with self._changed:
            task.busy.discard(worker)
            stopped = task.stopped
            if worker.alive and not stopped:
                self._idle.append(worker)
                return
        worker.end()
        if stopped:
            raise Stopped


def _end(idle: Sequence[Worker]) -> None:
    """End workers that have nothing to do; all of them have the same grace."""
    for worker in idle:
        worker.ask_to_end()
    deadline_s = time.monotonic() + _GRACE_S
    for worker in idle:
        worker.end(max(deadline_s - time.monotonic(), 0.01))
