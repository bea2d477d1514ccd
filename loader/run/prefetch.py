"""Batches made ahead by threads and handed over in order, bounded in bytes."""

import weakref
from collections import deque
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from time import perf_counter
from typing import NamedTuple

from ..errors import InvalidRuntime
from .batch import Batch
from .crew import Crew

Make = Callable[[int], Batch]

MAX_AHEAD = 64
"""Batches made ahead at most, however small they are: more only delays a seek."""


class _Made(NamedTuple):
    batch: Batch
    at_s: float


class Prefetch:
    """Makes `make(step)`, `make(step + 1)` ... in threads; `take` gives them in order.

    At most `bound_bytes` of finished and expected batches are kept, but always enough for every thread to have
    one (else threads would idle). An error is raised by the `take` of its own step, after the batches before it.
    on_idle: told how many seconds a thread had no batch to begin, since there was no room for one.
    """

    def __init__(
        self, make: Make, threads: int, bound_bytes: int, on_idle: Callable[[float], None] = lambda _: None
    ) -> None:
        self._threads, self._bound = threads, bound_bytes
        self._last_bytes: int | None = None
        self._crew = Crew(lambda step: _Made(make(step), perf_counter()), threads, on_idle)
        self._pending: deque[tuple[int, Future[_Made]]] = deque()
        # Whoever drops the loader without closing it must not leave threads working on.
        weakref.finalize(self, self._crew.dismiss)

    def take(self, step: int, end: int | None) -> Batch:
        """The batch of `step`, and work begun on those after it (below `end`). Raises: what making it raised."""
        if self._pending and self._pending[0][0] != step:
            self._drop()
        self._fill(step, end)
        _, future = self._pending.popleft()
        asked_s = perf_counter()
        try:
            batch, made_s = future.result()
        except CancelledError:
            raise InvalidRuntime("this Loader was closed while a batch was waited for") from None
        except BaseException:
            self._drop()
            raise
        batch.stats["handover_wait_seconds"] = max(0.0, asked_s - made_s)
        self._last_bytes = batch.nbytes
        self._fill(step + 1, end)
        return batch

    def close(self) -> None:
        """Stop: batches being made are finished and thrown away, threads end before this returns."""
        self._crew.dismiss()
        self._drop()
        self._crew.join()

    def _fill(self, step: int, end: int | None) -> None:
        following = self._pending[-1][0] + 1 if self._pending else step
        while (end is None or following < end) and self._has_room():
            self._pending.append((following, self._crew.submit(following)))
            following += 1

    def _has_room(self) -> bool:
        if len(self._pending) < self._threads + 1:
            return True
        # Until a batch is there nobody knows what one takes: decoded samples are many times their stored bytes.
        if len(self._pending) >= MAX_AHEAD or self._last_bytes is None:
            return False
        finished = [
            future.result().batch.nbytes
            for _, future in self._pending
            if future.done() and not future.cancelled() and future.exception() is None
        ]
        expected = max(1, self._last_bytes, *finished)
        return sum(finished) + expected * (len(self._pending) - len(finished) + 1) <= self._bound

    def _drop(self) -> None:
        dropped, self._pending = self._pending, deque()  # at once: another thread may be in `take`
        for _, future in list(dropped):
            future.cancel()
