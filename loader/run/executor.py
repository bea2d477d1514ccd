"""Makers of batches: threads, worker processes, or the caller.

Threads start at once and share everything, including the interpreter's lock. Processes do not share it, but take half a
second to start and have their own memory.
"""

import logging
import weakref
from collections.abc import Mapping
from functools import partial
from time import process_time
from typing import TYPE_CHECKING, Literal

from ..cache.spec import CacheSpec
from ..cores import rank_cores, rank_memory_bytes, rank_processes
from ..errors import InvalidRuntime, Unpicklable
from ..keywords import check_word, whole_number
from ..storage import is_local, is_on_network
from .ahead.thread_pools import ThreadPool
from .batch.batch import Batch
from .contention import Contention, Measurement, decode_share
from .maker_choice import (
    COPYING_THREADS,
    DOMINANT_SHARE,
    MAX_CORES_FOR_THREADS,
    Maker,
    Room,
    better_maker,
    first_threads,
)
from .maker_text import TRAINING_THREAD, describe_ahead, describe_trials, maker_phrase
from .making.assemble import Assembler
from .making.prefetch import BatchMaker, Bound, InlineExecutor, Prefetch, making
from .metrics import Metrics
from .run_delay import process_delay_s

if TYPE_CHECKING:
    from .workers.pool import WorkerPool
    from .workers.script_values import ScriptValues
    from .workers.startup_message import SentValue

logger = logging.getLogger(__name__)

Executor = Literal["auto", "threads", "processes"]
EXECUTORS = ("auto", "threads", "processes")
Workers = int | Literal["auto"]

WORKERS_SHARE = 4
"""Worker processes get at most this rank's memory divided by WORKERS_SHARE."""
WORKER_BYTES = 150 * 2**20
"""A worker process's memory, besides its batches: Python, numpy, Arrow and a decoder."""


class Execution:
    """Runs the maker of batches, ahead of use if there are workers. Not thread-safe, except `dismiss` and `close`.

    name: "threads", "processes", or "caller" (workers=0). why: the reason as text. workers: number of threads or
    processes. has_copy_thread: True if not the training's thread takes the batches, but one that copies them to a
    device.
    """

    # What makes the batches if worker processes do not, how messages name it, and the option that chooses it.
    _fallback_maker = "threads"
    _fallback_phrase = "threads make"
    _fallback_option = "executor='threads'"
    _user_code = "the transform and the decoders run"

    def __init__(
        self,
        assembler: Assembler,
        cache: CacheSpec,
        metrics: Metrics,
        *,
        executor: object,
        workers: Workers,
        bound: Bound,
        has_copy_thread: bool = False,
    ) -> None:
        self._assembler = assembler
        self._cache = cache
        self._metrics = metrics
        self._workers_option: Workers = "auto"
        if workers != "auto":
            self._workers_option = whole_number("workers", workers, 0)
        self._bound = bound
        self._measure_share()  # sets _cores, _most_by_cores and _memory_bytes
        stores = [view.version.shard_store for view in assembler.recipe.stored.values()]
        # The kernel caches a network folder's pages, but each first read waits as a bucket's does.
        self._local = all(is_local(store) and not is_on_network(store) for store in stores)
        self._only_copies = assembler.recipe.copies  # nothing is decoded or transformed
        self._sent_bytes = 0  # to each worker process: the next line sets it for processes
        self.name, self.why = self._prepare_first_maker(executor, has_copy_thread=has_copy_thread)
        self.workers = self._count(self.name)
        self._prefetch: Prefetch | None = None
        self._step = -1  # of the newest requested batch

        # What `auto` may still change. If the user sets one of the two options, it changes the other one only.
        self._may_start_processes = False
        self._may_be_caller = executor == "auto" and workers == "auto"
        self._may_add_threads = self._only_copies
        self._contention: Contention | None = None
        if self.name == "threads" and "auto" in (executor, workers):
            self._may_start_processes = executor == "auto"
            self._contention = Contention(probed=executor == "auto")
            # Not the execution itself, which the probe's thread would keep alive.
            weakref.finalize(self, self._contention.end_probe)

        # Earlier makers, each with the seconds of the run that it served. _used_s counts them for the current one.
        self._trials: list[tuple[Maker, float]] = []
        self._used_s = 0.0

        # The worker processes that `auto` chose: while they start, with the reason; then the pool that makes batches.
        # Both are None if the user chose processes.
        self._starting: tuple[WorkerPool, str] | None = None
        self._pool: WorkerPool | None = None
        self._first_moved_step: int | None = None  # the first step that `_pool` makes
        # Values that the transform reads, compared before and while processes make the batches.
        self._script_values: ScriptValues | None = None

    def batch(self, step: int, end: int | None) -> Batch:
        """Return a step's batch. end: step before which no batch is made ahead; None if there is none."""
        self._step = step
        try:
            return self.prefetch().take(step, end)
        except Unpicklable as error:
            if self._pool is None:
                raise
            # Only `auto` chose processes: this process makes the batch after all.
            self._leave_processes(self._pool, str(error))
        except Exception as error:
            first_step = self._first_moved_step
            if first_step is not None and step >= first_step:
                error.add_note(
                    f"{self._user_code} in worker processes since step {first_step}, because {self.why}; "
                    f"{self._fallback_option} keeps them in this process"
                )
            raise
        return self.prefetch().take(step, end)

    def prefetch(self) -> Prefetch:
        """Return the batches made ahead. The first call starts the maker."""
        if self._prefetch is None:
            # Ranks that started after this loader was created take their part of the machine.
            if self.name != "caller" and self._workers_option == "auto":
                self._measure_share()
                self.workers = min(self.workers, self._count(self.name))
            self._prefetch = Prefetch(
                self._maker(), self._bound, starts_at_second_request=self.starts_at_second_request
            )
        return self._prefetch

    def batch_delivered(
        self,
        waited_s: float,
        busy_s: float,
        computed_s: float,
    ) -> None:
        """Note that training got a batch; perhaps change the maker.

        waited_s: seconds that training waited. busy_s, computed_s: seconds that it worked before, and its thread's CPU
        seconds.
        """
        self._used_s += waited_s + busy_s
        contention = self._contention
        if contention is not None:
            is_due = contention.add_step(waited_s, busy_s, computed_s)
            if is_due and self._starting is None:
                self._measure(contention)
        if self._starting is not None:
            self._switch_if_ready(*self._starting)
        if self.name == "processes" and self._script_values is not None:
            self._check_script(self._script_values)

    def _measure(self, contention: Contention) -> None:
        """Measure the run since the last time, and change the maker if another is faster."""
        metrics = self._metrics.snapshot()
        measurement = contention.measure(metrics, self.prefetch().cpu_s, process_time(), process_delay_s())
        if measurement is not None:
            self._choose(measurement)
            return
        # The first measurement only begins an interval. Prepare for processes, which later ones may choose.
        if not self._may_start_processes:
            return
        self._script_values = self._values_now()
        if self._expects_processes(metrics):
            from .workers.fork_server import prepare

            prepare()  # processes are likely: imports modules until the next measurement

    def _values_now(self) -> "ScriptValues | None":
        """Return the script's values that the user's code reads; None without a transform or decoders of the user's."""
        recipe = self._assembler.recipe
        if recipe.transform is None and not isinstance(recipe.decode, Mapping):
            return None
        from .workers.script_values import ScriptValues  # only for code of the user's

        return ScriptValues(recipe)

    def _check_script(self, values: "ScriptValues") -> None:
        """Go back to threads if the script changed a value that its transform reads."""
        change = values.change_if_due()
        if change is None:
            return
        self._script_values = None
        stale = f"{change}, and worker processes keep the earlier value"
        if self._pool is None:  # the user chose processes: keep them, and warn
            logger.warning("%s: store it as data, or use %s", stale, self._fallback_option)
            return
        self.prefetch().drop()  # made with the earlier value
        self._leave_processes(self._pool, stale)

    @property
    def starts_at_second_request(self) -> bool:
        """True if nothing is made ahead before the second batch is requested.

        Batches made ahead over a remote store delay the first one: all ranks start at once and share the store.
        """
        return not self._local

    def describe(self, caller: str = TRAINING_THREAD) -> str:
        """Return the maker of the batches, the reason, and the bytes made ahead.

        caller: name of the thread that takes the batches.
        """
        now = Maker(self.name, self.workers)
        lines = [f"batches are made by {maker_phrase(now, caller)}: {self.why}"]
        if self._contention is not None or self._trials:
            lines.append(describe_trials([*self._trials, (now, self._used_s)]))
        ahead = "none is made ahead"
        if self.name != "caller":
            ahead = describe_ahead(self._bound, self._prefetch)
        return "\n".join([*lines, ahead])

    def begin_copy_thread(self) -> None:
        """Prepare for a thread that takes the batches and copies them to a device."""

    def dismiss(self) -> None:
        """Start no more batches: a thread in `batch` returns soon. Does not wait. For any thread."""
        if self._prefetch is not None:
            self._prefetch.dismiss()

    def close(self, *, wait: bool = True) -> None:
        """End threads and processes. wait: False does not wait for their end."""
        self._end_measuring(wait=wait)
        if self._starting is not None:
            pool, _ = self._starting
            pool.abandon()
            self._starting = None
        if self._prefetch is not None:
            self._prefetch.close(wait=wait)
            self._prefetch = None

    def _prepare_first_maker(self, executor: object, *, has_copy_thread: bool) -> tuple[str, str]:
        """Return (the first maker's name, why). Raises: InvalidRuntime; Unpicklable for processes.

        For processes, start the server that forks them, and set `_sent_bytes`, which `_count` needs.
        """
        check_word("executor", executor, EXECUTORS)
        if executor == "processes":
            if self._workers_option == 0:
                message = "workers = 0 with executor = 'processes'; at least 1, or 'auto', is needed"
                raise InvalidRuntime(message, what="workers", given=0, accepted="at least 1, or 'auto'")
            from .workers.early_check import bytes_sent

            self._sent_bytes = bytes_sent(self._assembler.recipe)
            return "processes", "as requested"
        if self._workers_option == 0:
            return "caller", "workers = 0"
        if executor == "threads":
            return "threads", "as requested"
        return "threads", "they begin at once; `auto` measures if another maker is faster"

    def _count(self, name: str) -> int:
        """Return the number of workers of a maker."""
        if name == "caller":
            return 0
        if self._workers_option != "auto":
            return self._workers_option
        if name == "threads":
            return first_threads(self._cores, local=self._local, copies=self._only_copies)
        worker_bytes = WORKER_BYTES + self._sent_bytes
        most_by_memory = self._memory_bytes // WORKERS_SHARE // worker_bytes
        return max(1, min(self._most_by_cores, most_by_memory))

    def _measure_share(self) -> None:
        """Measure this rank's part of the machine, which other ranks make smaller when they start."""
        self._cores = rank_cores()
        self._most_by_cores = rank_processes()
        self._memory_bytes = rank_memory_bytes()

    def _maker(self) -> BatchMaker:
        """Start and return the maker that `name` and `workers` describe."""
        if self.name == "processes":
            self._script_values = self._values_now()
            return self._processes(self.workers)
        make = making(self._assembler.batches)
        if self.name == "caller":
            return InlineExecutor(make)
        return ThreadPool(make, self.workers, on_idle=partial(self._metrics.observe, "room"))

    def _processes(self, workers: int, values: "tuple[SentValue, ...]" = ()) -> "WorkerPool":
        from .workers.pool import WorkerPool  # 15 ms, not needed for threads
        from .workers.startup_message import StartupMessage

        cache = self._cache.shared_by(workers)
        message = StartupMessage.of(self._assembler.recipe, cache, values)
        return WorkerPool(message, workers, self._bound.least, self._metrics)

    def _choose(self, measurement: Measurement) -> None:
        """Change the maker if the measurement is a reason to. Processes take over later, once they have started."""
        now = Maker(self.name, self.workers)
        better = self._better_maker(measurement, now)
        if better is None:
            return
        maker, why = better
        if maker.name != "processes":
            # Once they left the caller, batches do not return to it.
            if self.name == "caller":
                self._may_be_caller = False
            # Go to more threads for a disk at most once. (For decoding, `_may_add_threads` is False anyway.)
            if maker.workers > COPYING_THREADS:
                self._may_add_threads = False
            self._move(*maker, why)
            return

        self._may_start_processes = False
        if self._contention is not None:
            self._contention.end_probe()
        self._measure_share()
        workers = min(maker.workers, self._count("processes"))
        obstacle = self._start_processes(workers, why)
        if obstacle is not None:
            self._set_reason(f"{why}; but worker processes cannot start: {obstacle}")
            # Without processes now: choose among the other makers.
            self._choose(measurement)

    def _better_maker(self, measurement: Measurement, now: Maker) -> tuple[Maker, str] | None:
        """Return (a better maker than `now`, why); None if `now` is as good as any."""
        return better_maker(measurement.locked, self._room(), measurement.stages, now)

    def _expects_processes(self, metrics: Mapping[str, float]) -> bool:
        return self._cores > MAX_CORES_FOR_THREADS and decode_share(metrics) >= DOMINANT_SHARE

    def _room(self) -> Room:
        """Return the makers that `auto` may choose now."""
        n_processes = 0
        if self._may_start_processes:
            n_processes = self._count("processes")
        return Room(
            cores=self._cores,
            processes=n_processes,
            threads=self._workers_option == "auto",
            local=self._local,
            caller=self._may_be_caller,
            more_threads=self._may_add_threads,
        )

    def _start_processes(self, workers: int, why: str) -> str | None:
        """Start a pool, which takes over once it is ready. Return the obstacle, if there is one."""
        from .workers.startup_message import why_not

        recipe_obstacle = why_not(self._assembler.recipe)
        obstacle = recipe_obstacle.text
        values = self._script_values
        if obstacle is None and values is not None:
            obstacle = values.obstacle() or values.change()
        if obstacle is None:
            self._sent_bytes = recipe_obstacle.sent_bytes
            workers = min(workers, self._count("processes"))  # now with the bytes that are sent
            obstacle = self._start_pool(workers, why)
        if obstacle is not None and not recipe_obstacle.is_usual:
            logger.warning(
                "%s the batches, though worker processes would be faster: %s", self._fallback_phrase, obstacle
            )
        return obstacle

    def _start_pool(self, workers: int, why: str) -> str | None:
        """Start a pool for `_switch_if_ready`. Return the error's text if that fails."""
        sent: tuple[SentValue, ...] = ()
        if self._script_values is not None:
            sent = self._script_values.sent()
        try:
            pool = self._processes(workers, sent)
        except (OSError, InvalidRuntime) as error:
            return str(error)
        # A loader that is dropped meanwhile must not leave the startup message in memory.
        weakref.finalize(self, pool.abandon)
        self._starting = (pool, why)
        return None

    def _switch_if_ready(self, pool: "WorkerPool", why: str) -> None:
        """Let a pool make the batches if its processes have started; abandon it if one could not."""
        try:
            if not pool.poll():
                return
        except Exception as error:  # noqa: BLE001 - whatever it is, the present maker goes on
            self._starting = None
            pool.abandon()
            logger.warning(
                "%s the batches, since a worker process could not start: %s", self._fallback_phrase, error
            )
            self._set_reason(f"{why}; but a worker process could not start: {error}")
            return
        self._starting = None
        self._end_measuring()
        self._pool = pool
        self._first_moved_step = self.prefetch().unmade(self._step + 1)
        self._move("processes", pool.size, why, pool)

    def _leave_processes(self, pool: "WorkerPool", obstacle: str) -> None:
        """Let this process make the batches for the rest of the run, in place of a pool that `auto` chose."""
        logger.warning("%s the batches from now on: %s", self._fallback_phrase, obstacle)
        self._pool = None
        self._first_moved_step = None
        self._script_values = None
        n_workers = self._count(self._fallback_maker)
        self._move(self._fallback_maker, n_workers, f"worker processes were faster, but {obstacle}")
        pool.abandon()

    def _move(
        self,
        name: str,
        workers: int,
        why: str,
        maker: BatchMaker | None = None,
    ) -> None:
        """Let another maker make the batches that no maker has yet. If it is the current one, only set the reason.

        maker: the maker itself if it has started already; None starts it.
        """
        before = Maker(self.name, self.workers)
        now = Maker(name, workers)
        self.name = name
        self.workers = workers
        if before != now:
            self._trials.append((before, self._used_s))
            self._used_s = 0.0
            self.prefetch().move(maker or self._maker())
        self._set_reason(why)

    def _set_reason(self, why: str) -> None:
        self.why = why
        maker = Maker(self.name, self.workers)
        logger.info("batches are made by %s from now on: %s", maker_phrase(maker), why)

    def _end_measuring(self, *, wait: bool = False) -> None:
        if self._contention is not None:
            self._contention.end_probe(wait=wait)
            self._contention = None
