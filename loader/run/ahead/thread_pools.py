"""Threads that work for a loader, and end with it or with the process.

At the interpreter's exit, concurrent.futures' pools would first finish their whole queue.
"""

from collections.abc import Callable, Iterable
from concurrent.futures import Future
from contextvars import copy_context
from queue import SimpleQueue
from threading import Thread
from time import perf_counter
from typing import Any, Generic, TypeVar

from ...dataset.reading.sample_places import Map
from ...order.plan import Plan
from ...storage import is_local
from ...storage.threads import DaemonPool, ends_with_the_process
from ..recipe.recipe import stored_views

IO_THREADS = 64
"""Concurrent reads from a remote store: a first batch needs a round trip per shard."""


def range_threads(plan: Plan) -> tuple[DaemonPool | None, Map]:
    """Return (threads, or None if every source is on this machine; the map that reads with them)."""
    if _all_local(plan):
        return None, map
    pool = DaemonPool(IO_THREADS, "penstock-io")
    return pool, _in_context(pool)


def _in_context(pool: DaemonPool) -> Map:

    def run(function: Callable[[Any], Any], items: Iterable[Any]) -> Iterable[Any]:
        return pool.map(
            lambda call: call[0].run(function, call[1]), [(copy_context(), item) for item in items]
        )

    return run


def _all_local(plan: Plan) -> bool:
    return all(is_local(view.version.shard_store) for view in stored_views(plan).values())


A = TypeVar("A")
T = TypeVar("T")


class ThreadPool(Generic[A, T]):
    """`threads` threads that call `make(task)` for each submitted task in turn.

    on_idle: called before each task with the seconds that its thread waited. name: prefix of the threads' names.
    """

    def __init__(
        self,
        make: Callable[[A], T],
        threads: int,
        on_idle: Callable[[float], None] = lambda _: None,
        name: str = "penstock-batch",
    ) -> None:
        self._make = make
        self._on_idle = on_idle
        self.size = threads
        self._queue: SimpleQueue[tuple[A, Future[T]] | None] = SimpleQueue()
        self._stopped = False  # no Event: a finalizer may call `dismiss` while this thread holds its lock
        self._threads = [
            Thread(target=self._work, name=f"{name}_{number}", daemon=True) for number in range(threads)
        ]
        ends_with_the_process(self)
        for thread in self._threads:
            thread.start()

    def submit(self, task: A) -> Future[T]:
        future: Future[T] = Future()
        self._queue.put((task, future))
        return future

    def cancel(self, futures: Iterable[Future[T]]) -> None:
        for future in futures:
            future.cancel()

    def dismiss(self) -> None:
        self._stopped = True
        self.retire()

    def retire(self) -> None:
        for _ in self._threads:
            self._queue.put(None)

    def join(self, timeout_s: float | None = None) -> None:
        if timeout_s is None:
            until = None
        else:
            until = perf_counter() + timeout_s
        for thread in self._threads:
            thread.join(None if until is None else max(0.0, until - perf_counter()))

    def abandon(self) -> None:
        self.dismiss()

    def _work(self) -> None:
        while True:
            start = perf_counter()
            queued = self._queue.get()
            if queued is None:
                return
            self._on_idle(perf_counter() - start)
            task, future = queued
            if self._stopped:
                future.cancel()
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(self._make(task))
                except BaseException as error:  # noqa: BLE001 - `result` raises it
                    future.set_exception(error)
            del queued, task, future  # an idle thread must not keep a batch alive
