"""Rows of one source whose items are made together."""

import numpy as np

from ...order.plan import Plan
from ...order.random.generators import item_words
from ...order.random.keyed_permutation import I64
from ...order.slots import Slots
from ..recipe import slot_generators
from .item_seeds import Words


class RequestedItems:
    """Rows of one source in a rank's slots, and the random numbers of their items."""

    def __init__(
        self,
        plan: Plan,
        source_name: str,
        slots: Slots,
        rows: I64,
    ) -> None:
        self._plan = plan
        self._source_name = source_name
        self._slots = slots
        self._rows = rows
        self.ordinals: list[int] = slots.ordinal[rows].tolist()

    def single(self, number: int) -> "RequestedItems":
        """Return the request for one of the rows."""
        row = self._rows[number : number + 1]
        return RequestedItems(
            self._plan,
            self._source_name,
            self._slots,
            row,
        )

    def generator(self, number: int) -> np.random.Generator:
        """Return the generator of a row's transform."""
        row = int(self._rows[number])
        key = slot_generators.generator_key(self._plan, self._slots, row)
        return slot_generators.transform_generator(key)

    def words(self) -> Words:
        """Return the numbers that seed each row's item: a function of (seed, source, epoch, ordinal)."""
        words: list[tuple[int, int]] = [(0, 0)] * len(self._rows)
        # [n]: mostly one epoch, two where one ends within the batch
        epochs = self._slots.epoch[self._rows]
        for epoch in np.unique(epochs).tolist():
            numbers = np.flatnonzero(epochs == epoch)
            rows = self._rows[numbers]
            ordinals = self._slots.ordinal[rows]
            seeds = item_words(
                self._plan.seed,
                self._source_name,
                epoch,
                ordinals,
            )
            for number, words_of_item in zip(numbers.tolist(), seeds, strict=True):
                words[number] = words_of_item
        return words
