"""A training step: its slots, proofs that they were trained on, and the batch's marks."""

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

import loader
from loader.api.explain import Explanation, explain_slots
from loader.dataset.shards.address import SampleAddress
from loader.errors import (
    InvalidPlan,
    InvalidRuntime,
    InvalidSample,
    InvalidSignature,
    PlanMismatch,
    TransformFailed,
    WorkerFailed,
)
from loader.order.sources.packing import PackedView
from loader.run.replay import Functions

from ...text import clean
from ..json_record import JsonRecord
from ..marks import SlotFacts, StepMark, note_marks, rank_marks, step_marks
from ..replays.replayed_values import Digests, Setting, StepPart, T, Take
from ..replays.replays import ReplayedPart, Replayer, Replayers
from ..replays.training import Training
from ..shown_values import ShownValue, dataset_facts, version_of
from .packed_documents import count_totals
from .proofs import Proof, batch_stage, proofs
from .shown_batch import ShownBatch, ShownSlot

BAD_WEIGHT = 70
"""Weight from which a mark is shown in red."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotRow(JsonRecord):
    slot: int
    """Global slot."""
    source: str
    """Name in the plan; "" for padding."""
    key: str
    """Sample key; "" for padding."""
    version: str
    """Name; "" for padding, and for items of a dataset."""
    ordinal: int
    """Index in the version or dataset; -1 for padding."""
    epoch: int
    """Epoch of the source."""
    attempt: int
    """0 if planned; else the substitute's number."""
    raw: str
    """Raw object's URI, if recorded."""
    shown: tuple[ShownValue, ...]
    """Values at the record's stage."""
    largest: Mapping[str, float]
    """Metric -> value, if among the step's largest."""
    error: str = ""
    """Read error, or ""."""
    dataset: str = ""
    """Name of the dataset, or "" for a stored sample."""
    missing: bool = False
    """True if the item is not made, because its dataset is missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord(JsonRecord):
    training: str
    """Run name or plan hash."""
    plan: str
    """Plan hash."""
    step: int
    """Global step."""
    rank: int
    world_size: int
    """Number of ranks."""
    batch_size: int
    """Slots over all ranks."""
    digest: int | None
    """This part's 64-bit digest; None if items are missing."""
    bucket: str
    """Bucket, or ""."""
    proofs: tuple[Proof, ...]
    """Proofs that this was trained on."""
    stage: str
    """`trained` if replayed and proved, else `transformed`, or `decoded`."""
    untrained: str
    """Why no record shows that this was trained, or ""."""
    marks: tuple[StepMark, ...]
    """Marks, worst first."""
    notes: Mapping[str, float]
    """Metric -> value."""
    mixture: Mapping[str, int]
    """Source -> slots in this part."""
    totals: Mapping[str, int]
    """`Batch.totals` of a packed step, over all ranks; {} if it is not packed."""
    slots: tuple[SlotRow, ...]
    """This part's slots, without padding."""
    datasets: tuple[str, ...] = ()
    """Facts about each dataset of this part: source, name, length, fingerprint."""
    missing: tuple[str, ...] = ()
    """Remedy for each missing dataset."""
    trouble: str = ""
    """Recipe error, or ""."""
    stale: str = ""
    """Why the run log may have grown; "" if just read."""

    @property
    def bad_slots(self) -> tuple[SlotRow, ...]:
        """The stored samples that a bad mark names, or whose metric is not finite, by slot."""
        if self.totals:  # packed sequences are not samples
            return ()
        named = {slot for mark in self.marks if mark.weight >= BAD_WEIGHT for slot in mark.slots}
        rows = []
        for row in self.slots:
            is_finite = all(map(math.isfinite, row.largest.values()))
            if row.version and (row.slot in named or not is_finite):
                rows.append(row)
        return tuple(rows)


def step_values(
    training: Training,
    replayers: Replayers,
    step: int,
    rank: int,
    world_size: int,
    take: Take[ReplayedPart, T],
    digests: Digests | None = None,
) -> tuple[T, str]:
    """Return (`take` of a rank's part, recipe error or ""). digests: recorded ones; None looks them up."""
    place = StepPart(step, rank, world_size)
    known = training.part_digests(*place) if digests is None else digests
    return recipe_or_plain(
        training, replayers, step, lambda replayer, setting: replayer.part(setting, place, take, known)
    )


def recipe_or_plain(
    training: Training, replayers: Replayers, step: int, ask: Callable[[Replayer, Setting], T]
) -> tuple[T, str]:
    """Return (`ask` of the recipe or, if it failed or there is none, of plain decoders; the recipe's error or "").

    Without the recipe, items of datasets are missing. Raises: errors of the datasets, if the replayers are strict.
    """
    trouble = ""
    if replayers.recipe is not None:
        try:
            return ask(replayers.recipe, training.setting(step, recipe=True)), ""
        except (TransformFailed, InvalidSignature, WorkerFailed) as error:
            trouble = str(error)
        except (PlanMismatch, InvalidPlan, InvalidSample, InvalidRuntime) as error:
            if replayers.is_strict or not dataset_facts(training.plan(step)):
                raise
            trouble = f"{type(error).__name__}: {error}"
    return ask(replayers.plain, training.setting(step, recipe=False)), trouble


def functions(training: Training, replayers: Replayers, step: int, trouble: str) -> Functions | None:
    """Return facts about the recipe's functions; None without a recipe, or if it failed."""
    if replayers.recipe is None or trouble:
        return None
    return replayers.recipe.functions(training.setting(step, recipe=True))


def step_record(
    training: Training, batch: ShownBatch, functions: Functions | None, trouble: str = ""
) -> StepRecord:
    """Return a part's record. functions: facts about the recipe's functions, if there is one."""
    plan = training.plan(batch.step)
    step = batch.step
    explained = {item.slot: item for item in explain_part(training, plan, batch)}
    largest = training.largest(step)
    rows = []
    for slot, item in explained.items():
        shown = batch.slots[slot - batch.first_slot]
        row = _row(item, shown, largest.get(slot, {}), batch.errors.get(slot, ""))
        if item.source in batch.missing:
            row = replace(row, missing=True)
        rows.append(row)
    facts = [
        SlotFacts(
            slot=row.slot,
            key=row.key,
            hashes=batch.slots[row.slot - batch.first_slot].hashes,
            marks={item.field: item.marks for item in row.shown},
            provenance=explained[row.slot].provenance,
            error=row.error,
        )
        for row in rows
    ]
    notes = training.notes(step)
    proof_list = proofs(training, batch, functions, trouble)
    recipe = functions is not None and not trouble
    stage = batch_stage(training, step, proof_list, recipe=recipe)
    if rows and all(row.missing for row in rows):
        stage = "planned"
    facts_of_datasets = dataset_facts(plan)
    sources = dict.fromkeys(row.source for row in rows)
    return StepRecord(
        training=training.name,
        plan=plan.hash,
        step=step,
        rank=batch.rank,
        world_size=batch.world_size,
        batch_size=plan.batch_size(step),
        digest=batch.digest,
        bucket=_bucket(plan, explained),
        proofs=proof_list,
        stage=stage,
        untrained=training.untrained(step),
        marks=rank_marks(
            facts, [*note_marks(step, notes, training.spreads), *_column_marks(plan, explained)]
        ),
        notes=notes,
        mixture=dict(Counter(row.source for row in rows)),
        totals=_totals(training, plan, step),
        slots=tuple(rows),
        datasets=tuple(facts_of_datasets[name] for name in sources if name in facts_of_datasets),
        missing=tuple(clean(text, 600) for text in batch.missing.values()),
        trouble=trouble,
        stale=training.stale,
    )


def _totals(training: Training, plan: "loader.Plan", step: int) -> dict[str, int]:
    if plan.pack is None:
        return {}
    return count_totals(plan, step, training.slots(step, 0, 1))


def explain_part(training: Training, plan: "loader.Plan", batch: ShownBatch) -> list[Explanation]:
    """Return each slot's provenance, recorded substitutes included."""
    slots = training.slots(batch.step, batch.rank, batch.world_size)
    return explain_slots(plan, batch.step, slots, np.arange(len(slots)), batch.first_slot)


def default_part(training: Training, step: int) -> tuple[int, int]:
    """Return (rank, world size) of a recorded part or, without a run log, of a first part of up to 256 slots."""
    recorded = training.rows(step)
    if recorded:
        # A run may have repeated the step with another number of ranks: the latest counts.
        last = max(recorded, key=lambda row: (row["at_us"], row["rank"]))
        first = min(row["rank"] for row in recorded if row["world_size"] == last["world_size"])
        return first, int(last["world_size"])
    n = training.plan(step).batch_size(step)
    return 0, -(-n // 256)


def part_of(
    training: Training, step: int, rank: int | None = None, world_size: int | None = None
) -> tuple[int, int]:
    """Return (rank, world size), with the default part's for None."""
    default_rank, default_size = default_part(training, step)
    if world_size is None:
        world_size = default_size
    if rank is None:
        # The default rank is one of the default size: another size may lack it.
        rank = default_rank if world_size == default_size else 0
    return rank, world_size


def _row(explained: Explanation, shown: ShownSlot, largest: Mapping[str, float], error: str) -> SlotRow:
    version = explained.address.version
    key = explained.address.key
    dataset = ""
    if explained.dataset is not None:
        version = ""
        dataset = clean(explained.dataset.name, 200)
        key = shown.key or key  # only the dataset has the names of its items
    return SlotRow(
        slot=explained.slot,
        source=explained.source,
        key=key,
        version=version,
        dataset=dataset,
        ordinal=explained.address.ordinal,
        epoch=explained.epoch,
        attempt=explained.attempt,
        raw=clean(explained.provenance.get("raw_uri", ""), 400),
        shown=shown.fields,
        largest=largest,
        error=error,
    )


def _column_marks(plan: "loader.Plan", explained: Mapping[int, Explanation]) -> list[StepMark]:
    by_source: dict[str, dict[int, SampleAddress]] = {}
    for slot, explanation in explained.items():
        if not isinstance(plan.sources[explanation.source].view, PackedView):
            by_source.setdefault(explanation.source, {})[slot] = explanation.address
    groups = ((version_of(plan, source), at) for source, at in by_source.items())
    return [mark for version, at in groups if version is not None for mark in step_marks(version, at)]


def _bucket(plan: "loader.Plan", explained: Mapping[int, Explanation]) -> str:
    for explanation in explained.values():
        return plan.sources[explanation.source].bucket or ""
    return ""
