"""A sample beside its fields, on its own page and its slots': raw object, edits, and samples that look like it."""

from collections.abc import Iterable
from dataclasses import replace

from textual.widget import Widget

from ...text import clean
from ...units import size
from ..inspect.plain_text import edit_line, neighbour_line
from ..inspect.sample_record import SampleRecord
from ..inspect.slot_record import SlotRecord
from ..raw_source import RawObject, raw_object
from ..samples.held_steps import HeldSteps
from ..samples.phash_neighbours import MOST
from .addresses import Place, RunPlace, SamplePlace, SlotPlace, StepPlace, VersionPlace
from .record_screen import PlaceList, RecordScreen, cut_lines, heading, line

STEPS = 6
"""Steps that are listed of a training."""


def relations(
    record: SampleRecord | SlotRecord, version: VersionPlace, here: SamplePlace | SlotPlace
) -> Iterable[Widget]:
    """Yield the trainings that held a sample, its edits and neighbours. version: the page of its version."""
    rows = [row for one in record.trainings for row in _held(one)]
    if record.runs_left:
        n = len(record.runs_left)
        text = f"{n:,} other {'run was' if n == 1 else 'runs were'} not asked; Enter asks them"
        rows.append((text, replace(here, asked=record.runs_left[0])))
    if rows or record.runs_error:
        yield heading("Trainings that held it")
    if record.runs_error:
        yield line(f"the runs of this root are not known: {clean(record.runs_error, 400)}", bad=True)
    if rows:
        yield PlaceList(rows)
    if record.edits:
        yield heading("Edits, of the 20 columns that were edited last at most")
        yield from (line(edit_line(one)) for one in record.edits)
    if record.neighbours:
        yield heading(f"Samples that look like it, the nearest {MOST} at most")
        yield PlaceList(
            (neighbour_line(one), SamplePlace(version=version, ordinal=one.ordinal))
            for one in record.neighbours
        )


def _held(held: HeldSteps) -> Iterable[tuple[str, Place]]:
    """Yield the lines of a training: the training, and the last slots that held the sample."""
    times = (
        "once" if held.n_slots == 1 else f"{held.n_slots:,} times" if held.n_slots else "in no recorded step"
    )
    planned = ", as planned: no trail says that it was trained" if held.planned else ""
    last = f", the last {STEPS} below; penstock seen lists all" if held.n_slots > STEPS else ""
    yield f"{clean(held.training, 40)}  {held.error or times}{planned}{last}", RunPlace(run=held.training)
    for one in held.slots[-STEPS:]:
        place = SlotPlace(step=StepPlace(run=held.training, step=one.step), slot=one.slot)
        yield f"  step {one.step} slot {one.slot}{', in the place of another' if one.attempt else ''}", place


def raw_of(screen: RecordScreen, record: SampleRecord | SlotRecord, rows: int) -> RawObject | None:
    """Return the raw object of a sample, with a picture for so many rows; None without an address."""
    edge = screen.edge(screen.app.size.width, rows)
    return raw_object(screen.data.raw, record.provenance.get("raw_uri", ""), edge=edge)


def raw_widgets(screen: RecordScreen, raw: RawObject, rows: int, lines: int) -> Iterable[Widget]:
    """Yield a raw object. rows: of its picture; lines: of its value, at most."""
    if raw.shown is None:
        yield line(f"raw {clean(raw.uri, 300)}")
        if raw.reason and screen.data.raw is not None:
            yield line(f"  {clean(raw.reason, 400)}")
        return
    yield heading(f"raw {clean(raw.uri, 300)}  {size(raw.nbytes)}")
    picture = screen.picture(raw.picture, screen.app.size.width - 4, rows)
    if picture is not None:
        yield picture
    yield from (line(f"! {mark.text}", bad=True) for mark in raw.shown.marks)
    yield from cut_lines(raw.shown.lines, lines)
