"""Worker processes on one machine, behind one interface, `map(function, units)`.

- The function is at the top level of a module without dagster, and can be pickled with its units.
- A unit is self-contained, idempotent (it may run twice), takes seconds to minutes, and returns a small row.
- Answers are plain data (`worker.encode_result`), never unpickled: a worker opens untrusted files.
"""

from collections.abc import Callable, Collection, Mapping

from loader.errors import InvalidRuntime

from .contract import Compute, Failure, Outcome, Progress
from .local import InlineCompute, LocalCompute
from .worker import is_fault

__all__ = [
    "ENGINES",
    "Compute",
    "Failure",
    "InlineCompute",
    "LocalCompute",
    "Outcome",
    "Progress",
    "is_fault",
    "open_compute",
]

ENGINES: Mapping[str, Callable[[int | None, Collection[str]], Compute]] = {
    "local": LocalCompute,
    "inline": InlineCompute,
}
"""Name -> factory, called with the number of workers (None: one per core) and more environment variables."""


def open_compute(engine: str, workers: int | None = None, variables: Collection[str] = ()) -> Compute:
    """Open an engine; close it after use. Raises: InvalidRuntime."""
    if engine not in ENGINES:
        raise InvalidRuntime(
            f"compute engine {engine!r}; accepted: {', '.join(sorted(ENGINES))}",
            what="engine",
            given=engine,
            accepted=sorted(ENGINES),
        )
    return ENGINES[engine](workers, variables)
