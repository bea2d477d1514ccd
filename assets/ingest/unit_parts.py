"""Turn cut units into samples, and write them as parts."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loader.dataset.shards.part import Part
from loader.storage import Store

from ..media.cutters import CUTTERS
from ..media.unit import CAPTION_FIELD, Kind, Unit

Row = dict[str, Any]

_OBJECT_FACTS = ("title", "text", "licence", "author", "origin")
"""Columns of `raw_objects` that become facts of a sample, unless empty."""
_ID_CHARS = 20  # of a SHA-256 in hex


@dataclass(frozen=True, slots=True, kw_only=True)
class CutUnit:
    """A unit whose bytes are in scratch files."""

    unit_id: str
    """SHA-256 that identifies the unit."""
    kind: Kind
    """Kind of media."""
    unit: Unit
    raw: Mapping[str, Any]
    """Its row of `raw_objects`."""
    audit: Mapping[str, Any]
    """Its row of `media`."""
    label: int | None
    """Class number; None for kinds without classes."""
    has_folder_labels: bool
    """True if the object's folder is its label."""
    source: Mapping[str, str]
    """Provenance of all its samples."""

    @property
    def key(self) -> str:
        short_id = self.unit_id[:_ID_CHARS]
        return f"{self.kind}/{short_id}"


def write_kind_parts(
    store: Store,
    txn: str,
    units: Sequence[CutUnit],
    name: str,
) -> list[tuple[Part, list[CutUnit]]]:
    """Write a part per kind and set of fields; return each with its units. name: the block's name."""
    from loader.dataset.writing.single_part import write_part  # only workers need it

    # Samples of a part have the same fields.
    layouts: dict[tuple[Kind, tuple[str, ...]], list[CutUnit]] = {}
    for unit in units:
        layout = (unit.kind, field_names(unit))
        members = layouts.setdefault(layout, [])
        members.append(unit)
    parts = []
    for number, layout in enumerate(sorted(layouts)):
        kind, fields = layout
        members = layouts[layout]
        own_groups = members[0].unit.groups  # alike for all units of a kind with the same fields
        groups = {field: group for field, group in own_groups.items() if field in fields}
        if CAPTION_FIELD in fields:
            groups[CAPTION_FIELD] = "captions"
        part = write_part(
            store,
            txn,
            _samples(members),
            group=kind,
            groups=groups,
            name=f"{kind}_{name}_{number}",
        )
        parts.append((part, members))
    return parts


def _samples(units: Sequence[CutUnit]) -> Iterator[tuple[Any, ...]]:
    """Yield (key, fields, metadata, provenance) of each unit."""
    for unit in units:  # one by one: only one sample's files are in memory
        fields = sample_fields(unit)
        metadata = _metadata(unit)
        source = _source(unit)
        yield unit.key, fields, metadata, source


def field_names(unit: CutUnit) -> tuple[str, ...]:
    """Return the sorted names of the fields that `sample_fields` returns, without reading files."""
    raw = unit.raw
    cutter = CUTTERS[unit.kind]
    names = set(unit.unit.fields)
    names.add(cutter.facts)
    names.discard("json")  # becomes `cutter.facts`
    if unit.label is not None:
        names.add("cls")
    caption = raw["text"] or raw["title"]
    if caption:
        names.add(CAPTION_FIELD)
    return tuple(sorted(names))


def sample_fields(unit: CutUnit) -> dict[str, Any]:
    """Return field -> value for a sample, with its files read."""
    raw = unit.raw
    fields: dict[str, Any] = {}
    for name, value in unit.unit.fields.items():
        if isinstance(value, Path):
            fields[name] = value.read_bytes()
        else:
            fields[name] = value
    measured = fields.pop("json", {})
    cutter = CUTTERS[unit.kind]
    fields[cutter.facts] = _facts(unit, measured)
    if unit.label is not None:
        fields["cls"] = unit.label
    caption = raw["text"] or raw["title"]
    if caption and CAPTION_FIELD not in fields:
        fields[CAPTION_FIELD] = caption
    return fields


def _facts(unit: CutUnit, measured: Mapping[str, Any]) -> dict[str, Any]:
    raw = unit.raw
    facts = dict(measured)
    # The object's facts win over the cutter's of the same name.
    facts["raw"] = raw["key"]
    for name in _OBJECT_FACTS:
        if raw[name]:
            facts[name] = raw[name]
    if unit.has_folder_labels and raw["label"]:
        facts["label"] = raw["label"]
    return facts


def _metadata(unit: CutUnit) -> dict[str, Any]:
    raw = unit.raw
    audit = unit.audit
    metadata: dict[str, Any] = {
        "kind": unit.kind,
        "licence": raw["licence"],
        "mime": raw["mime"],
    }
    if unit.has_folder_labels:
        metadata["label"] = raw["label"]
    source_rate = audit.get("sample_rate_hz")
    if source_rate is not None:
        metadata["source_sample_rate_hz"] = source_rate
    if unit.kind in ("image", "video"):  # these facts decide which of two copies is kept
        metadata.update(
            source_width_px=audit["upright_width_px"],
            source_height_px=audit["upright_height_px"],
            source_nbytes=raw["nbytes"],
        )
    if unit.kind == "video":
        metadata["source_duration_s"] = audit["duration_s"]
    metadata.update(unit.unit.metadata)
    return metadata


def _source(unit: CutUnit) -> dict[str, str]:
    source = dict(unit.source)
    piece = unit.unit
    if piece.end:  # "" if the unit is the whole object
        source["raw_start"] = piece.start
        source["raw_end"] = piece.end
    source["unit_id"] = unit.unit_id
    return source


def unit_row(unit: CutUnit, part: Part) -> Row:
    """Return the unit's row for `units`."""
    return {
        "key": unit.key,
        "unit_id": unit.unit_id,
        "kind": unit.kind,
        "part": part.id,
        "raw_key": unit.raw["key"],
        "raw_sha256": unit.raw["sha256"],
        "start": unit.unit.start,
        "end": unit.unit.end,
    }


def n_short_shots(units: Sequence[CutUnit]) -> int:
    """Count shots, and ends of shots, too short for a clip."""
    by_object: dict[str, int] = {}  # each clip has the count of its whole object
    for unit in units:
        if unit.kind == "video":
            facts = unit.unit.fields.get("json", {})
            n_shots = facts.get("n_short_shots", 0)
            key = unit.raw["key"]
            by_object[key] = int(n_shots)
    return sum(by_object.values())
