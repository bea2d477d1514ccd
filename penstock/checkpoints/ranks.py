"""What ranks tell each other beside what torch.distributed.checkpoint does, and errors as the rank raised them."""

from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


def first_error(call: Callable[[], T]) -> T:
    """What a call gives. Raises: the lowest rank's error itself, where torch wraps those of all ranks in one."""
    from torch.distributed.checkpoint.api import CheckpointException

    try:
        return call()
    except CheckpointException as wrapped:
        rank, (error, _) = min(wrapped.failures.items(), key=lambda failure: failure[0])
        error.add_note(f"raised by rank {rank}")
        raise error from None


def from_first_rank(call: Callable[[], T], group: Any) -> T:
    """What the group's first rank's call gives, on every rank. Raises: what it raised there, on every rank.

    group: a process group, or None for a process by itself.
    """
    if group is None:
        return call()
    from torch import distributed

    said: list[Any] = [None, None]
    if distributed.get_rank(group) == 0:
        try:
            said[0] = call()
        except Exception as error:  # noqa: BLE001 - it is raised on every rank
            said[1] = error
    distributed.broadcast_object_list(said, src=distributed.get_global_rank(group, 0), group=group)
    found, raised = said
    if raised is not None:
        raise raised
    return found  # type: ignore[no-any-return]
