"""Jobs that write the samples of a batch whose raw objects are of a format."""

from collections.abc import Iterator, Sequence
from typing import TypeVar

import loader
from loader.errors import StoreError
from loader.storage import Store
from penstock.compute.job import Job
from penstock.compute.local_blocks import blocks_of, discard
from penstock.compute.pool import Compute, Outcome
from penstock.compute.work import Work
from penstock.stages import fingerprint

from ...spec import DatasetSpec

U = TypeVar("U")
R = TypeVar("R")


def units_job(
    work: Work[U, R], root: loader.Root, landing: Store, spec: DatasetSpec, partition: str, *decides: object
) -> Job[U, R]:
    """Return a job of a batch. decides: plain values that decide the units and their results."""
    return Job(
        store=root.store,
        work=work,
        about=f"{spec.name}/units/{partition}",
        fingerprint=fingerprint(*decides),
        stores=[landing, root.store],
    )


def outcomes_of(compute: Compute, job: Job[U, R], units: Sequence[U]) -> Iterator[tuple[U, Outcome[R]]]:
    """Yield each unit with its outcome, in their order. Raises: as `blocks_of`."""
    for block in blocks_of(compute, job, lambda: units):
        yield from zip(units[block.first :], block.outcomes, strict=False)


def not_written(compute: Compute, jobs: Sequence[Job[U, R]], key: str, outcome: Outcome[R]) -> StoreError:
    """Return the error of a unit that has no result, and discard its jobs. key: of its first object."""
    for job in jobs:
        discard(compute, job)  # or the next run would find the same failure
    why = outcome.error.summary if outcome.error else "no result"
    return StoreError(f"the samples of {key!r} could not be written: {why}")
