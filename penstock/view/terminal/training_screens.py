"""Training pages: a run, a step with its slots, a comparison, a range of steps."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, ClassVar

from textual.binding import Binding
from textual.widget import Widget

import loader
from loader.api.report import check_run

from ...text import clean
from ..inspect.recorded_step import attach_recorded_step
from ..inspect.run_comparison import run_comparison
from ..inspect.run_record import run_record
from ..inspect.step_range import step_range
from ..inspect.step_record import SlotRow, part_of
from ..kinds.kind import Media
from ..run_decisions import open_decision, open_decisions, run_decisions
from ..sections.comparisons import comparison_sections
from ..sections.decision import decision_sections
from ..sections.decisions import decisions_sections
from ..sections.run import plan_sections, run_sections
from ..sections.section import Section, SectionPage
from ..sections.step import step_sections
from ..sections.step_range import step_range_sections
from ..sections.values import SlotsSection
from .addresses import ComparisonPage, DecisionPage, DecisionsPage, RunPage, SlotPage, StepPage, StepRangePage
from .section_screen import WALK_KEYS, SectionList, SectionScreen
from .widgets import CARD_COLUMNS, PICTURE_ROWS, CardGrid, GridCard, InputDialog

CARDS = 24
"""Slots per page."""


class StepsScreen(SectionScreen):
    """A page of a run's steps, from which another run or other steps are asked for."""

    BINDINGS: ClassVar[list[Any]] = [
        Binding("a", "ask_other", "compare"),
        Binding("w", "ask_steps", "steps"),
    ]

    def action_ask_other(self) -> None:
        self.app.push_screen(InputDialog("Compare with which run?", {"run": ""}), self._against)

    def _against(self, answers: Mapping[str, str] | None) -> None:
        if answers is not None and answers["run"].strip():
            self.viewer.open(ComparisonPage(run=self.page.run, other=answers["run"].strip()))

    def action_ask_steps(self) -> None:
        self.app.push_screen(InputDialog("Several steps", {"from": "", "to": ""}), self._open_range)

    def _open_range(self, answers: Mapping[str, str] | None) -> None:
        if answers is None:
            return
        ends = [answers[name].strip() for name in ("from", "to")]
        if not all(one.isdecimal() and len(one) <= 18 for one in ends if one):
            self.say(f"enter whole numbers, got {ends[0]!r} and {ends[1]!r}")
            return
        first, last = (int(one) if one else None for one in ends)
        self.viewer.open(StepRangePage(run=self.page.run, first=first, last=last))


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


class StepScreen(SectionScreen):
    page: StepPage
    BINDINGS: ClassVar[list[Any]] = [
        Binding("left_square_bracket", "walk_steps(-1)", "previous step"),
        Binding("right_square_bracket", "walk_steps(1)", "next step"),
        Binding("left_curly_bracket", "follow('{')", "previous rank"),
        Binding("right_curly_bracket", "follow('}')", "next rank"),
    ]

    def __init__(self, page: StepPage) -> None:
        super().__init__(page)
        self._slots: list[int] = []
        """All slots of the part."""
        self._shown: list[int] = []
        """Slots with a card."""
        self._pictures: dict[int, Media | None] = {}

    def load_record(self) -> SectionPage:
        at = self.page
        training = self.data.training(at.run)
        with attach_recorded_step(training, at.step):
            rank, world_size = part_of(training, at.step, at.rank, at.world_size)
            record = self.data.step_record(training, at.step, rank, world_size)
            self.page = replace(at, rank=rank, world_size=world_size)
            self._slots = [row.slot for row in record.slots]
            first = 0
            if at.slot in self._slots:
                # The page of cards that contains the slot.
                first = self._slots.index(at.slot) // CARDS * CARDS
            self._shown = self._slots[first : first + CARDS]
            for slot in self._shown if self.viewer.pictures != "none" else ():
                thumbnails, _ = self.data.thumbnails(at.run, at.step, rank, world_size, slot)
                self._pictures[slot] = next(iter(thumbnails.values()), None)
        return step_sections(record, recipe=self.data.recipe or "")

    def section_widgets(self, section: Section) -> Iterable[Widget] | None:
        if not isinstance(section, SlotsSection):
            return None
        cards = [
            self._card(row, section.are_samples) for row in section.slots if row.slot in set(self._shown)
        ]
        return [CardGrid(cards, self.app.size.width)]

    def _card(self, row: SlotRow, is_sample: bool) -> GridCard:
        largest = "".join(f" {name} {value:.3g}" for name, value in row.largest.items())
        substitute = ""
        if row.attempt:
            substitute = f" substitute {row.attempt}"
        marks = [f"! {mark.text}" for one in row.shown for mark in one.marks]
        fields = [f"{one.field} {one.lines[0] if one.lines else ''}" for one in row.shown]
        bad = [f"! {clean(row.error, 100)}"] if row.error else []
        lines = [f"{row.slot}{substitute}{largest}", *bad, *marks, *fields, clean(row.key, 80)]
        if not marks and not bad:
            # Without faults the key comes first: a card shows few lines.
            lines = [lines[0], clean(row.key, 80), *fields]
        image = self.picture(self._pictures.get(row.slot), CARD_COLUMNS - 1, PICTURE_ROWS)
        return GridCard(row.slot, row.version if is_sample else "", row.key, lines, image)

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
        self.viewer.open(SlotPage(step=self.page, slot=event.card.number))

    def on_card_grid_beyond(self, event: CardGrid.Beyond) -> None:
        edge = self._shown[0] if event.by < 0 else self._shown[-1]
        at = self._slots.index(edge) + (-1 if event.by < 0 else 1)
        if 0 <= at < len(self._slots):
            self.viewer.open(replace(self.page, slot=self._slots[at]))

    def action_explain(self) -> None:
        card = self.focused
        if isinstance(card, GridCard):
            self.viewer.open(SlotPage(step=self.page, slot=card.number, explain=True))

    def action_walk_steps(self, by: int) -> None:
        """Open the step before or after this one, even if this one cannot be shown."""
        # No upper bound: a running training has new steps that this page has not seen.
        if self.page.step + by >= 0:
            self.viewer.open(replace(self.page, step=self.page.step + by, slot=None))

    def command(self) -> str:
        if self.record is None:
            recipe = ["--recipe", self.data.recipe] if self.data.recipe else []
            return self.viewer.command("batch", f"{self.page.run}@{self.page.step}", *recipe)
        return super().command()


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


class StepRangeScreen(StepsScreen):
    page: StepRangePage

    def load_record(self) -> SectionPage:
        training = self.data.training(self.page.run)
        return step_range_sections(step_range(training, self.page.first, self.page.last))


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
