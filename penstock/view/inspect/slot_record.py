"""One slot of a step: stored, decoded and transformed side by side, its way back, and the steps with its sample."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import loader
from loader.api.explain import Explanation, explain_slots
from loader.dataset.shards.address import crc_text
from loader.errors import TransformFailed, WorkerFailed
from loader.order.sources.packed_view import PackedView
from loader.run.replay import Functions

from ...lineage import StageRun, pipeline_runs
from ..json_record import Record
from ..kinds.kind import Mark
from ..replays.picture_placement import Placement
from ..replays.replayed_values import SlotValues, T, Take
from ..replays.replays import Replayers
from ..replays.training import Training
from ..samples.column_edits import ColumnEdit, column_edits
from ..samples.far_columns import slot_marks
from ..samples.held_steps import AskedRuns, HeldSteps
from ..samples.marks import Faced, StepMark, ranked, step_mark
from ..samples.phash_neighbours import Neighbour, phash_neighbours
from ..samples.shown_values import Shown, shown_sample, version_of
from .proofs import PartOf, slot_stage
from .restored_text import restored_marks


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldRow(Record):
    """One field at the three stages."""

    field: str
    """Name of the field."""
    path: str
    """Path of its shard, relative to the root; "" for a field that the transform made."""
    offset: int
    """First byte in the shard."""
    nbytes: int
    """Number of stored bytes."""
    crc32c: str
    """CRC-32C of the stored bytes, 8 hex digits; "not known" of registered bytes that are not sealed."""
    decoded: Shown | None
    """Value before the transform; None where there is none."""
    transformed: Shown | None
    """Value after the transform; None where the transform dropped it, or was not run."""
    placement: Placement | None = None
    """Place of the transformed picture in the decoded one; None for other values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotRecord(Record):
    """One slot of a step."""

    training: str
    """Run, or hash of a plan."""
    plan: str
    """Hash of the plan."""
    step: int
    """Global step."""
    slot: int
    """Number of the slot in the global batch."""
    batch_size: int
    """Slots of the global batch."""
    source: str
    """Name of the plan's source."""
    key: str
    """Key of the sample."""
    version: str
    """Name of the sample's version."""
    ordinal: int
    """Number of the sample in its version."""
    epoch: int
    """Epoch of the source."""
    position: int
    """Position in the source's stream."""
    attempt: int
    """0, or the number of the substitute that came instead."""
    stage: str
    """`trained` where `transformed` was replayed and proved; else `transformed`, or `decoded` without the transform."""
    untrained: str
    """The reason why nothing says that this step was trained; "" where it is recorded."""
    fields: tuple[FieldRow, ...]
    """Its fields: stored ones first, then those that the transform made."""
    draws: tuple[str, ...]
    """Draws of the transform from the sample's generator."""
    repeats: bool
    """True where the transform gave the same values twice."""
    marks: tuple[StepMark, ...]
    """Faults of this slot, the worst first."""
    largest: Mapping[str, float]
    """Note -> value of this slot, where it is among the step's largest."""
    provenance: Mapping[str, str]
    """Provenance columns of the sample."""
    runs: tuple[StageRun, ...]
    """Dagster runs that made the sample, upstream first."""
    trainings: tuple[HeldSteps, ...]
    """Slots that held the sample: of this training, then of others; none for a packed sequence."""
    runs_left: tuple[str, ...]
    """Runs of the root that were not asked for it."""
    runs_error: str
    """The reason why the other runs of the root are not known; "" where they are."""
    edits: tuple[ColumnEdit, ...]
    """Edits of the sample's columns, by column, the oldest first; none for a packed sequence."""
    neighbours: tuple[Neighbour, ...]
    """Samples of its version that look like it by `phash`, the nearest first; none for a packed sequence."""
    explained: str
    """The way back in text, as `penstock explain` prints it."""
    error: str = ""
    """The reason why values are missing."""
    trouble: str = ""
    """The reason why the recipe could not be run; "" where it was, or none was given."""


def slot_values(
    training: Training, replayers: Replayers, step: int, slot: int, take: Take[SlotValues, T]
) -> tuple[T, str]:
    """Return what `take` makes of a slot, and the reason why it is without the recipe; "" with it."""
    plain, own = replayers.plain, replayers.recipe
    trouble, told = "", training.told(step)
    if own is not None:
        try:
            return own.slot(training.setting(step, recipe=True), step, slot, take, told), ""
        except (TransformFailed, WorkerFailed) as error:
            trouble = str(error)
    return plain.slot(training.setting(step, recipe=False), step, slot, take, told), trouble


def slot_record(
    training: Training,
    values: SlotValues,
    trouble: str = "",
    others: AskedRuns | None = None,
    *,
    functions: Functions | None = None,
    part: PartOf | None = None,
) -> SlotRecord:
    """Return the record of a slot. others: trainings that are asked as well for slots that held its sample.

    functions: facts of the recipe, None without one. part: makes a part of the step, to prove its tensors.

    Costs, beside its values, what edits and neighbours of its sample cost.
    """
    plan = training.plan(values.step)
    explained = _explained(training, values)
    version = version_of(plan, values.source)
    stage = slot_stage(training, values, functions, trouble, part)
    fields = _fields(values, version, transformed=stage != "decoded")
    faced = Faced(
        slot=values.slot,
        key=values.address.key,
        hashes={},
        marks=_marks(fields, stage),
        provenance=explained.provenance,
        error=values.error,
    )
    # A packed sequence is no sample of its version: its number would be that of another one, its key is of none.
    sample = None if isinstance(plan.sources[values.source].view, PackedView) else version
    marks = _all_marks(values, faced, fields, stage, sample)
    (runs,) = pipeline_runs(training.root, [explained])
    return SlotRecord(
        training=training.name,
        plan=plan.hash,
        step=values.step,
        slot=values.slot,
        batch_size=plan.batch_size(values.step),
        source=values.source,
        key=values.address.key,
        version=values.address.version,
        ordinal=values.address.ordinal,
        epoch=values.epoch,
        position=values.position,
        attempt=values.attempt,
        stage=stage,
        untrained=training.untrained(values.step),
        fields=fields,
        draws=values.draws,
        repeats=values.repeats,
        marks=tuple(marks),
        largest=training.largest(values.step).get(values.slot, {}),
        provenance=explained.provenance,
        runs=runs,
        **_relations(training, values, sample, others or AskedRuns()),
        explained=str(explained),
        error=values.error,
        trouble=trouble,
    )


def _relations(
    training: Training, values: SlotValues, sample: "loader.Version | None", others: AskedRuns
) -> dict[str, Any]:
    """Return the fields of a record that are about its sample. sample: its version; None for a packed sequence."""
    if sample is None:
        return {"trainings": (), "runs_left": (), "runs_error": "", "edits": (), "neighbours": ()}
    ordinal = values.address.ordinal
    held = others.held(sample.dataset, values.address.key, ordinal, training, values.step + 1)
    return {
        "trainings": held,
        "runs_left": others.left,
        "runs_error": others.error,
        "edits": column_edits(sample, ordinal),
        "neighbours": phash_neighbours(sample, ordinal),
    }


def _all_marks(
    values: SlotValues,
    faced: Faced,
    fields: tuple[FieldRow, ...],
    stage: str,
    sample: "loader.Version | None",
) -> list[StepMark]:
    """Return the marks of a transform that is no function, of the values, the worst first, and of the sample's row."""
    marks = [*ranked([faced]), *(_marks_before(values.slot, fields) if stage != "decoded" else ())]
    if not values.repeats:
        text = "the transform gave other values the second time: it is not a function of its sample"
        marks.insert(0, step_mark("not_a_function", text, [values.slot]))
    if sample is not None:
        marks += restored_marks(sample, values.address.ordinal, values.restored, values.slot)
        marks += slot_marks(sample, values.address.ordinal, values.slot)
    return marks


def _marks(fields: tuple[FieldRow, ...], stage: str) -> dict[str, Sequence[Mark]]:
    """Return field -> marks of its last stage."""
    last = {one.field: one.decoded if stage == "decoded" else one.transformed for one in fields}
    return {name: one.marks for name, one in last.items() if one is not None}


def _marks_before(slot: int, fields: tuple[FieldRow, ...]) -> list[StepMark]:
    """Return marks of decoded values that the transformed ones do not have."""
    found = []
    for row in fields:
        known = {mark.name for mark in row.transformed.marks} if row.transformed is not None else set()
        for mark in row.decoded.marks if row.decoded is not None else ():
            if mark.name not in known:
                text = f"before the transform: {mark.text}"
                found.append(
                    StepMark(name=mark.name, text=text, weight=mark.weight, slots=(slot,), field=row.field)
                )
    return sorted(found, key=lambda one: -one.weight)


def _explained(training: Training, values: SlotValues) -> Explanation:
    plan = training.plan(values.step)
    n = plan.batch_size(values.step)
    slots = training.slots(values.step, values.slot, n)
    (found,) = explain_slots(plan, values.step, slots, np.arange(1), values.slot)
    return found


def _fields(
    values: SlotValues, version: "loader.Version | None", *, transformed: bool
) -> tuple[FieldRow, ...]:
    decoded = {one.field: one for one in shown_sample(values.decoded, version, values.texts, values.cut)}
    sample = values.trained if transformed else {}
    after = {one.field: one for one in shown_sample(sample, version, values.texts, values.cut)}
    stored = values.address.fields
    return tuple(
        FieldRow(
            field=name,
            path=stored[name].path if name in stored else "",
            offset=stored[name].offset if name in stored else 0,
            nbytes=stored[name].nbytes if name in stored else 0,
            crc32c=(crc_text(stored[name].crc32c) or "not known") if name in stored else "",
            decoded=decoded.get(name),
            transformed=after.get(name),
            placement=values.placements.get(name) if transformed else None,
        )
        for name in dict.fromkeys((*stored, *decoded, *after))
    )
