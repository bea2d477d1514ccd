"""A step of a training: its slots, the proofs that they were trained on, and the marks of the batch."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

import loader
from loader.api.explain import Explanation, explain_slots
from loader.dataset.shards.address import SampleAddress
from loader.errors import TransformFailed, WorkerFailed
from loader.order.sources.packed_view import PackedView
from loader.order.steps.slots import rank_slice
from loader.run.replay import Functions

from ...text import clean
from ..json_record import Record
from ..replays.replayed_values import BatchValues, PartValues, Setting, T, Take, Told, batch_itself
from ..replays.replays import Replayer, Replayers
from ..replays.training import Training
from ..samples.far_columns import step_marks
from ..samples.marks import Faced, StepMark, note_marks, ranked
from ..samples.shown_values import Shown, version_of
from .proofs import Proof, proofs, stage_of
from .shown_batch import ShownBatch, ShownSlot


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotRow(Record):
    """One slot of a rank's part."""

    slot: int
    """Number of the slot in the global batch."""
    source: str
    """Name of the plan's source; "" at padding."""
    key: str
    """Key of the sample; "" at padding."""
    version: str
    """Name of the sample's version; "" at padding."""
    ordinal: int
    """Number of the sample in its version; -1 at padding."""
    epoch: int
    """Epoch of the source."""
    attempt: int
    """0, or the number of the substitute that came instead."""
    raw: str
    """URI of the raw object; "" where none is recorded."""
    shown: tuple[Shown, ...]
    """Fields, at the stage that the record names."""
    largest: Mapping[str, float]
    """Note -> value of this slot, where it is among the step's largest."""
    error: str = ""
    """The reason why the sample cannot be read; "" where it can."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord(Record):
    """A rank's part of a step."""

    training: str
    """Run, or hash of a plan."""
    plan: str
    """Hash of the plan of this step."""
    step: int
    """Global step."""
    rank: int
    """Data-parallel rank."""
    world_size: int
    """Number of ranks."""
    batch_size: int
    """Slots of the global batch, over all ranks."""
    digest: int
    """64-bit digest of this part."""
    bucket: str
    """Bucket of the batch; "" without buckets."""
    proofs: tuple[Proof, ...]
    """Proofs that this is the batch that was trained on."""
    stage: str
    """`trained` where the values were replayed and proved; else `transformed`, or `decoded` without the transform."""
    untrained: str
    """The reason why nothing says that this step was trained; "" where it is recorded."""
    marks: tuple[StepMark, ...]
    """Faults, the worst first."""
    notes: Mapping[str, float]
    """Notes of the training at this step."""
    mixture: Mapping[str, int]
    """Source -> slots of this part."""
    slots: tuple[SlotRow, ...]
    """Slots of this part, padding left out."""
    trouble: str = ""
    """The reason why the recipe could not be run; "" where it was, or none was given."""
    stale: str = ""
    """The reason why the trail may have grown since it was read; "" where it was just read."""


def step_values(
    training: Training,
    replayers: Replayers,
    step: int,
    rank: int,
    world_size: int,
    take: Take[PartValues, T],
    told: Sequence[Told] | None = None,
) -> tuple[T, str]:
    """Return what `take` makes of a rank's part of a step, and the reason why it is without the recipe; "" with it.

    told: parts of the step that the trail has; None for what it has of this part.
    """
    told = training.told(step, rank, world_size) if told is None else told
    return _tried(
        training,
        replayers,
        step,
        lambda replayer, setting: replayer.part(setting, step, rank, world_size, take, told),
    )


def whole_values(
    training: Training, replayers: Replayers, step: int, rank: int, world_size: int
) -> tuple[BatchValues, str]:
    """Return all values of a rank's part of a step, and the reason why they are without the recipe; "" with it."""
    told = training.told(step, rank, world_size)
    return _tried(
        training,
        replayers,
        step,
        lambda replayer, setting: replayer.batch(setting, step, rank, world_size, batch_itself, told),
    )


def _tried(
    training: Training, replayers: Replayers, step: int, ask: Callable[[Replayer, Setting], T]
) -> tuple[T, str]:
    trouble = ""
    if replayers.recipe is not None:
        try:
            return ask(replayers.recipe, training.setting(step, recipe=True)), ""
        except (TransformFailed, WorkerFailed) as error:
            trouble = str(error)
    return ask(replayers.plain, training.setting(step, recipe=False)), trouble


def step_record(
    training: Training,
    batch: ShownBatch,
    functions: Functions | None,
    trouble: str = "",
) -> StepRecord:
    """Return the record of a part of a step. functions: facts of the recipe; None without one."""
    plan, step = training.plan(batch.step), batch.step
    explained = {one.slot: one for one in explained_part(training, plan, batch)}
    largest = training.largest(step)
    rows = [
        _row(one, batch.slots[slot - batch.first_slot], largest.get(slot, {}), batch.errors.get(slot, ""))
        for slot, one in explained.items()
    ]
    faced = [
        Faced(
            slot=row.slot,
            key=row.key,
            hashes=batch.slots[row.slot - batch.first_slot].hashes,
            marks={one.field: one.marks for one in row.shown},
            provenance=explained[row.slot].provenance,
            error=row.error,
        )
        for row in rows
    ]
    notes = training.notes(step)
    found = proofs(training, batch, functions, trouble)
    recipe = functions is not None and not trouble
    return StepRecord(
        training=training.name,
        plan=plan.hash,
        step=step,
        rank=batch.rank,
        world_size=batch.world_size,
        batch_size=plan.batch_size(step),
        digest=batch.digest,
        bucket=_bucket(plan, explained),
        proofs=found,
        stage=stage_of(training, step, found, recipe=recipe),
        untrained=training.untrained(step),
        marks=ranked(faced, [*note_marks(step, notes, training.spreads), *_column_marks(plan, explained)]),
        notes=notes,
        mixture=dict(Counter(row.source for row in rows)),
        slots=tuple(rows),
        trouble=trouble,
        stale=training.stale,
    )


def explained_part(training: Training, plan: "loader.Plan", batch: ShownBatch) -> list[Explanation]:
    """Return the way back of each slot of a part, substitutes on record included."""
    slots = training.slots(batch.step, batch.rank, batch.world_size)
    return explain_slots(plan, batch.step, slots, np.arange(len(slots)), batch.first_slot)


def default_part(training: Training, step: int) -> tuple[int, int]:
    """Return (rank, world size) of the part that is shown unless another is asked for: one that was recorded.

    Without a trail it is the whole step, or the first of the parts of at most 256 slots.
    """
    recorded = training.recorded(step)
    if recorded:
        last = max(recorded, key=lambda row: (row["at_us"], row["rank"]))
        first = min(row["rank"] for row in recorded if row["world_size"] == last["world_size"])
        return first, int(last["world_size"])
    n = training.plan(step).batch_size(step)
    return 0, -(-n // 256)


def part_of(
    training: Training, step: int, rank: int | None = None, world_size: int | None = None
) -> tuple[int, int]:
    """Return (rank, world size) as they are asked for, else of the part that is shown by default."""
    first, world = default_part(training, step)
    world_size = world if world_size is None else world_size
    return (first if world_size == world else 0) if rank is None else rank, world_size


def rank_of_slot(training: Training, step: int, slot: int, world_size: int) -> int:
    """Return the rank whose part holds a slot."""
    n = training.plan(step).batch_size(step)
    return next(rank for rank in range(world_size) if slot < rank_slice(n, rank, world_size).stop)


def _row(explained: Explanation, shown: ShownSlot, largest: Mapping[str, float], error: str) -> SlotRow:
    return SlotRow(
        slot=explained.slot,
        source=explained.source,
        key=explained.address.key,
        version=explained.address.version,
        ordinal=explained.address.ordinal,
        epoch=explained.epoch,
        attempt=explained.attempt,
        raw=clean(explained.provenance.get("raw_uri", ""), 400),
        shown=shown.fields,
        largest=largest,
        error=error,
    )


def _column_marks(plan: "loader.Plan", explained: Mapping[int, Explanation]) -> list[StepMark]:
    """Return the marks of the samples' columns. A packed sequence is no sample of its version."""
    by_source: dict[str, dict[int, SampleAddress]] = {}
    for slot, one in explained.items():
        if not isinstance(plan.sources[one.source].view, PackedView):
            by_source.setdefault(one.source, {})[slot] = one.address
    found = ((version_of(plan, source), at) for source, at in by_source.items())
    return [mark for version, at in found if version is not None for mark in step_marks(version, at)]


def _bucket(plan: "loader.Plan", explained: Mapping[int, Explanation]) -> str:
    for one in explained.values():
        return plan.sources[one.source].bucket or ""
    return ""
