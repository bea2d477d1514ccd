"""`python -m benchmarks.text_copies [--documents N] [--published N]`: what near-duplicates of documents cost.

Processor time, best of the rounds: signatures from stored bytes, with rensa and with datasketch; a batch of N documents
settled among itself; and the bands of a batch looked up among N published documents, in a folder. Documents have 700
words; settled signatures are random, and one in five is a copy. It goes to docs/benchmarks-pipeline.md.
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
from collections.abc import Callable
from pathlib import Path

import numpy as np

from assets.dedup.band_segments import Bands, IndexedPart, find_hash_bands, put_segment, sort_bands
from assets.dedup.bands import N_BANDS, band_hashes
from assets.dedup.settle_documents import settle_documents, sign_documents
from assets.featurizers import make
from assets.featurizers.texts.minhash import N_VALUES, SHINGLE_WORDS
from assets.featurizers.texts.shingles import shingle_blocks
from loader.dataset.search.segments import SegmentPart
from loader.storage import open_store
from penstock.words import word_blocks

from . import sections
from .page import judged

N_WORDS = 700
N_TEXTS = 1_000
LEAST_PER_S = 3_000
"""Least documents with a signature, per second and core."""
LEAST_RATIO = 3.0
"""Least ratio to datasketch."""
MOST_BYTES = 1_300
"""Most bytes of memory per settled document, signatures and keys included."""
BATCH = 100
"""Documents of the batch that is looked up."""


def parser() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(prog="python -m benchmarks.text_copies", description=__doc__)
    options.add_argument("--documents", type=int, default=1_000_000, help="settled (%(default)s)")
    options.add_argument("--published", type=int, default=1_000_000, help="(%(default)s)")
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--note", default="", help="a sentence about the machine, such as: Busy.")
    options.add_argument("--out", type=Path, help="write here, not to docs/benchmarks-pipeline.md")
    options.add_argument("--settle", action="store_true", help=argparse.SUPPRESS)
    return options


def main() -> int:
    arguments = parser().parse_args()
    if arguments.settle:
        print(*settled(arguments.documents))
        return 0
    text = section(arguments)
    sections.write("benchmarks.text_copies", text, arguments.out)
    print(text)
    return 0


def section(arguments: argparse.Namespace) -> str:
    machine = f"{platform.machine()}, Python {platform.python_version()}, {os.cpu_count()} cores"
    note = f" {arguments.note}".rstrip()
    per_s, ratio = signature_rates(arguments.rounds)
    seconds, n_bytes, n_copies = settled_elsewhere(arguments.documents)
    lookup_s, n_read, n_stored = lookup(arguments.published, arguments.rounds)
    speed = judged(f"{per_s:,.0f}", per_s >= LEAST_PER_S)
    times = judged(f"{ratio:.1f}", ratio >= LEAST_RATIO)
    memory = judged(f"{n_bytes:,.0f} bytes", n_bytes <= MOST_BYTES)
    mib_read = f"{n_read / 2**20:,.0f} of {n_stored / 2**20:,.0f} MiB"
    lines = [
        "# Near-duplicates of documents",
        "",
        f"Made by `python -m benchmarks.text_copies` on {machine}.{note} Processor time.",
        "",
        f"- signatures of documents of {N_WORDS} words: {speed} per second and core (≥ {LEAST_PER_S:,}),",
        f"  {times} times as fast as with datasketch (≥ {LEAST_RATIO:g})",
        f"- a batch of {arguments.documents:,} settled among itself: {seconds:.1f} s, {n_copies:,} copies;",
        f"  {memory} of memory per document (≤ {MOST_BYTES:,})",
        f"- bands of a batch of {BATCH:,} looked up among {arguments.published:,} published documents:",
        f"  {lookup_s:.2f} s, {mib_read} read",
        "",
    ]
    return "\n".join(lines)


def best_s(rounds: int, run: Callable[[], object]) -> float:
    """Return the least processor time of the rounds, in seconds."""
    times = []
    for _ in range(rounds):
        start = time.process_time()
        run()
        times.append(time.process_time() - start)
    return min(times)


def documents() -> list[bytes]:
    draw = random.Random(1)
    letters = "abcdefghijklmnopqrstuvwxyz"
    vocabulary = ["".join(draw.choices(letters, k=draw.randint(2, 10))) for _ in range(20_000)]
    return [" ".join(draw.choices(vocabulary, k=N_WORDS)).encode() for _ in range(N_TEXTS)]


def signature_rates(rounds: int) -> tuple[float, float]:
    """Return (documents per second, ratio to datasketch), each from bytes to signature."""
    import datasketch

    texts = documents()
    featurizer = make("minhash")

    def by_rensa() -> None:
        for text in texts:
            featurizer("text", {"txt": text})

    few = texts[: N_TEXTS // 10]

    def by_datasketch() -> None:
        for text in few:
            minhash = datasketch.MinHash(N_VALUES)
            for block in shingle_blocks(word_blocks(text.decode()), SHINGLE_WORDS):
                minhash.update_batch([shingle.encode() for shingle in block])

    per_s = len(texts) / best_s(rounds, by_rensa)
    return per_s, per_s * best_s(rounds, by_datasketch) / len(few)


def settled_elsewhere(n: int) -> tuple[float, float, int]:
    """Return what `settled` does in a process of its own, whose memory is its own too."""
    command = [sys.executable, "-m", "benchmarks.text_copies", "--settle", "--documents", str(n)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    seconds, n_bytes, n_copies = done.stdout.split()
    return float(seconds), float(n_bytes), int(n_copies)


def settled(n: int) -> tuple[float, float, int]:
    """Return (seconds, bytes of memory per document, number of copies) of a batch of n documents."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    draw = np.random.default_rng(1)
    signatures = draw.integers(0, 2**32, (n, N_VALUES), np.uint32)
    n_copies = n // 5
    originals = draw.integers(0, n - n_copies, n_copies)
    for copy, original in enumerate(originals.tolist(), start=n - n_copies):
        signatures[copy] = signatures[original]
        signatures[copy, draw.integers(0, N_VALUES, 8)] = 0
    keys = [f"text/{number:016x}" for number in range(n)]
    start = time.process_time()
    copies = settle_documents(sign_documents(keys, signatures), 0.8)
    seconds = time.process_time() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return seconds, (peak - before) * 1024 / n, len(copies)


def lookup(n_published: int, rounds: int) -> tuple[float, int, int]:
    """Return (seconds, bytes of the bands read, bytes of all bands) of looking a batch up."""
    draw = np.random.default_rng(2)
    owners = np.repeat(np.arange(n_published, dtype=np.uint32), N_BANDS)
    stored = sort_bands(draw.integers(0, 2**64, len(owners), np.uint64), owners)

    def read(first_byte: int, end_byte: int) -> Bands:
        ends = np.searchsorted(stored.hashes >> np.uint64(56), [first_byte, end_byte])
        return stored.take(slice(int(ends[0]), int(ends[1])))

    part = IndexedPart(own=SegmentPart("p", "data/t/x/y", n_published), excluded=())
    signatures = draw.integers(0, 2**32, (BATCH, N_VALUES), np.uint32)
    hashes = np.sort(band_hashes(signatures).ravel())
    with tempfile.TemporaryDirectory() as folder:
        store = open_store(folder)
        segment = put_segment(store, "texts", [part], len(stored), read)
        n_bands = 0

        def look_up() -> None:
            nonlocal n_bands
            n_bands = sum(len(bands) for bands in find_hash_bands(store, segment, hashes))

        seconds = best_s(rounds, look_up)
    return seconds, 12 * n_bands, sum(file.nbytes for file in segment.files)


if __name__ == "__main__":
    raise SystemExit(main())
