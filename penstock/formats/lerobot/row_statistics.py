"""Statistics of LeRobot features: of an episode, of all rows, and out of a norm.

Quantiles of all rows do not follow from quantiles of episodes. So each unit of an export counts its rows as
`loader.norm` does, in bounded memory, and the sum of the counts gives the quantiles. Rejected: a second pass over all
rows.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from loader import Version
from loader.dataset.statistics.exact_statistics import DIMS_MAX, as_floats
from loader.dataset.statistics.norm import FieldNorm, FieldTotals, Norm, norm_bytes, parse_norm
from loader.errors import FieldMismatch, InvalidRuntime, InvalidSample, ObjectNotFound

QUANTILES = (0.01, 0.1, 0.5, 0.9, 0.99)
"""LeRobot's: q01, q10, q50, q90, q99."""
_PATH = re.compile(r"norms/[0-9a-f]{64}\.parquet")
_QUANTILE = re.compile(r"q\d\d")


def read_norm(version: Version, path: str) -> Norm:
    """Return a norm of stored values that was computed over all windows of this version.

    path: in the root. Raises: InvalidRuntime for any other norm; Corrupt; StoreError.
    """
    store = version.store
    message = f"--norm {path}: "
    if not _PATH.fullmatch(path):
        raise InvalidRuntime(
            f"{message}the path of a norm in the root is needed, norms/<64 digits>.parquet",
            what="--norm",
            given=path,
            accepted="norms/<64 digits>.parquet",
        )
    try:
        norm = parse_norm(store.get(path).data, path, f"{store.url}/{path}")
    except ObjectNotFound:
        raise InvalidRuntime(
            f"{message}{store.url} has no such norm; loader.norm(...).path names one",
            what="--norm",
            where=store.url,
            given=path,
        ) from None
    if not isinstance(norm, Norm):
        raise InvalidRuntime(
            f"{message}it has a norm for each {norm.by}; name one of all windows",
            what="by of the norm",
            where=path,
            given=norm.by,
        )
    if norm.transform:
        raise InvalidRuntime(
            f"{message}it is of the space of {norm.transform}; LeRobot's statistics are of the stored values",
            what="transform of the norm",
            where=path,
            given=norm.transform,
        )
    # Another version may have other rows.
    if norm.version != version.id:
        raise InvalidRuntime(
            f"{message}it is of {norm.version}, and {version.name} is {version.id}; make its norm",
            what="version of the norm",
            where=path,
            given=norm.version,
            accepted=version.id,
        )
    return norm


def with_norm(stats: Mapping[str, Mapping[str, Any]], norm: Norm) -> dict[str, dict[str, Any]]:
    """Return feature -> statistics, with a norm's mean, std and quantiles. Raises: FieldMismatch."""
    out = {feature: dict(own) for feature, own in stats.items()}
    for field, of_field in norm.fields.items():
        feature = field.removesuffix(".npy")
        if feature not in out:
            raise FieldMismatch(
                f"the norm {norm.path} is of {field!r}, which is not a numeric feature of the export",
                what=field,
                where=norm.path,
                accepted="a numeric feature of the export",
            )
        values = {_quantile_name(q): of_field.quantile(q) for q in QUANTILES}
        values |= {"mean": of_field.mean, "std": of_field.std}
        exported_shape = np.shape(out[feature]["mean"])
        for name, value in values.items():
            # LeRobot has a list even for a feature of one number.
            whole = np.atleast_1d(value)
            if whole.shape != exported_shape:
                raise FieldMismatch(
                    f"the norm {norm.path} has {field!r} as {list(whole.shape)}, the export as "
                    f"{list(exported_shape)}",
                    what=field,
                    where=norm.path,
                    given=list(whole.shape),
                    accepted=list(exported_shape),
                )
            out[feature][name] = whole.tolist()
    return out


def statistics(streams: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return statistics of the finite numeric features. streams: feature -> array [rows, ...]."""
    out = {}
    for name, values in streams.items():
        is_text = isinstance(values, list)
        # One NaN would spread to the mean and the std.
        if not is_text and np.isfinite(values).all():
            out[name] = _statistics(values)
    return out


def _statistics(values: Any) -> dict[str, Any]:
    exact = values.astype(np.float64)  # [rows, ...]
    out = {
        "min": values.min(0).tolist(),  # in the feature's own dtype
        "max": values.max(0).tolist(),
        "mean": exact.mean(0).tolist(),
        "std": exact.std(0).tolist(),
        "count": [len(values)],
    }
    quantiles = np.quantile(exact, QUANTILES, axis=0)  # [quantiles, ...]
    for q, quantile in zip(QUANTILES, quantiles, strict=True):
        out[_quantile_name(q)] = quantile.tolist()
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
            # Counts for each pixel of an image would break the bound on memory.
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
    values = {"min": norm.min, "max": norm.max, "mean": norm.mean, "std": norm.std}
    for q in QUANTILES:
        values[_quantile_name(q)] = norm.interpolated_quantile(q)
    out: dict[str, Any] = {"count": [norm.n]}
    for name, value in values.items():
        out[name] = np.atleast_1d(value).tolist()
    return out


def _quantile_name(q: float) -> str:
    percent = round(100 * q)
    return f"q{percent:02d}"


def aggregate(episodes: Sequence[Mapping[str, Mapping[str, Any]]]) -> dict[str, dict[str, Any]]:
    """Return statistics over all episodes, from their own: feature -> name -> value.

    Quantiles become bounds, as in LeRobot: the least q01 and the greatest q99. A median has none, so it is left out.
    Raises: InvalidSample.
    """
    by_feature: dict[str, list[Mapping[str, Any]]] = {}
    for episode in episodes:
        for feature, stats in episode.items():
            by_feature.setdefault(feature, []).append(stats)
    out = {}
    for feature, of_episodes in sorted(by_feature.items()):
        names = set.intersection(*map(set, of_episodes))  # that every episode has
        if not {"mean", "std", "count"} <= names:
            continue
        try:
            out[feature] = _of_feature(of_episodes, names)
        except (ValueError, TypeError, LookupError) as error:
            raise InvalidSample(
                f"statistics of {feature} in episode.json are not of one shape: {error}",
                what=f"statistics of {feature}",
                where="episode.json",
                accepted="one shape",
            ) from error
    return out


def _of_feature(stats: Sequence[Mapping[str, Any]], names: set[str]) -> dict[str, Any]:
    counts = np.array([one["count"][0] for one in stats], np.float64)  # [episodes]
    n_rows = counts.sum()

    def mean(values: Any) -> Any:
        """Return the mean over all rows. values: float64 [episodes, ...]."""
        return np.tensordot(counts, values, 1) / n_rows

    means = np.array([one["mean"] for one in stats], np.float64)  # [episodes, ...]
    stds = np.array([one["std"] for one in stats], np.float64)
    total_mean = mean(means)
    # The variance within episodes, and between their means.
    variance = mean(stds**2 + (means - total_mean) ** 2)
    out = {
        "mean": total_mean.tolist(),
        "count": [int(n_rows)],
        "std": np.sqrt(variance).tolist(),
    }
    for name in sorted(names):
        bound = _bound_function(name)
        if bound is not None:
            values = np.array([one[name] for one in stats])  # [episodes, ...]
            out[name] = bound(values, 0).tolist()
    return out


def _bound_function(name: str) -> Callable[[Any, int], Any] | None:
    """Return the function that joins a statistic of episodes: the least or the greatest; None for others."""
    if name in ("min", "max"):
        return np.min if name == "min" else np.max
    if not _QUANTILE.fullmatch(name):
        return None
    percent = int(name[1:])
    if percent == 50:
        return None
    return np.min if percent < 50 else np.max
