"""How often an honest batch is stopped, and which regressions are still seen, over real media.

python -m benchmarks.gates.alarms --media CORPUS --rows FOLDER          prints the tables of docs/gates.md

The rows of the media are derived by the project's stages once (minutes), and kept in FOLDER; batches are drawn from
them. What each run judges is added there to `judged.jsonl`, and the tables are of all of it: runs of several families,
seeds or sizes may go side by side.
"""

import argparse
import json
import math
import os
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import islice, product
from pathlib import Path
from typing import Any

import numpy as np

from assets.drift import Thresholds
from assets.drift.compare import DRIFT_CHECKS, Baseline, BatchFacts, GateInputs, _types

from .honest import Deliveries, Draw
from .media import FAMILIES, Pool, pool
from .trial import Named

CHECKS = ("drift", "agreement", "splits")
SIZES = {8: 96, 32: 96, 128: 56, 512: 24, 2_048: 8}
"""Objects of a batch -> batches that are judged, of each family, number of published batches and way to draw."""
PUBLISHED = (3, 6, 16)
AT_ONCE = 4
DRAWS: tuple[Draw, ...] = ("alike", "clustered")


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """An honest batch, and what stopped it: (what, column, of), none where it passed."""

    family: str
    how: Draw
    n_objects: int
    n_published: int
    findings: tuple[tuple[str, str, str], ...]


def baseline(batches: Sequence[BatchFacts]) -> Baseline:
    """Of these batches, newest first."""
    version: Any = Named()
    known = {
        name: frozenset(
            str(value)
            for one in batches
            if name in one.samples.columns
            for value in one.samples[name].drop_nulls()
        )
        for name in ("label", "licence", "split")
    }
    return Baseline(
        version=version, batches=tuple(batches), types=_types(batches[0].samples), categories=known
    )


def stopped_by(now: BatchFacts, before: Baseline) -> Iterator[tuple[str, str, str]]:
    """(what, column, of) of the findings of each check that stops the batch."""
    compared = GateInputs(now=now, baseline=before, newest=None, protected=(), thresholds=Thresholds())
    for name in CHECKS:
        found = DRIFT_CHECKS[name](compared)
        if found.stops:
            yield from ((str(one["what"]), str(one["column"]), str(one["of"])) for one in found.findings)


def judged(
    deliveries: Deliveries, family: str, how: Draw, n_objects: int, n_published: int, rng: np.random.Generator
) -> Iterator[Judged]:
    """Honest batches without end, `AT_ONCE` of them against the same published ones."""
    while True:
        before = baseline([deliveries.draw(rng, n_objects, how) for _ in range(n_published)])
        for _ in range(AT_ONCE):
            found = tuple(stopped_by(deliveries.draw(rng, n_objects, how), before))
            yield Judged(family=family, how=how, n_objects=n_objects, n_published=n_published, findings=found)


def measured(
    pools: Mapping[str, Pool],
    sizes: Mapping[int, int],
    published: Sequence[int],
    draws: Sequence[Draw],
    seconds: float = math.inf,
    seed: int = 1,
) -> Iterator[Judged]:
    """Of every family, way to draw, size and number of published batches, in turns. sizes: objects of a batch ->
    batches; seconds: after which no more are drawn."""
    ends_s = time.monotonic() + seconds
    feeds: list[tuple[int, Iterator[Judged]]] = []
    for family, objects in pools.items():
        deliveries = Deliveries(objects)
        for how, n_objects, n_published in product(draws, sizes, published):
            key = (seed, FAMILIES.index(family), DRAWS.index(how), n_objects, n_published)
            rng = np.random.default_rng(key)
            feeds.append((sizes[n_objects], judged(deliveries, family, how, n_objects, n_published, rng)))
    for turn in range(0, max(sizes.values()), AT_ONCE):
        for times, feed in feeds:
            if time.monotonic() > ends_s:
                return
            yield from islice(feed, max(0, min(AT_ONCE, times - turn)))


def read(log: Path) -> Iterator[Judged]:
    """What was judged by this and earlier runs over the same rows."""
    for line in log.read_text().splitlines():
        body = json.loads(line)
        yield Judged(**{**body, "findings": tuple(map(tuple, body["findings"]))})


def table(found: Sequence[Judged], name: str) -> list[str]:
    """Markdown rows of stopped batches by a field of `Judged`, a column per way to draw."""
    lines = []
    for value in dict.fromkeys(getattr(one, name) for one in found):
        cells = []
        for how in DRAWS:
            some = [one for one in found if getattr(one, name) == value and one.how == how]
            cells.append(rate(sum(bool(one.findings) for one in some), len(some)) if some else "")
        lines.append(f"| {name.removeprefix('n_')} {value} | {' | '.join(cells)} |")
    return lines


def rate(k: int, n: int) -> str:
    """'2 of 500, at most 1.2 %': with the upper end of a one-sided 95 % interval (Clopper and Pearson 1934)."""
    from scipy.stats import beta

    most = 1.0 if k == n else float(beta.ppf(0.95, k + 1, n - k))
    return f"{k} of {n}, at most {most:.2%}"


def kinds(found: Sequence[Judged], how: Draw) -> Counter[tuple[str, str, str]]:
    """(family, what, column) -> batches that it stopped."""
    return Counter(
        (one.family, what, column)
        for one in found
        if one.how == how
        for what, column in {(what, column.partition(" =")[0]) for what, column, _ in one.findings}
    )


def main(argv: Sequence[str] | None = None) -> int:
    """0 where batches that are alike are stopped no more often than `Thresholds.alpha` says, as far as can be told."""
    parser = argparse.ArgumentParser(prog="benchmarks.gates.alarms", description=__doc__.splitlines()[0])
    parser.add_argument(
        "--media", type=Path, default=os.environ.get("PENSTOCK_MEDIA"), help="folder of real media"
    )
    parser.add_argument("--rows", type=Path, required=True, help="folder in which what was derived is kept")
    parser.add_argument("--share", type=float, default=1.0, help="of the batches, e.g. 0.05 for a short run")
    parser.add_argument("--seconds", type=float, default=math.inf, help="after which no more are drawn")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--families", nargs="+", choices=FAMILIES, default=FAMILIES)
    parser.add_argument("--draws", nargs="+", choices=DRAWS, default=DRAWS)
    parser.add_argument("--sizes", nargs="+", type=int, choices=tuple(SIZES), default=tuple(SIZES))
    parser.add_argument("--published", nargs="+", type=int, default=PUBLISHED)
    given = parser.parse_args(argv)
    sizes = {n: max(1, round(SIZES[n] * given.share)) for n in given.sizes}
    pools = {name: pool(name, Path(given.media), given.rows) for name in given.families}
    log = given.rows / "judged.jsonl"
    with log.open("a") as file:
        for one in measured(pools, sizes, given.published, given.draws, given.seconds, given.seed):
            file.write(json.dumps(asdict(one)) + "\n")
            file.flush()
    found = list(read(log))
    print("| honest batches | alike | clustered |\n| --- | --- | --- |")
    for name in ("n_objects", "n_published", "family"):
        print("\n".join(table(found, name)))
    for how in DRAWS:
        some = [one for one in found if one.how == how]
        print(f"\n{how}: {rate(sum(bool(one.findings) for one in some), len(some))}")
        for (family, what, column), n in kinds(found, how).most_common(20):
            print(f"    {n} {family}: {what}: {column}")
    alike = [one for one in found if one.how == "alike"]
    allowed = len(alike) * Thresholds().alpha
    return 0 if sum(bool(one.findings) for one in alike) <= allowed + 3 * math.sqrt(allowed) else 1


if __name__ == "__main__":
    raise SystemExit(main())
