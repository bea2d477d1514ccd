"""Normalised words of texts."""

import pytest

from penstock import words
from penstock.words import word_blocks, words_of_text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        ("!? \n", []),
        ("The QUICK fox_2", ["the", "quick", "fox_2"]),
        ("cafe\u0301 CAFÉ", ["café", "café"]),
        ("don't", ["don", "t"]),
        ("犬とcat2猫", ["犬", "と", "cat2", "猫"]),
        ("a\ud800b", ["a", "b"]),
    ],
)
def test_words_are_composed_lower_case_runs(text: str, expected: list[str]) -> None:
    assert words_of_text(text) == expected


def test_blocks_cut_no_word(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "one two-three " + "long" * 50 + " ends 犬と, é e\u0301 " + "!" * 40 + "x"
    expected = words_of_text(text)
    for n in range(1, 60):
        monkeypatch.setattr(words, "BLOCK_CHARACTERS", n)
        blocks = list(word_blocks(text))
        assert [word for block in blocks for word in block] == expected
        assert all(blocks)
