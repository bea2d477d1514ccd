"""The interface of every compute engine."""

import math
import pickle
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, Protocol, TypeVar, cast

from loader.errors import InvalidRuntime, Unpicklable

from .worker import described

T = TypeVar("T")
R = TypeVar("R")
Code = Literal["exception", "timeout", "crashed", "memory"]
Progress = Callable[[int, int], None]
"""(units done, units in all); in the thread that iterates, done never goes back and ends at the total."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Reason why a unit has no value."""

    code: Code
    """"exception": the function raised, its unit does not pickle, or its value is not plain. "timeout": it took too
    long. "crashed": its process died (signal, exit). "memory": it raised MemoryError."""
    reason: str
    """The first line is the summary; lines after it are the end of the traceback."""

    @property
    def summary(self) -> str:
        """The first line of the reason."""
        return self.reason.partition("\n")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome(Generic[R]):
    """Result of one unit: the function's value, or the failure."""

    value: R | None = None
    """Value of the function, which may be None; None for a failure."""
    error: Failure | None = None
    """The failure; None where the function returned."""

    @property
    def ok(self) -> bool:
        """True where the function returned."""
        return self.error is None


class Compute(Protocol):
    """An engine. Thread-safe: maps may run side by side, and share its workers."""

    isolates: bool
    """True where a unit that hangs or kills its process costs only itself; otherwise timeout_s is not kept."""

    def map(
        self,
        function: Callable[[T], R],
        units: Sequence[T],
        *,
        timeout_s: float | Sequence[float],
        progress: Progress | None = None,
        variables: Collection[str] = (),
        gpus: Sequence[str] = (),
    ) -> Iterator[Outcome[R]]:
        """Yield one outcome per unit, in the order of `units`, lazily: nothing runs before the first is asked for.

        Memory stays flat over any number of units: only so many run ahead of the consumer. Closing the iterator (or an
        exception in the consumer) cancels the running units and leaves no process behind.

        timeout_s: seconds for each unit by itself, > 0, one for all or one of each. The start of a worker and its
        imports do not count.

        variables: names of environment variables that these workers need besides the short list; 'AWS_*' names all that
        begin so.

        gpus: shares of GPUs (`gpus.shares`), one of which each unit has for itself while it runs: its worker sees no
        others. Empty for units that take none.

        Raises: Unpicklable for a function that no worker can receive; InvalidRuntime for a timeout that is none, for
        another number of them than of units, workers that cannot be started, an engine that was closed. Errors of
        `progress` come through.
        """
        ...

    def close(self) -> None:
        """Cancel every map and end every worker. Once is enough, twice does no harm."""
        ...


def checked_limits(timeout_s: float | Sequence[float], n_units: int) -> Sequence[float]:
    """Return the time limit of each unit, in s. Raises: InvalidRuntime."""
    each = list(timeout_s) if isinstance(timeout_s, list | tuple) else None
    if each is not None and len(each) != n_units:
        raise InvalidRuntime(f"{len(each)} timeouts for {n_units} units; give one for all, or one of each")
    for limit_s in [timeout_s] if each is None else each:
        if not (isinstance(limit_s, int | float) and 0 < limit_s < math.inf):
            raise InvalidRuntime(f"timeout_s={limit_s!r}; accepted: a finite number of seconds above 0")
    return [cast("float", timeout_s)] * n_units if each is None else each


def checked(function: Callable[[Any], Any]) -> bytes:
    """Return the function as bytes. Raises: Unpicklable."""
    try:
        return pickle.dumps(function, protocol=5)
    except Exception as error:
        raise Unpicklable(
            f"{function!r} cannot be sent to a worker ({error}); give a function at the top level of a module, "
            "or functools.partial of one with arguments that pickle"
        ) from error


def check_workers(workers: int | None) -> int | None:
    """Return the number of workers itself. Raises: InvalidRuntime."""
    if workers is not None and (not isinstance(workers, int) or workers < 1):
        raise InvalidRuntime(f"workers={workers!r}; accepted: 1 or more, or None for one per core")
    return workers


def failure_of(error: BaseException) -> Failure:
    """Return the failure of an exception."""
    code, reason = described(error)
    return Failure(code="memory" if code == "memory" else "exception", reason=reason)
