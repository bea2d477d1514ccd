"""Overlaps of texts, against a second implementation by sets of words."""

import itertools
import json
import re
import unicodedata
from collections import Counter
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import loader
from loader.errors import DecodeFailed, FieldNotFound, InvalidPlan, InvalidRuntime, VersionRetired
from penstock import words
from penstock.cli import main
from penstock.search.overlap import protected_texts, sample_texts
from penstock.search.overlap import shingles as shingles_module
from penstock.search.overlap.compare import ProtectedIndex, overlaps
from penstock.search.overlap.find_overlaps import find_overlaps
from penstock.search.overlap.protected_texts import distinct_shingles, protected_path
from penstock.search.overlap.sample_texts import SampleTexts
from tests.api.test_online_records import without_write_access
from tests.refusals import refusal

QUESTION = "Natalia sold clips to 48 of her friends in April, and then she sold half as many clips in May."
FILLER = "The committee met again on Tuesday to discuss the budget for the coming year without any result. "


def write(root: loader.Root, dataset: str, texts: dict[str, object], field: str = "txt") -> loader.Version:
    with root.write(dataset) as writer:
        for key, text in texts.items():
            writer.add(key, {field: text})
    return root.open(dataset)


def cut(text: str) -> list[str]:
    return re.findall(r"\w+", unicodedata.normalize("NFC", text).lower())


def shingles(cut_text: list[str], width: int) -> list[tuple[str, ...]]:
    return [tuple(cut_text[start : start + width]) for start in range(len(cut_text) - width + 1)]


def reference(texts: list[list[str]], questions: list[list[str]]) -> dict[int, tuple[float, int]]:
    """Return number of a text -> (ratio, number of the question). A sample is a list of texts."""
    owner: dict[tuple[str, ...], int] = {}
    for number, fields in enumerate(questions):
        cut_fields = [cut(text) for text in fields]
        has_long = any(len(field) >= 8 for field in cut_fields)
        for field in cut_fields:
            width = min(13, len(field))
            if width and (width >= 8 or not has_long):
                for shingle in shingles(field, width):
                    owner.setdefault(shingle, number)
    overlaps = {}
    for number, fields in enumerate(texts):
        n_words = n_covered = 0
        counts: Counter[int] = Counter()
        for text in fields:
            cut_text = cut(text)
            n_words += len(cut_text)
            widths = range(8, 14)
            if len(cut_text) < 8:
                widths = range(len(cut_text), len(cut_text) + 1)
            covered: set[int] = set()
            for width in widths:
                for start, shingle in enumerate(shingles(cut_text, width)):
                    if width and shingle in owner:
                        counts[owner[shingle]] += 1
                        covered |= set(range(start, start + width))
            n_covered += len(covered)
        if counts:
            most = max(counts.values())
            overlaps[number] = (n_covered / n_words, min(one for one in counts if counts[one] == most))
    return overlaps


# Few distinct words, so that shingles repeat within and between texts.
WORD = st.sampled_from(["a", "B", "caf\u00e9", "cafe\u0301", "x,", "\u72ac", "\ud800"])
TEXT = st.lists(WORD, max_size=40).map(" ".join)
SAMPLES = st.lists(st.lists(TEXT, min_size=1, max_size=3), min_size=1, max_size=6)


def write_samples(root: loader.Root, dataset: str, samples: list[list[str]]) -> list[int]:
    """Write JSON of texts; return the number of each live ordinal's sample."""
    texts = {
        f"s{number:03d}": json.dumps({"texts": sample}).encode() for number, sample in enumerate(samples)
    }
    version = write(root, dataset, texts, "chat.json")
    return [int(key[1:]) for key in version.keys(np.arange(len(version)))]


@settings(max_examples=60)
@given(
    texts=SAMPLES,
    questions=SAMPLES,
    copies=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=3),
    block=st.sampled_from([1, 7, 60, 1 << 20]),
)
def test_overlaps_are_the_reference_ones(
    texts: list[list[str]], questions: list[list[str]], copies: list[tuple[int, int]], block: int
) -> None:
    for to, of in copies:  # a question in the middle of a text
        question = questions[of % len(questions)][0]
        texts[to % len(texts)].append(f"{question} x {question} y")
    expected = reference(texts, questions)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(words, "BLOCK_CHARACTERS", block)
        index = ProtectedIndex(distinct_shingles("exam@1", map(SampleTexts, itertools.count(), questions)))
        named = {}
        for number, text in enumerate(texts):
            (overlap,) = overlaps(text, [index])
            if overlap is not None:
                named[number] = (overlap.ratio, overlap.ordinal)
    assert named == expected


def test_long_words_are_compared_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their quick hashes are of 64 bytes, and the same in a block whose words are cut."""
    long = "x" * 100
    question = f"{long} b {long} d e f g {long}a"
    for most_bytes in (1, 1 << 20):
        monkeypatch.setattr(shingles_module, "MOST_BYTES", most_bytes)
        index = ProtectedIndex(distinct_shingles("exam@1", [SampleTexts(0, [question])]))
        for other_bytes in (1, 1 << 20):
            monkeypatch.setattr(shingles_module, "MOST_BYTES", other_bytes)
            assert overlaps([f"so {question} it is"], [index]) == [(8 / 11, 0)]
            assert overlaps([f"so {question}b it is"], [index]) == [None]


def test_shingle_at_the_end_of_a_block_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(words, "BLOCK_CHARACTERS", 1)
    first = "a b c d e f g h"
    second = "i j k l m n o p"
    questions = [SampleTexts(0, [second]), SampleTexts(1, [first])]
    index = ProtectedIndex(distinct_shingles("exam@1", questions))
    (overlap,) = overlaps([f"{first} {second}"], [index])
    assert overlap == (1.0, 0)  # each has one, so the first question is named


def test_versions_are_compared_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    random = Random(7)
    vocabulary = ["a", "b", "c", "\u72ac"]
    questions = [[" ".join(random.choices(vocabulary, k=random.randint(1, 30)))] for _ in range(12)]
    texts = [[" ".join(random.choices(vocabulary, k=random.randint(0, 60))), "\ud800"] for _ in range(30)]
    for number, question in enumerate(questions):
        texts[2 * number].append(f"so {question[0]} it is")
    root = loader.Root("memory://overlaps-in-blocks")
    order = write_samples(root, "docs", texts)
    question_order = write_samples(root, "exam", questions)
    expected = reference([texts[one] for one in order], [questions[one] for one in question_order])
    assert 1 < len(expected) < 30
    tables = set()
    for n_samples, n_bytes in ((1024, 1 << 25), (7, 1 << 25), (1024, 100)):
        monkeypatch.setattr(sample_texts, "BLOCK_SAMPLES", n_samples)
        monkeypatch.setattr(sample_texts, "BLOCK_BYTES", n_bytes)
        report = find_overlaps(root, "docs@1", ["exam@1"])
        named = [(one.key, one.ratio, one.ordinal, one.of) for one in report.overlaps]
        assert named == [
            (f"s{order[number]:03d}", ratio, of, f"s{question_order[of]:03d}")
            for number, (ratio, of) in sorted(expected.items())
        ]
        (table,) = root.store.list("protected/")
        tables.add(root.store.get(table.key).data)
        root.store.delete_many([table.key])
    assert len(tables) == 1


@pytest.fixture
def root(tmp_path: Path) -> loader.Root:
    root = loader.Root(tmp_path / "root")
    texts = {f"d{number}": f"{FILLER} {number} " * 8 for number in range(5)}
    texts["d2"] += QUESTION.upper() + FILLER
    texts["short"] = "What is 2+2?"
    texts["blank"] = " "
    write(root, "docs", texts)
    write(root, "exam", {"q0": "Who wrote Faust in the year 1808 then?", "q1": QUESTION, "q2": "what is 2 2"})
    return root


def test_question_is_named_with_its_document(root: loader.Root, capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["overlap", "docs@1", "--protected", "exam@1", "--json", "--root", root.url])
    rows = json.loads(capsys.readouterr().out)
    assert code == 1
    assert {(row["key"], row["of"], row["protected"]) for row in rows} == {
        ("d2", "q1", "exam@1"),
        ("short", "q2", "exam@1"),
    }
    ratios = {row["key"]: row["ratio"] for row in rows}
    n_words = len(cut(FILLER * 9 + "2 " * 8 + QUESTION))
    assert ratios == {"d2": round(len(cut(QUESTION)) / n_words, 6), "short": 1.0}


def test_table_is_stored_once_and_made_again_if_damaged(root: loader.Root) -> None:
    report = find_overlaps(root, "docs@1", ["exam@1"])
    path = protected_path(root.open("exam@1").id)
    assert [info.key for info in root.store.list("protected/")] == [path]
    data = root.store.get(path).data
    assert QUESTION.split()[0].lower().encode() not in data
    assert b"q1" not in data
    for damaged in (data[:-9], data.replace(b'"1"', b'"2"'), b"", data[:400] + b"~" + data[401:]):
        root.store.put(path, damaged)
        assert find_overlaps(root, "docs@1", ["exam@1"]) == report
        assert root.store.get(path).data == data
    other = protected_path(root.open("docs@1").id)
    find_overlaps(root, "docs@1", ["docs@1"])
    root.store.put(path, root.store.get(other).data)  # another version's
    assert find_overlaps(root, "docs@1", ["exam@1"]) == report


def test_root_that_cannot_be_written_is_compared(root: loader.Root) -> None:
    report = find_overlaps(root, "docs@1", ["exam@1"])
    root.store.delete_many([info.key for info in root.store.list("protected/")])
    read_only = without_write_access(root, "protected/")
    assert find_overlaps(read_only, "docs@1", ["exam@1"]) == report
    assert not list(root.store.list("protected/"))


def test_smallest_share_and_several_protected_versions(root: loader.Root) -> None:
    write(root, "other", {"o": f"{QUESTION} {FILLER}", "copy": QUESTION})
    report = find_overlaps(root, "docs@1", ["exam@1", "other@1", "exam@1"])
    assert [(one.key, one.protected, one.of) for one in report.overlaps if one.key == "d2"] == [
        ("d2", "exam@1", "q1"),
        ("d2", "other@1", "o"),
    ]
    assert report.protected == ("exam@1", "other@1")
    assert {one.key for one in find_overlaps(root, "docs@1", ["exam@1"], min_ratio=0.5).overlaps} == {"short"}
    assert len(find_overlaps(root, "exam@1", ["exam@1"], field="txt", min_ratio=1.0).overlaps) == 3


def test_a_short_answer_beside_a_question_matches_nothing(tmp_path: Path) -> None:
    root = loader.Root(tmp_path)
    write_samples(root, "docs", [["42"], [QUESTION], ["no"]])
    write_samples(root, "exam", [[QUESTION, "42"]])
    assert [(one.key, one.ratio) for one in find_overlaps(root, "docs@1", ["exam@1"]).overlaps] == [
        ("s001", 1.0)
    ]


def test_bad_input_is_named(root: loader.Root, monkeypatch: pytest.MonkeyPatch) -> None:
    with refusal(InvalidRuntime, what="--protected", accepted="a version"):
        find_overlaps(root, "docs@1", [])
    for share in (-0.1, 1.1, float("nan")):
        with refusal(InvalidRuntime, what="--min", given=share, accepted="0 to 1"):
            find_overlaps(root, "docs@1", ["exam@1"], min_ratio=share)
    with refusal(FieldNotFound, what="text", where="docs@1", accepted="txt"):
        find_overlaps(root, "docs@1", ["exam@1"], field="text")
    write(root, "numbers", {"n": 3}, "cls")
    with refusal(FieldNotFound, what="texts", where="numbers@1", given="cls", accepted="txt, json or jsonl"):
        find_overlaps(root, "docs@1", ["numbers@1"])
    write(root, "latin", {"fine": "text", "bad-one": "caf\u00e9".encode("latin-1")})
    with refusal(DecodeFailed, what="txt", where="latin@1, sample 'bad-one'") as caught:
        find_overlaps(root, "latin@1", ["exam@1"])
    assert "not UTF-8" in caught.value.given
    monkeypatch.setattr(protected_texts, "MOST_SHINGLES", 10)
    with refusal(InvalidPlan, what="shingles", where="docs@1", given=1, accepted=10):
        find_overlaps(root, "exam@1", ["docs@1"])
    write(root, "exam", {"new": "another question"})
    root.retire("exam@1", reason="replaced")
    with refusal(VersionRetired, what="exam@1", given="replaced"):
        find_overlaps(root, "docs@1", ["exam@1"])


def test_no_overlap_is_status_0(root: loader.Root, capsys: pytest.CaptureFixture[str]) -> None:
    write(root, "clean", {"a": FILLER, "empty": ""})
    assert main(["overlap", "clean@1", "--protected", "exam@1", "--root", root.url]) == 0
    assert "0 of 2 samples of clean@1 overlap exam@1 (txt)" in capsys.readouterr().out
    assert main(["overlap", "docs@1", "--protected", "exam@1", "--root", root.url]) == 1
    assert "100.00%  short  of exam@1/q2" in capsys.readouterr().out
