"""Iterables of batches that `Run.steps` accepts, as one interface."""

from collections.abc import Iterable, Iterator, Mapping
from time import perf_counter
from typing import Any, Protocol

import loader
from loader.api.successive_loaders import SuccessiveLoaders
from loader.api.torch import BatchesOnDevice
from loader.errors import InvalidRuntime
from loader.run.batch.batch import MAKING
from loader.run.metrics import COUNTERS, Metrics

ACCEPTED = (
    "loader.Loader(plan, ...), loader.follow(...), loader.online(...), loader.torch_dataset(plan), a DataLoader or "
    "StatefulDataLoader over it with batch_size=None, or loader.on(dataloader, device)"
)


class BatchSource(Protocol):
    """Batches of a run, and its position."""

    @property
    def plan(self) -> "loader.Plan":
        """The current plan."""

    @property
    def step(self) -> int:
        """The global step of the next batch."""

    @property
    def end(self) -> int | None:
        """The global step after the last one; None for an endless run."""

    def __iter__(self) -> "Iterator[loader.Batch]": ...

    def metrics(self) -> dict[str, float]:
        """Return metrics as `Loader.metrics` does."""

    def note(self, **values: Any) -> None:
        """Record metrics of the last step in the trail. Raises: InvalidRuntime without one."""

    def state_dict(self) -> dict[str, Any]:
        """Return the position after the last delivered batch."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state. Raises: PlanMismatch."""


class DatasetBatches:
    """Batches of a `torch_dataset`, also through torch's DataLoader, whose worker processes read ahead.

    The position follows the last delivered batch. Metrics are sums of `batch.stats`.
    """

    def __init__(self, batches: "Iterable[loader.Batch]", dataset: Any) -> None:
        self.plan: loader.Plan = dataset.plan
        self.end: int | None = dataset.end
        self.step: int = dataset.step
        self._batches = batches
        self._dataset = dataset
        self._metrics = Metrics(self.plan.source_names)

    def __iter__(self) -> "Iterator[loader.Batch]":
        """Yield the batches. A DataLoader's worker processes end with this iterator."""
        iterator = iter(self._batches)
        delivered_s: float | None = None
        while True:
            asked_s = perf_counter()
            batch = next(iterator, None)
            if batch is None:
                return
            batch.wait_s = perf_counter() - asked_s  # a worker of a DataLoader waits beside the training
            busy_s = None
            if delivered_s is not None:
                busy_s = asked_s - delivered_s
            self._count(batch, busy_s)
            self.step = batch.step + 1
            delivered_s = perf_counter()
            yield batch

    def _count(self, batch: "loader.Batch", busy_s: float | None) -> None:
        for stage, name in MAKING.items():
            if name in batch.stats:
                self._metrics.observe(stage, batch.stats[name])
        for name in COUNTERS:
            if name in batch.stats:
                self._metrics.count(name, int(batch.stats[name]))
        self._metrics.consumed(batch, busy_s)

    def metrics(self) -> dict[str, float]:
        return self._metrics.snapshot()

    def note(self, **values: Any) -> None:
        raise InvalidRuntime(
            "run.trail() without a loader.Loader(plan, trail=...): a torch_dataset keeps no trail; leave the call out"
        )

    def state_dict(self) -> dict[str, Any]:
        return self.plan.state(self.step)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state. Raises: InvalidRuntime while worker processes of the DataLoader iterate."""
        self._dataset.load_state_dict(state)
        self.step = self._dataset.step


def batch_source(batches: "BatchSource | Iterable[loader.Batch]") -> BatchSource:
    """Return batches with a position. Raises: InvalidRuntime for an iterable that has none."""
    if isinstance(batches, loader.Loader | SuccessiveLoaders):
        return batches
    # `loader.on` wraps a DataLoader, which wraps the dataset that has the position.
    inner = batches.batches if isinstance(batches, BatchesOnDevice) else batches
    dataset = getattr(inner, "dataset", inner)
    from loader.api.torch_iterable import PlanDataset  # imports torch

    if isinstance(dataset, PlanDataset):
        return DatasetBatches(batches, dataset)
    raise InvalidRuntime(
        f"run.steps() got a {type(batches).__name__}, which has no position to save; accepted: {ACCEPTED}",
        what="run.steps()",
        given=type(batches).__name__,
        accepted=ACCEPTED,
    )


def is_end_of_iterator(error: BaseException | None) -> bool:
    """Return whether `next` raised the error, in a script or in one of its generators."""
    if isinstance(error, RuntimeError):
        error = error.__cause__
    return isinstance(error, StopIteration)
