"""Copies on two sides of a split: samples that are both trained on and validated on."""

from collections.abc import Collection
from typing import TYPE_CHECKING

import numpy as np

from ..dedup.pictures import file_pictures, find
from ..dedup.policy import KINDS
from ..dedup.settle import Candidates
from ..dedup.table import looks, schema, typed
from ..pages.report import markdown_table
from .outcome import CheckResult, Severity

if TYPE_CHECKING:
    import polars as pl

NAME = "near_duplicates_across_splits"
_AT_ONCE = 256
"""Samples whose near ones are in memory together."""
_NAMED, _SHOWN = 3, 20

Pair = tuple[str, str, str, str, int]
"""A sample of the batch and its split, the nearest of another split and which, bits."""


def near_duplicates_across_splits(
    table: "pl.DataFrame",
    baseline: "pl.LazyFrame | None",
    *,
    max_distance: int = 8,
    mirrored: bool = True,
    kinds: Collection[str] = KINDS,
    severity: Severity = "error",
) -> CheckResult:
    """Check photos and clips of the batch for a near-duplicate in another split, in the batch or the newest version.

    By the perceptual hash, whatever the dataset does with near-duplicates; pieces of one object count too. Samples of
    these kinds without a hash fail the check. value: number of samples of the batch. Cost: see `dedup.hamming`.
    """
    mine = table.filter(table["kind"].is_in(list(kinds))) if "kind" in table.columns else table
    if not len(mine):
        return _result(0, f"there are no samples of kind {' or '.join(sorted(kinds))}", severity)
    if missing := [name for name in ("kind", "split", "phash") if name not in table.columns]:
        return _result(len(mine), f"the table has no column {missing[0]!r}", severity)
    if n_unhashed := mine["phash"].null_count():
        return _result(n_unhashed, f"{n_unhashed} of {len(mine)} samples have no perceptual hash", severity)
    new, members = looks(typed(mine), alone=False)
    found = _across(new, new, max_distance, mirrored)
    if baseline is not None:
        there = [name for name in schema() if name in baseline.collect_schema()]
        published = typed(baseline.select(there).collect())
        others, _ = looks(published.filter(published["kind"].is_in(list(kinds))), alone=False)
        found = _across(new, others, max_distance, mirrored) | found
    n_samples = int(members.gather(sorted(found)).list.len().sum())
    pairs = [found[row] for row in sorted(found)]
    said = f"{n_samples} of {len(mine)} samples have a near-duplicate in another split"
    named = [f"{key!r} ({split}) and {other!r} ({there})" for key, split, other, there, _ in pairs[:_NAMED]]
    header = ("sample", "split", "near-duplicate", "its split", "bits")
    return _result(
        n_samples,
        f"{said}: {'; '.join(named)}" if named else said,
        severity,
        markdown_table(header, pairs[:_SHOWN]) if pairs else "",
    )


def near_of(table: "pl.DataFrame", others: "pl.LazyFrame", max_distance: int) -> dict[str, tuple[str, int]]:
    """Return key of a photo or clip of the table -> the nearest of the other samples and its distance in bits.

    Only near-duplicates of one, mirrored or not, are in it; a sample without a hash is near to nothing.
    """
    there = [name for name in schema() if name in others.collect_schema()]
    mine, _ = looks(typed(table).filter(table["kind"].is_in(list(KINDS))), alone=True)
    theirs = typed(others.select(there).collect())
    filed, _ = looks(theirs.filter(theirs["kind"].is_in(list(KINDS))), alone=False)
    pairs = find(file_pictures(filed.pictures, max_distance), mine.pictures, mirrored=True)
    pairs = pairs.take(np.lexsort((pairs.row, pairs.distance, pairs.query)))
    query, place = np.unique(pairs.query, return_index=True)
    found = zip(query, pairs.row[place], pairs.distance[place], strict=True)
    return {str(mine.keys[one]): (str(filed.keys[other]), int(bits)) for one, other, bits in found}


def _across(new: Candidates, others: Candidates, max_distance: int, mirrored: bool) -> dict[int, Pair]:
    """Return row of `new` -> the nearest of another split, for those that have one."""
    filed = file_pictures(others.pictures, max_distance)
    found: dict[int, Pair] = {}
    for first in range(0, len(new), _AT_ONCE):
        some = new.take(np.arange(first, min(first + _AT_ONCE, len(new))))
        pairs = find(filed, some.pictures, mirrored=mirrored)
        pairs = pairs.take(some.splits[pairs.query] != others.splits[pairs.row])
        pairs = pairs.take(np.lexsort((pairs.row, pairs.distance, pairs.query)))
        query, place = np.unique(pairs.query, return_index=True)
        for row, other, bits in zip(query, pairs.row[place], pairs.distance[place], strict=True):
            one = (str(some.keys[row]), str(some.splits[row]))
            found[first + int(row)] = (*one, str(others.keys[other]), str(others.splits[other]), int(bits))
    return found


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
