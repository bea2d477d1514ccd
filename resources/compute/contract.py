"""What every compute engine takes and gives."""

import math
import pickle
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, Protocol, TypeVar

from loader.errors import InvalidRuntime, Unpicklable

from .worker import described

T = TypeVar("T")
R = TypeVar("R")
Code = Literal["exception", "timeout", "crashed", "memory"]
Progress = Callable[[int, int], None]
"""(units done, units in all); in the thread that iterates, done never goes back and ends at the total."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why a unit has no value.

    exception: the function raised, its unit does not pickle, or its value is not plain; timeout: it took longer than
    it may; crashed: its process died (signal, exit); memory: it raised MemoryError.
    reason: the first line says it all; lines after it are the end of the traceback.
    """

    code: Code
    reason: str

    @property
    def summary(self) -> str:
        """The first line of the reason."""
        return self.reason.partition("\n")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome(Generic[R]):
    """What came of one unit: the function's value, or the failure. A value may be None."""

    value: R | None = None
    error: Failure | None = None

    @property
    def ok(self) -> bool:
        """Whether the function returned."""
        return self.error is None


class Compute(Protocol):
    """An engine. Thread-safe: maps may run side by side, and share its workers."""

    isolates: bool
    """Whether a unit that hangs or kills its process costs only itself; without it timeout_s is not kept."""

    def map(
        self,
        function: Callable[[T], R],
        units: Sequence[T],
        *,
        timeout_s: float,
        progress: Progress | None = None,
        variables: Collection[str] = (),
    ) -> Iterator[Outcome[R]]:
        """One outcome per unit, in the order of `units`, lazily: nothing runs before the first is asked for.

        Memory stays flat over any number of units: only so many run ahead of the consumer. Closing the
        iterator (or an exception in the consumer) cancels what runs and leaves no process of it behind.
        timeout_s: for each unit by itself, > 0; the start of a worker and its imports do not count. variables: names of
        the environment's variables that these workers need besides the short list, or 'AWS_*' for all that begin so.

        Raises: Unpicklable for a function that no worker can receive; InvalidRuntime for a timeout that is
        none, workers that cannot be started, an engine that was closed. What `progress` raises comes through.
        """
        ...

    def close(self) -> None:
        """Cancel every map and end every worker. Once is enough, twice does no harm."""
        ...


def checked(function: Callable[[Any], Any], timeout_s: float) -> bytes:
    """The function as bytes. Raises: Unpicklable; InvalidRuntime."""
    if not (isinstance(timeout_s, int | float) and 0 < timeout_s < math.inf):
        raise InvalidRuntime(f"timeout_s={timeout_s!r}; accepted: a finite number of seconds above 0")
    try:
        return pickle.dumps(function, protocol=5)
    except Exception as error:
        raise Unpicklable(
            f"{function!r} cannot be sent to a worker ({error}); give a function at the top level of a module, "
            "or functools.partial of one with arguments that pickle"
        ) from error


def check_workers(workers: int | None) -> int | None:
    """The number itself. Raises: InvalidRuntime."""
    if workers is not None and (not isinstance(workers, int) or workers < 1):
        raise InvalidRuntime(f"workers={workers!r}; accepted: 1 or more, or None for one per core")
    return workers


def failure_of(error: BaseException) -> Failure:
    """What an exception comes to."""
    code, reason = described(error)
    return Failure(code="memory" if code == "memory" else "exception", reason=reason)
