"""Statistics of features, with the names and shapes of LeRobot's metadata."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from loader.errors import InvalidSample

_QUANTILES = (0.01, 0.1, 0.5, 0.9, 0.99)


def statistics(streams: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return statistics of the finite numeric features. streams: feature -> array [rows, ...]."""
    numeric = {name: values for name, values in streams.items() if not isinstance(values, list)}
    return {name: _statistics_of(values) for name, values in numeric.items() if np.isfinite(values).all()}


def _statistics_of(values: Any) -> dict[str, Any]:
    """Return statistics of an array [rows, ...], each a list of one row's shape; `count` is the number of rows.

    Quantiles interpolate linearly, as numpy does. Sums are in float64.
    """
    own = values.min(0).tolist(), values.max(0).tolist()
    exact = values.astype(np.float64)
    out = {"min": own[0], "max": own[1], "mean": exact.mean(0).tolist(), "std": exact.std(0).tolist()}
    out["count"] = [len(values)]
    for q, quantile in zip(_QUANTILES, np.quantile(exact, _QUANTILES, axis=0), strict=True):
        out[f"q{round(100 * q):02d}"] = quantile.tolist()
    return out


def aggregated(episodes: Sequence[Mapping[str, Mapping[str, Any]]]) -> dict[str, dict[str, Any]]:
    """Return statistics of all rows from statistics of episodes: feature -> name -> value.

    Mean and deviation are exact. Quantiles are means of the episodes' quantiles, weighted by rows, as in
    LeRobot: they are no quantiles of all rows. Names that an episode lacks are left out.

    Raises: InvalidSample.
    """
    out = {}
    for feature in sorted({name for one in episodes for name in one}):
        stats = [one[feature] for one in episodes if feature in one]
        names = set.intersection(*(set(one) for one in stats))
        if {"mean", "std", "count"} <= names:
            try:
                out[feature] = _of_feature(stats, names)
            except (ValueError, TypeError, LookupError) as error:
                raise InvalidSample(
                    f"statistics of {feature} in episode.json are not of one shape: {error}"
                ) from error
    return out


def _of_feature(stats: Sequence[Mapping[str, Any]], names: set[str]) -> dict[str, Any]:
    counts = np.array([one["count"][0] for one in stats], np.float64)

    def mean(values: Any) -> Any:
        return np.tensordot(counts, values, 1) / counts.sum()

    def stacked(name: str) -> Any:
        return np.array([one[name] for one in stats], np.float64)

    means = stacked("mean")
    total = mean(means)
    out = {"mean": total.tolist(), "count": [int(counts.sum())]}
    out["std"] = np.sqrt(mean(stacked("std") ** 2 + (means - total) ** 2)).tolist()
    for name in sorted(names - out.keys()):
        values = np.array([one[name] for one in stats])
        out[name] = (
            values.min(0) if name == "min" else values.max(0) if name == "max" else mean(values)
        ).tolist()
    return out
