"""The page of a slot of a step."""

from collections.abc import Mapping, Sequence

from ...lineage import StageRun
from ...text import clean
from ..inspect.proofs import STAGES
from ..inspect.slot_record import FieldRow, SlotRecord
from ..page_address import address, version_address
from ..replays.image_placement import Placement
from ..shown_values import ShownValue
from .relations import (
    alike_box,
    card,
    columns_fold,
    edits_box,
    exclusion_notice,
    facts_box,
    location_fold,
    provenance_fold,
    raw_fold,
    slices_box,
    trainings_box,
)
from .sample import SampleMedia
from .section import (
    FoldSection,
    LinesSection,
    NoticeSection,
    Section,
    SectionPage,
    TableSection,
    columns,
)
from .texts import (
    KeyLink,
    Text,
    code,
    link,
    neighbour_links,
    outside,
    quiet,
    strong,
    tag,
)
from .values import DocumentsSection, FieldsSection, FieldStage, FieldValues, MarksSection


def slot_sections(
    record: SlotRecord,
    media: SampleMedia,
    part: tuple[int, int] | None = None,
    *,
    window: tuple[int, str] | None = None,
    ui: str = "",
) -> SectionPage:
    """Return the page of a slot.

    part: (rank, world size) of the step's page that lists it. window: (row, anchor) of a window of an episode. ui:
    Dagster's webserver, for links to its runs, or "".
    """
    query: dict[str, object] = {}
    if part is not None:
        query = {"world": part[1], "rank": part[0]}
    steps = address("r", record.training)
    at_step = f"{steps}/{record.step}"
    step = at_step + address("", **query)
    here = f"{at_step}/{record.slot}"
    fields = [_field(here, row, record.stage, media) for row in record.fields]
    sections: list[Section] = []
    if record.packed is not None:
        sections.append(DocumentsSection(record.packed, version_address(record.version)))
    sections.append(FieldsSection(fields=tuple(fields), are_rows=True))
    title = f"step {record.step} slot {record.slot}"
    substitute = ""
    if record.attempt:
        substitute = f", substitute {record.attempt}"
    sample = None
    if record.version and record.packed is None:
        sample = (record.version, record.key)
    return SectionPage(
        title=(f"Slot {record.slot}", quiet(f"of step {record.step}")),
        facts=_facts(record, window),
        caption=f"{record.training} {title}: {record.key}, {sample_place(record)}{substitute}",
        location=(
            link(clean(record.training, 24), steps),
            link(f"step {record.step}", step),
            link(f"slot {record.slot}", here),
        ),
        notices=(*_notices(record), *exclusion_notice(record)),
        sections=tuple(sections),
        side=_side(record, media, here, query),
        folds=(
            *columns_fold(record),
            *_location_folds(record),
            provenance_fold(dict(sorted(record.provenance.items())), *_runs(record.runs, ui)),
            *raw_fold(media.raw, media.raw_type, f"{here}/raw"),
        ),
        parent=step,
        run=record.training,
        keys=_keys(record, steps, address("", **query)),
        command=("explain", record.plan, "--step", record.step, "--slot", record.slot),
        sample=sample,
        like=media.like,
        layout="sample",
        styles=("sample.css",),
    )


def sample_place(record: SlotRecord) -> str:
    """Return the version or source and the number of a sample."""
    if record.version:
        return f"{record.version} sample {record.ordinal}"
    return f"source {record.source} item {record.ordinal}"


def _keys(record: SlotRecord, steps: str, query: str) -> tuple[KeyLink, ...]:
    at_step = f"{steps}/{record.step}"
    before = after = ""
    if record.slot:
        before = f"{at_step}/{record.slot - 1}{query}"
    if record.slot + 1 < record.batch_size:
        after = f"{at_step}/{record.slot + 1}{query}"
    hidden = []
    for key, step in (("[", record.step - 1), ("]", record.step + 1)):
        if step >= 0:
            hidden.append(KeyLink(key=key, name=f"step {step}", page=f"{steps}/{step}{query}"))
    return (*hidden, *neighbour_links("slot", "←→", before, after))


def _facts(record: SlotRecord, window: tuple[int, str] | None) -> tuple[Text, ...]:
    facts: list[Text] = [strong(record.key)]
    if record.packed is not None:
        facts.append(link(record.version, version_address(record.version)))
    elif record.version:
        facts.append(link(sample_place(record), version_address(record.version, "s", record.ordinal)))
    else:
        facts.append(f"item {record.ordinal}")
    if window is not None:
        row, anchor = window
        page = version_address(
            record.version, "s", record.ordinal, run=record.training, row=row, anchor=anchor
        )
        facts.append(link(f"row {row} of {anchor}", page))
    if record.attempt:
        facts.append(tag(f"substitute {record.attempt}", "odd"))
    facts.append(STAGES[record.stage])
    return tuple(facts)


def _notices(record: SlotRecord) -> list[Section]:
    texts = [record.error, record.untrained, record.missing]
    if record.trouble:
        texts.append(f"The recipe failed: {record.trouble}")
    return [NoticeSection(text, "bad") for text in texts if text]


def _side(
    record: SlotRecord, media: SampleMedia, here: str, query: Mapping[str, object]
) -> tuple[Section, ...]:
    largest = [(name, f"{value:.4g}") for name, value in record.largest.items()]
    places = [("source", record.source), ("epoch", str(record.epoch)), ("position", str(record.position))]
    side: list[Section] = [MarksSection(record.marks), facts_box(record, [*places, *largest])]
    if record.dataset:
        text = "Raw object and Dagster run are not known: penstock stores no bytes of a dataset."
        side.append(card("Dataset", NoticeSection(record.dataset), NoticeSection(text, "quiet")))
    # A sequence is not a stored sample: its documents' pages list their relations.
    if record.packed is None:
        if record.version:
            side.append(slices_box(record, record.version))
            side += alike_box(record, record.version, media.thumb)
        side.append(trainings_box(record, here, query))
    if record.draws:
        side.append(card("Random draws of the transform", LinesSection(record.draws)))
    side += edits_box(record)
    return tuple(side)


def _location_folds(record: SlotRecord) -> list[FoldSection]:
    if not record.version:
        return []
    return [location_fold(record.fields, version_address(record.version, "s", record.ordinal))]


def _runs(runs: Sequence[StageRun], ui: str) -> list[Section]:
    if not runs:
        return []
    rows = []
    for stage_run in runs:
        short = clean(stage_run.run_id, 12)
        run = code(short)
        if ui:
            url = f"{ui.rstrip('/')}/runs/{stage_run.run_id}"
            run = outside(short, url)
        rows.append((stage_run.asset_key, stage_run.partition, run))
    return [TableSection(columns=columns("made by", "partition", "run"), rows=tuple(rows))]


def _field(here: str, row: FieldRow, last: str, media: SampleMedia) -> FieldValues:
    absent = "made by the transform"
    if row.nbytes:
        absent = "not decoded"
    stages = [
        _stage(
            here,
            row,
            "decoded",
            row.decoded,
            media,
            absent,
        )
    ]
    if last != "decoded":
        stages.append(
            _stage(
                here,
                row,
                last,
                row.transformed,
                media,
                "dropped by the transform",
            )
        )
    return FieldValues(field=row.field, stages=tuple(stages))


def _stage(
    here: str, row: FieldRow, name: str, value: ShownValue | None, media: SampleMedia, absent: str
) -> FieldStage:
    if value is None:
        return FieldStage(name=name, value=None, absent=absent)
    # Addresses name the values before and after the transform, not whether they are proved.
    place = "transformed"
    if name == "decoded":
        place = name
    n_images = media.images.get((place, row.field), 0)
    addresses = [f"{here}/{address(place, row.field, i)}" for i in range(n_images)]
    player = ""
    if value.kind == "audio" and addresses:
        player = addresses.pop(0)
    placement = row.placement or Placement()
    if place == "decoded":
        size = media.sizes.get(row.field)
        return FieldStage(
            name=name,
            value=value,
            images=tuple(addresses),
            player=player,
            corners=placement.corners if size else (),
            size=size or (0, 0),
        )
    notes = []
    if placement.corners:
        fit = f"; fit within {placement.residual_px} px"
        notes.append(f"corners in the original, the first one marked: {placement.outline}{fit}")
    if placement.reason:
        notes.append(placement.reason)
    original = ""
    if media.images.get(("original", row.field)):
        original = f"{here}/{address('original', row.field, 0)}"
    return FieldStage(
        name=name, value=value, images=tuple(addresses), player=player, notes=tuple(notes), original=original
    )
