"""Batches of a run whose plan changes at some steps: one `Loader` after another, with metrics of all of them."""

import weakref
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TextIO

from ..dataset.root import Root, root_in_store
from ..errors import InvalidRuntime
from ..order.plan import Plan
from ..run.batch.batch import Batch, SlowSample
from ..run.loader import Loader
from ..run.metrics import Metrics, show_progress
from ..run.recipe.recipe import run_length, stored_views
from ..run.recipe.world import World

if TYPE_CHECKING:
    from ..run.trail.recorder import RunRecorder
    from ..run.trail.trail import Trail


class SuccessiveLoaders:
    """Iterate as a `Loader` does. `loader` is the current one; its budget restarts with a new plan.

    Subclasses make the first loader, and move to the next plan in `__next__`.
    """

    world: World
    """Rank and world size of this process."""

    def __init__(
        self,
        options: Mapping[str, Any],
        root: Root | None = None,
        *,
        has_decisions: bool = False,
    ) -> None:
        """Check the options.

        options: arguments of `Loader` but `epochs`. root: root of the plans' versions. `own_root` is one over the same
        store; what is opened with it is leased while the last two plans read it. has_decisions: True if records under
        `follows/` name the plan of each step. One run log then serves all loaders, and its start names no plan.

        Raises: InvalidRuntime.
        """
        if options.get("epochs") is not None:
            raise InvalidRuntime("epochs change with the data that a run follows: bound it by steps=")
        # Its lease has the versions that this run opens, and no version of other users of `root`.
        if root is None:
            self._own_root = None
        else:
            self._own_root = root_in_store(root.store, root.verify)
        self._versions_in_use: set[str] = set()  # ids of the versions that the last two plans read
        self._options = dict(options)
        self._recorder: RunRecorder | None = None
        if has_decisions and options.get("trail") is not None:
            self._recorder = _run_recorder(options["trail"])
            self._options["trail"] = self._recorder
            # A run dropped without `close` must leave no writing thread: its loaders leave the recorder to it.
            weakref.finalize(self, self._recorder.dismiss)
        self.world = World.of(options.get("rank"), options.get("world_size"))
        self._loader: Loader | None = None

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        raise NotImplementedError

    def __bool__(self) -> bool:
        return True

    def __len__(self) -> int:
        if self._loader is None:
            return run_length(self.end)
        return len(self._loader)

    @property
    def loader(self) -> Loader:
        """The current loader. Raises: InvalidRuntime before the first batch, if its plan is decided there."""
        if self._loader is None:
            raise InvalidRuntime("the run has no plan yet: it is decided with the first batch")
        return self._loader

    @property
    def plan(self) -> Plan:
        """The current plan; a later step may have another one. Raises: as `loader`."""
        return self.loader.plan

    @property
    def step(self) -> int:
        """The global step of the next batch or micro batch."""
        return self.loader.step

    @property
    def end(self) -> int | None:
        """The global step after the last one; None for an endless run."""
        return self.loader.end

    @property
    def workers(self) -> int:
        return self.loader.workers

    @property
    def executor(self) -> str:
        return self.loader.executor

    @property
    def executor_reason(self) -> str:
        return self.loader.executor_reason

    def describe(self) -> str:
        return self.loader.describe()

    def on(self, device: Any) -> Self:
        """Deliver batches on a device from now on, also under later plans. Raises: InvalidRuntime."""
        if self._loader is not None:
            self._loader.on(device)
        self._options["device"] = device
        return self

    def seek(self, step: int) -> None:
        """Continue with this step's batch, which may be an earlier one. Raises: InvalidRuntime."""
        self.loader.seek(step)

    def batch_at(self, step: int) -> Batch:
        """Return this rank's part of a step under the current plan, which later steps may not have."""
        return self.loader.batch_at(step)

    def metrics(self) -> dict[str, float]:
        """Return `Loader.metrics` since the start, under all plans."""
        if self._loader is None:
            return Metrics(()).snapshot()
        return self._loader.metrics()

    def metrics_text(self) -> str:
        if self._loader is None:
            from ..run.metrics_text import exposition

            return exposition(Metrics(()).totals(), rank=self.world.rank, step=self.step)
        return self._loader.metrics_text()

    def slowest(self) -> list[SlowSample]:
        if self._loader is None:
            return []
        return self._loader.slowest()

    def status_line(self) -> str:
        if self._loader is None:
            return f"step {self.step:,}"
        return self._loader.status_line()

    def with_status(self, stream: TextIO | None = None) -> Iterator[Batch]:
        return show_progress(self, self.status_line, stream)

    def note(self, *, per_sample: Mapping[str, Any] | None = None, **values: Any) -> None:
        self.loader.note(per_sample=per_sample, **values)

    def state_dict(self) -> dict[str, Any]:
        raise NotImplementedError

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        raise NotImplementedError

    def close(self) -> None:
        """Store the ledger and the run log, and end the loader's threads and processes. Raises: StoreError."""
        try:
            if self._loader is not None:
                self._loader.close()
        finally:
            self._release(wait=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self._loader is not None:
                self._loader.__exit__(kind, error, trace)
        finally:
            # Ctrl-C ends training at once, also if a store does not respond.
            self._release(wait=kind is None or issubclass(kind, Exception))

    def _release(self, *, wait: bool) -> None:
        if self._recorder is not None:
            self._recorder.close(wait=wait)
        self._versions_in_use = set()
        if self._own_root is not None:
            self._own_root.keep_leases(())

    def _switch_plan(self, plan: Plan, step: int, **bounds: Any) -> None:
        """Continue at a step under a plan, with what was counted so far. bounds: arguments of `Loader` for it."""
        earlier = self._loader
        successor = Loader(plan, **{**self._options, **bounds})
        try:
            successor.seek(step)
            if earlier is not None:
                earlier.close()
        except BaseException:
            # The caller never gets the successor and cannot close it.
            successor.close()
            raise
        if earlier is not None:
            successor._metrics.succeed(earlier._metrics)
            successor._status = earlier._status
        self._loader = successor
        if self._own_root is None:
            return
        # Batches of the earlier plan may still be read.
        self._versions_in_use = _version_ids(plan)
        if earlier is not None:
            self._versions_in_use |= _version_ids(earlier.plan)
        self._own_root.keep_leases(self._versions_in_use)


def _run_recorder(trail: "Trail") -> "RunRecorder":
    from ..run.trail.recorder import RunRecorder  # only for runs with a run log

    return RunRecorder(trail)


def _version_ids(plan: Plan) -> set[str]:
    """Return the ids of the versions that a plan reads."""
    return {view.version.id for view in stored_views(plan).values()}
