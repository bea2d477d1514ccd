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

from .distributions import Floats
from .findings import DriftFinding, EffectSize, Thresholds, each_and_rest, is_notable
from .shares import Comparison, Counted

_WORD = re.compile(r"\w{3,}")
COLUMN = "text"
MIN_TEXTS = 20
MAX_EXAMPLES = 3
"""Most keys that a finding names."""
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
    timed_keys: tuple[str, ...]
    """Sorted keys of the objects with a duration."""
    lengths: Floats
    """Float64 [timed keys]: text lengths in characters."""
    durations_s: Floats
    """Float64 [timed keys], in seconds."""


def object_texts(objects: Sequence[Mapping[str, Any]], durations_s: Mapping[str, float]) -> Texts:
    """Return the texts of objects. objects: rows of `raw_objects`; durations_s: object key -> seconds."""
    rows = sorted((row for row in objects if row.get("text")), key=lambda row: row["key"])
    text_words = [_words(row["text"]) for row in rows]
    own_words = [_own_words(row) for row in rows]
    fits = [bool(words & own) for words, own in zip(text_words, own_words, strict=True)]
    middle = range(1, len(rows) - 1)  # rows with a neighbour on either side
    shifted = {}
    for shift in (-1, 0, 1):
        is_shared = [_is_shared(text_words[i], own_words, i, shift) for i in middle]
        shifted[shift] = np.array(is_shared, np.bool_)
    timed = [row for row in rows if row["key"] in durations_s]
    return Texts(
        keys=tuple(row["key"] for row in rows),
        fits=np.array(fits, np.bool_),
        shifted=shifted,
        timed_keys=tuple(row["key"] for row in timed),
        lengths=np.array([len(row["text"]) for row in timed], np.float64),
        durations_s=np.array([durations_s[row["key"]] for row in timed], np.float64),
    )


def caption_findings(
    now: Texts,
    batches: Sequence[Texts],
    thresholds: Thresholds,
    alpha: float,
) -> list[DriftFinding]:
    """Find texts that fit another row better than their own, or fit worse than the baseline's texts do."""
    # A shift of rows shows in the first two, and explains every worse fit in the others.
    return (
        _shifted_words(now, alpha)
        or _shifted_lengths(now, alpha)
        or _fewer_shared_words(now, batches, thresholds.caption, alpha)
        or _weaker_correlation(now, batches, thresholds.caption, alpha)
    )


def _shifted_words(now: Texts, alpha: float) -> list[DriftFinding]:
    # McNemar's exact test over texts that share words with only one row, their own or the neighbour's.
    from scipy.stats import binom

    middle_keys = now.keys[1:-1]  # of the rows with a neighbour on either side
    for shift in (-1, 1):
        own_fits = now.shifted[0]
        neighbour_fits = now.shifted[shift]
        is_of_neighbour = neighbour_fits & ~own_fits
        own = int((own_fits & ~neighbour_fits).sum())
        other = int(is_of_neighbour.sum())
        if other <= own:
            continue
        chance = binom.sf(other - 1, own + other, 0.5)
        if chance < alpha:
            before = "more texts share words with their own row than with a neighbour's"
            current = f"{other} texts share words only with row {shift:+d}, {own} only with their own"
            examples = [middle_keys[number] for number in np.flatnonzero(is_of_neighbour)[:MAX_EXAMPLES]]
            return [_of_another_row(before, current, examples)]
    return []


def _shifted_lengths(now: Texts, alpha: float) -> list[DriftFinding]:
    # Fisher's z: a neighbour's duration must fit the lengths significantly better than the own.
    if len(now.lengths) < MIN_TEXTS:
        return []
    own = _rank_correlation(now, shift=0)
    chance = _chance(alpha, len(now.lengths), len(now.lengths))
    for shift in (-1, 1):
        other = _rank_correlation(now, shift)
        z_difference = math.atanh(other) - math.atanh(own)
        if z_difference > chance:
            before = "lengths of texts fit their own row's duration best"
            current = f"r = {own:.2f} with their own row, {other:.2f} with row {shift:+d}"
            return [_of_another_row(before, current, _keys_of_worst_lengths(now))]
    return []


def _fewer_shared_words(
    now: Texts,
    batches: Sequence[Texts],
    limit: float,
    alpha: float,
) -> list[DriftFinding]:
    """Find that fewer texts share a word with their own object than in the baseline. limit: of the share's fall."""
    before = [_count_fits(one) for one in batches if len(one.fits)]
    if not before:
        return []
    fits = Comparison(now=_count_fits(now), batches=before, alpha=alpha)
    if fits.now.share >= fits.before.share:
        return []
    examples = [now.keys[number] for number in np.flatnonzero(~now.fits)[:MAX_EXAMPLES]]
    return fits.findings(
        limit,
        what="texts that have words of their object",
        column=COLUMN,
        keys=tuple(examples),
    )


def _weaker_correlation(
    now: Texts,
    batches: Sequence[Texts],
    limit: float,
    alpha: float,
) -> list[DriftFinding]:
    """Find a rank correlation of text length with duration that is lower than in the baseline. limit: of its fall."""
    timed = [one for one in batches if len(one.lengths) >= MIN_TEXTS]
    if not timed or len(now.lengths) < MIN_TEXTS:
        return []
    whole = _lengths(timed)
    difference = _correlation_difference(now, whole, alpha)
    r = _rank_correlation(now, shift=0)
    before_r = _rank_correlation(whole, shift=0)

    def others() -> list[EffectSize]:
        return [_correlation_difference(one, _lengths(rest), alpha) for one, rest in each_and_rest(timed)]

    if not r < before_r or not is_notable(difference, limit, others):
        return []
    return [
        DriftFinding(
            what="length of text with duration",
            column=COLUMN,
            before=f"r = {before_r:.2f}",
            now=f"r = {r:.2f}",
            effect=difference.effect,
            limit=limit,
            keys=tuple(_keys_of_worst_lengths(now)),
        )
    ]


def _keys_of_worst_lengths(texts: Texts) -> list[str]:
    """Return the keys whose text lengths differ most from their durations, by rank."""
    from scipy.stats import rankdata

    rank_difference = np.abs(rankdata(texts.lengths) - rankdata(texts.durations_s))  # [timed keys]
    worst_first = np.argsort(-rank_difference, kind="stable")
    return [texts.timed_keys[number] for number in worst_first[:MAX_EXAMPLES]]


def _of_another_row(before: str, now: str, keys: Sequence[str]) -> DriftFinding:
    return DriftFinding(
        what="texts of another row",
        column=COLUMN,
        certain=True,
        before=before,
        now=now,
        keys=tuple(keys),
    )


def _words(text: str) -> frozenset[str]:
    words = _WORD.findall(text.replace("_", " "))
    return frozenset(word.casefold().rstrip("s") for word in words)  # a plural counts as its singular


def _own_words(row: Mapping[str, Any]) -> frozenset[str]:
    names = [str(row.get(name) or "") for name in ("label", "title", "key")]
    return _words(" ".join(names))


def _is_shared(
    words: frozenset[str],
    own: Sequence[frozenset[str]],
    i: int,
    shift: int,
) -> bool:
    # Of three neighbouring rows, the text must share a word with only row `i + shift`.
    first, second = (own[i + step] for step in (-1, 0, 1) if step != shift)
    only_there = own[i + shift] - first - second
    return bool(words & only_there)


def _count_fits(texts: Texts) -> Counted:
    """Count the texts that share a word with their own object: each text is of another object."""
    n = len(texts.fits)
    return Counted(k=int(texts.fits.sum()), n=n, objects=n)


def _lengths(batches: Sequence[Texts]) -> Texts:
    """Return the lengths and durations of several batches as one, without keys and words."""
    return Texts(
        keys=(),
        timed_keys=(),
        fits=np.zeros(0, np.bool_),
        shifted={},
        lengths=np.concatenate([one.lengths for one in batches]),
        durations_s=np.concatenate([one.durations_s for one in batches]),
    )


def _correlation_difference(now: Texts, before: Texts, alpha: float) -> EffectSize:
    """Return the difference of two rank correlations of length with duration, and its size by chance."""
    n = len(now.lengths)
    m = len(before.lengths)
    current = _rank_correlation(now, shift=0)
    usual = _rank_correlation(before, shift=0)
    usual_z = math.atanh(usual)  # Fisher's z, whose spread by chance does not depend on the correlation
    edge = math.tanh(usual_z - _chance(alpha, n, m))  # lowest correlation by chance
    one_sigma = math.tanh(usual_z - _chance(_ONE_SIGMA, n, m))
    return EffectSize(
        effect=abs(usual - current),
        chance=abs(usual - one_sigma),
        noise=abs(usual - edge),
    )


def _chance(alpha: float, n: int, m: int) -> float:
    # Largest chance difference of Fisher's z; 1.06 is for ranks (Fieller, Hartley and Pearson 1957).
    from scipy.stats import norm

    variance = 1.06 / max(1, n - 3) + 1.06 / max(1, m - 3)
    return float(norm.isf(alpha / 2)) * math.sqrt(variance)


def _rank_correlation(texts: Texts, shift: int) -> float:
    """Return Spearman's correlation with the durations `shift` rows later; 0 if all are equal."""
    from scipy.stats import rankdata

    n = len(texts.lengths) - abs(shift)
    lengths = texts.lengths[max(0, -shift) :][:n]
    durations_s = texts.durations_s[max(0, shift) :][:n]
    if n < 3:
        return 0.0
    length_ranks = rankdata(lengths)
    duration_ranks = rankdata(durations_s)
    if np.ptp(length_ranks) == 0 or np.ptp(duration_ranks) == 0:
        return 0.0
    correlation = np.corrcoef(length_ranks, duration_ranks)[0, 1]
    return float(np.clip(correlation, -0.999999, 0.999999))  # `_correlation_difference`: atanh(1) is infinite
