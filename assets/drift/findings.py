"""One difference and what it takes for it to be a finding.

How much a batch may differ from the baseline before it is stopped: one value per dataset, in its spec.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

from ..checks.outcome import CheckResult
from ..pages.report import markdown_table


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """What a difference has to exceed to matter; docs/gates.md says why each default is what it is.

    Shares are of raw objects or samples, 0 to 1, and differences of them. alpha: chance that an honest batch is
    stopped by chance, over all of its comparisons together. min_batches: published batches, below which nobody knows
    what is usual: findings that compare distributions are then warnings. share: of a category; missing: of nulls and
    NaNs in a column; zeros: of exact zeros; level, ks, psi: of a column's distribution: of its mean in standard
    deviations, its Kolmogorov-Smirnov distance, its population stability index; units_ratio: samples per used
    object, as a ratio; rejected, unused: shares of the landed objects; batch_ratio: samples of a batch against the
    median batch, for feeds whose deliveries are of one size, None for others; caption: drop of the share of captions
    that fit their object, or of the correlation of their lengths; near_bits: distance of perceptual hashes within which
    a picture is that of a protected version; ignore: columns that are not compared; within: columns by which
    distributions are compared apart from each other, beside all samples of a kind.

    Raises: ValueError for what cannot be meant.
    """

    alpha: float = 1e-3
    min_batches: int = 3
    share: float = 0.1
    missing: float = 0.005
    zeros: float = 0.005
    level: float = 0.2
    ks: float = 0.1
    psi: float = 0.2
    units_ratio: float = 0.95
    rejected: float = 0.02
    unused: float = 0.05
    batch_ratio: float | None = None
    caption: float = 0.1
    near_bits: int = 8
    ignore: frozenset[str] = frozenset()
    within: tuple[str, ...] = ("source",)

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
        """Plain JSON without floats: what a fingerprint is made of."""
        plain = {one.name: getattr(self, one.name) for one in fields(self)}
        return {name: sorted(v) if isinstance(v, frozenset) else repr(v) for name, v in plain.items()}


UNUSUAL = 1e-3
"""Chance that a batch of a feed that varies by itself lies outside of what is usual of a column."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """what: of which kind, e.g. "distribution"; column, of: of which column, and of which samples ("audio"); before,
    now: in words; effect, limit: the difference and what is allowed; certain: no statistics were needed. keys: a few of
    the samples, or objects, that show it."""

    what: str
    column: str
    of: str = ""
    before: str = ""
    now: str = ""
    effect: float = 0.0
    limit: float = 0.0
    certain: bool = False
    keys: tuple[str, ...] = ()

    @property
    def sentence(self) -> str:
        """For a person."""
        where = f" of {self.of}" if self.of else ""
        return f"{self.what}: {self.column}{where}: {self.before or 'none'} before, {self.now or 'none'} now"

    def to_json(self) -> dict[str, Any]:
        """Plain JSON without floats."""
        told = {name: getattr(self, name) for name in ("what", "column", "of", "before", "now", "certain")}
        return told | {"effect": repr(self.effect), "limit": repr(self.limit), "keys": list(self.keys)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """effect: how large; chance: its root mean square where both sides are draws of one thing; noise: how large chance
    makes it at most, at the significance that this comparison is given."""

    effect: float
    chance: float
    noise: float


UNKNOWN = Difference(effect=0.0, chance=1.0, noise=1.0)
"""Of nothing to compare: chance explains it."""


def stands_out(mine: Difference, limit: float, others: Callable[[], Sequence[Difference]]) -> bool:
    """Whether a difference matters, is no chance, and is unusual.

    others: each batch of the baseline against the rest of it (only asked for where the first two hold). What they
    differ by beyond chance, where Cochran's Q says at 5 % that they do, is the feed's own spread s (moment estimate, as
    of DerSimonian and Laird 1986); a batch is unusual beyond noise and t s sqrt(1 + 1/n) together, t being Student's
    quantile for n batches: three say little.
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
    """Findings as one check. compared: what was, in words. usual_known: whether there were enough batches; without,
    only findings that are certain stop a batch."""
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
