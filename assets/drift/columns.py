"""Compare every column of a batch's table with the baseline's batches, per kind and per source."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from .distributions import NOTHING, Drawn, Floats, distribution
from .findings import DriftFinding, Thresholds
from .shares import NONE, Comparison, Counted, comparison, mix

if TYPE_CHECKING:
    import polars as pl

OBJECT = "raw_sha256"
MAX_CATEGORIES = 200
"""Most distinct texts of a column of categories."""
FEW_NUMBERS = 12
"""Distinct integers up to which a column counts as categories, such as rates or channels."""
MIN_OBJECTS = 20
"""Fewest rows of a source that is compared separately."""
MAX_SOURCES = 20
"""Most sources compared separately."""

# fmt: off
_NAMES = frozenset((
    "ordinal", "part", "row", "key", "source_key", "unit_id", "raw_uri", "raw_key", "raw_etag", "raw_sha256",
    "raw_start", "raw_end", "subject", "run_id", "asset_key", "partition", "code_version", "dup_of", "dup_by",
    "dup_distance_bits", "dup_cosine", "dup_similarity", "phash", "phash_mirrored", "phash_flat_mask", "sha256",
    "extradata_sha256",
    "keyframe_hashes", "keyframe_pts", "scene_cuts", "start_pts", "end_pts", "title", "author", "origin", "text",
    "n_packets", "max_pts_gap", "min_pts_gap",
))
# fmt: on
"""Columns that identify samples or origin."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stratum:
    """Samples of batch and baseline that are compared."""

    of: str
    """Description of the samples, such as a kind."""
    now: "pl.DataFrame"
    """Rows of the batch."""
    batches: tuple["pl.DataFrame", ...]
    """Rows of each batch of the baseline."""
    objects: tuple[float, ...]
    """Effective raw objects per table, the batch first."""


def with_source(table: "pl.DataFrame", key: str = "raw_key") -> "pl.DataFrame":
    """Return the table with a column `source`: its own, or else the first folder of the raw key."""
    import polars as pl

    if "source" in table.columns or key not in table.columns:
        return table
    folder = pl.col(key).str.extract("^([^/]+)/", 1).fill_null("(no folder)")
    return table.with_columns(folder.alias("source"))


def strata(
    now: "pl.DataFrame",
    batches: Sequence["pl.DataFrame"],
    within: Sequence[str],
    min_batches: int,
) -> Iterator[Stratum]:
    """Yield a stratum per kind, then one per kind and value of each column in `within`.

    Leaves out values with too few rows or batches to show what is usual.
    """
    import polars as pl

    def matching(**where: str) -> tuple["pl.DataFrame", tuple["pl.DataFrame", ...]]:
        def matching_rows(table: "pl.DataFrame") -> "pl.DataFrame":
            for name, value in where.items():
                if name not in table.columns:
                    return table.clear()
                table = table.filter(pl.col(name) == value)
            return table

        earlier = [matching_rows(table) for table in batches]
        return matching_rows(now), tuple(table for table in earlier if len(table))

    if "kind" not in now.columns:
        return
    for kind in sorted(now["kind"].drop_nulls().unique()):
        current, earlier = matching(kind=kind)
        if not earlier:
            continue
        yield _stratum(kind, current, earlier)
        for column in within:
            if column not in current.columns:
                continue
            counted = current.group_by(column).agg(pl.len()).sort(["len", column], descending=[True, False])
            for value, n in counted.head(MAX_SOURCES).iter_rows():
                # A column with one value would repeat the comparison of the whole kind.
                if value is None or n < MIN_OBJECTS or counted.height < 2:
                    continue
                part, parts = matching(kind=kind, **{column: value})
                if len(parts) >= min(min_batches, len(earlier)):
                    yield _stratum(f"{kind}, {column} {value!r}", part, parts)


def _stratum(of: str, now: "pl.DataFrame", batches: tuple["pl.DataFrame", ...]) -> Stratum:
    objects = tuple(n_objects(table) for table in (now, *batches))
    return Stratum(of=of, now=now, batches=batches, objects=objects)


def compared_columns(
    now: "pl.DataFrame", batches: Sequence["pl.DataFrame"], ignore: frozenset[str]
) -> list[str]:
    """Return the baseline's columns that can be compared. A column that the batch lacks counts as missing."""
    before: dict[str, pl.DataType] = {}
    for table in batches:
        before.update(table.schema)
    excluded = _NAMES | ignore | {"kind"}
    return [name for name, kind in before.items() if name not in excluded and not kind.is_nested()]


def column_findings(
    now: "pl.DataFrame",
    batches: Sequence["pl.DataFrame"],
    thresholds: Thresholds,
    known: Mapping[str, Any],
    alpha: float,
) -> tuple[list[DriftFinding], int]:
    """Return (findings, number of comparisons).

    known: column -> every category in the version. alpha: probability of any false finding. O(columns x strata x rows).
    """
    columns = compared_columns(now, batches, thresholds.ignore)
    every = list(strata(now, batches, thresholds.within, thresholds.min_batches))
    sources: set[Any] = set()
    for table in batches:
        if "source" in table.columns:
            sources.update(table["source"].unique())
    n_in_stratum = 0
    for name in columns:
        n_in_stratum += n_comparisons([table[name] for table in (now, *batches) if name in table.columns])
    n_compared = max(1, n_in_stratum * len(every) + len(sources))
    alpha /= n_compared  # Bonferroni
    findings = _sources(now, batches, alpha)
    for stratum in every:
        for name in columns:
            findings += _column(stratum, name, thresholds, alpha, known.get(name))
    return _without_echoes(findings), n_compared


def _column(
    stratum: Stratum,
    name: str,
    thresholds: Thresholds,
    alpha: float,
    known: Any,
) -> Iterator[DriftFinding]:
    """Find missing values, and changes of shares or of numbers. known: every category of the version, if any."""
    labels: Any = {"column": name, "of": stratum.of}
    current, *earlier = zip((stratum.now, *stratum.batches), stratum.objects, strict=True)
    earlier = [(table, objects) for table, objects in earlier if name in table.columns]
    if not earlier:
        return
    tables = [current, *earlier]  # (table, its objects), the batch first
    counts_of_missing = [count_missing(table, name, objects) for table, objects in tables]
    missing = Comparison(
        now=counts_of_missing[0],
        batches=counts_of_missing[1:],
        alpha=alpha,
    )
    if missing.now.share > missing.before.share:
        yield from missing.findings(thresholds.missing, what="missing values", **labels)
    if name not in stratum.now.columns:
        return
    columns = [table[name] for table, _ in tables]
    objects = [objects for _, objects in tables]
    is_numeric = {column.dtype.is_numeric() for column in columns if column.dtype != _types().Null}
    if len(is_numeric) > 1:
        return  # `schema_findings` reports a changed type
    if _is_category(columns):
        counts, *before = [categories(table, name, objects) for table, objects in tables]
        before = [one for one in before if one]
        if not counts or not before:
            return
        if columns[0].dtype == _types().String:
            yield from _respelled_values(counts, before, alpha, known, labels)
        limits = (thresholds.share, thresholds.psi)
        yield from mix(counts, before, alpha, limits, what="share", **labels)
    elif columns[0].dtype.is_numeric():
        numbers = [_known_values(column) for column in columns]
        yield from _number_findings(numbers, objects, thresholds, alpha, labels)


def _number_findings(
    numbers: Sequence[Floats],
    objects: Sequence[float],
    thresholds: Thresholds,
    alpha: float,
    labels: Any,
) -> Iterator[DriftFinding]:
    """Compare zeros and distribution of a column of numbers.

    numbers: known values per table, the batch first. objects: effective raw objects of each (`n_objects`). labels:
    column and samples that the findings name.
    """
    counts = [count_zeros(values, n) for values, n in zip(numbers, objects, strict=True)]
    zeros = Comparison(now=counts[0], batches=counts[1:], alpha=alpha)
    yield from zeros.findings(thresholds.zeros, what="zeros", **labels)
    now, *before = [finite_draw(values, n) for values, n in zip(numbers, objects, strict=True)]
    before = [draw for draw in before if len(draw.values)]
    limits = (thresholds.level, thresholds.ks, thresholds.psi)
    yield from distribution(now, before, alpha, limits, **labels)


def _types() -> Any:
    """Return polars, for its data types."""
    import polars as pl

    return pl


def _is_category(columns: Sequence["pl.Series"]) -> bool:
    """Return whether a column's values are compared one by one. columns: the column of each table, at least one."""
    import polars as pl

    kind = columns[0].dtype
    if kind == pl.Boolean:
        return True
    if kind != pl.String and not kind.is_integer():
        return False
    if kind == pl.String:
        most = MAX_CATEGORIES
    else:
        most = FEW_NUMBERS
    return len(_values(columns)) <= most


def _values(columns: Sequence["pl.Series"]) -> set[Any]:
    # Python is faster than a query for each of many short columns.
    values: set[Any] = set()
    for column in columns:
        values.update(column.to_list())
    return values - {None}


def n_objects(table: "pl.DataFrame") -> float:
    """Return the effective number of raw objects: Kish's (sum m)^2 / sum m^2 over the rows m of each."""
    if OBJECT not in table.columns:
        return float(len(table))
    rows = Counter(table[OBJECT].to_list()).values()
    squares = sum(n * n for n in rows)
    return float(sum(rows)) ** 2 / float(squares or 1)


def _known_values(column: "pl.Series") -> Floats:
    """Return float64 [values]: the values that are not null; NaN and infinity may be among them."""
    if column.null_count():
        column = column.drop_nulls()
    return column.to_numpy().astype(np.float64)


def n_comparisons(columns: Sequence["pl.Series"]) -> int:
    """Return the number of ways in which a column may stand out."""
    missing = 1
    if not _is_category(columns):
        zeros = 2  # more, or fewer
        distribution_measures = 3
        return missing + zeros + distribution_measures
    mix_of_values = 1
    per_value = 2  # its share rises, or falls
    if columns[0].dtype == _types().String:
        per_value += 1  # it disappears as a respelled one appears
    return missing + mix_of_values + per_value * len(_values(columns))


def count_missing(table: "pl.DataFrame", name: str, objects: float) -> Counted:
    """Count nulls and NaNs; an absent column is missing in every row."""
    if name not in table.columns:
        return Counted(k=len(table), n=len(table), objects=objects)
    column = table[name]
    if column.dtype.is_float():
        k = int(np.isnan(column.to_numpy()).sum())  # polars converts nulls to NaN
    else:
        k = column.null_count()
    return Counted(k=k, n=len(table), objects=objects)


def count_zeros(known: Floats, objects: float) -> Counted:
    """Count zeros among the known numbers."""
    k = int(np.count_nonzero(np.abs(known) <= NOTHING))
    return Counted(k=k, n=len(known), objects=min(len(known), objects))


def categories(table: "pl.DataFrame", name: str, objects: float) -> dict[str, Counted]:
    """Return value -> its count among the known values."""
    counted = Counter(table[name].to_list())
    n = len(table) - counted.pop(None, 0)
    return {
        str(value): Counted(
            k=k,
            n=n,
            objects=min(n, objects),
        )
        for value, k in counted.items()
    }


def finite_draw(known: Floats, objects: float) -> Drawn:
    """Return the finite values, sorted. objects: raw objects behind all known values."""
    return Drawn(values=np.sort(known[np.isfinite(known)]), objects=objects)


def _sources(now: "pl.DataFrame", batches: Sequence["pl.DataFrame"], alpha: float) -> list[DriftFinding]:
    """Find sources of the baseline that delivered nothing."""
    # A source is missing if its absence is improbable even at half the smallest share it had in a batch.
    if "source" not in now.columns:
        return []
    counts = categories(now, "source", n_objects(now))
    if not counts:
        return []
    objects = next(iter(counts.values())).objects
    before = [categories(table, "source", n_objects(table)) for table in batches if "source" in table.columns]
    missing = set().union(*before) - set(counts)
    findings = []
    for name in sorted(missing):
        least = min(one.get(name, NONE).share for one in before)
        chance = (1 - least / 2) ** objects
        if chance < alpha:
            words: Any = {"before": f"at least {least:.2%} of each batch", "now": f"none of {len(now)}"}
            labels: Any = {"what": "source stopped delivering", "column": f"source = {name!r}"}
            findings.append(DriftFinding(**labels, **words, effect=least))
    return findings


def _respelled_values(
    counts: Mapping[str, Counted],
    before: Sequence[Mapping[str, Counted]],
    alpha: float,
    known: Any,
    labels: Any,
) -> Iterator[DriftFinding]:
    """Find new values that respell a known one, or that appear as a known one disappears."""
    earlier = set().union(*before)
    new = sorted(set(counts) - earlier - set(known or ()))
    spelled = {_plain(name): name for name in sorted(earlier) if _plain(name)}
    for name in new:
        old = spelled.get(_plain(name))
        if old is not None:
            words: Any = {"before": f"{old!r}", "now": f"{name!r} ({round(counts[name].k)} samples)"}
            yield DriftFinding(
                what="renamed",
                **labels,
                **words,
                effect=counts[name].share,
                certain=True,
            )
    if not new:
        return
    for name in sorted(earlier - set(counts)):
        compared = comparison(name, counts, before, alpha)
        column = f"{labels['column']} = {name!r} (new: {new[0]!r})"
        yield from compared.findings(
            0.0,
            what="renamed",
            of=labels["of"],
            column=column,
        )


def _plain(name: str) -> str:
    """Return a value without case, spaces and punctuation: respelled values are equal in it."""
    return "".join(character for character in name.casefold() if character.isalnum())


def _without_echoes(findings: Sequence[DriftFinding]) -> list[DriftFinding]:
    # The label of a source's stratum has a comma: "photo, source 'a'" repeats a finding of "photo".
    whole = {(finding.what, finding.column) for finding in findings if "," not in finding.of}
    return [
        finding
        for finding in findings
        if "," not in finding.of or (finding.what, finding.column) not in whole
    ]
