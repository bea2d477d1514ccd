"""Table checks: reject rate, audio sample rate, counts, nulls, schema. A check fails if its column is missing."""

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from ..pages.report import markdown_table
from .outcome import CheckResult, Severity

if TYPE_CHECKING:
    import polars as pl


def reject_rate(
    n_landed: int, rejected: Mapping[str, int], max_rate: float, *, severity: Severity = "error"
) -> CheckResult:
    """Check the share of a batch's objects that were rejected. rejected: code -> objects; max_rate: 0 to 1."""
    n_rejected = sum(rejected.values())
    rate = n_rejected / n_landed if n_landed else float(n_rejected > 0)
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

    units: one row per audio unit; a null rate counts as wrong. The source's rate is checked because resampling hides a
    wrong one.
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
    share = n_wrong / len(units) if len(units) else 0.0
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
    """Check counts (rows, rows per kind ...) against a baseline; an empty baseline always passes.

    The result's value is the smallest ratio. A name that only the baseline has counts as 0.
    """
    names = sorted({*current, *baseline})
    rows: list[tuple[str, int, int, str]] = []
    wrong, least = [], 1.0
    for name in names:
        n, before = current.get(name, 0), baseline.get(name, 0)
        if not before:
            rows.append((name, before, n, "new"))
            continue
        ratio = n / before
        least = min(least, ratio)
        fits = ratio >= min_ratio and (max_ratio is None or ratio <= max_ratio)
        rows.append((name, before, n, f"{ratio:.3f}"))
        wrong += [] if fits else [f"{name}: {n}, {before} before"]
    allowed = f"at least {min_ratio:g}" + (f", at most {max_ratio:g}" if max_ratio is not None else "")
    summary = "; ".join(wrong) if wrong else "none differs by more than is allowed"
    return CheckResult(
        name="counts",
        passed=not wrong,
        severity=severity,
        value=least,
        limit=min_ratio,
        explanation=f"counts against the baseline (ratio {allowed}): {summary}",
        table_markdown=markdown_table(("count of", "before", "now", "ratio"), rows) if rows else "",
    )


def nulls(
    table: "pl.DataFrame", max_rates: Mapping[str, float], *, severity: Severity = "error"
) -> CheckResult:
    """Check the share of nulls and NaNs per column.

    max_rates: column -> share, 0 to 1. The result's value is the largest excess.
    """
    import polars as pl

    rows, wrong, excess = [], [], 0.0
    for name, limit in sorted(max_rates.items()):
        if name not in table.columns:
            return _absent("nulls", name, table, severity)
        column = table[name]
        n_missing = column.null_count()
        if column.dtype in (pl.Float32, pl.Float64):
            n_missing += int(column.is_nan().sum())
        rate = n_missing / len(table) if len(table) else 0.0
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

    A removed column or changed type fails; a new column passes. The result's value is the number of failing columns.
    """
    now = {name: str(dtype) for name, dtype in table.schema.items()}
    rows, wrong = [], []
    for name in sorted({*now, *previous}):
        before, after = previous.get(name, ""), now.get(name, "")
        if before == after:
            continue
        rows.append((name, before or "-", after or "-"))
        if before:
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


def _absent(name: str, column: str, table: "pl.DataFrame", severity: Severity) -> CheckResult:
    return CheckResult(
        name=name,
        passed=False,
        severity=severity,
        explanation=f"the table has no column {column!r}; it has {', '.join(sorted(table.columns)) or 'none'}",
    )
