"""Samples of cut units, written as parts: one part per kind and set of fields in a block."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loader.dataset.shards.part import Part
from loader.storage import Store

from ..media.cutters import CUTTERS
from ..media.unit import Kind, Unit

CAPTION = "caption.txt"
"""Field of the text that came with an object or segment, in a group of its own."""

Row = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class CutUnit:
    """A unit whose bytes are in scratch files."""

    unit_id: str
    """Id."""
    kind: Kind
    """Kind of media."""
    unit: Unit
    """The unit."""
    raw: Mapping[str, Any]
    """Row of `raw_objects`."""
    audit: Mapping[str, Any]
    """Row of `media`."""
    label: int | None
    """Class number; None for kinds without classes."""
    source: Mapping[str, str]
    """Provenance of all samples of the object."""

    @property
    def key(self) -> str:
        return f"{self.kind}/{self.unit_id[:20]}"


def write_parts(
    store: Store, txn: str, units: Sequence[CutUnit], name: str
) -> list[tuple[Part, list[CutUnit]]]:
    """Write one part per kind and set of fields; return each with its units. name: of the block."""
    from loader.dataset.writing.part_writer import write_part  # only workers need it

    layouts: dict[tuple[Kind, tuple[str, ...]], list[CutUnit]] = {}
    for unit in units:
        layouts.setdefault((unit.kind, field_names(unit)), []).append(unit)
    parts = []
    for place, ((kind, fields), members) in enumerate(sorted(layouts.items())):
        groups = {**members[0].unit.groups, CAPTION: "captions"}
        samples = ((unit.key, sample_fields(unit), _metadata(unit), _source(unit)) for unit in members)
        used = {field: group for field, group in groups.items() if field in fields}
        part = write_part(store, txn, samples, group=kind, groups=used, name=f"{kind}_{name}_{place}")
        parts.append((part, members))
    return parts


def field_names(unit: CutUnit) -> tuple[str, ...]:
    """Return the sorted fields of `sample_fields`, without reading files."""
    cutter = CUTTERS[unit.kind]
    names = {*unit.unit.fields, cutter.facts} - {"json"}
    if cutter.has_label:
        names.add("cls")
    if unit.raw["text"] or unit.raw["title"]:
        names.add(CAPTION)
    return tuple(sorted(names))


def sample_fields(unit: CutUnit) -> dict[str, Any]:
    """Return field -> value of a sample, with its files read."""
    cutter, raw = CUTTERS[unit.kind], unit.raw
    fields: dict[str, Any] = {
        name: value.read_bytes() if isinstance(value, Path) else value
        for name, value in unit.unit.fields.items()
    }
    facts = {
        name: raw[name] for name in ("label", "title", "text", "licence", "author", "origin") if raw[name]
    }
    fields[cutter.facts] = {**fields.pop("json", {}), "raw": raw["key"], **facts}
    if cutter.has_label:
        fields["cls"] = unit.label
    if CAPTION not in fields and (caption := raw["text"] or raw["title"]):
        fields[CAPTION] = caption
    return fields


def _metadata(unit: CutUnit) -> dict[str, Any]:
    raw = unit.raw
    facts = {"kind": unit.kind, "label": raw["label"], "licence": raw["licence"], "mime": raw["mime"]}
    source_rate = unit.audit.get("sample_rate_hz")
    if source_rate is not None:
        facts["source_sample_rate_hz"] = source_rate
    if unit.kind in ("image", "video"):  # they decide which of two copies stays
        facts["source_width_px"] = unit.audit["upright_width_px"]
        facts["source_height_px"] = unit.audit["upright_height_px"]
        facts["source_nbytes"] = raw["nbytes"]
    if unit.kind == "video":
        facts["source_duration_s"] = unit.audit["duration_s"]
    return {**facts, **unit.unit.metadata}


def _source(unit: CutUnit) -> dict[str, str]:
    place = {"raw_start": unit.unit.start, "raw_end": unit.unit.end} if unit.unit.end else {}
    return {**unit.source, **place, "unit_id": unit.unit_id}


def unit_row(unit: CutUnit, part: Part) -> Row:
    """Return the unit's row of `units`."""
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
    """Count shots, and ends of shots, too short for a clip, over all videos of these units."""
    by_object = {unit.raw["key"]: unit.unit.fields.get("json", {}) for unit in units if unit.kind == "video"}
    return sum(int(facts.get("n_short_shots", 0)) for facts in by_object.values())
