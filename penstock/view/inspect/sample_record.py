"""A sample of a version: its fields decoded, its row of the samples table, its way back, and edits of its row."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

import loader
from loader.api.explain import provenance
from loader.dataset.reading.verified_bucket_reads import read_fields
from loader.dataset.shards.address import SampleAddress, crc_text
from loader.dataset.versions.samples_table import live_row
from loader.errors import Corrupt, InvalidRuntime, MissingDependency, PenstockError
from loader.modalities.video.packet_table import SUFFIX
from loader.modalities.video.request import is_run

from ...text import clean
from ..json_record import Record
from ..kinds.decode_budget import BUDGET
from ..kinds.lengths import length_marks
from ..kinds.stored_bytes import Read, decoded_bytes, mp4_of, read_bounded
from ..samples.column_edits import ColumnEdit, column_edits
from ..samples.far_columns import far_marks
from ..samples.held_steps import AskedRuns, HeldSteps
from ..samples.marks import StepMark
from ..samples.phash_neighbours import Neighbour, phash_neighbours
from ..samples.shown_values import Shown, facts_of, shown
from .version_record import fields_of

_MEDIA = ("image", "video", "audio")
MAX_FIELD_BYTES = 256 * 2**20
"""A larger field is not read whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleField(Record):
    """A stored field."""

    field: str
    """Name of the field."""
    path: str
    """Path of its shard, relative to the root."""
    offset: int
    """First byte."""
    nbytes: int
    """Number of bytes."""
    crc32c: str
    """CRC-32C, 8 hex digits; "not known" of registered bytes that are not sealed."""
    decoded: Shown | None
    """Value as the loader decodes it; None where it cannot be read."""
    error: str = ""
    """The reason why it cannot be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleRecord(Record):
    """A sample of a version."""

    dataset: str
    """Name of the dataset."""
    number: int
    """Number of the version."""
    ordinal: int
    """Number of the sample in the version."""
    n_samples: int
    """Live samples of the version."""
    key: str
    """Key of the sample."""
    part: str
    """Id of its part."""
    row: int
    """Row in its part."""
    fields: tuple[SampleField, ...]
    """Its fields."""
    columns: Mapping[str, str]
    """Its row of the samples table, without empty cells."""
    marks: tuple[StepMark, ...]
    """Columns far from the version's mean, the farthest first."""
    provenance: Mapping[str, str]
    """Provenance columns."""
    trainings: tuple[HeldSteps, ...]
    """Slots that held it, of each training that was asked."""
    runs_left: tuple[str, ...]
    """Runs of the root that were not asked."""
    runs_error: str
    """The reason why the other runs of the root are not known; "" where they are."""
    edits: tuple[ColumnEdit, ...]
    """Edits of its columns, by column, the oldest first."""
    neighbours: tuple[Neighbour, ...]
    """Samples of the version that look like it by `phash`, the nearest first."""


def stored(version: "loader.Version", ordinal: int, field: str) -> bytes:
    """Return a field's bytes, verified.

    Raises: InvalidRuntime for no such sample or field, or one too large; Corrupt.
    """
    _checked(version, ordinal)
    if field not in fields_of(version, [ordinal])[0]:
        raise InvalidRuntime(f"sample {ordinal} of {version.name} has no field {field!r:.100}")
    (address,) = version.address(np.array([ordinal]), [field])
    if address.fields[field].nbytes > MAX_FIELD_BYTES:
        raise InvalidRuntime(
            f"{address.describe(field)} has {address.fields[field].nbytes} bytes; up to "
            f"{MAX_FIELD_BYTES} are read whole"
        )
    (found,) = read_fields(version.shard_store, [address])
    return found[field]


def stored_sample(version: "loader.Version", ordinal: int, field: str) -> dict[str, bytes]:
    """Return a field's bytes, and those of the field without which it cannot be read. Raises: as `stored`."""
    found = {field: stored(version, ordinal, field)}
    if is_run(field) and field + SUFFIX in fields_of(version, [ordinal])[0]:
        found[field + SUFFIX] = stored(version, ordinal, field + SUFFIX)
    return found


def playable(version: "loader.Version", ordinal: int, field: str) -> tuple[bytes, str]:
    """Return a field's bytes and the word that they are of: of a run of packets, an mp4 file made of it.

    Raises: as `stored`; DecodeFailed for a run without its packet table.
    """
    data = stored_sample(version, ordinal, field)
    if is_run(field):
        return mp4_of(data[field], facts_of(data, field, version)), "mp4"
    return data[field], field


def sample_record(version: "loader.Version", ordinal: int, asked: AskedRuns | None = None) -> SampleRecord:
    """Return the record of a sample. Costs its bytes, and the samples table. Raises: InvalidRuntime; StoreError."""
    _checked(version, ordinal)
    (names,) = fields_of(version, [ordinal])
    (address,) = version.address(np.array([ordinal]), names)
    fields = _fields(version, ordinal, names, address)
    dataset, _, number = version.name.partition("@")
    (origin,) = provenance(version, [address])
    columns, marks = _columns(version, ordinal)
    asked = asked or AskedRuns()
    held = asked.held(dataset, address.key, ordinal)
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
        runs_left=asked.left,
        runs_error=asked.error,
        edits=column_edits(version, ordinal),
        neighbours=phash_neighbours(version, ordinal),
    )


def _fields(
    version: "loader.Version", ordinal: int, names: Sequence[str], address: SampleAddress
) -> tuple[SampleField, ...]:
    """Return the fields, those that are looked at or listened to first. All are decoded at once: one reservation."""
    data, values, errors = dict[str, dict[str, bytes]](), dict[str, Read](), dict[str, str]()
    for name in names:
        try:
            data[name] = stored_sample(version, ordinal, name)
        except (Corrupt, InvalidRuntime) as error:
            errors[name] = str(error)
    facts = {name: facts_of(one, name, version) for name, one in data.items()}
    with BUDGET.reserve(sum(decoded_bytes(data[name][name], facts[name]) for name in data)):
        for name in data:
            try:
                values[name] = read_bounded(data[name][name], facts[name])
            except (Corrupt, MissingDependency) as error:
                errors[name] = str(error)
        return _shown_fields(version, address, values, errors)


def _shown_fields(
    version: "loader.Version", address: SampleAddress, values: dict[str, Read], errors: dict[str, str]
) -> tuple[SampleField, ...]:
    found = [
        SampleField(
            field=name,
            path=at.path,
            offset=at.offset,
            nbytes=at.nbytes,
            crc32c=crc_text(at.crc32c) or "not known",
            decoded=_shown(name, values, version) if name in values else None,
            error=errors.get(name, ""),
        )
        for name, at in address.fields.items()
    ]
    return tuple(sorted(found, key=lambda one: one.decoded is None or one.decoded.kind not in _MEDIA))


def _shown(name: str, values: Mapping[str, Read], version: "loader.Version") -> Shown:
    """Return a field's value, below facts of its file."""
    read = values[name]
    facts = facts_of({field: one.value for field, one in values.items()}, name, version)
    found = shown(name, read.value, replace(facts, rate=read.facts.rate))
    marks = read.marks
    if found.kind == "video" and read.seconds:
        sounds = {
            clean(other, 80): one.seconds
            for other, one in values.items()
            if one.facts.rate and one.seconds is not None
        }
        marks = (*marks, *length_marks(read.seconds, sounds, read.frame_s))
    return replace(found, lines=(*read.lines, *found.lines), marks=(*marks, *found.marks))


def _columns(version: "loader.Version", ordinal: int) -> tuple[dict[str, str], tuple[StepMark, ...]]:
    """Return the columns of a sample in words, and marks of them."""
    try:
        row = live_row(version, ordinal)
        marks = far_marks(version, row)
    except PenstockError as error:
        return {"": f"the samples table cannot be read: {clean(error, 300)}"}, ()
    return {name: clean(value, 400) for name, value in row.items() if value is not None}, tuple(marks)


def _checked(version: "loader.Version", ordinal: int) -> None:
    if not 0 <= ordinal < len(version):
        raise InvalidRuntime(f"ordinal = {ordinal}; {version.name} has samples 0 to {len(version) - 1}")
