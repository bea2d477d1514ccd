"""The page of a sample of a version."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from ...text import clean
from ..inspect.sample_record import SampleField, SampleRecord
from ..page_address import address
from ..raw_source import RawObjectRecord
from .relations import (
    alike_box,
    columns_fold,
    edits_box,
    excluded_notice,
    facts_box,
    provenance_fold,
    raw_fold,
    similar_box,
    slices_box,
    stored_fold,
    trainings_box,
)
from .section import SectionPage
from .texts import Text, link, neighbour_links, strong, tag
from .values import FieldsSection, FieldStage, FieldValues, MarksSection


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleMedia:
    """Images and other media on the page of a sample, beside its record."""

    images: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """(stage, field) -> media of its value."""
    players: Mapping[str, str] = field(default_factory=dict)
    """Field -> media type as which browsers play its stored bytes, or ""."""
    sizes: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Field -> width and height of its decoded image."""
    raw: RawObjectRecord | None = None
    raw_type: str = ""
    """Media type with which browsers show the raw object, or ""."""
    thumb: str = ""
    """Field with thumbnails of the look-alikes, or ""."""
    like: str = ""
    """Address of the most similar samples, or ""."""


def sample_sections(
    record: SampleRecord,
    media: SampleMedia,
    query: Mapping[str, str],
) -> SectionPage:
    """Return the page of a sample. query: of the page's own address."""
    name = f"{record.dataset}@{record.number}"
    version = address("v", record.dataset, record.number)
    here = f"{version}/s/{record.ordinal}"
    fields = [_field(here, field_record, media) for field_record in record.fields]
    provenance = {
        "part": record.part,
        "row": record.row,
        **dict(sorted(record.provenance.items())),
    }
    before = after = ""
    if record.ordinal:
        before = f"{version}/s/{record.ordinal - 1}"
    if record.ordinal + 1 < record.n_samples:
        after = f"{version}/s/{record.ordinal + 1}"
    return SectionPage(
        title=record.key,
        facts=_facts(record, name, version),
        caption=f"{name} sample {record.ordinal} of {record.n_samples:,}: {record.key}",
        location=(link(name, version), link(f"sample {record.ordinal}", here)),
        notices=tuple(excluded_notice(record)),
        sections=(FieldsSection(fields=tuple(fields), are_rows=False),),
        side=(
            MarksSection(record.marks),
            facts_box(record),
            slices_box(record, name),
            *similar_box(record, name, media.thumb),
            *alike_box(record, name, media.thumb),
            trainings_box(record, here, query),
            *edits_box(record),
        ),
        folds=(
            *columns_fold(record),
            stored_fold(record.fields, here),
            provenance_fold(provenance),
            *raw_fold(media.raw, media.raw_type, f"{here}/raw"),
        ),
        parent=version,
        keys=neighbour_links("sample", "←→", before, after),
        command=("exclude", "--reason", "R", "--by", "WHO"),
        names=(record.dataset, record.key),
        sample=(name, record.key),
        like=media.like,
        layout="sample",
        styles=("sample.css",),
    )


def _facts(record: SampleRecord, name: str, version: str) -> tuple[Text, ...]:
    facts: list[Text] = [
        link(name, version),
        ("sample", strong(str(record.ordinal)), f"of {record.n_samples:,}"),
    ]
    label = record.columns.get("label")
    if label:
        facts.append(clean(label, 60))
    split = record.columns.get("split")
    if split:
        facts.append(tag(clean(split, 40)))
    return tuple(facts)


def _field(here: str, shown: SampleField, media: SampleMedia) -> FieldValues:
    name = shown.field
    if shown.decoded is None:
        return FieldValues(field=name, stages=(), error=shown.error)
    player = ""
    if media.players.get(name, "").startswith(("audio/", "video/")):
        player = f"{here}/{address('stored', name)}"
    n_images = media.images.get(("decoded", name), 0)
    # The first medium of audio is what the player plays.
    first = int(shown.decoded.kind == "audio")
    images = [f"{here}/{address('decoded', name, i)}" for i in range(first, n_images)]
    stage = FieldStage(
        name="decoded",
        value=shown.decoded,
        images=tuple(images),
        player=player,
        has_marks=True,
    )
    return FieldValues(field=name, stages=(stage,), error=shown.error)
