"""Records of a step and of a slot as plain text, for a terminal or a log."""

from collections.abc import Sequence

from ...text import clean
from ...units import shortened
from ..samples.column_edits import ColumnEdit
from ..samples.held_steps import HeldSteps
from ..samples.marks import StepMark, counted
from ..samples.phash_neighbours import Neighbour
from ..samples.shown_values import Shown
from .proofs import STAGES, Proof
from .run_comparison import ComparedSample, ComparedSlot
from .run_record import RunRecord
from .slot_record import SlotRecord
from .step_record import StepRecord
from .step_window import StepWindow, WindowSample
from .version_record import Facet

_SIGNS = {True: "proved", False: "DIFFERS", None: "not tried"}


def run_text(record: RunRecord) -> str:
    """Return a run: its starts, its unusual steps, and the samples with the largest notes."""
    lines = [f"{record.run}: {record.n_steps} steps, {record.first_step} to {record.last_step}"]
    for one in record.starts:
        versions = ", ".join(one.versions) or one.error or "none"
        lines.append(
            f"  plan {one.plan} of {versions}, {one.world_size} ranks, recipe {one.recipe or 'none'}"
        )
    if record.differing:
        lines.append(f"  ! got twice with different samples: steps {shortened(record.differing, 20)}")
    if record.substituted:
        lines.append(f"  substituted samples at steps {shortened(record.substituted, 20)}")
    lines += [f"step {spike.step}{mark_line(mark)}" for spike in record.spikes for mark in spike.marks]
    if rest := record.n_spikes - len(record.spikes):
        lines.append(
            f"and {counted(rest, 'more unusual step')}: penstock trail show {clean(record.run)} --all"
        )
    lines += [f"step {one.step} slot {one.slot}  {one.note} {one.value:.4g}" for one in record.largest]
    return "\n".join(lines)


def step_text(record: StepRecord) -> str:
    """Return a rank's part of a step: proofs, notes, marks, and a line per field of each slot."""
    lines = [
        f"{record.training} step {record.step}: rank {record.rank} of {record.world_size}, "
        f"{len(record.slots)} of {record.batch_size} slots, digest {record.digest:016x}",
        *map(proof_line, record.proofs),
        *stage_lines(record),
    ]
    if record.trouble:
        lines.append(f"  the recipe could not be run: {record.trouble}")
    if record.notes:
        lines.append(
            "  notes    " + ", ".join(f"{name} = {value:.6g}" for name, value in sorted(record.notes.items()))
        )
    lines += map(mark_line, record.marks)
    for slot in record.slots:
        substitute = f", substitute {slot.attempt}" if slot.attempt else ""
        largest = "".join(f", {name} {value:.4g}" for name, value in slot.largest.items())
        lines.append(
            f"slot {slot.slot}  {slot.key}  {slot.version} sample {slot.ordinal}{substitute}{largest}"
        )
        if slot.error:
            lines.append(f"  {slot.error}")
        lines += [_field_line(one) for one in slot.shown]
    return "\n".join(lines)


def slot_text(record: SlotRecord) -> str:
    """Return one slot: its fields before and after the transform, the draws, and the way back."""
    lines = [record.explained, *stage_lines(record)]
    lines += [f"  made by     {one.line()}" for one in record.runs]
    if record.error:
        lines.append(f"  error       {record.error}")
    if record.trouble:
        lines.append(f"  the recipe could not be run: {record.trouble}")
    lines += map(mark_line, record.marks)
    for row in record.fields:
        lines.append(row.field)
        for stage, one in (("decoded", row.decoded), (record.stage, row.transformed)):
            if one is not None:
                lines += [f"  {stage:<11} {line}" for line in one.lines]
        if row.placement is not None and row.placement.corners:
            corners = " ".join(f"({x:g}, {y:g})" for x, y in row.placement.corners)
            mirrored = ", mirrored" if row.placement.mirrored else ""
            lines.append(f"  corners of the {record.stage} picture in the original: {corners}{mirrored}")
    lines += [f"draw  {draw}" for draw in record.draws]
    lines += [f"edit  {edit_line(one)}" for one in record.edits]
    lines += [f"looks like  {neighbour_line(one)}" for one in record.neighbours]
    lines += map(held_line, record.trainings)
    if record.runs_left:
        runs = counted(len(record.runs_left), "other run")
        lines.append(f"not asked for the sample: {runs} of the root; penstock seen RUN SOURCE KEY asks one")
    return "\n".join(lines)


def stage_lines(record: StepRecord | SlotRecord) -> list[str]:
    """Return the stage of the values in a line, and in another one that the step was not trained."""
    untrained = [f"  ! {record.untrained}"] if record.untrained else []
    return [*untrained, f"  {STAGES[record.stage]}"]


def proof_line(proof: Proof) -> str:
    """Return a proof in one line."""
    return f"  {proof.name:<8} {_SIGNS[proof.proved]:<9} {proof.text}"


def mark_line(mark: StepMark) -> str:
    """Return a mark with its slots in one line."""
    noun = "slot" if len(mark.slots) == 1 else "slots"
    slots = f"  ({noun} {shortened(mark.slots)})"
    return f"  ! {mark.text}{slots if mark.slots else ''}"


def held_line(held: HeldSteps) -> str:
    """Return the slots of a training that held a sample in one line."""
    places = ", ".join(
        f"{one.step}.{one.slot}{' as substitute' if one.attempt else ''}" for one in held.slots
    )
    more = f" (the last {len(held.slots)} of {held.n_slots:,})" if held.n_slots > len(held.slots) else ""
    if not places:
        return f"held by {clean(held.training, 80)} {held.error or 'in none of its recorded steps'}"
    verb = "planned by" if held.planned else "held by"
    return f"{verb} {clean(held.training, 80)} at step.slot {places}{more}"


def edit_line(edit: ColumnEdit) -> str:
    """Return an edit of a sample's column in one line."""
    value = edit.value or "taken away"
    return f"{edit.column:<16} {value}  {edit.annotation}, {edit.author}, {edit.at}"


def neighbour_line(one: Neighbour) -> str:
    """Return a sample that looks like another in one line."""
    return f"{one.distance:>2} {'bit ' if one.distance == 1 else 'bits'}  {clean(one.key, 200)}"


def compared_line(slot: ComparedSlot) -> str:
    """Return a slot of two runs in one line."""
    one, two = map(compared_sample, slot.samples)
    return f"slot {slot.slot:<6} {one:<34}  {two}"


def compared_sample(one: ComparedSample | None) -> str:
    """Return the sample of a run in a slot: source, key, version, and the number of a substitute."""
    if one is None:
        return "padding"
    substitute = f" substitute {one.attempt}" if one.attempt else ""
    return clean(f"{one.source} {one.key} {one.version}{substitute}", 200)


def window_text(record: StepWindow) -> str:
    """Return a window of steps: its mixture, buckets, repeated samples and substitutes."""
    lines = [
        f"{clean(record.training, 80)} steps {record.first} to {record.last}: {record.n_slots:,} slots, "
        f"{record.n_samples:,} different samples, {record.n_padding:,} padding",
        *unrecorded_lines(record),
        *(
            f"source {clean(one.source, 40):<24} {one.planned:>14,.1f} slots by the weights, "
            f"{one.delivered:>12,} delivered"
            for one in record.sources
        ),
        *(f"bucket {clean(name, 40):<24} {n:>14,} steps" for name, n in record.buckets.items()),
        f"samples that came more than once: {record.n_repeated:,}{_listed(record.repeated, record.n_repeated)}",
        *map(_window_line, record.repeated),
        f"substitutes: {record.n_substituted:,}{_listed(record.substituted, record.n_substituted)}",
        *map(_window_line, record.substituted),
    ]
    return "\n".join(lines)


def unrecorded_lines(record: StepWindow) -> list[str]:
    """Return a line that some steps of a window are not on record; none where all are."""
    if not record.unrecorded:
        return []
    n = len(record.unrecorded)
    noun = "step is" if n == 1 else "steps are"
    return [f"! {n:,} of these {noun} not on the trail, and as planned: {shortened(record.unrecorded)}"]


def _listed(found: Sequence[WindowSample], n: int) -> str:
    return f", of which {len(found)} are listed; fewer steps list others" if n > len(found) else ""


def _window_line(one: WindowSample) -> str:
    places = ", ".join(f"{step}.{slot}" for step, slot in one.places)
    more = f" and {one.n_slots - len(one.places)} more" if one.n_slots > len(one.places) else ""
    return f"  {clean(f'{one.source} {one.key} {one.version}', 200)}  at step.slot {places}{more}"


def facet_line(facet: Facet) -> str:
    """Return a column's statistics in one line."""
    told = [f"{facet.column:<20} {facet.type:<10} {facet.n:,} with a value, {facet.nulls:,} without"]
    if facet.low is not None and facet.high is not None:
        told.append(f"{facet.low:.6g} to {facet.high:.6g}")
    told += [f"{clean(value, 80)} {n:,}" for value, n in facet.values]
    if facet.n_values > len(facet.values):
        told.append(f"the {len(facet.values)} commonest of {facet.n_values:,} values")
    return "  ".join(told)


def _field_line(one: Shown) -> str:
    told = one.lines[0] if one.lines else ""
    marks = "".join(f"  ! {mark.text}" for mark in one.marks)
    return f"  {one.field:<14} {told}{marks}"
