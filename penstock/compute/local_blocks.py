"""Compute the blocks of a `Work` as a cluster job, or in this process's own pool."""

import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from itertools import islice
from typing import Any, Protocol, TypeVar, runtime_checkable

from loader.storage import Store
from loader.storage.disk.scratch import held_folder

from .blocks import BlockOutcomes, cut_blocks
from .job import Job, store_url
from .pool import Compute, Progress
from .pool.environment import store_variables
from .submit import own_folders
from .work import Work
from .worker_calls import WorkerCalls

U = TypeVar("U")
R = TypeVar("R")


@runtime_checkable
class Jobs(Protocol):
    """A `Compute` that runs each `Work` elsewhere, as a job."""

    def blocks(
        self, job: Job[U, R], units: Callable[[], Iterable[U]], progress: Progress | None
    ) -> Iterator[BlockOutcomes[R]]:
        """Yield a job's blocks, in order."""

    def tell(self, line: str) -> None:
        """Print a line for the waiting user."""


def blocks_of(
    compute: Compute,
    job: Job[U, R],
    units: Callable[[], Iterable[U]],
    progress: Progress | None = None,
) -> Iterator[BlockOutcomes[R]]:
    """Yield a job's blocks in order, computed elsewhere or in this process's own pool.

    Raises: as `ClusterCompute.blocks` and `computed_here`.
    """
    if isinstance(compute, Jobs):
        return compute.blocks(job, units, progress)
    return computed_here(job.work, units(), compute, job.stores, progress)


def discard(compute: object, job: Job[Any, Any]) -> None:
    """Delete a job's folder once its outcomes are recorded: units contain keys and texts of raw objects."""
    if isinstance(compute, Jobs):
        for folder in own_folders(job):
            folder.remove()


def computed_here(
    work: Work[U, R],
    units: Iterable[U],
    compute: Compute,
    stores: Sequence[Store],
    progress: Progress | None = None,
) -> Iterator[BlockOutcomes[R]]:
    """Yield the blocks of a `Work` in order, while later units run.

    stores: stores that units may open by URL.
    Raises: Fault if a store, a disk or `finish` fails; as `Compute.map`.
    """
    place = work.place
    calls = WorkerCalls(
        compute,
        place,
        [place.partition(":")[0].partition(".")[0]],
        {store_url(store): store for store in stores},
        store_variables(*stores),
    )
    blocks = list(cut_blocks(work, units))
    every: list[Any] = [unit for block in blocks for unit in block]
    with held_folder("blocks") as scratch:
        kept = work.finish is not None
        folders = [str(scratch / f"{number:06d}") if kept else "" for number in range(len(every))]
        first = 0
        with closing(calls.outcomes(every, folders, progress)) as answers:
            for number, block in enumerate(blocks):
                own = folders[first : first + len(block)]
                outcomes = list(islice(answers, len(block)))
                part = calls.finish(number, block, own, outcomes)
                for folder in own if kept else ():
                    shutil.rmtree(folder, ignore_errors=True)
                yield BlockOutcomes(
                    number=number,
                    first=first,
                    outcomes=[one.outcome for one in outcomes],
                    part=part,
                )
                first += len(block)
