"""The page of a slot in a terminal: its fields stored, decoded and transformed, side by side or one stage alone."""

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
from ..inspect.plain_text import mark_line, slot_text
from ..inspect.proofs import STAGES as PROVED
from ..inspect.recorded_step import told_by_trail
from ..inspect.slot_record import FieldRow, SlotRecord, slot_record
from ..kinds import kind_of
from ..kinds.kind import Media, TokenBox
from ..raw_source import RawObject
from ..replays.replayed_values import SlotValues
from ..replays.training import Training
from ..samples.shown_values import Shown, facts_of, version_of
from .addresses import SlotPlace, VersionPlace
from .record_screen import RecordScreen, cut_lines, heading, line
from .sample_relations import raw_of, raw_widgets, relations

PICTURE_ROWS, WHOLE_ROWS = 10, 18
"""Rows of a picture beside another, and alone."""
LINES, WHOLE_LINES = 8, 40
"""Lines of a value beside another, and alone."""
BOXES = 600
"""Tokens that are shown."""

Pictures = Mapping[tuple[str, str], Media | None]
"""(stage, field) -> its picture."""


class _Slot(NamedTuple):
    """A slot, and its pictures."""

    record: SlotRecord
    """The slot."""
    pictures: Pictures
    """Its pictures."""
    raw: RawObject | None
    """Its raw object; None where none is on record."""


class SlotScreen(RecordScreen):
    """One slot of a step."""

    DEFAULT_CSS = """
    SlotScreen .stages { height: auto; }
    SlotScreen .stage { width: 1fr; height: auto; padding-right: 1; }
    """
    place: SlotPlace
    BINDINGS: ClassVar[list[Any]] = [
        Binding("left,left_square_bracket", "walk(-1)", "slot before"),
        Binding("right,right_square_bracket", "walk(1)", "slot after"),
        Binding("t", "next_stage", "stage"),
        Binding("comma", "walk_frames(-1)", "frame before"),
        Binding("full_stop", "walk_frames(1)", "frame after"),
    ]

    def __init__(self, place: SlotPlace) -> None:
        super().__init__(place)
        self._stage, self._frame = "", -1
        """The stage that is shown alone; "" for all."""

    def asked(self) -> _Slot:
        """Return the record of the slot, and a picture of each value."""
        at = self.place
        training = self.data.training(at.step.run)
        with told_by_trail(training, at.step.step, at.slot):
            return self._found(training)

    def _found(self, training: Training) -> _Slot:
        at = self.place
        values, trouble = self.data.slot(at.step.run, at.step.step, at.slot)
        record = slot_record(
            training,
            values,
            trouble,
            self.data.asked(at.asked),
            functions=self.data.functions(training, at.step.step, trouble),
            part=partial(self.data.part, training, at.step.step),
        )
        version = version_of(training.plan(at.step.step), values.source)
        pictures = {
            (stage, field): self.thumbnail(
                value, facts_of(sample, field, version), self.app.size.width, WHOLE_ROWS
            )
            for stage, sample in _samples(record, values)
            for field, value in sample.items()
        }
        return _Slot(record, pictures, raw_of(self, record, WHOLE_ROWS))

    def title_of(self, found: _Slot) -> str:
        """Return run, step, slot and sample."""
        record = found.record
        substitute = f", substitute {record.attempt}" if record.attempt else ""
        return (
            f"{record.training} step {record.step} slot {record.slot}: {record.key}, "
            f"{record.version} sample {record.ordinal}{substitute}"
        )

    def widgets(self, found: _Slot) -> Iterable[Widget]:
        """Yield marks, fields, draws, and the steps that saw the sample."""
        record = found.record
        trouble = record.trouble and f"the recipe could not be run: {record.trouble}"
        for text in (record.error, record.untrained, trouble):
            if text:
                yield line(clean(text, 400), bad=True)
        for mark in record.marks:
            yield line(mark_line(mark), bad=True)
        alone = bool(self._stage)
        if found.raw is not None and self._stage in ("", "raw"):
            room = (WHOLE_ROWS, WHOLE_LINES) if alone else (PICTURE_ROWS, LINES)
            yield from raw_widgets(self, found.raw, *room)
        yield line(PROVED[record.stage])
        for row in record.fields if self._stage != "raw" else ():
            yield heading(row.field)
            yield Horizontal(*self._stages(row, record.stage, found.pictures), classes="stages")
        for draw in record.draws:
            yield line(f"draw  {draw}")
        dataset, _, number = record.version.partition("@")
        yield from relations(record, VersionPlace(dataset=dataset, number=int(number)), self.place)

    def _stages(self, row: FieldRow, last: str, pictures: Pictures) -> Iterable[Widget]:
        """Yield the stages of a field. last: the name of the one after the transform; "decoded" without."""
        chosen = self._stage
        if chosen == "stored":
            told = f"{row.nbytes:,} bytes of {row.path} from {row.offset}, CRC-32C {row.crc32c}"
            yield Vertical(
                Static(told if row.nbytes else "made by the transform", markup=False), classes="stage"
            )
            return
        after = {} if last == "decoded" else {last: row.transformed}
        for stage, one in {"decoded": row.decoded, **after}.items():
            if chosen in ("", stage):
                yield self._value(stage, row, one, pictures.get((stage, row.field)), alone=bool(chosen))

    def _value(
        self, stage: str, row: FieldRow, one: Shown | None, media: Media | None, *, alone: bool
    ) -> Widget:
        """Return one value: picture, marks and lines."""
        parts: list[Widget] = [line(stage if one is None else f"{stage}: {one.kind}")]
        columns = self.app.size.width // (1 if alone else 2) - 4
        picture = self.picture(media, columns, WHOLE_ROWS if alone else PICTURE_ROWS)
        if picture is not None:
            parts.append(picture)
        if one is None:
            parts.append(line("none"))
        else:
            parts += [line(f"! {mark.text}", bad=True) for mark in one.marks]
            if one.boxes:
                parts.append(Static(tokens_text(one.boxes[:BOXES])))
                if len(one.boxes) > BOXES:
                    parts.append(line(f"and {len(one.boxes) - BOXES:,} more tokens"))
            parts += cut_lines(one.lines, WHOLE_LINES if alone else LINES)
        if stage != "decoded" and row.placement is not None and row.placement.corners:
            mirrored = ", mirrored" if row.placement.mirrored else ""
            corners = " ".join(f"({x:g}, {y:g})" for x, y in row.placement.corners)
            parts.append(Static(f"corners in the original: {corners}{mirrored}", markup=False))
        return Vertical(*parts, classes="stage")

    def shown(self) -> None:
        """Show the way back where the address asks for it."""
        super().shown()
        if self.place.explain:
            self.place = replace(self.place, explain=False)
            self.action_explain()

    def chosen(self) -> tuple[str, str] | None:
        """Return this slot's sample."""
        return None if self.record is None else (self.record.record.version, self.record.record.key)

    def explained(self) -> list[str]:
        """Return the way back: sample, shard, raw object, runs."""
        return [] if self.record is None else slot_text(self.record.record).splitlines()

    def action_walk(self, by: int) -> None:
        """Open the slot before or after."""
        if self.record is not None and 0 <= self.place.slot + by < self.record.record.batch_size:
            self.viewer.open(SlotPlace(step=self.place.step, slot=self.place.slot + by))

    async def action_next_stage(self) -> None:
        """Show another stage alone, or all."""
        if self.record is not None:
            raw = ["raw"] if self.record.raw is not None and self.record.raw.shown is not None else []
            stages = ["", *dict.fromkeys((self.record.record.stage, "decoded")), "stored", *raw]
            self._stage = stages[(stages.index(self._stage) + 1) % len(stages)]
            await self.show(self.record)
            self.say(self._stage or "all stages")

    def action_walk_frames(self, by: int) -> None:
        """Show another frame of clips."""
        if self.record is not None:
            self._frame = max(0, self._frame + by)
            self._frames()

    @work(thread=True, exclusive=True)
    def _frames(self) -> None:
        try:
            found, told = self._of_frame(self.record)
        except PenstockError as error:
            self.from_thread(self.say, f"{type(error).__name__}: {error}")
            return
        self.from_thread(self.show, found)
        self.from_thread(self.say, told)

    def _of_frame(self, found: _Slot) -> tuple[_Slot, str]:
        """Return the slot with pictures of the frame, and the frame's number in words."""
        at = self.place
        training = self.data.training(at.step.run)
        values, _ = self.data.slot(at.step.run, at.step.step, at.slot)
        version = version_of(training.plan(at.step.step), values.source)
        pictures, n = dict(found.pictures), 0
        for stage, sample in _samples(found.record, values):
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
            return found, "no field of this slot has frames"
        self._frame = min(self._frame, n - 1)
        return found._replace(pictures=pictures), f"frame {self._frame} of {n}"

    def command(self) -> str:
        """Return the verb that explains the slot."""
        if self.record is None:
            return self.viewer.command("batch", f"{self.place.step.run}@{self.place.step.step}")
        record = self.record.record
        return self.viewer.command("explain", record.plan, "--step", record.step, "--slot", record.slot)


def _samples(record: SlotRecord, values: SlotValues) -> list[tuple[str, Mapping[str, Any]]]:
    """Return (stage, its sample) of the stages that are shown."""
    after = [(record.stage, values.trained)] if record.stage != "decoded" else []
    return [("decoded", values.decoded), *after]


def tokens_text(boxes: Iterable[TokenBox]) -> Text:
    """Return tokens as styled text: special ones bold, those that the loss does not count dim, documents apart."""
    text = Text()
    for number, box in enumerate(boxes):
        styles = ["bold" if box.special else "", "dim" if box.masked else "", "reverse" if number % 2 else ""]
        styles.append("underline" if box.segment is not None and box.segment % 2 else "")
        text.append(terminal_text(box.text) or str(box.id), " ".join(filter(None, styles)) or None)
        if not box.text:
            text.append(" ")
    return text
