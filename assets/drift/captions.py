"""Texts that belong to another object: shifted by a row, they fit the neighbour's better.

Two links are looked at, over the objects of a batch in the order of their keys:

- words that a text shares with the label, title and file name of its object;
- for objects with a duration, the rank correlation of the text's length with it.

A text about nothing of that, in objects of equal length, cannot be told from its neighbour's here.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .distributions import Floats
from .findings import Difference, Finding, Thresholds, stands_out
from .shares import Comparison, Counted

_WORD = re.compile(r"\w{3,}")
MIN_TEXTS = 20
_ONE_SIGMA = 0.3173  # both tails beyond one standard deviation

Bools = np.ndarray[Any, np.dtype[np.bool_]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Texts:
    """Objects with a text."""

    keys: tuple[str, ...]
    """Keys of the objects, sorted."""
    fits: Bools
    """bool [keys]: the text has a word of its own label, title or name."""
    shifted: Mapping[int, Bools]
    """Shift in rows, -1 to 1 -> bool [keys - 2], without the first and last object. True: the text has a word of
    that row which the other two rows lack."""
    lengths: Floats
    """float64: length of the text in characters, of objects that also have a duration."""
    durations_s: Floats
    """float64: duration of the same objects in seconds."""


def texts_of(objects: Sequence[Mapping[str, Any]], durations_s: Mapping[str, float]) -> Texts:
    """Return the texts of objects. objects: rows of raw_objects; durations_s: by the object's key."""
    rows = sorted((row for row in objects if row.get("text")), key=lambda row: row["key"])
    said = [_words(row["text"]) for row in rows]
    own = [_words(" ".join(str(row.get(name) or "") for name in ("label", "title", "key"))) for row in rows]
    n = len(rows)
    shifted = {
        shift: np.array([_shared(said[i], own, i, shift) for i in range(1, n - 1)], np.bool_)
        for shift in (-1, 0, 1)
    }
    timed = [row for row in rows if row["key"] in durations_s]
    return Texts(
        keys=tuple(row["key"] for row in rows),
        fits=np.array([bool(words & mine) for words, mine in zip(said, own, strict=True)], np.bool_),
        shifted=shifted,
        lengths=np.array([len(row["text"]) for row in timed], np.float64),
        durations_s=np.array([durations_s[row["key"]] for row in timed], np.float64),
    )


def caption_findings(
    now: Texts, batches: Sequence[Texts], thresholds: Thresholds, alpha: float
) -> list[Finding]:
    """Find texts that fit another row better than their own (which needs no baseline), or fit worse than they did."""
    told: Any = {"column": "text", "keys": now.keys[1:4]}
    found = _shifted_words(now, alpha, told) or _shifted_lengths(now, alpha, told)
    if found:
        return found
    before = [_fitting(one) for one in batches if len(one.fits)]
    mine = Comparison(now=_fitting(now), batches=before, alpha=alpha)
    if before and mine.now.share < mine.before.share:
        found = mine.found(thresholds.caption, what="texts that have words of their object", **told)
    timed = [one for one in batches if len(one.lengths) >= MIN_TEXTS]
    if found or not timed or len(now.lengths) < MIN_TEXTS:
        return found
    whole = _lengths(timed)
    difference = _correlated(now, whole, alpha)
    others = [(one, _lengths([*timed[:i], *timed[i + 1 :]])) for i, one in enumerate(timed) if len(timed) > 1]
    r, before_r = _rank_correlation(now, 0), _rank_correlation(whole, 0)
    if r < before_r and stands_out(
        difference, thresholds.caption, lambda: [_correlated(one, rest, alpha) for one, rest in others]
    ):
        words: Any = {"before": f"r = {before_r:.2f}", "now": f"r = {r:.2f}"}
        found = [
            Finding(
                what="length of text with duration",
                **words,
                effect=difference.effect,
                limit=thresholds.caption,
                **told,
            )
        ]
    return found


def _shifted_words(now: Texts, alpha: float, told: Any) -> list[Finding]:
    """Apply McNemar's exact test to objects where either the own or the neighbour's words are in the text."""
    from scipy.stats import binom

    for shift in (-1, 1):
        mine, neighbour = now.shifted[0], now.shifted[shift]
        own, other = int((mine & ~neighbour).sum()), int((neighbour & ~mine).sum())
        if other > own and binom.sf(other - 1, own + other, 0.5) < alpha:
            words: Any = {
                "before": "the own words in more texts than the neighbour's",
                "now": f"the words of row {shift:+d} in {other}, the own in {own} texts",
            }
            return [Finding(what="texts of another row", certain=True, **words, **told)]
    return []


def _shifted_lengths(now: Texts, alpha: float, told: Any) -> list[Finding]:
    """Find a correlation with the neighbour's duration that is higher than with the own, beyond chance (Fisher's z)."""
    if len(now.lengths) < MIN_TEXTS:
        return []
    own = _rank_correlation(now, 0)
    for shift in (-1, 1):
        other = _rank_correlation(now, shift)
        if other > own and math.atanh(other) - math.atanh(own) > _chance(
            alpha, len(now.lengths), len(now.lengths)
        ):
            words: Any = {
                "before": "longest for the own duration",
                "now": f"r = {own:.2f}, with row {shift:+d} {other:.2f}",
            }
            return [Finding(what="texts of another row", certain=True, **words, **told)]
    return []


def _words(text: str) -> frozenset[str]:
    return frozenset(word.casefold().rstrip("s") for word in _WORD.findall(text.replace("_", " ")))


def _shared(said: frozenset[str], own: Sequence[frozenset[str]], i: int, shift: int) -> bool:
    """Return whether the text has a word of the row `shift` further that no other of the three rows has."""
    others = [own[i + step] for step in (-1, 0, 1) if step != shift]
    return bool(said & (own[i + shift] - others[0] - others[1]))


def _fitting(one: Texts) -> Counted:
    return Counted(k=int(one.fits.sum()), n=len(one.fits), objects=len(one.fits))


def _lengths(some: Sequence[Texts]) -> Texts:
    return Texts(
        keys=(),
        fits=np.zeros(0, np.bool_),
        shifted={},
        lengths=np.concatenate([one.lengths for one in some]),
        durations_s=np.concatenate([one.durations_s for one in some]),
    )


def _correlated(now: Texts, before: Texts, alpha: float) -> Difference:
    """Return the difference of two rank correlations; chance by Fisher's z."""
    mine, theirs = _rank_correlation(now, 0), _rank_correlation(before, 0)
    chance = _chance(alpha, len(now.lengths), len(before.lengths))
    edge = math.tanh(math.atanh(theirs) - chance)  # how low chance alone would make it
    once = math.tanh(math.atanh(theirs) - _chance(_ONE_SIGMA, len(now.lengths), len(before.lengths)))
    return Difference(effect=abs(theirs - mine), chance=abs(theirs - once), noise=abs(theirs - edge))


def _chance(alpha: float, n: int, m: int) -> float:
    """Return the chance of a difference of Fisher's z; 1.06 for ranks (Fieller, Hartley and Pearson 1957)."""
    from scipy.stats import norm

    return float(norm.isf(alpha / 2)) * math.sqrt(1.06 / max(1, n - 3) + 1.06 / max(1, m - 3))


def _rank_correlation(one: Texts, shift: int) -> float:
    """Return Spearman's correlation of each length with the duration `shift` rows further; 0 where all are equal."""
    from scipy.stats import rankdata

    n = len(one.lengths) - abs(shift)
    lengths = one.lengths[max(0, -shift) :][:n]
    durations_s = one.durations_s[max(0, shift) :][:n]
    ranks = [rankdata(values) for values in (lengths, durations_s)]
    if n < 3 or any(np.ptp(some) == 0 for some in ranks):
        return 0.0
    return float(np.clip(np.corrcoef(ranks[0], ranks[1])[0, 1], -0.999999, 0.999999))
