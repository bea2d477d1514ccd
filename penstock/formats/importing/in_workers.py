"""Read objects in worker processes: an object that crashes or hangs its reader fails on its own."""

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
from .importer import ColumnarOptions, ImportRun, Readable, ReadSample

LIMIT_S = 600.0
"""Time limit per call, in seconds, plus one second per MiB."""

FindObjects = Callable[[Store, list[ObjectInfo], ColumnarOptions], Readable]
"""Type of an importer's `find_objects`."""
_ERRORS: dict[str, type[PenstockError]] = {
    name: one
    for name, one in vars(errors).items()
    if isinstance(one, type) and issubclass(one, PenstockError)
}


class _ReadRequest(NamedTuple):
    info: ObjectInfo
    run: tuple[int, int] | None


@contextmanager
def in_workers(
    readable: Readable, find_objects: FindObjects, store: Store, options: ColumnarOptions, workers: int
) -> Iterator[Readable]:
    """Yield a copy of `readable` that reads in worker processes, which end with the block.

    workers: maximum number of processes. A run's samples are in memory, at most 4 GiB. Credentials come from the
    environment.
    """
    function = partial(_read, store, find_objects, options.to_json())
    variables = store_variables(store)

    def in_worker(info: ObjectInfo, run: ImportRun | None) -> Any:
        unit = _ReadRequest(info, run and (run.first, run.stop))
        limit_s = LIMIT_S + (run.nbytes // 2**20 if run else 0)
        (outcome,) = compute.map(function, [unit], timeout_s=limit_s, variables=variables)
        if outcome.value is None:
            why = outcome.error.summary if outcome.error else "no answer"
            if outcome.error and outcome.error.code in ("memory", "exception"):
                raise WorkerFailed(f"{store.url}/{info.key} was not read: {why}")
            raise Corrupt(f"{store.url}/{info.key} cannot be read: {why}; repair it, or move it elsewhere")
        error, answer = outcome.value
        if error:
            raise _ERRORS.get(error, Corrupt)(answer)
        return answer

    def runs(info: ObjectInfo) -> list[ImportRun]:
        return [ImportRun(info, *one) for one in in_worker(info, None)]

    def samples(run: ImportRun) -> Iterator[ReadSample]:
        for values in in_worker(run.info, run):
            yield ReadSample(*values)

    with closing(LocalCompute(min(workers, n_cores()))) as compute:
        yield readable._replace(runs=runs, samples=samples)


def _read(
    store: Store, find_objects: FindObjects, options: dict[str, Any], request: _ReadRequest
) -> tuple[str, Any]:
    try:
        readable = find_objects(store, [request.info], ColumnarOptions.from_json(options))
        if request.run is None:
            return "", [one[1:] for one in readable.runs(request.info)]
        return "", [tuple(one) for one in readable.samples(ImportRun(request.info, *request.run))]
    except PenstockError as error:
        return type(error).__name__, str(error)
