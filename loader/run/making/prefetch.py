"""Batches made ahead by threads or processes, delivered in order, bounded in bytes."""

import weakref
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import CancelledError, Future
from time import perf_counter, thread_time
from typing import NamedTuple, Protocol

from ...cores import rank_memory_bytes
from ...errors import InvalidRuntime
from ...keywords import whole_number
from ..batch.batch import Batch

MAX_STEPS = 64
"""Most steps of a stride."""
STRIDE_S = 0.1
"""Most seconds of work for a stride: a seek waits for steps already started."""
STRIDE_BYTES = 16 * 2**20
"""Most bytes of a stride's batches: their shared memory lives as long as the last one."""
STRIDE_GROWTH = 8
"""Largest growth from one stride to the next: first batches may not be typical."""
PREFETCH_BYTES = 64 * 2**20
"""Bytes of batches that may always be made ahead, unless the user sets `prefetch`."""
PREFETCH_SHARE = 32
"""Batches made ahead get at most this rank's memory divided by PREFETCH_SHARE."""


class Stride:
    """Number of consecutive `steps` that a worker makes together: initially 1, later as many as are small."""

    def __init__(self) -> None:
        self.steps = 1

    def adapt(
        self,
        steps: int,
        seconds: float,
        nbytes: int,
    ) -> None:
        """Set the next stride. steps: number of the last one's steps. seconds, nbytes: of all these together."""
        by_time = STRIDE_S * steps / max(seconds, 1e-9)
        by_memory = STRIDE_BYTES * steps / max(nbytes, 1)
        fitting = int(min(MAX_STEPS, STRIDE_GROWTH * steps, by_time, by_memory))
        self.steps = max(1, fitting)


MAX_AHEAD = 64
"""Most batches made ahead, unless the workers need more."""
READY_STRIDES = 2
"""Strides that are ready for each worker, besides the one that it makes."""


WAKE_UP_S = 1.0
"""Longest wait without a look at `dismiss` and Ctrl-C."""


class Bound(NamedTuple):
    """Limits for the bytes of batches made ahead."""

    least: int
    """Bytes that are always allowed."""
    most: int
    """Bytes that are allowed if needed."""
    by_need: bool = True
    """True allows READY_STRIDES strides per worker, up to `most` bytes. False allows `least` bytes."""


def prefetch_bound(nbytes: int | None) -> Bound:
    """Return the bound for batches made ahead. nbytes: the user's limit; None sizes it by need.

    Raises: InvalidRuntime if `nbytes` is not a whole number, or negative.
    """
    if nbytes is not None:
        nbytes = whole_number("prefetch", nbytes, 0)
        return Bound(nbytes, nbytes, by_need=False)
    share_bytes = rank_memory_bytes() // PREFETCH_SHARE
    return Bound(least=PREFETCH_BYTES, most=max(PREFETCH_BYTES, share_bytes))


class MadeBatches(NamedTuple):
    """Result of making consecutive steps."""

    batches: list[Batch]
    """Batches of the first steps."""
    error: BaseException | None
    """Error of the step after them; None if all were made."""
    at_s: float
    """`perf_counter` at the end."""
    took_s: float
    """Seconds until `at_s`."""
    nbytes: int
    """Memory of the batches in bytes."""
    cpu_s: float = 0.0
    """CPU seconds of the thread that made them; 0 if another process did."""


class BatchMaker(Protocol):
    """Makes batches ahead: `ThreadPool`, `WorkerPool`, `InlineExecutor`."""

    @property
    def size(self) -> int:
        """Number of batches made at the same time."""

    def submit(self, steps: range) -> Future[MadeBatches]:
        """Return the steps' future batches; steps start in the order of submission."""

    def cancel(self, futures: Iterable[Future[MadeBatches]]) -> None:
        """Cancel submitted steps that have not started."""

    def retire(self) -> None:
        """Stop after the submitted steps. Does not wait."""

    def dismiss(self) -> None:
        """Stop. Does not wait."""

    def join(self) -> None:
        """Wait for the end, after `dismiss` or `retire`."""

    def abandon(self) -> None:
        """Dismiss from a finalizer, which cannot wait for threads."""


def making(make: Callable[[range], Iterable[Batch]]) -> Callable[[range], MadeBatches]:
    """Return a function that makes consecutive steps by `make`, measures them, and returns an error with the rest."""

    def make_and_measure(steps: range) -> MadeBatches:
        batches: list[Batch] = []
        error: BaseException | None = None
        start_s = perf_counter()
        start_cpu_s = thread_time()
        try:
            batches.extend(make(steps))
        except BaseException as raised:  # noqa: BLE001 - `take` of the step raises it
            error = raised
        end_s = perf_counter()
        cpu_s = thread_time() - start_cpu_s
        try:
            return MadeBatches(
                batches=batches,
                error=error,
                at_s=end_s,
                took_s=end_s - start_s,
                nbytes=sum(batch.nbytes for batch in batches),
                cpu_s=cpu_s,
            )
        finally:
            del error  # its traceback holds this frame: a cycle would wait for the garbage collector

    return make_and_measure


class _LazyBatches(Future[MadeBatches]):
    """Batches that are made when their result is requested."""

    def __init__(self, make: Callable[[], MadeBatches]) -> None:
        super().__init__()
        self._make = make

    def result(self, timeout: float | None = None) -> MadeBatches:
        """Return the batches. Raises immediately errors unrelated to the batch, such as KeyboardInterrupt."""
        if not self.done():
            result = self._make()
            if result.error is not None and not isinstance(result.error, Exception):
                raise result.error
            if self.set_running_or_notify_cancel():  # False if it was cancelled meanwhile
                self.set_result(result)
        return super().result(timeout)


class InlineExecutor:
    """Makes batches in the thread that takes them, and none ahead."""

    size = 0

    def __init__(self, make: Callable[[range], MadeBatches]) -> None:
        self._make = make

    def submit(self, steps: range) -> Future[MadeBatches]:
        return _LazyBatches(lambda: self._make(steps))

    def cancel(self, futures: Iterable[Future[MadeBatches]]) -> None:
        for future in futures:
            future.cancel()

    def retire(self) -> None:
        """Do nothing: there are no threads."""

    dismiss = abandon = retire

    def join(self, timeout_s: float | None = None) -> None: ...


class Prefetch:
    """Lets a maker make step, step + 1 ...; `take` delivers them in order.

    Finished and expected batches stay within `bound`, but each worker always makes one. A step's `take` raises its
    error, after the batches before it.
    """

    cpu_s = 0.0
    """CPU seconds that this process's threads spent on the delivered batches."""

    def __init__(
        self,
        maker: BatchMaker,
        bound: Bound,
        *,
        starts_at_second_request: bool = False,
    ) -> None:
        """Take batches from `maker`. starts_at_second_request: nothing is made ahead before the second `take`."""
        self._maker = maker
        self._retired: list[BatchMaker] = []
        self._bound = bound
        # At the second batch every rank of a training has its first. When 2,000 ranks made batches ahead before that,
        # a throttling store kept 61 of them from ever having it (simulated).
        self._starts_at_second_request = starts_at_second_request
        self._stride = Stride()
        self._each_bytes: int | None = None  # mean bytes of the last stride's batches; None before the first
        self._pending: deque[tuple[range, Future[MadeBatches]]] = deque()  # strides of consecutive steps
        self._ready: deque[Batch] = deque()  # batches of the steps before the pending ones
        self._ready_s = 0.0  # time at which they were ready
        self._error: BaseException | None = None  # of the step after the ready ones, if that failed
        self._failed_step = -1  # that step; -1 if there is no error
        self._dismissed = False
        # A loader that is dropped without `close` must leave no working thread or process.
        weakref.finalize(self, maker.abandon)

    def take(self, step: int, end: int | None) -> Batch:
        """Return a step's batch, and let the following ones be made up to `end`. Raises: the step's error."""
        start_s = perf_counter()
        is_at_hand = bool(self._ready) and self._ready[0].step == step
        only_this_step = self._starts_at_second_request
        self._starts_at_second_request = False
        if not is_at_hand:
            stop = end
            if only_this_step:
                stop = step + 1
            self._get_ready(step, stop)
        if only_this_step:  # begin anew: strides grow once reads ahead have begun
            self._each_bytes = None
            self._stride = Stride()
        batch = self._ready.popleft()
        if not is_at_hand and not only_this_step:
            following = step + 1 + len(self._ready)
            self._fill(following, end)
        if self._maker.size:
            batch.stats["handover_wait_seconds"] = max(0.0, start_s - self._ready_s)
        return batch

    @property
    def max_bytes(self) -> int:
        """Most bytes of batches made ahead: READY_STRIDES strides, and one in progress per worker."""
        if self._each_bytes is None or not self._bound.by_need:
            return self._bound.least
        needed = (READY_STRIDES + 1) * self._maker.size * self._stride.steps * self._each_bytes
        return max(self._bound.least, min(self._bound.most, needed))

    @property
    def batch_bytes(self) -> int | None:
        return self._each_bytes

    def unmade(self, step: int) -> int:
        """Return the first step from `step` on that no maker has yet."""
        if not self._pending:
            return step + len(self._ready)
        last_steps, _ = self._pending[-1]
        return last_steps.stop

    def drop(self) -> None:
        """Discard the batches made ahead."""
        # Replace the queue before the makers are asked to cancel: another thread may be in `take`.
        dropped = self._pending
        self._pending = deque()
        self._ready.clear()
        futures = [future for _, future in dropped]
        for maker in (self._maker, *self._retired):
            maker.cancel(futures)

    def move(self, maker: BatchMaker) -> None:
        """Let another maker make the steps that are not yet submitted."""
        self._maker.retire()
        self._retired.append(self._maker)
        self._maker = maker
        weakref.finalize(self, maker.abandon)

    def dismiss(self) -> None:
        self._dismissed = True
        for maker in (self._maker, *self._retired):
            maker.dismiss()

    def close(self, *, wait: bool = True) -> None:
        """Stop, discard unfinished batches, and end threads and processes. wait: True waits for their end."""
        self.dismiss()
        self.drop()
        for maker in (self._maker, *self._retired):
            if wait:
                maker.join()
            else:
                maker.abandon()

    def _get_ready(self, step: int, end: int | None) -> None:
        """Wait until the step's batch is the first of the ready ones. Raises: its error."""
        has_failed_already = self._failed_step == step and not self._ready
        if not has_failed_already:
            self._forget_error()
            self._make_ready(step, end)
        if self._ready:
            return
        self.drop()
        assert self._error is not None
        try:
            raise self._error  # never a local variable: its traceback holds this frame
        finally:
            self._forget_error()

    def _forget_error(self) -> None:
        self._error = None
        self._failed_step = -1

    def _make_ready(self, step: int, end: int | None) -> None:
        """Wait for the stride that begins with the step. Add its batches to the ready ones, and record its error.

        Called only if the step is not the first ready one.
        """
        has_other_steps_ready = bool(self._ready)
        has_other_steps_pending = bool(self._pending) and self._pending[0][0].start != step
        if has_other_steps_ready or has_other_steps_pending:
            self.drop()
            self._stride = Stride()  # random access gains nothing from larger strides
        self._fill(step, end)
        _, future = self._pending.popleft()
        try:
            result = self._await_result(future)
        except CancelledError:
            raise InvalidRuntime(
                "this Loader was closed while a batch was waited for", what="Loader", given="closed"
            ) from None
        except BaseException:
            self.drop()
            raise
        n_batches = len(result.batches)
        self._ready.extend(result.batches)
        self._ready_s = result.at_s
        if result.error is not None:
            self._error = result.error
            self._failed_step = step + n_batches
        if n_batches:
            self._each_bytes = result.nbytes // n_batches
            self._stride.adapt(n_batches, result.took_s, result.nbytes)
            self.cpu_s += result.cpu_s

    def _await_result(self, future: "Future[MadeBatches]") -> MadeBatches:
        """Return its result; raise CancelledError if `dismiss` came before it started."""
        while True:
            try:
                return future.result(WAKE_UP_S)
            except TimeoutError:
                if future.done():  # just now, or its result is a TimeoutError
                    return future.result()
                if self._dismissed and not future.running():
                    raise CancelledError from None

    def _fill(self, step: int, end: int | None) -> None:
        """Submit strides up to `end`, or as many as there is room for. step: the first if none is pending."""
        following = step
        if self._pending:
            following = self._pending[-1][0].stop
        while (end is None or following < end) and (n_steps := self._next_stride()):
            stop = following + n_steps
            if end is not None:
                stop = min(stop, end)
            steps = range(following, stop)
            self._pending.append((steps, self._maker.submit(steps)))
            following = stop

    def _next_stride(self) -> int:
        """Return the number of steps to submit now as a stride; 0 if enough are ahead."""
        stride = self._stride.steps
        n_workers = self._maker.size
        # Each worker makes one, whatever the bound, and another one waits for the first worker that is free.
        is_needed = len(self._pending) < n_workers + 1
        # The size of a batch is unknown before the first: decoded samples are many times their stored bytes.
        if self._each_bytes is None:
            if is_needed:
                return 1
            return 0
        each_bytes = max(1, self._each_bytes)
        free_bytes = self._free_bytes(each_bytes)
        if is_needed:
            return max(1, min(stride, free_bytes // each_bytes))

        # The others only fill the room that the bounds leave.
        if not n_workers:
            return 0
        n_ahead = len(self._ready) + sum(len(steps) for steps, _ in self._pending)
        most_ahead = MAX_AHEAD
        if self._bound.by_need:
            most_ahead = max(MAX_AHEAD, (READY_STRIDES + 1) * n_workers * stride)
        if n_ahead + stride > most_ahead or free_bytes < stride * each_bytes:
            return 0
        return stride

    def _free_bytes(self, each_bytes: int) -> int:
        """Return the bytes that the bound leaves, below 0 if it is exceeded. each_bytes: of a batch not yet made."""
        free_bytes = self.max_bytes - each_bytes * len(self._ready)
        for steps, future in self._pending:
            if not future.done():  # read once: it may be done a moment later
                free_bytes -= each_bytes * len(steps)
            elif not future.cancelled() and future.exception() is None:
                free_bytes -= future.result().nbytes
        return free_bytes
