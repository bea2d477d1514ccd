"""Thresholds of a dataset's spec, differences measured against the baseline, and the findings that stop a batch."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

from ..checks.outcome import CheckResult
from ..pages.report import markdown_table

CHECK_TEXTS = {
    "drift": "Compares columns, media, outcomes and counts of the batch with the batches of the baseline version.",
    "agreement": "Compares samples with their media, texts with their objects, and features with those of the newest "
    "batch.",
    "splits": "Compares the splits of raw objects and subjects with those of the newest version: none is on two sides.",
    "protected": "Compares the samples with those of the protected versions, which must stay unseen.",
}
"""Name of a check of the drift gate, which is in `compare` -> what it compares."""
CHECK_NAMES = tuple(CHECK_TEXTS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """Smallest differences that matter.

    Shares are of raw objects or samples, 0 to 1; their limits are differences of shares.

    Raises: ValueError for values out of range.
    """

    alpha: float = 1e-3
    """Probability that an honest batch is stopped by chance, over all of its comparisons together."""
    min_batches: int = 3
    """Published batches needed to know a usual batch. With fewer, findings that compare distributions are warnings."""
    share: float = 0.1
    """Share of a category."""
    missing: float = 0.005
    """Share of nulls and NaNs in a column."""
    zeros: float = 0.005
    """Share of exact zeros in a column."""
    level: float = 0.2
    """Mean of a column, in standard deviations."""
    ks: float = 0.1
    """Kolmogorov-Smirnov distance of a column's distribution."""
    psi: float = 0.2
    """Population stability index of a column's distribution."""
    units_ratio: float = 0.95
    """Samples per used object, as a ratio between 0 and 1."""
    rejected: float = 0.02
    """Share of the landed objects that are rejected."""
    unused: float = 0.05
    """Share of the landed objects that are not used."""
    batch_ratio: float | None = None
    """Samples of a batch against the median batch, as a ratio between 0 and 1. It is for feeds whose deliveries are
    of one size; None for others."""
    caption: float = 0.1
    """Drop of the share of captions that fit their object, or of the correlation of their lengths."""
    near_bits: int = 8
    """Bits of 64, 0 to 16, within which the perceptual hash of a picture is that of a protected version."""
    ignore: frozenset[str] = frozenset()
    """Columns that are not compared."""
    within: tuple[str, ...] = ("source",)
    """Columns by whose values distributions are compared apart from each other, beside all samples of a kind."""

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
        """Return plain JSON without floats, for a fingerprint."""
        plain = {one.name: getattr(self, one.name) for one in fields(self)}
        return {name: sorted(v) if isinstance(v, frozenset) else repr(v) for name, v in plain.items()}


UNUSUAL = 1e-3
"""Chance that a batch of a feed that varies by itself lies outside of what is usual of a column."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One difference from the baseline that matters."""

    what: str
    """Kind of the finding, such as "distribution"."""
    column: str
    """Name of the column."""
    of: str = ""
    """Samples that it concerns, such as "audio"; "" for all."""
    before: str = ""
    """Value of the baseline, in words."""
    now: str = ""
    """Value of the batch, in words."""
    effect: float = 0.0
    """Size of the difference."""
    limit: float = 0.0
    """Allowed difference."""
    certain: bool = False
    """True where no statistics were needed."""
    keys: tuple[str, ...] = ()
    """A few of the samples, or objects, that show it."""

    @property
    def sentence(self) -> str:
        """One sentence for a person."""
        where = f" of {self.of}" if self.of else ""
        return f"{self.what}: {self.column}{where}: {self.before or 'none'} before, {self.now or 'none'} now"

    def to_json(self) -> dict[str, Any]:
        """Plain JSON without floats."""
        told = {name: getattr(self, name) for name in ("what", "column", "of", "before", "now", "certain")}
        return told | {"effect": repr(self.effect), "limit": repr(self.limit), "keys": list(self.keys)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One measured difference, beside the differences that chance makes."""

    effect: float
    """Size of the difference."""
    chance: float
    """Its root mean square where both sides are draws of one thing."""
    noise: float
    """Largest size that chance gives it, at the significance of this comparison."""


UNKNOWN = Difference(effect=0.0, chance=1.0, noise=1.0)
"""The difference where nothing is to be compared: chance explains it."""


def stands_out(mine: Difference, limit: float, others: Callable[[], Sequence[Difference]]) -> bool:
    """Return whether a difference matters, is no chance, and is unusual.

    others: each batch of the baseline against the rest of it (only asked for where the first two hold). The feed's own
    spread s is their difference beyond chance (moment estimate, as of DerSimonian and Laird 1986). It counts where
    Cochran's Q says at 5 % that there is one.

    A batch is unusual beyond noise and t s sqrt(1 + 1/n) together, t being Student's quantile for n batches: three say
    little.
    """
    if mine.effect <= max(limit, mine.noise):
        return False
    from scipy.stats import chi2, t

    found = list(others())
    if not found or sum((one.effect / (one.chance or 1e-12)) ** 2 for one in found) < chi2.isf(
        0.05, len(found)
    ):
        return True  # batches differ among themselves as chance has it
    beyond = sum(other.effect**2 - other.chance**2 for other in found) / len(found)
    wide = float(t.isf(UNUSUAL / 2, len(found))) * math.sqrt(max(0.0, beyond) * (1 + 1 / len(found)))
    return mine.effect > math.hypot(mine.noise, wide)


def as_check(
    name: str,
    findings: Sequence[Finding],
    compared: str,
    *,
    usual_known: bool = True,
    approvable: bool = True,
) -> CheckResult:
    """Return findings as one check.

    compared: both sides, in words. usual_known: whether there were enough batches. Without, only findings that are
    certain stop a batch.
    """
    ordered = sorted(findings, key=lambda one: (not one.certain, -one.effect / (one.limit or 1e-9)))
    stopping = [one for one in ordered if one.certain or usual_known]
    said = "; ".join(one.sentence for one in ordered[:3])
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
        explanation=f"{compared}: {said + more + doubt if ordered else 'nothing stands out'}",
        table_markdown=markdown_table(header, rows) if rows else "",
        approvable=approvable,
        findings=tuple(one.to_json() for one in ordered[:50]),
    )
