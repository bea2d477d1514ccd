"""Threads that work for a loader, and end with it or with the process.

At the interpreter's exit, concurrent.futures' pools would first finish their whole queue.
"""

from collections.abc import Callable, Iterable
from concurrent.futures import Future
from contextvars import copy_context
from threading import local
from time import perf_counter
from typing import Any, Generic, TypeVar

from ...dataset.reading.sample_places import Map
from ...order.plan import Plan
from ...storage import is_local
from ...storage.threads import DaemonPool
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
    """Return the pool's `map`. Each call has the caller's context, which counts requests and limits retries."""

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
    """A `DaemonPool` that calls `make(task)` for each submitted task in turn.

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
        self._pool = DaemonPool(threads, name)
        self._start_s = perf_counter()
        self._of_thread = local()
        self._stopped = False

    def submit(self, task: A) -> Future[T]:
        """Return the future of a task; of a pool that was dismissed, a cancelled one."""
        if not self._stopped:
            try:
                return self._pool.submit(self._work, task)
            except RuntimeError:
                if not self._stopped:  # such as no more threads
                    raise
        future: Future[T] = Future()
        future.cancel()
        future.set_running_or_notify_cancel()
        return future

    def cancel(self, futures: Iterable[Future[T]]) -> None:
        for future in futures:
            future.cancel()

    def dismiss(self) -> None:
        self._stopped = True
        self._pool.dismiss()

    def retire(self) -> None:
        self._pool.shutdown(wait=False)

    def join(self, timeout_s: float | None = None) -> None:
        self._pool.join(timeout_s)

    def abandon(self) -> None:
        self.dismiss()

    def _work(self, task: A) -> T:
        end_s = getattr(self._of_thread, "end_s", self._start_s)  # of the thread's last task
        self._on_idle(perf_counter() - end_s)
        try:
            return self._make(task)
        finally:
            self._of_thread.end_s = perf_counter()
