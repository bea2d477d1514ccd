"""Worker processes of one machine: one interface, `map(function, units)`, behind which engines are exchanged.

    with compute.opened() as engine:                                  compute: resources.compute.ComputeResource
        for outcome in engine.map(measure, units, timeout_s=600):     in the order of `units`
            row = outcome.value if outcome.ok else reject(outcome.error)

An engine is one file here and one line in `ENGINES`; the conformance suite runs over all of them.

An engine may expect of the work:

- The function stands at the top level of a module, and pickles with its units.
- A unit is self-contained and idempotent (it may run twice), and reads and writes the store itself.
- A unit takes seconds to minutes, and returns a small row.

A unit's temporary files do not outlive its worker. A worker imports the function's module, so that module should not
import dagster (a second and 60 MiB for every worker).

The value of a unit comes back as plain data (`worker.encoded`): None, bool, int, float, str, bytes, paths, numpy
arrays, lists, tuples, sets, dicts, and those dataclasses that its return annotation names. A worker opens
untrusted files. So its answers are never unpickled, and it gets a short list of environment variables (`environment`).
"""

from collections.abc import Callable, Collection, Mapping

from loader.errors import InvalidRuntime

from .contract import Compute, Failure, Outcome, Progress
from .inline import InlineCompute
from .local import LocalCompute

__all__ = [
    "ENGINES",
    "Compute",
    "Failure",
    "InlineCompute",
    "LocalCompute",
    "Outcome",
    "Progress",
    "open_compute",
]

ENGINES: Mapping[str, Callable[[int | None, Collection[str]], Compute]] = {
    "local": LocalCompute,
    "inline": InlineCompute,
}
"""name -> function of the number of workers (None: one per core) and of further variables of the environment that they
get. A client is imported inside the function."""


def open_compute(engine: str, workers: int | None = None, variables: Collection[str] = ()) -> Compute:
    """Open an engine; close it after use. Raises: InvalidRuntime for a name or a number that is none."""
    if engine not in ENGINES:
        raise InvalidRuntime(f"compute engine {engine!r}; accepted: {', '.join(sorted(ENGINES))}")
    return ENGINES[engine](workers, variables)
