"""Detect captions that fit a neighbouring object, in key order, better than their own.

One test counts words shared with the object's label, title and file name. The other is the rank correlation of
duration with text length.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .distributions import Comparison, Counted, Floats
from .findings import DriftFinding, EffectSize, Thresholds, each_and_rest, stands_out

_WORD = re.compile(r"\w{3,}")
MIN_TEXTS = 20
_ONE_SIGMA = 0.3173  # both tails beyond one standard deviation

Bools = np.ndarray[Any, np.dtype[np.bool_]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Texts:
    """Texts of objects, and how well they fit."""

    keys: tuple[str, ...]
    """Sorted keys of the objects."""
    fits: Bools
    """Bool [keys]: whether the text shares a word with its own object's label, title or name."""
    shifted: Mapping[int, Bools]
    """Shift, -1 to 1 -> bool [keys - 2]: of three neighbouring rows, only that row shares a word with the text."""
    lengths: Floats
    """Float64: text lengths in characters, for objects with a duration."""
    durations_s: Floats
    """Float64: durations of the same objects, in seconds."""


def texts_of(objects: Sequence[Mapping[str, Any]], durations_s: Mapping[str, float]) -> Texts:
    """Return the texts of objects. objects: rows of `raw_objects`; durations_s: object key -> seconds."""
    rows = sorted((row for row in objects if row.get("text")), key=lambda row: row["key"])
    text_words = [_words(row["text"]) for row in rows]
    own = [_words(" ".join(str(row.get(name) or "") for name in ("label", "title", "key"))) for row in rows]
    n = len(rows)
    shifted = {
        shift: np.array([_shared(text_words[i], own, i, shift) for i in range(1, n - 1)], np.bool_)
        for shift in (-1, 0, 1)
    }
    timed = [row for row in rows if row["key"] in durations_s]
    return Texts(
        keys=tuple(row["key"] for row in rows),
        fits=np.array([bool(words & names) for words, names in zip(text_words, own, strict=True)], np.bool_),
        shifted=shifted,
        lengths=np.array([len(row["text"]) for row in timed], np.float64),
        durations_s=np.array([durations_s[row["key"]] for row in timed], np.float64),
    )


def caption_findings(
    now: Texts, batches: Sequence[Texts], thresholds: Thresholds, alpha: float
) -> list[DriftFinding]:
    """Find texts that fit another row better than their own, or fit worse than the baseline's texts do."""
    labels: Any = {"column": "text", "keys": now.keys[1:4]}
    findings = _shifted_words(now, alpha, labels) or _shifted_lengths(now, alpha, labels)
    if findings:
        return findings
    before = [_fitting(one) for one in batches if len(one.fits)]
    fitting = Comparison(now=_fitting(now), batches=before, alpha=alpha)
    if before and fitting.now.share < fitting.before.share:
        findings = fitting.findings(
            thresholds.caption, what="texts that have words of their object", **labels
        )
    timed = [one for one in batches if len(one.lengths) >= MIN_TEXTS]
    if findings or not timed or len(now.lengths) < MIN_TEXTS:
        return findings
    whole = _lengths(timed)
    difference = _correlated(now, whole, alpha)
    r, before_r = _rank_correlation(now, 0), _rank_correlation(whole, 0)

    def others() -> list[EffectSize]:
        return [_correlated(one, _lengths(rest), alpha) for one, rest in each_and_rest(timed)]

    if not r < before_r or not stands_out(difference, thresholds.caption, others):
        return []
    return [
        DriftFinding(
            what="length of text with duration",
            before=f"r = {before_r:.2f}",
            now=f"r = {r:.2f}",
            effect=difference.effect,
            limit=thresholds.caption,
            **labels,
        )
    ]


def _shifted_words(now: Texts, alpha: float, labels: Any) -> list[DriftFinding]:
    # McNemar's exact test over texts that share words with only one row, their own or the neighbour's.
    from scipy.stats import binom

    for shift in (-1, 1):
        own_fits, neighbour = now.shifted[0], now.shifted[shift]
        own, other = int((own_fits & ~neighbour).sum()), int((neighbour & ~own_fits).sum())
        if other > own and binom.sf(other - 1, own + other, 0.5) < alpha:
            before = "the own words in more texts than the neighbour's"
            words = f"the words of row {shift:+d} in {other}, the own in {own} texts"
            return [_of_another_row(before, words, labels)]
    return []


def _shifted_lengths(now: Texts, alpha: float, labels: Any) -> list[DriftFinding]:
    # Fisher's z: a neighbour's duration must fit the lengths significantly better than the own.
    if len(now.lengths) < MIN_TEXTS:
        return []
    own, chance = _rank_correlation(now, 0), _chance(alpha, len(now.lengths), len(now.lengths))
    for shift in (-1, 1):
        other = _rank_correlation(now, shift)
        if other > own and math.atanh(other) - math.atanh(own) > chance:
            words = f"r = {own:.2f}, with row {shift:+d} {other:.2f}"
            return [_of_another_row("longest for the own duration", words, labels)]
    return []


def _of_another_row(before: str, now: str, labels: Any) -> DriftFinding:
    return DriftFinding(what="texts of another row", certain=True, before=before, now=now, **labels)


def _words(text: str) -> frozenset[str]:
    return frozenset(word.casefold().rstrip("s") for word in _WORD.findall(text.replace("_", " ")))


def _shared(words: frozenset[str], own: Sequence[frozenset[str]], i: int, shift: int) -> bool:
    # Of three neighbouring rows, the text must share a word with only row `i + shift`.
    others = [own[i + step] for step in (-1, 0, 1) if step != shift]
    return bool(words & (own[i + shift] - others[0] - others[1]))


def _fitting(texts: Texts) -> Counted:
    return Counted(k=int(texts.fits.sum()), n=len(texts.fits), objects=len(texts.fits))


def _lengths(batches: Sequence[Texts]) -> Texts:
    return Texts(
        keys=(),
        fits=np.zeros(0, np.bool_),
        shifted={},
        lengths=np.concatenate([one.lengths for one in batches]),
        durations_s=np.concatenate([one.durations_s for one in batches]),
    )


def _correlated(now: Texts, before: Texts, alpha: float) -> EffectSize:
    current, usual = _rank_correlation(now, 0), _rank_correlation(before, 0)
    chance = _chance(alpha, len(now.lengths), len(before.lengths))
    edge = math.tanh(math.atanh(usual) - chance)  # lowest correlation by chance
    once = math.tanh(math.atanh(usual) - _chance(_ONE_SIGMA, len(now.lengths), len(before.lengths)))
    return EffectSize(effect=abs(usual - current), chance=abs(usual - once), noise=abs(usual - edge))


def _chance(alpha: float, n: int, m: int) -> float:
    # Largest chance difference of Fisher's z; 1.06 is for ranks (Fieller, Hartley and Pearson 1957).
    from scipy.stats import norm

    return float(norm.isf(alpha / 2)) * math.sqrt(1.06 / max(1, n - 3) + 1.06 / max(1, m - 3))


def _rank_correlation(texts: Texts, shift: int) -> float:
    """Return Spearman's correlation with the durations `shift` rows later; 0 if all are equal."""
    from scipy.stats import rankdata

    n = len(texts.lengths) - abs(shift)
    lengths = texts.lengths[max(0, -shift) :][:n]
    durations_s = texts.durations_s[max(0, shift) :][:n]
    ranks = [rankdata(values) for values in (lengths, durations_s)]
    if n < 3 or any(np.ptp(rank) == 0 for rank in ranks):
        return 0.0
    return float(np.clip(np.corrcoef(ranks[0], ranks[1])[0, 1], -0.999999, 0.999999))
