"""Compare distributions of numbers.

Three measures have different blind spots: the level (mean), the Kolmogorov-Smirnov distance, and the population
stability index over deciles. The index hardly detects a 3 % change of scale. The level detects no change of spread.
None of them detects 1 % of zeros. Differences in the last digits are ignored (`settle_ties`).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from .findings import UNKNOWN, DriftFinding, EffectSize, each_and_rest, is_notable
from .shares import Counted, index_difference

Floats = np.ndarray[Any, np.dtype[np.float64]]
DECILES = 10
PRECISION = 1e-6
"""Relative difference of equal numbers."""
NOTHING = 1e-12
"""Absolute difference of equal numbers."""
_STEPS = 50
"""Bisection steps for a quantile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """Numbers drawn from a distribution."""

    values: Floats
    """Float64, finite and sorted."""
    objects: float
    """Effective raw objects (`columns.n_objects`)."""

    @property
    def evidence(self) -> float:
        return min(self.objects, len(self.values))


def pool(batches: Sequence[Drawn]) -> Drawn:
    """Return all batches pooled into one draw."""
    objects = sum(one.objects for one in batches)
    return Drawn(values=_sort_values(batches), objects=objects)


def _sort_values(draws: Sequence[Drawn]) -> Floats:
    if not draws:
        return np.zeros(0)
    return np.sort(np.concatenate([one.values for one in draws]))


def settle_ties(draws: Sequence[Drawn]) -> list[Drawn]:
    """Return the draws with values made equal that differ only in their last digits.

    A run of close values becomes its first value, unless rounding cannot explain its width; in float32 the last digits
    begin at the eighth.
    """
    values = _sort_values(draws)
    if not len(values):
        return list(draws)
    near = np.maximum(PRECISION * np.abs(values), NOTHING)
    begins = np.concatenate([[True], np.diff(values) > near[1:]])
    first = np.flatnonzero(begins)  # [runs]
    last = np.concatenate([first[1:], [len(values)]]) - 1  # [runs]
    first_value = values[first]
    is_narrow = values[last] - first_value <= 4 * near[first]
    out = []
    for draw in draws:
        run = np.searchsorted(first_value, draw.values, side="right") - 1  # [draw's values]
        equal = np.where(is_narrow[run], first_value[run], draw.values)
        out.append(replace(draw, values=equal))
    return out


def level(now: Drawn, before: Drawn, alpha: float) -> EffectSize:
    """Return the difference of the means in standard deviations of the baseline (Cohen's d).

    Its noise is of normal means, or bounded by `by_chance` if that does not explain the difference.
    """
    n = now.evidence
    m = before.evidence
    if not n or not m:
        return UNKNOWN
    deviation = float(before.values.std())
    # Equal numbers have a deviation too: the rounding error of their mean.
    rounding = max(PRECISION * float(np.abs(before.values).max()), NOTHING)
    if deviation <= rounding:
        return UNKNOWN
    moved = float(now.values.mean() - before.values.mean())
    effect = abs(moved) / deviation
    chance = math.sqrt(1 / n + 1 / m)
    noise = _quantile(alpha / 2) * chance
    if effect > noise:
        # Means of few, skewed numbers are not normal. The bound holds for those too. It costs a search.
        bound = by_chance(now, before, alpha, rises=moved > 0)
        noise = max(noise, bound / deviation)
    return EffectSize(effect=effect, chance=chance, noise=noise)


@lru_cache(maxsize=256)
def _quantile(tail: float) -> float:
    from scipy.stats import norm

    return float(norm.isf(tail))


def by_chance(now: Drawn, before: Drawn, alpha: float, *, rises: bool) -> float:
    """Return the largest chance distance between the means of two draws of one distribution, at alpha / 2 on this side.

    The distribution is both draws pooled. The mean of n objects exceeds d with probability at most exp(-n I(d)), with
    the Cramer-Chernoff rate function I; without replacement, less often (Hoeffding 1963). The smaller bound is used.
    """
    n = now.evidence
    m = before.evidence
    values = np.concatenate([now.values, before.values])
    # Each draw weighs as much as its evidence; the weights sum to 1.
    lengths = [len(now.values), len(before.values)]
    now_share = n / (n + m)
    before_share = m / (n + m)
    weight_of_value = [now_share / lengths[0], before_share / lengths[1]]
    weights = np.repeat(weight_of_value, lengths)  # [values]
    centred = values - float(weights @ values)
    if not rises:
        centred = -centred
    rate = -math.log(alpha / 2)
    # The batch's mean strays one way, or the baseline's the other way.
    of_batch = _distance_at_rate(centred, weights, rate / n) * (n + m) / m
    of_baseline = _distance_at_rate(-centred, weights, rate / m) * (n + m) / n
    return min(of_batch, of_baseline)


def _distance_at_rate(centred: Floats, weights: Floats, rate: float) -> float:
    """Return where the rate function of a distribution with mean 0 is `rate`, or infinity."""
    highest = float(centred.max())
    size = float(np.abs(centred).max())
    if not size:
        return 0.0

    def tilt(t: float) -> tuple[float, float]:
        """Return the mean of the tilted distribution, and the rate at this mean."""
        tilt = weights * np.exp(t * (centred - highest))  # `highest`: the exponent is at most 0
        total = float(tilt.sum())
        mean = float(tilt @ centred) / total
        log_moment = math.log(total) + t * highest
        return mean, t * mean - log_moment

    # Double the tilt until its rate is high enough, then bisect.
    low = 0.0
    high = 1 / size
    while tilt(high)[1] < rate:
        low = high
        high = 2 * high
        if high * size > 1e6:
            return math.inf
    for _ in range(_STEPS):
        middle = (low + high) / 2
        if tilt(middle)[1] < rate:
            low = middle
        else:
            high = middle
    mean, _ = tilt(high)
    return mean


def distance(now: Drawn, before: Drawn, alpha: float) -> EffectSize:
    """Return the Kolmogorov-Smirnov distance; its noise is asymptotic, sqrt(-ln(alpha / 2) / 2 (1/n + 1/m))."""
    n = now.evidence
    m = before.evidence
    if not n or not m:
        return UNKNOWN
    scale = 1 / n + 1 / m
    values = np.concatenate([now.values, before.values])
    # Both empirical distribution functions at all values of either.
    current = np.searchsorted(now.values, values, side="right") / len(now.values)
    usual = np.searchsorted(before.values, values, side="right") / len(before.values)
    largest_gap = float(np.abs(current - usual).max())
    deviation = math.pi / math.sqrt(12)  # of Kolmogorov's distribution
    squared_quantile = -math.log(alpha / 2) / 2  # of the same distribution
    return EffectSize(
        effect=largest_gap,
        chance=deviation * math.sqrt(scale),
        noise=math.sqrt(squared_quantile * scale),
    )


def stability(now: Drawn, before: Drawn, edges: Floats, alpha: float) -> EffectSize:
    """Return the square root of the population stability index over bins with these inner edges."""
    return index_difference(_bins(now, edges), _bins(before, edges), alpha)


def _bins(draw: Drawn, edges: Floats) -> list[Counted]:
    """Return the count of each bin, of which there is one more than edges."""
    bin_of_value = np.searchsorted(edges, draw.values, side="left")
    counts = np.bincount(bin_of_value, minlength=len(edges) + 1)
    n = len(draw.values)
    return [Counted(k=int(k), n=n, objects=draw.objects) for k in counts]


def distribution(
    now: Drawn,
    batches: Sequence[Drawn],
    alpha: float,
    limits: tuple[float, float, float],
    **labels: Any,
) -> list[DriftFinding]:
    """Return a finding if any measure stands out. limits: for level, distance and index."""
    level_limit, ks_limit, psi_limit = limits
    now, *batches = settle_ties([now, *batches])
    whole = pool(batches)
    if not len(now.values) or not len(whole.values):
        return []
    quantiles = np.quantile(whole.values, np.arange(1, DECILES) / DECILES)
    # Deciles may coincide, as with many zeros, and their bins would be empty.
    edges = np.unique(quantiles)

    def finding(measure: str, effect: float, limit: float) -> list[DriftFinding]:
        return [
            DriftFinding(
                what=f"distribution ({measure})",
                before=spread(whole.values),
                now=spread(now.values),
                effect=effect,
                limit=limit,
                **labels,
            )
        ]

    def others(measure: Callable[[Drawn, Drawn], EffectSize]) -> Callable[[], list[EffectSize]]:
        """Return a function that measures each batch against the rest, which few columns need."""
        return lambda: [measure(one, pool(rest)) for one, rest in each_and_rest(batches)]

    def level_effect(draw: Drawn, rest: Drawn) -> EffectSize:
        return level(draw, rest, alpha)

    def distance_effect(draw: Drawn, rest: Drawn) -> EffectSize:
        return distance(draw, rest, alpha)

    def stability_effect(draw: Drawn, rest: Drawn) -> EffectSize:
        return stability(draw, rest, edges, alpha)

    # One shift moves several measures, so the first that stands out is the finding.
    moved = level_effect(now, whole)
    if is_notable(moved, level_limit, others(level_effect)):
        return finding("level", moved.effect, level_limit)
    ks = distance_effect(now, whole)
    if is_notable(ks, ks_limit, others(distance_effect)):
        return finding("Kolmogorov-Smirnov", ks.effect, ks_limit)
    psi = stability_effect(now, whole)
    # `stability` returns a root, and the limit is for the index.
    if is_notable(psi, math.sqrt(psi_limit), others(stability_effect)):
        return finding("stability index", psi.effect**2, psi_limit)
    return []


def spread(values: Floats) -> str:
    """Return '0.31 (0.12 to 0.55)': the median and the range of the middle four fifths."""
    low, middle, high = np.quantile(values, (0.1, 0.5, 0.9))
    return f"{middle:.4g} ({low:.4g} to {high:.4g})"


def ratio(now: Floats, before: Floats, alpha: float) -> EffectSize:
    """Return the difference of the means of positive numbers, one per object: |ln(mean / mean)|.

    Its noise is of normal means, by the delta method: the variance of ln(mean) is the mean's variance / mean^2. As in
    `level`, a difference beyond that noise must also exceed the bound of `by_chance`.
    """
    if len(now) < 2 or len(before) < 2:
        return UNKNOWN
    if not now.mean() or not before.mean():
        return UNKNOWN
    variance = 0.0  # of the effect
    for numbers in (now, before):
        variance_of_mean = numbers.var(ddof=1) / len(numbers)
        variance += float(variance_of_mean / numbers.mean() ** 2)
    chance = math.sqrt(variance)
    effect = abs(math.log(now.mean() / before.mean()))
    noise = _quantile(alpha / 2) * chance
    if effect > noise:
        rises = bool(now.mean() > before.mean())
        current = Drawn(values=now, objects=len(now))
        usual = Drawn(values=before, objects=len(before))
        # Few, skewed numbers, as in `level`. The bound is a difference of means.
        relative_difference = by_chance(current, usual, alpha, rises=rises) / float(before.mean())
        if rises:
            bound = math.log1p(relative_difference)
        else:
            relative_fall = min(relative_difference, 1 - 1e-9)  # a mean that falls stays above 0
            bound = -math.log1p(-relative_fall)
        noise = max(noise, bound)
    return EffectSize(effect=effect, chance=chance, noise=noise)
