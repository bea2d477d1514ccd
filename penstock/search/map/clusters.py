"""Clusters of a map with their labels and words, odd labels, and groups of near-duplicates."""

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from loader.dataset.shards.bitmap import Bools
from loader.dataset.tables.parquet import Int64s

from .centres import Floats
from .lasso import Places
from .version_map import VersionMap

MOST_WORDS = 5
"""Words that tell a cluster."""
_WORD = re.compile(r"[^\W\d_]{3,}")
_BLOCK = 2_048


@dataclass(frozen=True, slots=True, kw_only=True)
class MapCluster:
    """A cluster of a map."""

    number: int
    n: int
    """Live samples."""
    label: str
    """Most frequent label, or "" without labels."""
    label_share: float
    """Share of the samples that have it; 0 without labels."""
    words: tuple[str, ...]
    """Words that are more frequent than in all samples, the most telling first."""
    cosine: float
    """Mean cosine between a sample and the cluster's mean."""
    x: int
    """Middle of its samples on the map."""
    y: int
    example: int
    """Ordinal of the sample nearest to its mean."""


def clusters(
    places: VersionMap,
    labels: Sequence[str | None] | None = None,
    texts: Sequence[str | None] | None = None,
) -> list[MapCluster]:
    """Return the clusters with samples, by number. labels, texts: one a live sample; None for a sample without."""
    all_words: Counter[str] = Counter()
    if texts is not None:
        all_words = _word_counts(texts)
    placed = np.flatnonzero(places.has_place)
    cluster = places.cluster[placed]
    by_cluster = np.argsort(cluster, kind="stable")
    numbers, starts = np.unique(
        cluster[by_cluster],
        return_index=True,
    )
    ordinals = placed[by_cluster]
    ends = [*starts[1:].tolist(), len(ordinals)]
    listed = []
    for number, start, end in zip(
        numbers.tolist(),
        starts.tolist(),
        ends,
        strict=True,
    ):
        own = ordinals[start:end]
        # Both stay empty without labels.
        label = ""
        n_label = 0
        if labels is not None:
            label, n_label = _commonest(labels, own)
        words: tuple[str, ...] = ()
        if texts is not None:
            words = _telling_words(
                texts,
                own,
                all_words,
            )
        cosines = places.cluster_cosine[own].astype(np.float32)
        cluster_facts = MapCluster(
            number=number,
            n=len(own),
            label=label,
            label_share=n_label / len(own),
            words=words,
            cosine=float(cosines.mean()),
            x=int(np.median(places.x[own])),
            y=int(np.median(places.y[own])),
            example=int(own[cosines.argmax()]),
        )
        listed.append(cluster_facts)
    return listed


def _commonest(labels: Sequence[str | None], ordinals: Int64s) -> tuple[str, int]:
    """Return the most frequent label of some samples, and how many have it; ("", 0) without any."""
    counts: Counter[str] = Counter()
    for ordinal in ordinals.tolist():
        label = labels[ordinal]
        if label is not None:
            counts[label] += 1
    if not counts:
        return "", 0
    return counts.most_common(1)[0]


def _word_counts(texts: Iterable[str | None]) -> Counter[str]:
    """Return word -> texts that have it, case-folded."""
    counts: Counter[str] = Counter()
    for text in texts:
        if text:
            counts.update(set(_WORD.findall(text.casefold())))
    return counts


def _telling_words(
    texts: Sequence[str | None],
    ordinals: Int64s,
    all_words: Counter[str],
) -> tuple[str, ...]:
    """Return words of some samples by how frequent they are, and how much more so than in all texts."""
    own_texts = [texts[ordinal] for ordinal in ordinals.tolist()]
    ranked = []
    for word, n in _word_counts(own_texts).items():
        own_share = n / len(own_texts)
        share = all_words[word] / len(texts)
        # Its part of the Kullback-Leibler divergence: a rare word weighs less than a frequent one.
        gain = own_share * math.log(own_share / share)
        if gain > 0 and n > 1:
            ranked.append((-gain, word))
    ranked.sort()
    return tuple(word for _, word in ranked[:MOST_WORDS])


def label_shares(
    cluster: Places,
    has_place: Bools,
    label_codes: Int64s,
) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Return float32 [n]: share of a sample's cluster that has its label; odd labels have the smallest.

    cluster, has_place: [n]. label_codes: int64 [n], -1 without a label. NaN without a place or a label.
    """
    shares = np.full(len(cluster), np.nan, np.float32)
    is_counted = has_place & (label_codes >= 0)
    if not is_counted.any():
        return shares
    own_cluster = cluster[is_counted].astype(np.int64)
    own_label = label_codes[is_counted]
    n_labels = int(own_label.max()) + 1
    pair = own_cluster * n_labels + own_label
    n_pairs = np.bincount(pair)
    n_cluster = np.bincount(own_cluster)
    shares[is_counted] = n_pairs[pair] / n_cluster[own_cluster]
    return shares


def near_duplicate_groups(
    vectors: Floats,
    least_cosine: float,
) -> Int64s:
    """Return int64 [n]: the first row of each row's group; rows are in one group if a chain of near pairs joins them.

    vectors: float32 [n, numbers], of length 1. Compares all pairs: 2 s for 20,000 of 320 numbers.
    """
    group = np.arange(len(vectors))
    for start in range(0, len(vectors), _BLOCK):
        block = vectors[start : start + _BLOCK]
        others = vectors[start:]
        cosines = block @ others.T
        pairs = np.argwhere(cosines >= least_cosine)
        for first, second in pairs.tolist():
            if first < second:
                _join(
                    group,
                    start + first,
                    start + second,
                )
    return _roots(group)


def copy_groups(keys: Sequence[str], copy_of: Sequence[str | None]) -> Int64s:
    """Return int64 [n]: the first row of each row's group, by the column `dup_of`: the key of the sample copied."""
    row_of = {key: row for row, key in enumerate(keys)}
    group = np.arange(len(keys))
    for row, original in enumerate(copy_of):
        if not original:
            continue
        # The original may be excluded: its copies are still a group, whose first one stands for it.
        other = row_of.setdefault(original, row)
        _join(
            group,
            row,
            other,
        )
    return _roots(group)


def _roots(group: Int64s) -> Int64s:
    for row in range(len(group)):
        group[row] = _root(group, row)
    return group


def _root(group: Int64s, row: int) -> int:
    while group[row] != row:
        group[row] = group[group[row]]
        row = int(group[row])
    return row


def _join(
    group: Int64s,
    first: int,
    second: int,
) -> None:
    """Join two rows' groups under the smaller root."""
    low = _root(group, first)
    high = _root(group, second)
    group[max(low, high)] = min(low, high)
