"""Approvals: a person lets a batch pass that the gate stopped, with a name and a reason.

An approval is a record of the stage `approval`, for the failed checks and samples with the same hash (`content` in the
verdict's body). The batch runs again; if its samples differ or another check fails, the gate stops it.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from loader.errors import Conflict, InvalidRuntime
from loader.storage import Store

from .stages import (
    VERDICTS,
    StageRecord,
    Upstream,
    append_record,
    current_record,
    existing_records,
    fingerprint,
    newest_listed,
    partitions,
)
from .units import shorten_list

if TYPE_CHECKING:
    from loader import Root

STAGE = "approval"
BEFORE_THE_GATE = ("raw_objects", "media", "units", "samples")
"""Stages before the gate, in order; a batch that stops in one has no verdict of the gate."""
CODE_VERSION = "1"
NEVER = (
    "a check that could not run; the expectations of every dataset; raw objects and subjects of a protected "
    "version; and failures before the last audit: damaged or mislabelled objects, and objects that are not accounted "
    "for"
)
"""Failures that no approval covers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoppedBatch:
    """A batch whose newest verdict is `failed`."""

    record: StageRecord
    """The verdict."""
    checks: tuple[Mapping[str, Any], ...]
    """Failed checks."""
    never: tuple[str, ...]
    """Failed checks that no approval covers."""
    approval: StageRecord | None
    """The verdict's approval, or None."""

    def to_json(self) -> dict[str, Any]:
        return {
            "dataset": self.record.dataset,
            "batch": self.record.partition,
            "record": self.record.r,
            "run_id": self.record.run_id,
            "failed": [{name: one[name] for name in ("name", "explanation")} for one in self.checks],
            "never_approvable": list(self.never),
            "approved_by": self.approval.approved_by if self.approval else "",
            "approval": self.approval.path if self.approval else "",
        }


def halted_batches(root: "Root", dataset: str, batch: str | None = None) -> list[StoppedBatch]:
    """Return the batches that the gate stopped, or only `batch`.

    Raises: InvalidRuntime without a verdict; Conflict if `batch` was not stopped; Corrupt.
    """
    known = partitions(root.store, dataset, VERDICTS)
    if not known or (batch is not None and batch not in known):
        verdicts = "the gate has judged no batch"
        if known:
            verdicts = f"verdicts exist for {shorten_list(known)}"
        datasets = ", ".join(root.datasets()) or "none"
        earlier = "".join(f". {sentence}" for sentence in stops_before_the_gate(root, dataset, batch))
        raise InvalidRuntime(
            f"there is no verdict on {dataset} {batch or ''}: {verdicts}; the datasets with versions are "
            f"{datasets}{earlier}",
            what="verdict",
            where=f"{dataset} {batch or ''}".strip(),
            given=batch,
            accepted=known,
        )
    batches = [_halted_batch(root.store, dataset, name) for name in (known if batch is None else [batch])]
    stopped = [one for one in batches if one is not None]
    if batch is not None and not stopped:
        raise Conflict(
            f"batch {batch} of {dataset} was not stopped by the gate: there is nothing to approve",
            what="batch",
            where=dataset,
            given=batch,
            accepted="a batch that the gate stopped",
        )
    return stopped


def stops_before_the_gate(root: "Root", dataset: str, batch: str | None = None) -> list[str]:
    """Return a sentence per batch, or for `batch`, that stopped in a stage before the gate. No approval covers these.

    Costs a listing per stage, and a request per stage of each batch.
    """
    sentences = []
    for stage in BEFORE_THE_GATE:
        listed = newest_listed(root.store, dataset, stage)
        if batch is not None:
            listed = {name: info for name, info in listed.items() if name == batch}
        for name, record in existing_records(root.store, listed).items():
            if record.verdict != "failed":
                continue
            sentences.append(
                f"batch {name} stopped before the gate, in {stage}: {record.reason} (run {record.run_id}). No "
                "approval covers this"
            )
    return sentences


def approve(root: "Root", dataset: str, batch: str, *, record: int, by: str, reason: str) -> StageRecord:
    """Append an approval of a verdict. record: the reviewed verdict's number.

    Raises: InvalidRuntime if name, reason or batch is missing; Conflict if the verdict is not the newest, not stopped,
    already approved, or beyond approval.
    """
    if not by.strip() or not reason.strip():
        raise InvalidRuntime(
            "an approval needs a name and a reason: both are stored in the version's manifest",
            what="by and reason",
            given=(by, reason),
        )
    (stopped,) = halted_batches(root, dataset, batch)
    # An approval is for the reviewed verdict: a newer one may name other checks.
    if stopped.record.r != record:
        raise Conflict(
            f"verdict {record} on batch {batch} of {dataset} is not the newest, which is {stopped.record.r}; review "
            f"that one first: penstock approve {dataset} {batch}",
            what="verdict",
            where=f"batch {batch} of {dataset}",
            given=record,
            accepted=stopped.record.r,
        )
    if stopped.never:
        raise Conflict(
            f"verdict {record} on batch {batch} of {dataset} cannot be approved, because of "
            f"{', '.join(stopped.never)}. No one can approve {NEVER}. Repair what it names and run the batch again",
            what="checks",
            where=f"batch {batch} of {dataset}",
            given=stopped.never,
        )
    if stopped.approval is not None:
        raise Conflict(
            f"verdict {record} on batch {batch} of {dataset} was approved by {stopped.approval.approved_by} already "
            f"({stopped.approval.path}); run the batch again, and then the release",
            what="approval",
            where=f"batch {batch} of {dataset}",
            given=stopped.approval.approved_by,
        )
    names = [str(one["name"]) for one in stopped.checks]
    verdict = stopped.record
    return append_record(
        root.store,
        StageRecord(
            dataset=dataset,
            stage=STAGE,
            partition=batch,
            verdict="published",
            reason=reason.strip(),
            approved_by=by.strip(),
            run_id=verdict.run_id,
            code_version=CODE_VERSION,
            fingerprint=fingerprint(verdict.r, verdict.body["content"], names),
            upstream=(Upstream(stage=VERDICTS, partition=batch, r=verdict.r),),
            counts={"checks": len(names)},
            body={"content": verdict.body["content"], "checks": names, "overridden": verdict.reason},
        ),
    )


def stops(check: Mapping[str, Any]) -> bool:
    """Return whether a check failed that does more than warn."""
    return check["passed"] is not True and check["severity"] != "warn"


def beyond_approval(verdict: StageRecord) -> list[str]:
    """Return what no person can approve in a failed verdict: names of checks, or a missing hash of the samples."""
    failed = [check for check in verdict.body["checks"] if stops(check)]
    # Without the key the check is not approvable: verdicts of earlier releases lack it.
    never = [str(check["name"]) for check in failed if check.get("approvable", False) is not True]
    if not verdict.body.get("content"):
        # Written by a release without approvals, or the samples could not be hashed.
        never.append("a verdict without the hash of its samples")
    return never


def covering_approval(
    store: Store, dataset: str, batch: str, content: str, failed: Collection[str]
) -> StageRecord | None:
    """Return a batch's newest approval if it covers this content and all failed checks, else None."""
    record = current_record(store, dataset, STAGE, batch)
    if record is None or record.verdict != "published" or record.body["content"] != content:
        return None
    # A check that first fails when the batch runs again was never reviewed.
    if not set(failed) <= set(record.body["checks"]):
        return None
    return record


def _halted_batch(store: Store, dataset: str, batch: str) -> StoppedBatch | None:
    verdict = current_record(store, dataset, VERDICTS, batch)
    if verdict is None or verdict.verdict == "published":
        return None
    failed = tuple(one for one in verdict.body["checks"] if stops(one))
    names = [str(one["name"]) for one in failed]
    approval = covering_approval(store, dataset, batch, str(verdict.body.get("content", "")), names)
    return StoppedBatch(
        record=verdict, checks=failed, never=tuple(beyond_approval(verdict)), approval=approval
    )
