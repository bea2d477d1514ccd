"""Replay slots and batches of saved plans in this process, with a recipe's functions."""

import time
from collections import OrderedDict
from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from dataclasses import replace as dataclass_replace
from functools import partial
from threading import RLock
from typing import Any, Protocol
from weakref import finalize

import numpy as np

import loader
from loader.errors import Corrupt
from loader.modalities import DECODERS, Decoder
from loader.modalities.fields import Buffer, last_word, load
from loader.order.slots import rank_slice
from loader.run.recipe.recipe import stored_view, stored_views
from loader.run.replay import Functions, SlotReplay
from loader.run.trail.slot_columns import SlotColumns

from ...units import length
from ..outage import Outage
from .image_placement import placements
from .recipe_function import RecipeDatasets
from .recorded_decoders import rebuilt_decode
from .replayed_values import (
    Digests,
    Setting,
    SlotValues,
    StepPart,
    T,
    Take,
    TakeValues,
    TokenTexts,
    decode_texts,
    token_texts,
)

MOST_AUDIO_BYTES = 2**26
"""Decoded audio per field without a recipe, at 4 bytes per sample: 17 minutes at 16 kHz."""


class AudioStarts:
    """Decoders that cut long audio, and record which live values they cut. Thread-safe."""

    def __init__(self) -> None:
        self.notes: dict[int, str] = {}
        """`id` of a cut value -> text about its length."""

    def decoders(self, plan: loader.Plan) -> dict[str, Decoder]:
        """Return a plan's audio fields' decoders."""
        fields = dict.fromkeys(field for view in stored_views(plan).values() for field in view.fields)
        audio = [one for one in fields if DECODERS.get(last_word(one), "").startswith("audio.")]
        return dict.fromkeys(audio, self.start)

    def cut(self, decoded: Mapping[str, Any]) -> dict[str, str]:
        """Return a sample's cut fields -> text about their length."""
        return {name: self.notes[id(value)] for name, value in decoded.items() if id(value) in self.notes}

    def start(self, data: Buffer, rng: object) -> Any:
        samples, _ = self._start(data)
        return samples

    def of_decoder(self, decoder: Decoder) -> Decoder:
        """Return a decoder that decodes short audio as `decoder`, and cuts long audio."""

        def decode(data: Buffer, rng: np.random.Generator | None) -> Any:
            samples, whole = self._start(data)
            return decoder(data, rng) if whole else samples

        return decode

    def _start(self, data: Buffer) -> tuple[Any, bool]:
        """Return (samples, True if these are all)."""
        samples, rate_hz, whole = load("audio.decode:read_start")(data, MOST_AUDIO_BYTES)
        if not whole:
            self.notes[id(samples)] = f"the first {length(samples.shape[1] / rate_hz)} are decoded"
            # Python reuses ids, so a note ends with its array. At exit no page reads it.
            finalize(samples, self.notes.pop, id(samples)).atexit = False
        return samples, whole


class ReplayedPart:
    """A part, decoded on demand, with one slot's values in memory at a time."""

    first_slot: int
    """In the global batch."""
    settled: bool | None
    """`Replay.settle`: True if substitutions are known."""
    cut: dict[int, Mapping[str, str]]
    """Slot of the part -> partly decoded field -> text about its length."""
    missing: Mapping[str, str]
    """Source of a slot -> remedy, for datasets that are missing: their items are not made."""
    digest: int | None
    """Samples' 64-bit digest; None if items are missing. This and the following are known after `each`."""
    crc32c: Mapping[str, int]
    """Each batched field's, as a run log records it; none if items are missing."""
    ids: list[tuple[str, str] | None]
    """(source, key) per slot; None for padding."""
    errors: Mapping[int, str]
    """Global slot -> read error."""

    def __init__(
        self,
        replay: loader.Replay,
        place: StepPart,
        framework: str,
        tokenizers: Mapping[str, Any],
        audio_starts: AudioStarts,
        settled: bool | None,
    ) -> None:
        """tokenizers: as in `Replays`."""
        self._replay = replay
        self._tokenizers = tokenizers
        self._audio_starts = audio_starts
        self.cut = {}
        self.step, self.rank, self.world_size = place
        self.settled = settled
        part_slice = rank_slice(replay.plan.batch_size(self.step), *place[1:])
        self.first_slot = part_slice.start
        n = part_slice.stop - part_slice.start
        list_fields = frozenset[str]()
        if replay.plan.pack is not None:
            list_fields = replay.plan.pack.list_fields
        self._columns = SlotColumns(n, framework, list_fields)
        slots = replay.slots(*place)
        self._sources = slots.source.tolist()
        present = {self.source(row) for row in np.flatnonzero(slots.valid).tolist()}
        self.missing = {name: text for name, text in replay.missing_datasets.items() if name in present}

    def source(self, slot: int) -> str:
        return str(self._replay.plan.source_names[self._sources[slot]])

    def names(self) -> list[str]:
        """Return every field, by first appearance."""
        return self._columns.names

    def each(self, take: TakeValues) -> None:
        """Pass every slot's values to `take`, large ones first, in one or two calls per slot."""
        texts = TokenTexts(self._tokenizers)

        def add_values(slot: int, sample: dict[str, Any]) -> None:
            values = self._columns.add(slot, sample)
            if cut := self._audio_starts.cut(sample):
                self.cut[slot] = cut
            if slot >= 0:
                take(slot, values, texts(values))

        batch = self._replay.each(self.step, add_values, self.rank, self.world_size, skip_missing=True)
        for slot, values in self._columns.numbers().items():
            take(slot, values, texts(values))
        self.ids = batch.ids
        self.digest = None
        self.crc32c = {}
        if not self.missing:  # a digest of some of the samples is not a digest of the part
            self.digest = batch.digest
            self.crc32c = self._columns.crcs()
        self.errors = {
            one.slot: one.error for one in batch.substitutions if not one.attempt and not one.substitute
        }

    def crcs_of(self, slot: int, sample: Mapping[str, Any]) -> Mapping[str, int]:
        """Return field -> CRC-32C of a slot, as `tensor_crcs`."""
        return self._columns.crcs_of(slot, sample)

    def again(self, slots: Container[int], take: TakeValues) -> None:
        """Replay some slots, each as its own part, and pass their large values to `take`."""
        # With as many ranks as slots, each slot is a part of its own.
        n = self._replay.plan.batch_size(self.step)
        for slot in range(len(self._sources)):
            if slot in slots:
                with suppress(Corrupt):  # it was readable a moment ago
                    self._replay.each(self.step, partial(self._alone, slot, take), self.first_slot + slot, n)

    def _alone(self, slot: int, take: TakeValues, _: int, sample: dict[str, Any]) -> None:
        columns = SlotColumns(1, self._columns.framework, self._columns.list_fields)
        values = columns.add(0, sample)
        take(slot, values | columns.numbers()[0], {})


def index_replay(plan: loader.Plan, ledger: loader.Root | None, epochs: int | None) -> loader.Replay:
    """Return a replay that reads no media.

    ledger: root with the ledger; None applies no substitutes. epochs: the Loader's.
    """
    return loader.Replay(
        plan,
        () if ledger is None else loader.read_ledger(ledger, plan),
        decode=plan.pack is not None,
        framework="numpy",
        epochs=epochs,
    )


MOST_PLANS = 8
"""Most open plans, least recently used closed first."""
LEDGER_S = 30.0
"""Seconds until a plan's ledger is read again: the training may be running."""
REREAD_S = 5.0
"""Likewise, if it lacks a step's substitutions."""
_RECIPE_KEYS = ("decode", "transform")


class Replayer(Protocol):
    """Replays values as trained. Thread-safe."""

    def slot(
        self, setting: Setting, step: int, slot: int, take: Take[SlotValues, T], digests: Digests = ()
    ) -> T:
        """Return `take` of a slot. digests: recorded ones; () applies all substitutions.

        Raises: InvalidRuntime if the slot is padding or does not exist; read errors.
        """

    def part(
        self, setting: Setting, place: StepPart, take: Take[ReplayedPart, T], digests: Digests = ()
    ) -> T:
        """Return `take` of a rank's part, whose values it gets slot by slot."""

    def inspect(self, setting: Setting, take: Callable[[loader.Replay], T]) -> T:
        """Return `take` of a setting's replay. take: picklable, for a replay in another process."""

    def functions(self, setting: Setting) -> Functions:
        """Return facts about decoders and transforms, as in a run log's start record."""

    def close(self) -> None:
        """Release all leases and end all threads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayers:
    """A training run's replayers."""

    plain: Replayer
    """Decodes by the training's built-in decoders, or by extension, without a transform."""
    recipe: Replayer | None = None
    """Runs the recipe's functions; or None."""
    is_strict: bool = False
    """True raises the error of a recipe whose datasets are not the plan's, instead of showing values without it."""

    def close(self) -> None:
        self.plain.close()
        if self.recipe is not None:
            self.recipe.close()


@dataclass(slots=True, eq=False)
class _OpenReplay:
    lock: RLock
    since: float
    replay: loader.Replay | None = None
    users: int = 0
    dropped: bool = False

    def is_young(self, ledger_s: float = LEDGER_S) -> bool:
        return time.monotonic() <= self.since + ledger_s


class Replays:
    """A `Replayer` in this process. Requests with the same setting run one at a time."""

    def __init__(
        self,
        root: loader.Root,
        recipe: Mapping[str, Any] | None = None,
        tokenizers: Mapping[str, Any] | None = None,
        *,
        cut: bool = False,
        outage: Outage | None = None,
        title: str = "the recipe",
    ) -> None:
        """recipe: its Loader arguments and datasets; None uses the setting's decoders, without a transform.

        tokenizers: field -> object with `decode(ids)`, or a function. cut: True cuts long audio. title: text that names
        the recipe in errors.
        """
        self._outage = outage or Outage()
        self._root = root
        self._tokenizers = dict(tokenizers or {})
        self._datasets = None if recipe is None else RecipeDatasets(recipe, title)
        self._audio_starts = AudioStarts()
        self._cut = cut
        self._recipe = {name: value for name, value in (recipe or {}).items() if name in _RECIPE_KEYS}
        # Not an `LruCache`: a replay in use is closed when its last user is done.
        self._open: OrderedDict[Setting, _OpenReplay] = OrderedDict()
        self._lock = RLock()

    def slot(
        self, setting: Setting, step: int, slot: int, take: Take[SlotValues, T], digests: Digests = ()
    ) -> T:
        with self.settled_replay(setting, step, digests) as (replay, settled):
            slot_replay = replay.slot(step, slot)
            missing = replay.missing_datasets.get(slot_replay.source, "")
            values = _slot_values(slot_replay, missing)
            texts = token_texts(self._tokenizers, [values.decoded, values.trained])
            view = stored_view(replay.plan.sources[values.source].view)
            facts = {} if view is None else view.version.facts
            more = dataclass_replace(
                values,
                texts=texts,
                restored=decode_texts(self._tokenizers, values.decoded, facts),
                settled=settled,
                cut=self._audio_starts.cut(values.decoded),
            )
            return take(replay.plan, more)

    def part(
        self, setting: Setting, place: StepPart, take: Take[ReplayedPart, T], digests: Digests = ()
    ) -> T:
        with self.settled_replay(setting, place.step, digests) as (replay, settled):
            framework = setting.framework
            part = ReplayedPart(replay, place, framework, self._tokenizers, self._audio_starts, settled)
            return take(replay.plan, part)

    def inspect(self, setting: Setting, take: Callable[[loader.Replay], T]) -> T:
        with self.open_replay(setting) as replay:
            return take(replay)

    def functions(self, setting: Setting) -> Functions:
        with self.open_replay(setting) as replay:
            return replay.functions()

    def close(self) -> None:
        """Release all leases and end all threads. A replay in use is closed when its user is done."""
        with self._lock:
            while self._open:
                self._drop(self._open.popitem()[1])

    @contextmanager
    def settled_replay(
        self, setting: Setting, step: int, digests: Digests
    ) -> Iterator[tuple[loader.Replay, bool | None]]:
        """Provide (replay with one run's substitutions at a step, result of `Replay.settle`).

        Rereads a ledger that lacks them: the training may be running.
        """
        ledger_s = LEDGER_S
        if any(substituted for *_, substituted in digests):
            with self.open_replay(setting) as replay:
                ledger_s = REREAD_S if replay.settle(step, digests) is False else LEDGER_S
        with self.open_replay(setting, ledger_s) as replay:
            yield replay, replay.settle(step, digests)

    @contextmanager
    def open_replay(self, setting: Setting, ledger_s: float = LEDGER_S) -> Iterator[loader.Replay]:
        """Provide exclusive use of a setting's replay. ledger_s: its ledger's maximum age."""
        with self._lock:
            entry = self._open.pop(setting, None)
            if entry is not None and not entry.is_young(ledger_s):
                self._drop(entry)
                entry = None
            # Inserted last: the first entry is the least recently used.
            entry = entry or _OpenReplay(RLock(), time.monotonic())
            self._open[setting] = entry
            entry.users += 1
            while len(self._open) > MOST_PLANS:
                self._drop(self._open.popitem(last=False)[1])
        try:
            with entry.lock:
                # Under the entry's own lock: it reads plan and ledger, while other plans are used.
                entry.replay = entry.replay or self._outage.ask(lambda: self._new_replay(setting))
                yield entry.replay
        finally:
            with self._lock:
                entry.users -= 1
                if entry.dropped:
                    self._drop(entry)

    def open_plan(self, plan_hash: str) -> loader.Plan:
        """Return a saved plan, even of retired versions. Raises: as `loader.open_plan`."""
        with self._lock:
            young = [
                one for setting, one in self._open.items() if setting.plan == plan_hash and one.is_young()
            ]
            known = next((one.replay for one in young if one.replay is not None), None)
        if known is not None:
            return known.plan
        return self._outage.ask(lambda: loader.open_plan(self._root, plan_hash, retired=True))

    def _new_replay(self, setting: Setting) -> loader.Replay:
        plan = loader.open_plan(self._root, setting.plan, retired=True)
        datasets = {} if self._datasets is None else self._datasets.of_plan(plan)
        if datasets:
            plan = loader.open_plan(self._root, setting.plan, retired=True, items=datasets)
        functions = self._recipe
        if plan.pack is None:
            functions = {"decode": self._decode(plan, setting), **functions}
        return loader.Replay(
            plan,
            loader.read_ledger(self._root, plan),
            framework=setting.framework,
            epochs=setting.epochs,
            **functions,
        )

    def _decode(self, plan: loader.Plan, setting: Setting) -> Mapping[str, Any] | bool:
        """Return the Loader's `decode` without a recipe."""
        starts = self._audio_starts.decoders(plan) if self._cut else {}
        if setting.decoders is None:
            return starts or True
        if not setting.decoders:
            return False
        bounded = self._audio_starts.of_decoder if self._cut else lambda decoder: decoder
        return {**starts, **rebuilt_decode(setting.decoders, bounded)} or True

    def _drop(self, entry: _OpenReplay) -> None:
        entry.dropped = True
        if not entry.users and entry.replay is not None:
            entry.replay.close()
            entry.replay = None


def _slot_values(seen: SlotReplay, missing: str) -> SlotValues:
    error = ""
    if seen.error is not None and not missing:
        error = str(seen.error)
    return SlotValues(
        step=seen.step,
        slot=seen.slot,
        source=seen.source,
        epoch=seen.epoch,
        position=seen.position,
        attempt=seen.attempt,
        address=seen.address,
        decoded=seen.decoded,
        trained=seen.trained,
        draws=seen.draws,
        repeats=seen.repeats,
        error=error,
        missing=missing,
        placements=placements(seen.decoded, seen.trained, seen.transformed),
    )
