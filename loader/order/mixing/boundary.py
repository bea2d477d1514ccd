"""The treatment of a batch at the end of an epoch: `boundary="fill"` goes on into the next one, "mask" pads.

With "mask" every epoch is whole batches, ceil(N/B) of them, so no batch holds a sample twice. The slots after the
epoch's last sample are padding, and the next epoch begins with the next step.
"""

from collections.abc import Mapping

import numpy as np

from ...errors import InvalidPlan
from ..random.keyed_permutation import I64

FILL, MASK = "fill", "mask"


def check_boundary(boundary: object, sources: Mapping[str, object], segments: int, bucketed: bool) -> None:
    """Raise InvalidPlan for another value, and for "mask" with sources that have no common end of an epoch."""
    if boundary not in (FILL, MASK):
        raise InvalidPlan(f'boundary = {boundary!r}: "fill" or "mask" is needed')
    if boundary == FILL:
        return
    for there, what in (
        (len(sources) > 1 and not bucketed, f"{len(sources)} sources, whose epochs end at different steps"),
        (bucketed, "buckets, whose epochs end at different steps"),
        (segments > 1, "a schedule or a ramp, whose segments begin in the middle of an epoch"),
    ):
        if there:
            raise InvalidPlan(
                f'boundary = "mask" with {what}: it is for one source alone. With "fill" nothing is lost, and a batch '
                "across an epoch's end goes on into the next epoch"
            )


def epoch_steps(n: int, batch: int) -> int:
    """Return the steps of an epoch of n samples under "mask": ceil(n / batch)."""
    return -(-n // batch)


def whole_epochs(n: int, batch: int, step: int) -> tuple[I64, I64]:
    """Return (epoch, position in it) of each slot of a step in stream order under "mask", int64 [batch] each.

    Slots at positions from n on are padding. O(batch).
    """
    epoch, own = divmod(step, epoch_steps(n, batch))
    return np.full(batch, epoch, np.int64), np.arange(own * batch, (own + 1) * batch, dtype=np.int64)
