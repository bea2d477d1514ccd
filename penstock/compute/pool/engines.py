"""The engines there are."""

from collections.abc import Callable, Collection, Mapping

from loader.errors import InvalidRuntime

from .contract import Compute
from .inline import InlineCompute
from .local import LocalCompute

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
