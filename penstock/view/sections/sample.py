"""The pages of a sample of a version: of any sample, of an episode, of a rollout."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter

from ...text import clean
from ...units import share
from ..episodes.episode_record import EpisodeRecord, EpisodeTrack
from ..inspect.sample_record import SampleField, SampleRecord
from ..marks import count_text
from ..page_address import address
from ..raw_source import RawObjectRecord
from ..rollouts.open_rollout import FieldShape
from ..rollouts.rollout_record import RolloutRecord
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
    similar_box,
    slices_box,
    trainings_box,
)
from .section import BoxSection, NoticeSection, Section, SectionPage, TableSection
from .texts import Text, TextPiece, code, link, neighbour_links, quiet, strong, tag
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
    frame = _frame(record, media.like, f"sample {record.ordinal}", "←→")
    here = _here(record)
    fields = [_field(here, field_record, media) for field_record in record.fields]
    provenance = {
        "part": record.part,
        "row": record.row,
        **dict(sorted(record.provenance.items())),
    }
    return replace(
        frame,
        facts=(link(name, frame.parent), *_facts(record, "label")),
        notices=tuple(exclusion_notice(record)),
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
            location_fold(record.fields, here),
            provenance_fold(provenance),
            *raw_fold(media.raw, media.raw_type, f"{here}/raw"),
        ),
        layout="sample",
        styles=("sample.css",),
    )


EPISODE_KEYS = (
    ("space", "play, pause"),
    (", .", "previous frame, next frame"),
    ("< >", "previous row, next row of the anchor"),
    ("← →", "a second (or ten steps) back, forward"),
    ("Home End", "begin, end"),
    ("+ - 0", "zoom in, out, whole episode"),
    ("1 to 9", "fold a lane, unfold it"),
    ("n", "each dimension in its own range"),
    ("[ ]", "previous episode, next episode"),
)
"""(keys, meaning) of an episode's page."""


def episode_sections(record: EpisodeRecord, media: SampleMedia) -> SectionPage:
    """Return the page of an episode without its cameras and lanes."""
    sample = record.sample
    name = f"{sample.dataset}@{sample.number}"
    tracks = (*record.streams, *record.cameras)
    formats = {track.field: _format(track) for track in tracks}
    stored = []
    for field_record in sample.fields:
        text = formats.get(field_record.field, "")
        row = (field_record.field, field_record.nbytes, (text,))
        stored.append(row)
    frame = _frame(
        sample,
        media.like,
        clean(sample.key, 120),
        "[]",
    )
    return replace(
        frame,
        title=record.task or clean(sample.key, 200),
        facts=_episode_facts(record),
        notices=(*frame.notices, *_errors(record.errors)),
        sections=(
            _quality(record),
            _provenance(sample),
            *raw_fold(media.raw, media.raw_type, f"{_here(sample)}/raw"),
            slices_box(sample, name),
            *alike_box(sample, name, media.thumb),
            *edits_box(sample),
        ),
        side=(
            _fields(sample, stored),
            _columns(sample),
        ),
        key_help=EPISODE_KEYS,
        layout="episode",
        styles=("episode.css",),
        scripts=("episode.js",),
    )


def _format(track: EpisodeTrack) -> str:
    if not track.clock:
        return track.format
    return f"{track.format}, clock {track.clock}"


def _episode_facts(record: EpisodeRecord) -> tuple[Text, ...]:
    length = f"{record.length_ns:,} steps"
    if record.unit == "s":
        length = f"{record.length_ns / 1e9:.3f} s"
    facts: list[Text] = [strong(length)]
    for stream in record.streams:
        if stream.field != record.anchor:
            continue
        rows = count_text(stream.n_values, "row")
        if stream.rate:
            rows += f" at {stream.rate}"
        facts.append(rows)
    cameras = count_text(len(record.cameras), "camera")
    streams = count_text(len(record.streams), "stream")
    facts.append(f"{cameras}, {streams}")
    return (*facts, *_facts(record.sample, "robot"))


def _quality(record: EpisodeRecord) -> BoxSection:
    kinds = [fault.kind for fault in record.faults]
    n_gaps = kinds.count("gap")
    n_frozen = kinds.count("frozen")
    rows = [
        ("anchor", record.anchor or "none"),
        *record.quality.items(),
        ("gaps", str(n_gaps or "none")),
        ("frozen spans", str(n_frozen or "none")),
    ]
    if record.n_keep >= 0:
        text = f"{record.n_keep:,} of {record.n_rows:,} rows"
        rows.append(("keep", text))
    return _table_card("Quality", rows)


def rollout_sections(
    record: RolloutRecord,
    like: str,
    packed: Sequence[Section],
    query: Mapping[str, str],
) -> SectionPage:
    """Return the page of a rollout without its tokens. packed: the sequence it was packed into.

    query: of the page's own address.
    """
    sample = record.sample
    name = f"{sample.dataset}@{sample.number}"
    stored = []
    for shape in record.shapes:
        row = (shape.field, shape.nbytes, _shape(shape))
        stored.append(row)
    errors = {shape.field: shape.error for shape in record.shapes if shape.error}
    frame = _frame(
        sample,
        like,
        clean(sample.key, 120),
        "←→",
    )
    return replace(
        frame,
        title=clean(sample.key, 200),
        facts=_rollout_facts(record),
        notices=(
            *frame.notices,
            MarksSection(record.marks),
            *_errors(errors),
        ),
        sections=tuple(packed),
        side=(
            *_policies(record),
            _fields(sample, stored, record.n_fields - len(stored)),
            _columns(sample),
            _provenance(sample),
            *edits_box(sample),
            slices_box(sample, name),
            trainings_box(sample, _here(sample), query),
        ),
        layout="rollout",
        styles=("rollout.css",),
    )


def _rollout_facts(record: RolloutRecord) -> tuple[Text, ...]:
    facts: list[Text] = []
    reward = record.sample.columns.get("reward")
    if reward:
        facts.append(("reward", strong(clean(reward, 24))))
    n_tokens = strong(f"{record.n_tokens:,}")
    facts.append((n_tokens, f"tokens, {record.n_sampled:,} sampled"))
    if record.n_turns:
        facts.append(count_text(record.n_turns, "turn"))
    names = ("env", "task", "model")
    return (*facts, *_facts(record.sample, *names))


def _shape(shape: FieldShape) -> tuple[str | TextPiece, ...]:
    if shape.error:
        return (TextPiece("damaged", tone="bad"),)
    if shape.shape and not shape.is_checked:
        return (shape.shape, quiet("by its header"))
    return (shape.shape,)


def _policies(record: RolloutRecord) -> list[Section]:
    if not record.n_policies:
        return []
    rows = []
    for policy, n in record.policies:
        part = share(n, record.n_sampled)
        rows.append((f"{policy:,}", f"{n:,} tokens, {part}"))
    title = "Policy versions"
    if record.n_policies == 1:
        title = "Policy version"
    n_more = record.n_policies - len(rows)
    return [_table_card(title, rows, n_more=n_more)]


def _frame(
    record: SampleRecord,
    like: str,
    place: str,
    keys: str,
) -> SectionPage:
    """Return what the pages of all samples have. place: name of the page. keys: of the samples before and after."""
    name = f"{record.dataset}@{record.number}"
    version = address("v", record.dataset, record.number)
    before = ""
    if record.ordinal:
        before = f"{version}/s/{record.ordinal - 1}"
    after = ""
    if record.ordinal + 1 < record.n_samples:
        after = f"{version}/s/{record.ordinal + 1}"
    return SectionPage(
        title=record.key,
        caption=f"{name} sample {record.ordinal} of {record.n_samples:,}: {record.key}",
        location=(
            link(name, version),
            link(place, _here(record), "strong"),
        ),
        notices=(
            *exclusion_notice(record),
            MarksSection(record.marks),
        ),
        sections=(),
        parent=version,
        keys=neighbour_links("sample", keys, before, after),
        command=("exclude", "--reason", "R", "--by", "WHO"),
        names=(record.dataset, record.key),
        sample=(name, record.key),
        like=like,
    )


def _here(record: SampleRecord) -> str:
    return address("v", record.dataset, record.number, "s", record.ordinal)


def _facts(record: SampleRecord, *names: str) -> list[Text]:
    """Return a sample's place, these columns, its split, and how it ended."""
    number = strong(str(record.ordinal))
    facts: list[Text] = [("sample", number, f"of {record.n_samples:,}")]
    columns = record.columns
    facts += [clean(columns[name], 60) for name in names if columns.get(name)]
    facts += [tag(clean(columns[name], 40)) for name in ("split", "finish") if columns.get(name)]
    return facts


def _errors(errors: Mapping[str, str]) -> list[Section]:
    notices: list[Section] = []
    for name, text in sorted(errors.items()):
        notices.append(NoticeSection((strong(name), text), "bad"))
    return notices


def _table_card(
    title: str,
    rows: Iterable[tuple[Text, ...]],
    *,
    anchor: str = "",
    n_more: int = 0,
) -> BoxSection:
    table = TableSection(rows=tuple(rows), n_more=n_more)
    return card(title, table, anchor=anchor)


def _fields(
    record: SampleRecord,
    stored: Iterable[tuple[str, int, tuple[str | TextPiece, ...]]],
    n_more: int = 0,
) -> BoxSection:
    """Return a box of fields. stored: name, bytes, and facts of each."""
    rows = []
    for name, nbytes, facts in sorted(stored, key=itemgetter(0)):
        page = f"{_here(record)}/{address('stored', name)}"
        size = link(f"{nbytes:,} B", page)
        rows.append((name, (size, *facts)))
    return _table_card("Fields", rows, n_more=n_more)


def _columns(record: SampleRecord) -> BoxSection:
    return _table_card("Columns", sorted(record.columns.items()))


def _provenance(record: SampleRecord) -> BoxSection:
    part = code(clean(record.part, 44))
    n_edits = len(record.edits)
    rows: list[tuple[Text, ...]] = [
        *sorted(record.provenance.items()),
        ("part", (part, f"row {record.row}")),
        ("edits", str(n_edits or "none")),
    ]
    return _table_card(
        "Provenance",
        rows,
        anchor="explain",
    )


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
