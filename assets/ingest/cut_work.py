"""The cut as a work: a node reads a raw object from its store and cuts it; a block writes its units as parts.

Bytes go from store to store. Workers decode files that nobody has vouched for, so a part takes only files that lie in
the unit's own folder.
"""

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
from ..media.decode_time import work_of
from ..media.objects import CutRequest, cut_object, refusal_row
from ..media.policy import CutPolicy
from ..media.unit import Kind, Unit, rejected
from .clip_staging import segments_of
from .unit_samples import CutUnit, n_short_shots, unit_row, write_parts

_PIXELS_PER_S, _VALUES_PER_S = 20e6, 10e6
"""Pixels and samples of sound that a core decodes and encodes in a second, about."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CutTask:
    """A raw object to cut."""

    landing: str
    """URL of its store."""
    root: str
    """URL of the store that takes the parts."""
    txn: str
    """Transaction of the parts."""
    raw: dict[str, Any]
    """Row of the landed object."""
    audit: dict[str, Any]
    """Row of the object in the media table."""
    policy: CutPolicy
    """Cut policy."""
    words: dict[str, str]
    """The policy of its kind as text, which ids of units are made of."""
    staging: str
    """Key of clips that its audit made, in the root; "" for nowhere."""
    label: int | None
    """Number of its class; None for kinds without one."""
    source: dict[str, str]
    """Provenance of all of its samples: the submitter's run, too."""
    limit_s: float
    """Seconds that it may take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A unit of an object, its bytes in files of the object's folder."""

    files: dict[str, str]
    """Field -> name of its file."""
    values: dict[str, Any]
    """Field -> its JSON value."""
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
class Pieces:
    """Result of cutting an object: its units, or why there are none."""

    kind: Kind | None = None
    """Kind of media; None where it was refused."""
    pieces: list[Piece] = field(default_factory=list)
    """The units."""
    refusal: dict[str, Any] | None = None
    """Row of the `refusals` table; None for none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CutParts:
    """Parts of a block, with their rows."""

    parts: list[tuple[Kind, dict[str, Any]]]
    """Kind and JSON of each part."""
    rows: list[dict[str, Any]]
    """Rows of the `units` table."""
    refusals: list[dict[str, Any]]
    """Rows of the `refusals` table, of objects whose worker named files that are not theirs."""
    short_shots: int
    """Shots, and ends of shots, that gave no clip."""


def cut(task: CutTask, node: Node) -> Pieces:
    """Cut an object into files of `node.scratch`. Raises: Fault."""
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
    pieces = [_piece(unit, node.scratch) for unit in result.units]
    return Pieces(kind=result.kind, pieces=pieces, refusal=result.refusal)


def write_cut(block: Block[CutTask], outcomes: Sequence[Outcome[Pieces]], node: Node) -> CutParts:
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
    made = write_parts(node.open(first.root), first.txn, units, f"{block.number:05d}")
    return CutParts(
        parts=[(members[0].kind, part.to_json()) for part, members in made],
        rows=[unit_row(unit, part) for part, members in made for unit in members],
        refusals=refusals,
        short_shots=n_short_shots(units),
    )


def _piece(unit: Unit, folder: Path) -> Piece:
    files = {name: value for name, value in unit.fields.items() if isinstance(value, Path)}
    return Piece(
        files={name: file.name if file.parent == folder else str(file) for name, file in files.items()},
        values={name: value for name, value in unit.fields.items() if name not in files},
        start=unit.start,
        end=unit.end,
        metadata=dict(unit.metadata),
        groups=dict(unit.groups),
        request=unit.request,
    )


def _units(task: CutTask, folder: Path, kind: Kind, pieces: Sequence[Piece]) -> Iterator[CutUnit]:
    for piece in pieces:
        asked = [piece.request] if piece.request else []
        yield CutUnit(
            unit_id=fingerprint(task.audit["sha256"], piece.start, piece.end, task.words, *asked),
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
            source=task.source,
        )


def _is_own(folder: Path, name: str) -> bool:
    """Return whether a file was made in the unit's folder: no link, and nothing elsewhere.

    A worker that a file took over would have the part take the files that it names.
    """
    try:
        found = os.lstat(folder / name)
    except (OSError, ValueError):
        return False
    return Path(name).name == name and stat.S_ISREG(found.st_mode) and found.st_nlink == 1


def _alike(task: CutTask) -> CutTask:
    return replace(task, source={**task.source, "run_id": ""})


def _limit_s(task: CutTask) -> float:
    return task.limit_s


def _cost_s(task: CutTask) -> float:
    work = work_of(task.audit)
    pixels = max(work.pixels, (task.audit.get("width_px") or 0) * (task.audit.get("height_px") or 0))
    return 0.05 + pixels / _PIXELS_PER_S + work.values / _VALUES_PER_S


def _nbytes(task: CutTask) -> int:
    """Bytes of the units, about: those of the object, or of a video the share that its clips take of it."""
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
    result=Pieces,
    timeout_s=_limit_s,
    cost_s=_cost_s,
    alike=_alike,
    nbytes=_nbytes,
    finish=write_cut,
    part=CutParts,
    libraries=("av", "pillow", "numpy"),
)
