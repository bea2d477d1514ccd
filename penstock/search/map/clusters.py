"""Clusters of a map with their labels and words, odd labels, and groups of near-duplicates."""

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
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
_BLOCK = 512
"""Rows that are compared with all others at once: 41 MB for 20,000."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MapCluster:
    """A cluster of a map."""

    number: int
    n: int
    """Live samples."""
    label: int
    """Code of the most frequent label; -1 without labels."""
    label_share: float
    """Share of the samples that have it; 0 without labels."""
    words: tuple[str, ...]
    """Words that are more frequent than in all texts, the most telling first."""
    cosine: float
    """Mean cosine between a sample and the cluster's mean."""
    x: int
    """Middle of its samples on the map."""
    y: int
    example: int
    """Ordinal of the sample nearest to its mean."""


def clusters(
    places: VersionMap,
    label_codes: Int64s | None = None,
    texts: Mapping[int, str] | None = None,
) -> list[MapCluster]:
    """Return the clusters with samples, by number. 0.3 s for 1e6 samples.

    label_codes: int64 [len(version)], -1 without a label. texts: ordinal -> text, of some samples.
    """
    texts = texts or {}
    all_words = _word_counts(texts.values())
    placed = np.flatnonzero(places.has_place)  # [n]: ordinals of samples with a place
    cluster = places.cluster[placed]
    by_cluster = np.argsort(cluster, kind="stable")  # one cluster after the other, by ordinal within it
    numbers, starts = np.unique(
        cluster[by_cluster],
        return_index=True,
    )
    texts_by_cluster: dict[int, list[str]] = {}
    for ordinal, text in texts.items():
        number = int(places.cluster[ordinal])
        own_texts = texts_by_cluster.setdefault(number, [])
        own_texts.append(text)
    listed = []
    for number, ordinals in zip(
        numbers.tolist(),
        np.split(placed[by_cluster], starts[1:]),
        strict=True,
    ):
        label, n_label = _commonest(label_codes, ordinals)
        words = _telling_words(
            texts_by_cluster.get(number, []),
            all_words,
            len(texts),
        )
        cosines = places.cluster_cosine[ordinals].astype(np.float32)
        cluster_facts = MapCluster(
            number=number,
            n=len(ordinals),
            label=label,
            label_share=n_label / len(ordinals),
            words=words,
            cosine=float(cosines.mean()),
            x=int(np.median(places.x[ordinals])),
            y=int(np.median(places.y[ordinals])),
            example=int(ordinals[cosines.argmax()]),
        )
        listed.append(cluster_facts)
    return listed


def _commonest(label_codes: Int64s | None, ordinals: Int64s) -> tuple[int, int]:
    """Return the most frequent label of some samples, and how many have it; (-1, 0) without any."""
    if label_codes is None:
        return -1, 0
    codes = label_codes[ordinals]
    codes = codes[codes >= 0]
    if not len(codes):
        return -1, 0
    counts = np.bincount(codes)
    label = int(counts.argmax())
    return label, int(counts[label])


def _word_counts(texts: Iterable[str]) -> Counter[str]:
    """Return word -> texts that have it, case-folded."""
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(set(_WORD.findall(text.casefold())))
    return counts


def _telling_words(
    own_texts: Sequence[str],
    all_words: Counter[str],
    n_texts: int,
) -> tuple[str, ...]:
    """Return words of some texts by how frequent they are, and how much more so than in all `n_texts`."""
    ranked = []
    for word, n in _word_counts(own_texts).items():
        own_share = n / len(own_texts)
        share = all_words[word] / n_texts
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
) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return float64 [n]: share of a sample's cluster that has its label; odd labels have the smallest.

    cluster, has_place: [n]. label_codes: int64 [n], -1 without a label. NaN without a place or a label.
    """
    shares = np.full(len(cluster), np.nan)
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
        is_near = block @ others.T >= least_cosine
        n_near = np.count_nonzero(is_near, axis=1)
        has_pair = np.flatnonzero(n_near > 1)
        for row in has_pair.tolist():
            near = start + np.flatnonzero(is_near[row])
            joined = np.unique(group[near])
            if len(joined) > 1:
                # Pairs one by one would take minutes for a thousand copies.
                group[np.isin(group, joined)] = joined[0]
    return group


def copy_groups(keys: Sequence[str], copy_of: Sequence[str | None]) -> Int64s:
    """Return int64 [n]: the first row of each row's group, by the column `dup_of`: the key of the sample copied."""
    rows_by_key = {key: row for row, key in enumerate(keys)}
    group = np.arange(len(keys))
    for row, original in enumerate(copy_of):
        if not original:
            continue
        # The original may be excluded: its copies are still a group, whose first one stands for it.
        other = rows_by_key.setdefault(original, row)
        _join(
            group,
            row,
            other,
        )
    return _roots(group)


def _roots(group: Int64s) -> Int64s:
    """Return each row's root. group: int64 [n], a row nearer to the root, or the row itself; overwritten."""
    for row in range(len(group)):
        group[row] = _root(group, row)
    return group


def _root(group: Int64s, row: int) -> int:
    while group[row] != row:
        group[row] = group[group[row]]  # shortens the chain for the next call
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
