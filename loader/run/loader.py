"""`Loader`: runs a plan for one rank, as an iterator of batches."""

import os
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import replace
from threading import Lock
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TextIO

from ..cache.spec import CacheSpec, cache_spec
from ..dataset.root import Root
from ..errors import InvalidRuntime, Unpicklable
from ..keywords import LOADER_WORDS, check_word, explains
from ..order.plan import Plan
from ..storage.threads import DaemonPool
from .ahead.thread_pools import range_threads
from .batch.batch import Batch, SlowSample
from .batch.frameworks import FRAMEWORKS
from .executor import Execution, Executor, Workers
from .ledger import Budget, open_ledger
from .making.assemble import Assembler
from .making.prefetch import prefetch_bound
from .metrics import Metrics, Status, StepTiming, show_progress
from .recipe.decode import ByBucket, Decode, Transform
from .recipe.recipe import Recipe, bounds, run_length
from .recipe.world import World, check_micro_batch, count_micros, micro_count

if TYPE_CHECKING:
    from .device.stage import Delivery
    from .trail.recorder import Recorder, RunRecorder
    from .trail.trail import Trail

Framework = Literal["torch", "numpy", "jax"]
ON_CORRUPT = ("substitute", "raise")


class Loader:
    """Iterates over a plan's batches for one rank. All arguments are runtime settings: none changes the plan.

    A store that does not respond always raises an error, and so does a transform that fails.

    Args: The part of this process
        plan: The plan whose batches are made.
        rank: Data-parallel rank, a number or a whole `World`; None, with `world_size`, reads the launcher's environment
            (`World.from_env`). With tensor, context or pipeline parallelism pass `World.of_mesh(mesh, "dp")`: all
            processes of a group get the same batches.
        world_size: Number of data-parallel ranks; None with `rank=None` or a `World`.

    Args: The content of a batch
        decode: True, False (bytes) or {field: decoder}. May differ by bucket: `loader.by_bucket`.
        transform: `(sample, rng) -> sample`, called by several threads at once. `rng` is keyed by (seed, source, epoch,
            ordinal). May differ by bucket: `loader.by_bucket`.
        framework: "torch", "numpy" or "jax": the library whose arrays a batch holds.
        micro_batch: Most samples in one micro batch (`Batch.micro_batches`); None delivers each step's part whole.
            Every rank gets the same number of micro batches. Steps stay optimizer steps; a state saved between two
            micro batches repeats the step.
        device: Device to which a thread copies batches ahead of the training: "cuda", "cuda:1", a `torch.device`; for
            jax also a `jax.Device` or a sharding. Two batches are ready there. Strings, bytes and numpy arrays stay on
            the host; with None, everything does.

    Args: The end
        steps: Global step to stop before; None for no such bound. Without `steps` and `epochs` the loader is endless.
        epochs: Epochs to stop after, the last batch padded; None for no such bound. Needs a plan with one source and
            without buckets.

    Args: Speed
        executor: "threads" in this process or worker "processes"; both make the same batches. "auto" starts with
            threads (for a dataset, with the caller's), and starts processes if the first batches show that they are
            faster. `executor_reason` has the reason (docs/throughput.md), `describe` the makers that it tried.
        workers: Number of threads or processes; 0 uses the caller's thread. "auto" uses at most four threads for
            samples on this machine, two if samples are only copied, and one process per core in this rank's share.
        prefetch: Bytes of batches made ahead. None sizes it by need: two ready for each worker, at least 64 MiB and at
            most a 32nd of this rank's memory (`describe`).
        cache: Where reads from remote roots are cached and read ahead (docs/stores.md). A number is bytes of memory, 0
            for no cache; None is 1 GiB of memory at most. A folder on a local disk or a `loader.NodeCache` serves every
            process on this machine.

    Args: Corrupt samples
        on_corrupt: "substitute" replaces a sample whose checksum or decoder fails twice, and records it in the rank's
            ledger (`read_ledger`); "raise" stops.
        corrupt_budget: Largest share of the rank's samples that may be substituted.
        ledger: Root that keeps the ledger; None is the data's root. Needed if this job may not write to that root.

    Args: The record of a run
        trail: `loader.Trail` that records the code and each step (docs/training.md); None records nothing.

    Raises: InvalidRuntime for wrong arguments, or a missing device; Unpicklable for code that workers cannot receive.
    """

    plan: Plan
    """The plan whose batches are made."""
    world: World
    """Rank and world size of this process."""

    @explains(LOADER_WORDS)
    def __init__(
        self,
        plan: Plan,
        rank: int | World | None = None,
        world_size: int | None = None,
        *,
        decode: Decode = True,
        transform: Transform | ByBucket | None = None,
        framework: Framework = "torch",
        workers: Workers = "auto",
        executor: Executor = "auto",
        prefetch: int | None = None,
        cache: CacheSpec | str | os.PathLike[str] | int | None = None,
        epochs: int | None = None,
        steps: int | None = None,
        micro_batch: int | None = None,
        device: Any = None,
        on_corrupt: Literal["substitute", "raise"] = "substitute",
        corrupt_budget: float = 1e-4,
        ledger: Root | None = None,
        trail: "Trail | RunRecorder | None" = None,
    ) -> None:
        check_word("framework", framework, FRAMEWORKS)
        check_word("on_corrupt", on_corrupt, ON_CORRUPT)
        self._budget = Budget(corrupt_budget)
        self.plan = plan
        self._end, position_limit = bounds(plan, epochs, steps)
        self.world = World.of(rank, world_size)
        recipe = Recipe(
            plan=plan,
            world=self.world,
            decode=decode,
            transform=transform,
            framework=framework,
            position_limit=position_limit,
            substitute=on_corrupt == "substitute",
        )
        self._ledger = open_ledger(plan, self.world, recipe.stored, ledger, trail)
        self._metrics = Metrics(plan.source_names)
        self._status = Status()
        self._timing = StepTiming()
        self._framework = framework
        self._began_on_jax_device = device is not None and framework == "jax"
        host_recipe = recipe
        if self._began_on_jax_device:
            # As JAX's arrays, worker threads would first copy them to its default device.
            host_recipe = replace(recipe, framework="numpy")
        self._read_threads, parallel_map = range_threads(plan)
        spec = cache_spec(cache)
        self._assembler = Assembler(host_recipe, self._metrics, parallel_map, spec, end=self._end)
        self._execution = _execution_class(recipe)(
            self._assembler,
            spec,
            self._metrics,
            executor=executor,
            has_copy_thread=device is not None,
            workers=workers,
            bound=prefetch_bound(prefetch),
        )
        # A loader that is dropped without `close` must leave no reading threads.
        weakref.finalize(self, _dismiss, self._assembler, self._read_threads)
        self._step = plan.first_step
        self._next_lock = Lock()
        self._micro_batch: int | None = None
        if micro_batch is not None:
            self._micro_batch = check_micro_batch(plan, self.world, micro_batch)
        self._remaining_micros: list[Batch] = []  # micro batches that the current step still has
        self._trail = trail
        if trail is None:
            self._recorder = None
        else:
            self._recorder = self._open_recorder(trail, recipe, epochs)
        self._delivery = self._open_delivery(device)
        self._closed = False
        self._pid = os.getpid()

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __reduce__(self) -> NoReturn:
        message = (
            "a Loader has threads and open files, and cannot be copied or sent to another process: send the plan, and "
            "make the Loader there; in torch's DataLoader use loader.torch_dataset(plan)"
        )
        raise Unpicklable(message, what="Loader", accepted="its plan")

    def __next__(self) -> Batch:
        self._check_usable()  # before the lock: in a forked child it may never be released
        with self._next_lock:  # threads that share a loader get different batches
            return self._next()

    def _next(self) -> Batch:
        self._check_usable()  # again: close may have run while this thread waited for the lock
        if self._remaining_micros:
            return self._next_micro()
        if self._end is not None and self._step >= self._end:
            raise StopIteration
        self._timing.request()
        crcs = None
        if self._delivery is not None:
            on_device = self._delivery.take(self._step, self._end)
            batch = on_device.batch
            crcs = on_device.crcs
        else:
            batch = self._execution.batch(self._step, self._end)
            if self._recorder is not None:
                crcs = self._recorder.checksums(batch)
        self._record_substitutions(batch)
        ledger_name = ""  # for the budget's error
        if batch.substitutions:
            ledger_name = self._ledger.name(batch.substitutions)
        self._budget.spend(int(batch.stats["samples"]), batch.substitutions, ledger_name)
        # Inline, as each call here is one more for every batch (tests/run/test_counts.py).
        waited_s, busy_s, computed_s = self._timing.receive()
        batch.wait_s = waited_s
        batch.stats["consumer_wait_seconds"] = waited_s
        self._metrics.consumed(batch, busy_s)
        report_delivery = self._execution.batch_delivered
        if self._delivery is not None:
            report_delivery = self._delivery.batch_delivered
        report_delivery(waited_s, busy_s or 0.0, computed_s)  # busy_s is None for the first batch
        if self._recorder is not None:
            self._recorder.add_step(batch, crcs)
        self._remaining_micros = [batch]
        if self._micro_batch is not None:
            size = self.plan.batch_size(self._step)
            n_micros = micro_count(size, self.world.world_size, self._micro_batch)
            self._remaining_micros = batch.micro_batches(n_micros)
        self._timing.deliver()
        return self._next_micro()

    def _next_micro(self) -> Batch:
        """Return the next micro batch. The step is done with its last one: a state between two repeats the step."""
        micro = self._remaining_micros.pop(0)
        if self._recorder is not None:
            self._recorder.micro_batch_delivered(micro)
        if micro.last_micro:
            self._step += 1
        return micro

    def on(self, device: Any) -> "Loader":
        """Deliver batches on a device from now on, as with the argument `device`.

        None delivers them on the host, or on JAX's default device if this loader began with a device for jax.
        Returns this loader: `for batch in batches.on(accelerator.device)`. Raises: InvalidRuntime.
        """
        self._check_usable()
        delivery = self._open_delivery(device)
        with self._next_lock:
            if self._delivery is not None:
                self._delivery.end()
            self._delivery = delivery
        return self

    @property
    def step(self) -> int:
        """The global step of the next batch or micro batch."""
        return self._step

    @property
    def end(self) -> int | None:
        """The global step after the last one, from `steps` and `epochs`; None for an endless run."""
        return self._end

    def __bool__(self) -> bool:
        return True  # without this method, bool(loader) calls __len__, which raises for an endless run

    def __len__(self) -> int:
        """Return the run's steps, or its micro batches with `micro_batch`. Raises: TypeError for an endless run."""
        end = run_length(self._end)
        if self._micro_batch is None:
            return end
        return count_micros(self.plan, end, self.world.world_size, self._micro_batch)

    @property
    def workers(self) -> int:
        """Number of threads or processes that make batches; 0 for the caller's thread."""
        return self._execution.workers

    @property
    def executor(self) -> str:
        """Maker of the batches: "threads", "processes" or "caller" (workers=0, datasets). `auto` may change it."""
        return self._execution.name

    @property
    def executor_reason(self) -> str:
        """Reason for the executor, as text."""
        return self._execution.why

    def describe(self) -> str:
        """Return the maker of the batches, the reason, and the bytes made ahead, for a log."""
        if self._delivery is None:
            return self._execution.describe()
        return f"{self._execution.describe('the copy thread')}\n{self._delivery.describe()}"

    def batch_at(self, step: int) -> Batch:
        """Return this rank's whole part of any step; the iteration's position does not change.

        Substitutions are recorded, but do not count against the budget. Raises: InvalidRuntime, also after the last
        epoch.
        """
        self._check_usable()
        batch = self._assembler.batch(self.plan.checked_step(step), alone=True)
        self._record_substitutions(batch)
        if self._delivery is None:
            return batch
        return self._delivery.moved(batch)

    def seek(self, step: int) -> None:
        """Continue with this step's batch, which may be an earlier one. Raises: InvalidRuntime."""
        self._step = self.plan.checked_step(step)
        self._remaining_micros = []

    def note(self, *, per_sample: Mapping[str, Any] | None = None, **values: Any) -> None:
        """Record metrics for the last delivered step in the run log: `note(loss=loss, per_sample={"loss": losses})`.

        A number may be an array or tensor without dimensions, also on a device: the call does not wait for it.

        per_sample: Name -> a number for each slot of the last delivered batch. The step's 16 largest are kept with
            their slots, NaN first; padding is left out.

        A second value for a name replaces the first. Raises: InvalidRuntime.
        """
        self._check_usable()
        if self._trail is None:
            message = "note() without a trail: Loader(plan, trail=loader.Trail(root, run=...)) keeps one"
            raise InvalidRuntime(message, what="note", accepted="Loader(trail=)")
        if self._recorder is not None:
            self._recorder.note(values, per_sample or {})

    def state_dict(self) -> dict[str, Any]:
        """Return the position as a few hundred bytes of JSON, the same on every rank.

        Save it after the optimizer step that used the last delivered batch; batches made ahead are not included. Waits
        until the ledger is stored. Raises: StoreError if that fails.
        """
        self._ledger.flush()
        if self._recorder is not None:
            self._recorder.flush()
        return self.plan.state(self._step)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state`, at any world size. Raises: PlanMismatch naming the difference."""
        self._step = self.plan.check_state(state)
        self._remaining_micros = []

    def metrics(self) -> dict[str, float]:
        """Return counters, rates and wait histograms since the start, named as in docs/throughput.md.

        For single steps see `batch.stats`.
        """
        return self._metrics.snapshot()

    def metrics_text(self) -> str:
        """Return the metrics for Prometheus (text exposition format 0.0.4), labelled with rank and source."""
        from .metrics_text import exposition

        return exposition(self._metrics.totals(), rank=self.world.rank, step=self._step)

    def slowest(self) -> list[SlowSample]:
        """Return the slowest sample, with its address, from each of the 16 steps with the longest waits."""
        return self._metrics.slowest()

    def status_line(self) -> str:
        """Return step, throughput, waits and bottleneck since the previous line, for a log or a terminal."""
        ahead = self._delivery is not None or self.executor != "caller"
        return self._status.line(self._step, self.metrics(), executor=self.executor, ahead=ahead)

    def with_status(self, stream: TextIO | None = None) -> Iterator[Batch]:
        """Return the batches. If `stream` (stderr) is a terminal, write the status line to it twice a second."""
        return show_progress(self, self.status_line, stream)

    def close(self) -> None:
        """Store the ledger, and end the loader's threads and processes; stores stay open. Raises: StoreError."""
        self._stop(wait=True)

    def __enter__(self) -> "Loader":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # Ctrl-C ends training at once, even if a store does not respond or a decoder hangs.
        self._stop(wait=kind is None or issubclass(kind, Exception))

    def _stop(self, *, wait: bool) -> None:
        """Close everything. wait: False leaves threads that may hang in a store or a decoder."""
        self._closed = True
        if os.getpid() != self._pid:
            return  # threads and workers are the parent's; a lock that one held at the fork stays locked
        if self._delivery is not None:
            self._delivery.close(wait=wait)  # first: it takes batches from the execution
        self._execution.close(wait=wait)  # before the assembler and the threads that its makers read with
        if wait:
            self._assembler.close()
        else:
            self._assembler.dismiss()
        if self._read_threads is not None:
            self._read_threads.shutdown(wait=wait, cancel_futures=True)
            self._read_threads = None
        if self._recorder is not None:
            self._recorder.loader_closed(wait=wait)
        self._ledger.close()

    def _open_recorder(
        self, trail: "Trail | RunRecorder", recipe: Recipe, epochs: int | None
    ) -> "Recorder | None":
        from .trail.recorder import begin_recorder  # only for runs with a run log

        recorder = begin_recorder(trail, recipe, epochs)
        if recorder is not None:
            weakref.finalize(self, recorder.loader_dropped)
        return recorder

    def _open_delivery(self, device: Any) -> "Delivery | None":
        # Such a loader's batches are numpy's, so on(None) then means JAX's default device.
        if device is None and not self._began_on_jax_device:
            return None
        from .device.stage import Delivery, device_backend

        backend = device_backend(device, self._framework, default=self._began_on_jax_device)
        if backend is None:
            return None
        self._execution.begin_copy_thread()
        delivery = Delivery(backend, self._execution, self._recorder, self._metrics)
        weakref.finalize(self, delivery.abandon)
        return delivery

    def _record_substitutions(self, batch: Batch) -> None:
        # Also without any: the ledger raises the error of an earlier write.
        self._ledger.write(batch.substitutions)
        if batch.substitutions:
            slots = {substitution.slot for substitution in batch.substitutions}
            self._metrics.count("substituted", len(slots))

    def _check_usable(self) -> None:
        if self._closed:
            raise InvalidRuntime("this Loader is closed; make a new one", what="Loader", given="closed")
        if os.getpid() != self._pid:
            raise InvalidRuntime(
                f"this Loader was made in process {self._pid}, which forked this one; its threads are not here. Make "
                "the Loader in the child, or start workers by spawn"
            )


def _execution_class(recipe: Recipe) -> type[Execution]:
    if not recipe.has_items:
        return Execution
    from .item_execution import ItemExecution  # only for datasets

    return ItemExecution


def _dismiss(assembler: Assembler, pool: DaemonPool | None) -> None:
    assembler.dismiss()
    if pool is not None:
        pool.shutdown(wait=False)
