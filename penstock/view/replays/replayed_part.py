"""A rank's part of a step, slot by slot: of its values one slot's are in memory, whatever the number of slots."""

from collections.abc import Container, Mapping
from contextlib import suppress
from functools import partial
from threading import local
from typing import Any

import loader
from loader.errors import Corrupt
from loader.modalities import DECODERS, Decoder
from loader.modalities.fields import last_word, load
from loader.order.steps.slots import rank_slice
from loader.run.recipe.recipe import stored_views
from loader.run.trail.slot_columns import SlotColumns
from penstock.units import length

from .replayed_values import TakeValues
from .token_texts import TokenTexts

MOST_SOUND_BYTES = 2**26
"""Bytes of samples that are decoded of a sound without a recipe, 4 a sample: 17 minutes at 16 kHz."""


class SoundStarts:
    """Decoders of sounds up to a limit, which note the fields that they cut. Thread-safe: each thread has its notes."""

    def __init__(self) -> None:
        self._notes = local()

    def decoders(self, plan: loader.Plan) -> dict[str, Decoder]:
        """Return field -> decoder, of the fields of a plan that are sounds."""
        fields = dict.fromkeys(field for view in stored_views(plan) for field in view.fields)
        sounds = [one for one in fields if DECODERS.get(last_word(one), "").startswith("audio.")]
        return {field: partial(self._start, field) for field in sounds}

    def taken(self) -> dict[str, str]:
        """Return field -> length of what was decoded, in words, of those that were cut since the last call."""
        found: dict[str, str] = self._notes.__dict__.copy()
        self._notes.__dict__.clear()
        return found

    def _start(self, field: str, data: bytes, rng: object) -> Any:
        samples, rate_hz, whole = load("audio.decode:read_start")(data, MOST_SOUND_BYTES)
        if not whole:
            self._notes.__dict__[field] = f"the first {length(samples.shape[1] / rate_hz)} are decoded"
        return samples


class ReplayedPart:
    """A `PartValues` that is made as it is asked for."""

    crc32c: Mapping[str, int]
    digest: int
    ids: list[tuple[str, str] | None]
    errors: Mapping[int, str]

    def __init__(
        self,
        replay: loader.Replay,
        place: tuple[int, int, int],
        framework: str,
        tokenizers: Mapping[str, Any],
        sounds: SoundStarts,
        settled: bool | None,
    ) -> None:
        """place: step, rank and world size. tokenizers: as of `Replays`. settled: answer of `Replay.settle`."""
        self._replay, self._tokenizers, self._sounds = replay, tokenizers, sounds
        self.cut: dict[int, Mapping[str, str]] = {}
        (self.step, self.rank, self.world_size), self.settled = place, settled
        mine = rank_slice(replay.plan.batch_size(self.step), *place[1:])
        self.first_slot, n = mine.start, mine.stop - mine.start
        self._columns = SlotColumns(n, framework)
        self._sources = replay.slots(*place).source.tolist()

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
            if cut := self._sounds.taken():
                self.cut[slot] = cut
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
