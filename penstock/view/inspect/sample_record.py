"""A version's sample: decoded fields, samples table row, provenance and relations."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

import loader
from loader.api.explain import provenance
from loader.dataset.reading.verified_bucket_reads import read_fields
from loader.dataset.shards.address import SampleAddress
from loader.dataset.versions.sample_rows import live_row
from loader.errors import Corrupt, InvalidRuntime, MissingDependency, PenstockError
from loader.modalities.video.packet_table import SUFFIX
from loader.modalities.video.request import is_run

from ...text import clean
from ...upkeep.excluded_since import ExcludedSince
from ..facets.version_searches import VersionSearches
from ..json_record import JsonRecord
from ..kinds.stored_bytes import BUDGET, DecodedValue, decoded_bytes, packets_mp4, read_bounded
from ..kinds.video import length_marks
from ..marks import StepMark, far_marks
from ..sample_relations import (
    ColumnEdit,
    HeldSteps,
    Neighbour,
    RunSearch,
    SimilarSample,
    column_edits,
    phash_neighbours,
    similar_samples,
)
from ..shown_values import ShownValue, StoredField, field_facts, field_location, show_value
from .sample_slices import SampleSlice, SampleSlices, SliceSearch
from .version_record import sample_fields

_MAIN_KINDS = ("image", "video", "audio", "packed", "tokens", "text", "array", "json")
"""Kinds by what a person looks at first."""
_LEADING_COLUMNS = (
    "label",
    "split",
    "kind",
    "caption",
    "task",
    "language",
    "subject",
    "score",
    "reward",
    "width_px",
    "height_px",
    "duration_s",
)
"""Columns that stand first beside a sample."""
MOST_LEADING = 8
"""Columns beside a sample; a page lists the others below."""
_HASHES = ("phash", "dup_", "raw_", "source_")
"""Beginnings of the names of columns that tell a person little about one sample."""
_PLACE = ("ordinal", "part", "row", "key")
"""Columns that the page's heading and its provenance show."""
MAX_FIELD_BYTES = 256 * 2**20
"""Largest field read whole, in bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleField(StoredField):
    error: str = ""
    """Read error, or ""."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleRecord(JsonRecord):
    """A sample of a version."""

    dataset: str
    """Dataset name."""
    number: int
    """Version number."""
    ordinal: int
    """Index in the version."""
    n_samples: int
    """Live samples of the version."""
    key: str
    part: str
    """Part id."""
    row: int
    """Row in its part."""
    fields: tuple[SampleField, ...]
    """Stored fields."""
    columns: Mapping[str, str]
    """Samples table columns, without empty cells."""
    marks: tuple[StepMark, ...]
    """Columns far from the version's mean, farthest first."""
    provenance: Mapping[str, str]
    """Provenance column -> value."""
    trainings: tuple[HeldSteps, ...]
    """Slots with the sample, per searched run."""
    runs_left: tuple[str, ...]
    """Runs not searched."""
    runs_error: str
    """Why other runs are not listed, or ""."""
    edits: tuple[ColumnEdit, ...]
    """By column, oldest first."""
    neighbours: tuple[Neighbour, ...]
    """Look-alikes by `phash`, nearest first."""
    similar: tuple[SimilarSample, ...]
    """Look-alikes by cosine, the most similar first; () without embeddings, or if a page would wait for them."""
    slices: tuple[SampleSlice, ...]
    """Slices that contain the sample, the newest first."""
    slice_problems: Mapping[str, str]
    """Slice that cannot be read -> why."""
    slices_left: tuple[str, ...]
    """Names of slices that were not searched."""
    excluded: ExcludedSince | None
    """Exclusion that keeps the sample out of the newest version, or None."""

    @property
    def leading(self) -> Mapping[str, str]:
        """The columns that stand beside the sample: usual ones, columns with a mark, then others by name."""
        return leading_columns(self.columns, self.provenance, self.marks)


def read_field(version: "loader.Version", ordinal: int, field: str) -> bytes:
    """Return a field's verified bytes. Raises: InvalidRuntime if the field is missing or too large; Corrupt."""
    check_ordinal(version, ordinal)
    if field not in sample_fields(version, [ordinal])[0]:
        raise InvalidRuntime(f"sample {ordinal} of {version.name} has no field {field!r:.100}")
    (address,) = version.address(np.array([ordinal]), [field])
    if address.fields[field].nbytes > MAX_FIELD_BYTES:
        raise InvalidRuntime(
            f"{address.describe(field)} has {address.fields[field].nbytes} bytes; up to "
            f"{MAX_FIELD_BYTES} are read whole"
        )
    (data,) = read_fields(version.shard_store, [address])
    return data[field]


def read_sample(version: "loader.Version", ordinal: int, field: str) -> dict[str, bytes]:
    """Return a field's bytes, plus another's that decoding needs. Raises: as `stored`."""
    data = {field: read_field(version, ordinal, field)}
    if is_run(field) and field + SUFFIX in sample_fields(version, [ordinal])[0]:
        data[field + SUFFIX] = read_field(version, ordinal, field + SUFFIX)
    return data


def playable(version: "loader.Version", ordinal: int, field: str) -> tuple[bytes, str]:
    """Return (bytes, extension) of a field; packets become mp4. Raises: as `stored`; DecodeFailed."""
    data = read_sample(version, ordinal, field)
    if is_run(field):
        return packets_mp4(data[field], field_facts(data, field, version)), "mp4"
    return data[field], field


def sample_record(
    version: "loader.Version",
    ordinal: int,
    search: RunSearch | None = None,
    slices: SliceSearch | None = None,
    *,
    searches: VersionSearches | None = None,
    decode: bool = True,
) -> SampleRecord:
    """Return a sample's record. Reads its bytes, unless `decode` is False, and the samples table.

    search, slices, searches: None looks into no run, into no slice, and for no similar sample.
    """
    check_ordinal(version, ordinal)
    (names,) = sample_fields(version, [ordinal])
    (address,) = version.address(np.array([ordinal]), names)
    fields = _fields(version, ordinal, names, address) if decode else _build_fields(version, address, {}, {})
    dataset, _, number = version.name.partition("@")
    (origin,) = provenance(version, [address])
    columns, marks = _columns(version, ordinal)
    search = search or RunSearch()
    held = search.find_slots(dataset, address.key, ordinal)
    decided = SampleSlices()
    if slices is not None:
        decided = slices.sample_slices(version, ordinal, address.key)
    return SampleRecord(
        dataset=dataset,
        number=int(number),
        ordinal=ordinal,
        n_samples=len(version),
        key=address.key,
        part=address.part,
        row=address.row,
        fields=fields,
        columns=columns,
        marks=marks,
        provenance=origin,
        trainings=held,
        runs_left=search.unsearched,
        runs_error=search.error,
        edits=column_edits(version, ordinal),
        neighbours=phash_neighbours(version, ordinal),
        similar=similar_samples(version, ordinal, address.key, searches),
        **decided.fields(),
    )


def _fields(
    version: "loader.Version", ordinal: int, names: Sequence[str], address: SampleAddress
) -> tuple[SampleField, ...]:
    # One memory reservation covers all fields.
    data = dict[str, dict[str, bytes]]()
    values = dict[str, DecodedValue]()
    errors = dict[str, str]()
    for name in names:
        try:
            data[name] = read_sample(version, ordinal, name)
        except (Corrupt, InvalidRuntime) as error:
            errors[name] = str(error)
    facts = {name: field_facts(sample, name, version) for name, sample in data.items()}
    with BUDGET.reserve(sum(decoded_bytes(data[name][name], facts[name]) for name in data)):
        for name in data:
            try:
                values[name] = read_bounded(data[name][name], facts[name])
            except (Corrupt, MissingDependency) as error:
                errors[name] = str(error)
        return _build_fields(version, address, values, errors)


def _build_fields(
    version: "loader.Version", address: SampleAddress, values: dict[str, DecodedValue], errors: dict[str, str]
) -> tuple[SampleField, ...]:
    fields = [
        SampleField(
            field=name,
            **field_location(at),
            decoded=_build_value(name, values, version) if name in values else None,
            error=errors.get(name, ""),
        )
        for name, at in address.fields.items()
    ]
    return tuple(sorted(fields, key=_rank))


def _rank(field: SampleField) -> int:
    """Return the rank of a field on its page: the main field has the smallest."""
    kind = ""
    if field.decoded is not None:
        kind = field.decoded.kind
    if kind not in _MAIN_KINDS:
        return len(_MAIN_KINDS)
    return _MAIN_KINDS.index(kind)


def _build_value(name: str, values: Mapping[str, DecodedValue], version: "loader.Version") -> ShownValue:
    read = values[name]
    facts = field_facts({field: item.value for field, item in values.items()}, name, version)
    value = show_value(name, read.value, replace(facts, rate=read.facts.rate))
    marks = read.marks
    if value.kind == "video" and read.seconds:
        audio_s = {
            clean(other, 80): item.seconds
            for other, item in values.items()
            if item.facts.rate and item.seconds is not None
        }
        marks = (*marks, *length_marks(read.seconds, audio_s, read.frame_s))
    return replace(value, lines=(*read.lines, *value.lines), marks=(*marks, *value.marks))


def leading_columns(
    columns: Mapping[str, str], provenance: Mapping[str, str], marks: Sequence[StepMark]
) -> dict[str, str]:
    """Return the columns that stand beside a sample. Provenance and hashes have their own places."""
    marked = [mark.field for mark in marks]
    # Usual columns stand here even if the provenance has them, such as the split.
    elsewhere = {*provenance, *_PLACE}
    others = [name for name in sorted(columns) if name not in elsewhere and not name.startswith(_HASHES)]
    names = dict.fromkeys([*_LEADING_COLUMNS, *marked, *others])
    present = [name for name in names if columns.get(name, "")]
    return {name: columns[name] for name in present[:MOST_LEADING]}


def _columns(version: "loader.Version", ordinal: int) -> tuple[dict[str, str], tuple[StepMark, ...]]:
    try:
        row = live_row(version, ordinal)
        marks = far_marks(version, row)
    except PenstockError as error:
        # The sample's fields lie elsewhere, so the page still shows them.
        return {"": f"the samples table cannot be read: {clean(error, 300)}"}, ()
    return {name: clean(value, 400) for name, value in row.items() if value is not None}, tuple(marks)


def check_ordinal(version: "loader.Version", ordinal: int) -> None:
    """Raise InvalidRuntime for a sample that the version lacks."""
    if not 0 <= ordinal < len(version):
        raise InvalidRuntime(f"ordinal = {ordinal}; {version.name} has samples 0 to {len(version) - 1}")
