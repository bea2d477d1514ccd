"""One difference and what it takes for it to be a finding."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..checks.outcome import CheckResult
from ..report import markdown_table

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
