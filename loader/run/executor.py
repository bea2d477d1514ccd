"""The maker of the batches: threads, worker processes, or the caller; and why. The bytes are the same.

Threads begin at once and share everything, but the interpreter's lock too: while the training computes in Python they
wait for it. Processes do not, but take half a second to start and have memory of their own. So `auto` begins with
threads, and goes over to processes in the middle of the run where it is measured that the training waits and computes
(docs/executors.md).
"""

import logging
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from functools import partial
from time import process_time, thread_time
from typing import TYPE_CHECKING, Literal

from ..cache.spec import CacheSpec
from ..cores import n_cores
from ..errors import InvalidRuntime
from ..lazy_imports import without_collector
from ..storage import is_local
from .ahead.thread_pools import ThreadPool
from .batch.batch import Batch
from .contention import Contention, better_processes, better_threads
from .making.assemble import Assembler
from .making.prefetch import BatchMaker, Made, Prefetch, making
from .metrics.metrics import Metrics

if TYPE_CHECKING:
    from .workers.pool import WorkerPool


class _Asked(Future[Made]):
    """Made when it is asked for."""

    def __init__(self, make: Callable[[], Made]) -> None:
        super().__init__()
        self._make = make

    def result(self, timeout: float | None = None) -> Made:
        """Return the batches. Raises: errors that are not the batch's, such as KeyboardInterrupt, at once."""
        if not self.done():
            made = self._make()
            if made.error is not None and not isinstance(made.error, Exception):
                raise made.error
            if self.set_running_or_notify_cancel():
                self.set_result(made)
        return super().result(timeout)


class InlineExecutor:
    """Makes what it is asked for in the thread that takes it, and nothing ahead."""

    size = 0

    def __init__(self, make: Callable[[range], Made]) -> None:
        self._make = make

    def submit(self, steps: range) -> Future[Made]:
        """Return the future batches of the steps, made once somebody asks."""
        return _Asked(lambda: self._make(steps))

    def cancel(self, futures: Iterable[Future[Made]]) -> None:
        """Cancel the steps that nobody asked for."""
        for future in futures:
            future.cancel()

    def retire(self) -> None:
        """Do nothing: nobody is there."""

    dismiss = abandon = retire

    def join(self, timeout_s: float | None = None) -> None:
        """Do nothing: nobody is there."""


logger = logging.getLogger(__name__)

Executor = Literal["auto", "threads", "processes"]
EXECUTORS = ("auto", "threads", "processes")
Workers = int | Literal["auto"]

PROCESSES = 8
"""Worker processes at most that `workers="auto"` starts, of the cores less the one that the training has. Each has
memory of its own; eight decode tens of thousands of photos per second, and every rank of a machine starts its own."""


class Execution:
    """Has batches made, ahead where there are workers. Not thread-safe, but for `close`.

    name: "threads", "processes", or "caller" with workers=0; why: in words; workers: threads or processes.
    """

    def __init__(
        self,
        assembler: Assembler,
        cache: CacheSpec,
        metrics: Metrics,
        *,
        executor: object,
        workers: Workers,
        bound_bytes: int,
    ) -> None:
        """Choose the first maker. Raises: InvalidRuntime; Unpicklable, with executor="processes"."""
        self._assembler, self._cache, self._metrics = assembler, cache, metrics
        self._asked, self._bound = workers, bound_bytes
        self.name, self.why = self._first(executor)
        self._may_go_over = executor == "auto" and self.name == "threads"
        local = all(is_local(view.version.shard_store) for view in assembler.recipe.views)
        self._may_be_fewer = workers == "auto" and self.name == "threads" and local
        self._least_threads = 0 if executor == "auto" else 1
        self._threads_made: int | None = None  # by what was seen
        self._contention = Contention() if self._may_go_over or self._may_be_fewer else None
        self._starting: WorkerPool | None = None  # of `auto`, until its workers are ready
        self._prefetch: Prefetch | None = None
        self._computed_s = 0.0

    @property
    def workers(self) -> int:
        return self._count(self.name)

    def batch(self, step: int, end: int | None) -> Batch:
        """Return the batch of a step, and begin those after it (below `end`). Raises: errors of making it."""
        return self.prefetch().take(step, end)

    def prefetch(self) -> Prefetch:
        """Return the prefetch that makes batches ahead."""
        if self._prefetch is None:
            makers: dict[str, Callable[[], BatchMaker]] = {
                "processes": self._processes,
                "threads": self._threads,
                "caller": self._caller,
            }
            self._prefetch = Prefetch(makers[self.name](), self._bound)
        return self._prefetch

    def asked(self) -> None:
        """Note that the training asks for a batch: its thread has computed since `handed`."""
        if self._contention is not None:
            self._computed_s = thread_time() - self._computed_s

    def handed(self, waited_s: float, busy_s: float) -> None:
        """Note that the training gets a batch that it waited for, after it had worked; perhaps go over to processes."""
        if self._contention is not None and self._contention.saw(waited_s, busy_s, self._computed_s):
            self._look(self._contention)
        if self._starting is not None:
            self._go_over(self._starting)
        if self._contention is not None:
            self._computed_s = thread_time()

    def close(self, *, wait: bool = True) -> None:
        """End all threads and processes; see `Prefetch.close`."""
        if self._starting is not None:
            self._starting.abandon()
            self._starting = None
        if self._prefetch is not None:
            self._prefetch.close(wait=wait)
            self._prefetch = None

    def _first(self, executor: object) -> tuple[str, str]:
        """Return (name, why) to begin with. Raises: InvalidRuntime; Unpicklable."""
        if executor not in EXECUTORS:
            raise InvalidRuntime(f"executor = {executor!r}; accepted: {', '.join(map(repr, EXECUTORS))}")
        if executor == "processes":
            if self._asked == 0:
                raise InvalidRuntime(
                    "workers = 0 with executor = 'processes'; at least 1, or 'auto', is needed"
                )
            with without_collector():
                from .workers.fork_server import prepare
                from .workers.pool import WorkerPool  # noqa: F401 - which is wanted next
                from .workers.startup_message import check_can_be_sent

            check_can_be_sent(self._assembler.recipe)
            prepare()  # it imports while the training does what else it has to
            return "processes", "asked for"
        if self._asked == 0:
            return "caller", "workers = 0"
        if executor == "threads":
            return "threads", "asked for"
        return "threads", "the training was not seen to wait for them while it computes"

    def _count(self, name: str) -> int:
        if name == "caller":
            return 0
        if self._asked != "auto":
            return self._asked
        if name == "processes":
            return min(max(1, n_cores() - 1), PROCESSES)
        return n_cores() if self._threads_made is None else self._threads_made

    def _threads(self) -> ThreadPool[range, Made]:
        return ThreadPool(
            making(self._assembler.batches), self._count("threads"), partial(self._metrics.observe, "room")
        )

    def _caller(self) -> InlineExecutor:
        return InlineExecutor(making(self._assembler.batches))

    def _processes(self) -> "WorkerPool":
        from .workers.pool import WorkerPool  # 15 ms, which threads do without

        workers = self._count("processes")
        cache = self._cache.shared_by(workers)
        return WorkerPool(self._assembler.recipe, cache, workers, self._bound, self._metrics)

    def _look(self, contention: Contention) -> None:
        """Start worker processes where they would be faster and can be had.

        Else have fewer threads where those would be, or the training's own.
        """
        seen = contention.look(self._metrics.snapshot(), process_time())
        if seen is None:
            return
        if self._may_go_over and self.name == "threads" and (why := better_processes(seen)) is not None:
            self._may_go_over = False
            from .workers.startup_message import why_not

            obstacle: object = why_not(self._assembler.recipe)
            if obstacle is None:
                try:
                    self._starting, self.why = self._processes(), why
                    self._contention = None
                    return
                except (OSError, InvalidRuntime) as error:
                    obstacle = error
            self._choose("threads", f"{why}; but processes are not to be had: {obstacle}")
        elif self._may_be_fewer and (better := better_threads(seen, self.workers, self._least_threads)):
            self._have_threads(*better)

    def _have_threads(self, threads: int, why: str) -> None:
        """Have so many threads from the first step that nobody has begun; none: the caller makes what it asks for."""
        self._least_threads = self._least_threads if self.workers else 1  # there and back once
        self._threads_made = threads
        self.prefetch().move(self._threads() if threads else self._caller())
        self._choose("threads" if threads else "caller", why)

    def _go_over(self, pool: "WorkerPool") -> None:
        """Go over to the worker processes, as soon as all are ready; not at all, if one never will be."""
        try:
            if not pool.poll():
                return
        except Exception as error:  # noqa: BLE001 - whatever it is, the threads go on as they did
            pool.abandon()
            self._choose("threads", f"{self.why}; but a worker process could not start: {error}")
        else:
            self.prefetch().move(pool)
            self._choose("processes", self.why)
        self._starting = None

    def _choose(self, name: str, why: str) -> None:
        self.name, self.why = name, why
        logger.info("batches are made by %d %s from now on: %s", self.workers, name, why)
