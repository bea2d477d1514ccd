"""The slots of a step as one rank sees them."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..errors import InvalidRuntime
from ..order.assign import rank_slice
from ..order.keys import I64
from ..order.slots import Slots
from .recipe import Recipe


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RankSlots:
    """slots: of the global batch, as planned and then as delivered: a substitute is written into them. mine: int64, the
    numbers of this rank's. valid: bool, which of these are no padding. wanted: int64, the numbers of the slots to read;
    those of `real`, or one of another rank."""

    slots: Slots
    mine: I64
    valid: NDArray[np.bool_]
    wanted: I64

    @property
    def real(self) -> I64:
        """The numbers of this rank's slots that are no padding."""
        return self.mine[self.valid]

    @property
    def first(self) -> int:
        """The slot whose sample is row 0 of what is read."""
        return int(self.wanted[0]) if self.shape_only else int(self.mine[0])

    @property
    def n_rows(self) -> int:
        """Rows of what is read: this rank's slots, or one."""
        return 1 if self.shape_only else len(self.mine)

    @property
    def shape_only(self) -> bool:
        """Whether all of the rank is padding: the sample that is read only tells what shapes the batch has."""
        return not self.valid.any()


def rank_slots(recipe: Recipe, step: int) -> RankSlots:
    """The slots of a step. Raises: InvalidRuntime where all are padding: after the last epoch."""
    slots = recipe.plan.slots(step)
    everyone = _valid(recipe, slots)
    if not everyone.any():
        raise InvalidRuntime(f"step = {step} lies after the last epoch of this Loader; seek further back")
    mine = _mine(recipe, slots)
    valid = everyone[mine]
    wanted = mine[valid] if valid.any() else np.flatnonzero(everyone)[:1]
    return RankSlots(slots=slots, mine=mine, valid=valid, wanted=wanted)


def real_slots(recipe: Recipe, step: int) -> tuple[Slots, I64]:
    """The slots of a step, and which of them the rank reads; none after the last epoch."""
    slots = recipe.plan.slots(step)
    mine = _mine(recipe, slots)
    return slots, mine[_valid(recipe, slots)[mine]]


def _mine(recipe: Recipe, slots: Slots) -> I64:
    return np.arange(len(slots))[rank_slice(len(slots), recipe.world.rank, recipe.world.world_size)]


def _valid(recipe: Recipe, slots: Slots) -> NDArray[np.bool_]:
    limit = recipe.position_limit
    return slots.valid if limit is None else slots.valid & (slots.position < limit)
