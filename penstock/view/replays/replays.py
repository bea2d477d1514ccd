"""Slots and batches of saved plans, replayed in this process with the functions of a recipe."""

import time
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from threading import RLock
from typing import Any, Protocol

import loader
from loader.run.batch.batch import Batch
from loader.run.replay import Functions
from loader.run.seen import Seen

from .picture_placement import placements
from .replayed_values import BatchValues, Setting, SlotValues
from .token_texts import token_texts

MOST_PLANS = 4
"""Plans that are held open; the one that was not asked for the longest goes."""
LEDGER_S = 30.0
"""Seconds after which a plan's ledger is read again: a training may be running."""
_OURS = ("decode", "transform")


class Replayer(Protocol):
    """Something that makes values as the training had them. Thread-safe."""

    def slot(self, setting: Setting, step: int, slot: int) -> SlotValues:
        """Return one slot. Raises: InvalidRuntime for padding, or no slot of the step; errors of reading."""

    def batch(self, setting: Setting, step: int, rank: int, world_size: int) -> BatchValues:
        """Return a rank's part of a step. Raises: InvalidRuntime; Corrupt; TransformFailed; errors of reading."""

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


@dataclass(slots=True)
class _Open:
    replay: loader.Replay
    until: float


class Replays:
    """A `Replayer` in this process: one question after the other."""

    def __init__(
        self,
        root: loader.Root,
        recipe: Mapping[str, Any] | None = None,
        tokenizers: Mapping[str, Any] | None = None,
    ) -> None:
        """Take the result of a training's `recipe()`; None decodes by the fields' extensions, without a transform.

        tokenizers: field -> an object whose `decode` gives the text of a list of tokens, or such a function.
        """
        self._root, self._tokenizers = root, dict(tokenizers or {})
        self._recipe = {name: value for name, value in (recipe or {}).items() if name in _OURS}
        self._open: OrderedDict[Setting, _Open] = OrderedDict()
        self._lock = RLock()

    def slot(self, setting: Setting, step: int, slot: int) -> SlotValues:
        """Return one slot, with the places of its pictures."""
        with self._lock:
            values = _slot_values(self.replay(setting).slot(step, slot))
            return replace(values, texts=token_texts(self._tokenizers, [values.decoded, values.trained]))

    def batch(self, setting: Setting, step: int, rank: int, world_size: int) -> BatchValues:
        """Return a rank's part of a step."""
        with self._lock:
            replay = self.replay(setting)
            values = _batch_values(replay, replay.batch(step, rank, world_size), rank, world_size)
            return replace(values, texts=token_texts(self._tokenizers, values.slots))

    def functions(self, setting: Setting) -> Functions:
        """Return facts of the decoders and transforms."""
        with self._lock:
            return self.replay(setting).functions()

    def close(self) -> None:
        """Give all leases back, and end all threads."""
        with self._lock:
            while self._open:
                self._open.popitem()[1].replay.close()

    def replay(self, setting: Setting) -> loader.Replay:
        """Return the replay of a setting, which stays this object's. Raises: errors of opening a plan."""
        with self._lock:
            return self._opened(setting)

    def _opened(self, setting: Setting) -> loader.Replay:
        found = self._open.pop(setting, None)
        if found is not None and time.monotonic() > found.until:
            found.replay.close()
            found = None
        if found is None:
            plan = loader.open_plan(self._root, setting.plan, retired=True)
            replay = loader.Replay(
                plan,
                loader.read_ledger(self._root, plan),
                framework=setting.framework,
                epochs=setting.epochs,
                **self._recipe,
            )
            found = _Open(replay, time.monotonic() + LEDGER_S)
        self._open[setting] = found
        while len(self._open) > MOST_PLANS:
            self._open.popitem(last=False)[1].replay.close()
        return found.replay


def _slot_values(one: Seen) -> SlotValues:
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
    from loader.run.trail.tensor_crcs import tensor_crcs

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
            {name: _alone(column[i]) for name, column in batch.fields.items()} if real[i] else {}
            for i in range(len(real))
        ],
        errors={one.slot: one.error for one in batch.substitutions if not one.attempt and not one.substitute},
    )


def _alone(value: Any) -> Any:
    """Return a value that does not hold the memory of its whole batch when it travels."""
    return value.clone() if hasattr(value, "clone") else value
