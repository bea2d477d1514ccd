"""The thresholds in a dataset's spec, measured differences, and the findings that stop a batch."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

from ..checks.outcome import CheckResult
from ..pages.report import markdown_table

CHECK_TEXTS = {
    "drift": "Compares columns, media, outcomes and counts of the batch with the batches of the baseline version.",
    "agreement": "Compares samples with their media, texts with their objects, and features with the newest batch.",
    "splits": "Compares the splits of raw objects and subjects with the newest version: none is in two splits.",
    "protected": "Compares the samples with the protected versions, which must stay unseen.",
}
"""Check of the drift gate (`compare`) -> description."""
CHECK_NAMES = tuple(CHECK_TEXTS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """Smallest differences that matter: shares of raw objects or samples, 0 to 1, unless stated otherwise.

    Raises: ValueError if a value is out of range.
    """

    alpha: float = 1e-3
    """Probability that chance stops a normal batch, over all of its comparisons."""
    min_batches: int = 3
    """Published batches needed to show what is usual. With fewer, statistical findings are warnings."""
    share: float = 0.1
    """Change in a category's share."""
    missing: float = 0.005
    """Change in a column's share of nulls and NaNs."""
    zeros: float = 0.005
    """Change in a column's share of exact zeros."""
    level: float = 0.2
    """Change in a column's mean, in standard deviations."""
    ks: float = 0.1
    """Kolmogorov-Smirnov distance of a column's distribution."""
    psi: float = 0.2
    """Population stability index of a column's distribution."""
    units_ratio: float = 0.95
    """Samples per used object, as a ratio to the baseline's, 0 to 1."""
    rejected: float = 0.02
    """Change in the share of landed objects that are rejected."""
    unused: float = 0.05
    """Change in the share of landed objects that are not used."""
    batch_ratio: float | None = None
    """Samples of a batch as a ratio to the median batch, 0 to 1; for feeds whose deliveries have one size."""
    caption: float = 0.1
    """Drop in the share of captions that fit their object, or in the correlation of their lengths."""
    near_bits: int = 8
    """Differing bits of 64, 0 to 16, within which a perceptual hash matches a protected version's."""
    ignore: frozenset[str] = frozenset()
    """Columns to leave out of the comparison."""
    within: tuple[str, ...] = ("source",)
    """Columns whose values are also compared one by one."""

    def __post_init__(self) -> None:
        for name in (
            "alpha",
            "share",
            "missing",
            "zeros",
            "level",
            "ks",
            "psi",
            "rejected",
            "unused",
            "caption",
        ):
            if not 0 < getattr(self, name) <= 1:
                raise ValueError(f"{name}={getattr(self, name)}; accepted: above 0, at most 1")
        for name in ("units_ratio", "batch_ratio"):
            value = getattr(self, name)
            if value is not None and not 0 < value < 1:
                raise ValueError(f"{name}={value}; accepted: between 0 and 1, e.g. 0.95")
        if not 1 <= self.min_batches < math.inf or not 0 <= self.near_bits <= 16:
            raise ValueError(
                f"min_batches={self.min_batches}, near_bits={self.near_bits}; accepted: 1 or more, and 0 to 16"
            )

    def to_json(self) -> dict[str, Any]:
        """Return JSON without floats, for fingerprints."""
        plain = {one.name: getattr(self, one.name) for one in fields(self)}
        return {name: sorted(v) if isinstance(v, frozenset) else repr(v) for name, v in plain.items()}


UNUSUAL = 1e-3
"""Probability that a batch of a varying feed is outside its usual range."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DriftFinding:
    """One relevant difference from the baseline."""

    what: str
    """Kind of the finding, such as "distribution"."""
    column: str
    """Name of the column."""
    of: str = ""
    """Samples concerned, such as "audio"; "" for all."""
    before: str = ""
    """The baseline's value, as text."""
    now: str = ""
    """The batch's value, as text."""
    effect: float = 0.0
    """Size of the difference."""
    limit: float = 0.0
    """Allowed size."""
    certain: bool = False
    """True if the finding needs no statistics."""
    keys: tuple[str, ...] = ()
    """A few samples or objects that show the difference."""

    @property
    def sentence(self) -> str:
        """The finding as a human-readable sentence."""
        where = f" of {self.of}" if self.of else ""
        return f"{self.what}: {self.column}{where}: {self.before or 'none'} before, {self.now or 'none'} now"

    def to_json(self) -> dict[str, Any]:
        """Return JSON without floats."""
        facts = {name: getattr(self, name) for name in ("what", "column", "of", "before", "now", "certain")}
        return facts | {"effect": repr(self.effect), "limit": repr(self.limit), "keys": list(self.keys)}


@dataclass(frozen=True, slots=True, kw_only=True)
class EffectSize:
    """A measured difference, and the sizes that chance explains."""

    effect: float
    """Size of the difference."""
    chance: float
    """Root mean square of the difference if both sides are draws of one distribution."""
    noise: float
    """Largest size by chance, at the significance level of this comparison."""


UNKNOWN = EffectSize(effect=0.0, chance=1.0, noise=1.0)
"""The difference if there is nothing to compare: chance explains it."""


def stands_out(difference: EffectSize, limit: float, others: Callable[[], Sequence[EffectSize]]) -> bool:
    """Return whether a difference is relevant, significant and unusual.

    others: returns each baseline batch's difference from the rest; called only if the first two hold. Their spread
    beyond chance is the feed's own, s (moment estimate, DerSimonian and Laird 1986), used if Cochran's Q is significant
    at 5 %. A batch is unusual beyond noise and t s sqrt(1 + 1/n) combined, where t is Student's quantile for n batches.
    """
    if difference.effect <= max(limit, difference.noise):
        return False
    from scipy.stats import chi2, t

    spreads = list(others())
    if not spreads or sum((one.effect / (one.chance or 1e-12)) ** 2 for one in spreads) < chi2.isf(
        0.05, len(spreads)
    ):
        return True  # the batches differ from each other only by chance
    beyond = sum(other.effect**2 - other.chance**2 for other in spreads) / len(spreads)
    wide = float(t.isf(UNUSUAL / 2, len(spreads))) * math.sqrt(max(0.0, beyond) * (1 + 1 / len(spreads)))
    return difference.effect > math.hypot(difference.noise, wide)


def as_check(
    name: str,
    findings: Sequence[DriftFinding],
    compared: str,
    *,
    usual_known: bool = True,
    approvable: bool = True,
) -> CheckResult:
    """Return findings as one check result.

    compared: description of both sides. usual_known: if False, only certain findings stop a batch.
    """
    ordered = sorted(findings, key=lambda each: (not each.certain, -each.effect / (each.limit or 1e-9)))
    stopping = [one for one in ordered if one.certain or usual_known]
    sentences = "; ".join(one.sentence for one in ordered[:3])
    more = f"; and {len(ordered) - 3} more" if len(ordered) > 3 else ""
    doubt = "" if usual_known or not ordered else " (too few batches to tell what is usual)"
    rows = [
        (one.what, one.column, one.of, one.before, one.now, f"{one.effect:.4g}", f"{one.limit:.4g}")
        for one in ordered
    ]
    header = ("finding", "column", "of", "before", "now", "difference", "allowed")
    return CheckResult(
        name=name,
        passed=not ordered,
        severity="error" if stopping or not ordered else "warn",
        value=float(len(ordered)),
        limit=0.0,
        explanation=f"{compared}: {sentences + more + doubt if ordered else 'nothing stands out'}",
        table_markdown=markdown_table(header, rows) if rows else "",
        approvable=approvable,
        findings=tuple(one.to_json() for one in ordered[:50]),
    )
