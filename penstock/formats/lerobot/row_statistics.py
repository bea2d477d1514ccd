"""Statistics of LeRobot features: of an episode, of all rows, and out of a norm.

Quantiles of all rows do not follow from quantiles of episodes. So each unit of an export counts its rows as
`loader.norm` does, in bounded memory, and the sum of the counts has them. Rejected: a second pass over all rows.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from loader import Version
from loader.dataset.exact_statistics import DIMS_MAX, as_floats
from loader.dataset.norm import FieldNorm, FieldTotals, Norm, norm_bytes, parse_norm
from loader.errors import FieldMismatch, InvalidRuntime, InvalidSample, ObjectNotFound

QUANTILES = (0.01, 0.1, 0.5, 0.9, 0.99)
"""LeRobot's: q01, q10, q50, q90, q99."""
_PATH = re.compile(r"norms/[0-9a-f]{64}\.parquet")
_QUANTILE = re.compile(r"q\d\d")


def norm_at(version: Version, path: str) -> Norm:
    """Return a norm of the root, for a version. Raises: InvalidRuntime; Corrupt; StoreError."""
    store, message = version.store, f"--norm {path}: "
    if not _PATH.fullmatch(path):
        raise InvalidRuntime(f"{message}the path of a norm in the root is needed, norms/<64 digits>.parquet")
    try:
        norm = parse_norm(store.get(path).data, path, f"{store.url}/{path}")
    except ObjectNotFound:
        raise InvalidRuntime(
            f"{message}{store.url} has no such norm; loader.norm(...).path names one"
        ) from None
    if not isinstance(norm, Norm):
        raise InvalidRuntime(f"{message}it has a norm for each {norm.by}; name one of all windows")
    if norm.transform:
        raise InvalidRuntime(
            f"{message}it is of the space of {norm.transform}; LeRobot's statistics are of the stored values"
        )
    if norm.version != version.id:
        raise InvalidRuntime(
            f"{message}it is of {norm.version}, and {version.name} is {version.id}; make its norm"
        )
    return norm


def with_norm(stats: Mapping[str, Mapping[str, Any]], norm: Norm) -> dict[str, dict[str, Any]]:
    """Return feature -> statistics, with a norm's mean, std and quantiles. Raises: FieldMismatch."""
    out = {feature: dict(own) for feature, own in stats.items()}
    for field, of_field in norm.fields.items():
        feature = field.removesuffix(".npy")
        if feature not in out:
            raise FieldMismatch(
                f"the norm {norm.path} is of {field!r}, which is no numeric feature of the export"
            )
        values = {_name_of(q): of_field.quantile(q) for q in QUANTILES}
        values |= {"mean": of_field.mean, "std": of_field.std}
        for name, value in values.items():
            whole = np.atleast_1d(value)
            if whole.shape != np.shape(out[feature]["mean"]):
                raise FieldMismatch(
                    f"the norm {norm.path} has {field!r} as {list(whole.shape)}, the export as "
                    f"{list(np.shape(out[feature]['mean']))}"
                )
            out[feature][name] = whole.tolist()
    return out


def statistics(streams: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return statistics of the finite numeric features. streams: feature -> array [rows, ...]."""
    numeric = {name: values for name, values in streams.items() if not isinstance(values, list)}
    return {name: _statistics_of(values) for name, values in numeric.items() if np.isfinite(values).all()}


def _statistics_of(values: Any) -> dict[str, Any]:
    own = values.min(0).tolist(), values.max(0).tolist()
    exact = values.astype(np.float64)
    out = {"min": own[0], "max": own[1], "mean": exact.mean(0).tolist(), "std": exact.std(0).tolist()}
    out["count"] = [len(values)]
    for q, quantile in zip(QUANTILES, np.quantile(exact, QUANTILES, axis=0), strict=True):
        out[_name_of(q)] = quantile.tolist()
    return out


class RowTotals:
    """Totals of numeric features over rows; rows with a value that is not finite are left out."""

    def __init__(self) -> None:
        self._totals: dict[str, FieldTotals] = {}

    def add(self, streams: Mapping[str, Any]) -> None:
        """Add an episode, without texts and features above `DIMS_MAX`. streams: feature -> array [rows, ...]."""
        for name, values in streams.items():
            if isinstance(values, list) or values.dtype.kind not in "biuf":
                continue
            floats = as_floats(values)  # [rows, dims]
            if not 0 < floats.shape[1] <= DIMS_MAX:
                continue
            is_finite = np.isfinite(floats).all(axis=1)
            shape = tuple(values.shape[1:])
            totals = self._totals.setdefault(name, FieldTotals(shape))
            if totals.shape != shape:
                raise InvalidSample(f"{name} has rows of {list(totals.shape)} and of {list(shape)}")
            if is_finite.any():
                totals.add(floats[is_finite], None)

    def add_stored(self, data: bytes, path: str, where: str) -> None:
        """Add what `stored` returned. where: its place, for errors. Raises: Corrupt."""
        norm = parse_norm(data, path, where)
        assert isinstance(norm, Norm)
        for name, of_field in norm.fields.items():
            self._totals.setdefault(name, FieldTotals(of_field.shape)).add_norm(of_field)

    def stored(self, version: str, path: str) -> bytes:
        """Return the totals as a stored norm. version: id of the exported version."""
        return norm_bytes(Norm(fields=self.fields(), transform="", version=version, path=path))

    def fields(self) -> dict[str, FieldNorm]:
        return {name: totals.norm() for name, totals in sorted(self._totals.items())}

    def statistics(self) -> dict[str, dict[str, Any]]:
        """Return feature -> statistic -> value. Quantiles are within 2^-11 of their magnitude, the others exact."""
        return {name: _statistics_of_norm(one) for name, one in self.fields().items() if one.n}


def _statistics_of_norm(norm: FieldNorm) -> dict[str, Any]:
    out = {"min": norm.min, "max": norm.max, "mean": norm.mean, "std": norm.std}
    for q in QUANTILES:
        out[_name_of(q)] = norm.interpolated_quantile(q)
    values = {name: np.atleast_1d(value).tolist() for name, value in out.items()}
    return values | {"count": [norm.n]}


def _name_of(q: float) -> str:
    return f"q{round(100 * q):02d}"


def aggregated(episodes: Sequence[Mapping[str, Mapping[str, Any]]]) -> dict[str, dict[str, Any]]:
    """Return statistics over all episodes, from their own: feature -> name -> value.

    Quantiles become bounds, as in LeRobot: the least q01 and the greatest q99. A median has none, so it is left out.
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
    for name in sorted(names):
        percent = int(name[1:]) if _QUANTILE.fullmatch(name) else None
        if name == "min" or (percent is not None and percent < 50):
            out[name] = np.array([one[name] for one in stats]).min(0).tolist()
        elif name == "max" or (percent is not None and percent > 50):
            out[name] = np.array([one[name] for one in stats]).max(0).tolist()
    return out
