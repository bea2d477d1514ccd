"""A rank's part of a step, slot by slot: of its values one slot's are in memory, whatever the number of slots."""

from collections.abc import Container, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

import loader
from loader.errors import Corrupt
from loader.order.steps.slots import rank_slice
from loader.run.trail.slot_columns import SlotColumns

from .replayed_values import TakeValues
from .token_texts import TokenTexts


class ReplayedPart:
    """A `PartValues` that is made as it is asked for."""

    crc32c: Mapping[str, int]
    digest: int
    ids: list[tuple[str, str] | None]
    errors: Mapping[int, str]

    def __init__(
        self,
        replay: loader.Replay,
        step: int,
        part: tuple[int, int],
        framework: str,
        tokenizers: Mapping[str, Any],
        settled: bool | None,
    ) -> None:
        """part: rank and world size. tokenizers: as of `Replays`. settled: answer of `Replay.settle`."""
        self._replay, self._tokenizers = replay, tokenizers
        self.step, (self.rank, self.world_size), self.settled = step, part, settled
        mine = rank_slice(replay.plan.batch_size(step), *part)
        self.first_slot, n = mine.start, mine.stop - mine.start
        self._columns = SlotColumns(n, framework)
        self._sources = replay.slots(step, *part).source.tolist()

    def source(self, slot: int) -> str:
        """Return the source of a slot of the part."""
        return str(self._replay.plan.source_names[self._sources[slot]])

    def names(self) -> list[str]:
        """Return every field, in the order in which the samples brought them up."""
        return self._columns.names

    def each(self, take: TakeValues) -> None:
        """Give the values of every slot to `take`: those that take memory as they are made, then the others."""
        texts = TokenTexts(self._tokenizers)

        def taken(slot: int, sample: dict[str, Any]) -> None:
            values = self._columns.add(slot, sample)
            if slot >= 0:
                take(slot, values, texts(values))

        batch = self._replay.each(self.step, taken, self.rank, self.world_size)
        for slot, values in self._columns.numbers().items():
            take(slot, values, texts(values))
        self.digest, self.ids, self.crc32c = batch.digest, batch.ids, self._columns.crcs()
        self.errors = {
            one.slot: one.error for one in batch.substitutions if not one.attempt and not one.substitute
        }

    def again(self, slots: Container[int], take: TakeValues) -> None:
        """Give the values of some slots to `take` once more: each is made as a part of its own."""
        n = self._replay.plan.batch_size(self.step)
        for slot in range(len(self._sources)):
            if slot in slots:
                with suppress(Corrupt):  # it could be read a moment ago
                    self._replay.each(self.step, partial(self._alone, slot, take), self.first_slot + slot, n)

    def _alone(self, slot: int, take: TakeValues, _: int, sample: dict[str, Any]) -> None:
        columns = SlotColumns(1, self._columns.framework)
        values = columns.add(0, sample)
        take(slot, values | columns.numbers()[0], {})
