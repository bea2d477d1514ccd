"""Refusals of a batch's objects: duplicates inherit them, stage records count them."""

from collections.abc import Mapping, Sequence
from typing import Any

from ..media.objects import refusal_row
from ..media.unit import OUTCOMES, dropped

DUPLICATE = "duplicate"
"""Code of the refusal of an object whose bytes another object has."""
_REASON_CHARS = 500

Row = dict[str, Any]


def refusal_of_duplicate(
    row: Mapping[str, Any],
    original_key: str,
    refusals: Mapping[str, Row],
) -> Row:
    """Return the refusal of an object with the bytes of another, the original.

    A refused original passes its refusal on. Otherwise the object is refused as a duplicate.

    refusals: key -> refusal, for the audited objects.
    """
    original_refusal = refusals.get(original_key)
    if original_refusal is not None:
        return _inherit(row["key"], original_refusal)
    duplicate = dropped("dedup", DUPLICATE, f"the same bytes as {original_key!r}")
    return refusal_row(row["key"], row["sha256"], duplicate)


def inherited_refusals(
    earlier_refusals: Sequence[Row],
    later_refusals: Sequence[Row],
) -> list[Row]:
    """Return the refusals that duplicates inherit if a later stage refuses their original.

    earlier_refusals: of the stage that found the duplicates. later_refusals: of the later stage.
    """
    original_refusals: dict[str, Row] = {}  # SHA-256 -> refusal of the original
    for row in later_refusals:
        if row["code"] != DUPLICATE:
            original_refusals[row["sha256"]] = row
    inherited = list[Row]()
    for row in earlier_refusals:
        if row["code"] != DUPLICATE:
            continue
        original_refusal = original_refusals.get(row["sha256"])
        if original_refusal is not None:
            inherited.append(_inherit(row["key"], original_refusal))
    return inherited


def _inherit(key: str, original_refusal: Row) -> Row:
    original_key = original_refusal["key"]
    original_reason = original_refusal["reason"]
    reason = f"the same bytes as {original_key!r}: {original_reason}"
    row = dict(original_refusal)
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
