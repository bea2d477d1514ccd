"""The interface of every compute engine."""

import math
import pickle
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, Protocol, TypeVar, cast

from loader.errors import InvalidRuntime, Unpicklable, WorkerFailed

from .worker import FAULT, describe_failure

T = TypeVar("T")
R = TypeVar("R")
Code = Literal["exception", "timeout", "crashed", "memory"]
Progress = Callable[[int, int], None]
"""Receives (units done, total) in the iterating thread; at the end, both are equal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why a unit has no value."""

    code: Code
    """"exception" (raised, or unit or value cannot be sent), "timeout", "crashed" (process died) or "memory"."""
    reason: str
    """Summary on the first line, followed by the end of the traceback."""

    @property
    def summary(self) -> str:
        """The first line of the reason."""
        return self.reason.partition("\n")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome(Generic[R]):
    """One unit's result: a value or a failure."""

    value: R | None = None
    """Function's return value; None for a failure."""
    error: Failure | None = None
    """Failure, or None."""

    @property
    def ok(self) -> bool:
        return self.error is None


class Compute(Protocol):
    """A compute engine. Thread-safe: concurrent maps share its workers."""

    isolates: bool
    """True if a unit that hangs or kills its process affects no other unit."""

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
        """Yield one outcome per unit, in order, lazily: nothing runs before the first is requested.

        A bounded number of units runs ahead. Closing the iterator cancels running units and ends their processes.

        timeout_s: time limit per unit in s, > 0, without a worker's start: one for all or a list.
        variables: more environment variables of these workers; 'AWS_*' matches by prefix.
        gpus: shares of GPUs (`environment.shares`), one exclusively for each running unit.

        Raises: WorkerFailed if code or machine fails in a worker (`is_fault`), which is no unit's outcome; Unpicklable
        if no worker can receive the function; InvalidRuntime if a timeout is invalid, no worker can start or the engine
        is closed; errors of `progress`.
        """
        ...

    def close(self) -> None:
        """Cancel every map and end every worker. Idempotent."""
        ...


def check_limits(timeout_s: float | Sequence[float], n_units: int) -> Sequence[float]:
    """Return each unit's time limit, in s. Raises: InvalidRuntime."""
    each = None
    if isinstance(timeout_s, list | tuple):
        each = list(timeout_s)
    if each is not None and len(each) != n_units:
        raise InvalidRuntime(
            f"{len(each)} timeouts for {n_units} units; give one for all, or one of each",
            what="timeout_s",
            given=len(each),
            accepted=n_units,
        )
    for limit_s in [timeout_s] if each is None else each:
        if not (isinstance(limit_s, int | float) and 0 < limit_s < math.inf):
            raise InvalidRuntime(
                f"timeout_s={limit_s!r}; accepted: a finite number of seconds above 0",
                what="timeout_s",
                given=limit_s,
                accepted="a finite number of seconds above 0",
            )
    if each is None:
        return [cast("float", timeout_s)] * n_units
    return each


def pickle_function(function: Callable[[Any], Any]) -> bytes:
    """Pickle a function. Raises: Unpicklable."""
    try:
        return pickle.dumps(function, protocol=5)
    except Exception as error:
        raise Unpicklable(
            f"{function!r} cannot be sent to a worker ({error}); give a function at the top level of a module, "
            "or functools.partial of one with arguments that pickle",
            what="function",
            given=repr(function),
        ) from error


def check_workers(workers: int | None) -> int | None:
    """Return `workers` unchanged. Raises: InvalidRuntime if it is invalid."""
    if workers is not None and (not isinstance(workers, int) or workers < 1):
        raise InvalidRuntime(
            f"workers={workers!r}; accepted: 1 or more, or None for one per core",
            what="workers",
            given=workers,
            accepted="1 or more, or None",
        )
    return workers


def error_failure(error: BaseException) -> Failure:
    """Return an error as its unit's failure. Raises: WorkerFailed if code or machine failed."""
    return build_failure(*describe_failure(error))


def build_failure(code: str, reason: str) -> Failure:
    """Return a failure, as `described` words it. Raises: WorkerFailed if code or machine failed."""
    if code == FAULT:
        raise WorkerFailed(
            f"code or machine failed in a worker, which is not a verdict on the data: {reason}\n"
            "Repair the cause, and run this again",
            what=code,
            given=reason,
        )
    return Failure(code="memory" if code == "memory" else "exception", reason=reason)
