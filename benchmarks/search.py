"""`python -m benchmarks.search`: an index and its searches, beside numpy's exact scan and faiss flat.

It writes a root with embeddings of 512 float16 and captions (2.5 GB per 1e6 samples and shape, minutes). It indexes
the root, and asks for the neighbours of samples spread over the version. Exact neighbours come from all embeddings in
memory (2 GB per 1e6).
"""

import argparse
import os
import platform
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

import loader
from loader.dataset.versions.sample_search import search_samples
from penstock.search.index_build import drop_index, make_index

from . import sections
from .meter import own_anonymous_bytes
from .view.rows import Row, table_lines

HEAD = """# Search

Made by `python -m benchmarks.search` on {machine}. {note}

Embeddings of 512 float16 and captions, on disk. Figures are processor time of one process.

"""

NUMBERS = 512
BLOCK = 10_000
N_QUERIES = 20
K = 10
SEED = 7
WATCH_S = 0.05
"""Seconds between two looks at the memory."""


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


class PeakMemory:
    """A thread that looks at this process's anonymous memory while its block runs."""

    def __enter__(self) -> "PeakMemory":
        self.bytes = 0
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._end.wait(WATCH_S):
            self.bytes = max(self.bytes, own_anonymous_bytes())


def processor_ms(
    function: Callable[[int], object],
    n: int = N_QUERIES,
    clock: Callable[[], float] = time.process_time,
) -> list[float]:
    """Return the milliseconds of processor, or of another clock, of calls with 0, 1, ... n - 1."""
    milliseconds = []
    for number in range(n):
        begun = clock()
        function(number)
        milliseconds.append(1000 * (clock() - begun))
    return milliseconds


def measure(folder: Path, shape: str, n: int) -> Iterator[Row]:
    """Yield the figures of a root with vectors of a shape."""
    import faiss

    root = write_root(folder, shape, n)
    drop_index(root, "d")
    before = own_anonymous_bytes()
    begun = time.process_time()
    with PeakMemory() as peak:
        report = make_index(root, "d")
    seconds = time.process_time() - begun
    of_shape = f"{shape}, {n:,} samples"
    yield Row(what=f"index of {of_shape}: processor", values=[seconds], unit="s", goal=8, digits=1)
    nbytes = sum(index.nbytes for index in report.fields)
    yield Row(what="its bytes", values=[nbytes / 1e9], unit="GB", goal=0.52)
    memory = (peak.bytes - before) / 1e9
    yield Row(what="anonymous memory that it took", values=[memory], unit="GB", goal=0.5)

    version = root.open("d")
    rows = vectors_in_order(version)
    queries = np.linspace(0, n - 1, N_QUERIES).astype(int)
    first = processor_ms(lambda _: version.search(like=rows[0], k=60), 1)
    yield Row(what="first query, with its local files written", values=first, unit="ms", digits=0)
    recalls = []
    for ordinal in queries.tolist():
        exact = set(np.argsort(-(rows @ rows[ordinal]), kind="stable")[:K].tolist())
        result = version.search(like=rows[ordinal], k=K)
        recalls.append(len(exact & set(result.ordinals.tolist())) / K)
    recall = statistics.mean(recalls)
    yield Row(what=f"recall@{K}", values=[recall], unit="", goal=0.99, more_is_better=True, digits=3)

    members = np.arange(n) % 10 == 0
    flat = faiss.IndexFlatIP(NUMBERS)
    flat.add(rows)
    faiss.omp_set_num_threads(1)  # its idle threads spin
    codes = np.ones((n, NUMBERS), np.uint8)
    ours, tenth, by_faiss, by_numpy = [], [], [], []
    ours_passed, tenth_passed, by_limit = [], [], []
    for number in range(N_QUERIES):
        row = rows[queries[number]]
        ours_passed += processor_ms(lambda _, row=row: version.search(like=row, k=60), 1, time.perf_counter)
        tenth_passed += processor_ms(
            lambda _, row=row: search_samples(version, like=row, k=60, members=members),
            1,
            time.perf_counter,
        )
        by_limit += processor_ms(lambda _: codes.max(), 1)
        ours += processor_ms(lambda _, row=row: version.search(like=row, k=60), 1)
        tenth += processor_ms(
            lambda _, row=row: search_samples(version, like=row, k=60, members=members),
            1,
        )
        by_faiss += processor_ms(lambda _, row=row: flat.search(row[None], 60), 1)
        by_numpy += processor_ms(lambda _, row=row: np.argpartition(-(rows @ row), 60), 1)
    # Both threads of a scan count: on idle cores a query takes less time than processor time.
    yield Row(what="similar, k = 60: processor", values=ours, unit="ms", goal=150, digits=0)
    yield Row(what="its time", values=ours_passed, unit="ms", digits=0)
    yield Row(what="in a tenth of the samples: processor", values=tenth, unit="ms", goal=40, digits=0)
    yield Row(what="its time", values=tenth_passed, unit="ms", digits=0)
    yield Row(what="as many bytes as codes, read once", values=by_limit, unit="ms", digits=0)
    yield Row(
        what="faiss without codes, by turns: all float32 in memory", values=by_faiss, unit="ms", digits=0
    )
    yield Row(what="numpy likewise", values=by_numpy, unit="ms", digits=0)
    first = processor_ms(lambda _: version.search("cup"), 1)
    yield Row(what="first words, with the texts read and folded", values=first, unit="ms", digits=0)
    for words in ("cup 77777", '"number 123" -cup', "table"):
        times_ms = processor_ms(lambda _, words=words: version.search(words), 3)
        yield Row(what=f"words `{words}`", values=times_ms, unit="ms", goal=500, digits=0)


def main() -> int:
    options = argparse.ArgumentParser(prog="python -m benchmarks.search", description=__doc__)
    options.add_argument("--samples", type=int, default=1_000_000)
    options.add_argument("--shapes", default=",".join(SHAPES))
    options.add_argument("--folder", type=Path, help="keep the roots here")
    options.add_argument("--note", default="", help="a sentence for the section's head, about the machine")
    options.add_argument("--out", type=Path, help="write here, not to docs/benchmarks-pipeline.md")
    arguments = options.parse_args()
    rows = []
    with tempfile.TemporaryDirectory(prefix="penstock-search-") as temporary:
        parent = arguments.folder or Path(temporary)
        for shape in arguments.shapes.split(","):
            folder = parent / f"{shape}-{arguments.samples}"
            os.makedirs(folder, exist_ok=True)
            for row in measure(folder, shape, arguments.samples):
                print(row, flush=True)
                rows.append(row)
    machine = f"{platform.machine()}, Python {platform.python_version()}, {os.cpu_count()} cores"
    lines = table_lines(HEAD, rows, machine=machine, note=arguments.note)
    sections.write("benchmarks.search", "\n".join(lines), arguments.out)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
