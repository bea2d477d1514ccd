"""Results and errors shared among ranks, and functions mapped over items in bounded memory."""

from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future
from contextvars import copy_context
from functools import partial
from typing import Any, TypeVar

from loader.storage.threads import DaemonPool

AT_ONCE = 4
"""Parts in flight per process, 64 MiB each; more are hardly faster."""

T = TypeVar("T")
R = TypeVar("R")


def map_in_order(
    call: Callable[[T], R], items: Iterable[T], *, at_once: int = AT_ONCE
) -> Generator[R, None, None]:
    """Yield `call` of each item, in order.

    An error is raised at its item's turn. Closing waits for running calls, which may be filling the caller's memory.
    """
    pool = DaemonPool(at_once, "penstock-checkpoint")
    going: deque[Future[R]] = deque()
    try:
        for item in items:
            # Waits for the oldest before the next begins, which bounds the memory.
            if len(going) == at_once:
                yield going.popleft().result()
            # With the caller's context: `patient()` is a context variable.
            going.append(pool.submit(copy_context().run, partial(call, item)))
        while going:
            yield going.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


def first_error(call: Callable[[], T]) -> T:
    """Return `call`'s result, or raise the lowest rank's error, unwrapped from torch's."""
    from torch.distributed.checkpoint.api import CheckpointException

    try:
        return call()
    except CheckpointException as wrapped:
        # Every rank has all failures. The lowest rank's, so that all of them raise the same error.
        rank, (error, _) = min(wrapped.failures.items(), key=lambda failure: failure[0])
        error.add_note(f"raised by rank {rank}")
        raise error from None


def from_first_rank(call: Callable[[], T], group: Any) -> T:
    """Return the first rank's result, or raise its error, on every rank. group: None for a single process."""
    if group is None:
        return call()
    from torch import distributed

    message: list[Any] = [None, None]
    if distributed.get_rank(group) == 0:
        try:
            message[0] = call()
        except Exception as error:  # noqa: BLE001 - it is raised on every rank
            message[1] = error
    distributed.broadcast_object_list(message, src=distributed.get_global_rank(group, 0), group=group)
    value, raised = message
    if raised is not None:
        raise raised
    return value  # type: ignore[no-any-return]


def from_all_ranks(value: T, group: Any = None) -> list[T]:
    """Return the value of each rank of a group, in their order. Every rank calls it. group: None for the default."""
    from torch import distributed

    if not distributed.is_initialized():
        return [value]
    values: list[Any] = [None] * distributed.get_world_size(group)
    distributed.all_gather_object(values, value, group=group)
    return values


def on_every_rank(call: Callable[[], T], group: Any) -> T:
    """Return this rank's result, or raise the first rank's error on all. group: None for a single process."""
    problem: Exception | None = None
    try:
        result = call()
    except Exception as error:  # noqa: BLE001 - it is raised on every rank
        problem = error
    problems = [problem]
    if group is not None:
        problems = from_all_ranks(problem, group)
    for raised in problems:
        if raised is not None:
            raise raised
    return result
