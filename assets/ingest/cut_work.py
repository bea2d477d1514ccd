"""The work CUT: a node cuts a raw object into files, and a block writes its units as parts."""

import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from penstock.compute.pool import Outcome
from penstock.compute.work import Block, Fault, Node, Work
from penstock.stages import fingerprint

from ..media.cutters import ALL_KINDS, ClipStaging
from ..media.decode_time import media_work
from ..media.objects import CutRequest, cut_object, refusal_row
from ..media.policy import CutPolicy
from ..media.unit import Kind, Unit, rejected
from .audit_work import source_segments
from .unit_parts import CutUnit, n_short_shots, unit_row, write_kind_parts

Row = dict[str, Any]


# Rough rates at which a core decodes and encodes pixels and audio samples.
_PIXELS_PER_S = 20e6
_VALUES_PER_S = 10e6
_START_S = 0.05
"""Seconds of an object before its first pixel."""


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
    settings: dict[str, str]
    """Settings that decide the units, as texts: part of the units' ids."""
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
    # The others as in `Unit`.
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
        segments=source_segments(task.raw),
        staging=staging,
    )
    result = cut_object(request)
    if result.fault:
        raise Fault(
            f"{task.raw['key']!r} could not be cut: {result.fault}",
            what="cut",
            where=task.raw["key"],
            given=result.fault,
        )
    pieces = [_unit_files(unit, node.scratch) for unit in result.units]
    return CutUnits(kind=result.kind, pieces=pieces, refusal=result.refusal)


def write_cut(
    block: Block[CutTask],
    outcomes: Sequence[Outcome[CutUnits]],
    node: Node,
) -> CutParts:
    """Write the units of a block as parts."""
    tasks = block.units  # the units of a job are tasks here; `cut_units` are what they cut
    cut_units = list[CutUnit]()
    refusals = list[Row]()
    for task, folder, outcome in zip(tasks, block.folders, outcomes, strict=True):
        result = outcome.value
        if result is None or result.kind is None:
            continue  # failed or refused: the submitter stores the refusal
        if _names_own_files(folder, result.pieces):
            cut_units += _cut_units(task, folder, result.kind, result.pieces)
        else:
            foreign = rejected("cut", "foreign_file", "its worker named a file that it did not make itself")
            refusal = refusal_row(task.raw["key"], task.audit["sha256"], foreign)
            refusals.append(refusal)

    first_task = tasks[0]  # all tasks have its root and transaction
    root = node.open(first_task.root)
    name = f"{block.number:05d}"
    parts = list[tuple[Kind, dict[str, Any]]]()
    rows = list[Row]()
    for part, members in write_kind_parts(root, first_task.txn, cut_units, name):
        kind = members[0].kind
        parts.append((kind, part.to_json()))
        for unit in members:
            rows.append(unit_row(unit, part))
    return CutParts(
        parts=parts,
        rows=rows,
        refusals=refusals,
        short_shots=n_short_shots(cut_units),
    )


def _unit_files(unit: Unit, folder: Path) -> UnitFiles:
    """Return a unit as a node reports it. A field in a file of this folder becomes the file's name.

    Other fields stay values.
    """
    files: dict[str, str] = {}
    values: dict[str, Any] = {}
    for name, value in unit.fields.items():
        if not isinstance(value, Path):
            values[name] = value
        elif value.parent == folder:
            files[name] = value.name
        else:
            # This is not a file's name. `_is_own` refuses it where the reports of all nodes are checked.
            files[name] = str(value)
    return UnitFiles(
        files=files,
        values=values,
        start=unit.start,
        end=unit.end,
        metadata=dict(unit.metadata),
        groups=dict(unit.groups),
        request=unit.request,
    )


def _cut_units(
    task: CutTask,
    folder: Path,
    kind: Kind,
    pieces: Sequence[UnitFiles],
) -> Iterator[CutUnit]:
    """Yield the units of an object. folder: where its worker left the files of these pieces."""
    for piece in pieces:
        # All that decides a unit's bytes, so that a repeated cut gives the same ids.
        identity: list[object] = [
            task.audit["sha256"],
            piece.start,
            piece.end,
            task.settings,
        ]
        if piece.request:
            identity.append(piece.request)
        fields: dict[str, Any] = {}
        for name, file in piece.files.items():
            fields[name] = folder / file
        fields.update(piece.values)
        yield CutUnit(
            unit_id=fingerprint(*identity),
            kind=kind,
            unit=Unit(
                start=piece.start,
                end=piece.end,
                fields=fields,
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


def _names_own_files(folder: Path, pieces: Sequence[UnitFiles]) -> bool:
    """Return whether the pieces name only regular files of this folder."""
    for piece in pieces:
        for name in piece.files.values():
            if not _is_own(folder, name):
                return False
    return True


def _is_own(folder: Path, name: str) -> bool:
    # A compromised worker could name any other file, so accept only regular files of this folder.
    try:
        status = os.lstat(folder / name)
    except (OSError, ValueError):
        return False
    is_in_folder = Path(name).name == name
    is_regular = stat.S_ISREG(status.st_mode)
    return is_in_folder and is_regular and status.st_nlink == 1


def _alike(task: CutTask) -> CutTask:
    """Return the task as any run has it, so that a repeated run finds the results of the last one."""
    source = dict(task.source)
    source["run_id"] = ""
    return replace(task, source=source)


def _limit_s(task: CutTask) -> float:
    return task.limit_s


def _cost_s(task: CutTask) -> float:
    work = media_work(task.audit)
    width_px = task.audit.get("width_px") or 0
    height_px = task.audit.get("height_px") or 0
    pixels = max(work.pixels, width_px * height_px)  # an image may state no number of frames
    pixels_s = pixels / _PIXELS_PER_S
    values_s = work.values / _VALUES_PER_S
    return _START_S + pixels_s + values_s


def _nbytes(task: CutTask) -> int:
    nbytes = int(task.raw["nbytes"])
    if task.audit["kind"] != "video":
        return nbytes
    video = task.policy.video
    length_s = task.audit.get("duration_s") or 0.0
    if video.max_clips is None or not length_s:
        return nbytes
    # A video's clips may cover only a share of it.
    clips_s = video.max_clips * video.clip_s
    share = min(1.0, clips_s / length_s)
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
