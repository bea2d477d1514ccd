"""The work AUDIT: a node probes and decodes a raw object, or reads its samples. Also the staging of clips."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from loader.storage import Store
from loader.storage.disk.unlisted_files import delete_in_place, list_in_place
from penstock.compute.work import Fault, Node, Work
from penstock.stages import check_partition, fingerprint

from ..media.cutters import ALL_KINDS, ClipStaging
from ..media.objects import AuditRequest, audit_object, refusal_row
from ..media.policy import CutPolicy
from ..media.segments import Segment
from ..media.unit import Unusable


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleFormat:
    """A format whose raw objects contain samples."""

    name: str
    choices: dict[str, Any]
    """Reader options, in the form of `ColumnarOptions.to_json`."""
    audit_id: str
    """Random id of a batch's audit. A process lists the source once for each id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditTask:
    """One raw object to audit."""

    landing: str
    """URL of the object's store."""
    root: str
    """URL of the store for staged clips."""
    raw: dict[str, Any]
    """Row of `raw_objects`."""
    policy: CutPolicy
    """Policy of the clips that the audit encodes."""
    staging: str
    """Key of the staged clips, or ""."""
    cost_s: float
    """Estimated seconds."""
    limit_s: float
    """Time limit in seconds."""
    format: SampleFormat | None = None
    """Format of the samples; None for media."""


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
    if task.format is not None:
        return _audit_samples(task.format, raw, node.open(task.landing))
    staging = None
    if task.staging:
        staging = ClipStaging(store=node.open(task.root), key=task.staging)
    request = AuditRequest(
        store=node.open(task.landing),
        key=raw["key"],
        sha256=raw["sha256"],
        mime=raw["mime"],
        scratch=str(node.scratch),
        kinds=ALL_KINDS,
        policy=task.policy,
        segments=source_segments(raw),
        staging=staging,
    )
    result = audit_object(request)
    if result.fault:
        raise Fault(
            f"{raw['key']!r} could not be audited: {result.fault}",
            what="audit",
            where=raw["key"],
            given=result.fault,
        )
    return Audited(row=result.row, refusal=result.refusal)


def _audit_samples(
    format: SampleFormat,
    raw: dict[str, Any],
    landing: Store,
) -> Audited:
    from .formats.read_work import audit_samples  # media do not need these modules

    try:
        row = audit_samples(landing, raw, format.name, format.choices, format.audit_id)
    except Unusable as unusable:
        refusal = refusal_row(raw["key"], raw["sha256"], unusable)
        return Audited(refusal=refusal)
    return Audited(row=row)


def _alike(task: AuditTask) -> AuditTask:
    """Return the task as any run has it, so that a repeated run finds the results of the last one."""
    if task.format is None:
        return task
    # This id is random in each run.
    return replace(task, format=replace(task.format, audit_id=""))


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


def source_segments(raw: Mapping[str, Any]) -> tuple[Segment, ...]:
    """Return the segments that the source gives for a raw object. raw: its row of `raw_objects`."""
    segments = list[Segment]()
    for plain in raw.get("segments") or ():
        segments.append(Segment(**plain))
    return tuple(segments)


_VERSION = "1"
"""Version of staged clips; others are not used."""
_NAME_CHARS = 32


class StagedClips:
    """Keys of a batch's staged clips. The audit encodes them, because it decodes all frames, and the cut uses them."""

    def __init__(
        self,
        dataset: str,
        partition: str,
        policy: CutPolicy,
    ) -> None:
        self._folder = _folder(dataset, partition)
        self._settings: dict[str, str] = {}
        for setting, value in policy.of("video").items():
            self._settings[setting] = str(value)  # no floats in a fingerprint

    def key(self, raw: Mapping[str, Any]) -> str:
        """Return the key prefix of an object's clips, derived from all that decides their bytes."""
        segment_texts = [repr(segment) for segment in source_segments(raw)]
        digest = fingerprint(_VERSION, raw["sha256"], self._settings, segment_texts)
        name = digest[:_NAME_CHARS]
        return f"{self._folder}{name}"


def clear_staging(store: Store, dataset: str, partition: str) -> None:
    """Delete a batch's staged clips."""
    folder = _folder(dataset, partition)
    keys = list[str]()
    for info, is_link in list_in_place(store, folder):
        if not is_link:
            keys.append(info.key)
    delete_in_place(store, keys)


def _folder(dataset: str, partition: str) -> str:
    return f"tables/{dataset}/clips_ahead/{check_partition(partition)}/"
