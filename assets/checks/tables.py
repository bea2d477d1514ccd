"""Table checks: reject rate, sample rate, counts, nulls, schema, near-duplicates; a missing column fails."""

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from penstock.text import markdown_table

from ..dedup.near_pairs import find, index_images
from ..dedup.policy import KINDS
from ..dedup.settle import Candidates, best_of_groups, cast_columns
from ..dedup.settle import schema as compared_schema
from .marked_copies import marked_copies
from .outcome import CheckResult, Severity

if TYPE_CHECKING:
    import polars as pl


def reject_rate(
    n_landed: int,
    rejected: Mapping[str, int],
    max_rate: float,
    *,
    severity: Severity = "error",
) -> CheckResult:
    """Check the share of a batch's objects that were rejected. rejected: code -> objects; max_rate: 0 to 1."""
    n_rejected = sum(rejected.values())
    if n_landed:
        rate = n_rejected / n_landed
    else:
        # Rejected objects without any that landed are a miscount: a share of 1, not of 0.
        rate = float(n_rejected > 0)
    rows = sorted(rejected.items(), key=lambda item: (-item[1], item[0]))
    return CheckResult(
        name="reject_rate",
        passed=rate <= max_rate,
        severity=severity,
        value=rate,
        limit=max_rate,
        explanation=f"{n_rejected} of {n_landed} objects were rejected ({rate:.1%}), allowed are {max_rate:.1%}",
        table_markdown=markdown_table(("reason", "objects"), rows) if rows else "",
    )


def audio_rate(
    units: "pl.DataFrame",
    declared_hz: Collection[int],
    *,
    column: str = "source_sample_rate_hz",
    max_share: float = 0.0,
    severity: Severity = "error",
) -> CheckResult:
    """Check the share of audio units whose source sample rate is not among `declared_hz`.

    units: a row per audio unit; a null rate counts as wrong. The source's rate is checked because resampling
    would hide a wrong one.
    """
    import polars as pl

    if not len(units):
        return CheckResult(
            name="audio_rate",
            passed=True,
            severity=severity,
            value=0.0,
            limit=max_share,
            explanation="there are no audio units",
        )
    if column not in units.columns:
        return _absent("audio_rate", column, units, severity)
    rates = units.group_by(column).agg(pl.len().alias("n")).sort(column, nulls_last=True)
    declared = sorted(declared_hz)
    rows = [(hz, n, "yes" if hz in declared else "no") for hz, n in rates.iter_rows()]
    n_wrong = sum(n for _, n, fits in rows if fits == "no")
    share = 0.0
    if len(units):
        share = n_wrong / len(units)
    declared_rates = ", ".join(str(hz) for hz in declared) or "none"
    return CheckResult(
        name="audio_rate",
        passed=share <= max_share,
        severity=severity,
        value=share,
        limit=max_share,
        explanation=f"{n_wrong} of {len(units)} audio units ({share:.1%}) were not recorded at {declared_rates} Hz, "
        f"allowed are {max_share:.1%}",
        table_markdown=markdown_table(("sample rate in Hz", "units", "declared"), rows) if rows else "",
    )


def counts(
    current: Mapping[str, int],
    baseline: Mapping[str, int],
    *,
    min_ratio: float = 0.9,
    max_ratio: float | None = None,
    severity: Severity = "error",
) -> CheckResult:
    """Check counts (rows, rows per kind ...) against a baseline; an empty baseline passes.

    Value: the smallest ratio, or the largest if only `max_ratio` is exceeded; 1 without a baseline. A name that only
    the baseline has counts as 0.
    """
    names = sorted({*current, *baseline})
    rows: list[tuple[str, int, int, str]] = []
    wrong = []
    ratios: list[float] = []
    for name in names:
        n = current.get(name, 0)
        before = baseline.get(name, 0)
        if not before:
            # A new name has no ratio: neither bound applies.
            rows.append((name, before, n, "new"))
            continue
        ratio = n / before
        ratios.append(ratio)
        fits = ratio >= min_ratio and (max_ratio is None or ratio <= max_ratio)
        rows.append((name, before, n, f"{ratio:.3f}"))
        wrong += [] if fits else [f"{name}: {n}, {before} before"]
    allowed = f"at least {min_ratio:g}" + (f", at most {max_ratio:g}" if max_ratio is not None else "")
    summary = "none differs by more than is allowed"
    if wrong:
        summary = "; ".join(wrong)
    value = min(ratios, default=1.0)
    limit = min_ratio
    if max_ratio is not None and wrong and value >= min_ratio:  # only growth fails
        value = max(ratios)
        limit = max_ratio
    return CheckResult(
        name="counts",
        passed=not wrong,
        severity=severity,
        value=value,
        limit=limit,
        explanation=f"counts against the baseline (ratio {allowed}): {summary}",
        table_markdown=markdown_table(("count of", "before", "now", "ratio"), rows) if rows else "",
    )


def nulls(
    table: "pl.DataFrame", max_rates: Mapping[str, float], *, severity: Severity = "error"
) -> CheckResult:
    """Check the share of nulls and NaNs per column. max_rates: column -> share, 0 to 1. Value: the largest excess."""
    import polars as pl

    rows = []
    wrong = []
    excess = 0.0
    for name, limit in sorted(max_rates.items()):
        if name not in table.columns:
            return _absent("nulls", name, table, severity)
        column = table[name]
        n_missing = column.null_count()
        if column.dtype in (pl.Float32, pl.Float64):
            # polars counts NaN as a value.
            n_missing += int(column.is_nan().sum())
        rate = 0.0
        if len(table):
            rate = n_missing / len(table)
        rows.append((name, n_missing, f"{rate:.2%}", f"{limit:.2%}"))
        excess = max(excess, rate - limit)
        wrong += [] if rate <= limit else [f"{name} {rate:.1%} (allowed {limit:.1%})"]
    return CheckResult(
        name="nulls",
        passed=not wrong,
        severity=severity,
        value=excess,
        limit=0.0,
        explanation=f"missing values in {len(table)} rows: {'; '.join(wrong) or 'no more than allowed'}",
        table_markdown=markdown_table(("column", "missing", "share", "allowed"), rows) if rows else "",
    )


def schema(
    table: "pl.DataFrame", previous: Mapping[str, str], *, severity: Severity = "error"
) -> CheckResult:
    """Check columns and types against the previous version. previous: column -> polars type.

    A removed column or changed type fails. Value: the number of failing columns.
    """
    now = {name: str(dtype) for name, dtype in table.schema.items()}
    rows = []
    wrong = []
    for name in sorted({*now, *previous}):
        before = previous.get(name, "")
        after = now.get(name, "")
        if before == after:
            continue
        rows.append((name, before or "-", after or "-"))
        if before:
            # A new column breaks no reader, so only known ones count.
            wrong.append(f"{name} is {after}, was {before}" if after else f"{name} ({before}) went away")
    return CheckResult(
        name="schema",
        passed=not wrong,
        severity=severity,
        value=float(len(wrong)),
        limit=0.0,
        explanation=f"columns against the previous version: {'; '.join(wrong) or 'none changed or went away'}",
        table_markdown=markdown_table(("column", "before", "now"), rows) if rows else "",
    )


def _absent(
    name: str,
    column: str,
    table: "pl.DataFrame",
    severity: Severity,
) -> CheckResult:
    """Return the failed result of the check `name`, whose column the table lacks."""
    return CheckResult(
        name=name,
        passed=False,
        severity=severity,
        explanation=f"the table has no column {column!r}; it has {', '.join(sorted(table.columns)) or 'none'}",
    )


NAME = "near_duplicates_across_splits"
_AT_ONCE = 256
"""Samples searched at once."""
_NAMED, _SHOWN = 3, 20

Pair = tuple[str, str, str, str, int]
"""(key, its split, key of the nearest sample in another split, that split, distance in bits)."""


def near_duplicates_across_splits(
    table: "pl.DataFrame",
    baseline: "pl.LazyFrame | None",
    *,
    max_distance: int = 8,
    mirrored: bool = True,
    kinds: Collection[str] = KINDS,
    severity: Severity = "error",
) -> CheckResult:
    """Check that no photo, clip or document has a near-duplicate in another split of the batch or the newest version.

    Compares perceptual hashes; samples of `kinds` without one fail. Documents are compared by `dup_of`, which
    `NearDuplicates(text=, action="mark")` writes; if some fail, no image is compared. Value: number of failing samples.

    baseline: samples table of the newest version; None without one. max_distance: bits in which hashes of
    near-duplicates differ at most. mirrored: compare mirror images, too.
    """
    documents = marked_copies(table, baseline)
    if documents:
        return _result_of_documents(documents, severity)

    samples = table
    if "kind" in table.columns:
        samples = table.filter(table["kind"].is_in(list(kinds)))
    n_samples = len(samples)
    if not n_samples:
        return _result(0, f"there are no samples of kind {' or '.join(sorted(kinds))}", severity)
    if missing := [name for name in ("kind", "split", "phash") if name not in table.columns]:
        return _result(n_samples, f"the table has no column {missing[0]!r}", severity)
    if n_unhashed := samples["phash"].null_count():
        return _result(n_unhashed, f"{n_unhashed} of {n_samples} samples have no perceptual hash", severity)

    # Equal images of one split are compared once, as one candidate; `members` lists the samples behind each. Those of
    # two splits stay two candidates, and become a pair.
    new, members = best_of_groups(cast_columns(samples), grouped=True)
    pairs_by_row = _nearest_pairs(new, new, max_distance, mirrored)
    if baseline is not None:
        names = [name for name in compared_schema() if name in baseline.collect_schema()]
        published = cast_columns(baseline.select(names).collect())
        published = published.filter(published["kind"].is_in(list(kinds)))
        others, _ = best_of_groups(published, grouped=True)
        # A pair within the batch wins over one with the version: neither sample is published yet.
        pairs_by_row = _nearest_pairs(new, others, max_distance, mirrored) | pairs_by_row
    rows = sorted(pairs_by_row)
    pairs = [pairs_by_row[row] for row in rows]
    failing_samples = members.gather(rows)  # [rows]: lists of samples
    n_failing = int(failing_samples.list.len().sum())
    return _result_of_images(pairs, n_failing, n_samples, severity)


def _result_of_documents(documents: Sequence[tuple[str, str, str, str]], severity: Severity) -> CheckResult:
    """Return the failed result for pairs of documents. documents: as `Pair`, without a distance."""
    n_documents = len(documents)
    named = [f"{key!r} ({split}) and {other!r} ({its})" for key, split, other, its in documents[:_NAMED]]
    return _result(
        n_documents,
        f"{n_documents} documents are near-duplicates of one in another split: {'; '.join(named)}",
        severity,
        markdown_table(("sample", "split", "near-duplicate", "its split"), documents[:_SHOWN]),
    )


def _result_of_images(
    pairs: Sequence[Pair],
    n_failing: int,
    n_samples: int,
    severity: Severity,
) -> CheckResult:
    """Return the result for pairs of images, of which there may be none."""
    explanation = f"{n_failing} of {n_samples} samples have a near-duplicate in another split"
    if not pairs:
        return _result(n_failing, explanation, severity)
    named = [f"{key!r} ({split}) and {other!r} ({its})" for key, split, other, its, _ in pairs[:_NAMED]]
    header = ("sample", "split", "near-duplicate", "its split", "bits")
    return _result(
        n_failing,
        f"{explanation}: {'; '.join(named)}",
        severity,
        markdown_table(header, pairs[:_SHOWN]),
    )


def nearest_samples(
    table: "pl.DataFrame", others: "pl.LazyFrame", max_distance: int
) -> dict[str, tuple[str, int]]:
    """Return photo or clip key -> (key of the nearest sample in `others`, distance in bits).

    Samples without a near-duplicate, mirrored or not, are left out.
    """
    kinds = list(KINDS)
    own_images = cast_columns(table).filter(table["kind"].is_in(kinds))
    own, _ = best_of_groups(own_images, grouped=False)
    names = [name for name in compared_schema() if name in others.collect_schema()]
    other_samples = cast_columns(others.select(names).collect())
    other_images = other_samples.filter(other_samples["kind"].is_in(kinds))
    indexed, _ = best_of_groups(other_images, grouped=True)
    index = index_images(indexed.pictures, max_distance)
    pairs = find(index, own.pictures, mirrored=True)
    # Sorted by query, then distance, then row (lexsort's last key leads): np.unique takes the first, the nearest.
    order = np.lexsort((pairs.row, pairs.distance, pairs.query))
    pairs = pairs.take(order)
    query, first_pair = np.unique(pairs.query, return_index=True)
    nearest: dict[str, tuple[str, int]] = {}
    for own_row, row, bits in zip(query, pairs.row[first_pair], pairs.distance[first_pair], strict=True):
        key = str(own.keys[own_row])
        nearest[key] = (str(indexed.keys[row]), int(bits))
    return nearest


def _nearest_pairs(
    new: Candidates,
    others: Candidates,
    max_distance: int,
    mirrored: bool,
) -> dict[int, Pair]:
    """Return row of `new` -> its nearest pair in another split; rows without one are left out."""
    index = index_images(others.pictures, max_distance)
    nearest: dict[int, Pair] = {}
    for first in range(0, len(new), _AT_ONCE):
        stop = min(first + _AT_ONCE, len(new))
        chunk = new.take(np.arange(first, stop))
        pairs = find(index, chunk.pictures, mirrored=mirrored)
        is_across = chunk.splits[pairs.query] != others.splits[pairs.row]  # [pairs]
        pairs = pairs.take(is_across)
        # By query, then distance, then row. The first pair of each query is its nearest.
        order = np.lexsort((pairs.row, pairs.distance, pairs.query))
        pairs = pairs.take(order)
        query, first_pair = np.unique(pairs.query, return_index=True)
        for row, other, bits in zip(query, pairs.row[first_pair], pairs.distance[first_pair], strict=True):
            nearest[first + int(row)] = (
                str(chunk.keys[row]),
                str(chunk.splits[row]),
                str(others.keys[other]),
                str(others.splits[other]),
                int(bits),
            )
    return nearest


def _result(
    value: int,
    explanation: str,
    severity: Severity,
    table_markdown: str = "",
) -> CheckResult:
    """Return the result of `near_duplicates_across_splits`. value: number of failing samples; 0 passes."""
    return CheckResult(
        name=NAME,
        passed=not value,
        severity=severity,
        value=float(value),
        limit=0.0,
        explanation=explanation,
        table_markdown=table_markdown,
    )
