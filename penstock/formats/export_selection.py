"""Select the samples, fields and columns to export, and read them."""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

import numpy as np

from loader import Version
from loader.dataset.norms.norm import Norm
from loader.dataset.reading.verified_bucket_reads import read_fields
from loader.dataset.shards.address import SampleAddress
from loader.dataset.tables.columns import SOURCE_COLUMNS
from loader.dataset.versions.samples_table import import_polars, live_where
from loader.errors import EmptyVersion, FieldNotFound
from loader.keywords import did_you_mean

Int64s = np.ndarray[Any, np.dtype[np.int64]]
Bools = np.ndarray[Any, np.dtype[np.bool_]]
READ_BYTES = 32 * 2**20
"""Limit on payloads read at once, in bytes, unless one field is larger."""
ADDRESSES = 2048
"""Number of samples per address lookup: one row group of an index."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkUnit:
    """Samples of one part that are exported together."""

    number: int
    """Index of the unit in the export."""
    fields: tuple[str, ...]
    """Field names of its samples, sorted."""
    ordinals: Int64s
    """Live ordinals of its samples: int64, ascending."""


class ExportSample(NamedTuple):
    """One sample to export."""

    key: str
    """Sample key."""
    fields: dict[str, bytes]
    """Field name -> bytes, sorted by name."""
    columns: dict[str, Any]
    """Metadata or provenance column -> value, sorted by name, without nulls."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportSelection:
    """The samples, fields and columns to export; immutable and thread-safe."""

    version: Version
    """Version that the samples belong to."""
    fields: tuple[str, ...]
    """Exported field names, sorted."""
    columns: dict[str, str]
    """Metadata or provenance column that has any value -> type."""
    members: Bools
    """Export mask by live ordinal: bool [len(version)]."""
    frame: Any
    """polars table of these columns, one row per live ordinal; None if there are no columns."""
    norm: Norm | None = None
    """Norm whose statistics LeRobot's metadata has; None for the statistics of the exported rows."""

    @property
    def n_samples(self) -> int:
        return int(np.count_nonzero(self.members))

    @property
    def partial(self) -> dict[str, int]:
        """Field that some samples lack -> number of parts without it."""
        version = self.version
        has = {group: version.parts.has_group(group) for group in version.parts.groups}
        chosen = np.add.reduceat(self.members, version.parts.first_ordinal[:-1][version.parts.n_live > 0]) > 0
        there = np.zeros(len(version.parts), bool)
        there[version.parts.n_live > 0] = chosen
        lacking = {name: int(np.count_nonzero(there & ~has[version.group_of(name)])) for name in self.fields}
        return {name: n for name, n in lacking.items() if n}

    def by_part(self, most: int | None = None) -> list[WorkUnit]:
        """Return a unit per part, or per `most` samples of it, in the version's order."""
        parts, out = self.version.parts, list[WorkUnit]()
        has = {name: parts.has_group(self.version.group_of(name)) for name in self.fields}
        for position in range(len(parts)):
            first, end = parts.first_ordinal[position : position + 2].tolist()
            ordinals = np.flatnonzero(self.members[first:end]) + first
            fields = tuple(name for name in self.fields if has[name][position])
            for start in range(0, len(ordinals), most or max(1, len(ordinals))):
                chosen = ordinals[start : start + most] if most else ordinals
                out.append(WorkUnit(number=len(out), fields=fields, ordinals=chosen))
        return out

    def samples(self, unit: WorkUnit) -> Iterator[ExportSample]:
        """Yield a unit's samples in order. Every field is verified."""
        pins: dict[str, str] = {}
        for start in range(0, len(unit.ordinals), ADDRESSES):
            ordinals = unit.ordinals[start : start + ADDRESSES]
            rows = self.rows(ordinals)
            done = 0
            for batch in _batches(self.version.address(ordinals, unit.fields)):
                read = read_fields(self.version.shard_store, batch, pins=pins)
                for address, fields in zip(batch, read, strict=True):
                    yield ExportSample(address.key, dict(sorted(fields.items())), rows[done])
                    done += 1

    def rows(self, ordinals: Int64s) -> list[dict[str, Any]]:
        """Return each live ordinal's columns as a mapping without nulls."""
        if self.frame is None:
            return [{} for _ in ordinals]
        return [
            {name: value for name, value in row.items() if value is not None}
            for row in self.frame[ordinals].to_dicts()
        ]


def select(version: Version, where: str | None = None, without: Collection[str] = ()) -> ExportSelection:
    """Return the live samples to export.

    where: SQL expression; None selects all. without: fields and columns to leave out.

    Raises: FieldNotFound for an unknown name; EmptyVersion if nothing is selected.
    """
    columns = _columns(version)
    if unknown := sorted(set(without) - {*version.fields, *columns}):
        raise FieldNotFound(
            f"--without {unknown[0]}: {version.name} has no such field or column"
            f"{did_you_mean(unknown[0], [*version.fields, *columns]) or ';'} it has the fields "
            f"{', '.join(version.fields)} and the columns {', '.join(columns) or 'none'}"
        )
    fields = tuple(name for name in version.fields if name not in without)
    members = np.ones(len(version), bool) if where is None else live_where(version, where)
    if not members.any() or not fields:
        why = f"no sample of it is {where}" if fields else "every field of it is left out"
        raise EmptyVersion(f"nothing of {version.name} is to be exported: {why}")
    columns = {name: kind for name, kind in columns.items() if name not in without}
    frame = _frame(version, columns)
    if frame is not None:
        columns = {name: columns[name] for name in frame.columns}
    return ExportSelection(
        version=version,
        fields=fields,
        columns=columns if frame is not None else {},
        members=members,
        frame=frame,
    )


def _columns(version: Version) -> dict[str, str]:
    types = {name: str(body["type"]) for name, body in version.manifest["columns"].items()}
    return {name: types[name] for name in sorted({*types, *SOURCE_COLUMNS} & set(types)) if name != "key"}


def _frame(version: Version, columns: Collection[str]) -> Any:
    if not columns:
        return None
    pl = import_polars()
    frame = version.samples().select(sorted(columns)).collect()
    empty = [one.name for one in frame if one.null_count() == frame.height or one.dtype == pl.Null]
    frame = frame.drop(empty)
    return frame if frame.width else None


def _batches(addresses: Sequence[SampleAddress]) -> Iterator[list[SampleAddress]]:
    batch, held = list[SampleAddress](), 0
    for address in addresses:
        nbytes = sum(place.nbytes for place in address.fields.values())
        if batch and held + nbytes > READ_BYTES:
            yield batch
            batch, held = [], 0
        batch.append(address)
        held += nbytes
    if batch:
        yield batch


def metadata_json(columns: Mapping[str, Any]) -> bytes:
    """Return columns as JSON, sorted by name. Times are in ISO 8601; NaN is written as `NaN`."""
    text = json.dumps(columns, ensure_ascii=False, sort_keys=True, separators=(",", ":"), default=_text)
    return text.encode()


def _text(value: object) -> str:
    if isinstance(value, datetime):
        return value.isoformat()
    raise TypeError(f"a {type(value).__name__} is in no column of a samples table")
