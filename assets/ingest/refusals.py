"""Refused objects of a batch, and the limits above which they stop it. A copy has the verdict of what it copies."""

from collections.abc import Mapping, Sequence
from typing import Any

from ..media.objects import refusal_row
from ..media.unit import OUTCOMES, dropped
from ..spec import DatasetSpec

DUPLICATE = "duplicate"
Row = dict[str, Any]

_LIMITS = (
    ("rejected", "max_reject_rate", "unreadable"),
    ("not_media", "max_not_media_rate", "no media"),
    ("not_supported", "max_unsupported_rate", "of formats that are not supported"),
)
"""(outcome, field of the spec, what such objects are)"""


def refusal_of_copy(row: Mapping[str, Any], of: str, refusals: Mapping[str, Row]) -> Row:
    """Return the refusal of an object with the same bytes as the object `of`: its own, or that it is a duplicate.

    refusals: key -> refusal of every object that was looked at.
    """
    if (verdict := refusals.get(of)) is None:
        return refusal_row(
            row["key"], row["sha256"], dropped("dedup", DUPLICATE, f"the same bytes as {of!r}")
        )
    return _inherited(row["key"], verdict)


def refusals_of_copies(before: Sequence[Row], refusals: Sequence[Row]) -> list[Row]:
    """Return the refusals, by a later stage, of the objects that an earlier one dropped as copies of these.

    before: refusals by the earlier stage; refusals: those by the later one.
    """
    verdicts = {row["sha256"]: row for row in refusals if row["code"] != DUPLICATE}
    copies = [row for row in before if row["code"] == DUPLICATE and row["sha256"] in verdicts]
    return [_inherited(row["key"], verdicts[row["sha256"]]) for row in copies]


def _inherited(key: str, verdict: Row) -> Row:
    return {
        **verdict,
        "key": key,
        "reason": f"the same bytes as {verdict['key']!r}: {verdict['reason']}"[:500],
    }


def refusal_counts(refusals: Sequence[Row]) -> dict[str, int]:
    """Count objects by outcome: rejected (damaged), not supported, not media, and dropped (sound, not wanted)."""
    return {outcome: sum(1 for row in refusals if row["outcome"] == outcome) for outcome in OUTCOMES}


def stop_reason(refusals: Sequence[Row], n_landed: int, spec: DatasetSpec) -> str:
    """Return why a batch with these refusals is stopped, or "" when it is not."""
    reasons = []
    for outcome, name, words in _LIMITS:
        some, rate = [row for row in refusals if row["outcome"] == outcome], getattr(spec, name)
        if len(some) <= rate * n_landed:
            continue
        named = "; ".join(f"{row['key']!r} ({row['code']}: {row['reason']})" for row in some[:3])
        more = f"; and {len(some) - 3} more" if len(some) > 3 else ""
        reasons.append(
            f"{len(some)} of {n_landed} objects are {words}, allowed are {rate:.1%}: {named}{more}"
        )
    return ". ".join(reasons)


def rates(spec: DatasetSpec) -> list[str]:
    """Return the limits, for fingerprints."""
    return [str(getattr(spec, name)) for _, name, _ in _LIMITS]
