"""Limits of a batch: the shares of refused objects above which it stops."""

from collections.abc import Sequence
from typing import Any

from ..spec import DatasetSpec

Row = dict[str, Any]

_LIMITS = (
    ("rejected", "max_reject_rate", "unreadable"),
    ("not_media", "max_not_media_rate", "not media"),
    ("not_supported", "max_unsupported_rate", "of unsupported formats"),
)
"""(outcome, field of the spec, description of such objects)."""

_EXAMPLES = 3
"""Most objects that a reason names."""


def stop_reason(
    refusals: Sequence[Row],
    n_landed: int,
    spec: DatasetSpec,
) -> str:
    """Return why these refusals stop a batch, or ""."""
    reasons = list[str]()
    for outcome, name, description in _LIMITS:
        rows = [row for row in refusals if row["outcome"] == outcome]
        max_rate = getattr(spec, name)  # share of the landed objects
        if len(rows) <= max_rate * n_landed:
            continue
        examples = _examples(rows)
        reasons.append(
            f"{len(rows)} of {n_landed} objects are {description}; the limit is {max_rate:.1%} ({name}): {examples}"
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


def limit_texts(spec: DatasetSpec) -> list[str]:
    """Return the limits as strings, for fingerprints."""
    texts = list[str]()
    for _, name, _ in _LIMITS:
        max_rate = getattr(spec, name)
        texts.append(str(max_rate))  # fingerprints take no floats
    return texts
