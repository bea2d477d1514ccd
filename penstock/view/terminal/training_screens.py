"""Pages of a training in a terminal: the run, and a step with its slots."""

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, NamedTuple

from textual.binding import Binding
from textual.widget import Widget

from ...text import clean
from ..inspect.plain_text import mark_line, proof_line, stage_lines
from ..inspect.recorded_step import told_by_trail
from ..inspect.run_record import MOST_SPIKES, RunRecord, run_record
from ..inspect.step_record import SlotRow, StepRecord, part_of, step_record
from ..kinds.kind import Media
from ..replays.training import Training
from ..samples.marks import counted
from .addresses import AgainstPlace, Place, RunPlace, SlotPlace, StepPlace, WindowPlace
from .cards import CARD_COLUMNS, PICTURE_ROWS, Card, CardGrid
from .dialogs import Asking
from .note_chart import chart_lines
from .record_screen import PlaceList, RecordScreen, heading, line, paragraph

CARDS = 24
"""Slots of a page."""
MOST_STEPS = 200
"""Steps that are listed of those with different or substituted samples."""


class RunScreen(RecordScreen):
    """A run, or a plan without a trail."""

    place: RunPlace
    BINDINGS: ClassVar[list[Any]] = [
        Binding("a", "ask_other", "against a run"),
        Binding("w", "ask_window", "window"),
    ]

    def asked(self) -> RunRecord | list[str]:
        """Return the run's record; of a plan its description."""
        training = self.data.training(self.place.run)
        if training.charted is None:
            return str(training.plan(0).describe()).splitlines()
        return run_record(training, self.place.unusual)

    def title_of(self, record: RunRecord | list[str]) -> str:
        """Return the run, and how far it went."""
        if not isinstance(record, RunRecord):
            return f"plan {self.place.run[:20]}"
        return f"{record.run}: {record.n_steps:,} steps recorded, {record.first_step} to {record.last_step}"

    def widgets(self, record: RunRecord | list[str]) -> Iterable[Widget]:
        """Yield a line per note, the unusual steps, and the starts."""
        if not isinstance(record, RunRecord):
            yield paragraph("\n".join(clean(one, 300) for one in record))
            return
        if record.stale:
            yield line(clean(record.stale, 400), bad=True)
        if record.differing:
            yield line(
                f"! {counted(len(record.differing), 'step')} got twice with different samples", bad=True
            )
        for text in chart_lines(record.chart, record.struck, self.app.size.width - 4):
            yield line(text)
        pages = list(self._pages(record))
        told = f"Unusual steps: {record.n_spikes:,}, the worst first; samples with the largest notes"
        yield heading(told if pages else "Nothing unusual; g opens any step")
        if pages:
            yield PlaceList(pages)
        yield heading("Starts")
        for one in record.starts:
            versions = ", ".join(one.versions) or one.error or "none"
            yield line(f"{one.plan[:16]}  {one.world_size} ranks  {clean(one.recipe, 60)}  {versions}")

    def _pages(self, record: RunRecord) -> Iterable[tuple[str, Place | None]]:
        """Yield (text, page) of what is unusual."""
        run = self.place.run
        if record.first_spike:
            before = max(0, record.first_spike - MOST_SPIKES)
            yield f"the unusual steps before, from place {before + 1}", RunPlace(run=run, unusual=before)
        for one in record.spikes:
            text = "; ".join(mark.text for mark in one.marks)
            yield f"step {one.step}  {text}", StepPlace(run=run, step=one.step)
        after = record.first_spike + len(record.spikes)
        if record.n_spikes > after:
            rest = counted(record.n_spikes - after, "more unusual step")
            yield rest, RunPlace(run=run, unusual=after)
        for steps, text in (
            (record.differing, "got twice with different samples"),
            (record.substituted, "with substituted samples"),
        ):
            for step in steps[:MOST_STEPS]:
                yield f"step {step}  {text}", StepPlace(run=run, step=step)
            if len(steps) > MOST_STEPS:
                rest = counted(len(steps) - MOST_STEPS, "more step")
                yield f"{rest} {text}: penstock trail show {run} --json", None
        for note in record.largest:
            step_place = StepPlace(run=run, step=note.step)
            text = f"step {note.step} slot {note.slot}  {clean(note.note, 40)} {note.value:.4g}, one of the largest"
            yield text, SlotPlace(step=step_place, slot=note.slot)

    def shown(self) -> None:
        """Put the cursor into the list of unusual steps: the page may begin above the screen."""
        if isinstance(self.record, RunRecord) and self.record.stale:
            self.say(self.record.stale)
        lists = self.query(PlaceList)
        (lists.first() if lists else self.query_one("#body")).focus()

    def action_ask_other(self) -> None:
        """Ask for the run that this one is held against."""
        self.app.push_screen(Asking("Against which run?", {"run": ""}), self._against)

    def _against(self, given: Mapping[str, str] | None) -> None:
        if given is not None and given["run"].strip():
            self.viewer.open(AgainstPlace(run=self.place.run, other=given["run"].strip()))

    def action_ask_window(self) -> None:
        """Ask which steps are looked at together."""
        self.app.push_screen(Asking("Steps together", {"from": "", "to": ""}), self._window)

    def _window(self, given: Mapping[str, str] | None) -> None:
        if given is None:
            return
        ends = [given[name].strip() for name in ("from", "to")]
        if not all(one.isdecimal() and len(one) <= 18 for one in ends if one):
            self.say(f"whole numbers are needed, got {ends[0]!r} and {ends[1]!r}")
            return
        first, last = (int(one) if one else None for one in ends)
        self.viewer.open(WindowPlace(run=self.place.run, first=first, last=last))

    def command(self) -> str:
        """Return the verb that verifies the trail."""
        return self.viewer.command("trail", "verify", self.place.run)


class _Step(NamedTuple):
    """A step, and what its cards show."""

    record: StepRecord
    """The step."""
    shown: list[SlotRow]
    """Slots of this page."""
    pictures: dict[int, Media | None]
    """Slot -> its picture."""


class StepScreen(RecordScreen):
    """A rank's part of a step."""

    place: StepPlace
    BINDINGS: ClassVar[list[Any]] = [
        Binding("left_square_bracket", "walk_steps(-1)", "step before"),
        Binding("right_square_bracket", "walk_steps(1)", "step after"),
        Binding("left_curly_bracket", "walk_ranks(-1)", "rank before"),
        Binding("right_curly_bracket", "walk_ranks(1)", "rank after"),
    ]

    def asked(self) -> _Step:
        """Return the record of the part, and pictures of the slots that are shown."""
        training = self.data.training(self.place.run)
        with told_by_trail(training, self.place.step):
            return self._found(training)

    def _found(self, training: Training) -> _Step:
        at = self.place
        rank, world_size = part_of(training, at.step, at.rank, at.world_size)
        batch, trouble = self.data.batch(at.run, at.step, rank, world_size)
        record = step_record(training, batch, self.data.functions(training, at.step, trouble), trouble)
        numbers = [row.slot for row in record.slots]
        first = numbers.index(at.slot) // CARDS * CARDS if at.slot in numbers else 0
        shown = list(record.slots[first : first + CARDS])
        pictures: dict[int, Media | None] = {}
        for row in shown if self.viewer.pictures != "none" else ():
            found, _ = self.data.thumbnails(at.run, at.step, rank, world_size, row.slot)
            pictures[row.slot] = next(iter(found.values()), None)
        return _Step(record, shown, pictures)

    def title_of(self, found: _Step) -> str:
        """Return run, step and part."""
        record = found.record
        return (
            f"{record.training} step {record.step}: rank {record.rank} of {record.world_size}, "
            f"{len(record.slots)} of {record.batch_size} slots, digest {record.digest:016x}"
        )

    def widgets(self, found: _Step) -> Iterable[Widget]:
        """Yield proofs, notes and marks, then the slots."""
        record = found.record
        for proof in record.proofs:
            yield line(proof_line(proof), bad=proof.proved is False)
        if record.stale:
            yield line(clean(record.stale, 400), bad=True)
        if record.trouble:
            yield line(f"the recipe could not be run: {record.trouble}", bad=True)
        for text in stage_lines(record):
            yield line(text, bad="!" in text)
        if record.notes:
            told = ", ".join(f"{clean(name, 40)} {value:.5g}" for name, value in sorted(record.notes.items()))
            yield line(f"  notes    {told}")
        for mark in record.marks:
            yield line(mark_line(mark), bad=True)
        yield CardGrid(
            [self._card(row, found.pictures.get(row.slot)) for row in found.shown], self.app.size.width
        )

    def _card(self, row: SlotRow, media: Media | None) -> Card:
        largest = "".join(f" {name} {value:.3g}" for name, value in row.largest.items())
        substitute = f" substitute {row.attempt}" if row.attempt else ""
        marks = [f"! {mark.text}" for one in row.shown for mark in one.marks]
        fields = [f"{one.field} {one.lines[0] if one.lines else ''}" for one in row.shown]
        bad = [f"! {clean(row.error, 100)}"] if row.error else []
        lines = [f"{row.slot}{substitute}{largest}", *bad, *marks, *fields, clean(row.key, 80)]
        if not marks and not bad:
            lines = [lines[0], clean(row.key, 80), *fields]
        return Card(
            row.slot, row.version, row.key, lines, self.picture(media, CARD_COLUMNS - 1, PICTURE_ROWS)
        )

    def shown(self) -> None:
        """Put the cursor onto the slot of the address."""
        cards = self.query_one(CardGrid).cards
        chosen = [card for card in cards if card.number == self.place.slot] or cards
        (chosen[0] if chosen else self.query_one("#body")).focus(scroll_visible=self.place.slot is not None)

    def chosen(self) -> tuple[str, str] | None:
        """Return the sample of the card with the cursor."""
        card = self.focused
        return (card.version, card.key) if isinstance(card, Card) else None

    def on_card_opened(self, event: Card.Opened) -> None:
        """Open the slot."""
        self._open_slot(event.card.number, explain=False)

    def on_card_grid_beyond(self, event: CardGrid.Beyond) -> None:
        """Open the page of slots before or after."""
        numbers = [row.slot for row in self.record.record.slots]
        shown = [row.slot for row in self.record.shown]
        at = numbers.index(shown[0]) - 1 if event.by < 0 else numbers.index(shown[-1]) + 1
        if 0 <= at < len(numbers):
            self.viewer.open(self._part(self.place.step, slot=numbers[at]))

    def action_explain(self) -> None:
        """Open the slot with its way back."""
        card = self.focused
        if isinstance(card, Card):
            self._open_slot(card.number, explain=True)

    def _open_slot(self, slot: int, *, explain: bool) -> None:
        self.viewer.open(SlotPlace(step=self._part(self.place.step), slot=slot, explain=explain))

    def _part(self, step: int, *, by: int = 0, slot: int | None = None) -> StepPlace:
        """Return the address of a part: of this rank, or one beside it."""
        found = self.record.record
        return StepPlace(
            run=self.place.run, step=step, rank=found.rank + by, world_size=found.world_size, slot=slot
        )

    def action_walk_steps(self, by: int) -> None:
        """Open the step before or after."""
        if self.record is None:
            self.viewer.open(StepPlace(run=self.place.run, step=max(0, self.place.step + by)))
        elif self.place.step + by >= 0:
            self.viewer.open(self._part(self.place.step + by))

    def action_walk_ranks(self, by: int) -> None:
        """Open the part of the rank before or after."""
        if self.record is not None and 0 <= self.record.record.rank + by < self.record.record.world_size:
            self.viewer.open(self._part(self.place.step, by=by))

    def command(self) -> str:
        """Return the verb that tells the same as text."""
        more: list[Any] = []
        if self.record is not None:
            found = self.record.record
            more = ["--world", found.world_size, "--rank", found.rank]
        recipe = ["--recipe", self.data.recipe] if self.data.recipe else []
        return self.viewer.command("batch", f"{self.place.run}@{self.place.step}", *more, *recipe)
