"""The work AUDIT: a node reads a raw object, then probes and decodes it to its end, or reads its samples."""

from dataclasses import dataclass, replace
from typing import Any

from penstock.compute.work import Fault, Node, Work

from ..media.cutters import ALL_KINDS
from ..media.known_facts import ClipStaging
from ..media.objects import AuditRequest, audit_object, refusal_row
from ..media.policy import CutPolicy
from ..media.unit import Unusable
from .clip_staging import segments_of


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleFormat:
    """A format whose raw objects hold samples."""

    name: str
    """Name of the format."""
    choices: dict[str, Any]
    """Reader options, as `Options.to_json`."""
    batch: str
    """Differs between two audits: each lists a source once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditTask:
    """A raw object to audit."""

    landing: str
    """URL of its store."""
    root: str
    """URL of the store for clips made on the way."""
    raw: dict[str, Any]
    """Row of `raw_objects`."""
    policy: CutPolicy
    """For clips made on the way."""
    staging: str
    """Key of those clips in the root; "": make none."""
    cost_s: float
    """Estimate."""
    limit_s: float
    """Time limit."""
    format: SampleFormat | None = None
    """None for media."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Audited:
    """Result of an audit: exactly one field is set."""

    row: dict[str, Any] | None = None
    """Row of `media`."""
    refusal: dict[str, Any] | None = None
    """Row of `refusals`."""


def audit(task: AuditTask, node: Node) -> Audited:
    """Audit an object. Raises: Fault."""
    raw = task.raw
    if (of := task.format) is not None:
        from .formats.read_place import audit_samples  # media do without these modules

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
