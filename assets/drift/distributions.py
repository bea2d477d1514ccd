"""Distributions of numbers, by three measures.

They are the level, the Kolmogorov-Smirnov distance, and the population stability index over deciles. They miss
different things. An index over deciles hardly sees a scale that changed by 3 %, which moves the level. A level does not
see a spread that changed. None of them sees a per cent of zeros, which `shares` counts. None of them looks at last
digits (`settled`).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from .findings import UNKNOWN, Difference, Finding, stands_out
from .shares import Counted, index_difference

Floats = np.ndarray[Any, np.dtype[np.float64]]
DECILES = 10
PRECISION, NOTHING = 1e-6, 1e-12
"""Two numbers are one that lie closer together than this, relative to their size or (NOTHING) absolutely. Such last
digits depend on the processor or library; those of float32 begin at the eighth."""
_STEPS = 50
"""Halvings in the search for a quantile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """Numbers drawn from a distribution."""

    values: Floats
    """float64, finite and sorted."""
    objects: float
    """Raw objects that they are worth (see `columns.n_objects`)."""

    @property
    def evidence(self) -> float:
        return min(self.objects, len(self.values))


def pooled(batches: Sequence[Drawn]) -> Drawn:
    """Return all batches together."""
    values = np.sort(np.concatenate([one.values for one in batches])) if batches else np.zeros(0)
    return Drawn(values=values, objects=sum(one.objects for one in batches))


def settled(some: Sequence[Drawn]) -> list[Drawn]:
    """Return the draws with values that differ only in their last digits made equal: a run becomes its first value.

    A run that as a whole is wider than the last digits are, as of many different numbers, stays as it is.
    """
    values = np.sort(np.concatenate([one.values for one in some])) if some else np.zeros(0)
    if not len(values):
        return list(some)
    near = np.maximum(PRECISION * np.abs(values), NOTHING)
    begins = np.concatenate([[True], np.diff(values) > near[1:]])
    first = np.flatnonzero(begins)
    last = np.concatenate([first[1:], [len(values)]]) - 1
    is_run = values[last] - values[first] <= 4 * near[first]

    def of(one: Drawn) -> Drawn:
        run = np.searchsorted(values[first], one.values, side="right") - 1
        return replace(one, values=np.where(is_run[run], values[first][run], one.values))

    return [of(one) for one in some]


def level(now: Drawn, before: Drawn, alpha: float) -> Difference:
    """Return the difference of the means in standard deviations of the baseline (Cohen's d).

    Chance is that of a normal distribution. Where this does not explain it, a bound counts that holds of any
    distribution and number of objects.
    """
    n, m = now.evidence, before.evidence
    deviation = float(before.values.std()) if len(before.values) else 0.0
    # Equal numbers have a deviation too: the last digits of their own mean.
    if not n or not m or deviation <= max(PRECISION * float(np.abs(before.values).max()), NOTHING):
        return UNKNOWN
    chance = math.sqrt(1 / n + 1 / m)
    moved = float(now.values.mean() - before.values.mean())
    noise = _quantile(alpha / 2) * chance
    if abs(moved) / deviation > noise:
        noise = max(noise, by_chance(now, before, alpha, rises=moved > 0) / deviation)
    return Difference(effect=abs(moved) / deviation, chance=chance, noise=noise)


@lru_cache(maxsize=256)
def _quantile(tail: float) -> float:
    from scipy.stats import norm

    return float(norm.isf(tail))


def by_chance(now: Drawn, before: Drawn, alpha: float, *, rises: bool) -> float:
    """Return the largest distance of the means of two draws of one thing, at alpha / 2 to this side.

    Both together are the thing. The mean of n objects drawn from it, however few or skewed, lies beyond d with a chance
    of at most exp(-n I(d)). I is the rate function of Cramer and Chernoff; without replacement the chance is still
    smaller (Hoeffding 1963). Either side may be the draw; the smaller of the two bounds holds.
    """
    n, m = now.evidence, before.evidence
    values = np.concatenate([now.values, before.values])
    weights = np.repeat(
        [n / (n + m) / len(now.values), m / (n + m) / len(before.values)],
        [len(now.values), len(before.values)],
    )
    centred = (values - float(weights @ values)) * (1 if rises else -1)
    least = -math.log(alpha / 2)
    return min(
        _beyond(centred, weights, least / n) * (n + m) / m,
        _beyond(-centred, weights, least / m) * (n + m) / n,
    )


def _beyond(centred: Floats, weights: Floats, rate: float) -> float:
    """Return the mean whose rate function is `rate`, of a thing of mean 0.

    Infinity where none has as much: then even the largest value, each time, is no wonder.
    """
    highest = float(centred.max())
    size = float(np.abs(centred).max())
    if not size:
        return 0.0

    def tilted(t: float) -> tuple[float, float]:
        """Return (the mean under exp(t x), its rate function)."""
        tilt = weights * np.exp(t * (centred - highest))
        total = float(tilt.sum())
        mean = float(tilt @ centred) / total
        return mean, t * mean - (math.log(total) + t * highest)

    low, high = 0.0, 1 / size
    while (found := tilted(high))[1] < rate:
        low, high = high, 2 * high
        if high * size > 1e6:
            return math.inf
    for _ in range(_STEPS):
        middle = (low + high) / 2
        found = tilted(middle)
        low, high = (middle, high) if found[1] < rate else (low, middle)
    return tilted(high)[0]


def distance(now: Drawn, before: Drawn, alpha: float) -> Difference:
    """Return the Kolmogorov-Smirnov distance; chance by the asymptotic bound sqrt(-ln(alpha / 2) / 2 (1/n + 1/m))."""
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
    """Return the square root of the population stability index over bins with these inner edges."""
    counted = []
    for one in (now, before):
        counts = np.bincount(np.searchsorted(edges, one.values, side="left"), minlength=len(edges) + 1)
        counted.append([Counted(k=int(k), n=len(one.values), objects=one.objects) for k in counts])
    return index_difference(counted[0], counted[1], alpha)


def distribution(
    now: Drawn, batches: Sequence[Drawn], alpha: float, limits: tuple[float, float, float], **told: Any
) -> list[Finding]:
    """Return a finding when one of the measures stands out. limits: of level, distance and index; told: column, of."""
    level_limit, ks_limit, psi_limit = limits
    now, *batches = settled([now, *batches])
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
    """Return '0.31 (0.12 to 0.55)': the median, and the middle four fifths."""
    low, middle, high = np.quantile(values, (0.1, 0.5, 0.9))
    return f"{middle:.4g} ({low:.4g} to {high:.4g})"


def ratio(now: Floats, before: Floats, alpha: float) -> Difference:
    """Return the difference of the means of positive numbers, one per object: |ln(mean / mean)|.

    Chance by the delta method and a normal distribution, and where that does not explain it, as of `level`.
    """
    if len(now) < 2 or len(before) < 2 or not now.mean() or not before.mean():
        return UNKNOWN
    chance = math.sqrt(sum(one.var(ddof=1) / len(one) / one.mean() ** 2 for one in (now, before)))
    effect, noise = abs(math.log(now.mean() / before.mean())), _quantile(alpha / 2) * chance
    if effect > noise:
        rises = bool(now.mean() > before.mean())
        drawn = [Drawn(values=one, objects=len(one)) for one in (now, before)]
        apart = by_chance(drawn[0], drawn[1], alpha, rises=rises) / float(before.mean())
        noise = max(noise, math.log1p(apart) if rises else -math.log1p(-min(apart, 1 - 1e-9)))
    return Difference(effect=effect, chance=chance, noise=noise)
