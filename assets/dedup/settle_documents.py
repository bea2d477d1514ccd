"""Choose among near documents: the first stays, and each later one near it is its copy.

Documents are visited as they landed. One that is near a document that stays, published or of the batch, is a copy of
the nearest such document: never of a copy. A document with the signature of an earlier copy has that copy's original,
even if a nearer document stayed in between. A published document always stays.

A document is compared only with staying documents that share a band with it. So each of a million copies of a text
costs one comparison. Memory: 1.1 kB per document, signatures included.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil

import numpy as np

from ..featurizers.texts.minhash import N_VALUES
from .bands import ALONE, UInt32s, band_hashes, first_equals, has_words, shared_buckets
from .hamming import Int64s, UInt64s
from .settle import FIRST_IN_ORDER, MINHASH, DuplicateOf

_PUBLISHED_BEFORE = "the other was published before"


def least_equal_values(min_similarity: float) -> int:
    """Return how many of 112 values two near documents share at least."""
    # 0.8 of 112 is 89.6, and 0.75 exactly 84: rounding must not make it 85.
    return ceil(round(min_similarity * N_VALUES, 6))


@dataclass(
    frozen=True,
    slots=True,
    kw_only=True,
)
class PublishedNear:
    """Near pairs of documents of a batch and published ones."""

    document: Int64s
    """Int64 [m]: row of the batch's document."""
    ordinal: Int64s
    """Int64 [m]: ordinal of the published document."""
    n_equal: Int64s
    """Int64 [m]: number of equal values of their signatures."""
    keys: Mapping[int, str]
    """Ordinal -> key."""

    def nearest(self) -> dict[int, tuple[int, int]]:
        """Return document -> (number of equal values, ordinal) of the nearest published one, the first of several."""
        order = np.lexsort((self.ordinal, -self.n_equal, self.document))
        nearest: dict[int, tuple[int, int]] = {}
        for place in order.tolist():
            document = int(self.document[place])
            if document not in nearest:
                nearest[document] = (int(self.n_equal[place]), int(self.ordinal[place]))
        return nearest


def no_published() -> PublishedNear:
    nothing = np.zeros(0, np.int64)
    return PublishedNear(
        document=nothing,
        ordinal=nothing,
        n_equal=nothing,
        keys={},
    )


@dataclass(
    frozen=True,
    slots=True,
    kw_only=True,
)
class SignedDocuments:
    """n documents of a batch, in landing order."""

    keys: Sequence[str]
    """Str [n]: sample keys."""
    signatures: UInt32s
    """Uint32 [n, 112]."""
    hashes: UInt64s
    """Uint64 [n, 14]: hash of each band."""
    first: Int64s
    """Int64 [n]: first document with the same signature."""

    @property
    def distinct(self) -> Int64s:
        """int64 [m]: documents with a word, each the first with its signature."""
        is_first = self.first == np.arange(len(self.first))
        return np.flatnonzero(is_first & has_words(self.signatures))

    @property
    def repeated(self) -> Int64s:
        """int64 [m]: documents with a word and an earlier one's signature."""
        is_repeated = self.first != np.arange(len(self.first))
        return np.flatnonzero(is_repeated & has_words(self.signatures))


def sign_documents(
    keys: Sequence[str],
    signatures: UInt32s,
) -> SignedDocuments:
    """Return documents with their bands. signatures: uint32 [n, 112], in landing order."""
    hashes = band_hashes(signatures)
    first = first_equals(signatures, hashes)
    return SignedDocuments(
        keys=keys,
        signatures=signatures,
        hashes=hashes,
        first=first,
    )


def settle_documents(
    documents: SignedDocuments,
    min_similarity: float,
    published: PublishedNear | None = None,
) -> dict[str, DuplicateOf]:
    """Return key -> original of each copy. A document without words is not a copy, and has none.

    published: near pairs of the distinct documents. O(n log n + near pairs).
    """
    if published is None:
        published = no_published()
    keys = documents.keys
    settlement = _Settlement(documents, least_equal_values(min_similarity))
    nearest_published = published.nearest()
    copies: dict[str, DuplicateOf] = {}
    for row, buckets in settlement.comparable(nearest_published):
        n_equal, other = settlement.nearest(row, buckets)
        n_published, ordinal = nearest_published.get(row, (0, -1))
        # Of two equally near originals the published one, as for images.
        if n_published and n_published >= n_equal:
            original = published.keys[ordinal]
            copies[keys[row]] = _copy(
                original,
                n_published,
                _PUBLISHED_BEFORE,
            )
        elif n_equal:
            copies[keys[row]] = _copy(
                keys[other],
                n_equal,
                FIRST_IN_ORDER,
            )
        else:
            settlement.stay(row, buckets)
    for row in documents.repeated.tolist():
        original = keys[int(documents.first[row])]
        # The first one may be a copy itself, of which nothing is a copy.
        copy = copies.get(original)
        if copy is None:
            copy = _copy(
                original,
                N_VALUES,
                FIRST_IN_ORDER,
            )
        copies[keys[row]] = copy
    return copies


def _copy(
    original: str,
    n_equal: int,
    why: str,
) -> DuplicateOf:
    return DuplicateOf(
        of=original,
        by=MINHASH,
        distance=1 - n_equal / N_VALUES,
        why=why,
    )


class _Settlement:
    """Documents that stay, by the buckets of their bands."""

    def __init__(
        self,
        documents: SignedDocuments,
        least_equal: int,
    ) -> None:
        self._signatures = documents.signatures
        self._rows = documents.distinct
        self._buckets = shared_buckets(documents.hashes[self._rows])  # int32 [m, 14]
        self._least_equal = least_equal
        self._stays: dict[int, list[int]] = defaultdict(list)  # bucket -> documents, in landing order

    def comparable(self, others: Mapping[int, object]) -> Iterator[tuple[int, list[int]]]:
        """Yield (document, its shared buckets) in landing order; all others stay. others: documents to yield, too."""
        is_shared = (self._buckets != ALONE).any(axis=1)
        is_shared |= np.isin(self._rows, list(others))
        for position in np.flatnonzero(is_shared).tolist():
            buckets = self._buckets[position]
            yield int(self._rows[position]), buckets[buckets != ALONE].tolist()

    def nearest(
        self,
        row: int,
        buckets: Sequence[int],
    ) -> tuple[int, int]:
        """Return (number of equal values, document) of the nearest document that stays; (0, -1) if none is near.

        If several are equally near, it is the first.
        """
        documents: set[int] = set()
        for bucket in buckets:
            documents.update(self._stays.get(bucket, ()))
        if not documents:
            return 0, -1
        candidates = np.array(sorted(documents))
        n_equal = np.count_nonzero(self._signatures[candidates] == self._signatures[row], axis=1)
        best = int(np.argmax(n_equal))
        if n_equal[best] < self._least_equal:
            return 0, -1
        return int(n_equal[best]), int(candidates[best])

    def stay(
        self,
        row: int,
        buckets: Sequence[int],
    ) -> None:
        """Let a document stay, as a possible original of later ones. buckets: its shared ones."""
        for bucket in buckets:
            self._stays[bucket].append(row)
