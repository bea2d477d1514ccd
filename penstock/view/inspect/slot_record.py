"""One slot of a step: stored, decoded and transformed values, provenance, and other uses of its sample."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any

import numpy as np

import loader
from loader.api.explain import Explanation, explain_slots
from loader.dataset.reading.verified_bucket_reads import read_fields
from loader.errors import PenstockError
from loader.order.sources.packing import PackedView
from loader.run.replay import Functions

from ...lineage import StageRun, pipeline_runs
from ...text import clean
from ...upkeep.excluded_since import ExcludedSince
from ..json_record import JsonRecord
from ..kinds.kind import Facts, Mark
from ..kinds.stored_bytes import MAX_TEXT_BYTES, read_bounded
from ..marks import SlotFacts, StepMark, rank_marks, slot_columns, step_mark
from ..replays.image_placement import Placement
from ..replays.replayed_values import SlotValues, T, Take
from ..replays.replays import Replayers
from ..replays.training import Training
from ..sample_relations import (
    ColumnEdit,
    HeldSteps,
    Neighbour,
    RunSearch,
    column_edits,
    find_item_slots,
    phash_neighbours,
)
from ..shown_values import ShownValue, StoredField, dataset_facts, field_location, show_sample, version_of
from .packed_documents import PackedSequence, read_sequence
from .proofs import PartOf, slot_stage
from .sample_record import leading_columns
from .sample_slices import SampleSlice, SampleSlices, SliceSearch
from .step_record import recipe_or_plain
from .version_record import sample_fields

_SHOWN = 24
"""Characters shown of each text, from the first difference on."""


def restoration_marks(
    version: loader.Version, ordinal: int, restored: Mapping[str, str], slot: int
) -> list[StepMark]:
    """Return a mark per token field that decodes to none of its source texts (fact `text_fields`).

    Ignores truncation and outer whitespace. restored: field -> text of its tokens without special ones.
    """
    marks = []
    for field, decoded in restored.items():
        try:
            texts = _texts(version, ordinal, field)
        except PenstockError as error:
            marks.append(
                step_mark("unreadable", f"the text of its tokens: {clean(error, 300)}", [slot], field)
            )
            continue
        if texts and not any(_is_beginning(decoded, text.strip()) for text in texts.values()):
            name, text = next(iter(texts.items()))
            marks.append(
                step_mark("not_restored", _not_restored(decoded.strip(), name, text.strip()), [slot], field)
            )
    return marks


def _texts(version: loader.Version, ordinal: int, field: str) -> dict[str, str]:
    sources = version.facts.get(field, {}).get("text_fields")
    (present,) = sample_fields(version, [ordinal])
    names = [one for one in sources if one in present] if isinstance(sources, list) else []
    if not names:
        return {}
    (address,) = version.address(np.array([ordinal]), names)
    if sum(one.nbytes for one in address.fields.values()) > MAX_TEXT_BYTES:
        return {}
    (stored,) = read_fields(version.shard_store, [address])
    read = {name: read_bounded(data, Facts(field=name)).value for name, data in stored.items()}
    return {name: text for name, text in read.items() if isinstance(text, str)}


def _is_beginning(restored: str, text: str) -> bool:
    """Return whether `text` starts with `restored`, whose last character truncation may have made U+FFFD."""
    # Every text starts with "", so no tokens restore only an empty text.
    beginning = restored.strip()
    return text.startswith((beginning, beginning.rstrip("\ufffd"))) and bool(restored or not text)


def _not_restored(restored: str, name: str, text: str) -> str:
    same = takewhile(lambda pair: pair[0] == pair[1], zip(restored, text, strict=False))
    at = sum(1 for _ in same)
    actual, expected = (clean(one[at : at + _SHOWN]) for one in (restored, text))
    return f"the stored tokens do not decode to {clean(name, 80)}: from character {at:,} “{actual}” for “{expected}”"


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldRow(StoredField):
    transformed: ShownValue | None
    """Transformed value; None if dropped or not run."""
    placement: Placement | None = None
    """Placement of the transformed image in the decoded one, or None."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotRecord(JsonRecord):
    training: str
    """Run name or plan hash."""
    plan: str
    """Plan hash."""
    step: int
    """Global step."""
    slot: int
    """Global slot."""
    batch_size: int
    """Number of slots over all ranks."""
    source: str
    """Name in the plan."""
    key: str
    """Sample key."""
    version: str
    """Version name; "" for an item of a dataset."""
    ordinal: int
    """Index in the version or dataset."""
    epoch: int
    """Epoch of the source."""
    position: int
    """In the source's stream."""
    attempt: int
    """0 if planned; else the substitute's number."""
    stage: str
    """`trained` if replayed and proved, else `transformed`, or `decoded`."""
    untrained: str
    """Why no record shows that this was trained, or ""."""
    fields: tuple[FieldRow, ...]
    """Stored, then added by the transform."""
    draws: tuple[str, ...]
    """The transform's random draws from the sample's generator."""
    repeats: bool
    """True if a second transform gave equal values."""
    marks: tuple[StepMark, ...]
    """Worst first."""
    largest: Mapping[str, float]
    """Metric -> value, if among the step's largest."""
    provenance: Mapping[str, str]
    """Column -> value."""
    runs: tuple[StageRun, ...]
    """Dagster runs, upstream first."""
    trainings: tuple[HeldSteps, ...]
    """Slots with the sample, here, then in other runs; of an item only here; empty for a packed sequence."""
    runs_left: tuple[str, ...]
    """Runs not searched."""
    runs_error: str
    """Why other runs are not listed, or ""."""
    edits: tuple[ColumnEdit, ...]
    """By column, oldest first; empty for a packed sequence."""
    neighbours: tuple[Neighbour, ...]
    """Look-alikes by `phash`, nearest first; empty for a packed sequence."""
    columns: Mapping[str, str]
    """Samples table columns, without empty cells; empty for a packed sequence, and for an item."""
    slices: tuple[SampleSlice, ...]
    """Slices that contain the sample, the newest first."""
    slice_problems: Mapping[str, str]
    """Slice that cannot be read -> why."""
    slices_left: tuple[str, ...]
    """Names of slices that were not searched."""
    excluded: ExcludedSince | None
    """Exclusion that keeps the sample out of the newest version, or None."""
    explained: str
    """As `penstock explain` prints it."""
    error: str = ""
    """Why values are missing, or ""."""
    trouble: str = ""
    """Recipe error, or ""."""
    dataset: str = ""
    """Facts about the item's dataset, or "" for a stored sample."""
    missing: str = ""
    """Remedy if the dataset is missing, or ""."""
    packed: PackedSequence | None = None
    """Documents of a packed sequence; None for a sample."""

    @property
    def leading(self) -> Mapping[str, str]:
        """The columns that stand beside the sample."""
        return leading_columns(self.columns, self.provenance, self.marks)


def slot_values(
    training: Training, replayers: Replayers, step: int, slot: int, take: Take[SlotValues, T]
) -> tuple[T, str]:
    """Return (`take` of a slot, recipe error or "")."""
    digests = training.part_digests(step)
    return recipe_or_plain(
        training, replayers, step, lambda replayer, setting: replayer.slot(setting, step, slot, take, digests)
    )


def slot_record(
    training: Training,
    values: SlotValues,
    trouble: str = "",
    others: RunSearch | None = None,
    slices: SliceSearch | None = None,
    *,
    functions: Functions | None = None,
    part: PartOf | None = None,
) -> SlotRecord:
    """Return a slot's record. others: also search other runs for the sample. slices: None looks into no slice.

    part: returns a part of the step, to prove its tensors.
    """
    plan = training.plan(values.step)
    explained = _explain(training, values)
    version = version_of(plan, values.source)
    stage = slot_stage(training, values, functions, trouble, part)
    fields = _fields(values, version, transformed=stage != "decoded")
    # A packed sequence is not a sample of its version: its ordinal would denote an unrelated sample.
    sample = None
    if not isinstance(plan.sources[values.source].view, PackedView):
        sample = version
    columns, column_marks = _columns(values, sample)
    (runs,) = pipeline_runs(training.root, [explained])
    return SlotRecord(
        training=training.name,
        plan=plan.hash,
        step=values.step,
        slot=values.slot,
        batch_size=plan.batch_size(values.step),
        source=values.source,
        key=values.address.key,
        version=values.address.version if explained.dataset is None else "",
        ordinal=values.address.ordinal,
        epoch=values.epoch,
        position=values.position,
        attempt=values.attempt,
        stage=stage,
        untrained=training.untrained(values.step),
        fields=fields,
        draws=values.draws,
        repeats=values.repeats,
        marks=(*_all_marks(values, explained, fields, stage, sample), *column_marks),
        largest=training.largest(values.step).get(values.slot, {}),
        provenance=explained.provenance,
        runs=runs,
        **_relations(training, values, sample, others or RunSearch(), slices),
        columns=columns,
        explained=str(explained),
        error=values.error,
        trouble=trouble,
        dataset=dataset_facts(plan).get(values.source, ""),
        missing=clean(values.missing, 600),
        packed=read_sequence(plan, values),
    )


def _columns(values: SlotValues, sample: "loader.Version | None") -> tuple[dict[str, str], list[StepMark]]:
    """Return (column -> value, without empty cells; marks of outliers among them)."""
    if sample is None:
        return {}, []
    row, marks = slot_columns(sample, values.address.ordinal, values.slot)
    return {name: clean(value, 400) for name, value in row.items() if value is not None}, marks


def _relations(
    training: Training,
    values: SlotValues,
    sample: "loader.Version | None",
    others: RunSearch,
    slices: SliceSearch | None,
) -> dict[str, Any]:
    ordinal = values.address.ordinal
    decided = SampleSlices()
    if sample is None:
        held: tuple[HeldSteps, ...] = ()
        if values.source in dataset_facts(training.plan(values.step)):
            held = find_item_slots(training, values.source, ordinal, values.step + 1)
        no_relations = {"trainings": held, "runs_left": (), "runs_error": "", "edits": (), "neighbours": ()}
        return no_relations | decided.fields()
    if slices is not None:
        decided = slices.sample_slices(sample, ordinal, values.address.key)
    held = others.find_slots(sample.dataset, values.address.key, ordinal, training, values.step + 1)
    relations = {
        "trainings": held,
        "runs_left": others.unsearched,
        "runs_error": others.error,
        "edits": column_edits(sample, ordinal),
        "neighbours": phash_neighbours(sample, ordinal),
    }
    return relations | decided.fields()


def _all_marks(
    values: SlotValues,
    explained: Explanation,
    fields: tuple[FieldRow, ...],
    stage: str,
    sample: "loader.Version | None",
) -> list[StepMark]:
    facts = SlotFacts(
        slot=values.slot,
        key=values.address.key,
        hashes={},
        marks=_marks(fields, stage),
        provenance=explained.provenance,
        error=values.error,
    )
    marks = [*rank_marks([facts]), *(_slot_marks(values.slot, fields) if stage != "decoded" else ())]
    if not values.repeats:
        text = "the transform gave other values the second time: it is not a function of its sample"
        marks.insert(0, step_mark("not_a_function", text, [values.slot]))
    if sample is not None:
        marks += restoration_marks(sample, values.address.ordinal, values.restored, values.slot)
    return marks


def _marks(fields: tuple[FieldRow, ...], stage: str) -> dict[str, Sequence[Mark]]:
    last = {one.field: one.decoded if stage == "decoded" else one.transformed for one in fields}
    return {name: one.marks for name, one in last.items() if one is not None}


def _slot_marks(slot: int, fields: tuple[FieldRow, ...]) -> list[StepMark]:
    marks = []
    for row in fields:
        known = {mark.name for mark in row.transformed.marks} if row.transformed is not None else set()
        for mark in row.decoded.marks if row.decoded is not None else ():
            # The transformed value has the other marks, and shows them itself.
            if mark.name not in known:
                text = f"before the transform: {mark.text}"
                marks.append(
                    StepMark(name=mark.name, text=text, weight=mark.weight, slots=(slot,), field=row.field)
                )
    return sorted(marks, key=lambda mark: -mark.weight)


def _explain(training: Training, values: SlotValues) -> Explanation:
    plan = training.plan(values.step)
    n = plan.batch_size(values.step)
    slots = training.slots(values.step, values.slot, n)
    (explanation,) = explain_slots(plan, values.step, slots, np.arange(1), values.slot)
    if explanation.dataset is None:
        return explanation
    # The values were made beside the dataset, which has the names of its items.
    dataset = replace(explanation.dataset, is_open=not values.missing)
    return replace(explanation, address=values.address, dataset=dataset)


def _fields(
    values: SlotValues, version: "loader.Version | None", *, transformed: bool
) -> tuple[FieldRow, ...]:
    decoded = {one.field: one for one in show_sample(values.decoded, version, values.texts, values.cut)}
    sample = values.trained if transformed else {}
    after = {one.field: one for one in show_sample(sample, version, values.texts, values.cut)}
    stored = values.address.fields
    return tuple(
        FieldRow(
            field=name,
            **field_location(stored.get(name)),
            decoded=decoded.get(name),
            transformed=after.get(name),
            placement=values.placements.get(name) if transformed else None,
        )
        # A transform may drop fields, and add some that are not stored.
        for name in dict.fromkeys((*stored, *decoded, *after))
    )
