"""Batches made ahead, by threads or processes, and handed over in order, bounded in bytes."""

import weakref
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import CancelledError, Future
from time import perf_counter
from typing import NamedTuple, Protocol

from ..errors import InvalidRuntime
from .batch import Batch

MAX_AHEAD = 64
"""Batches made ahead at most, however small they are: more only delays a seek."""


class Made(NamedTuple):
    """A finished batch. at_s: `perf_counter`; nbytes: the memory it takes."""

    batch: Batch
    at_s: float
    nbytes: int


class Crew(Protocol):
    """Whoever makes batches ahead: `run.crew.Crew`, threads; `workers.crew.ProcessCrew`."""

    @property
    def size(self) -> int:
        """Batches that are made at the same time."""

    def submit(self, step: int) -> Future[Made]:
        """What making the batch will give or raise; steps are begun in the order in which they are submitted."""

    def cancel(self, futures: Iterable[Future[Made]]) -> None:
        """All that was submitted and is not taken: what is not begun will not be."""

    def retire(self) -> None:
        """Work no more when what was submitted is done. Does not wait."""

    def dismiss(self) -> None:
        """Work no more. Does not wait."""

    def join(self) -> None:
        """Wait for the end, after `dismiss` or `retire`."""

    def abandon(self) -> None:
        """`dismiss`, by nobody who could wait for threads."""


def making(make: Callable[[int], Batch]) -> Callable[[int], Made]:
    """step -> the batch, for threads."""

    def made(step: int) -> Made:
        batch = make(step)
        return Made(batch, perf_counter(), batch.nbytes)

    return made


class Prefetch:
    """Has a crew make step, step + 1 ...; `take` gives them in order.

    At most `bound_bytes` of finished and expected batches are kept, but always enough for everybody in the crew to have
    one (else some would idle). An error is raised by the `take` of its own step, after the batches before it.
    """

    def __init__(self, crew: Crew, bound_bytes: int) -> None:
        self._crew, self._retired, self._bound = crew, list[Crew](), bound_bytes
        self._last_bytes: int | None = None
        self._pending: deque[tuple[int, Future[Made]]] = deque()
        # Whoever drops the loader without closing it must not leave anybody working on.
        weakref.finalize(self, crew.abandon)

    def take(self, step: int, end: int | None) -> Batch:
        """The batch of `step`, and work begun on those after it (below `end`). Raises: what making it raised."""
        if self._pending and self._pending[0][0] != step:
            self._drop()
        self._fill(step, end)
        _, future = self._pending.popleft()
        asked_s = perf_counter()
        try:
            batch, made_s, self._last_bytes = future.result()
        except CancelledError:
            raise InvalidRuntime("this Loader was closed while a batch was waited for") from None
        except BaseException:
            self._drop()
            raise
        batch.stats["handover_wait_seconds"] = max(0.0, asked_s - made_s)
        self._fill(step + 1, end)
        return batch

    def move(self, crew: Crew) -> None:
        """Have another crew make what is not begun yet; what was submitted comes from the one that has it."""
        self._crew.retire()
        self._retired.append(self._crew)
        self._crew = crew
        weakref.finalize(self, crew.abandon)

    def close(self, *, wait: bool = True) -> None:
        """Stop: batches being made are finished and thrown away, threads and processes end before this returns; without
        `wait`, threads end after the call that they are in."""
        crews = [self._crew, *self._retired]
        for crew in crews:
            crew.dismiss()
        self._drop()
        for crew in crews:
            (crew.join if wait else crew.abandon)()

    def _fill(self, step: int, end: int | None) -> None:
        following = self._pending[-1][0] + 1 if self._pending else step
        while (end is None or following < end) and self._has_room():
            self._pending.append((following, self._crew.submit(following)))
            following += 1

    def _has_room(self) -> bool:
        if len(self._pending) < self._crew.size + 1:
            return True
        # Until a batch is there nobody knows what one takes: decoded samples are many times their stored bytes.
        if len(self._pending) >= MAX_AHEAD or self._last_bytes is None:
            return False
        finished = [
            future.result().nbytes
            for _, future in self._pending
            if future.done() and not future.cancelled() and future.exception() is None
        ]
        expected = max(1, self._last_bytes, *finished)
        return sum(finished) + expected * (len(self._pending) - len(finished) + 1) <= self._bound

    def _drop(self) -> None:
        dropped, self._pending = self._pending, deque()  # at once: another thread may be in `take`
        for crew in (self._crew, *self._retired):
            crew.cancel([future for _, future in dropped])
