"""Objects whose reader may die or never return, read in worker processes: such an object costs itself alone."""

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from typing import Any, NamedTuple

from loader import errors
from loader.cores import n_cores
from loader.errors import Corrupt, PenstockError, WorkerFailed
from loader.storage import ObjectInfo, Store

from ...compute.pool import LocalCompute
from ...compute.pool.environment import store_variables
from .importer import Options, Readable, ReadSample, Run

LIMIT_S = 600.0
"""Seconds that a worker has for the runs of an object, or for the samples of a run, and a second more for each MiB."""

Look = Callable[[Store, list[ObjectInfo], Options], Readable]
"""Function `look` of an importer's module."""
_ERRORS: dict[str, type[PenstockError]] = {
    name: one
    for name, one in vars(errors).items()
    if isinstance(one, type) and issubclass(one, PenstockError)
}


class _Asked(NamedTuple):
    """A unit of work."""

    info: ObjectInfo
    """The object."""
    run: tuple[int, int] | None
    """First sample of the run and the place behind its last; None where the object's runs are asked for."""


@contextmanager
def in_workers(
    readable: Readable, look: Look, store: Store, options: Options, workers: int
) -> Iterator[Readable]:
    """Give a reader whose runs and samples come from worker processes, which end with the block.

    workers: processes, at most, and no more than cores. The samples of a run are in memory, 4 GiB at most. A worker
    finds the store's credentials in the environment.
    """
    function = partial(_read, store, look, options.to_json())
    variables = store_variables(store)

    def asked(info: ObjectInfo, run: Run | None) -> Any:
        unit = _Asked(info, run and (run.first, run.stop))
        limit_s = LIMIT_S + (run.nbytes // 2**20 if run else 0)
        (outcome,) = compute.map(function, [unit], timeout_s=limit_s, variables=variables)
        if outcome.value is None:
            why = outcome.error.summary if outcome.error else "no answer"
            if outcome.error and outcome.error.code in ("memory", "exception"):
                raise WorkerFailed(f"{store.url}/{info.key} was not read: {why}")
            raise Corrupt(f"{store.url}/{info.key} cannot be read: {why}; repair it, or move it elsewhere")
        error, found = outcome.value
        if error:
            raise _ERRORS.get(error, Corrupt)(found)
        return found

    def runs(info: ObjectInfo) -> list[Run]:
        return [Run(info, *one) for one in asked(info, None)]

    def samples(run: Run) -> Iterator[ReadSample]:
        for one in asked(run.info, run):
            yield ReadSample(*one)

    with closing(LocalCompute(min(workers, n_cores()))) as compute:
        yield readable._replace(runs=runs, samples=samples)


def _read(store: Store, look: Look, options: dict[str, Any], asked: _Asked) -> tuple[str, Any]:
    """Return ("", runs or samples), or name and text of an error. It runs in a worker."""
    try:
        readable = look(store, [asked.info], Options.from_json(options))
        if asked.run is None:
            return "", [one[1:] for one in readable.runs(asked.info)]
        return "", [tuple(one) for one in readable.samples(Run(asked.info, *asked.run))]
    except PenstockError as error:
        return type(error).__name__, str(error)
