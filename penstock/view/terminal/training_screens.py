"""Training pages: a run, a step with its slots, a comparison, a window of steps."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray
from textual.binding import Binding
from textual.widget import Widget

import loader

from ...text import clean
from ..inspect.plain_text import compared_line, mark_line, proof_line, stage_lines, step_title, window_text
from ..inspect.recorded_step import attach_recorded_step
from ..inspect.run_comparison import RunComparison, run_comparison
from ..inspect.run_record import MOST_SPIKES, TrainingRunRecord, run_record
from ..inspect.step_record import SlotRow, StepRecord, part_of
from ..inspect.step_window import StepWindow, step_window
from ..kinds.kind import Media
from ..marks import counted
from ..replays.training import Training
from .addresses import ComparisonPage, PageAddress, RunPage, SlotPage, StepPage, WindowPage
from .record_screen import LinkList, RecordScreen, heading, line, paragraph
from .widgets import CARD_COLUMNS, PICTURE_ROWS, CardGrid, GridCard, InputDialog

_HEIGHTS = "▁▂▃▄▅▆▇█"
_NAME_LENGTH = 20
"""Most characters shown of a name."""
_LEAST_CELLS = 8


CARDS = 24
"""Slots per page."""
MOST_STEPS = 200
"""Most listed with differing or substituted samples."""


def chart_lines(
    chart: Mapping[str, Sequence[float | None]], struck: Sequence[int], columns: int
) -> list[str]:
    """Return one line per metric: name, range, and bars of eight heights on its own scale; then the steps.

    chart, struck: of `TrainingRunRecord`. columns: width in cells.
    """
    steps = np.array(chart["step"], np.float64)
    metrics = {name: values for name, values in chart.items() if name != "step"}
    if not len(steps):
        return []
    heads = {name: _head(name, values) for name, values in metrics.items()}
    margin = max(len(one) for one in [*heads.values(), "unusual steps"]) + 1
    cells = max(_LEAST_CELLS, columns - margin)
    first, last = steps[0], max(steps[-1], *struck) if struck else steps[-1]

    def places(numbers: NDArray[np.float64]) -> NDArray[np.int64]:
        cell = (numbers - first) * cells // max(1.0, last - first)
        cell_numbers: NDArray[np.int64] = np.minimum(cell, cells - 1).astype(np.int64)
        return cell_numbers

    at = places(steps)
    lines = [f"{heads[name]:<{margin}}{_bars(values, at, cells)}" for name, values in metrics.items()]
    if struck:
        marks = [" "] * cells
        for place in places(np.array(struck, np.float64)).tolist():
            marks[place] = "!"
        lines.append(f"{'unusual steps':<{margin}}{''.join(marks)}")
    ends = f"{int(first):,}", f"{int(last):,}"
    lines.append(f"{'step':<{margin}}{ends[0]:<{max(1, cells - len(ends[1]))}}{ends[1]}")
    return lines


def _head(name: str, values: Sequence[float | None]) -> str:
    known = [one for one in values if one is not None]
    text = f"{min(known):.4g} to {max(known):.4g}" if known else "no finite value"
    return f"{clean(name, _NAME_LENGTH):<16} {text}"


def _bars(values: Sequence[float | None], at: NDArray[np.int64], cells: int) -> str:
    tops: dict[int, float] = {}
    for place, value in zip(at.tolist(), values, strict=True):
        if value is not None:
            tops[place] = max(value, tops.get(place, value))
    if not tops:
        return " " * cells
    low, high = min(one for one in values if one is not None), max(tops.values())
    scale = (len(_HEIGHTS) - 1) / (high - low) if high > low else 0.0
    return "".join(_HEIGHTS[round((tops[i] - low) * scale)] if i in tops else " " for i in range(cells))


class RunScreen(RecordScreen):
    """A run, or a plan without a run log."""

    page: RunPage
    BINDINGS: ClassVar[list[Any]] = [
        Binding("a", "ask_other", "compare"),
        Binding("w", "ask_window", "window"),
    ]

    def load_record(self) -> TrainingRunRecord | list[str]:
        training = self.data.training(self.page.run)
        if training.charted is None:
            return str(training.plan(0).describe()).splitlines()
        return run_record(training, self.page.unusual)

    def title_of(self, record: TrainingRunRecord | list[str]) -> str:
        if not isinstance(record, TrainingRunRecord):
            return f"plan {self.page.run[:20]}"
        return f"{record.run}: {record.n_steps:,} steps recorded, {record.first_step} to {record.last_step}"

    def widgets(self, record: TrainingRunRecord | list[str]) -> Iterable[Widget]:
        if not isinstance(record, TrainingRunRecord):
            yield paragraph("\n".join(clean(text, 300) for text in record))
            return
        if record.stale:
            yield line(clean(record.stale, 400), bad=True)
        if record.differing:
            yield line(
                f"! {counted(len(record.differing), 'step')} received twice with different samples", bad=True
            )
        for text in chart_lines(record.chart, record.struck, self.app.size.width - 4):
            yield line(text)
        pages = list(self._pages(record))
        title = f"Unusual steps: {record.n_spikes:,}, the worst first; samples with the largest metrics"
        yield heading(title if pages else "Nothing unusual; g opens any step")
        if pages:
            yield LinkList(pages)
        yield heading("Starts")
        for start in record.starts:
            versions = ", ".join(start.versions) or start.error or "none"
            plan = start.plan[:16] or "decided by step"
            yield line(f"{plan}  {start.world_size} ranks  {clean(start.recipe, 60)}  {versions}")

    def _pages(self, record: TrainingRunRecord) -> Iterable[tuple[str, PageAddress | None]]:
        run = self.page.run
        if record.first_spike:
            before = max(0, record.first_spike - MOST_SPIKES)
            yield f"previous unusual steps, from number {before + 1}", RunPage(run=run, unusual=before)
        for spike in record.spikes:
            text = "; ".join(mark.text for mark in spike.marks)
            yield f"step {spike.step}  {text}", StepPage(run=run, step=spike.step)
        after = record.first_spike + len(record.spikes)
        if record.n_spikes > after:
            rest = counted(record.n_spikes - after, "more unusual step")
            yield rest, RunPage(run=run, unusual=after)
        for steps, text in (
            (record.differing, "received twice with different samples"),
            (record.substituted, "with substituted samples"),
            (record.differing_notes, "repeated with other metrics"),
        ):
            for step in steps[:MOST_STEPS]:
                yield f"step {step}  {text}", StepPage(run=run, step=step)
            if len(steps) > MOST_STEPS:
                rest = counted(len(steps) - MOST_STEPS, "more step")
                yield f"{rest} {text}: penstock trail show {run} --json", None
        for note in record.largest:
            step_place = StepPage(run=run, step=note.step)
            text = f"step {note.step} slot {note.slot}  {clean(note.note, 40)} {note.value:.4g}, one of the largest"
            yield text, SlotPage(step=step_place, slot=note.slot)

    def focus_content(self) -> None:
        """Focus the unusual steps, even if the page's top scrolls away."""
        if isinstance(self.record, TrainingRunRecord) and self.record.stale:
            self.say(self.record.stale)
        lists = self.query(LinkList)
        (lists.first() if lists else self.query_one("#body")).focus()

    def action_ask_other(self) -> None:
        self.app.push_screen(InputDialog("Compare with which run?", {"run": ""}), self._against)

    def _against(self, answers: Mapping[str, str] | None) -> None:
        if answers is not None and answers["run"].strip():
            self.viewer.open(ComparisonPage(run=self.page.run, other=answers["run"].strip()))

    def action_ask_window(self) -> None:
        self.app.push_screen(InputDialog("Several steps", {"from": "", "to": ""}), self._window)

    def _window(self, answers: Mapping[str, str] | None) -> None:
        if answers is None:
            return
        ends = [answers[name].strip() for name in ("from", "to")]
        if not all(one.isdecimal() and len(one) <= 18 for one in ends if one):
            self.say(f"enter whole numbers, got {ends[0]!r} and {ends[1]!r}")
            return
        first, last = (int(one) if one else None for one in ends)
        self.viewer.open(WindowPage(run=self.page.run, first=first, last=last))

    def command(self) -> str:
        return self.viewer.command("trail", "verify", self.page.run)


class _Step(NamedTuple):
    record: StepRecord
    shown: list[SlotRow]
    pictures: dict[int, Media | None]


class StepScreen(RecordScreen):
    page: StepPage
    BINDINGS: ClassVar[list[Any]] = [
        Binding("left_square_bracket", "walk_steps(-1)", "previous step"),
        Binding("right_square_bracket", "walk_steps(1)", "next step"),
        Binding("left_curly_bracket", "walk_ranks(-1)", "previous rank"),
        Binding("right_curly_bracket", "walk_ranks(1)", "next rank"),
    ]

    def load_record(self) -> _Step:
        training = self.data.training(self.page.run)
        with attach_recorded_step(training, self.page.step):
            return self._step(training)

    def _step(self, training: Training) -> _Step:
        at = self.page
        rank, world_size = part_of(training, at.step, at.rank, at.world_size)
        record = self.data.step_record(training, at.step, rank, world_size)
        numbers = [row.slot for row in record.slots]
        first = numbers.index(at.slot) // CARDS * CARDS if at.slot in numbers else 0
        shown = list(record.slots[first : first + CARDS])
        pictures: dict[int, Media | None] = {}
        for row in shown if self.viewer.pictures != "none" else ():
            thumbnails, _ = self.data.thumbnails(at.run, at.step, rank, world_size, row.slot)
            pictures[row.slot] = next(iter(thumbnails.values()), None)
        return _Step(record, shown, pictures)

    def title_of(self, page: _Step) -> str:
        return step_title(page.record)

    def widgets(self, page: _Step) -> Iterable[Widget]:
        record = page.record
        for proof in record.proofs:
            yield line(proof_line(proof), bad=proof.proved is False)
        if record.stale:
            yield line(clean(record.stale, 400), bad=True)
        if record.trouble:
            yield line(f"the recipe failed: {record.trouble}", bad=True)
        for text in stage_lines(record):
            yield line(text, bad="!" in text)
        for text in record.datasets:
            yield line(text)
        for text in record.missing:
            yield line(text, bad=True)
        if record.notes:
            text = ", ".join(f"{clean(name, 40)} {value:.5g}" for name, value in sorted(record.notes.items()))
            yield line(f"  notes    {text}")
        for mark in record.marks:
            yield line(mark_line(mark), bad=True)
        yield CardGrid(
            [self._card(row, page.pictures.get(row.slot)) for row in page.shown], self.app.size.width
        )

    def _card(self, row: SlotRow, media: Media | None) -> GridCard:
        largest = "".join(f" {name} {value:.3g}" for name, value in row.largest.items())
        substitute = f" substitute {row.attempt}" if row.attempt else ""
        marks = [f"! {mark.text}" for one in row.shown for mark in one.marks]
        fields = [f"{one.field} {one.lines[0] if one.lines else ''}" for one in row.shown]
        bad = [f"! {clean(row.error, 100)}"] if row.error else []
        lines = [f"{row.slot}{substitute}{largest}", *bad, *marks, *fields, clean(row.key, 80)]
        if not marks and not bad:
            lines = [lines[0], clean(row.key, 80), *fields]
        return GridCard(
            row.slot, row.version, row.key, lines, self.picture(media, CARD_COLUMNS - 1, PICTURE_ROWS)
        )

    def focus_content(self) -> None:
        cards = self.query_one(CardGrid).cards
        chosen = [card for card in cards if card.number == self.page.slot] or cards
        (chosen[0] if chosen else self.query_one("#body")).focus(scroll_visible=self.page.slot is not None)

    def selected_sample(self) -> tuple[str, str] | None:
        card = self.focused
        if not isinstance(card, GridCard) or not card.version:
            return None
        return card.version, card.key

    def on_grid_card_opened(self, event: GridCard.Opened) -> None:
        self._open_slot(event.card.number, explain=False)

    def on_card_grid_beyond(self, event: CardGrid.Beyond) -> None:
        numbers = [row.slot for row in self.record.record.slots]
        shown = [row.slot for row in self.record.shown]
        at = numbers.index(shown[0]) - 1 if event.by < 0 else numbers.index(shown[-1]) + 1
        if 0 <= at < len(numbers):
            self.viewer.open(self._part(self.page.step, slot=numbers[at]))

    def action_explain(self) -> None:
        card = self.focused
        if isinstance(card, GridCard):
            self._open_slot(card.number, explain=True)

    def _open_slot(self, slot: int, *, explain: bool) -> None:
        self.viewer.open(SlotPage(step=self._part(self.page.step), slot=slot, explain=explain))

    def _part(self, step: int, *, by: int = 0, slot: int | None = None) -> StepPage:
        record = self.record.record
        return StepPage(
            run=self.page.run, step=step, rank=record.rank + by, world_size=record.world_size, slot=slot
        )

    def action_walk_steps(self, by: int) -> None:
        if self.record is None:
            self.viewer.open(StepPage(run=self.page.run, step=max(0, self.page.step + by)))
        elif self.page.step + by >= 0:
            self.viewer.open(self._part(self.page.step + by))

    def action_walk_ranks(self, by: int) -> None:
        if self.record is not None and 0 <= self.record.record.rank + by < self.record.record.world_size:
            self.viewer.open(self._part(self.page.step, by=by))

    def command(self) -> str:
        more: list[Any] = []
        if self.record is not None:
            record = self.record.record
            more = ["--world", record.world_size, "--rank", record.rank]
        recipe = ["--recipe", self.data.recipe] if self.data.recipe else []
        return self.viewer.command("batch", f"{self.page.run}@{self.page.step}", *more, *recipe)


class ComparisonScreen(RecordScreen):
    page: ComparisonPage

    def load_record(self) -> RunComparison:
        root = self.data.root
        return run_comparison(root, *(loader.read_trail(root, run) for run in self._runs))

    @property
    def _runs(self) -> tuple[str, str]:
        return self.page.run, self.page.other

    def title_of(self, record: RunComparison) -> str:
        return f"{record.runs[0]} against {record.runs[1]}"

    def widgets(self, record: RunComparison) -> Iterable[Widget]:
        yield paragraph("\n".join(clean(one, 2000) for one in record.lines))
        if record.step < 0:
            return
        yield LinkList((f"step {record.step} of {run}", self._step(record, run)) for run in self._runs)
        yield heading("Slots that differ")
        yield from (line(compared_line(one)) for one in record.slots)
        if rest := record.n_slots - len(record.slots):
            yield line(f"and {counted(rest, 'more slot')}")

    def focus_content(self) -> None:
        lists = self.query(LinkList)
        (lists.first() if lists else self.query_one("#body")).focus()

    def _step(self, record: RunComparison, run: str) -> StepPage:
        return StepPage(run=run, step=record.step, rank=record.rank, world_size=record.world_size)

    def command(self) -> str:
        return self.viewer.command("trail", "against", *self._runs)


class WindowScreen(RecordScreen):
    page: WindowPage

    def load_record(self) -> StepWindow:
        at = self.page
        return step_window(self.data.training(at.run), at.first, at.last)

    def title_of(self, record: StepWindow) -> str:
        return f"{record.training} steps {record.first} to {record.last}"

    def widgets(self, record: StepWindow) -> Iterable[Widget]:
        yield paragraph(window_text(record))

    def command(self) -> str:
        ends = (("--from", self.page.first), ("--to", self.page.last))
        options = [word for name, step in ends if step is not None for word in (name, step)]
        return self.viewer.command("trail", "window", self.page.run, *options)
