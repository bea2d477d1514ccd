"""A norm's statistics of the whole dataset, instead of row-weighted means of episodes' statistics."""

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from loader import Version
from loader.dataset.norms.norm import Norm, parse_norm
from loader.errors import FieldMismatch, InvalidRuntime, ObjectNotFound

QUANTILES = (0.01, 0.1, 0.5, 0.9, 0.99)
"""LeRobot's: q01, q10, q50, q90, q99."""
_PATH = re.compile(r"norms/[0-9a-f]{64}\.parquet")


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
        values = {f"q{round(100 * q):02d}": of_field.quantile(q) for q in QUANTILES}
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
