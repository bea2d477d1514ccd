"""Evaluation questions planted among many documents: each is found, with its document, and nothing else is."""

import random
import unicodedata
from pathlib import Path

import loader
from penstock.search.overlap.find_overlaps import find_overlaps

N_WORDS = 60


def sentence(draw: random.Random, n_words: int) -> list[str]:
    return ["".join(draw.choices("abcdeéghiö", k=draw.randint(2, 8))) for _ in range(n_words)]


def alter_words(draw: random.Random, words: list[str]) -> str:
    """Return the words as another page would write them."""
    text = " ".join(f"{word}," if draw.random() < 0.2 else word for word in words)
    if draw.random() < 0.5:
        text = unicodedata.normalize("NFD", text)
    if draw.random() < 0.5:
        text = text.upper()
    return text.replace(" ", "\n", 3)


def check_all_planted_questions_are_named(folder: Path, n_documents: int) -> None:
    draw = random.Random(5)
    # Of 8 to 30 words: also questions that are shorter than a shingle.
    questions = [sentence(draw, 8 + number % 23) for number in range(n_documents // 50)]
    root = loader.Root(folder)
    with root.write("exam") as writer:
        for number, words in enumerate(questions):
            writer.add(f"q{number:06d}", {"txt": " ".join(words)})
    planted: dict[str, str] = {}
    with root.write("docs") as writer:
        for number in range(n_documents):
            words = sentence(draw, N_WORDS)
            key = f"d{number:06d}"
            question = number // 100 % len(questions)
            text = " ".join(words)
            if number % 100 == 0:
                text = f"{text} {alter_words(draw, questions[question])} {text}"
                planted[key] = f"q{question:06d}"
            elif number % 100 == 1:
                # Twelve words in a row of a longer question are none of its shingles.
                cut = questions[question][:12]
                if len(questions[question]) > 12:
                    text = f"{text} {' '.join(cut)} {text}"
            writer.add(key, {"txt": text})
    report = find_overlaps(root, "docs@1", ["exam@1"])
    assert {overlap.key: overlap.of for overlap in report.overlaps} == planted
    for overlap in report.overlaps[:50]:
        n_question = 8 + int(overlap.of[1:]) % 23
        assert overlap.ratio == n_question / (2 * N_WORDS + n_question)


def test_each_question_among_2000_documents_is_named(tmp_path: Path) -> None:
    check_all_planted_questions_are_named(tmp_path, 2_000)


def test_each_question_among_100000_documents_is_named(tmp_path: Path) -> None:
    check_all_planted_questions_are_named(tmp_path, 100_000)
