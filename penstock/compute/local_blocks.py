"""Blocks of a work that this process's own pool computes: the same as on a cluster, without a folder and an engine."""

import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from loader.storage import Store

from .blocks import BlockOutcomes, cut_blocks
from .job import read_outcome
from .plain import to_json
from .pool import Compute, Progress
from .pool.store_variables import store_variables
from .work import Work
from .worker_calls import WorkerCalls

U = TypeVar("U")
R = TypeVar("R")


def computed_here(
    work: Work[U, R],
    units: Iterable[U],
    compute: Compute,
    stores: Sequence[Store],
    progress: Progress | None = None,
) -> Iterator[BlockOutcomes[R]]:
    """Yield the blocks of a work in their order; units of later ones run meanwhile.

    stores: those that units open by their URL. Scratch holds the units that were begun and whose block has not ended.

    Raises: Fault for a store or disk at fault, and for a block that cannot be finished; as `Compute.map`.
    """
    place = work.place
    calls = WorkerCalls(
        compute,
        place,
        [place.partition(":")[0].partition(".")[0]],
        {store.url: store for store in stores},
        store_variables(*stores),
    )
    blocks = list(cut_blocks(work, units))
    every: list[Any] = [unit for block in blocks for unit in block]
    with tempfile.TemporaryDirectory(prefix="penstock-blocks-", ignore_cleanup_errors=True) as scratch:
        kept = work.finish is not None
        folders = [str(Path(scratch) / f"{number:06d}") if kept else "" for number in range(len(every))]
        first = 0
        with closing(calls.outcomes(every, folders, progress)) as found:
            for number, block in enumerate(blocks):
                own = folders[first : first + len(block)]
                outcomes = list(islice(found, len(block)))
                part = calls.finish(number, block, own, outcomes)
                for folder in own if kept else ():
                    shutil.rmtree(folder, ignore_errors=True)
                yield BlockOutcomes(
                    number=number,
                    first=first,
                    outcomes=[read_outcome(to_json(one), work.result, "an outcome") for one in outcomes],
                    part=part,
                )
                first += len(block)
