"""`python -m benchmarks.maps`: how long a map takes: to fit, to place samples, to draw, to select by a lasso."""

import argparse
import os
import platform
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from penstock.search.map.centres import unit_rows
from penstock.search.map.drawing import draw, nearest
from penstock.search.map.fit import SAMPLED, fit_map
from penstock.search.map.lasso import MAP_UNITS, Places, in_lasso, lasso_grid
from penstock.search.map.placement import place

from . import sections
from .view.rows import Row, table_lines

HEAD = """# Maps

Made by `python -m benchmarks.maps` on {machine}. {note}

Figures are processor time of vectors of 320 numbers in memory.

"""
WIDTH = 320
N_CLUSTERS = 400
PLACED = 20_000
"""Vectors whose placing is timed."""
LASSO = (
    (9_000, 30_000),
    (30_000, 8_000),
    (58_000, 28_000),
    (44_000, 33_000),
    (48_000, 59_000),
    (20_000, 52_000),
)


def maps(
    n: int,
    rounds: int,
    n_fitted: int = SAMPLED,
) -> Iterator[Row]:
    """Yield processor times of a map of n samples."""
    rng = np.random.default_rng(1)
    means = rng.normal(size=(N_CLUSTERS, WIDTH))
    noise = rng.normal(size=(n_fitted, WIDTH))
    cluster = rng.integers(0, N_CLUSTERS, n_fitted)
    around = means[cluster] + 0.7 * noise
    vectors = unit_rows(around.astype(np.float32))
    started_s = time.process_time()
    fit = fit_map(vectors)
    seconds = time.process_time() - started_s
    yield Row(
        what=f"fit of {n_fitted:,} vectors",
        values=[seconds],
        unit="s",
    )
    sample = vectors[:PLACED]
    (seconds,) = _times(lambda: place(fit, sample), 1)
    yield Row(
        what="placing of 1e6 samples",
        values=[seconds * 1e6 / len(sample)],
        unit="s",
    )

    placed = place(fit, sample)
    chosen = rng.integers(0, len(sample), n)
    x = _spread(placed.x[chosen], rng)
    y = _spread(placed.y[chosen], rng)
    categories = placed.cluster[chosen].astype(np.uint8)
    grid = lasso_grid(LASSO)
    selected = in_lasso(
        grid,
        x,
        y,
    )

    def count() -> None:
        np.count_nonzero(in_lasso(lasso_grid(LASSO), x, y))

    def image() -> None:
        draw(x, y, selected=selected, categories=categories)

    def near() -> None:
        nearest(x, y, (32_000, 32_000), 2_000)

    goals = {"lasso counted": (count, 6), "map drawn": (image, 60), "sample at a point": (near, 3)}
    for what, (call, goal) in goals.items():
        values = [1000 * seconds for seconds in _times(call, rounds)]
        yield Row(what=f"{what}, {n:,} samples", values=values, unit="ms", goal=goal)


def _spread(places: Places, rng: np.random.Generator) -> Places:
    """Return uint16 [n]: places with noise, so that not all lie on a few thousand."""
    noise = rng.normal(
        0,
        200,
        len(places),
    )
    spread = np.clip(
        places + noise,
        0,
        MAP_UNITS - 1,
    )
    return spread.astype(np.uint16)


def _times(call: Callable[[], object], rounds: int) -> list[float]:
    """Return the processor seconds of each round, after one that is not counted."""
    call()
    seconds = []
    for _ in range(rounds):
        started_s = time.process_time()
        call()
        seconds.append(time.process_time() - started_s)
    return seconds


def main() -> int:
    options = argparse.ArgumentParser(prog="python -m benchmarks.maps", description=__doc__)
    options.add_argument("--samples", type=int, default=1_000_000)
    options.add_argument("--rounds", type=int, default=9)
    options.add_argument("--note", default="", help="a sentence for the section's head, about the machine")
    options.add_argument("--out", type=Path, help="write here, not to docs/benchmarks-pipeline.md")
    arguments = options.parse_args()
    rows = []
    for row in maps(arguments.samples, arguments.rounds):
        print(row, flush=True)
        rows.append(row)
    machine = f"{platform.machine()}, Python {platform.python_version()}, {os.cpu_count()} cores"
    lines = table_lines(HEAD, rows, machine=machine, note=arguments.note)
    sections.write("benchmarks.maps", "\n".join(lines), arguments.out)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
