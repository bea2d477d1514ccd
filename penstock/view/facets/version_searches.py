"""Searches of a viewer's pages: samples with words, and samples in the order of their similarity to another."""

import hashlib
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from threading import Lock
from typing import Any

import numpy as np

import loader
from loader.dataset.versions.sample_search import (
    SearchResult,
    forget_searches,
    match_words,
    open_similarity,
    search_samples,
)
from loader.errors import (
    FieldMismatch,
    FieldNotFound,
    InvalidRuntime,
    MissingDependency,
    NotIndexed,
    SampleNotFound,
)
from loader.storage.store import as_disk

from ..kinds.stored_bytes import release_memory
from ..lru_cache import LruCache
from .column_codes import Bools
from .spread_rows import WHOLE_UP_TO, is_spread

MOST_SEARCHED = 2
"""Versions whose indexes stay open: each takes 20 MB for a million samples, and codes and texts on a local disk."""
MOST_LOOK_ALIKES = 12
MOST_COMPARED_NOW = 2_000
"""Most embeddings of a local disk that a sample's page compares: 15 ms."""
WORDS_BYTES = 16 * 2**20
"""Cached results of words, a bit a sample, in bytes."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WordMembers:
    """Samples with words."""

    bits: np.ndarray[Any, np.dtype[np.uint8]]
    """uint8 [ceil(live samples / 8)]."""
    damaged: Mapping[str, str]
    """Path of a segment that was left out -> what is wrong with it."""


class VersionSearches:
    """Open indexes of the versions that pages search. Thread-safe. A page that does not search opens none."""

    def __init__(self) -> None:
        self._words = LruCache[WordMembers](WORDS_BYTES, lambda members: members.bits.nbytes)
        self._lock = Lock()
        # Weak: a version's lease ends once no page holds it.
        self._searched: list[weakref.ref[loader.Version]] = []

    def word_members(
        self,
        version: "loader.Version",
        words: str,
        members: Bools | None,
    ) -> tuple[Bools, Mapping[str, str]]:
        """Return (bool [live samples]: members with these words, segments that were left out).

        members: bool [live samples]; None for all. Raises: FieldNotFound; NotIndexed; InvalidRuntime.
        """
        _check_size(version, f"penstock search {version.name} WORDS --where SQL")
        digest = ""
        if members is not None:
            # Words find other samples under another filter, so the members are part of the key.
            digest = hashlib.sha256(np.packbits(members).tobytes()).hexdigest()
        key = (version.store.url, version.id, words, digest)

        def make() -> WordMembers:
            self._note(version)
            matches = match_words(version, words, members)
            release_memory()
            return WordMembers(bits=np.packbits(matches.members), damaged=matches.damaged)

        try:
            matching = self._words.get(key, make)
        except NotIndexed:
            forget_searches(version)  # a person indexes it, and asks again
            raise
        with_words = np.unpackbits(matching.bits, count=len(version)).astype(bool)
        return with_words, matching.damaged

    def ranked(
        self,
        version: "loader.Version",
        keys: str | Sequence[str],
        k: int,
        members: Bools | None,
    ) -> SearchResult:
        """Return the `k` members most similar to samples, the best first. members: bool [live samples]; None for all.

        Raises: SampleNotFound; FieldMismatch; FieldNotFound; NotIndexed; MissingDependency; InvalidRuntime.
        """
        _check_size(version, f"penstock search {version.name} --like KEY --where SQL")
        self._note(version)
        try:
            result = search_samples(
                version,
                like=keys,
                k=k,
                members=members,
            )
        except NotIndexed:
            forget_searches(version)
            raise
        release_memory()
        return result

    def look_alikes(
        self,
        version: "loader.Version",
        ordinal: int,
        key: str,
    ) -> SearchResult | None:
        """Return the samples most similar to one, which is not among them; None if a page would wait for them.

        A page waits for no index to be opened, and for few embeddings to be compared.
        """
        most = 0
        if as_disk(version.shard_store) is not None:
            most = MOST_COMPARED_NOW
        try:
            similarity = open_similarity(version)
            n_compared = len(version)
            if similarity is not None:
                n_compared = similarity.n_uncoded
            if n_compared > most:
                return None
            result = self.ranked(
                version,
                key,
                # The sample is most similar to itself, and left out below.
                MOST_LOOK_ALIKES + 1,
                None,
            )
        except (FieldNotFound, FieldMismatch, NotIndexed, InvalidRuntime, MissingDependency, SampleNotFound):
            return None
        others = np.flatnonzero(result.ordinals != ordinal)[:MOST_LOOK_ALIKES]
        return replace(
            result,
            ordinals=result.ordinals[others],
            scores=result.scores[others],
        )

    def _note(self, version: "loader.Version") -> None:
        """Close the indexes of the version that was searched the longest time ago."""
        with self._lock:
            # Drops versions that were closed, and moves this one to the end.
            others = [one for one in self._searched if one() not in (None, version)]
            self._searched = [*others, weakref.ref(version)]
            while len(self._searched) > MOST_SEARCHED:
                oldest = self._searched.pop(0)()
                if oldest is not None:
                    forget_searches(oldest)


def _check_size(version: "loader.Version", command: str) -> None:
    if is_spread(version):
        raise InvalidRuntime(
            f"{version.name} has {len(version):,} samples; a page searches up to {WHOLE_UP_TO:,}. Run {command}"
        )
