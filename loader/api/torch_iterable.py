"""A plan as an IterableDataset, and the step stored in states of torchdata's StatefulDataLoader. Imports torch."""

import pickle
from collections.abc import Iterator, Mapping
from copy import copy
from multiprocessing.context import get_spawning_popen
from typing import Any

from torch.utils.data import IterableDataset, get_worker_info

from ..cache.spec import cache_spec
from ..errors import InvalidRuntime, PlanMismatch, Unpicklable
from ..order.plan import Plan
from ..run.batch.batch import Batch
from ..run.loader import Loader
from ..run.recipe.recipe import run_length
from ..run.recipe.world import World
from .shared_start import SharedStart


def next_step(plan: Plan, state: object) -> int:
    """Return the next global step after a plan's own state, or after a StatefulDataLoader's.

    A StatefulDataLoader's state has the dataset's state under "dataset_state", or one per worker process under
    "_snapshot". The result is the earliest of the workers' next steps, plus the batches delivered since the snapshot.

    Raises: PlanMismatch (naming the difference, or that it is no such state); FormatTooNew; InvalidRuntime.
    """
    if not isinstance(state, Mapping) or not {"_snapshot", "dataset_state"} & state.keys():
        return plan.check_state(state)
    if "_snapshot" not in state:
        return plan.check_state(state["dataset_state"])
    try:
        workers: Mapping[str, Mapping[str, Any]] = state["_snapshot"]["_worker_snapshots"]
        saved = [worker["dataset_state"] for worker in workers.values()]
        since = int(state["_steps_since_snapshot"])
    except (KeyError, TypeError, AttributeError) as error:
        raise PlanMismatch(
            f"not a state that torchdata's StatefulDataLoader saved ({type(error).__name__}: {error}); it has "
            f"{sorted(map(str, state))}. Pass what its state_dict() returned, unchanged",
            what="state",
            given=sorted(map(str, state)),
            accepted="a state of torchdata's StatefulDataLoader",
        ) from error
    if not saved:
        raise PlanMismatch(
            "a StatefulDataLoader's state without any worker's; pass it as it was saved",
            what="state",
            given="no worker's state",
            accepted="the state of each worker",
        )
    # Each worker saved its own next step. The least of them is the next step of the training.
    return plan.checked_step(min(plan.check_state(one) for one in saved) + since)


class PlanDataset(IterableDataset[Batch]):
    """An IterableDataset of a plan's batches: see `loader.torch_dataset`."""

    def __init__(
        self, plan: Plan, rank: int | World | None, world_size: int | None, options: Mapping[str, Any]
    ) -> None:
        super().__init__()
        # Read here: a worker process may not see the launcher's environment.
        self.world = World.of(rank, world_size)
        self.plan = plan
        self._options = dict(options)
        if self._options.get("framework") == "jax":
            raise InvalidRuntime(
                "framework='jax' in a torch_dataset, whose batches go to torch; accepted: 'torch', 'numpy'. A JAX "
                "training iterates over loader.Loader(plan, framework='jax')",
                what="framework",
                where="torch_dataset",
                given="jax",
                accepted=["torch", "numpy"],
            )
        if self._options.get("trail") is not None:
            raise InvalidRuntime(
                "trail in a torch_dataset, whose workers hand out steps before they are trained: iterate over "
                "loader.Loader(plan, trail=...)",
                what="trail",
                where="torch_dataset",
            )
        if self._options.get("micro_batch") is not None:
            raise InvalidRuntime(
                "micro_batch in a torch_dataset, whose workers take turns by whole steps: cut a batch with "
                "batch.micro_batches(count)",
                what="micro_batch",
                where="torch_dataset",
            )
        self._start = SharedStart(plan.first_step)
        self._n_seeks = 0  # calls of `seek`: a running iterator notices by it that the position has moved
        self._resume: int | None = None  # first step of a worker process, from its own state
        self._position: int | None = None  # next step of the iteration under way
        with Loader(
            plan,
            self.world.rank,
            self.world.world_size,
            **{**self._options, "workers": 0, "executor": "auto"},
        ) as batches:
            # It also checks the options, which a worker process would do too late.
            self._end = batches.end

    def __bool__(self) -> bool:
        return True

    def __len__(self) -> int:
        return run_length(self._end)

    @property
    def step(self) -> int:
        """The next global step of this copy of the dataset, which a worker process does not move."""
        if self._position is None:
            return self._first_step()
        return self._position

    @property
    def end(self) -> int | None:
        """The global step after the last one; None for an endless dataset."""
        return self._end

    def on(self, device: Any) -> "PlanDataset":
        """Return this dataset with its batches on a device, to iterate in this process."""
        moved = PlanDataset(self.plan, self.world, None, {**self._options, "device": device})
        moved._start = copy(self._start)
        moved._resume = self._resume
        return moved

    def seek(self, step: int) -> None:
        """Continue at a step. A running iterator of this process continues there too, like a Loader's.

        Raises: InvalidRuntime while worker processes of a DataLoader iterate, which have read ahead.
        """
        first = self.plan.checked_step(step)
        if not self._start.move(first):
            raise InvalidRuntime(
                f"step {first} for a torch_dataset while worker processes of a DataLoader iterate from step "
                f"{self._start.step} on: call seek() or load_state_dict() before iter(DataLoader(...)), or delete its "
                "iterator first (and the DataLoader, if it has persistent_workers)",
                what="step",
                where="torch_dataset",
                given=first,
                accepted=f"from step {self._start.step} on, without iterators",
            )
        # An iteration starts at `_start` unless it has a position of its own.
        self._resume = None
        self._position = None
        self._n_seeks += 1

    def state_dict(self) -> dict[str, Any]:
        """Return the position of this copy of the dataset; in a worker process, its own next step."""
        return self.plan.state(self.step)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a plan's state or a StatefulDataLoader's. Any number of workers and ranks may have saved it.

        A worker process starts at its own worker's state. Raises: PlanMismatch; InvalidRuntime as `seek`.
        """
        if get_worker_info() is None:
            self.seek(next_step(self.plan, state))
        else:
            # The StatefulDataLoader calls this in each worker, with the `state_dict` of that worker's dataset.
            self._resume = self.plan.check_state(state)
            self._position = None

    def __iter__(self) -> Iterator[Batch]:
        # Before the first batch: a state taken now belongs to this iteration.
        if get_worker_info() is not None:
            self._start.begin()
        self._position = self._first_step()
        self._resume = None
        return self._batches(self._position, self._n_seeks)

    def _first_step(self) -> int:
        """Return the first step of this process: worker w begins w steps after the dataset."""
        if self._resume is not None:
            return self._resume
        info = get_worker_info()
        if info is None:
            worker = 0
        else:
            worker = info.id
        return self._start.step + worker

    def _batches(self, step: int, n_seeks: int) -> Iterator[Batch]:
        info = get_worker_info()
        stride = 1  # steps from one batch of this process to its next one
        if info:
            stride = info.num_workers
        options = dict(self._options)
        if info is not None:
            device = options.get("device")
            if device is not None and str(device) != "cpu":
                raise InvalidRuntime(
                    f"device = {device!r} in a worker process of a DataLoader, which cannot hand over memory of a "
                    "device: leave it out, and iterate over loader.on(DataLoader(...), device)",
                    what="device",
                    where="a worker process of a DataLoader",
                    given=device,
                )
            options.setdefault("workers", 0)
            if stride > 1:
                options["workers"] = 0  # steps are not consecutive: nothing to make ahead
                options["cache"] = cache_spec(options.get("cache")).shared_by(stride)
            if options["workers"] == 0:
                # The DataLoader's workers are the processes, so the same options serve with and without a DataLoader.
                options["executor"] = "auto"
        with Loader(self.plan, self.world.rank, self.world.world_size, **options) as batches:
            while True:
                if self._n_seeks != n_seeks:  # since the previous batch, or since `iter`
                    n_seeks = self._n_seeks
                    step = self._first_step()
                batches.seek(step)
                batch = next(batches, None)
                if batch is None:
                    return
                step += stride
                self._position = step
                yield batch

    def __getstate__(self) -> dict[str, Any]:
        for name, value in self._options.items():
            try:
                pickle.dumps(value)
            except (pickle.PicklingError, AttributeError, TypeError) as error:
                raise Unpicklable(
                    f"{name} = {value!r} cannot be sent to a worker process ({error}); use a function at the top level "
                    "of a module instead of a lambda or a local function, or num_workers=0",
                    what=name,
                    given=value,
                    accepted="a value that can be pickled",
                ) from error
        state = self.__dict__.copy()
        if get_spawning_popen() is None:
            state["_start"] = copy(self._start)  # a copy of the dataset has a position of its own
        return state
