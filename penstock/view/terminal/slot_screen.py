"""The pages of a sample and of a slot: fields with images, at all stages side by side or at one stage."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

from rich.text import Text
from textual import work
from textual.binding import Binding
from textual.containers import Horizontal, Vertical
from textual.widget import Widget
from textual.widgets import Static

from loader.errors import PenstockError

from ...text import clean, terminal_text
from ..inspect.recorded_step import attach_recorded_step
from ..kinds import find_kind
from ..kinds.kind import Media, TokenBox
from ..replays.replayed_values import SlotValues
from ..replays.training import Training
from ..sections.characters.section_lines import section_lines
from ..sections.sample import SampleMedia
from ..sections.section import FoldSection, Section, SectionPage
from ..sections.slot import slot_sections
from ..sections.texts import plain_text
from ..sections.values import FieldsSection, FieldStage, FieldValues, RawSection
from ..shown_values import field_facts, version_of
from .addresses import SlotPage
from .record_screen import cut_lines, heading, line, raw_of
from .section_screen import SectionScreen, line_widgets

PICTURE_ROWS = {1: 14, 2: 10}
"""Stages side by side -> rows of an image."""
WHOLE_ROWS = 18
"""Rows of an image at a chosen stage."""
LINES = 8
WHOLE_LINES = 40
"""A value's lines, side by side and on its own."""
BOXES = 600
"""Most tokens shown."""


class ValuesScreen(SectionScreen):
    """A page with the values of one sample. Subclasses load it."""

    DEFAULT_CSS = """
    ValuesScreen .stages { height: auto; }
    ValuesScreen .stage { width: 1fr; height: auto; padding-right: 1; }
    """
    BINDINGS: ClassVar[list[Any]] = [
        Binding("left", "follow('←')", "the one before"),
        Binding("right", "follow('→')", "the one after"),
        Binding("t", "next_stage", "stage"),
    ]

    def __init__(self, page: Any) -> None:
        super().__init__(page)
        self._stage = ""
        """Stage shown, "" for all."""
        self._pictures: dict[tuple[str, str], Media | None] = {}
        """(stage, field) -> image."""

    def focus_content(self) -> None:
        self.query_one("#body").focus()

    def section_widgets(self, section: Section) -> Iterable[Widget] | None:
        match section:
            case FieldsSection():
                return self._fields(section)
            case FoldSection(sections=(RawSection() as raw,)):
                return self._raw(section, raw)
            case FoldSection(stage="stored"):
                if self._stage in ("", "stored"):
                    return None
                return ()
        if self._stage:
            return ()
        return None

    def _fields(self, section: FieldsSection) -> Iterable[Widget]:
        for field in section.fields:
            stages = [stage for stage in field.stages if self._stage in ("", stage.name)]
            if stages or not self._stage:
                yield heading(field.field)
            if field.error and not self._stage:
                yield line(clean(field.error, 400), bad=True)
            if stages:
                yield Horizontal(
                    *(self._value(field, stage, len(stages)) for stage in stages), classes="stages"
                )

    def _value(self, field: FieldValues, stage: FieldStage, n_stages: int) -> Widget:
        value = stage.value
        parts: list[Widget] = [line(stage.name if value is None else f"{stage.name}: {value.kind}")]
        is_whole = n_stages == 1
        media = self._pictures.get((stage.name, field.field))
        rows = WHOLE_ROWS if self._stage else PICTURE_ROWS[n_stages]
        picture = self.picture(media, self.app.size.width // n_stages - 4, rows)
        if picture is not None:
            parts.append(picture)
        if value is None:
            parts.append(line(stage.absent))
        else:
            parts += [line(f"! {mark.text}", bad=True) for mark in value.marks]
            if value.boxes:
                parts.append(Static(tokens_text(value.boxes[:BOXES])))
                if len(value.boxes) > BOXES:
                    parts.append(line(f"and {len(value.boxes) - BOXES:,} more tokens"))
            parts += cut_lines(value.lines, WHOLE_LINES if is_whole else LINES)
        parts += [Static(terminal_text(note), markup=False) for note in stage.notes]
        return Vertical(*parts, classes="stage")

    def _raw(self, section: FoldSection, raw: RawSection) -> Iterable[Widget]:
        if self._stage not in ("", "raw"):
            return
        yield heading(plain_text(section.title))
        picture = self.picture(raw.object.picture, self.app.size.width - 4, WHOLE_ROWS)
        if picture is not None:
            yield picture
        yield from line_widgets(section_lines(raw, self.app.size.width))

    async def action_next_stage(self) -> None:
        if self.record is None:
            return
        names = [""]
        for section in (*self.record.sections, *self.record.folds):
            if isinstance(section, FieldsSection):
                stages = [stage.name for field in section.fields for stage in field.stages]
                # The last stage first: it is what the training got.
                names += reversed(dict.fromkeys(stages))
            if isinstance(section, FoldSection) and section.anchor in ("stored", "raw"):
                names.append(section.anchor)
        self._stage = names[(names.index(self._stage) + 1) % len(names)]
        await self.show(self.record)
        self.say(self._stage or "all stages")


class SlotScreen(ValuesScreen):
    page: SlotPage
    BINDINGS: ClassVar[list[Any]] = [
        Binding("left_square_bracket", "follow('←')", "previous slot"),
        Binding("right_square_bracket", "follow('→')", "next slot"),
        Binding("comma", "walk_frames(-1)", "previous frame"),
        Binding("full_stop", "walk_frames(1)", "next frame"),
    ]

    def __init__(self, page: SlotPage) -> None:
        super().__init__(page)
        self._frame = -1
        """Selected frame."""
        self._last = "decoded"
        """Last stage of the values."""

    def load_record(self) -> SectionPage:
        training = self.data.training(self.page.step.run)
        with attach_recorded_step(training, self.page.step.step, self.page.slot):
            return self._slot(training)

    def _slot(self, training: Training) -> SectionPage:
        at = self.page
        record, values = self.data.slot_record(training, at.step.step, at.slot, at.search_from)
        version = version_of(training.plan(at.step.step), values.source)
        self._last = record.stage
        for stage, sample in self._samples(values):
            for field, value in sample.items():
                facts = field_facts(sample, field, version)
                picture = self.thumbnail(value, facts, self.app.size.width, WHOLE_ROWS)
                self._pictures[stage, field] = picture
        part = None
        if at.step.rank is not None and at.step.world_size is not None:
            part = (at.step.rank, at.step.world_size)
        return slot_sections(record, SampleMedia(raw=raw_of(self, record, WHOLE_ROWS)), part)

    def focus_content(self) -> None:
        super().focus_content()
        if self.page.explain:
            # Once: `show` runs again for each stage and frame.
            self.page = replace(self.page, explain=False)
            self.action_explain()

    def action_walk_frames(self, by: int) -> None:
        if self.record is not None:
            self._frame = max(0, self._frame + by)
            self._frames()

    @work(thread=True, exclusive=True)
    def _frames(self) -> None:
        try:
            text = self._draw_frame()
        except PenstockError as error:
            self.from_thread(self.say, f"{type(error).__name__}: {error}")
            return
        self.from_thread(self.show, self.record)
        self.from_thread(self.say, text)

    def _draw_frame(self) -> str:
        at = self.page
        training = self.data.training(at.step.run)
        values, _ = self.data.slot(at.step.run, at.step.step, at.slot)
        version = version_of(training.plan(at.step.step), values.source)
        n = 0
        for stage, sample in self._samples(values):
            for field, value in sample.items():
                facts = field_facts(sample, field, version)
                kind = find_kind(value, facts)
                if kind.name != "video":
                    continue
                key = ("frames", at, stage, field)
                frames: Any = self.data.media.get(key, partial(kind.detail, value, facts))
                n = max(n, len(frames))
                # Fields of one slot may have different numbers of frames.
                self._pictures[stage, field] = frames[min(self._frame, len(frames) - 1)]
        if not n:
            return "no field of this slot has frames"
        self._frame = min(self._frame, n - 1)
        return f"frame {self._frame} of {n}"

    def _samples(self, values: SlotValues) -> list[tuple[str, Mapping[str, Any]]]:
        after = [(self._last, values.trained)] if self._last != "decoded" else []
        return [("decoded", values.decoded), *after]

    def command(self) -> str:
        if self.record is None:
            return self.viewer.command("batch", f"{self.page.step.run}@{self.page.step.step}")
        return super().command()


def tokens_text(boxes: Iterable[TokenBox]) -> Text:
    """Return styled tokens: special bold, masked dim, documents told apart."""
    text = Text()
    for number, box in enumerate(boxes):
        styles = ["bold" if box.special else "", "dim" if box.masked else "", "reverse" if number % 2 else ""]
        styles.append("underline" if box.segment is not None and box.segment % 2 else "")
        text.append(terminal_text(box.text) or str(box.id), " ".join(filter(None, styles)) or None)
        if not box.text:
            text.append(" ")
    return text
