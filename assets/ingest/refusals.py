"""Refusals of a batch's objects, and the limits above which they stop it. A copy is refused like its original."""

from collections.abc import Mapping, Sequence
from typing import Any

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
"""(outcome, field of the spec, description of such objects)"""


def refusal_of_copy(row: Mapping[str, Any], of: str, refusals: Mapping[str, Row]) -> Row:
    """Return the refusal of an object with the same bytes as the object `of`: inherited, or as its duplicate.

    refusals: key -> refusal, of the audited objects.
    """
    if (verdict := refusals.get(of)) is None:
        return refusal_row(
            row["key"], row["sha256"], dropped("dedup", DUPLICATE, f"the same bytes as {of!r}")
        )
    return _inherited(row["key"], verdict)


def refusals_of_copies(before: Sequence[Row], refusals: Sequence[Row]) -> list[Row]:
    """Return the refusals that copies inherit from a later stage.

    before: the earlier stage's refusals, with the copies; refusals: the later stage's.
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
    """Count objects by outcome: rejected (damaged), not supported, not media, and dropped (intact, not wanted)."""
    return {outcome: sum(1 for row in refusals if row["outcome"] == outcome) for outcome in OUTCOMES}


def stop_reason(refusals: Sequence[Row], n_landed: int, spec: DatasetSpec) -> str:
    """Return why these refusals stop a batch, or ""."""
    reasons = []
    for outcome, name, words in _LIMITS:
        rows, rate = [row for row in refusals if row["outcome"] == outcome], getattr(spec, name)
        if len(rows) <= rate * n_landed:
            continue
        named = "; ".join(f"{row['key']!r} ({row['code']}: {row['reason']})" for row in rows[:3])
        more = f"; and {len(rows) - 3} more" if len(rows) > 3 else ""
        reasons.append(
            f"{len(rows)} of {n_landed} objects are {words}, allowed are {rate:.1%}: {named}{more}"
        )
    return ". ".join(reasons)


def rates(spec: DatasetSpec) -> list[str]:
    """Return the limits, for fingerprints."""
    return [str(getattr(spec, name)) for _, name, _ in _LIMITS]
