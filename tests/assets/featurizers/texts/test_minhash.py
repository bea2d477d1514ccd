"""Signatures of documents: what they estimate, and what they are for texts of every kind."""

import random
import re
import unicodedata

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from assets.featurizers import make
from assets.featurizers.texts import minhash
from assets.featurizers.texts.minhash import N_VALUES, NO_WORD, text_signature
from assets.featurizers.texts.shingles import shingle_blocks
from assets.media.unit import Unusable
from loader.errors import InvalidSpec
from penstock import words
from penstock.words import word_blocks
from tests.refusals import refusal


def feature(text: str, **parameters: object) -> np.ndarray:
    return make("minhash", **parameters)("text", {"txt": text.encode()}).fields["minhash.npy"]


def reference_shingles(text: str) -> set[str]:
    """The shingles of five words, one by one, from another regular expression."""
    normal = unicodedata.normalize("NFC", text).lower()
    spaced = re.sub("([速い])", r" \1 ", normal)
    parts = [part for part in re.split(r"\W+", spaced) if part]
    if len(parts) < 5:
        return {" ".join(parts)} - {""}
    return {" ".join(parts[start : start + 5]) for start in range(len(parts) - 4)}


@settings(max_examples=100, deadline=None)
@given(
    st.text(alphabet=st.sampled_from("aB c.\n-Éé\u0301ß1_速い"), max_size=200),
    st.integers(min_value=1, max_value=50),
)
@example("a b c a b a c b a a b c c a", 16)  # shingles that lie across two blocks
def test_shingles_are_those_of_the_reference(text: str, block_characters: int) -> None:
    """However short the blocks of a text are."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(words, "BLOCK_CHARACTERS", block_characters)
        blocks = list(shingle_blocks(word_blocks(text), 5))
    assert set().union(*blocks) == reference_shingles(text)


@pytest.mark.parametrize("similarity", [0.5, 0.8, 0.95])
def test_equal_values_estimate_the_jaccard_similarity(similarity: float) -> None:
    draw = random.Random(7)
    estimates = []
    for number in range(40):
        body = [f"w{draw.randrange(10**6)}" for _ in range(600)]
        # A new tail of k words changes k shingles of each document.
        n_tail = round(596 * (1 - similarity) / (1 + similarity))
        tail = [f"x{number}y{place}" for place in range(n_tail)]
        other = body[: len(body) - n_tail] + tail
        equal = text_signature(" ".join(body)) == text_signature(" ".join(other))
        estimates.append(equal.mean())
    assert np.mean(estimates) == pytest.approx(similarity, abs=0.02)


def test_form_of_letters_and_marks_do_not_count() -> None:
    plain = "Café crème, at the corner: two cups of tea"
    assert (feature(plain) == feature("CAFE\u0301 CRE\u0300ME at -- the \t corner; two cups OF tea!")).all()
    assert (feature(plain) != feature("Cafe creme at the corner two cups of tea")).any()


def test_documents_of_few_words_have_signatures_of_their_own() -> None:
    assert (feature("tea") != feature("coffee")).all()
    assert (feature("Tea!") == feature("tea")).all()
    assert (feature("one two three four") != feature("one two three five")).all()
    signature = feature("?! \u2014 ...")
    assert signature.dtype == np.uint32
    assert signature.shape == (N_VALUES,)
    assert (signature == NO_WORD).all()


@pytest.mark.parametrize(
    ("data", "parameters", "code"),
    [
        (b"", {}, "empty"),
        (b"four", {"max_bytes": 3}, "too_large"),
        ("tea \ud800 cup".encode("utf-8", "surrogatepass"), {}, "undecodable"),
        (b"\xff\xfe tea", {}, "undecodable"),
    ],
)
def test_unusable_documents_are_rejected(data: bytes, parameters: dict[str, int], code: str) -> None:
    with pytest.raises(Unusable) as error:
        make("minhash", **parameters)("text", {"txt": data})
    assert (error.value.outcome, error.value.code) == ("rejected", code)


def test_sample_without_the_field_is_rejected() -> None:
    with pytest.raises(Unusable) as error:
        make("minhash")("text", {"md": b"tea"})
    assert error.value.code == "missing_field"


@pytest.mark.parametrize(
    ("parameters", "fault"),
    [
        ({"max_bytes": 0}, {"what": "max_bytes", "given": 0}),
        ({"text": "json"}, {"what": "text", "given": "json"}),
    ],
)
def test_parameters_are_checked(parameters: dict[str, object], fault: dict[str, object]) -> None:
    with refusal(InvalidSpec, **fault):
        make("minhash", **parameters)


def test_version_changes_with_rensa_and_its_signatures(monkeypatch: pytest.MonkeyPatch) -> None:
    """The golden signature is stored in versions: a rensa that computes another one makes features stale."""
    golden = "51c82d58d2c573633e0f8623fabf505019ed7ad7bbeb8803ef06be961dbe70ac"
    assert minhash.golden_hash() == golden
    versions = {make("minhash").version}
    with monkeypatch.context() as patch:
        patch.setattr(minhash, "version", lambda name: "0.5.99")
        versions.add(make("minhash").version)
    with monkeypatch.context() as patch:
        patch.setattr(minhash, "golden_hash", lambda: "00" * 32)
        versions.add(make("minhash").version)
    assert len(versions) == 3
