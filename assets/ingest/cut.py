"""Raw objects of a batch cut by workers, each compared with its source: units whose bytes wait in scratch files."""

import os
import stat
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loader.errors import StoreError
from loader.storage import Store
from penstock.compute.pool import Compute, Progress
from penstock.compute.pool.store_variables import store_variables
from penstock.stages import fingerprint

from ..media.cut_audit.findings import STAGE as CUT_AUDIT
from ..media.cutters import ALL_KINDS
from ..media.objects import CutRequest, CutResult, cut_object, refusal_row, stores_of
from ..media.policy import CutPolicy
from ..media.unit import Kind, Unit, dropped, rejected
from ..spec import DatasetSpec
from .clip_staging import StagingOf, segments_of
from .time_limits import Tell, limits_decoded, log

Row = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class CutUnit:
    """One unit whose bytes wait in scratch files."""

    key: str
    """Key of the sample."""
    unit_id: str
    """Id of the unit."""
    kind: Kind
    """Kind of media."""
    unit: Unit
    """The unit."""
    raw: Mapping[str, Any]
    """Row of the landed object."""
    audit: Mapping[str, Any]
    """Media row of the unit."""


def cut_objects(
    landing: Store,
    compute: Compute,
    spec: DatasetSpec,
    audits: Sequence[Row],
    raws: Mapping[str, Row],
    scratch: Path,
    published: Mapping[str, str],
    progress: Progress | None = None,
    waiting: StagingOf | None = None,
    tell: Tell = log.info,
) -> tuple[list[CutUnit], list[Row]]:
    """Return (units, refusal rows), in landing order. published: sha256 -> where these bytes are in the dataset.

    waiting: places of clips that the audit made; tell: of objects whose time limit is above the dataset's.

    Raises: StoreError when this machine has no room, or the store does not answer.
    """
    refusals: list[Row] = []
    wanted: list[Row] = []
    for row in audits:
        if row["sha256"] in published:
            twice = dropped("dedup", "duplicate", f"the same bytes as {published[row['sha256']]}")
            refusals.append(refusal_row(row["key"], row["sha256"], twice))
        else:
            wanted.append(row)
    work = [
        CutRequest(
            store=landing,
            key=row["key"],
            sha256=row["sha256"],
            mime=row["mime"],
            scratch=str(scratch / f"{position:06d}"),
            policy=spec.policy,
            kinds=ALL_KINDS,
            audit=row,
            segments=segments_of(raws[row["key"]]),
            staging=None if waiting is None else waiting(row["sha256"], segments_of(raws[row["key"]])),
        )
        for position, row in enumerate(wanted)
    ]
    units: list[CutUnit] = []
    limits = limits_decoded(wanted, spec, tell)
    outcomes = compute.map(
        cut_object,
        work,
        timeout_s=[limit.seconds for limit in limits],
        progress=progress,
        variables=store_variables(*stores_of(work)),
    )
    for request, row, limit, outcome in zip(work, wanted, limits, outcomes, strict=True):
        result = outcome.value
        if result is not None and not _are_own(result.units, Path(request.scratch)):
            foreign = rejected("cut", "foreign_file", "its worker named a file that it did not make itself")
            result = CutResult(key=row["key"], refusal=refusal_row(row["key"], row["sha256"], foreign))
        if result is None:
            error = outcome.error
            code, reason = (error.code, limit.reason(error)) if error else ("exception", "")
            result = CutResult(
                key=row["key"], refusal=refusal_row(row["key"], row["sha256"], rejected("cut", code, reason))
            )
        if result.fault:
            raise StoreError(f"{row['key']!r} could not be cut: {result.fault}")
        if result.refusal is not None:
            refusals.append(result.refusal)
        elif result.kind is not None:
            units += _named(result.kind, result.units, raws[row["key"]], row, spec.policy)
    return units, refusals


def _are_own(units: Sequence[Unit], scratch: Path) -> bool:
    """Return whether every file of the units was made in the worker's folder: no link, and nothing elsewhere.

    A worker that a file took over would have this process read the files that it names.
    """
    files = [value for unit in units for value in unit.fields.values() if isinstance(value, Path)]
    return all(file.parent == scratch and _is_plain(file) for file in files)


def _is_plain(file: Path) -> bool:
    try:
        found = os.lstat(file)
    except OSError:
        return False
    return stat.S_ISREG(found.st_mode) and found.st_nlink == 1


def _named(kind: Kind, units: Sequence[Unit], raw: Row, audit: Row, policy: CutPolicy) -> Iterator[CutUnit]:
    for unit in units:
        asked = [unit.request] if unit.request else []
        unit_id = fingerprint(raw["sha256"], unit.start, unit.end, _plain(policy, kind), *asked)
        yield CutUnit(
            key=f"{kind}/{unit_id[:20]}", unit_id=unit_id, kind=kind, unit=unit, raw=raw, audit=audit
        )


def n_short_shots(units: Sequence[CutUnit]) -> int:
    """Count shots, and ends of shots, that gave no clip because they are too short, over all videos of these units."""
    by_object = {unit.raw["key"]: unit.unit.fields.get("json", {}) for unit in units if unit.kind == "video"}
    return sum(int(facts.get("n_short_shots", 0)) for facts in by_object.values())


def untrue_reason(refusals: Sequence[Row], n_objects: int, max_untrue_rate: float) -> str:
    """Return why a batch stops of which these objects were refused, or "".

    An object that differs from its source after the cut is left out in any case. Many of them are a mistake of ours, or
    of a library.
    """
    untrue = [row for row in refusals if row["stage"] == CUT_AUDIT]
    if len(untrue) <= max_untrue_rate * n_objects:
        return ""
    names = ", ".join(f"{name} ({n})" for name, n in sorted(Counter(row["code"] for row in untrue).items()))
    return (
        f"{len(untrue)} of {n_objects} objects came out of the cut as something else than their source: {names}; "
        f"allowed are {max_untrue_rate:.1%}. First: {untrue[0]['key']!r}: {untrue[0]['reason']}"
    )


def policy_fingerprint(policy: CutPolicy) -> str:
    """Return the sha256 hex of a policy."""
    return fingerprint([_plain(policy, kind) for kind in ALL_KINDS])


def _plain(policy: CutPolicy, kind: Kind) -> dict[str, str]:
    return {name: str(value) for name, value in policy.of(kind).items()}
