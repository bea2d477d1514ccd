"""Near documents: which are found, and which of them stays."""

import random

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from assets.dedup.bands import band_hashes, shared_buckets
from assets.dedup.policy import NearDuplicates, TextMatch
from assets.dedup.settle_documents import (
    PublishedNear,
    least_equal_values,
    settle_documents,
    sign_documents,
)
from assets.featurizers.texts.minhash import NO_WORD, text_signature
from loader.errors import InvalidSpec
from tests.refusals import refusal

BANDS = 14
VALUES = 8


def signatures(n: int, n_families: int, share: float, seed: int) -> np.ndarray:
    """uint32 [n, 112]: documents of a few families; each value differs from its family's with this chance."""
    draw = np.random.default_rng(seed)
    families = draw.integers(0, 2**32, (n_families, BANDS * VALUES), np.uint32)
    out = families[draw.integers(0, n_families, n)]
    # By whole bands in half of the cases: independent differences leave few equal bands.
    by_band = np.repeat(draw.random((n, BANDS)) < share, VALUES, axis=1)
    by_value = draw.random(out.shape) < share
    differs = np.where(draw.random((n, 1)) < 0.5, by_band, by_value)
    out[differs] = draw.integers(0, 2**32, int(differs.sum()), np.uint32)
    out[draw.random(n) < 0.05] = NO_WORD
    return out


def reference(
    ours: np.ndarray,
    published: np.ndarray,
    min_similarity: float,
) -> dict[int, tuple[str, int]]:
    """Copy -> (original, equal values), by comparing each document with each one that stays, one at a time.

    A document that repeats a copy has the copy's original, even if a nearer document stayed in between.
    """
    stays = [("published", number, row) for number, row in enumerate(published)]
    copies = {}
    for number, row in enumerate(ours):
        if (row == NO_WORD).all():
            continue
        first = int(np.flatnonzero((ours == row).all(axis=1))[0])
        if first in copies:
            copies[number] = copies[first]
            continue
        best = (0, 0, "", 0)
        for place, (kind, other_number, other) in enumerate(stays):
            bands = (row.reshape(BANDS, VALUES) == other.reshape(BANDS, VALUES)).all(axis=1)
            n_equal = int((row == other).sum())
            if bands.any() and n_equal / (BANDS * VALUES) >= min_similarity - 1e-9 and n_equal > best[0]:
                best = (n_equal, place, kind, other_number)
        if best[0]:
            copies[number] = (f"{best[2]}{best[3]}", best[0])
        else:
            stays.append(("ours", number, row))
    return copies


def near_pairs(ours: np.ndarray, published: np.ndarray, least: int) -> PublishedNear:
    """All near pairs of documents and published ones, without an index."""
    document, ordinal, n_equal = [], [], []
    for number, row in enumerate(ours):
        for other_number, other in enumerate(published):
            bands = (row.reshape(BANDS, VALUES) == other.reshape(BANDS, VALUES)).all(axis=1)
            n = int((row == other).sum())
            if bands.any() and n >= least:
                document.append(number)
                ordinal.append(other_number)
                n_equal.append(n)
    return PublishedNear(
        document=np.array(document, np.int64),
        ordinal=np.array(ordinal, np.int64),
        n_equal=np.array(n_equal, np.int64),
        keys={number: f"published{number}" for number in range(len(published))},
    )


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 30),
    st.integers(0, 10),
    st.integers(1, 4),
    st.sampled_from([0.0, 0.1, 0.2, 0.3]),
    st.sampled_from([0.6, 0.75, 0.8, 1.0]),
    st.integers(0, 2**31),
)
@example(10, 4, 1, 0.0, 1.0, 7)  # equal documents, which are exactly as similar as copies must be
def test_copies_are_those_of_comparing_all_with_all(
    n: int, n_published: int, n_families: int, share: float, min_similarity: float, seed: int
) -> None:
    every = signatures(n + n_published, n_families, share, seed)
    ours, published = every[:n], every[n:]
    published = published[~(published == NO_WORD).all(axis=1)]
    pairs = near_pairs(ours, published, least_equal_values(min_similarity))
    keys = [f"ours{number}" for number in range(n)]
    copies = settle_documents(sign_documents(keys, ours), min_similarity, pairs)
    found = {int(key[4:]): (copy.of, round(112 * (1 - copy.distance))) for key, copy in copies.items()}
    assert found == reference(ours, published, min_similarity)
    for copy in copies.values():
        assert copy.of not in copies


def test_repeated_copy_has_the_original_of_the_first() -> None:
    """Between the two comes a document that is nearer, but not near the original."""
    draw = np.random.default_rng(0)
    first, other = draw.integers(0, 2**32, (2, BANDS * VALUES), np.uint32)
    copy = other.copy()
    copy[: 6 * VALUES] = first[: 6 * VALUES]  # 6 bands of 14; 8 of the other
    ours = np.stack([first, copy, other, copy])
    copies = settle_documents(sign_documents(["first", "copy", "other", "again"], ours), 0.4)
    assert {key: found.of for key, found in copies.items()} == {"copy": "first", "again": "first"}


def test_text_many_times_has_one_original() -> None:
    """Each is compared once, not with all others: 20,000 take a moment."""
    one = text_signature("a text that comes again and again, without an end")
    other = text_signature("another text, which comes once among all of these")
    many = np.repeat(one[None], 20_000, axis=0)
    many[7] = other
    copies = settle_documents(sign_documents([f"t{n}" for n in range(20_000)], many), 0.8)
    assert len(copies) == 19_998
    assert {copy.of for copy in copies.values()} == {"t0"}
    assert (
        copies["t19999"].reason
        == "near_duplicate of t0 (similarity 1.00, the other comes first in landing order)"
    )


def test_published_document_is_named_before_an_equally_near_one() -> None:
    """b is near a and the published one by 100 values each, and these are not near each other."""
    draw = np.random.default_rng(1)
    b = draw.integers(0, 2**32, 112, np.uint32)
    a, published = b.copy(), b.copy()
    a[8:20] += 1
    published[40:52] += 1
    documents = sign_documents(["a", "b"], np.stack([a, b]))
    pairs = near_pairs(np.stack([a, b]), published[None], 90)
    assert pairs.document.tolist() == [1]
    copies = settle_documents(documents, 0.8, pairs)
    assert {key: copy.of for key, copy in copies.items()} == {"b": "published0"}
    assert copies["b"].reason.endswith("(similarity 0.89, the other was published before)")


def test_documents_without_words_are_no_copies() -> None:
    empty = np.full((3, 112), NO_WORD, np.uint32)
    assert settle_documents(sign_documents(["a", "b", "c"], empty), 0.8) == {}
    assert settle_documents(sign_documents([], empty[:0]), 0.8) == {}


def test_hash_of_a_band_depends_on_its_number_and_each_value() -> None:
    signature = np.tile(np.arange(VALUES, dtype=np.uint32), BANDS)[None]
    hashes = band_hashes(signature)
    assert hashes.shape == (1, BANDS)
    assert len(set(hashes[0].tolist())) == BANDS  # equal values in two bands
    for place in range(BANDS * VALUES):
        other = signature.copy()
        other[0, place] ^= 1
        differs = band_hashes(other) != hashes
        assert np.flatnonzero(differs[0]).tolist() == [place // VALUES]


def test_buckets_are_shared_within_a_band_only() -> None:
    hashes = np.array([[1, 2], [2, 2], [1, 3], [4, 1]], np.uint64)
    buckets = shared_buckets(hashes)
    assert (buckets >= 0).tolist() == [[True, True], [False, True], [True, False], [False, False]]
    assert buckets[0, 0] == buckets[2, 0] != buckets[0, 1] == buckets[1, 1]


@pytest.mark.parametrize(("share", "least"), [(0.8, 90), (0.75, 84), (1.0, 112), (0.51, 58)])
def test_share_of_values_is_at_least_the_similarity(share: float, least: int) -> None:
    assert least_equal_values(share) == least


@pytest.mark.parametrize("share", [0.5, 1.1, float("nan")])
def test_similarity_that_bands_do_not_find_is_refused(share: float) -> None:
    with refusal(InvalidSpec, what="min_similarity", given=share):
        TextMatch(min_similarity=share)


def test_identity_of_earlier_policies_is_unchanged() -> None:
    assert NearDuplicates().identity() == ["8", "better", "drop", "True"]
    assert NearDuplicates(text=TextMatch()).identity()[4:] == ["text", "minhash.npy", "0.8"]


def planted_documents(n_originals: int, seed: int) -> tuple[list[str], dict[int, tuple[int, float]]]:
    """Return (documents, copy -> (its original, Jaccard similarity)): one in three has a copy at 0.7, 0.8 or 0.9."""
    draw = random.Random(seed)
    texts = []
    for _ in range(n_originals):
        words = [f"w{draw.randrange(200_000)}" for _ in range(draw.randint(80, 160))]
        texts.append(words)
    originals = draw.sample(range(n_originals), n_originals // 3)
    copy_of: dict[int, tuple[int, float]] = {}
    for number, original in enumerate(originals):
        similarity = (0.7, 0.8, 0.9)[number % 3]
        words = list(texts[original])
        n_shingles = len(words) - 4
        # Of n shingles with k others at the end, (n - k) of (n + k) are common.
        n_other = round(n_shingles * (1 - similarity) / (1 + similarity))
        tail = [f"x{draw.randrange(10**9)}" for _ in range(n_other)]
        copy_of[len(texts)] = (original, similarity)
        texts.append(words[: len(words) - n_other] + tail)
    return [" ".join(words) for words in texts], copy_of


def check_planted(n_originals: int) -> None:
    texts, copy_of = planted_documents(n_originals, seed=5)
    every = np.stack([text_signature(text) for text in texts])
    keys = [str(number) for number in range(len(texts))]
    copies = settle_documents(sign_documents(keys, every), 0.8)
    found = {int(key): int(copy.of) for key, copy in copies.items()}
    right = [copy for copy, original in found.items() if copy_of.get(copy, (None,))[0] == original]
    assert len(right) >= 0.99 * len(found)
    recall = {}
    for similarity in (0.7, 0.8, 0.9):
        members = [copy for copy, (_, own) in copy_of.items() if own == similarity]
        recall[similarity] = np.mean([copy in found for copy in members])
    assert recall[0.9] >= 0.99
    assert 0.3 < recall[0.8] < 0.8  # at the bound itself, about one in two
    assert recall[0.7] < 0.1


def test_planted_copies_are_found() -> None:
    check_planted(1_500)


def test_planted_copies_are_found_among_many() -> None:
    check_planted(75_000)
