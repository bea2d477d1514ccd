"""A plan's batches for training code built around a DataLoader: as an IterableDataset, and on a device."""

from collections.abc import Iterable, Iterator
from itertools import count
from typing import TYPE_CHECKING, Any

from ..errors import InvalidRuntime, MissingDependency
from ..order.plan import Plan
from ..run.batch.batch import Batch
from ..run.device.stage import DeviceStage, device_backend
from ..run.recipe.world import World
from ..storage.threads import LEAVE_S

if TYPE_CHECKING:
    from torch.utils.data import IterableDataset


def torch_dataset(
    plan: Plan, rank: int | World | None = None, world_size: int | None = None, **options: Any
) -> "IterableDataset[Batch]":
    """Return an IterableDataset of whole batches: `DataLoader(dataset, batch_size=None, num_workers=N)`.

    Worker w of N makes steps w, w + N, ...; DataLoader delivers them in turn. For every N, the batches and their order
    equal `Loader`'s. `device` works without a DataLoader; with one, use `loader.on(dataloader, device)`.

    torchdata's StatefulDataLoader and Lightning save and restore the position (docs/training.md). A plain DataLoader
    makes batches ahead: save `plan.state(batch.step + 1)` after using a batch. To resume, call
    `dataset.load_state_dict(state)` or `dataset.seek(step)`; with workers before `iter(dataloader)`.

    Raises: MissingDependency if torch is missing; InvalidRuntime for framework="jax"; Unpicklable if worker processes
    cannot receive a transform.
    """
    try:
        from .torch_iterable import PlanDataset
    except ImportError as error:
        raise MissingDependency("torch_dataset needs torch: pip install 'penstock-data[torch]'") from error
    return PlanDataset(plan, rank, world_size, options)


class BatchesOnDevice:
    """An iterable over another iterable's batches, copied to a device by a thread."""

    def __init__(self, batches: Iterable[Batch], device: Any) -> None:
        self.batches = batches
        self._backend = device_backend(device, "torch")

    def __len__(self) -> int:
        """Return the number of batches. Raises: TypeError if the batches have no length."""
        return len(self.batches)  # type: ignore[arg-type]

    def __bool__(self) -> bool:
        return True

    def __iter__(self) -> Iterator[Batch]:
        iterator = iter(self.batches)
        if self._backend is None:  # the batches stay on the host
            yield from iterator
            return

        # `DeviceStage` asks for a step; an iterable only has a next batch. The copy thread calls this.
        def host_batch(number: int, end: int | None) -> Batch:
            batch = next(iterator)
            if not isinstance(batch, Batch):
                raise InvalidRuntime(
                    f"loader.on got a {type(batch).__name__}; accepted: an iterable of penstock's batches, such as "
                    "DataLoader(loader.torch_dataset(plan), batch_size=None)",
                    what="batches",
                    given=type(batch).__name__,
                    accepted="an iterable of penstock's batches",
                )
            return batch

        stage = DeviceStage(self._backend, host_batch)
        try:
            # Consecutive numbers: for another one, the stage would drop batches that are ready.
            for number in count():
                try:
                    batch = stage.take(number, None).batch
                except StopIteration:  # of `host_batch`: `take` raises its errors here
                    return
                yield batch
                del batch  # the next one needs the memory
        finally:
            # Also if the training leaves the loop: no thread reads `batches` after it.
            stage.dismiss()
            stage.join(LEAVE_S)


def on(batches: Iterable[Batch], device: Any) -> Iterable[Batch]:
    """Return an iterable over the same batches on a device, with two ready there.

        for batch in loader.on(DataLoader(dataset, batch_size=None, num_workers=8), "cuda"): ...

    batches: A DataLoader over `loader.torch_dataset`, whose workers cannot copy to a device.
    device: As for `Loader`.

    A DataLoader's own position includes unused batches; save `plan.state(batch.step + 1)` instead.

    Raises: InvalidRuntime if there is no such device.
    """
    own = getattr(batches, "on", None)
    if own is not None:
        moved: Iterable[Batch] = own(device)
        return moved
    return BatchesOnDevice(batches, device)
