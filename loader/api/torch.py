"""The plan as a `torch.utils.data.IterableDataset`, for training code built around a DataLoader."""

from typing import TYPE_CHECKING, Any

from ..errors import MissingDependency
from ..order.plan import Plan
from ..run.batch.batch import Batch
from ..run.recipe.world import World

if TYPE_CHECKING:
    from torch.utils.data import IterableDataset


def torch_dataset(
    plan: Plan, rank: int | World | None = None, world_size: int | None = None, **options: Any
) -> "IterableDataset[Batch]":
    """Return an IterableDataset of whole batches: `DataLoader(dataset, batch_size=None, num_workers=N)`.

    Worker w of N makes steps w, w + N, ...; DataLoader delivers them in turn. For every N, the batches and their order
    equal `Loader`'s. Options are as for `Loader`; inside a worker process `workers` defaults to 0. `device` works
    without a DataLoader; with one, use `loader.on(dataloader, device)`. Every pass begins at the same step, and ends at
    `steps=`.

    torchdata's StatefulDataLoader and Lightning save and restore the position (docs/training.md). A plain DataLoader
    makes batches ahead: save `plan.state(batch.step + 1)` after using a batch. To resume, call
    `dataset.load_state_dict(state)` or `dataset.seek(step)` before iterating.

    Raises: MissingDependency if torch is missing; InvalidRuntime for framework="jax"; Unpicklable if worker processes
    cannot receive a transform.
    """
    try:
        from .torch_iterable import PlanDataset
    except ImportError as error:
        raise MissingDependency("torch_dataset needs torch: pip install 'penstock-data[torch]'") from error
    return PlanDataset(plan, rank, world_size, options)
