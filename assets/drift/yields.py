"""Compare yields: rejected objects, unused objects, samples per object, samples per delivery."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

from .distributions import Floats, ratio
from .findings import DriftFinding, EffectSize, Thresholds, each_and_rest, is_notable
from .shares import Comparison, Counted

if TYPE_CHECKING:
    import polars as pl


Tables = tuple["pl.DataFrame", "pl.DataFrame"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcomes:
    """A batch's landed objects, counted by outcome."""

    landed: int = 0
    """Landed objects; 0 if unknown."""
    used: int = 0
    """Objects with samples."""
    rejected: int = 0
    """Number of objects that are damaged or not media."""


def outcome_findings(
    now: Outcomes,
    batches: Sequence[Outcomes],
    thresholds: Thresholds,
    alpha: float,
) -> list[DriftFinding]:
    """Find more rejected objects, or fewer used ones, than in the baseline."""
    known = [one for one in batches if one.landed]
    if not known or not now.landed:
        return []

    def of(outcomes: Outcomes, k: int) -> Counted:
        return Counted(k=k, n=outcomes.landed, objects=outcomes.landed)

    rejected = [of(one, one.rejected) for one in (now, *known)]
    unused = [of(one, one.landed - one.used) for one in (now, *known)]
    findings = []
    for what, (current, *before), limit in (
        ("more objects rejected", rejected, thresholds.rejected),
        ("fewer objects used", unused, thresholds.unused),
    ):
        compared = Comparison(now=current, batches=before, alpha=alpha)
        if compared.now.share > compared.before.share:
            findings += compared.findings(limit, what=what, column="objects")
    return findings


def units_findings(
    now: Tables,
    batches: Sequence[Tables],
    thresholds: Thresholds,
    alpha: float,
) -> list[DriftFinding]:
    """Compare samples per used object, for each kind; objects are the evidence.

    Objects are compared with ones of similar length. now, batches: (samples table, media table).
    """
    findings = []
    current = _per_object(*now)
    earlier = [_per_object(*tables) for tables in batches]
    for kind, objects in current.items():
        each = [one[kind] for one in earlier if kind in one]
        if not each:
            continue
        expected = _Expected(each)
        values = expected.ratios(objects)
        ratios = [expected.ratios(one) for one in each]
        difference = ratio(values, np.concatenate(ratios), alpha)

        def others(ratios: Sequence[Floats] = ratios) -> list[EffectSize]:
            return [ratio(one, np.concatenate(rest), alpha) for one, rest in each_and_rest(ratios)]

        limit = -math.log(thresholds.units_ratio)
        if is_notable(difference, limit, others):
            before = np.concatenate([one["n"].to_numpy() for one in each]).mean()
            findings.append(
                DriftFinding(
                    what="samples per object",
                    column="count",
                    of=kind,
                    before=f"{before:.3g}, of objects as long",
                    now=f"{objects['n'].to_numpy().mean():.3g} ({values.mean():.2f} of the expected number)",
                    effect=difference.effect,
                    limit=limit,
                )
            )
    return findings


class _Expected:
    """Expected samples of an object: the mean over the baseline's objects in the same decile of durations.

    objects: tables of `_per_object`, of one kind.
    """

    def __init__(self, objects: Sequence["pl.DataFrame"]) -> None:
        n = np.concatenate([one["n"].to_numpy() for one in objects]).astype(np.float64)
        seconds = np.concatenate([one["duration_s"].to_numpy() for one in objects])
        known = np.isfinite(seconds)
        if known.any():
            self._edges = np.unique(np.quantile(seconds[known], np.arange(1, 10) / 10))
        else:
            self._edges = np.zeros(0)
        bins = self._bins(seconds)
        self._means = np.array(
            [
                n[bins == place].mean() if (bins == place).any() else n.mean()
                for place in range(len(self._edges) + 2)
            ]
        )

    def ratios(self, objects: "pl.DataFrame") -> Floats:
        """Return float64 [objects]: each object's samples, as a multiple of the expected number."""
        ratios: Floats = objects["n"].to_numpy() / self._means[self._bins(objects["duration_s"].to_numpy())]
        return ratios

    def _bins(self, seconds: Floats) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Return int64 [objects]: the decile of each duration, from 1; 0 for an unknown one."""
        tenths = np.searchsorted(self._edges, np.nan_to_num(seconds)) + 1
        return np.where(np.isfinite(seconds), tenths, 0)


def size_findings(
    now: "pl.DataFrame", batches: Sequence["pl.DataFrame"], thresholds: Thresholds
) -> list[DriftFinding]:
    """Compare the number of samples with the median delivery's: in total, and per kind, split and source."""
    if thresholds.batch_ratio is None or not batches:
        return []
    limit = -math.log(thresholds.batch_ratio)
    counted = [_sizes(table) for table in batches]
    sizes = _sizes(now)
    findings = []
    for name in sorted({name for one in counted for name in one}):
        usual = median([one.get(name, 0) for one in counted])
        if not usual:
            continue
        difference = _size(sizes.get(name, 0), usual)
        others = [_size(one.get(name, 0), usual) for one in counted]
        if is_notable(difference, limit, lambda others=others: others):  # type: ignore[misc]
            findings.append(
                DriftFinding(
                    what="samples per delivery",
                    column=name,
                    before=f"{usual:g} in the median batch",
                    now=str(sizes.get(name, 0)),
                    effect=difference.effect,
                    limit=limit,
                )
            )
    return findings


def _per_object(samples: "pl.DataFrame", media: "pl.DataFrame") -> "dict[str, pl.DataFrame]":
    """Return kind -> a row per raw object with samples: raw_key, n (its samples), duration_s (NaN if unknown)."""
    import polars as pl

    if not {"raw_key", "kind"} <= set(samples.columns):
        return {}
    counted = samples.group_by("kind", "raw_key").agg(pl.len().alias("n"))
    if {"key", "duration_s"} <= set(media.columns):
        seconds = media.select(pl.col("key").alias("raw_key"), pl.col("duration_s").cast(pl.Float64))
        counted = counted.join(seconds.unique("raw_key"), on="raw_key", how="left")
    else:
        counted = counted.with_columns(pl.lit(None, pl.Float64).alias("duration_s"))
    counted = counted.with_columns(pl.col("duration_s").fill_null(float("nan")))
    return {str(kind): rows for (kind,), rows in counted.group_by("kind")}


def _sizes(table: "pl.DataFrame") -> dict[str, int]:
    """Return words for a group of samples -> their number: all, and each kind, split and source."""
    sizes = {"all samples": len(table)}
    for name in ("kind", "split", "source"):
        if name in table.columns:
            counted = table[name].drop_nulls().value_counts()
            sizes |= {f"{name} = {value!r}": n for value, n in counted.iter_rows()}
    return sizes


def _size(n: int, usual: float) -> EffectSize:
    """Return by how much a number of samples differs, as a logarithm: infinite for none. usual: above 0."""
    return EffectSize(
        effect=abs(math.log(n / usual)) if n else math.inf,
        chance=0.0,
        noise=0.0,
    )
