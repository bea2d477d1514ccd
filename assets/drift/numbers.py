"""Distributions of numbers: their level, the Kolmogorov-Smirnov distance, the population stability index over deciles.

They miss different things: an index over deciles hardly sees a scale that changed by 3 %, which moves the level; a
level does not see a spread that changed; none of them sees a per cent of zeros, which `shares` counts.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .findings import UNKNOWN, Difference, Finding, stands_out
from .shares import Counted, index_difference

Floats = np.ndarray[Any, np.dtype[np.float64]]
DECILES = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """values: finite and sorted; objects: how many raw objects they are worth (see `columns.n_objects`)."""

    values: Floats
    objects: float

    @property
    def evidence(self) -> float:
        return min(self.objects, len(self.values))


def pooled(batches: Sequence[Drawn]) -> Drawn:
    """All together."""
    values = np.sort(np.concatenate([one.values for one in batches])) if batches else np.zeros(0)
    return Drawn(values=values, objects=sum(one.objects for one in batches))


def level(now: Drawn, before: Drawn, alpha: float) -> Difference:
    """Difference of the means in standard deviations of what was before (Cohen's d); chance as of a normal one."""
    from scipy.stats import norm

    n, m = now.evidence, before.evidence
    deviation = float(before.values.std()) if len(before.values) else 0.0
    if not n or not m or not deviation:
        return UNKNOWN
    chance = math.sqrt(1 / n + 1 / m)
    return Difference(
        effect=abs(float(now.values.mean() - before.values.mean())) / deviation,
        chance=chance,
        noise=float(norm.isf(alpha / 2)) * chance,
    )


def distance(now: Drawn, before: Drawn, alpha: float) -> Difference:
    """Kolmogorov-Smirnov; what chance makes of it by the asymptotic bound sqrt(-ln(alpha / 2) / 2 (1/n + 1/m))."""
    n, m = now.evidence, before.evidence
    if not n or not m:
        return UNKNOWN
    places = np.concatenate([now.values, before.values])
    mine = np.searchsorted(now.values, places, side="right") / len(now.values)
    theirs = np.searchsorted(before.values, places, side="right") / len(before.values)
    return Difference(
        effect=float(np.abs(mine - theirs).max()),
        chance=math.pi / math.sqrt(12) * math.sqrt(1 / n + 1 / m),  # of Kolmogorov's distribution
        noise=math.sqrt(-math.log(alpha / 2) / 2 * (1 / n + 1 / m)),
    )


def stability(now: Drawn, before: Drawn, edges: Floats, alpha: float) -> Difference:
    """Square root of the population stability index over bins with these inner edges."""
    counted = []
    for one in (now, before):
        counts = np.bincount(np.searchsorted(edges, one.values, side="left"), minlength=len(edges) + 1)
        counted.append([Counted(k=int(k), n=len(one.values), objects=one.objects) for k in counts])
    return index_difference(counted[0], counted[1], alpha)


def distribution(
    now: Drawn, batches: Sequence[Drawn], alpha: float, limits: tuple[float, float, float], **told: Any
) -> list[Finding]:
    """A finding when one of the measures stands out. limits: of level, distance and index; told: column, of."""
    level_limit, ks_limit, psi_limit = limits
    whole = pooled(batches)
    if not len(now.values) or not len(whole.values):
        return []
    edges = np.unique(np.quantile(whole.values, np.arange(1, DECILES) / DECILES))
    words: Any = {"before": spread(whole.values), "now": spread(now.values)}

    def rests() -> list[tuple[Drawn, Drawn]]:
        each = range(len(batches)) if len(batches) > 1 else ()
        return [(batches[i], pooled([*batches[:i], *batches[i + 1 :]])) for i in each]

    moved = level(now, whole, alpha)
    if stands_out(moved, level_limit, lambda: [level(one, rest, alpha) for one, rest in rests()]):
        what = "distribution (level)"
        return [Finding(what=what, **words, effect=moved.effect, limit=level_limit, **told)]
    ks = distance(now, whole, alpha)
    if stands_out(ks, ks_limit, lambda: [distance(one, rest, alpha) for one, rest in rests()]):
        what = "distribution (Kolmogorov-Smirnov)"
        return [Finding(what=what, **words, effect=ks.effect, limit=ks_limit, **told)]
    psi = stability(now, whole, edges, alpha)
    if stands_out(
        psi, math.sqrt(psi_limit), lambda: [stability(one, rest, edges, alpha) for one, rest in rests()]
    ):
        what = "distribution (stability index)"
        return [Finding(what=what, **words, effect=psi.effect**2, limit=psi_limit, **told)]
    return []


def spread(values: Floats) -> str:
    """'0.31 (0.12 to 0.55)': the median, and the middle four fifths."""
    low, middle, high = np.quantile(values, (0.1, 0.5, 0.9))
    return f"{middle:.4g} ({low:.4g} to {high:.4g})"


def ratio(now: Floats, before: Floats, alpha: float) -> Difference:
    """How far the mean of positive numbers, one per object, is another: |ln(mean / mean)|; chance by the delta method
    and a normal distribution."""
    from scipy.stats import norm

    if len(now) < 2 or len(before) < 2 or not now.mean() or not before.mean():
        return UNKNOWN
    chance = math.sqrt(sum(one.var(ddof=1) / len(one) / one.mean() ** 2 for one in (now, before)))
    return Difference(
        effect=abs(math.log(now.mean() / before.mean())),
        chance=chance,
        noise=float(norm.isf(alpha / 2)) * chance,
    )
