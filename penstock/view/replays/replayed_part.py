"""Replay a rank's part of a step slot by slot, with only one slot's values in memory at a time."""

from collections.abc import Container, Mapping
from contextlib import suppress
from functools import partial
from typing import Any
from weakref import finalize

import loader
from loader.errors import Corrupt
from loader.modalities import DECODERS, Decoder
from loader.modalities.fields import Buffer, last_word, load
from loader.order.steps.slots import rank_slice
from loader.run.recipe.recipe import stored_views
from loader.run.trail.slot_columns import SlotColumns

from ...units import length
from .replayed_values import TakeValues
from .token_texts import TokenTexts

MOST_AUDIO_BYTES = 2**26
"""Most bytes decoded per audio field if there is no recipe, at 4 per sample: 17 minutes at 16 kHz."""


class AudioStarts:
    """Audio decoders that cut long audio, and record which live values they cut. Thread-safe."""

    def __init__(self) -> None:
        self.notes: dict[int, str] = {}
        """`id` of a cut value -> text about its length."""

    def decoders(self, plan: loader.Plan) -> dict[str, Decoder]:
        """Return field -> decoder, for a plan's audio fields."""
        fields = dict.fromkeys(field for view in stored_views(plan) for field in view.fields)
        audio = [one for one in fields if DECODERS.get(last_word(one), "").startswith("audio.")]
        return dict.fromkeys(audio, self.start)

    def cut(self, decoded: Mapping[str, Any]) -> dict[str, str]:
        """Return field -> text about its length, for a sample's cut values."""
        return {name: self.notes[id(value)] for name, value in decoded.items() if id(value) in self.notes}

    def start(self, data: Buffer, rng: object) -> Any:
        samples, rate_hz, whole = load("audio.decode:read_start")(data, MOST_AUDIO_BYTES)
        if not whole:
            self.notes[id(samples)] = f"the first {length(samples.shape[1] / rate_hz)} are decoded"
            finalize(samples, self.notes.pop, id(samples)).atexit = False
        return samples


class ReplayedPart:
    """A `PartValues` that decodes on demand."""

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
        audio_starts: AudioStarts,
        settled: bool | None,
    ) -> None:
        """place: (step, rank, world size). tokenizers: as in `Replays`. settled: result of `Replay.settle`."""
        self._replay, self._tokenizers, self._audio_starts = replay, tokenizers, audio_starts
        self.cut: dict[int, Mapping[str, str]] = {}
        (self.step, self.rank, self.world_size), self.settled = place, settled
        part_slice = rank_slice(replay.plan.batch_size(self.step), *place[1:])
        self.first_slot, n = part_slice.start, part_slice.stop - part_slice.start
        self._columns = SlotColumns(n, framework)
        self._sources = replay.slots(*place).source.tolist()

    def source(self, slot: int) -> str:
        return str(self._replay.plan.source_names[self._sources[slot]])

    def names(self) -> list[str]:
        return self._columns.names

    def each(self, take: TakeValues) -> None:
        """Pass every slot's values to `take`, large values first."""
        texts = TokenTexts(self._tokenizers)

        def add_values(slot: int, sample: dict[str, Any]) -> None:
            values = self._columns.add(slot, sample)
            if cut := self._audio_starts.cut(sample):
                self.cut[slot] = cut
            if slot >= 0:
                take(slot, values, texts(values))

        batch = self._replay.each(self.step, add_values, self.rank, self.world_size)
        for slot, values in self._columns.numbers().items():
            take(slot, values, texts(values))
        self.digest, self.ids, self.crc32c = batch.digest, batch.ids, self._columns.crcs()
        self.errors = {
            one.slot: one.error for one in batch.substitutions if not one.attempt and not one.substitute
        }

    def crcs_of(self, slot: int, sample: Mapping[str, Any]) -> Mapping[str, int]:
        return self._columns.crcs_of(slot, sample)

    def again(self, slots: Container[int], take: TakeValues) -> None:
        """Replay some slots, each as its own part, and pass their values to `take`."""
        n = self._replay.plan.batch_size(self.step)
        for slot in range(len(self._sources)):
            if slot in slots:
                with suppress(Corrupt):  # it was readable a moment ago
                    self._replay.each(self.step, partial(self._alone, slot, take), self.first_slot + slot, n)

    def _alone(self, slot: int, take: TakeValues, _: int, sample: dict[str, Any]) -> None:
        columns = SlotColumns(1, self._columns.framework)
        values = columns.add(0, sample)
        take(slot, values | columns.numbers()[0], {})
