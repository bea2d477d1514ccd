"""Batches made ahead by threads and handed over in order, bounded in bytes."""

import os
import threading
import weakref
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from ..errors import InvalidRuntime
from .batch import Batch

Make = Callable[[int], Batch]

MAX_AHEAD = 64
"""Batches made ahead at most, however small they are: more only delays a seek."""


class Prefetch:
    """Makes `make(step)`, `make(step + 1)` ... in threads; `take` gives them in order.

    At most `bound_bytes` of finished and expected batches are kept, but always enough for every thread to have
    one (else threads would idle). An error is raised by the `take` of its own step, after the batches before it.
    """

    def __init__(self, make: Make, threads: int, bound_bytes: int, expected_bytes: int) -> None:
        self._make, self._threads, self._bound = make, threads, bound_bytes
        self._expected = max(expected_bytes, 1)
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="penstock-batch")
        self._stop = threading.Event()
        self._pending: deque[tuple[int, Future[Batch]]] = deque()
        self._pid = os.getpid()
        # Whoever drops the loader without closing it must not leave threads working on.
        self._finalizer = weakref.finalize(self, _shut_down, self._stop, self._pool)

    def take(self, step: int, end: int | None) -> Batch:
        """The batch of `step`, and work begun on those after it (below `end`). Raises: what making it raised."""
        if os.getpid() != self._pid:
            raise InvalidRuntime(
                "this Loader was used before the process forked and has no threads here; make the Loader in the "
                "child, or start workers by spawn"
            )
        if self._pending and self._pending[0][0] != step:
            self._drop()
        self._fill(step, end)
        _, future = self._pending[0]
        try:
            batch = future.result()
        except BaseException:
            self._drop()
            raise
        self._pending.popleft()
        self._expected = max(batch.nbytes, 1)
        self._fill(step + 1, end)
        return batch

    def close(self) -> None:
        """Stop: batches being made are finished and thrown away, threads end before this returns."""
        self._stop.set()
        self._drop()
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._finalizer.detach()

    def _fill(self, step: int, end: int | None) -> None:
        following = self._pending[-1][0] + 1 if self._pending else step
        while (end is None or following < end) and self._has_room():
            self._pending.append((following, self._pool.submit(self._made, following)))
            following += 1

    def _has_room(self) -> bool:
        if len(self._pending) < self._threads + 1:
            return True
        if len(self._pending) >= MAX_AHEAD:
            return False
        held = 0
        for _, future in self._pending:
            finished = future.done() and not future.cancelled() and future.exception() is None
            held += future.result().nbytes if finished else self._expected
        return held + self._expected <= self._bound

    def _made(self, step: int) -> Batch:
        if self._stop.is_set():
            raise InvalidRuntime("the Loader was closed while this batch was waiting")
        return self._make(step)

    def _drop(self) -> None:
        for _, future in self._pending:
            future.cancel()
        self._pending.clear()


def _shut_down(stop: threading.Event, pool: ThreadPoolExecutor) -> None:
    stop.set()
    pool.shutdown(wait=False, cancel_futures=True)
