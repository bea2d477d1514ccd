"""Load the checkpoint at which a start goes on. All ranks load the same one: the first rank chooses it."""

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from loader.errors import CorruptCheckpoint

if TYPE_CHECKING:
    from .run_checkpoints import BatchPosition, Checkpoints

_log = logging.getLogger(__name__)
BY = "the run's own start"
"""Name in the record of a checkpoint that a start set aside."""
T = TypeVar("T")


class First(Protocol):
    """Returns a call's result on the first rank to every rank."""

    def __call__(self, call: Callable[[], T], /) -> T: ...


def load_newest(
    saved: "Checkpoints",
    state: dict[str, Any],
    batches: "BatchPosition",
    first: First,
    note: Callable[..., None] | None,
) -> bool:
    """Load the newest checkpoint without damage; return whether there is a checkpoint.

    The first rank reads a damaged object again, and sets its checkpoint aside. Every rank then loads the one before,
    which fills the whole state again. An error of the store sets nothing aside.

    note: Called with `checkpoint=` the step and `reason=`; None lets damage raise, without a launcher.

    Raises: as `Checkpoints.load`; CorruptCheckpoint without an earlier one; Corrupt if one of the step was set aside
    before.
    """
    while True:
        try:
            restored = saved.load(state, batches) is not None
        except CorruptCheckpoint as error:
            if note is None:
                raise
            damage = error  # the same on every rank
        else:
            for near in saved.near_rejections:
                if note is not None:
                    note(checkpoint=near.step, reason=near.reason)
            return restored
        # One rank decides by its own read: the damage may be of another node's memory.
        aside = first(lambda damage=damage: saved.set_damaged_aside(damage, by=BY))  # type: ignore[misc]
        _log.warning(
            "the checkpoint of step %d was set aside, and the run goes on at the one before: %s",
            aside.step,
            aside.reason,
        )
        note(checkpoint=aside.step, reason=aside.reason)
