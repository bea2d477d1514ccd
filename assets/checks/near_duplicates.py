"""Check for leaks: near-duplicates of training samples in validation data, and the reverse."""

from collections.abc import Collection
from typing import TYPE_CHECKING

import numpy as np

from ..dedup.near_pairs import find, index_images
from ..dedup.policy import KINDS
from ..dedup.settle import Candidates, looks, schema, typed
from ..pages.report import markdown_table
from .outcome import CheckResult, Severity

if TYPE_CHECKING:
    import polars as pl

NAME = "near_duplicates_across_splits"
_AT_ONCE = 256
"""Samples searched at once, which bounds the near pairs in memory."""
_NAMED, _SHOWN = 3, 20

Pair = tuple[str, str, str, str, int]
"""(sample key, its split, key of the nearest sample in another split, that split, distance in bits)."""


def near_duplicates_across_splits(
    table: "pl.DataFrame",
    baseline: "pl.LazyFrame | None",
    *,
    max_distance: int = 8,
    mirrored: bool = True,
    kinds: Collection[str] = KINDS,
    severity: Severity = "error",
) -> CheckResult:
    """Check that no photo or clip has a near-duplicate in another split of the batch or the newest version.

    Compares perceptual hashes; samples of `kinds` without a hash fail. The result's value is the number of failing
    samples.
    """
    samples = table.filter(table["kind"].is_in(list(kinds))) if "kind" in table.columns else table
    if not len(samples):
        return _result(0, f"there are no samples of kind {' or '.join(sorted(kinds))}", severity)
    if missing := [name for name in ("kind", "split", "phash") if name not in table.columns]:
        return _result(len(samples), f"the table has no column {missing[0]!r}", severity)
    if n_unhashed := samples["phash"].null_count():
        return _result(
            n_unhashed, f"{n_unhashed} of {len(samples)} samples have no perceptual hash", severity
        )
    new, members = looks(typed(samples), ungrouped=False)
    across = _across(new, new, max_distance, mirrored)
    if baseline is not None:
        names = [name for name in schema() if name in baseline.collect_schema()]
        published = typed(baseline.select(names).collect())
        others, _ = looks(published.filter(published["kind"].is_in(list(kinds))), ungrouped=False)
        across = _across(new, others, max_distance, mirrored) | across
    n_samples = int(members.gather(sorted(across)).list.len().sum())
    pairs = [across[row] for row in sorted(across)]
    summary = f"{n_samples} of {len(samples)} samples have a near-duplicate in another split"
    named = [f"{key!r} ({split}) and {other!r} ({names})" for key, split, other, names, _ in pairs[:_NAMED]]
    header = ("sample", "split", "near-duplicate", "its split", "bits")
    return _result(
        n_samples,
        f"{summary}: {'; '.join(named)}" if named else summary,
        severity,
        markdown_table(header, pairs[:_SHOWN]) if pairs else "",
    )


def near_of(table: "pl.DataFrame", others: "pl.LazyFrame", max_distance: int) -> dict[str, tuple[str, int]]:
    """Return photo or clip key -> (key of the nearest sample in `others`, distance in bits).

    Samples without a near-duplicate, mirrored or not, are left out.
    """
    names = [name for name in schema() if name in others.collect_schema()]
    own, _ = looks(typed(table).filter(table["kind"].is_in(list(KINDS))), ungrouped=True)
    theirs = typed(others.select(names).collect())
    filed, _ = looks(theirs.filter(theirs["kind"].is_in(list(KINDS))), ungrouped=False)
    pairs = find(index_images(filed.pictures, max_distance), own.pictures, mirrored=True)
    pairs = pairs.take(np.lexsort((pairs.row, pairs.distance, pairs.query)))
    query, place = np.unique(pairs.query, return_index=True)
    nearest = zip(query, pairs.row[place], pairs.distance[place], strict=True)
    return {str(own.keys[one]): (str(filed.keys[other]), int(bits)) for one, other, bits in nearest}


def _across(new: Candidates, others: Candidates, max_distance: int, mirrored: bool) -> dict[int, Pair]:
    filed = index_images(others.pictures, max_distance)
    nearest: dict[int, Pair] = {}
    for first in range(0, len(new), _AT_ONCE):
        chunk = new.take(np.arange(first, min(first + _AT_ONCE, len(new))))
        pairs = find(filed, chunk.pictures, mirrored=mirrored)
        pairs = pairs.take(chunk.splits[pairs.query] != others.splits[pairs.row])
        pairs = pairs.take(np.lexsort((pairs.row, pairs.distance, pairs.query)))
        query, place = np.unique(pairs.query, return_index=True)
        for row, other, bits in zip(query, pairs.row[place], pairs.distance[place], strict=True):
            sample = (str(chunk.keys[row]), str(chunk.splits[row]))
            nearest[first + int(row)] = (
                *sample,
                str(others.keys[other]),
                str(others.splits[other]),
                int(bits),
            )
    return nearest


def _result(value: int, explanation: str, severity: Severity, table_markdown: str = "") -> CheckResult:
    return CheckResult(
        name=NAME,
        passed=not value,
        severity=severity,
        value=float(value),
        limit=0.0,
        explanation=explanation,
        table_markdown=table_markdown,
    )
