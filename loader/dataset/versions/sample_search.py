"""Search a version's samples by similarity and by words: `version.search`."""

import csv
import dataclasses
import math
import os
from collections.abc import Collection
from dataclasses import dataclass, replace
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from ...errors import InvalidRuntime, SampleNotFound
from ...json_text import is_text
from ...keywords import whole_number
from ..search.index_record import similarity_field, text_fields
from ..search.key_hashes import MOST_KEYS, KeyHashes
from ..search.similarity import Similarity
from ..search.text_index import TextIndex, word_members
from ..search.words import parse_words
from ..shards.bitmap import Bools
from .samples_table import Int64s, key_files, live_ordinals, live_where, ordinals_in_tables

if TYPE_CHECKING:
    from ..reading.sample_places import VersionData

Like: TypeAlias = "str | Collection[str] | Collection[float] | np.ndarray[Any, Any]"
"""A key; keys, whose mean is compared; or a vector."""
MOST_RESULTS = 10_000
MOST_DIRECTIONS = 64
"""Most keys whose directions a version keeps."""
MOST_SAMPLES_OF_WORDS = 20_000_000
"""Most texts that a query searches: 6 s."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SearchResult:
    """Samples that a search returned."""

    version: "VersionData"
    field: str
    """Field that was compared; of words, the text fields, separated by commas."""
    ordinals: Int64s
    """int64 [n]: live ordinals, the most similar first; of words without `like`, in version order."""
    scores: np.ndarray
    """float64 [n]: cosines, -1 to 1; NaN for words without `like`."""
    exact: bool
    """True if every embedding, or every text, was compared."""
    n_searched: int
    """Embeddings, codes or texts that were compared; all samples if there was nothing to compare."""
    n_matching: int
    """Samples that pass words and where; the result has the first or best `k` of them."""
    damaged: dict[str, str] = dataclasses.field(default_factory=dict)
    """Path of a segment that was left out -> what is wrong with it."""

    def __len__(self) -> int:
        return len(self.ordinals)

    def keys(self) -> list[str]:
        """Return the samples' keys, in the order of `ordinals`."""
        if not len(self.ordinals):
            return []
        return self.version.keys(self.ordinals)

    def to_json(self) -> dict[str, Any]:
        samples = []
        rows = zip(
            self.ordinals.tolist(),
            self.keys(),
            self.scores.tolist(),
            strict=True,
        )
        for ordinal, key, score in rows:
            stated_score = score
            if math.isnan(score):
                stated_score = None
            samples.append({"ordinal": ordinal, "key": key, "score": stated_score})
        return {
            "version": self.version.name,
            "field": self.field,
            "exact": self.exact,
            "n_searched": self.n_searched,
            "found": samples,
        }


def search_samples(
    version: "VersionData",
    words: str | None = None,
    *,
    like: "Like | None" = None,
    k: int = 60,
    where: str | None = None,
    members: Bools | None = None,
    field_name: str | None = None,
    cache: str | os.PathLike[str] | None = None,
) -> SearchResult:
    """Return the samples most similar to others, or the ones whose texts have these words.

    Args:
        words: a sample matches with every word and "phrase", and without any -word. They filter. Without `like`, the
            result is in version order.
        like: a key, keys (the mean of their embeddings, each of length 1), or a vector. A text may name several keys,
            with commas between them. The samples themselves are in the result.
        k: most samples to return, up to 10,000.
        where: SQL expression over the samples table.
        members: bool [len(version)], the only samples to search; None for all. Without words and `like` the result is
            the first of them.
        field_name: field to compare; None is the embedding. Without `like` it is the text field to search, None is all.
        cache: folder on a local disk for codes, shared by processes; None is a temporary one.

    Without an index (`penstock index`) up to 100,000 embeddings or texts are read for a query.

    Raises: SampleNotFound for a key that does not exist or is excluded; FieldMismatch for a vector that is zero, not
    finite or of another width; FieldNotFound; NotIndexed; InvalidRuntime; MissingDependency.
    """
    k = whole_number("k", k, 1, MOST_RESULTS)
    if words is None and like is None and members is None:
        raise InvalidRuntime(
            "a search needs words, or like= with a key, keys or a vector",
            what="words",
            given="none",
            accepted="words or like",
        )
    selected = _select(version, where, members)
    if words is None and like is None:
        unsearched = WordMatches(
            field="",
            members=selected,
            n_searched=len(version),
            damaged={},
        )
        return _first_result(version, unsearched, k)
    state = _search_state(version, cache)
    with state.lock:
        if like is None:
            texts = _search_words(state, words or "", field_name, selected)
            return _first_result(version, texts, k)
        damaged: dict[str, str] = {}
        if words is not None:
            texts = _search_words(state, words, field_name=None, selected=selected)
            selected = texts.members
            damaged = texts.damaged
        result = _search_like(state, like, field_name, k, selected)
        return replace(result, damaged=result.damaged | damaged)


def search_ordinals(
    version: "VersionData",
    words: str | None,
    *,
    like: "Like | None",
    k: int | None,
    where: str | None,
    members: Bools | None,
) -> Int64s:
    """Return the live ordinals of a search: with `like` the best `k`, otherwise all that match, in version order.

    Raises: as `search_samples`.
    """
    if like is not None:
        result = search_samples(
            version,
            words,
            like=like,
            k=k or 0,
            where=where,
            members=members,
        )
        return result.ordinals
    selected = _select(version, where, members)
    if words is not None:
        selected = match_words(version, words, selected).members
    return np.flatnonzero(selected)


def _select(
    version: "VersionData",
    where: str | None,
    members: Bools | None,
) -> Bools:
    """Return bool [len(version)]: the members that satisfy an expression; None stands for all."""
    selected = np.ones(len(version), bool)
    if members is not None:
        selected &= members
    if where is not None:
        selected &= live_where(version, where)
    return selected


def match_words(
    version: "VersionData",
    words: str,
    members: Bools | None = None,
) -> "WordMatches":
    """Return the samples of which some text field has these words.

    members: bool [len(version)], the only ones to search; None for all.

    Raises: FieldNotFound; NotIndexed; InvalidRuntime.
    """
    if members is None:
        members = np.ones(len(version), bool)
    state = _search_state(version, cache=None)
    with state.lock:
        return _search_words(state, words, field_name=None, selected=members)


def _search_like(
    state: "_SearchState",
    like: "Like",
    field_name: str | None,
    k: int,
    selected: Bools,
) -> SearchResult:
    """Return the most similar of the selected samples, bool [len(version)]."""
    version = state.version
    similarity = state.similarity(field_name)
    query = state.direction(similarity, like)
    nearest = similarity.nearest(query, k, selected)
    return SearchResult(
        version=version,
        field=similarity.field,
        ordinals=nearest.ordinals,
        scores=nearest.scores,
        exact=nearest.exact,
        n_searched=nearest.n_searched,
        n_matching=int(np.count_nonzero(selected)),
        damaged=nearest.damaged,
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WordMatches:
    """Samples with words."""

    field: str
    """Text fields, separated by commas."""
    members: Bools
    """bool [len(version)]."""
    n_searched: int
    """Texts that were compared."""
    damaged: dict[str, str]
    """Path of a segment that was left out -> what is wrong with it."""


def _first_result(
    version: "VersionData",
    matches: WordMatches,
    k: int,
) -> SearchResult:
    """Return the first `k` matches in version order."""
    ordinals = np.flatnonzero(matches.members)
    shown = ordinals[:k]
    return SearchResult(
        version=version,
        field=matches.field,
        ordinals=shown,
        scores=np.full(len(shown), np.nan),
        exact=True,
        n_searched=matches.n_searched,
        n_matching=len(ordinals),
        damaged=matches.damaged,
    )


def _search_words(
    state: "_SearchState",
    words: str,
    field_name: str | None,
    selected: Bools,
) -> WordMatches:
    """Return the selected samples, bool [len(version)], with these words. field_name: None for all text fields."""
    n_searched = int(np.count_nonzero(selected))
    indexes = state.text_indexes(words, field_name, n_searched)
    members = word_members(indexes, parse_words(words), selected)
    damaged: dict[str, str] = {}
    for index in indexes:
        damaged |= index.damaged
    return WordMatches(
        field=",".join(index.field for index in indexes),
        members=members,
        n_searched=n_searched,
        damaged=damaged,
    )


def parse_keys(version: "VersionData", text: str) -> list[str]:
    """Return the keys that a text names: one key, or keys with commas between them.

    A text that is the key of a live sample names that sample. Otherwise a key that has a comma stands in double quotes.
    """
    if "," not in text or live_ordinals(version, [text])[0] >= 0:
        return [text]
    try:
        (row,) = csv.reader([text], skipinitialspace=True, strict=True)
    except (csv.Error, ValueError):
        return [text]
    keys = [key for key in row if key]
    return keys or [text]


def _direction(state: "_SearchState", similarity: Similarity, like: Any) -> np.ndarray:
    """Return what a query is like, as float64 [numbers] of length 1. Raises: SampleNotFound; FieldMismatch."""
    version = state.version
    if isinstance(like, str):
        keys = parse_keys(version, like)
    else:
        keys = []
        if not isinstance(like, np.ndarray):
            keys = list(like)
        if not keys or not all(isinstance(key, str) for key in keys):
            return similarity.direction(like)
    ordinals = state.ordinals(keys)
    missing = np.flatnonzero(ordinals < 0)
    if len(missing):
        key = keys[int(missing[0])]
        raise SampleNotFound(
            f"{version.name} has no live sample {key!r}: it does not exist, or was excluded or taken down. Pass "
            "the key of another sample",
            what="like",
            where=version.name,
            given=key,
        )
    return similarity.mean_direction(ordinals, keys)


def _are_keys(like: Any) -> bool:
    return isinstance(like, tuple) and all(isinstance(key, str) for key in like)


class _SearchState:
    """Open indexes of one version, which its searches share."""

    def __init__(self, version: "VersionData", cache: str | os.PathLike[str] | None) -> None:
        self.lock = Lock()
        self.cache = cache
        self.version = version
        self.similarities: dict[str, Similarity] = {}
        self._directions: dict[tuple[str, str | tuple[str, ...]], np.ndarray] = {}
        self._texts: dict[str, TextIndex] = {}
        self._key_hashes: KeyHashes | None = None
        self._has_looked_up = False

    def similarity(self, field_name: str | None) -> Similarity:
        name = similarity_field(self.version, field_name)
        if name not in self.similarities:
            self.similarities[name] = Similarity(self.version, name, self.cache)
        return self.similarities[name]

    def direction(self, similarity: Similarity, like: Any) -> np.ndarray:
        """Return what a query is like, as float64 [numbers] of length 1. Raises: SampleNotFound; FieldMismatch."""
        if not isinstance(like, str) and not _are_keys(like):
            return _direction(self, similarity, like)
        # A page asks again with each click.
        query = (similarity.field, like)
        known = self._directions.get(query)
        if known is None:
            known = _direction(self, similarity, like)
            if len(self._directions) >= MOST_DIRECTIONS:
                self._directions.clear()
            self._directions[query] = known
        return known

    def ordinals(self, keys: list[str]) -> Int64s:
        """Return each key's int64 live ordinal, -1 if it is not live."""
        version = self.version
        is_first = not self._has_looked_up
        self._has_looked_up = True
        n_keys = int(version.manifest["n_rows"])
        # A command looks up once: for it, hashes would take longer than they save.
        if is_first or n_keys > MOST_KEYS or not all(is_text(key) for key in keys):
            return live_ordinals(version, keys)
        if self._key_hashes is None:
            self._key_hashes = KeyHashes(version.store, key_files(version))
        return ordinals_in_tables(version, self._key_hashes.rows(keys), keys)

    def text_indexes(self, words: str, field_name: str | None, n_samples: int) -> list[TextIndex]:
        parse_words(words)  # before anything is read
        if n_samples > MOST_SAMPLES_OF_WORDS:
            raise InvalidRuntime(
                f"words would be searched in {n_samples:,} samples of {self.version.name}; at most "
                f"{MOST_SAMPLES_OF_WORDS:,} are accepted: pass a where that leaves fewer"
            )
        indexes = []
        for name in text_fields(self.version, field_name):
            if name not in self._texts:
                self._texts[name] = TextIndex(self.version, name)
            indexes.append(self._texts[name])
        return indexes


_states_lock = Lock()


def _search_state(version: "VersionData", cache: str | os.PathLike[str] | None) -> _SearchState:
    with _states_lock:
        state = version.searches
        if not isinstance(state, _SearchState) or state.cache != cache:
            state = _SearchState(version, cache)
            version.searches = state
        return state


def open_similarity(version: "VersionData") -> Similarity | None:
    """Return the open similarity search of a version's embedding; None before its first search."""
    state = version.searches
    if not isinstance(state, _SearchState):
        return None
    return state.similarities.get(similarity_field(version, None))


def forget_searches(version: "VersionData") -> None:
    """Let the next search of a version read its segments again."""
    version.searches = None
