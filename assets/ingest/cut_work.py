"""The work CUT: a node cuts a raw object into files, and a block writes its units as parts."""

import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from loader.dataset.shards.part import Part
from loader.storage import Store
from penstock.compute.pool import Outcome
from penstock.compute.work import Block, Fault, Node, Work
from penstock.stages import fingerprint

from ..media.cutters import ALL_KINDS, CUTTERS, ClipStaging
from ..media.decode_time import work_of
from ..media.objects import CutRequest, cut_object, refusal_row
from ..media.policy import CutPolicy
from ..media.unit import CAPTION_FIELD, Kind, Unit, rejected
from .audit_work import segments_of

Row = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class CutUnit:
    """A unit whose bytes are in scratch files."""

    unit_id: str
    """SHA-256 that identifies the unit."""
    kind: Kind
    """Kind of media."""
    unit: Unit
    """Cut unit."""
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
        return f"{self.kind}/{self.unit_id[:20]}"


def write_parts(
    store: Store, txn: str, units: Sequence[CutUnit], name: str
) -> list[tuple[Part, list[CutUnit]]]:
    """Write a part per kind and set of fields; return each with its units. name: the block's name."""
    from loader.dataset.writing.part_writer import write_part  # only workers need it

    layouts: dict[tuple[Kind, tuple[str, ...]], list[CutUnit]] = {}
    for unit in units:
        layouts.setdefault((unit.kind, field_names(unit)), []).append(unit)
    parts = []
    for place, ((kind, fields), members) in enumerate(sorted(layouts.items())):
        groups = {**members[0].unit.groups, CAPTION_FIELD: "captions"}
        samples = ((unit.key, sample_fields(unit), _metadata(unit), _source(unit)) for unit in members)
        used = {field: group for field, group in groups.items() if field in fields}
        part = write_part(store, txn, samples, group=kind, groups=used, name=f"{kind}_{name}_{place}")
        parts.append((part, members))
    return parts


def field_names(unit: CutUnit) -> tuple[str, ...]:
    """Return the sorted field names of a sample, without reading files."""
    cutter = CUTTERS[unit.kind]
    names = {*unit.unit.fields, cutter.facts} - {"json"}
    if unit.label is not None:
        names.add("cls")
    if unit.raw["text"] or unit.raw["title"]:
        names.add(CAPTION_FIELD)
    return tuple(sorted(names))


def sample_fields(unit: CutUnit) -> dict[str, Any]:
    """Return field -> value for a sample, with its files read."""
    cutter, raw = CUTTERS[unit.kind], unit.raw
    fields: dict[str, Any] = {
        name: value.read_bytes() if isinstance(value, Path) else value
        for name, value in unit.unit.fields.items()
    }
    facts = {name: raw[name] for name in ("title", "text", "licence", "author", "origin") if raw[name]}
    if unit.has_folder_labels and raw["label"]:
        facts["label"] = raw["label"]
    fields[cutter.facts] = {**fields.pop("json", {}), "raw": raw["key"], **facts}
    if unit.label is not None:
        fields["cls"] = unit.label
    if CAPTION_FIELD not in fields and (caption := raw["text"] or raw["title"]):
        fields[CAPTION_FIELD] = caption
    return fields


def _metadata(unit: CutUnit) -> dict[str, Any]:
    raw = unit.raw
    facts = {"kind": unit.kind, "licence": raw["licence"], "mime": raw["mime"]}
    if unit.has_folder_labels:
        facts["label"] = raw["label"]
    source_rate = unit.audit.get("sample_rate_hz")
    if source_rate is not None:
        facts["source_sample_rate_hz"] = source_rate
    if unit.kind in ("image", "video"):  # these facts decide which of two copies is kept
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
    by_object = {unit.raw["key"]: unit.unit.fields.get("json", {}) for unit in units if unit.kind == "video"}
    return sum(int(facts.get("n_short_shots", 0)) for facts in by_object.values())


_PIXELS_PER_S, _VALUES_PER_S = 20e6, 10e6
"""Rough pixels and audio samples that a core decodes and encodes per second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CutTask:
    """One raw object to cut."""

    landing: str
    """URL of the object's store."""
    root: str
    """URL of the store for the parts."""
    txn: str
    """Transaction of the parts."""
    raw: dict[str, Any]
    """Object's row of `raw_objects`."""
    audit: dict[str, Any]
    """Object's row of `media`."""
    policy: CutPolicy
    """Cut policy."""
    words: dict[str, str]
    """Policy as text, part of the units' ids."""
    staging: str
    """Key of the staged clips, or ""."""
    label: int | None
    """Class number; None for kinds without classes."""
    has_folder_labels: bool
    """True if the object's folder is its label."""
    source: dict[str, str]
    """Provenance of all its samples."""
    limit_s: float
    """Time limit in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitFiles:
    """A unit whose bytes are in files of the object's folder."""

    files: dict[str, str]
    """Field -> name of its file."""
    values: dict[str, Any]
    """Field -> JSON value, for fields without a file."""
    start: str
    """As `Unit.start`."""
    end: str
    """As `Unit.end`."""
    metadata: dict[str, Any]
    """As `Unit.metadata`."""
    groups: dict[str, str]
    """As `Unit.groups`."""
    request: str
    """As `Unit.request`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CutUnits:
    """Result of cutting an object: its units, or a refusal."""

    kind: Kind | None = None
    """Kind of the units; None if refused."""
    pieces: list[UnitFiles] = field(default_factory=list)
    """Units and their files."""
    refusal: dict[str, Any] | None = None
    """Row of `refusals`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CutParts:
    """Parts of a block."""

    parts: list[tuple[Kind, dict[str, Any]]]
    """(kind, part as JSON)."""
    rows: list[dict[str, Any]]
    """Rows of `units`."""
    refusals: list[dict[str, Any]]
    """Rows of `refusals` for objects whose worker named files that are not its own."""
    short_shots: int
    """Number of shots, and ends of shots, too short for a clip."""


def cut(task: CutTask, node: Node) -> CutUnits:
    """Cut an object into files in `node.scratch`. Raises: Fault."""
    staging = ClipStaging(store=node.open(task.root), key=task.staging) if task.staging else None
    request = CutRequest(
        store=node.open(task.landing),
        key=task.raw["key"],
        sha256=task.audit["sha256"],
        mime=task.audit["mime"],
        scratch=str(node.scratch),
        policy=task.policy,
        kinds=ALL_KINDS,
        audit=task.audit,
        segments=segments_of(task.raw),
        staging=staging,
    )
    result = cut_object(request)
    if result.fault:
        raise Fault(f"{task.raw['key']!r} could not be cut: {result.fault}")
    pieces = [_unit_files(unit, node.scratch) for unit in result.units]
    return CutUnits(kind=result.kind, pieces=pieces, refusal=result.refusal)


def write_cut(block: Block[CutTask], outcomes: Sequence[Outcome[CutUnits]], node: Node) -> CutParts:
    """Write the units of a block as parts."""
    units, refusals = list[CutUnit](), list[dict[str, Any]]()
    for task, folder, outcome in zip(block.units, block.folders, outcomes, strict=True):
        result = outcome.value
        if result is None or result.kind is None:
            continue
        if all(_is_own(folder, name) for piece in result.pieces for name in piece.files.values()):
            units += _units(task, folder, result.kind, result.pieces)
        else:
            foreign = rejected("cut", "foreign_file", "its worker named a file that it did not make itself")
            refusals.append(refusal_row(task.raw["key"], task.audit["sha256"], foreign))
    first = block.units[0]
    written = write_parts(node.open(first.root), first.txn, units, f"{block.number:05d}")
    return CutParts(
        parts=[(members[0].kind, part.to_json()) for part, members in written],
        rows=[unit_row(unit, part) for part, members in written for unit in members],
        refusals=refusals,
        short_shots=n_short_shots(units),
    )


def _unit_files(unit: Unit, folder: Path) -> UnitFiles:
    files = {name: value for name, value in unit.fields.items() if isinstance(value, Path)}
    return UnitFiles(
        files={name: file.name if file.parent == folder else str(file) for name, file in files.items()},
        values={name: value for name, value in unit.fields.items() if name not in files},
        start=unit.start,
        end=unit.end,
        metadata=dict(unit.metadata),
        groups=dict(unit.groups),
        request=unit.request,
    )


def _units(task: CutTask, folder: Path, kind: Kind, pieces: Sequence[UnitFiles]) -> Iterator[CutUnit]:
    for piece in pieces:
        request = [piece.request] if piece.request else []
        yield CutUnit(
            unit_id=fingerprint(task.audit["sha256"], piece.start, piece.end, task.words, *request),
            kind=kind,
            unit=Unit(
                start=piece.start,
                end=piece.end,
                fields={**{name: folder / file for name, file in piece.files.items()}, **piece.values},
                metadata=piece.metadata,
                groups=piece.groups,
                request=piece.request,
            ),
            raw=task.raw,
            audit=task.audit,
            label=task.label,
            has_folder_labels=task.has_folder_labels,
            source=task.source,
        )


def _is_own(folder: Path, name: str) -> bool:
    # A compromised worker could name any other file, so accept only regular files of this folder.
    try:
        status = os.lstat(folder / name)
    except (OSError, ValueError):
        return False
    return Path(name).name == name and stat.S_ISREG(status.st_mode) and status.st_nlink == 1


def _alike(task: CutTask) -> CutTask:
    return replace(task, source={**task.source, "run_id": ""})


def _limit_s(task: CutTask) -> float:
    return task.limit_s


def _cost_s(task: CutTask) -> float:
    work = work_of(task.audit)
    pixels = max(work.pixels, (task.audit.get("width_px") or 0) * (task.audit.get("height_px") or 0))
    return 0.05 + pixels / _PIXELS_PER_S + work.values / _VALUES_PER_S


def _nbytes(task: CutTask) -> int:
    # A video's clips may cover only a share of it.
    nbytes, video = int(task.raw["nbytes"]), task.policy.video
    length_s = task.audit.get("duration_s") or 0.0
    if task.audit["kind"] != "video" or video.max_clips is None or not length_s:
        return nbytes
    return int(nbytes * min(1.0, video.max_clips * video.clip_s / length_s))


CUT = Work(
    name="cut",
    version="1",
    function=cut,
    unit=CutTask,
    result=CutUnits,
    timeout_s=_limit_s,
    cost_s=_cost_s,
    alike=_alike,
    nbytes=_nbytes,
    finish=write_cut,
    part=CutParts,
    libraries=("av", "pillow", "numpy"),
)
