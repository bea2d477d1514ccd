"""Training pages: a run, a step with its slots, a comparison, a window of steps."""

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, NamedTuple

from textual.binding import Binding
from textual.widget import Widget

import loader
from loader.api.report import check_run

from ...text import clean
from ..inspect.plain_text import mark_line, proof_line, stage_lines, step_title
from ..inspect.recorded_step import attach_recorded_step
from ..inspect.run_comparison import run_comparison
from ..inspect.run_record import run_record
from ..inspect.step_record import SlotRow, StepRecord, part_of
from ..inspect.step_window import step_window
from ..kinds.kind import Media
from ..replays.training import Training
from ..run_decisions import open_decision, open_decisions, run_decisions
from ..sections.comparisons import comparison_sections
from ..sections.decision import decision_sections
from ..sections.decisions import decisions_sections
from ..sections.run import plan_sections, run_sections
from ..sections.section import SectionPage
from ..sections.window import window_sections
from .addresses import ComparisonPage, DecisionPage, DecisionsPage, RunPage, SlotPage, StepPage, WindowPage
from .record_screen import RecordScreen, line
from .section_screen import WALK_KEYS, SectionList, SectionScreen
from .widgets import CARD_COLUMNS, PICTURE_ROWS, CardGrid, GridCard, InputDialog

CARDS = 24
"""Slots per page."""


class StepsScreen(SectionScreen):
    """A page of a run's steps, from which another run or other steps are asked for."""

    BINDINGS: ClassVar[list[Any]] = [
        Binding("a", "ask_other", "compare"),
        Binding("w", "ask_window", "window"),
    ]

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


class RunScreen(StepsScreen):
    """A run, or a plan without a run log."""

    page: RunPage
    _stale = ""
    """Why the newest steps may be missing, or ""."""

    def load_record(self) -> SectionPage:
        training = self.data.training(self.page.run)
        if training.charted is None:
            lines = str(training.plan(0).describe()).splitlines()
            return plan_sections(training.name, [clean(text, 300) for text in lines])
        record = run_record(training, self.page.unusual)
        overview = self.data.overview(training)
        self._stale = record.stale
        return run_sections(record, overview, run_decisions(self.data, training))

    def focus_content(self) -> None:
        """Focus the worst step, and repeat that the page is stale where it stays in sight."""
        super().focus_content()
        for lines in self.query(SectionList):
            lines.highlight_first(StepPage, SlotPage)
        if self._stale:
            self.say(self._stale)


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


class ComparisonScreen(SectionScreen):
    page: ComparisonPage

    def load_record(self) -> SectionPage:
        root = self.data.root
        first = loader.read_trail(root, self.page.run)
        second = loader.read_trail(root, self.page.other)
        return comparison_sections(run_comparison(root, first, second))

    def focus_content(self) -> None:
        super().focus_content()
        for lines in self.query(SectionList):
            lines.highlight_first(StepPage)


class WindowScreen(StepsScreen):
    page: WindowPage

    def load_record(self) -> SectionPage:
        training = self.data.training(self.page.run)
        return window_sections(step_window(training, self.page.first, self.page.last))


class DecisionsScreen(SectionScreen):
    page: DecisionsPage

    def load_record(self) -> SectionPage:
        run = check_run(self.page.run)
        return decisions_sections(run, open_decisions(self.data, run))


class DecisionScreen(SectionScreen):
    page: DecisionPage
    BINDINGS: ClassVar[list[Any]] = WALK_KEYS

    def load_record(self) -> SectionPage:
        run = check_run(self.page.run)
        return decision_sections(open_decision(self.data, run, self.page.step))
