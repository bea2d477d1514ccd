"""The audit as a work: a node reads a raw object from its store, and probes and decodes it to its end.

Of other formats than media it walks or reads the samples.
"""

from dataclasses import dataclass, replace
from typing import Any

from penstock.compute.work import Fault, Node, Work

from ..media.cutters import ALL_KINDS, ClipStaging
from ..media.objects import AuditRequest, audit_object, refusal_row
from ..media.policy import CutPolicy
from ..media.unit import Unusable
from .clip_staging import segments_of


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleFormat:
    """Format of raw objects that hold samples."""

    name: str
    """Name of the format."""
    choices: dict[str, Any]
    """Choices of its reader, as `Options.to_json`."""
    batch: str
    """Text that differs between two audits: a place is listed once for each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditTask:
    """A raw object to audit."""

    landing: str
    """URL of its store."""
    root: str
    """URL of the store that takes clips made on the way."""
    raw: dict[str, Any]
    """Row of the landed object."""
    policy: CutPolicy
    """Cut policy, for clips that are made on the way."""
    staging: str
    """Key of these clips in the root; "" for nowhere."""
    cost_s: float
    """Seconds that it takes about."""
    limit_s: float
    """Seconds that it may take."""
    format: SampleFormat | None = None
    """Format whose samples it holds; None for media."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Audited:
    """Result of an audit: exactly one of both."""

    row: dict[str, Any] | None = None
    """Row of the `media` table; None for none."""
    refusal: dict[str, Any] | None = None
    """Row of the `refusals` table; None for none."""


def audit(task: AuditTask, node: Node) -> Audited:
    """Audit an object. Raises: Fault."""
    raw = task.raw
    if (of := task.format) is not None:
        from .formats.audited_samples import audit_samples  # of modules that media do without

        try:
            row = audit_samples(node.open(task.landing), raw, of.name, of.choices, of.batch)
            return Audited(row=row)
        except Unusable as unusable:
            return Audited(refusal=refusal_row(raw["key"], raw["sha256"], unusable))
    staging = ClipStaging(store=node.open(task.root), key=task.staging) if task.staging else None
    request = AuditRequest(
        store=node.open(task.landing),
        key=raw["key"],
        sha256=raw["sha256"],
        mime=raw["mime"],
        scratch=str(node.scratch),
        kinds=ALL_KINDS,
        policy=task.policy,
        segments=segments_of(raw),
        staging=staging,
    )
    result = audit_object(request)
    if result.fault:
        raise Fault(f"{raw['key']!r} could not be audited: {result.fault}")
    return Audited(row=result.row, refusal=result.refusal)


def _alike(task: AuditTask) -> AuditTask:
    return replace(task, format=replace(task.format, batch="")) if task.format else task


def _limit_s(task: AuditTask) -> float:
    return task.limit_s


def _cost_s(task: AuditTask) -> float:
    return task.cost_s


AUDIT = Work(
    name="audit",
    version="1",
    function=audit,
    unit=AuditTask,
    result=Audited,
    timeout_s=_limit_s,
    cost_s=_cost_s,
    alike=_alike,
    libraries=("av", "pillow", "numpy"),
)
