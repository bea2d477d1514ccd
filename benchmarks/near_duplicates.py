"""`python -m benchmarks.near_duplicates [--published N] [--batch B] [--dimension D]`: what near-duplicates cost.

A batch among N published photos, on one core: the samples table read, sorted and filed, searched and settled; the
search against comparing all with all, and embeddings compared in blocks. Hashes are random but for copies of one in
five of the batch; real ones lie closer together, which makes the search compare twice as many.
"""

import argparse
import io
import os
import resource
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("POLARS_MAX_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import polars as pl

from assets.dedup import hamming
from assets.dedup.near_pairs import Embeddings, find, index_images, near_embeddings
from assets.dedup.policy import NearDuplicates
from assets.dedup.settle import best_of_groups, cast_columns, settle, table_candidates

POLICY = NearDuplicates()
N_BRUTE, N_EMBEDDED = 16, 50_000


def table(
    name: str, hashes: "np.ndarray[Any, np.dtype[np.uint64]]", draw: np.random.Generator
) -> pl.DataFrame:
    """Rows of a samples table with these hashes, of photos of any size."""
    n = len(hashes)
    return pl.DataFrame(
        {
            "ordinal": np.arange(n),
            "key": [f"image/{name}{number:016x}" for number in range(n)],
            "kind": ["image"] * n,
            "split": ["train"] * n,
            "phash": [f"{value:016x}" for value in hashes.tolist()],
            "phash_mirrored": [f"{value:016x}" for value in draw.integers(0, 2**64, n, np.uint64).tolist()],
            "phash_flat": [False] * n,
            "phash_flat_mask": [0] * n,
            "source_width_px": draw.integers(200, 4000, n),
            "source_height_px": draw.integers(200, 4000, n),
            "source_nbytes": draw.integers(5_000, 500_000, n),
        }
    )


def timed(what: str, run: Callable[[], Any]) -> tuple[Any, float]:
    """What it gives, and the seconds it took, which are printed."""
    start = time.perf_counter()
    found = run()
    took = time.perf_counter() - start
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(f"{what:<46} {took:8.2f} s   {memory:6d} MiB at most so far", flush=True)
    return found, took


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--published", type=int, default=1_000_000)
    options.add_argument("--batch", type=int, default=4096)
    options.add_argument("--dimension", type=int, default=512)
    given = options.parse_args()
    draw = np.random.default_rng(1)
    there = draw.integers(0, 2**64, given.published, np.uint64)
    mine = draw.integers(0, 2**64, given.batch, np.uint64)
    mine[::5] = there[: len(mine[::5])] ^ np.uint64(0b1011)
    sink = io.BytesIO()
    table("p", there, draw).write_parquet(sink, compression="zstd")
    new = table_candidates(cast_columns(table("n", mine, draw)), [str(number) for number in range(len(mine))])

    print(
        f"{given.batch} photos among {given.published}; {len(sink.getvalue()) / 2**20:.0f} MiB of samples tables"
    )
    read, _ = timed(
        "read the published samples", lambda: cast_columns(pl.read_parquet(io.BytesIO(sink.getvalue())))
    )
    (published, _), _ = timed("sort them by look and quality", lambda: best_of_groups(read, grouped=True))
    filed, _ = timed("file their hashes", lambda: index_images(published.pictures, POLICY.max_distance))
    near, _ = timed("search, as they are and mirrored", lambda: find(filed, new.pictures, mirrored=True))
    settled, _ = timed("settle, the batch among itself too", lambda: settle(new, published, near, POLICY))
    print(f"{len(near)} pairs: {len(settled.copies)} copies, {len(settled.superseded)} superseded")

    index, queries = hamming.build(there[:, None], POLICY.max_distance), mine[:, None]
    _, indexed = timed("the same search, as they are", lambda: hamming.near_rows(index, queries))
    compared = index.lookups + hamming.n_compared(index, queries) / len(queries)
    some = mine[:N_BRUTE]
    hits, brute = timed(
        f"{N_BRUTE} of them against every hash",
        lambda: sum(int((np.bitwise_count(there ^ one) <= POLICY.max_distance).sum()) for one in some),
    )
    assert hits == int(np.isin(hamming.near_rows(index, queries[:N_BRUTE])[0], np.arange(N_BRUTE)).sum())
    print(
        f"looked at {compared:.0f} places per query, {brute / N_BRUTE * given.batch / indexed:.0f} times as fast"
    )

    n_embedded = min(N_EMBEDDED, given.published)
    vectors = [draw.normal(size=(n, given.dimension)).astype(np.float32) for n in (given.batch, n_embedded)]
    ours, theirs = (Embeddings(vectors=one / np.linalg.norm(one, axis=1, keepdims=True)) for one in vectors)
    _, took = timed(
        f"{n_embedded} embeddings of {given.dimension}", lambda: near_embeddings(ours, theirs, 0.9)
    )
    print(f"of {given.published}: {took * given.published / n_embedded:.0f} s")


if __name__ == "__main__":
    main()
