"""Substitutions on record, laid into the slots that had them: a look back delivers what the training got.

A sample that was corrupt at training and is repaired since keeps its substitute, and no sample is substituted anew.
"""

from collections.abc import Iterable, Mapping
from itertools import chain, combinations
from typing import NamedTuple, Protocol

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


MOST_APART = 6
"""Masked documents of a slot, of which any may be another run's; of more all or none."""


class Laid(NamedTuple):
    """The part of a ledger's entries that a slot had."""

    attempt: int = 0
    """Number of the substitute; 0 for none."""
    masked: frozenset[int] = frozenset()
    """Version ordinals of its masked documents."""


class Recorded:
    """The substitutions of a plan's ledger, by step.

    A ledger lists those of all runs of the plan. Unless `choose` says which of them a step had, it has all.
    """

    def __init__(self, plan: Plan, substitutions: Iterable[Entry]) -> None:
        """Take the entries of `read_ledger`. Raises: InvalidRuntime for one of a source that the plan does not have."""
        self._plan = plan
        self._steps: dict[int, dict[int, Laid]] = {}
        self._chosen: dict[int, dict[int, Laid]] = {}
        for entry in substitutions:
            if entry.source not in plan.source_names:
                raise InvalidRuntime(
                    f"a substitution of step {entry.step} is of source {entry.source!r}, and the plan "
                    f"{plan.hash[:14]} has {', '.join(plan.source_names)}; pass "
                    "the entries of loader.read_ledger(root, plan)"
                )
            slots = self._steps.setdefault(entry.step, {})
            known = slots.get(entry.slot, Laid())
            masked = known.masked if entry.attempt else known.masked | {entry.address.ordinal}
            slots[entry.slot] = Laid(max(entry.attempt, known.attempt), masked)

    def has(self, step: int) -> bool:
        """Return whether a step has entries."""
        return step in self._steps

    def options(self, step: int, slots: range) -> dict[int, list[Laid]]:
        """Return slot -> everything that it may have had, of the slots that have entries; first all of these."""
        of_step = self._steps.get(step, {})
        return {slot: _options(of_step[slot]) for slot in slots if slot in of_step}

    def choose(self, step: int, chosen: Mapping[int, Laid]) -> None:
        """Set the entries that slots of a step had. The other slots have all of theirs."""
        self._chosen[step] = dict(chosen)

    def _of(self, step: int) -> dict[int, Laid]:
        return self._steps.get(step, {}) | self._chosen.get(step, {})

    def lay_in(self, step: int, slots: Slots, number: I64) -> None:
        """Write the substitutes that a step had into its slots. number: int64, of each its number in the batch."""
        for slot, (attempt, _) in self._of(step).items():
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
        known = self._of(step)
        pairs = zip(number.tolist(), document.tolist(), strict=True)
        return np.array([ordinal in known.get(slot, Laid()).masked for slot, ordinal in pairs], np.bool_)


def _options(all_of_it: Laid) -> list[Laid]:
    documents = sorted(all_of_it.masked)
    sizes = range(len(documents), -1, -1) if len(documents) <= MOST_APART else (len(documents), 0)
    subsets = chain.from_iterable(combinations(documents, n) for n in sizes)
    masked = [frozenset(ordinals) for ordinals in subsets]
    return [Laid(attempt, ordinals) for attempt in range(all_of_it.attempt, -1, -1) for ordinals in masked]
