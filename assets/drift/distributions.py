"""Distributions of numbers: their level, the Kolmogorov-Smirnov distance, the population stability index over deciles.

They miss different things: an index over deciles hardly sees a scale that changed by 3 %, which moves the level; a
level does not see a spread that changed; none of them sees a per cent of zeros, which `shares` counts. None of them
looks at last digits (`settled`).

Shares: of categories, nulls, zeros, outcomes. Each is a count among counted objects.

Significance is that of Fisher's exact test (hypergeometric, one side), so it holds for shares near 0 and 1 as well.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from .findings import UNKNOWN, Difference, Finding, stands_out


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """k of n samples, which are of `objects` raw objects: samples of one object are alike, so only these count as
    evidence."""

    k: float
    n: float
    objects: float

    @property
    def share(self) -> float:
        return self.k / self.n if self.n else 0.0

    def evidence(self) -> tuple[int, int]:
        """(hits, trials) in whole objects."""
        trials = round(min(self.n, self.objects))
        return min(trials, round(self.share * trials)), trials

    def __add__(self, other: "Counted") -> "Counted":
        return Counted(k=self.k + other.k, n=self.n + other.n, objects=self.objects + other.objects)

    def __sub__(self, other: "Counted") -> "Counted":
        return Counted(k=self.k - other.k, n=self.n - other.n, objects=self.objects - other.objects)


NONE = Counted(k=0, n=0, objects=0)
NO_RARE_VALUE = Difference(effect=0.0, chance=0.0, noise=0.0)


def share_difference(now: Counted, before: Counted, alpha: float) -> Difference:
    """How far two shares lie apart, and how far they may by chance. Without evidence chance explains everything."""
    mine, trials = now.evidence()
    theirs, earlier = before.evidence()
    if not trials or not earlier:
        return UNKNOWN
    rises = now.share > before.share
    edge = _hits_by_chance(trials + earlier, mine + theirs, trials, alpha, rises)
    # What the two shares would be if this batch had `edge` hits of those that both have together.
    apart = edge / trials - (mine + theirs - edge) / earlier
    both = (mine + theirs) / (trials + earlier)
    return Difference(
        effect=abs(now.share - before.share),
        chance=math.sqrt(both * (1 - both) * (1 / trials + 1 / earlier)),
        noise=max(0.0, apart if rises else -apart) + 0.5 / trials,
    )


@lru_cache(maxsize=65_536)
def _hits_by_chance(objects: int, hits: int, drawn: int, alpha: float, most: bool) -> float:
    """How many hits are among some drawn objects at most, or at least."""
    from scipy.stats import hypergeom

    return float((hypergeom.isf if most else hypergeom.ppf)(alpha, objects, hits, drawn))


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """now: of the batch; batches: of each batch of the baseline; alpha: of one comparison; usual: how each of these
    differs from the rest of them, where its own share does not say it."""

    now: Counted
    batches: Sequence[Counted]
    alpha: float
    usual: Sequence[Difference] | None = None

    @property
    def before(self) -> Counted:
        return sum(self.batches, NONE)

    def difference(self) -> Difference:
        return share_difference(self.now, self.before, self.alpha)

    def others(self) -> list[Difference]:
        """Each batch against the rest."""
        if self.usual is not None:
            return list(self.usual)
        whole = self.before
        return [share_difference(one, whole - one, self.alpha) for one in self.batches if one.n < whole.n]

    def found(self, limit: float, **told: Any) -> list[Finding]:
        """The finding, if it is one. told: what, column, of, keys of it."""
        if not abs(self.now.share - self.before.share) > limit:  # most columns: without a quantile
            return []
        mine = self.difference()
        if not stands_out(mine, limit, self.others):
            return []
        words: Any = {"before": _words(self.before), "now": _words(self.now)}
        return [Finding(**words, effect=mine.effect, limit=limit, **told)]


def mix(
    now: Mapping[str, Counted],
    batches: Sequence[Mapping[str, Counted]],
    alpha: float,
    limits: tuple[float, float],
    **told: Any,
) -> list[Finding]:
    """Of all values of a column: those whose share is another, or else the mix as a whole, by its population stability
    index. limits: of a share, and of the index; now, batches: value -> how many, each with the same `n`."""
    share, psi = limits
    found: list[Finding] = []
    usual: list[Difference] | None = None
    for name in sorted({*now, *(name for one in batches for name in one)}):
        compared = comparison(name, now, batches, alpha)
        if is_rare(name, batches) and abs(compared.now.share - compared.before.share) > share:
            usual = usual or rare_values(batches, alpha)
            compared = replace(compared, usual=usual)
        found += [replace(one, column=f"{one.column} = {name!r}") for one in compared.found(share, **told)]
    return found or _shifted(now, batches, alpha, psi, **told)


def is_rare(name: str, batches: Sequence[Mapping[str, Counted]]) -> bool:
    """Whether fewer than half of the batches have a value: then its own shares do not say what is usual of it."""
    return 2 * sum(name in one for one in batches) < len(batches)


def rare_values(batches: Sequence[Mapping[str, Counted]], alpha: float) -> list[Difference]:
    """Of each batch, the largest share of a value that is rare among the others, against these. Feeds of other shoots
    or speakers in every batch have such."""
    found = []
    for place, one in enumerate(batches):
        rest = [*batches[:place], *batches[place + 1 :]]
        rare = sorted(name for name in one if is_rare(name, rest))
        largest = max(rare, key=lambda name: one[name].share, default=None)
        known = largest is not None and comparison(largest, one, rest, alpha).difference()
        found.append(known or NO_RARE_VALUE)
    return found


def comparison(
    name: str, now: Mapping[str, Counted], batches: Sequence[Mapping[str, Counted]], alpha: float
) -> Comparison:
    """Of one value; a batch without it has 0 of its own."""
    return Comparison(now=_of(now, name), batches=[_of(one, name) for one in batches if one], alpha=alpha)


def _of(counts: Mapping[str, Counted], name: str) -> Counted:
    if name in counts:
        return counts[name]
    some = next(iter(counts.values()), NONE)
    return replace(some, k=0)


def _shifted(
    now: Mapping[str, Counted],
    batches: Sequence[Mapping[str, Counted]],
    alpha: float,
    limit: float,
    **told: Any,
) -> list[Finding]:
    names = sorted({*now, *(name for one in batches for name in one)})
    if len(names) < 2 or not now:
        return []
    mine = [_of(now, name) for name in names]
    each = [[_of(one, name) for name in names] for one in batches if one]
    whole = [sum((one[place] for one in each), NONE) for place in range(len(names))]
    difference = index_difference(mine, whole, alpha)

    def others() -> list[Difference]:
        rests = [[all_ - part for all_, part in zip(whole, one, strict=True)] for one in each]
        pairs = [(one, rest) for one, rest in zip(each, rests, strict=True) if rest[0].n]
        return [index_difference(one, rest, alpha) for one, rest in pairs]

    if not stands_out(difference, math.sqrt(limit), others):
        return []
    now_words, before_words = (", ".join(_top(names, counts)) for counts in (mine, whole))
    return [Finding(**told, before=before_words, now=now_words, effect=difference.effect**2, limit=limit)]


def index_difference(now: Sequence[Counted], before: Sequence[Counted], alpha: float) -> Difference:
    """Square root of the population stability index of two sets of shares, sum of (p - q) ln(p / q), half an object
    added to each count. n times the index, with 1/n = 1/n_now + 1/n_before, is about chi-square with one degree of
    freedom less than there are values (it is twice the mean of the two directions' G statistics): that says what chance
    makes of it."""
    import numpy as np

    n, m = (min(some[0].n, some[0].objects) for some in (now, before))
    if not n or not m:
        return UNKNOWN
    p = np.array([one.share * n + 0.5 for one in now])
    q = np.array([one.share * m + 0.5 for one in before])
    p, q = p / p.sum(), q / q.sum()
    scale, freedom = 1 / n + 1 / m, len(p) - 1
    return Difference(
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


def _words(one: Counted) -> str:
    return f"{one.share:.2%} of {round(one.n)}"


Floats = np.ndarray[Any, np.dtype[np.float64]]
DECILES = 10
PRECISION, NOTHING = 1e-6, 1e-12
"""Numbers that lie closer together, relative to their size or (NOTHING) absolutely, are one: the last digits are those
of a processor or library, and those of float32 from the eighth on."""
_STEPS = 50
"""Halvings in the search for a quantile."""


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


def settled(some: Sequence[Drawn]) -> list[Drawn]:
    """The same with values that differ in their last digits made equal: a run of them becomes its first one. A run that
    as a whole is wider than the last digits are, as of many different numbers, stays as it is."""
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
    """Difference of the means in standard deviations of what was before (Cohen's d); chance as of a normal one, and
    where that does not explain it, by a bound that holds of any distribution and number of objects."""
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
    """How far apart the means of two draws of one thing are at most, at alpha / 2 to this side.

    Both together are the thing: of n objects drawn from it, however few or skewed, the mean lies beyond d with a chance
    of at most exp(-n I(d)), I being the rate function of Cramer and Chernoff; without replacement still less often
    (Hoeffding 1963). Either side may be the draw; the smaller of the two bounds holds.
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
    """The mean whose rate function is `rate`, of a thing of mean 0; infinity where none has as much: then even the
    largest value, each time, is no wonder."""
    highest = float(centred.max())
    size = float(np.abs(centred).max())
    if not size:
        return 0.0

    def tilted(t: float) -> tuple[float, float]:
        """(the mean under exp(t x), its rate function)."""
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
    """'0.31 (0.12 to 0.55)': the median, and the middle four fifths."""
    low, middle, high = np.quantile(values, (0.1, 0.5, 0.9))
    return f"{middle:.4g} ({low:.4g} to {high:.4g})"


def ratio(now: Floats, before: Floats, alpha: float) -> Difference:
    """How far the mean of positive numbers, one per object, is another: |ln(mean / mean)|; chance by the delta method
    and a normal distribution, and where that does not explain it, as of `level`."""
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
