"""Compare shares: categories, nulls, zeros, outcomes.

One share uses Fisher's exact test, which holds near 0 and 1. The whole mix of a column uses the population stability
index.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from .findings import UNKNOWN, DriftFinding, EffectSize, each_and_rest, is_notable


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
        if self.n:
            return self.k / self.n
        return 0.0

    def evidence(self) -> tuple[int, int]:
        """Return (hits, trials), in whole objects."""
        trials = round(min(self.n, self.objects))
        hits = min(trials, round(self.share * trials))
        return hits, trials

    def __add__(self, other: "Counted") -> "Counted":
        return Counted(
            k=self.k + other.k,
            n=self.n + other.n,
            objects=self.objects + other.objects,
        )

    def __sub__(self, other: "Counted") -> "Counted":
        return Counted(
            k=self.k - other.k,
            n=self.n - other.n,
            objects=self.objects - other.objects,
        )


NONE = Counted(k=0, n=0, objects=0)
NO_RARE_VALUE = EffectSize(effect=0.0, chance=0.0, noise=0.0)


def share_difference(now: Counted, before: Counted, alpha: float) -> EffectSize:
    """Return the difference of two shares, and its size by chance."""
    hits, trials = now.evidence()
    earlier_hits, earlier = before.evidence()
    if not trials or not earlier:
        return UNKNOWN
    all_hits = hits + earlier_hits
    all_trials = trials + earlier
    rises = now.share > before.share
    edge = _hits_by_chance(all_trials, all_hits, trials, alpha, rises)
    # The difference if this batch has `edge` of all hits.
    apart = edge / trials - (all_hits - edge) / earlier
    if not rises:
        apart = -apart
    pooled_share = all_hits / all_trials
    variance = pooled_share * (1 - pooled_share) * (1 / trials + 1 / earlier)
    return EffectSize(
        effect=abs(now.share - before.share),
        chance=math.sqrt(variance),
        noise=max(0.0, apart) + 0.5 / trials,  # continuity: half a hit of this batch
    )


@lru_cache(maxsize=65_536)
def _hits_by_chance(
    objects: int,
    hits: int,
    drawn: int,
    alpha: float,
    most: bool,
) -> float:
    """Return the most (or least) hits among `drawn` of all `objects` that chance gives with probability `alpha`."""
    from scipy.stats import hypergeom

    if most:
        quantile = hypergeom.isf  # the quantile from above
    else:
        quantile = hypergeom.ppf
    return float(quantile(alpha, objects, hits, drawn))


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
        before = self.before
        if not abs(self.now.share - before.share) > limit:  # cheap exit for most columns
            return []
        difference = self.difference()
        if not is_notable(difference, limit, self.others):
            return []
        return [
            DriftFinding(
                before=_words(before),
                now=_words(self.now),
                effect=difference.effect,
                limit=limit,
                **labels,
            )
        ]


def mix(
    now: Mapping[str, Counted],
    batches: Sequence[Mapping[str, Counted]],
    alpha: float,
    limits: tuple[float, float],
    **labels: Any,
) -> list[DriftFinding]:
    """Find values of a column whose share changed, or else a change of the whole mix by its stability index.

    limits: for a share, and for the index. now, batches: value -> count; all counts of a batch have the same `n`.
    """
    share, psi = limits
    findings: list[DriftFinding] = []
    usual: list[EffectSize] | None = None
    for name in _names(now, batches):
        compared = comparison(name, now, batches, alpha)
        difference = abs(compared.now.share - compared.before.share)
        if is_rare(name, batches) and difference > share:
            # Most batches lack the value: its own shares show less than the jumps of all rare values.
            # All rare values share this list, and most mixes never need it.
            usual = usual or rare_values(batches, alpha)
            compared = replace(compared, usual=usual)
        for finding in compared.findings(share, **labels):
            column = f"{finding.column} = {name!r}"
            findings.append(replace(finding, column=column))
    return findings or _share_shifts(now, batches, alpha, psi, **labels)


def _names(now: Mapping[str, Counted], batches: Sequence[Mapping[str, Counted]]) -> list[str]:
    """Return all values that the column has in any batch, sorted."""
    return sorted(set(now).union(*batches))


def is_rare(name: str, batches: Sequence[Mapping[str, Counted]]) -> bool:
    """Return whether fewer than half of the batches have the value, so that its shares do not show what is usual."""
    return 2 * sum(name in one for one in batches) < len(batches)


def rare_values(batches: Sequence[Mapping[str, Counted]], alpha: float) -> list[EffectSize]:
    """Return for each batch the largest difference in share, over the values that are rare in the others."""
    differences = []
    for batch, rest in each_and_rest(batches):
        rare = sorted(name for name in batch if is_rare(name, rest))
        if not rare:
            differences.append(NO_RARE_VALUE)
            continue
        largest = max(rare, key=lambda name: batch[name].share)
        differences.append(comparison(largest, batch, rest, alpha).difference())
    return differences


def comparison(
    name: str,
    now: Mapping[str, Counted],
    batches: Sequence[Mapping[str, Counted]],
    alpha: float,
) -> Comparison:
    """Return the comparison of one value; its share is 0 in a batch without it."""
    counts = [_value_count(one, name) for one in batches if one]
    return Comparison(now=_value_count(now, name), batches=counts, alpha=alpha)


def _value_count(counts: Mapping[str, Counted], name: str) -> Counted:
    """Return the count of a value in a batch; none of all samples if the batch lacks it."""
    if name in counts:
        return counts[name]
    counted = next(iter(counts.values()), NONE)
    return replace(counted, k=0)


def _value_counts(counts: Mapping[str, Counted], names: Sequence[str]) -> list[Counted]:
    return [_value_count(counts, name) for name in names]


def _share_shifts(
    now: Mapping[str, Counted],
    batches: Sequence[Mapping[str, Counted]],
    alpha: float,
    limit: float,
    **labels: Any,
) -> list[DriftFinding]:
    """Find a change of the whole mix by its stability index. limit: for the index."""
    names = _names(now, batches)
    if len(names) < 2 or not now:
        return []
    current = _value_counts(now, names)
    # Per batch, one count per name.
    each = [_value_counts(batch, names) for batch in batches if batch]
    whole = [NONE] * len(names)
    for counts in each:
        whole = [total + count for total, count in zip(whole, counts, strict=True)]
    difference = index_difference(current, whole, alpha)

    def others() -> list[EffectSize]:
        differences = []
        for counts in each:
            rest = [total - count for total, count in zip(whole, counts, strict=True)]
            if rest[0].n:
                differences.append(index_difference(counts, rest, alpha))
        return differences

    # `index_difference` returns roots, and the limit is for the index.
    if not is_notable(difference, math.sqrt(limit), others):
        return []
    return [
        DriftFinding(
            **labels,
            before=_top(names, whole),
            now=_top(names, current),
            effect=difference.effect**2,
            limit=limit,
        )
    ]


def index_difference(now: Sequence[Counted], before: Sequence[Counted], alpha: float) -> EffectSize:
    """Return the square root of the population stability index of two sets of shares: sum of (p - q) ln(p / q).

    Half an object is added to each count. With 1/n = 1/n_now + 1/n_before, n times the index is about chi-square with
    (values - 1) degrees of freedom: twice the mean of two G statistics.
    """
    n = min(now[0].n, now[0].objects)
    m = min(before[0].n, before[0].objects)
    if not n or not m:
        return UNKNOWN
    p = np.array([one.share * n + 0.5 for one in now])  # [values]
    q = np.array([one.share * m + 0.5 for one in before])  # [values]
    p = p / p.sum()
    q = q / q.sum()
    index = float(((p - q) * np.log(p / q)).sum())
    scale = 1 / n + 1 / m
    freedom = len(p) - 1
    return EffectSize(
        effect=math.sqrt(index),
        chance=math.sqrt(freedom * scale),
        noise=math.sqrt(_index_by_chance(freedom, alpha) * scale),
    )


@lru_cache(maxsize=1024)
def _index_by_chance(freedom: int, alpha: float) -> float:
    """Return the chi-square value that chance exceeds with probability `alpha`. freedom: degrees of freedom."""
    from scipy.stats import chi2

    return float(chi2.isf(alpha, freedom))


def _top(names: Sequence[str], counts: Sequence[Counted]) -> str:
    """Return the three most frequent values with their shares."""
    ordered = sorted(zip(names, counts, strict=True), key=lambda item: (-item[1].k, item[0]))
    return ", ".join(f"{name} {count.share:.1%}" for name, count in ordered[:3])


def _words(counted: Counted) -> str:
    return f"{counted.share:.2%} of {round(counted.n)}"
