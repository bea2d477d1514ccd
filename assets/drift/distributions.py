"""Compare shares and distributions of numbers.

Shares (categories, nulls, zeros, outcomes) use Fisher's exact test, which holds near 0 and 1. Numbers have three
measures with different blind spots: the level (mean), the Kolmogorov-Smirnov distance, and the population stability
index over deciles. The index hardly detects a 3 % change of scale. The level detects no change of spread. None of them
detects 1 % of zeros. Differences in the last digits are ignored (`settled`).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from .findings import UNKNOWN, DriftFinding, EffectSize, each_and_rest, stands_out


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """A count among samples. Evidence is counted in raw objects, whose samples resemble each other."""

    k: float
    """Samples that count."""
    n: float
    """All samples."""
    objects: float
    """Raw objects behind the samples."""

    @property
    def share(self) -> float:
        return self.k / self.n if self.n else 0.0

    def evidence(self) -> tuple[int, int]:
        """Return (hits, trials), in whole objects."""
        trials = round(min(self.n, self.objects))
        return min(trials, round(self.share * trials)), trials

    def __add__(self, other: "Counted") -> "Counted":
        return Counted(k=self.k + other.k, n=self.n + other.n, objects=self.objects + other.objects)

    def __sub__(self, other: "Counted") -> "Counted":
        return Counted(k=self.k - other.k, n=self.n - other.n, objects=self.objects - other.objects)


NONE = Counted(k=0, n=0, objects=0)
NO_RARE_VALUE = EffectSize(effect=0.0, chance=0.0, noise=0.0)


def share_difference(now: Counted, before: Counted, alpha: float) -> EffectSize:
    """Return the difference of two shares, and its size by chance."""
    hits, trials = now.evidence()
    earlier_hits, earlier = before.evidence()
    if not trials or not earlier:
        return UNKNOWN
    rises = now.share > before.share
    edge = _hits_by_chance(trials + earlier, hits + earlier_hits, trials, alpha, rises)
    # The difference if this batch has `edge` of all hits.
    apart = edge / trials - (hits + earlier_hits - edge) / earlier
    both = (hits + earlier_hits) / (trials + earlier)
    return EffectSize(
        effect=abs(now.share - before.share),
        chance=math.sqrt(both * (1 - both) * (1 / trials + 1 / earlier)),
        noise=max(0.0, apart if rises else -apart) + 0.5 / trials,
    )


@lru_cache(maxsize=65_536)
def _hits_by_chance(objects: int, hits: int, drawn: int, alpha: float, most: bool) -> float:
    from scipy.stats import hypergeom

    return float((hypergeom.isf if most else hypergeom.ppf)(alpha, objects, hits, drawn))


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A share in the batch, compared with the baseline."""

    now: Counted
    """Batch's share."""
    batches: Sequence[Counted]
    """Shares of the baseline's batches."""
    alpha: float
    """Significance of one comparison."""
    usual: Sequence[EffectSize] | None = None
    """Difference of each batch from the rest; None: computed from their shares."""

    @property
    def before(self) -> Counted:
        return sum(self.batches, NONE)

    def difference(self) -> EffectSize:
        return share_difference(self.now, self.before, self.alpha)

    def others(self) -> list[EffectSize]:
        """Return the difference of each batch from the rest."""
        if self.usual is not None:
            return list(self.usual)
        whole = self.before
        return [share_difference(one, whole - one, self.alpha) for one in self.batches if one.n < whole.n]

    def findings(self, limit: float, **labels: Any) -> list[DriftFinding]:
        """Return the finding, if there is one. labels: its what, column, of and keys."""
        if not abs(self.now.share - self.before.share) > limit:  # cheap exit for most columns
            return []
        difference = self.difference()
        if not stands_out(difference, limit, self.others):
            return []
        before, now = _words(self.before), _words(self.now)
        return [DriftFinding(before=before, now=now, effect=difference.effect, limit=limit, **labels)]


def mix(
    now: Mapping[str, Counted],
    batches: Sequence[Mapping[str, Counted]],
    alpha: float,
    limits: tuple[float, float],
    **labels: Any,
) -> list[DriftFinding]:
    """Find values of a column whose share changed, or else a change of the whole mix by its stability index.

    limits: for a share, and for the index. now, batches: value -> count, all with the same `n`.
    """
    share, psi = limits
    findings: list[DriftFinding] = []
    usual: list[EffectSize] | None = None
    for name in sorted({*now, *(name for one in batches for name in one)}):
        compared = comparison(name, now, batches, alpha)
        if is_rare(name, batches) and abs(compared.now.share - compared.before.share) > share:
            usual = usual or rare_values(batches, alpha)
            compared = replace(compared, usual=usual)
        findings += [
            replace(one, column=f"{one.column} = {name!r}") for one in compared.findings(share, **labels)
        ]
    return findings or _shifted(now, batches, alpha, psi, **labels)


def is_rare(name: str, batches: Sequence[Mapping[str, Counted]]) -> bool:
    """Return whether fewer than half of the batches have the value, so that its shares do not show what is usual."""
    return 2 * sum(name in one for one in batches) < len(batches)


def rare_values(batches: Sequence[Mapping[str, Counted]], alpha: float) -> list[EffectSize]:
    """Return for each batch the largest difference in share, over the values that are rare in the others."""
    differences = []
    for batch, rest in each_and_rest(batches):
        rare = sorted(name for name in batch if is_rare(name, rest))
        largest = max(rare, key=lambda name: batch[name].share, default=None)
        known = largest is not None and comparison(largest, batch, rest, alpha).difference()
        differences.append(known or NO_RARE_VALUE)
    return differences


def comparison(
    name: str, now: Mapping[str, Counted], batches: Sequence[Mapping[str, Counted]], alpha: float
) -> Comparison:
    """Return the comparison of one value; its share is 0 in a batch without it."""
    return Comparison(now=_of(now, name), batches=[_of(one, name) for one in batches if one], alpha=alpha)


def _of(counts: Mapping[str, Counted], name: str) -> Counted:
    if name in counts:
        return counts[name]
    counted = next(iter(counts.values()), NONE)
    return replace(counted, k=0)


def _shifted(
    now: Mapping[str, Counted],
    batches: Sequence[Mapping[str, Counted]],
    alpha: float,
    limit: float,
    **labels: Any,
) -> list[DriftFinding]:
    names = sorted({*now, *(name for one in batches for name in one)})
    if len(names) < 2 or not now:
        return []
    current = [_of(now, name) for name in names]
    each = [[_of(one, name) for name in names] for one in batches if one]
    whole = [sum((one[place] for one in each), NONE) for place in range(len(names))]
    difference = index_difference(current, whole, alpha)

    def others() -> list[EffectSize]:
        rests = [[all_ - part for all_, part in zip(whole, one, strict=True)] for one in each]
        pairs = [(one, rest) for one, rest in zip(each, rests, strict=True) if rest[0].n]
        return [index_difference(one, rest, alpha) for one, rest in pairs]

    if not stands_out(difference, math.sqrt(limit), others):
        return []
    now_words, before_words = (", ".join(_top(names, counts)) for counts in (current, whole))
    return [
        DriftFinding(**labels, before=before_words, now=now_words, effect=difference.effect**2, limit=limit)
    ]


def index_difference(now: Sequence[Counted], before: Sequence[Counted], alpha: float) -> EffectSize:
    """Return the square root of the population stability index of two sets of shares: sum of (p - q) ln(p / q).

    Half an object is added to each count. With 1/n = 1/n_now + 1/n_before, n times the index is about chi-square with
    (values - 1) degrees of freedom: twice the mean of two G statistics.
    """
    n, m = (min(side[0].n, side[0].objects) for side in (now, before))
    if not n or not m:
        return UNKNOWN
    p = np.array([one.share * n + 0.5 for one in now])
    q = np.array([one.share * m + 0.5 for one in before])
    p, q = p / p.sum(), q / q.sum()
    scale, freedom = 1 / n + 1 / m, len(p) - 1
    return EffectSize(
        effect=math.sqrt(float(((p - q) * np.log(p / q)).sum())),
        chance=math.sqrt(freedom * scale),
        noise=math.sqrt(_index_by_chance(freedom, alpha) * scale),
    )


@lru_cache(maxsize=1024)
def _index_by_chance(freedom: int, alpha: float) -> float:
    from scipy.stats import chi2

    return float(chi2.isf(alpha, freedom))


def _top(names: Sequence[str], counts: Sequence[Counted]) -> list[str]:
    ordered = sorted(zip(names, counts, strict=True), key=lambda item: (-item[1].k, item[0]))[:3]
    return [f"{name} {one.share:.1%}" for name, one in ordered]


def _words(counted: Counted) -> str:
    return f"{counted.share:.2%} of {round(counted.n)}"


Floats = np.ndarray[Any, np.dtype[np.float64]]
DECILES = 10
PRECISION, NOTHING = 1e-6, 1e-12
"""Relative and absolute difference of equal numbers."""
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


def pooled(batches: Sequence[Drawn]) -> Drawn:
    """Return all batches pooled into one draw."""
    values = np.sort(np.concatenate([one.values for one in batches])) if batches else np.zeros(0)
    return Drawn(values=values, objects=sum(one.objects for one in batches))


def settled(draws: Sequence[Drawn]) -> list[Drawn]:
    """Return the draws with values made equal that differ only in their last digits.

    A run of close values becomes its first value, unless rounding cannot explain its width; in float32 the last digits
    begin at the eighth.
    """
    values = np.sort(np.concatenate([one.values for one in draws])) if draws else np.zeros(0)
    if not len(values):
        return list(draws)
    near = np.maximum(PRECISION * np.abs(values), NOTHING)
    begins = np.concatenate([[True], np.diff(values) > near[1:]])
    first = np.flatnonzero(begins)
    last = np.concatenate([first[1:], [len(values)]]) - 1
    is_run = values[last] - values[first] <= 4 * near[first]

    def of(draw: Drawn) -> Drawn:
        run = np.searchsorted(values[first], draw.values, side="right") - 1
        return replace(draw, values=np.where(is_run[run], values[first][run], draw.values))

    return [of(draw) for draw in draws]


def level(now: Drawn, before: Drawn, alpha: float) -> EffectSize:
    """Return the difference of the means in standard deviations of the baseline (Cohen's d).

    Chance is normal, or bounded by `by_chance` if that does not explain the difference.
    """
    n, m = now.evidence, before.evidence
    deviation = float(before.values.std()) if len(before.values) else 0.0
    # Equal numbers have a deviation too: the rounding error of their mean.
    if not n or not m or deviation <= max(PRECISION * float(np.abs(before.values).max()), NOTHING):
        return UNKNOWN
    chance = math.sqrt(1 / n + 1 / m)
    moved = float(now.values.mean() - before.values.mean())
    noise = _quantile(alpha / 2) * chance
    if abs(moved) / deviation > noise:
        noise = max(noise, by_chance(now, before, alpha, rises=moved > 0) / deviation)
    return EffectSize(effect=abs(moved) / deviation, chance=chance, noise=noise)


@lru_cache(maxsize=256)
def _quantile(tail: float) -> float:
    from scipy.stats import norm

    return float(norm.isf(tail))


def by_chance(now: Drawn, before: Drawn, alpha: float, *, rises: bool) -> float:
    """Return the largest chance distance between the means of two draws of one distribution, at alpha / 2 on this side.

    The distribution is both draws pooled. The mean of n objects exceeds d with probability at most exp(-n I(d)), with
    the Cramer-Chernoff rate function I; without replacement, less often (Hoeffding 1963). The smaller bound is used.
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
    """Return where the rate function of a distribution with mean 0 is `rate`, or infinity."""
    highest = float(centred.max())
    size = float(np.abs(centred).max())
    if not size:
        return 0.0

    def tilted(t: float) -> tuple[float, float]:
        tilt = weights * np.exp(t * (centred - highest))
        total = float(tilt.sum())
        mean = float(tilt @ centred) / total
        return mean, t * mean - (math.log(total) + t * highest)

    low, high = 0.0, 1 / size
    while (tilt_at := tilted(high))[1] < rate:
        low, high = high, 2 * high
        if high * size > 1e6:
            return math.inf
    for _ in range(_STEPS):
        middle = (low + high) / 2
        tilt_at = tilted(middle)
        low, high = (middle, high) if tilt_at[1] < rate else (low, middle)
    return tilted(high)[0]


def distance(now: Drawn, before: Drawn, alpha: float) -> EffectSize:
    """Return the Kolmogorov-Smirnov distance; chance is asymptotic, sqrt(-ln(alpha / 2) / 2 (1/n + 1/m))."""
    n, m = now.evidence, before.evidence
    if not n or not m:
        return UNKNOWN
    places = np.concatenate([now.values, before.values])
    current = np.searchsorted(now.values, places, side="right") / len(now.values)
    usual = np.searchsorted(before.values, places, side="right") / len(before.values)
    return EffectSize(
        effect=float(np.abs(current - usual).max()),
        chance=math.pi / math.sqrt(12) * math.sqrt(1 / n + 1 / m),  # Kolmogorov's distribution
        noise=math.sqrt(-math.log(alpha / 2) / 2 * (1 / n + 1 / m)),
    )


def stability(now: Drawn, before: Drawn, edges: Floats, alpha: float) -> EffectSize:
    """Return the square root of the population stability index over bins with these inner edges."""
    counted = []
    for draw in (now, before):
        counts = np.bincount(np.searchsorted(edges, draw.values, side="left"), minlength=len(edges) + 1)
        counted.append([Counted(k=int(k), n=len(draw.values), objects=draw.objects) for k in counts])
    return index_difference(counted[0], counted[1], alpha)


def distribution(
    now: Drawn, batches: Sequence[Drawn], alpha: float, limits: tuple[float, float, float], **labels: Any
) -> list[DriftFinding]:
    """Return a finding if any measure stands out. limits: for level, distance and index."""
    level_limit, ks_limit, psi_limit = limits
    now, *batches = settled([now, *batches])
    whole = pooled(batches)
    if not len(now.values) or not len(whole.values):
        return []
    edges = np.unique(np.quantile(whole.values, np.arange(1, DECILES) / DECILES))
    words: Any = {"before": spread(whole.values), "now": spread(now.values)}

    def rests() -> list[tuple[Drawn, Drawn]]:
        return [(one, pooled(rest)) for one, rest in each_and_rest(batches)]

    moved = level(now, whole, alpha)
    if stands_out(moved, level_limit, lambda: [level(one, rest, alpha) for one, rest in rests()]):
        what = "distribution (level)"
        return [DriftFinding(what=what, **words, effect=moved.effect, limit=level_limit, **labels)]
    ks = distance(now, whole, alpha)
    if stands_out(ks, ks_limit, lambda: [distance(one, rest, alpha) for one, rest in rests()]):
        what = "distribution (Kolmogorov-Smirnov)"
        return [DriftFinding(what=what, **words, effect=ks.effect, limit=ks_limit, **labels)]
    psi = stability(now, whole, edges, alpha)
    if stands_out(
        psi, math.sqrt(psi_limit), lambda: [stability(one, rest, edges, alpha) for one, rest in rests()]
    ):
        what = "distribution (stability index)"
        return [DriftFinding(what=what, **words, effect=psi.effect**2, limit=psi_limit, **labels)]
    return []


def spread(values: Floats) -> str:
    """Return '0.31 (0.12 to 0.55)': the median and the range of the middle four fifths."""
    low, middle, high = np.quantile(values, (0.1, 0.5, 0.9))
    return f"{middle:.4g} ({low:.4g} to {high:.4g})"


def ratio(now: Floats, before: Floats, alpha: float) -> EffectSize:
    """Return the difference of the means of positive numbers, one per object: |ln(mean / mean)|.

    Chance follows the delta method, or a bound as in `level`.
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
    return EffectSize(effect=effect, chance=chance, noise=noise)
