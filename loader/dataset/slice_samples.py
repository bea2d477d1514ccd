"""Samples of a slice: the ones that a caller names, and their keys."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from ..errors import Corrupt, EmptyView, InvalidPlan, InvalidSample, SampleNotFound
from .tables.parquet import Int64s
from .tables.slice_record import MAX_SLICE_SAMPLES
from .tables.table_rows import distinct
from .versions.sample_rows import columns_of_rows
from .versions.samples_table import live_ordinals, live_where
from .versions.slice_members import MISSING
from .versions.version import Version, View


def sample_keys(version: Version, ordinals: Int64s) -> list[str]:
    """Return the keys of live ordinals, int64 [n], ascending. Reads their row groups of the samples table."""
    keys: list[str] = key_column(version, ordinals).to_pylist()
    return keys


def key_column(version: Version, ordinals: Int64s) -> pa.Array | pa.ChunkedArray:
    if not len(ordinals):
        return pa.array([], pa.string())
    positions, rows = version.parts.locate(ordinals)
    try:
        table = columns_of_rows(version, positions, rows, ["key"])
    except Corrupt:  # an earlier release left the keys tables out of order: the index has the keys too
        keys = version.keys(ordinals)
        return pa.array(keys, pa.string())
    return table["key"]


def ordinals_of_samples(version: Version, name: str, samples: Any) -> Int64s:
    """Return int64 [n]: live ordinals of the samples, ascending and distinct."""
    if isinstance(samples, str):
        return np.flatnonzero(live_where(version, samples))
    ordinals = _sample_ordinals(version, samples)
    if not len(ordinals):
        raise EmptyView(
            f"the slice {name!r} of {version.name} has no samples; a list needs one at least",
            what="slice",
            where=f"{version.dataset}/{name}",
            given=0,
            accepted=1,
        )
    if len(ordinals) > MAX_SLICE_SAMPLES:
        raise InvalidSample(
            f"the slice {name!r} has {len(ordinals):,} samples; a list has at most {MAX_SLICE_SAMPLES:,}. Save a rule: "
            "SQL text",
            what="slice",
            where=f"{version.dataset}/{name}",
            given=len(ordinals),
            accepted=MAX_SLICE_SAMPLES,
        )
    return ordinals


def _sample_ordinals(version: Version, samples: Any) -> Int64s:
    if isinstance(samples, View):
        if samples.version.id != version.id:
            raise InvalidPlan(
                f"the view is of {samples.version.name}, the slice of {version.name}: pass a view of {version.name}",
                what="view",
                given=samples.version.name,
                accepted=version.name,
            )
        return samples.version_ordinals(np.arange(len(samples)))
    if isinstance(samples, np.ndarray) and samples.dtype.kind in "iu" and samples.ndim == 1:
        ordinals = samples.astype(np.int64)
    else:
        values = list(samples)
        if all(isinstance(value, str) for value in values):
            return _ordinals_of_keys(version, values)
        is_integers = all(isinstance(value, int) and not isinstance(value, bool) for value in values)
        if not is_integers:
            raise InvalidSample(
                f"a slice takes keys, ordinals, a view or SQL text, got {values[:3]!r:.200}: pass keys or ordinals "
                "only",
                what="samples",
                given=values[:3],
                accepted="keys, ordinals, a view or SQL text",
            )
        ordinals = np.array(values, np.int64)
    version.parts.locate(ordinals)  # raises InvalidRuntime for an ordinal out of range
    return distinct(ordinals)


def _ordinals_of_keys(version: Version, keys: Sequence[str]) -> Int64s:
    ordinals = live_ordinals(version, keys)
    missing = np.flatnonzero(ordinals == MISSING)
    if len(missing):
        more = ""
        if len(missing) > 1:
            more = f" (nor {len(missing) - 1} others of these keys)"
        raise SampleNotFound(
            f"{version.name} has no live sample {keys[int(missing[0])]!r}{more}; nothing was saved. List keys with "
            "version.samples()",
            what="samples",
            where=version.name,
            given=keys[int(missing[0])],
        )
    return distinct(ordinals)
