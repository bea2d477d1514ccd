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
        layout = unit.kind, field_names(unit)
        layouts.setdefault(layout, []).append(unit)
    parts = []
    for number, layout in enumerate(sorted(layouts)):
        kind, fields = layout
        members = layouts[layout]
        groups = {**members[0].unit.groups, CAPTION_FIELD: "captions"}
        part = write_part(
            store,
            txn,
            _samples(members),
            group=kind,
            groups={field: group for field, group in groups.items() if field in fields},
            name=f"{kind}_{name}_{number}",
        )
        parts.append((part, members))
    return parts


def _samples(
    units: Sequence[CutUnit],
) -> Iterator[tuple[str, dict[str, Any], dict[str, Any], dict[str, str]]]:
    for unit in units:  # one by one: only one sample's files are in memory
        yield unit.key, sample_fields(unit), _metadata(unit), _source(unit)


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
    raw = unit.raw
    fields: dict[str, Any] = {}
    for name, value in unit.unit.fields.items():
        if isinstance(value, Path):
            fields[name] = value.read_bytes()
        else:
            fields[name] = value
    facts = {name: raw[name] for name in ("title", "text", "licence", "author", "origin") if raw[name]}
    if unit.has_folder_labels and raw["label"]:
        facts["label"] = raw["label"]
    measured = fields.pop("json", {})
    # The object's facts win over the cutter's of the same name.
    fields[CUTTERS[unit.kind].facts] = {**measured, "raw": raw["key"], **facts}
    if unit.label is not None:
        fields["cls"] = unit.label
    caption = raw["text"] or raw["title"]
    if caption and CAPTION_FIELD not in fields:
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
    source = dict(unit.source)
    if unit.unit.end:
        source["raw_start"] = unit.unit.start
        source["raw_end"] = unit.unit.end
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
            by_object[unit.raw["key"]] = int(facts.get("n_short_shots", 0))
    return sum(by_object.values())


# Rough rates at which a core decodes and encodes pixels and audio samples.
_PIXELS_PER_S = 20e6
_VALUES_PER_S = 10e6


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
    end: str
    metadata: dict[str, Any]
    groups: dict[str, str]
    request: str


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
    staging = None
    if task.staging:
        staging = ClipStaging(store=node.open(task.root), key=task.staging)
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
    units = list[CutUnit]()
    refusals = list[Row]()
    for task, folder, outcome in zip(block.units, block.folders, outcomes, strict=True):
        result = outcome.value
        if result is None or result.kind is None:
            continue
        names = [name for piece in result.pieces for name in piece.files.values()]
        if all(_is_own(folder, name) for name in names):
            units += _units(task, folder, result.kind, result.pieces)
        else:
            foreign = rejected("cut", "foreign_file", "its worker named a file that it did not make itself")
            refusals.append(refusal_row(task.raw["key"], task.audit["sha256"], foreign))
    first = block.units[0]
    parts = list[tuple[Kind, dict[str, Any]]]()
    rows = list[Row]()
    for part, members in write_parts(node.open(first.root), first.txn, units, f"{block.number:05d}"):
        parts.append((members[0].kind, part.to_json()))
        rows += [unit_row(unit, part) for unit in members]
    return CutParts(
        parts=parts,
        rows=rows,
        refusals=refusals,
        short_shots=n_short_shots(units),
    )


def _unit_files(unit: Unit, folder: Path) -> UnitFiles:
    files: dict[str, str] = {}
    values: dict[str, Any] = {}
    for name, value in unit.fields.items():
        if not isinstance(value, Path):
            values[name] = value
        elif value.parent == folder:
            files[name] = value.name
        else:
            files[name] = str(value)  # refused later, by `_is_own`
    return UnitFiles(
        files=files,
        values=values,
        start=unit.start,
        end=unit.end,
        metadata=dict(unit.metadata),
        groups=dict(unit.groups),
        request=unit.request,
    )


def _units(task: CutTask, folder: Path, kind: Kind, pieces: Sequence[UnitFiles]) -> Iterator[CutUnit]:
    for piece in pieces:
        # All that decides a unit's bytes, so that a repeated cut gives the same ids.
        identity: list[object] = [task.audit["sha256"], piece.start, piece.end, task.words]
        if piece.request:
            identity.append(piece.request)
        files = {name: folder / file for name, file in piece.files.items()}
        yield CutUnit(
            unit_id=fingerprint(*identity),
            kind=kind,
            unit=Unit(
                start=piece.start,
                end=piece.end,
                fields={**files, **piece.values},
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
    width_px = task.audit.get("width_px") or 0
    height_px = task.audit.get("height_px") or 0
    pixels = max(work.pixels, width_px * height_px)  # an image may state no number of frames
    return 0.05 + pixels / _PIXELS_PER_S + work.values / _VALUES_PER_S


def _nbytes(task: CutTask) -> int:
    nbytes = int(task.raw["nbytes"])
    video = task.policy.video
    length_s = task.audit.get("duration_s") or 0.0
    if task.audit["kind"] != "video" or video.max_clips is None or not length_s:
        return nbytes
    # A video's clips may cover only a share of it.
    share = min(1.0, video.max_clips * video.clip_s / length_s)
    return int(nbytes * share)


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
