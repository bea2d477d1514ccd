"""Compare shares of categories, nulls, zeros and outcomes, by Fisher's exact test, which holds near 0 and 1 too."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from .findings import UNKNOWN, DriftFinding, EffectSize, stands_out


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """A count among samples. Evidence is counted in raw objects, since samples of one object resemble each other."""

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
    """The batch's share."""
    batches: Sequence[Counted]
    """Shares of the baseline's batches."""
    alpha: float
    """Significance of one comparison."""
    usual: Sequence[EffectSize] | None = None
    """Difference of each batch from the rest; None derives it from their shares."""

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
        words: Any = {"before": _words(self.before), "now": _words(self.now)}
        return [DriftFinding(**words, effect=difference.effect, limit=limit, **labels)]


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
    """Return for each batch the largest difference in share, over the values that are rare in the others.

    Such values occur in feeds with new shoots or speakers in every batch.
    """
    differences = []
    for place, batch in enumerate(batches):
        rest = [*batches[:place], *batches[place + 1 :]]
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
    (values - 1) degrees of freedom. The reason: it is twice the mean of the two directions' G statistics.
    """
    import numpy as np

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
