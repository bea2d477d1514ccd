"""Step and slot records as plain text."""

from collections.abc import Iterable

from ...text import clean
from ...units import shortened
from ..marks import StepMark, counted
from ..sample_relations import ColumnEdit, HeldSteps, Neighbour
from ..shown_values import ShownValue
from .proofs import STAGES, Proof
from .run_comparison import ComparedSample
from .run_record import TrainingRunRecord
from .sample_record import SampleRecord
from .slot_record import SlotRecord
from .step_record import SlotRow, StepRecord

_SIGNS = {True: "proved", False: "DIFFERS", None: "not tried"}


def run_text(record: TrainingRunRecord, decided: Iterable[str] = ()) -> str:
    """Return a run as text. decided: lines on its decisions."""
    lines = [f"{record.run}: {record.n_steps} steps, {record.first_step} to {record.last_step}"]
    for row in record.starts:
        versions = ", ".join(row.versions) or row.error or "none"
        plan = row.plan or "of each decision"
        lines.append(f"  plan {plan} of {versions}, {row.world_size} ranks, recipe {row.recipe or 'none'}")
    lines += decided
    if record.differing:
        lines.append(f"  ! received twice with different samples: steps {shortened(record.differing, 20)}")
    if record.differing_notes:
        lines.append(f"  repeated with other metrics: steps {shortened(record.differing_notes, 20)}")
    if record.substituted:
        lines.append(f"  substituted samples at steps {shortened(record.substituted, 20)}")
    lines += [f"step {spike.step}{mark_line(mark)}" for spike in record.spikes for mark in spike.marks]
    if rest := record.n_spikes - len(record.spikes):
        lines.append(
            f"and {counted(rest, 'more unusual step')}: penstock trail show {clean(record.run)} --all"
        )
    lines += [f"step {row.step} slot {row.slot}  {row.note} {row.value:.4g}" for row in record.largest]
    return "\n".join(lines)


def step_text(record: StepRecord) -> str:
    """Return a rank's part of a step as text, with one line per field of each slot."""
    lines = [
        step_title(record),
        *map(proof_line, record.proofs),
        *stage_lines(record),
        *(f"  {facts}" for facts in record.datasets),
        *(f"  ! {text}" for text in record.missing),
    ]
    if record.trouble:
        lines.append(f"  the recipe failed: {record.trouble}")
    if record.notes:
        lines.append(
            "  notes    " + ", ".join(f"{name} = {value:.6g}" for name, value in sorted(record.notes.items()))
        )
    lines += map(mark_line, record.marks)
    for slot in record.slots:
        substitute = f", substitute {slot.attempt}" if slot.attempt else ""
        largest = "".join(f", {name} {value:.4g}" for name, value in slot.largest.items())
        place = sample_place(slot)
        lines.append(f"slot {slot.slot}  {slot.key}  {place}{substitute}{largest}")
        if slot.error:
            lines.append(f"  {slot.error}")
        lines += [_field_line(one) for one in slot.shown]
    return "\n".join(lines)


def sample_place(record: SlotRow | SlotRecord) -> str:
    """Return the version or source and the number of a sample."""
    if record.version:
        return f"{record.version} sample {record.ordinal}"
    return f"source {record.source} item {record.ordinal}"


def step_title(record: StepRecord) -> str:
    digest = "no digest" if record.digest is None else f"digest {record.digest:016x}"
    return (
        f"{record.training} step {record.step}: rank {record.rank} of {record.world_size}, "
        f"{len(record.slots)} of {record.batch_size} slots, {digest}"
    )


def slot_text(record: SlotRecord) -> str:
    """Return a slot as text: its fields before and after the transform, and its provenance."""
    lines = [record.explained, *stage_lines(record)]
    lines += [f"  made by     {run.line()}" for run in record.runs]
    if record.missing:
        lines.append(f"  ! {record.missing}")
    if record.error:
        lines.append(f"  error       {record.error}")
    if record.trouble:
        lines.append(f"  the recipe failed: {record.trouble}")
    lines += map(mark_line, record.marks)
    for row in record.fields:
        lines.append(row.field)
        for stage, value in (("decoded", row.decoded), (record.stage, row.transformed)):
            if value is not None:
                lines += [f"  {stage:<11} {line}" for line in value.lines]
        if row.placement is not None and row.placement.corners:
            lines.append(f"  corners of the {record.stage} image in the original: {row.placement.outline}")
    lines += [f"  {text}" for text, _ in slice_lines(record)]
    lines += [f"draw  {draw}" for draw in record.draws]
    lines += [f"edit  {edit_line(edit)}" for edit in record.edits]
    lines += [f"looks like  {neighbour_line(one)}" for one in record.neighbours]
    lines += map(held_line, record.trainings)
    if record.runs_left:
        runs = counted(len(record.runs_left), "other run")
        lines.append(
            f"not searched for the sample: {runs} of the root; penstock seen RUN SOURCE KEY searches one"
        )
    return "\n".join(lines)


def slice_lines(record: SampleRecord | SlotRecord) -> list[tuple[str, bool]]:
    """Return (text, whether it is a problem) for a sample's exclusion, and for each of its slices."""
    lines = list[tuple[str, bool]]()
    if record.excluded is not None:
        lines.append((record.excluded.line(), True))
    for one_slice in record.slices:
        text = f"slice {one_slice.name}@{one_slice.n}  {one_slice.kind}, {one_slice.by}: {one_slice.why}"
        lines.append((text, False))
    for name, problem in record.slice_problems.items():
        lines.append((f"slice {name}: {problem}", True))
    if record.slices_left:
        lines.append((f"not searched: {counted(len(record.slices_left), 'slice')}", False))
    return lines


def stage_lines(record: StepRecord | SlotRecord) -> list[str]:
    """Return the values' stage, and a warning if the step is not recorded."""
    untrained = [f"  ! {record.untrained}"] if record.untrained else []
    return [*untrained, f"  {STAGES[record.stage]}"]


def proof_line(proof: Proof) -> str:
    return f"  {proof.name:<8} {_SIGNS[proof.proved]:<9} {proof.text}"


def mark_line(mark: StepMark) -> str:
    noun = "slot" if len(mark.slots) == 1 else "slots"
    slots = f"  ({noun} {shortened(mark.slots)})"
    return f"  ! {mark.text}{slots if mark.slots else ''}"


def held_line(held: HeldSteps) -> str:
    places = ", ".join(
        f"{one.step}.{one.slot}{' as substitute' if one.attempt else ''}" for one in held.slots
    )
    more = f" (the last {len(held.slots)} of {held.n_slots:,})" if held.n_slots > len(held.slots) else ""
    if not places:
        return f"held by {clean(held.training, 80)} {held.error or 'in none of its recorded steps'}"
    verb = "planned by" if held.planned else "held by"
    return f"{verb} {clean(held.training, 80)} at step.slot {places}{more}"


def edit_line(edit: ColumnEdit) -> str:
    value = edit.value or "removed"
    return f"{edit.column:<16} {value}  {edit.annotation}, {edit.author}, {edit.at}"


def neighbour_line(neighbour: Neighbour) -> str:
    return f"{neighbour.distance:>2} {'bit ' if neighbour.distance == 1 else 'bits'}  {clean(neighbour.key, 200)}"


def compared_sample(sample: ComparedSample | None) -> str:
    """Return a sample's line."""
    if sample is None:
        return "padding"
    substitute = f" substitute {sample.attempt}" if sample.attempt else ""
    return clean(f"{sample.source} {sample.key} {sample.version}{substitute}", 200)


def _field_line(value: ShownValue) -> str:
    text = value.lines[0] if value.lines else ""
    marks = "".join(f"  ! {mark.text}" for mark in value.marks)
    return f"  {value.field:<14} {text}{marks}"
