"""A slot's page: stored, decoded and transformed fields, side by side or one stage at a time."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, NamedTuple

from rich.text import Text
from textual import work
from textual.binding import Binding
from textual.containers import Horizontal, Vertical
from textual.widget import Widget
from textual.widgets import Static

from loader.errors import PenstockError

from ...text import clean, terminal_text
from ..inspect.plain_text import mark_line, sample_place, slot_text
from ..inspect.proofs import STAGES as PROVED
from ..inspect.recorded_step import attach_recorded_step
from ..inspect.slot_record import FieldRow, SlotRecord
from ..kinds import kind_of
from ..kinds.kind import Media, TokenBox
from ..raw_source import RawObjectRecord
from ..replays.replayed_values import SlotValues
from ..replays.training import Training
from ..shown_values import ShownValue, facts_of, version_of
from .addresses import SlotPage, VersionPage
from .record_screen import RecordScreen, cut_lines, heading, line, raw_of, raw_widgets, relations

PICTURE_ROWS, WHOLE_ROWS = 10, 18
"""An image's rows, side by side and on its own."""
LINES, WHOLE_LINES = 8, 40
"""A value's lines, side by side and on its own."""
BOXES = 600
"""Most tokens shown."""

Pictures = Mapping[tuple[str, str], Media | None]
"""(stage, field) -> image."""


class _Slot(NamedTuple):
    record: SlotRecord
    pictures: Pictures
    raw: RawObjectRecord | None


class SlotScreen(RecordScreen):
    DEFAULT_CSS = """
    SlotScreen .stages { height: auto; }
    SlotScreen .stage { width: 1fr; height: auto; padding-right: 1; }
    """
    page: SlotPage
    BINDINGS: ClassVar[list[Any]] = [
        Binding("left,left_square_bracket", "walk(-1)", "previous slot"),
        Binding("right,right_square_bracket", "walk(1)", "next slot"),
        Binding("t", "next_stage", "stage"),
        Binding("comma", "walk_frames(-1)", "previous frame"),
        Binding("full_stop", "walk_frames(1)", "next frame"),
    ]

    def __init__(self, place: SlotPage) -> None:
        super().__init__(place)
        self._stage, self._frame = "", -1
        """Stage shown, "" for all; selected frame."""

    def load_record(self) -> _Slot:
        at = self.page
        training = self.data.training(at.step.run)
        with attach_recorded_step(training, at.step.step, at.slot):
            return self._slot(training)

    def _slot(self, training: Training) -> _Slot:
        at = self.page
        record, values = self.data.slot_record(training, at.step.step, at.slot, at.search_from)
        version = version_of(training.plan(at.step.step), values.source)
        pictures = {
            (stage, field): self.thumbnail(
                value, facts_of(sample, field, version), self.app.size.width, WHOLE_ROWS
            )
            for stage, sample in _samples(record, values)
            for field, value in sample.items()
        }
        return _Slot(record, pictures, raw_of(self, record, WHOLE_ROWS))

    def title_of(self, page: _Slot) -> str:
        record = page.record
        substitute = f", substitute {record.attempt}" if record.attempt else ""
        return (
            f"{record.training} step {record.step} slot {record.slot}: {record.key}, "
            f"{sample_place(record)}{substitute}"
        )

    def widgets(self, page: _Slot) -> Iterable[Widget]:
        record = page.record
        trouble = record.trouble and f"the recipe failed: {record.trouble}"
        for text in (record.error, record.missing, record.untrained, trouble):
            if text:
                yield line(clean(text, 400), bad=True)
        for mark in record.marks:
            yield line(mark_line(mark), bad=True)
        single = bool(self._stage)
        if page.raw is not None and self._stage in ("", "raw"):
            room = (WHOLE_ROWS, WHOLE_LINES) if single else (PICTURE_ROWS, LINES)
            yield from raw_widgets(self, page.raw, *room)
        yield line(PROVED[record.stage])
        for row in record.fields if self._stage != "raw" else ():
            yield heading(row.field)
            yield Horizontal(*self._stages(row, record.stage, page.pictures), classes="stages")
        for draw in record.draws:
            yield line(f"draw  {draw}")
        if not record.version:  # of a dataset
            yield line(clean(record.dataset, 400))
            return
        dataset, _, number = record.version.partition("@")
        yield from relations(record, VersionPage(dataset=dataset, number=int(number)), self.page)

    def _stages(self, row: FieldRow, last: str, pictures: Pictures) -> Iterable[Widget]:
        chosen = self._stage
        if chosen == "stored":
            text = f"{row.nbytes:,} bytes of {row.path} from {row.offset}, CRC-32C {row.crc32c}"
            yield Vertical(
                Static(text if row.nbytes else "made by the transform", markup=False), classes="stage"
            )
            return
        after = {} if last == "decoded" else {last: row.transformed}
        for stage, value in {"decoded": row.decoded, **after}.items():
            if chosen in ("", stage):
                yield self._value(stage, row, value, pictures.get((stage, row.field)), single=bool(chosen))

    def _value(
        self, stage: str, row: FieldRow, value: ShownValue | None, media: Media | None, *, single: bool
    ) -> Widget:
        parts: list[Widget] = [line(stage if value is None else f"{stage}: {value.kind}")]
        columns = self.app.size.width // (1 if single else 2) - 4
        picture = self.picture(media, columns, WHOLE_ROWS if single else PICTURE_ROWS)
        if picture is not None:
            parts.append(picture)
        if value is None:
            parts.append(line("none"))
        else:
            parts += [line(f"! {mark.text}", bad=True) for mark in value.marks]
            if value.boxes:
                parts.append(Static(tokens_text(value.boxes[:BOXES])))
                if len(value.boxes) > BOXES:
                    parts.append(line(f"and {len(value.boxes) - BOXES:,} more tokens"))
            parts += cut_lines(value.lines, WHOLE_LINES if single else LINES)
        if stage != "decoded" and row.placement is not None and row.placement.corners:
            parts.append(Static(f"corners in the original: {row.placement.outline}", markup=False))
        return Vertical(*parts, classes="stage")

    def focus_content(self) -> None:
        super().focus_content()
        if self.page.explain:
            self.page = replace(self.page, explain=False)
            self.action_explain()

    def selected_sample(self) -> tuple[str, str] | None:
        if self.record is None or not self.record.record.version:
            return None
        return self.record.record.version, self.record.record.key

    def provenance_lines(self) -> list[str]:
        return [] if self.record is None else slot_text(self.record.record).splitlines()

    def action_walk(self, by: int) -> None:
        if self.record is not None and 0 <= self.page.slot + by < self.record.record.batch_size:
            self.viewer.open(SlotPage(step=self.page.step, slot=self.page.slot + by))

    async def action_next_stage(self) -> None:
        if self.record is not None:
            raw = ["raw"] if self.record.raw is not None and self.record.raw.shown is not None else []
            stages = ["", *dict.fromkeys((self.record.record.stage, "decoded")), "stored", *raw]
            self._stage = stages[(stages.index(self._stage) + 1) % len(stages)]
            await self.show(self.record)
            self.say(self._stage or "all stages")

    def action_walk_frames(self, by: int) -> None:
        if self.record is not None:
            self._frame = max(0, self._frame + by)
            self._frames()

    @work(thread=True, exclusive=True)
    def _frames(self) -> None:
        try:
            page, text = self._with_frame(self.record)
        except PenstockError as error:
            self.from_thread(self.say, f"{type(error).__name__}: {error}")
            return
        self.from_thread(self.show, page)
        self.from_thread(self.say, text)

    def _with_frame(self, page: _Slot) -> tuple[_Slot, str]:
        at = self.page
        training = self.data.training(at.step.run)
        values, _ = self.data.slot(at.step.run, at.step.step, at.slot)
        version = version_of(training.plan(at.step.step), values.source)
        pictures, n = dict(page.pictures), 0
        for stage, sample in _samples(page.record, values):
            for field, value in sample.items():
                facts = facts_of(sample, field, version)
                kind = kind_of(value, facts)
                if kind.name != "video":
                    continue
                key = ("frames", at, stage, field)
                frames: Any = self.data.media.get(key, partial(kind.detail, value, facts))
                n = max(n, len(frames))
                pictures[stage, field] = frames[min(self._frame, len(frames) - 1)]
        if not n:
            return page, "no field of this slot has frames"
        self._frame = min(self._frame, n - 1)
        return page._replace(pictures=pictures), f"frame {self._frame} of {n}"

    def command(self) -> str:
        if self.record is None:
            return self.viewer.command("batch", f"{self.page.step.run}@{self.page.step.step}")
        record = self.record.record
        return self.viewer.command("explain", record.plan, "--step", record.step, "--slot", record.slot)


def _samples(record: SlotRecord, values: SlotValues) -> list[tuple[str, Mapping[str, Any]]]:
    after = [(record.stage, values.trained)] if record.stage != "decoded" else []
    return [("decoded", values.decoded), *after]


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
