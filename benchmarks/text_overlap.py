"""`python -m benchmarks.text_overlap [--documents N] [--questions N]`: the time of `penstock overlap`.

Processor time, best of the rounds, each in a process of its own; files of a local disk. Documents have 700 words,
questions 50. One document in 100 has a question. The comparison is beside reading the same documents and hashing each
of their shingles once. The first round also makes the table of the questions. It goes to docs/benchmarks-pipeline.md.
"""

import argparse
import os
import platform
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

import loader
from penstock.search.overlap.find_overlaps import find_overlaps
from penstock.search.overlap.protected_texts import protected_texts
from penstock.search.overlap.sample_texts import sample_texts
from penstock.search.overlap.shingles import WIDTH, shingle_hashes, word_run
from penstock.words import words_of_text

from . import sections
from .page import judged

N_WORDS = 700
N_QUESTION_WORDS = 50
PLANTED = 100
"""Documents for each one with a question."""
MOST_RATIO = 1.5
"""Most time of the comparison, in times of reading and hashing."""
COMPARE = "compare"
HASH = "hash"
TABLE = "table"


def parser() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(prog="python -m benchmarks.text_overlap", description=__doc__)
    options.add_argument("--documents", type=int, default=100_000, help="(%(default)s)")
    options.add_argument("--questions", type=int, default=10_000, help="(%(default)s)")
    options.add_argument("--rounds", type=int, default=2)
    options.add_argument("--note", default="", help="a sentence about the machine, such as: Busy.")
    options.add_argument("--out", type=Path, help="write here, not to docs/benchmarks-pipeline.md")
    options.add_argument("--turn", choices=(COMPARE, HASH, TABLE), help=argparse.SUPPRESS)
    options.add_argument("--root", help=argparse.SUPPRESS)
    return options


def main() -> int:
    arguments = parser().parse_args()
    if arguments.turn:
        print(*turn(arguments.root, arguments.turn))
        return 0
    text = section(arguments)
    sections.write("benchmarks.text_overlap", text, arguments.out)
    print(text)
    return 0


def section(arguments: argparse.Namespace) -> str:
    machine = f"{platform.machine()}, Python {platform.python_version()}, {os.cpu_count()} cores"
    note = f" {arguments.note}".rstrip()
    seconds: dict[str, list[float]] = {COMPARE: [], HASH: []}
    peak = n_named = 0
    with tempfile.TemporaryDirectory() as folder:
        write(folder, arguments.documents, arguments.questions)
        table_s, _, n_shingles = turn_elsewhere(folder, TABLE)
        for _ in range(arguments.rounds):
            for name, times in seconds.items():
                turn_s, turn_peak, count = turn_elsewhere(folder, name)
                times.append(turn_s)
                if name == COMPARE:
                    peak = turn_peak
                    n_named = count
    compare_s = min(seconds[COMPARE])
    ratio = compare_s / min(seconds[HASH])
    n_planted = -(-arguments.documents // PLANTED)
    verdict = judged(f"{ratio:.2f}", ratio <= MOST_RATIO)
    named = judged(f"{n_named:,}", n_named == n_planted)
    lines = [
        "# Texts of protected versions",
        "",
        f"Made by `python -m benchmarks.text_overlap` on {machine}.{note} Processor time.",
        "",
        f"- {arguments.documents:,} documents of {N_WORDS} words against {arguments.questions:,} questions:",
        f"  {compare_s:.0f} s, {verdict} of reading and hashing them once (≤ {MOST_RATIO:g}); {peak / 2**20:,.0f} MiB;",
        f"  {named} of {n_planted:,} documents with a question named",
        f"- the table of the questions' {n_shingles:,} shingles: {table_s:.1f} s",
        "",
    ]
    return "\n".join(lines)


def write(url: str, n_documents: int, n_questions: int) -> None:
    draw = random.Random(1)
    letters = "abcdefghijklmnopqrstuvwxyz"
    vocabulary = ["".join(draw.choices(letters, k=draw.randint(2, 10))) for _ in range(20_000)]
    questions = [" ".join(draw.choices(vocabulary, k=N_QUESTION_WORDS)) for _ in range(n_questions)]

    def documents() -> Iterator[tuple[str, str]]:
        for number in range(n_documents):
            words = draw.choices(vocabulary, k=N_WORDS)
            if number % PLANTED == 0:
                place = draw.randrange(N_WORDS)
                question = questions[number % n_questions].upper()
                words[place : place + N_QUESTION_WORDS] = question.split()
            yield f"text/{number:07d}", " ".join(words)

    root = loader.Root(url)
    with root.write("docs") as writer:
        for key, text in documents():
            writer.add(key, {"txt": text})
    with root.write("exam") as writer:
        for number, text in enumerate(questions):
            writer.add(f"q{number:06d}", {"txt": text})


def turn_elsewhere(url: str, name: str) -> tuple[float, int, int]:
    """Return what `turn` does in a process of its own, whose memory is its own too."""
    command = [sys.executable, "-m", "benchmarks.text_overlap", "--turn", name, "--root", url]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    seconds, peak, count = done.stdout.split()
    return float(seconds), int(peak), int(count)


def turn(url: str, name: str) -> tuple[float, int, int]:
    """Return (seconds, bytes of memory at most, samples named or shingles)."""
    root = loader.Root(url)
    start = time.process_time()
    if name == COMPARE:
        count = len(find_overlaps(root, "docs@1", ["exam@1"]).overlaps)
    elif name == TABLE:
        count = len(protected_texts(root.open("exam@1")).hashes)
    else:
        count = hash_all(root)
    seconds = time.process_time() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return seconds, peak, count


def hash_all(root: loader.Root) -> int:
    """Read all documents, and hash each of their shingles."""
    n_shingles = 0
    for sample in sample_texts(root.open("docs@1"), ["txt"]):
        for text in sample.texts:
            run = word_run(words_of_text(text))
            first_words = np.arange(max(0, run.n_words - WIDTH + 1))
            n_shingles += len(shingle_hashes(run, WIDTH, first_words))
    return n_shingles


if __name__ == "__main__":
    raise SystemExit(main())
