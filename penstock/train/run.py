"""`Run`: one start of a training, in one of its processes. All ranks stop after the same step, and go on from it."""

import atexit
import logging
from collections.abc import Callable, Collection, Generator, Iterable, Sequence
from functools import partial
from importlib.util import find_spec
from time import perf_counter
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

import loader
from loader.errors import InvalidRuntime, MissingDependency
from loader.run.trail.trail import check_run_name

from ..checkpoints.ranks import from_all_ranks, from_first_rank
from ..checkpoints.restore import load_newest
from ..checkpoints.run_checkpoints import plan_versions
from ..units import elapsed_us, utc_us
from .agreement import Agreement, begin_group, collective_device, default_group, leave_group
from .batch_source import BatchSource, batch_source, is_end_of_iterator
from .hang import HangWatch
from .intervals import DUE, NO_RECORD, RECORD, Intervals
from .launched import Launched, await_device, rank_device, share_nodes
from .record_writer import FaultRecord, RunRecord
from .replay_run import load_origin, rank_replay
from .run_folder import RunFolder
from .step_file import StepFile
from .step_trace import StepTrace, check_record
from .stop import Stop, StopRequests, run_end
from .trackers.run_trackers import RunTrackers

if TYPE_CHECKING:
    from ..checkpoints import Checkpoints

_log = logging.getLogger(__name__)
AGAIN = 75
"""Exit status of a run that its launcher begins again: EX_TEMPFAIL of sysexits.h."""
T = TypeVar("T")


class Run:
    """One start of a training, as a context. `joined` makes it.

    Raises SystemExit(75) at the end of the context if the run stopped before its last step, so that the launcher begins
    it again. A run that a person stopped ends as a finished one.
    """

    name: str
    """Name of the run: of its checkpoints, its trail and its record."""
    world: "loader.World"
    """Rank and number of the processes; the second argument of `loader.Loader`."""
    attempt: int
    """Number of this start, from 0 on."""
    device: Any
    """`torch.device` of this process: its GPU, or the CPU."""

    def __init__(self, launched: Launched, name: str, checkpoints: str | None, record: str | None) -> None:
        self.name = check_run_name(name)
        self.world = launched.world
        self.attempt = launched.attempt
        self._launched = launched
        self._checkpoints = checkpoints
        self._record = record
        self._requests = StopRequests()
        self._hang = HangWatch()
        self._stopped = Stop.NO
        self._finished = False  # True once the batches ended, or the script left the loop by itself
        self._ended_early = False  # True once the run stops before its last step
        self._is_context = False  # True in a `with` block, whose end ends the run
        self._is_closed = False
        self._keeps_trail = False  # True once the script asked for this rank's trail
        self._batches: BatchSource | None = None
        self._save_s = 0.0
        self._events: RunRecord | None = None  # of the first rank, if the run has a record
        self._trackers: RunTrackers | None = None
        self._step = -1  # of the batch handed out last
        self._steps_done = 0
        self._step_begun_s = 0.0  # clock at the begin of the step, or of the wait for the first batch
        self._traces: RunRecord | None = None  # of a rank that is profiled; on the first rank, `_events`
        self._faults: FaultRecord | None = None
        self._interval = NO_RECORD  # or RECORD or DUE: the greatest value that the ranks exchanged
        self._step_file = StepFile(launched.step_file)
        self._replay = None if launched.replay is None else rank_replay(*launched.replay)

    @staticmethod
    def joined(
        *,
        name: str = "alone",
        checkpoints: str | None = None,
        record: str | None = None,
        trackers: Sequence[str] = (),
    ) -> "Run":
        """Return this process's part of the run that its launcher began.

        Joins the default process group, or begins it (nccl with a GPU, else gloo) where there are several ranks.
        Listens to SIGTERM, SIGUSR1 and Ctrl-C from now on. The second Ctrl-C raises KeyboardInterrupt.

        name, checkpoints, record: Name of the run, root of its checkpoints, and root of its trail, unless the launcher
            names others.
        trackers: Names of experiment trackers, unless the launcher names others: "mlflow", "wandb", "tensorboard".

        Raises: InvalidRuntime for an environment that names no meeting point of several ranks, or an unknown tracker.
        InvalidName. MissingDependency if torch or a tracker's package is missing.
        """
        if find_spec("torch") is None:
            raise MissingDependency("Run needs torch: pip install 'penstock-data[torch]'")
        launched = Launched.from_env()
        run = Run(
            launched, launched.name or name, launched.checkpoints or checkpoints, launched.record or record
        )
        names = launched.trackers or tuple(trackers)
        if names and run.world.rank == 0 and run._replay is None:
            run._trackers = RunTrackers(names, run.name, run._record, run._checkpoints)
        run._requests.listen()
        try:
            run._join()
        except BaseException:
            run._requests.close()
            raise
        return run

    def _join(self) -> None:
        self.device = rank_device(self._launched)
        self._own_group = begin_group(self._launched, self.device)
        device = collective_device(self.device)
        self._agreement = Agreement(device)
        share_nodes(self._launched.node)
        if self._record is not None and self.world.rank == 0:
            store = loader.Root(self._record).store
            self._requests.watch(RunFolder(store, self.name))
            self._events = RunRecord(store, self.name, self._launched.facts())
            self._events.code()
            self._events.event("ranks_up", 0)
        put = None if self._events is None else self._events.interval
        self._intervals = Intervals(self.world.rank, self._launched.node, device, put)
        if self._record is not None:
            facts = {"node": self._launched.node, "attempt": self.attempt + 1, "rank": self.world.rank}
            self._faults = FaultRecord(self._record, self.name, facts)

    def _event(self, name: str, step: int, **facts: Any) -> None:
        if self._events is not None:
            self._events.event(name, step, **facts)

    def __repr__(self) -> str:
        rank = f"rank {self.world.rank} of {self.world.world_size}"
        return f"Run({self.name!r}, {rank}, attempt {self.attempt})"

    @property
    def checkpoints(self) -> str:
        """Root of the checkpoints, for `Checkpoints(run.checkpoints, run.name)`. Raises: InvalidRuntime without one."""
        if self._checkpoints is None:
            raise InvalidRuntime(
                "the run has no place for checkpoints: Run.joined(checkpoints=URL), or `checkpoints` of its TOML file"
            )
        return self._checkpoints

    def first(self, call: Callable[[], T]) -> T:
        """Return the result of the call on the first rank, on every rank. Raises: its error there, on every rank.

        Make the plan this way: one rank opens the root, and the others get the plan of some kilobytes. If 10,000 ranks
        open a root at once, the store refuses many of them.
        """
        return from_first_rank(call, default_group())

    def node_cache(self, path: str, **options: Any) -> "loader.NodeCache":
        """Return the cache of all nodes' disks, for `Loader(plan, cache=...)`, with a server on each node.

        Every rank calls it. path: folder on each node's own disk. options: of `loader.NodeCache`, without `peers`.

        Raises: InvalidRuntime on every rank if a node's server does not come up.
        """
        from loader.cache.peers.training_nodes import join_nodes

        return join_nodes(loader.NodeCache(path=path, **options), self.world.rank, from_all_ranks)

    def trail(self, **options: Any) -> "loader.Trail | None":
        """Return where this rank keeps its trail, for `Loader(plan, trail=...)`.

        None without a record, or if this rank keeps none.

        options: options of `loader.Trail`; without `ranks` only the first rank keeps one.
        """
        ranks = options.get("ranks", "first")
        kept = ranks == "all" or (self.world.rank == 0 if ranks == "first" else self.world.rank in ranks)
        if self._record is None or not kept:
            return None
        self._keeps_trail = True
        return loader.Trail(loader.Root(self._record), self.name, **options)

    def stopping(self) -> bool:
        """Return whether the run is about to stop, in a loop between two steps, such as an evaluation.

        Every rank calls it equally often: it exchanges values as a step does. Then leave the loop; `steps` saves.
        """
        self._hang.arm()
        return self._exchange(lambda: NO_RECORD) is not Stop.NO

    def ask_to_stop(self) -> None:
        """Let all ranks save and leave after one of the next steps, as a signal to this rank does. Thread-safe."""
        self._requests.ask()

    def _exchange(self, interval: Callable[[], int], step_s: float | None = None) -> Stop:
        """Return what the ranks agreed on; once it is to stop, nothing is exchanged any more."""
        if self._faults is not None:
            self._faults.step()
        if self._stopped is Stop.NO:
            greatest = self._agreement.exchange(lambda: (self._requests.stop, interval()), step_s)
            if greatest is not None:
                stop, interval_state = greatest
                self._stopped = Stop(stop)
                self._interval = max(self._interval, interval_state)
        return self._stopped

    def steps(
        self,
        batches: "BatchSource | Iterable[loader.Batch]",
        saved: "Checkpoints | None" = None,
        state: dict[str, Any] | None = None,
        *,
        save_every: int = 0,
        profile: tuple[int, int] | None = None,
        profile_ranks: Collection[int] = (0,),
    ) -> Generator["loader.Batch", None, None]:
        """Yield the batches from the newest checkpoint on, until the last one, or until the run stops.

        batches: `loader.Loader`, `follow`, `online` or `torch_dataset`, also through a DataLoader and `loader.on`.
        saved, state: Checkpoints, and what they hold, as `Checkpoints.save` takes it. The newest one is loaded first. A
            checkpoint is written after the last step, and before the run stops.
        save_every: Steps from one checkpoint to the next, beside the training; 0 saves none in between.
        profile: (first step, step after the last) of torch.profiler's trace, which `profile_ranks` put into the record.

        All ranks leave after the same step. Raises: InvalidRuntime; what `Checkpoints.load` and `save` raise.
        """
        trace = self._rank_trace(profile, profile_ranks)
        source = batch_source(batches)
        saved = self._restore(saved, state or {}, source)
        end = source.end if self._replay is None else self._replay.end
        self._batches = source
        self._finished = False  # also after another loop of this run
        first = newest = self._steps_done = source.step
        if self._stops_early(first):
            return
        self._step_begun_s = perf_counter()
        try:
            for batch in source if trace is None else trace.batches(source):
                self._intervals.batch(batch)
                if source.step - batch.last_micro == first and batch.micro == 0:
                    self._note_first_batch(source, first)
                self._step = batch.step
                yield batch
                if not batch.last_micro:
                    continue
                step = source.step
                last = step == end
                stop = self._finish_step(step, last=last)
                if saved is not None and (stop or last or (save_every and step % save_every == 0)):
                    newest = self._save(saved, step, state or {}, source, wait=stop or last)
                if saved is not None and not (stop or last):
                    saved.save_near(step, state or {}, source, on_failed=partial(self._event, "near_failed"))
                if stop and not last:
                    self._leave_step(step, saved=newest == step)
                    return
                self._hang.warn_of_grace(self._save_s, self._launched.grace_s)
                if last and self._replay is not None:
                    break  # its loader goes on
            self._end_of_batches(source, end, saved, state or {}, newest)
        except GeneratorExit:
            self._finished = self._stopped is Stop.NO  # the script left the loop by itself
            raise
        finally:
            self._hang.disarm()
            if trace is not None:
                trace.close(source.step)

    def _end_of_batches(
        self,
        source: BatchSource,
        end: int | None,
        saved: "Checkpoints | None",
        state: dict[str, Any],
        newest: int,
    ) -> None:
        """Finish, or save and leave if `loader.online` waited for rollouts and the run stops. newest: saved step."""
        step = source.step
        if self._stopped is Stop.NO or step == end:
            self._finished = True
            self._event("ended", step)
            return
        if saved is not None and newest != step:
            newest = self._save(saved, step, state, source, wait=True)
        self._leave_step(step, saved=newest == step)

    def _stops_early(self, first: int) -> bool:
        """Return whether a person stopped the run, or a signal came, before its first step."""
        self._requests.await_first_check()
        # Two exchanges: each returns the values of the one before.
        stop = any(self._exchange(lambda: NO_RECORD) is not Stop.NO for _ in range(2))
        if not self._is_context:
            atexit.register(self.__exit__, None, None, None)
        if stop:
            self._end_early(first)
        return stop

    def _leave_step(self, step: int, *, saved: bool) -> None:
        _log.warning("%r stops after step %d", self, step)
        if not saved:
            _log.warning("%r saved nothing: it begins again at its last checkpoint", self)
        self._end_early(step)

    def _end_early(self, step: int) -> None:
        self._ended_early = True
        self._event("stopped", step)
        if not self._is_context:  # otherwise the script would end as after its last step
            self.__exit__(None, None, None)

    def _finish_step(self, step: int, *, last: bool) -> bool:
        """Count a step, exchange what all ranks are to do after it, and return whether they leave."""
        now_s = perf_counter()
        took_s = now_s - self._step_begun_s
        self._step_begun_s = now_s
        self._steps_done = step
        self._step_file.write(step)
        self._hang.step(took_s)
        self._intervals.step(took_s)
        stop = self._exchange(self._intervals.offer, self._hang.steady_median_s) is not Stop.NO
        if self._interval == DUE or (self._interval == RECORD and (stop or last)):
            self._interval = RECORD
            self._intervals.gather(step)
        return stop

    def _rank_trace(self, steps: tuple[int, int] | None, ranks: Collection[int]) -> StepTrace | None:
        """Return what profiles this rank, if it is to be profiled."""
        if steps is None:
            return None
        record = check_record(steps, self._record)
        if self.world.rank not in ranks:
            return None
        if self._traces is None:
            store = loader.Root(record).store
            self._traces = self._events or RunRecord(store, self.name, self._launched.facts())
        put = self._traces.trace
        return StepTrace(steps, self.device, lambda name, data: put(f"{name}-{self.world.rank:06d}", data))

    def _restore(
        self, saved: "Checkpoints | None", state: dict[str, Any], batches: BatchSource
    ) -> "Checkpoints | None":
        """Load the newest checkpoint, or the one before a replay's steps, if any. Return where to save."""
        if saved is None:
            return None
        begun = perf_counter()
        if self._replay is None:
            self.first(saved.create_root)
            note = None if self._launched.name is None else partial(self._event, "set_aside", 0)
            restored = load_newest(saved, state, batches, self.first, note)
        else:
            restored = load_origin(self.checkpoints, self._replay, state, batches, self.first)
        if restored:
            self._event("restored", batches.step, took_us=elapsed_us(begun))
        if self._replay is None and restored and batches.step == batches.end and self.world.rank == 0:
            _log.warning("%r has ended before: step %d is its last; no step is made", self, batches.step)
        return saved if self._replay is None else None  # a replay writes no checkpoint

    def _note_first_batch(self, batches: BatchSource, first: int) -> None:
        if self._events is not None:
            facts = {"plan": batches.plan.hash, "versions": plan_versions(batches.plan)}
            self._event("first_batch", first, took_us=elapsed_us(self._step_begun_s), **facts)
        self._step_file.write(first)
        self._intervals.begin(batches, first)
        if self._trackers is not None:
            self._trackers.begin(batches.plan, first)
        self._step_begun_s = perf_counter()

    def _save(
        self, saved: "Checkpoints", step: int, state: dict[str, Any], batches: BatchSource, *, wait: bool
    ) -> int:
        """Save a checkpoint; return its step."""
        self._hang.disarm()  # a checkpoint takes as long as it takes, and its requests have limits of their own
        begun = perf_counter()
        await_device(self.device)
        stood: dict[str, int] = {}  # how long the training stood, and when it went on

        def record_checkpoint() -> None:
            """Record the checkpoint once it is whole: a kill before leaves no event that promises it."""
            self._event("saved", step, **(stood or {"took_us": elapsed_us(begun)}))

        saved.save(step, state, batches, wait=wait, on_committed=record_checkpoint)
        self._save_s = max(self._save_s, perf_counter() - begun)
        stood |= {"at_us": utc_us(), "took_us": elapsed_us(begun)}
        self._hang.arm()
        self._step_begun_s = perf_counter()
        return step

    def note(self, **values: Any) -> None:
        """Give trail and trackers numbers of the step handed out last: `run.note(loss=loss)`. See `Loader.note`."""
        if self._batches is None:
            raise InvalidRuntime("run.note() before the first batch of run.steps()")
        if self._trackers is not None:
            values = self._trackers.note(self._step, values)
        if self._keeps_trail:
            self._batches.note(**values)

    def __enter__(self) -> "Run":
        self._is_context = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._hang.disarm()
        if self._is_closed:
            return
        self._is_closed = True
        left_by_next = self._ended_early and is_end_of_iterator(error)
        if left_by_next:  # the script calls `next` on `steps`
            error = None
        again = error is None and self._stopped is Stop.AGAIN and not self._finished
        try:
            self._leave(error, again=again)
        finally:  # last: a signal meanwhile may not change how the run ends
            self._requests.close(is_leaving=again)
        if again:
            raise SystemExit(AGAIN)
        if left_by_next:
            raise SystemExit(0)

    def _leave(self, error: BaseException | None, *, again: bool) -> None:
        """Store what is left of the record, and leave the process group."""
        if again:
            self._launched.tell_launcher()  # first: a slow record below may outlast the grace
        if error is not None:
            took_us = elapsed_us(self._step_begun_s) if self._step_begun_s else 0
            self._event("failed", self._steps_done, took_us=took_us)
        else:
            self._agreement.close()
            self._intervals.close()
        for record in {self._events, self._traces}:
            if record is not None:
                record.close()
        self._step_file.close()
        if self._faults is not None:
            self._faults.close()
        if self._trackers is not None:
            self._trackers.close(run_end(self._stopped, error, finished=self._finished))
        if error is not None:
            return  # other ranks may not come to a collective any more: the launcher ends them
        if self._own_group:
            leave_group()
