"""`python -m benchmarks.view`: how fast the viewer answers, into docs/benchmarks-pipeline.md.

It makes a root of a million small samples, 3,000 photos and two runs (minutes, 3 GB), and 1e8 documents for `spread`
(minutes, 10 GB). It starts `penstock view` on it as
often as a row needs a fresh server, and asks as a browser does: a page, then its pictures over six connections.
"""

import argparse
import os
import platform
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from .. import sections
from ..throughput import say
from . import rows
from .episode_rows import episode
from .facet_rows import facets
from .page import page_of
from .slice_rows import slices
from .spread_rows import spread
from .world import Sizes, make

Measure = Callable[[Path], Iterator[rows.Row]]


def parts(
    rounds: int, people: int, seconds: float, trail_steps: int, spread_samples: int
) -> dict[str, Measure]:
    """Name -> function that measures it."""
    return {
        "paint": partial(rows.first_paint, rounds=rounds),
        "batch": partial(rows.batch, rounds=rounds),
        "filter": partial(rows.filtered, rounds=rounds),
        "facets": partial(facets, rounds=rounds),
        "spread": partial(spread, n=spread_samples, rounds=rounds),
        "slices": partial(slices, rounds=rounds),
        "thumbnails": partial(rows.thumbnails, rounds=rounds),
        "people": partial(rows.people, n=people, seconds=seconds),
        "run": partial(rows.long_run, rounds=rounds),
        "trail": partial(rows.trail, steps=trail_steps),
        "episode": partial(episode, rounds=rounds),
    }


def main() -> int:
    options = argparse.ArgumentParser(prog="python -m benchmarks.view", description=__doc__)
    options.add_argument("--rows", default=",".join(parts(1, 1, 1, 1, 1)), help="of: %(default)s")
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--people", type=int, default=50)
    options.add_argument("--seconds", type=float, default=60, help="that people look")
    options.add_argument("--trail-steps", type=int, default=20_000)
    options.add_argument("--samples", type=int, default=Sizes.tiny, help="of the large version")
    options.add_argument("--spread-samples", type=int, default=100_000_000, help="of the row `spread`")
    options.add_argument("--folder", type=Path, help="keep the root here")
    options.add_argument("--note", default="", help="a sentence for the page's head, about the machine")
    options.add_argument(
        "--out", type=Path, help="write the page here; that of a full run is docs/benchmarks-pipeline.md"
    )
    given = options.parse_args()
    changed = [
        f"--{name.replace('_', '-')} {getattr(given, name)}"
        for name in ("rows", "rounds", "people", "seconds", "trail_steps", "spread_samples", "samples")
        if getattr(given, name) != options.get_default(name)
    ]
    known = parts(given.rounds, given.people, given.seconds, given.trail_steps, given.spread_samples)
    found: list[rows.Row] = []
    with tempfile.TemporaryDirectory() as temporary:
        root = make(given.folder or Path(temporary), Sizes(tiny=given.samples))
        for name in given.rows.split(","):
            for row in known[name](root):
                say(str(row))
                found.append(row)
    machine = f"{platform.machine()}, Python {platform.python_version()}, {os.cpu_count()} cores"
    text = page_of(found, f"python -m benchmarks.view {' '.join(changed)}".strip(), machine, given.note)
    if given.out or not changed:
        sections.write("benchmarks.view", text, given.out)
    print(text)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
