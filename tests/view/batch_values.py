"""A rank's part of a step made as one batch, as the training made it: what a `ReplayedPart` must equal."""

from collections.abc import Container, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from loader.order.slots import rank_slice
from loader.run.trail.slot_columns import tensor_crcs
from penstock.view.replays.replayed_values import TakeValues, Texts, token_texts
from penstock.view.replays.replays import Replayers, Replays
from penstock.view.replays.training import Training


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BatchValues:
    """A `ReplayedPart` whose values are there."""

    slots: list[Mapping[str, Any]] = field(repr=False)
    step: int = 0
    rank: int = 0
    world_size: int = 1
    first_slot: int = 0
    digest: int = 0
    crc32c: Mapping[str, int] = field(default_factory=dict)
    ids: list[tuple[str, str] | None]
    errors: Mapping[int, str] = field(default_factory=dict)
    settled: bool | None = True
    texts: Texts = field(default_factory=dict)
    cut: Mapping[int, Mapping[str, str]] = field(default_factory=dict)
    missing: Mapping[str, str] = field(default_factory=dict)

    def source(self, slot: int) -> str:
        sample_id = self.ids[slot]
        return sample_id[0] if sample_id else ""

    def names(self) -> list[str]:
        return list(dict.fromkeys(name for sample in self.slots for name in sample))

    def each(self, take: TakeValues) -> None:
        self.again(range(len(self.slots)), take)

    def crcs_of(self, slot: int, sample: Mapping[str, Any]) -> Mapping[str, int]:
        return tensor_crcs(sample)

    def again(self, slots: Container[int], take: TakeValues) -> None:
        for slot, sample in enumerate(self.slots):
            if slot in slots:
                take(slot, sample, self.texts)


def whole_values(
    training: Training, replayers: Replayers, step: int, rank: int, world_size: int
) -> BatchValues:
    """Return all values of a rank's part, by `Replay.batch`."""
    replays = replayers.recipe or replayers.plain
    assert isinstance(replays, Replays)
    setting = training.setting(step, recipe=replayers.recipe is not None)
    digests = training.part_digests(step, rank, world_size)
    with replays.settled_replay(setting, step, digests) as (replay, settled):
        batch = replay.batch(step, rank, world_size)
        values = BatchValues(
            step=step,
            rank=rank,
            world_size=world_size,
            first_slot=rank_slice(replay.plan.batch_size(step), rank, world_size).start,
            digest=batch.digest,
            crc32c=tensor_crcs(batch.fields),
            ids=batch.ids,
            slots=[
                {name: column[i] for name, column in batch.fields.items()} if one is not None else {}
                for i, one in enumerate(batch.ids)
            ],
            errors={
                one.slot: one.error for one in batch.substitutions if not one.attempt and not one.substitute
            },
            settled=settled,
        )
        return replace(values, texts=token_texts(replays._tokenizers, values.slots))
