"""`python -m benchmarks.search`: an index and its searches, beside numpy's exact scan and faiss flat.

It writes a root with embeddings of 512 float16 and captions (2.5 GB per 1e6 samples and shape, minutes). It indexes
the root, and asks for the neighbours of samples spread over the version. Exact neighbours come from all embeddings in
memory (2 GB per 1e6).
"""

import argparse
import os
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import loader
from penstock.search.make import make_index

NUMBERS = 512
BLOCK = 10_000
N_QUERIES = 20
K = 10
SEED = 7


def clustered(n: int, rng: np.random.Generator) -> Iterator[np.ndarray]:
    """Yield blocks of vectors around a thousand centres."""
    centres = rng.normal(size=(1000, NUMBERS))
    for start in range(0, n, BLOCK):
        of_cluster = rng.integers(0, len(centres), min(BLOCK, n - start))
        yield centres[of_cluster] + 0.7 * rng.normal(size=(len(of_cluster), NUMBERS))


def in_one_cone(n: int, rng: np.random.Generator) -> Iterator[np.ndarray]:
    """Yield blocks of vectors that all point nearly the same way."""
    axis = 3 * rng.normal(size=NUMBERS)
    for start in range(0, n, BLOCK):
        yield axis + rng.normal(size=(min(BLOCK, n - start), NUMBERS))


def unstructured(n: int, rng: np.random.Generator) -> Iterator[np.ndarray]:
    for start in range(0, n, BLOCK):
        yield rng.normal(size=(min(BLOCK, n - start), NUMBERS))


SHAPES = {"clustered": clustered, "one-cone": in_one_cone, "unstructured": unstructured}


def write_root(folder: Path, shape: str, n: int) -> loader.Root:
    """Write a version of `n` samples, unless the folder has one."""
    root = loader.Root(folder)
    if (folder / "penstock.json").exists() and root.datasets():
        return root
    rng = np.random.default_rng(SEED)
    with root.write("d", part_samples=50_000) as writer:
        ordinal = 0
        for block in SHAPES[shape](n, rng):
            for vector in block.astype(np.float16):
                caption = f"a red cup {ordinal} on a table of dataset number {ordinal % 1000}"
                fields = {"embedding.npy": vector, "caption.txt": caption}
                writer.add(f"k{ordinal:08d}", fields, {"tenth": ordinal % 10})
                ordinal += 1
    return root


def vectors_in_order(version: loader.Version) -> np.ndarray:
    """Return float32 [n, NUMBERS]: the embeddings, of length 1, in version order."""
    from loader.dataset.search.vectors import VectorReader

    rows = np.empty((len(version), NUMBERS), np.float32)
    reader = VectorReader(version, "embedding.npy")
    start = 0
    for block, vectors in reader.blocks(np.arange(len(version))):
        rows[start : start + len(block)] = vectors.rows
        start += len(block)
    reader.close()
    return rows


def median_s(function: Callable[[int], Any], n: int) -> float:
    """Return the median seconds of calls with 0, 1, ... n - 1."""
    seconds = []
    for number in range(n):
        start = time.perf_counter()
        function(number)
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def measure(folder: Path, shape: str, n: int) -> Iterator[str]:
    """Yield a line per figure."""
    import faiss

    started = time.perf_counter()
    root = write_root(folder, shape, n)
    yield f"{shape}, {n:,} samples written in {time.perf_counter() - started:.0f} s"
    cpu = time.process_time()
    report = make_index(root, "d")
    for index in report.fields:
        yield f"  index {index.field}: {index.nbytes / 2**20:.0f} MiB, {index.n_new:,} rows"
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
    cpu_s = time.process_time() - cpu
    yield f"  indexed in {report.seconds:.1f} s ({cpu_s:.1f} s of processor, peak {peak_mib:.0f} MiB)"

    version = root.open("d")
    rows = vectors_in_order(version)
    queries = np.linspace(0, n - 1, N_QUERIES).astype(int)
    start = time.perf_counter()
    version.search(like=rows[0], k=60)
    yield f"  first search, with its local files written: {time.perf_counter() - start:.2f} s"
    recalls = []
    for ordinal in queries.tolist():
        exact = set(np.argsort(-(rows @ rows[ordinal]), kind="stable")[:K].tolist())
        result = version.search(like=rows[ordinal], k=K)
        recalls.append(len(exact & set(result.ordinals.tolist())) / K)
    yield f"  recall@{K}: {statistics.mean(recalls):.3f} of {N_QUERIES} samples"

    def similar(number: int) -> None:
        version.search(like=rows[queries[number]], k=60)

    members = np.arange(n) % 10 == 0
    from loader.dataset.versions.sample_search import search_samples

    def similar_in_a_tenth(number: int) -> None:
        search_samples(version, like=rows[queries[number]], k=60, members=members)

    flat = faiss.IndexFlatIP(NUMBERS)
    flat.add(rows)

    def by_flat(number: int) -> None:
        flat.search(rows[queries[number]][None], 60)

    def by_numpy(number: int) -> None:
        scores = rows @ rows[queries[number]]
        np.argpartition(-scores, 60)

    ours = median_s(similar, N_QUERIES)
    tenth = median_s(similar_in_a_tenth, N_QUERIES)
    yield f"  similar, k = 60: {1000 * ours:.0f} ms; in a tenth of the samples {1000 * tenth:.0f} ms"
    for name, function in (("faiss flat", by_flat), ("numpy", by_numpy)):
        theirs = median_s(function, N_QUERIES)
        yield f"  {name}, all float32 in memory: {1000 * theirs:.0f} ms, {theirs / ours:.1f} times ours"
    start = time.perf_counter()
    version.search("cup")
    yield f"  first words, with the texts read and folded: {time.perf_counter() - start:.2f} s"
    for words in ("cup 77777", '"number 123" -cup', "table"):
        words_s = median_s(lambda _, words=words: version.search(words), 3)
        yield f"  words {words!r}: {1000 * words_s:.0f} ms"


def main() -> int:
    options = argparse.ArgumentParser(prog="python -m benchmarks.search", description=__doc__)
    options.add_argument("--samples", type=int, default=1_000_000)
    options.add_argument("--shapes", default=",".join(SHAPES))
    options.add_argument("--folder", type=Path, help="keep the roots here")
    arguments = options.parse_args()
    with tempfile.TemporaryDirectory(prefix="penstock-search-") as temporary:
        parent = arguments.folder or Path(temporary)
        for shape in arguments.shapes.split(","):
            folder = parent / f"{shape}-{arguments.samples}"
            os.makedirs(folder, exist_ok=True)
            for line in measure(folder, shape, arguments.samples):
                print(line, flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
