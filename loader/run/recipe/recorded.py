"""Substitutions on record, laid into the slots that had them: a look back delivers what the training got.

A sample that was corrupt at training and is repaired since keeps its substitute, and no sample is substituted anew.
"""

from collections.abc import Iterable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ...dataset.shards.address import SampleAddress
from ...errors import InvalidRuntime
from ...order.plan import Plan
from ...order.random.keyed_permutation import I64
from ...order.steps.slots import Slots, substitutes


class Entry(Protocol):
    """The part of a `Substitution` that is laid in."""

    @property
    def step(self) -> int:
        """Global step."""

    @property
    def slot(self) -> int:
        """Number of the slot in the global batch."""

    @property
    def source(self) -> str:
        """Name of the plan's source."""

    @property
    def attempt(self) -> int:
        """Number of the substitute; 0 for a masked document."""

    @property
    def address(self) -> SampleAddress:
        """Place of the corrupt sample."""


class Recorded:
    """The substitutions of a plan's ledger, by step."""

    def __init__(self, plan: Plan, substitutions: Iterable[Entry]) -> None:
        """Take the entries of `read_ledger`. Raises: InvalidRuntime for one of a source that the plan does not have."""
        self._plan = plan
        self._attempts: dict[int, dict[int, int]] = {}
        self._masked: dict[int, set[tuple[int, int]]] = {}
        for one in substitutions:
            if one.source not in plan.source_names:
                raise InvalidRuntime(
                    f"a substitution of step {one.step} is of source {one.source!r}, and the plan {plan.hash[:14]} has "
                    f"{', '.join(plan.source_names)}; pass the entries of loader.read_ledger(root, plan)"
                )
            if one.attempt:
                slots = self._attempts.setdefault(one.step, {})
                slots[one.slot] = max(one.attempt, slots.get(one.slot, 0))
            else:
                self._masked.setdefault(one.step, set()).add((one.slot, one.address.ordinal))

    def lay_in(self, step: int, slots: Slots, number: I64) -> None:
        """Write the substitutes that a step had into its slots. number: int64, of each its number in the batch."""
        for slot, attempt in self._attempts.get(step, {}).items():
            for row in np.flatnonzero(number == slot).tolist():
                source, position = int(slots.source[row]), int(slots.position[row])
                for tried, view_ordinal, ordinal in substitutes(self._plan, step, source, position):
                    if tried == attempt:
                        slots.attempt[row], slots.view_ordinal[row], slots.ordinal[row] = (
                            attempt,
                            view_ordinal,
                            ordinal,
                        )

    def masked(self, step: int, number: I64, document: I64) -> NDArray[np.bool_]:
        """Return bool [pieces]: True where a document was masked in its slot.

        number: int64 [pieces], of the slot in the batch. document: int64 [pieces], version ordinals.
        """
        known = self._masked.get(step, set())
        pairs = zip(number.tolist(), document.tolist(), strict=True)
        return np.array([pair in known for pair in pairs], np.bool_)
