"""Slots and batches of saved plans, replayed in this process with the functions of a recipe."""

import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from dataclasses import replace as dataclass_replace
from threading import RLock
from typing import Any, Protocol

import loader
from loader.run.batch.batch import Batch
from loader.run.recipe.recipe import stored_view
from loader.run.replay import Functions, SlotReplay

from ..outage import Outage
from .picture_placement import placements
from .replayed_part import ReplayedPart, SoundStarts
from .replayed_values import BatchValues, PartValues, Setting, SlotValues, T, Take, Told
from .token_texts import restored_texts, token_texts

MOST_PLANS = 8
"""Plans that are held open; the one that was not asked for the longest goes."""
LEDGER_S = 30.0
"""Seconds after which a plan's ledger is read again: a training may be running."""
REREAD_S = 5.0
"""Seconds after which it is read again for a step whose substitutions it lacks."""
_OURS = ("decode", "transform")


class Replayer(Protocol):
    """Something that makes values as the training had them. Thread-safe."""

    def slot(
        self, setting: Setting, step: int, slot: int, take: Take[SlotValues, T], told: Sequence[Told] = ()
    ) -> T:
        """Return what `take` makes of a slot. told: parts of the step that a trail has; () lays all entries in.

        Raises: InvalidRuntime for padding, or no slot of the step; errors of reading.
        """

    def batch(
        self,
        setting: Setting,
        step: int,
        rank: int,
        world_size: int,
        take: Take[BatchValues, T],
        told: Sequence[Told] = (),
    ) -> T:
        """Return what `take` makes of a rank's part of a step. told: as of `slot`.

        Raises: InvalidRuntime; Corrupt; TransformFailed; errors of reading.
        """

    def part(
        self,
        setting: Setting,
        step: int,
        rank: int,
        world_size: int,
        take: Take[PartValues, T],
        told: Sequence[Told] = (),
    ) -> T:
        """Return what `take` makes of a rank's part of a step, of which it gets a slot at a time. As `batch`."""

    def functions(self, setting: Setting) -> Functions:
        """Return facts of the decoders and transforms, as a trail's start record has them."""

    def close(self) -> None:
        """Give all leases back, and end all threads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayers:
    """The ways to look at a training."""

    plain: Replayer
    """Decodes by the fields' extensions, without a transform."""
    recipe: Replayer | None = None
    """Runs the training's own functions; None where none are given."""

    def close(self) -> None:
        """Close both."""
        self.plain.close()
        if self.recipe is not None:
            self.recipe.close()


@dataclass(slots=True, eq=False)
class _Open:
    lock: RLock
    since: float
    replay: loader.Replay | None = None
    users: int = 0
    dropped: bool = False

    def is_young(self, ledger_s: float = LEDGER_S) -> bool:
        """Return whether its ledger is younger than so many seconds."""
        return time.monotonic() <= self.since + ledger_s


class Replays:
    """A `Replayer` in this process: of each setting one question after the other."""

    def __init__(
        self,
        root: loader.Root,
        recipe: Mapping[str, Any] | None = None,
        tokenizers: Mapping[str, Any] | None = None,
        *,
        cut: bool = False,
        outage: Outage | None = None,
    ) -> None:
        """Take the result of a training's `recipe()`; None decodes by the fields' extensions, without a transform.

        tokenizers: field -> an object whose `decode` gives the text of a list of tokens, or such a function.
        cut: True decodes sounds to a limit. outage: of the root's store, shared with others that ask it.
        """
        self._outage = outage or Outage()
        self._root, self._tokenizers = root, dict(tokenizers or {})
        self._sounds, self._cut = SoundStarts(), cut
        self._recipe = {name: value for name, value in (recipe or {}).items() if name in _OURS}
        self._open: OrderedDict[Setting, _Open] = OrderedDict()
        self._lock = RLock()

    def slot(
        self, setting: Setting, step: int, slot: int, take: Take[SlotValues, T], told: Sequence[Told] = ()
    ) -> T:
        """Return what `take` makes of a slot, with the places of its pictures."""
        with self.settled(setting, step, told) as (replay, settled):
            values = _slot_values(replay.slot(step, slot))
            texts = token_texts(self._tokenizers, [values.decoded, values.trained])
            view = stored_view(replay.plan.sources[values.source].view)
            facts = {} if view is None else view.version.facts
            more = dataclass_replace(
                values,
                texts=texts,
                restored=restored_texts(self._tokenizers, values.decoded, facts),
                settled=settled,
                cut=self._sounds.cut(values.decoded),
            )
            return take(replay.plan, more)

    def batch(
        self,
        setting: Setting,
        step: int,
        rank: int,
        world_size: int,
        take: Take[BatchValues, T],
        told: Sequence[Told] = (),
    ) -> T:
        """Return what `take` makes of a rank's part of a step."""
        with self.settled(setting, step, told) as (replay, settled):
            values = _batch_values(replay, replay.batch(step, rank, world_size), rank, world_size)
            texts = token_texts(self._tokenizers, values.slots)
            return take(replay.plan, dataclass_replace(values, texts=texts, settled=settled))

    def part(
        self,
        setting: Setting,
        step: int,
        rank: int,
        world_size: int,
        take: Take[PartValues, T],
        told: Sequence[Told] = (),
    ) -> T:
        """Return what `take` makes of a rank's part of a step, slot by slot."""
        with self.settled(setting, step, told) as (replay, settled):
            place = step, rank, world_size
            part = ReplayedPart(replay, place, setting.framework, self._tokenizers, self._sounds, settled)
            return take(replay.plan, part)

    def functions(self, setting: Setting) -> Functions:
        """Return facts of the decoders and transforms."""
        with self.using(setting) as replay:
            return replay.functions()

    def close(self) -> None:
        """Give all leases back, and end all threads. What is in use is closed by its user."""
        with self._lock:
            while self._open:
                self._drop(self._open.popitem()[1])

    @contextmanager
    def settled(
        self, setting: Setting, step: int, told: Sequence[Told]
    ) -> Iterator[tuple[loader.Replay, bool | None]]:
        """Hold a replay that has the substitutions of a run at a step, and the answer of `Replay.settle`.

        A training that is running may have had them after the ledger was read. Raises: errors of opening a plan.
        """
        ledger_s = LEDGER_S
        if any(substituted for *_, substituted in told):
            with self.using(setting) as replay:
                ledger_s = REREAD_S if replay.settle(step, told) is False else LEDGER_S
        with self.using(setting, ledger_s) as replay:
            yield replay, replay.settle(step, told)

    @contextmanager
    def using(self, setting: Setting, ledger_s: float = LEDGER_S) -> Iterator[loader.Replay]:
        """Hold the replay of a setting, which nobody else has meanwhile. Raises: errors of opening a plan.

        ledger_s: seconds after which its ledger is too old.
        """
        with self._lock:
            found = self._open.pop(setting, None)
            if found is not None and not found.is_young(ledger_s):
                self._drop(found)
                found = None
            found = found or _Open(RLock(), time.monotonic())
            self._open[setting] = found
            found.users += 1
            while len(self._open) > MOST_PLANS:
                self._drop(self._open.popitem(last=False)[1])
        try:
            with found.lock:
                found.replay = found.replay or self._outage.ask(lambda: self._opened(setting))
                yield found.replay
        finally:
            with self._lock:
                found.users -= 1
                if found.dropped:
                    self._drop(found)

    def open_plan(self, plan_hash: str) -> loader.Plan:
        """Return a saved plan, also of retired versions. Raises: as `loader.open_plan`."""
        with self._lock:
            young = [
                one for setting, one in self._open.items() if setting.plan == plan_hash and one.is_young()
            ]
            known = next((one.replay for one in young if one.replay is not None), None)
        if known is not None:
            return known.plan
        return self._outage.ask(lambda: loader.open_plan(self._root, plan_hash, retired=True))

    def _opened(self, setting: Setting) -> loader.Replay:
        plan = loader.open_plan(self._root, setting.plan, retired=True)
        how = self._recipe
        if self._cut and plan.pack is None:
            how = {"decode": self._sounds.decoders(plan), **how}
        return loader.Replay(
            plan,
            loader.read_ledger(self._root, plan),
            framework=setting.framework,
            epochs=setting.epochs,
            **how,
        )

    def _drop(self, one: _Open) -> None:
        """Close a replay that is not kept any more, unless somebody uses it: then the last user does."""
        one.dropped = True
        if not one.users and one.replay is not None:
            one.replay.close()
            one.replay = None


def _slot_values(one: SlotReplay) -> SlotValues:
    return SlotValues(
        step=one.step,
        slot=one.slot,
        source=one.source,
        epoch=one.epoch,
        position=one.position,
        attempt=one.attempt,
        address=one.address,
        decoded=one.decoded,
        trained=one.trained,
        draws=one.draws,
        repeats=one.repeats,
        error="" if one.error is None else str(one.error),
        placements=placements(one.decoded, one.trained, one.transformed),
    )


def _batch_values(replay: loader.Replay, batch: Batch, rank: int, world_size: int) -> BatchValues:
    from loader.order.steps.slots import rank_slice
    from loader.run.trail.slot_columns import tensor_crcs

    mine = rank_slice(replay.plan.batch_size(batch.step), rank, world_size)
    real = [one is not None for one in batch.ids]
    return BatchValues(
        step=batch.step,
        rank=rank,
        world_size=world_size,
        first_slot=mine.start,
        digest=batch.digest,
        crc32c=tensor_crcs(batch.fields),
        ids=batch.ids,
        slots=[
            {name: column[i] for name, column in batch.fields.items()} if real[i] else {}
            for i in range(len(real))
        ],
        errors={one.slot: one.error for one in batch.substitutions if not one.attempt and not one.substitute},
    )
