"""Limits of a batch: refusals that stop it, and each object's time limit."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from loader.storage import Store
from penstock.compute.pool import Compute, Failure
from penstock.compute.pool.environment import store_variables

from ..media.decode_time import DecodeWork, declared_work, work_of
from ..media.objects import refusal_row
from ..media.unit import OUTCOMES, dropped
from ..spec import DatasetSpec

DUPLICATE = "duplicate"
Row = dict[str, Any]

_LIMITS = (
    ("rejected", "max_reject_rate", "unreadable"),
    ("not_media", "max_not_media_rate", "not media"),
    ("not_supported", "max_unsupported_rate", "of unsupported formats"),
)
"""(outcome, field of the spec, description of such objects)."""

_EXAMPLES = 3
"""Most objects that a reason names."""
_REASON_CHARS = 500


def refusal_of_copy(
    row: Mapping[str, Any],
    of: str,
    refusals: Mapping[str, Row],
) -> Row:
    """Return the refusal of an object with the bytes of `of`: the inherited one, or one as a duplicate.

    refusals: key -> refusal, for the audited objects.
    """
    verdict = refusals.get(of)
    if verdict is not None:
        return _inherited(row["key"], verdict)
    duplicate = dropped("dedup", DUPLICATE, f"the same bytes as {of!r}")
    return refusal_row(row["key"], row["sha256"], duplicate)


def refusals_of_copies(
    before: Sequence[Row],
    refusals: Sequence[Row],
) -> list[Row]:
    """Return the refusals that duplicates inherit from a later stage.

    before: the earlier stage's refusals, including duplicates. refusals: the later stage's.
    """
    verdicts: dict[str, Row] = {}  # SHA-256 -> refusal of the object that the duplicates copy
    for row in refusals:
        if row["code"] != DUPLICATE:
            verdicts[row["sha256"]] = row
    inherited = list[Row]()
    for row in before:
        verdict = verdicts.get(row["sha256"])
        if row["code"] == DUPLICATE and verdict is not None:
            inherited.append(_inherited(row["key"], verdict))
    return inherited


def _inherited(key: str, verdict: Row) -> Row:
    reason = f"the same bytes as {verdict['key']!r}: {verdict['reason']}"
    row = dict(verdict)
    row["key"] = key
    row["reason"] = reason[:_REASON_CHARS]
    return row


def refusal_counts(refusals: Sequence[Row]) -> dict[str, int]:
    """Count objects by outcome: rejected (damaged), not supported, not media, dropped (intact but unwanted)."""
    counts: dict[str, int] = dict.fromkeys(OUTCOMES, 0)
    for row in refusals:
        outcome = row["outcome"]
        if outcome in counts:  # a release with other outcomes may have stored the row
            counts[outcome] += 1
    return counts


def stop_reason(
    refusals: Sequence[Row],
    n_landed: int,
    spec: DatasetSpec,
) -> str:
    """Return why these refusals stop a batch, or ""."""
    reasons = list[str]()
    for outcome, name, description in _LIMITS:
        rows = [row for row in refusals if row["outcome"] == outcome]
        rate = getattr(spec, name)  # share of the landed objects
        if len(rows) <= rate * n_landed:
            continue
        examples = _examples(rows)
        reasons.append(
            f"{len(rows)} of {n_landed} objects are {description}, allowed are {rate:.1%} ({name}): {examples}"
        )
    if not reasons:
        return ""
    all_reasons = ". ".join(reasons)
    return f"{all_reasons}. Repair or move these objects, or raise the limit in the dataset's DatasetSpec"


def _examples(rows: Sequence[Row]) -> str:
    examples = list[str]()
    for row in rows[:_EXAMPLES]:
        examples.append(f"{row['key']!r} ({row['code']}: {row['reason']})")
    n_others = len(rows) - len(examples)
    if n_others > 0:
        examples.append(f"and {n_others} more")
    return "; ".join(examples)


def rates(spec: DatasetSpec) -> list[str]:
    """Return the limits as strings, for fingerprints."""
    texts = list[str]()
    for _, name, _ in _LIMITS:
        rate = getattr(spec, name)
        texts.append(str(rate))  # fingerprints take no floats
    return texts


Tell = Callable[[str], object]
log = logging.getLogger(__name__)

_PROBE_S = 60.0
"""Time limit for reading a container's length, in s."""

_WORTH_LOGGING = 1.5
"""Multiple of `work_timeout_s` above which a limit is logged."""

_TIMED = ("audio/", "video/")


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeLimit:
    """Time limit of one object."""

    seconds: float
    work: DecodeWork | None = None
    """Estimated work; None if unknown."""

    def reason(self, failure: Failure) -> str:
        """Return why an object with this failure has no result."""
        if failure.code != "timeout" or self.work is None:
            return failure.summary
        return (
            f"{failure.summary}, decoding {self.work}; raise work_timeout_s of its DatasetSpec, or "
            "max_work_timeout_s, if the object is intact and the machine slow"
        )


def limits_probed(
    landing: Store,
    compute: Compute,
    rows: Sequence[Mapping[str, Any]],
    spec: DatasetSpec,
    tell: Tell,
) -> list[TimeLimit]:
    """Return the limits of objects that are not decoded yet, from their containers. rows: have key and mime."""
    timed_keys = [row["key"] for row in rows if row["mime"].startswith(_TIMED)]
    # In workers, because a damaged container can kill or block its reader.
    outcomes = compute.map(
        declared_work,
        [(landing, key) for key in timed_keys],
        timeout_s=min(_PROBE_S, spec.work_timeout_s),
        variables=store_variables(landing),
    )
    works: dict[str, DecodeWork] = {}  # by key
    for key, outcome in zip(timed_keys, outcomes, strict=True):
        if outcome.value is None:  # the audit finds out what is wrong with the object
            continue
        duration_s, pixels, values = outcome.value
        works[key] = DecodeWork(duration_s=duration_s, pixels=pixels, values=values)
    limits = list[TimeLimit]()
    for row in rows:
        work = works.get(row["key"])
        limits.append(_limit(row["key"], work, spec, tell))
    return limits


def limits_decoded(
    rows: Sequence[Mapping[str, Any]],
    spec: DatasetSpec,
    tell: Tell,
) -> list[TimeLimit]:
    """Return the limits of objects, from their media rows."""
    limits = list[TimeLimit]()
    for row in rows:
        work = None
        if row["kind"] in ("audio", "video"):
            work = work_of(row)
        limits.append(_limit(row["key"], work, spec, tell))
    return limits


def _limit(
    key: str,
    work: DecodeWork | None,
    spec: DatasetSpec,
    tell: Tell,
) -> TimeLimit:
    usual_s = spec.work_timeout_s
    if work is None:
        return TimeLimit(seconds=usual_s)
    seconds = work.limit_s(usual_s, spec.max_work_timeout_s)
    if seconds > _WORTH_LOGGING * usual_s:
        tell(f"{key!r}: decoding {work}, limit {seconds:,.0f} s")
    return TimeLimit(seconds=seconds, work=work)
