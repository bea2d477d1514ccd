"""Run units in the caller's thread, for debugging and tests. Isolates nothing."""

import pickle
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TypeVar

from loader.errors import InvalidRuntime

from .answers import Types, answer_types, decoded
from .contract import Outcome, Progress, check_workers, checked, checked_limits, failure_of
from .worker import encoded

T = TypeVar("T")
R = TypeVar("R")


class InlineCompute:
    """Engine that runs a unit when its outcome is requested.

    Units are pickled and values encoded, so the same code works with other engines. Time limits are ignored.
    """

    isolates = False

    def __init__(self, workers: int | None = None, variables: Collection[str] = ()) -> None:
        check_workers(workers)
        self._closed = False

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
        """See `Compute.map`."""
        checked_limits(timeout_s, len(units))
        return self._outcomes(checked(function), units, progress)

    def _outcomes(
        self, pickled: bytes, units: Sequence[T], progress: Progress | None
    ) -> Iterator[Outcome[R]]:
        function: Callable[[T], R] = pickle.loads(pickled)  # noqa: S301 - our own
        types = answer_types(function)
        for position, unit in enumerate(units):
            if self._closed:
                raise InvalidRuntime("this engine was closed; open another one")
            outcome = _outcome(function, unit, types)
            if progress is not None:
                progress(position + 1, len(units))
            yield outcome

    def close(self) -> None:
        """See `Compute.close`."""
        self._closed = True


def _outcome(function: Callable[[T], R], unit: T, types: Types) -> Outcome[R]:
    try:
        value = function(pickle.loads(pickle.dumps(unit, protocol=5)))  # noqa: S301 - our own
        return Outcome(value=decoded(encoded(value), types))
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever the function raises is the outcome
        return Outcome(error=failure_of(error))
