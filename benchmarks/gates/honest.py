"""Honest batches of real objects, drawn with replacement from a family's pool.

    alike       every object is drawn from the whole pool: batches are draws of one thing
    clustered   a batch is of a few shoots (or sources, or speakers), drawn anew for it: batches differ by themselves

Each object that is drawn is one of its own: its key, hash and samples are new. Floating-point columns get noise in the
last digits, as another processor or library gives.
"""

from typing import Any, Literal

import numpy as np
import polars as pl

from assets.drift.captions import object_texts
from assets.drift.compare import BatchFacts
from assets.drift.yields import Outcomes

from .media import Pool
from .world import split_of

Draw = Literal["alike", "clustered"]
NOISE = 1e-12
"""Relative, one standard deviation: of the last digits of a float64."""
SHOOTS = 4
"""Of a clustered batch, on the average."""


class Deliveries:
    """Honest batches of a pool. accepted: of the pool's objects, in the order of `objects`, whether each was used."""

    def __init__(self, pool: Pool) -> None:
        self._keys = np.array([row["key"] for row in pool.objects])
        shoots = np.array([key.partition("/")[0] for key in self._keys])
        self._names, self._shoot = np.unique(shoots, return_inverse=True)
        self._objects = pool.objects
        self._samples, self._media = _known(pool.facts.samples), _known(pool.facts.media)
        self._features = pool.facts.features
        used = set(self._samples["raw_key"])
        accepted = set(self._media["key"])
        self._used = np.array([key in used for key in self._keys])
        self._rejected = np.array([key not in accepted for key in self._keys])
        self._durations: dict[str, float] = {}
        if "duration_s" in self._media.columns:
            known = self._media.drop_nulls("duration_s")
            self._durations = dict(zip(known["key"], known["duration_s"], strict=True))

    def draw(self, rng: np.random.Generator, n: int, how: Draw) -> BatchFacts:
        """A batch of n landed objects."""
        places = np.arange(len(self._keys))
        if how == "clustered":
            several = 1 + rng.poisson(SHOOTS - 1)
            taken = rng.choice(len(self._names), size=min(several, len(self._names)), replace=False)
            places = np.flatnonzero(np.isin(self._shoot, taken))
        return self._facts(rng, rng.choice(places, size=n))

    def _facts(self, rng: np.random.Generator, chosen: Any) -> BatchFacts:
        stamp = f"{rng.integers(2**62):016x}"
        new = [_renewed(str(self._keys[one]), f"{stamp}-{i:05d}") for i, one in enumerate(chosen)]
        identity = [f"{stamp}{i:048x}" for i in range(len(new))]
        drawn = pl.DataFrame(
            {
                "_old": self._keys[chosen],
                "_new": new,
                "_id": identity,
                "_split": [split_of(one) for one in identity],
            }
        )
        samples = drawn.join(self._samples, left_on="_old", right_on="raw_key", maintain_order="left")
        samples = samples.with_columns(
            raw_key=pl.col("_new"),
            raw_sha256=pl.col("_id"),
            split=pl.col("_split"),
            key=pl.col("_new") + "/" + pl.col("key"),
        )
        media = drawn.join(self._media, left_on="_old", right_on="key", maintain_order="left")
        media = media.with_columns(key=pl.col("_new"))
        ours = ["_old", "_new", "_id", "_split"]
        raws = [self._objects[one] | {"key": new[i]} for i, one in enumerate(chosen)]
        durations = {
            new[i]: self._durations[key] for i, key in enumerate(self._keys[chosen]) if key in self._durations
        }
        return BatchFacts(
            samples=_noisy(samples.drop(ours), rng),
            media=_noisy(media.drop(ours), rng),
            outcomes=Outcomes(
                landed=len(new),
                used=int(self._used[chosen].sum()),
                rejected=int(self._rejected[chosen].sum()),
            ),
            texts=object_texts(raws, durations),
            features=self._features,
            features_now=self._features,
        )


def _known(table: pl.DataFrame) -> pl.DataFrame:
    """Without columns that have no value at all."""
    return table.select(name for name in table.columns if table[name].null_count() < len(table))


def _renewed(key: str, stamp: str) -> str:
    """Another object of the same folder."""
    folder, _, name = key.rpartition("/")
    return f"{folder}/{stamp}-{name}"


def _noisy(table: pl.DataFrame, rng: np.random.Generator) -> pl.DataFrame:
    """Every number of a floating-point column with noise in its last digits."""
    floats = [name for name, kind in table.schema.items() if kind.is_float()]
    return table.with_columns(
        (pl.col(name) * (1 + NOISE * pl.Series(rng.standard_normal(len(table))))).alias(name)
        for name in floats
    )
