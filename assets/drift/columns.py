"""Every column of a batch's table against those of the baseline's batches: kind by kind, source by source."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from .distributions import NOTHING, Drawn, Floats, distribution
from .findings import Finding, Thresholds
from .shares import Comparison, Counted, comparison, mix

if TYPE_CHECKING:
    import polars as pl

OBJECT = "raw_sha256"
MAX_CATEGORIES = 200
"""Different texts of a column, above which it is no category but a name."""
FEW_NUMBERS = 12
"""Different whole numbers, up to which a column of them is compared as categories: rates, channels, rotations."""
MIN_OBJECTS, MAX_SOURCES = 20, 20
"""Raw objects of a source in the batch, below which it is not compared alone; sources that are."""

# fmt: off
_NAMES = frozenset((
    "ordinal", "part", "row", "key", "source_key", "unit_id", "raw_uri", "raw_key", "raw_etag", "raw_sha256",
    "raw_start", "raw_end", "subject", "run_id", "asset_key", "partition", "code_version", "dup_of", "dup_by",
    "dup_distance_bits", "dup_cosine", "phash", "phash_mirrored", "phash_flat_mask", "sha256", "extradata_sha256",
    "keyframe_hashes", "keyframe_pts", "scene_cuts", "start_pts", "end_pts", "title", "author", "origin", "text",
    "n_packets", "max_pts_gap", "min_pts_gap",
))
# fmt: on
"""Columns that tell samples apart, or name where they come from, and say nothing of what they are like."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stratum:
    """Samples that are compared with their like."""

    of: str
    """Samples, in words."""
    now: "pl.DataFrame"
    """Rows of the batch."""
    batches: tuple["pl.DataFrame", ...]
    """Rows of each batch of the baseline."""
    objects: tuple[float, ...]
    """Raw objects that the rows of each of these are worth, the batch first."""


def with_source(table: "pl.DataFrame", key: str = "raw_key") -> "pl.DataFrame":
    """Return the table with the column `source`: its own, or else the first folder of the raw object's key."""
    import polars as pl

    if "source" in table.columns or key not in table.columns:
        return table
    folder = pl.col(key).str.extract("^([^/]+)/", 1).fill_null("(no folder)")
    return table.with_columns(folder.alias("source"))


def strata(
    now: "pl.DataFrame", batches: Sequence["pl.DataFrame"], within: Sequence[str], min_batches: int
) -> Iterator[Stratum]:
    """Yield all samples of a kind, then those of each value of the columns `within`.

    A value has to have enough objects, and to be in enough batches to know a usual batch.
    """
    import polars as pl

    def some(**where: str) -> tuple["pl.DataFrame", tuple["pl.DataFrame", ...]]:
        def of(table: "pl.DataFrame") -> "pl.DataFrame":
            for name, value in where.items():
                if name not in table.columns:
                    return table.clear()
                table = table.filter(pl.col(name) == value)
            return table

        return of(now), tuple(found for table in batches if len(found := of(table)))

    kinds = sorted(now["kind"].drop_nulls().unique()) if "kind" in now.columns else []
    for kind in kinds:
        mine, theirs = some(kind=kind)
        if theirs:
            yield _stratum(kind, mine, theirs)
        for column in within:
            if column not in mine.columns or not theirs:
                continue
            counted = mine.group_by(column).agg(pl.len()).sort(["len", column], descending=[True, False])
            for value, n in counted.head(MAX_SOURCES).iter_rows():
                if value is None or n < MIN_OBJECTS or counted.height < 2:
                    continue
                part, parts = some(kind=kind, **{column: value})
                if len(parts) >= min(min_batches, len(theirs)):
                    yield _stratum(f"{kind}, {column} {value!r}", part, parts)


def _stratum(of: str, now: "pl.DataFrame", batches: tuple["pl.DataFrame", ...]) -> Stratum:
    return Stratum(of=of, now=now, batches=batches, objects=tuple(map(n_objects, (now, *batches))))


def compared_columns(
    now: "pl.DataFrame", batches: Sequence["pl.DataFrame"], ignore: frozenset[str]
) -> list[str]:
    """Return columns that both sides have and can be compared; one that only the baseline has counts as missing now."""
    before = {name: kind for table in batches for name, kind in table.schema.items()}
    return [
        name
        for name, kind in before.items()
        if name not in _NAMES and name not in ignore and not kind.is_nested() and name != "kind"
    ]


def column_findings(
    now: "pl.DataFrame",
    batches: Sequence["pl.DataFrame"],
    thresholds: Thresholds,
    known: Mapping[str, Any],
    alpha: float,
) -> tuple[list[Finding], int]:
    """Return (findings, number of comparisons made).

    known: column -> every category that the version has; alpha: chance that anything of these stands out by chance.

    O(columns x strata x (rows of the batch and of the baseline's batches)). A batch of the baseline is only compared
    with the others for a column that differs.
    """
    columns = compared_columns(now, batches, thresholds.ignore)
    every = list(strata(now, batches, thresholds.within, thresholds.min_batches))
    sources = {name for table in batches if "source" in table.columns for name in table["source"].unique()}
    each = sum(
        n_comparisons([table[name] for table in (now, *batches) if name in table.columns]) for name in columns
    )
    n_compared = max(1, each * len(every) + len(sources))
    alpha /= n_compared
    found = _sources(now, batches, alpha)
    for stratum in every:
        for name in columns:
            found += _column(stratum, name, thresholds, alpha, known.get(name))
    return _without_echoes(found), n_compared


def _column(
    stratum: Stratum, name: str, thresholds: Thresholds, alpha: float, known: Any
) -> Iterator[Finding]:
    told: Any = {"column": name, "of": stratum.of}
    mine, *theirs = zip((stratum.now, *stratum.batches), stratum.objects, strict=True)
    both = [mine, *(one for one in theirs if name in one[0].columns)]
    if len(both) == 1:
        return
    lost, *before_lost = [missing_of(table, name, objects) for table, objects in both]
    missing = Comparison(now=lost, batches=before_lost, alpha=alpha)
    if missing.now.share > missing.before.share:
        yield from missing.found(thresholds.missing, what="missing values", **told)
    if name not in stratum.now.columns:
        return
    columns = [table[name] for table, _ in both]
    if len({column.dtype.is_numeric() for column in columns if column.dtype != _types().Null}) > 1:
        return  # another type: for `schema_findings`
    if _is_category(columns):
        counts, *each = [categories(table, name, objects) for table, objects in both]
        before = [one for one in each if one]
        if counts and before:
            if columns[0].dtype == _types().String:
                yield from _renamed(counts, before, alpha, known, told)
            limits = (thresholds.share, thresholds.psi)
            yield from mix(counts, before, alpha, limits, what="share", **told)
    elif columns[0].dtype.is_numeric():
        numbers = [_known(column) for column in columns]
        empty, *before_empty = [zeros_of(some, one[1]) for some, one in zip(numbers, both, strict=True)]
        zeros = Comparison(now=empty, batches=before_empty, alpha=alpha)
        yield from zeros.found(thresholds.zeros, what="zeros", **told)
        values, *others = [drawn(some, one[1]) for some, one in zip(numbers, both, strict=True)]
        three = (thresholds.level, thresholds.ks, thresholds.psi)
        yield from distribution(values, [one for one in others if len(one.values)], alpha, three, **told)


def _types() -> Any:
    import polars as pl

    return pl


def _is_category(columns: Sequence["pl.Series"]) -> bool:
    """Return whether the column is a text, a boolean, or a whole number with few values."""
    import polars as pl

    kind = columns[0].dtype
    if kind == pl.Boolean:
        return True
    if kind != pl.String and not kind.is_integer():
        return False
    return len(_values(columns)) <= (MAX_CATEGORIES if kind == pl.String else FEW_NUMBERS)


def _values(columns: Sequence["pl.Series"]) -> set[Any]:
    """Return the different values. In Python: columns of a batch are many and short, and a query of each costs more."""
    return {value for column in columns for value in column.to_list()} - {None}


def n_objects(table: "pl.DataFrame") -> float:
    """Return the number of raw objects that the rows are worth; for a table of objects, its rows.

    After Kish: (sum m)^2 / sum m^2 of the rows m of each, since objects with many samples weigh more.
    """
    if OBJECT not in table.columns:
        return float(len(table))
    rows = Counter(table[OBJECT].to_list()).values()
    return float(sum(rows)) ** 2 / float(sum(n * n for n in rows) or 1)


def _known(column: "pl.Series") -> Floats:
    """Return numbers without nulls; a null and a NaN are one in an array of NumPy."""
    if column.null_count():
        column = column.drop_nulls()
    return column.to_numpy().astype(np.float64)


def n_comparisons(columns: Sequence["pl.Series"]) -> int:
    """Return the number of ways in which a column may stand out.

    All columns: by missing values. Categories: by every one up or down, of texts also gone, and by the mix. Numbers: by
    zeros up or down and three measures.
    """
    if not _is_category(columns):
        return 6
    return 2 + (3 if columns[0].dtype == _types().String else 2) * len(_values(columns))


def missing_of(table: "pl.DataFrame", name: str, objects: float) -> Counted:
    """Count nulls and NaNs; of a column that is not there, all rows."""
    if name not in table.columns:
        return Counted(k=len(table), n=len(table), objects=objects)
    column = table[name]
    k = int(np.isnan(column.to_numpy()).sum()) if column.dtype.is_float() else column.null_count()
    return Counted(k=k, n=len(table), objects=objects)


def zeros_of(known: Floats, objects: float) -> Counted:
    """Count zeros among the known numbers, to the last digits."""
    k = int(np.count_nonzero(np.abs(known) <= NOTHING))
    return Counted(k=k, n=len(known), objects=min(len(known), objects))


def categories(table: "pl.DataFrame", name: str, objects: float) -> dict[str, Counted]:
    """Return value -> how many of the known ones have it."""
    counted = Counter(table[name].to_list())
    n = len(table) - counted.pop(None, 0)
    return {str(value): Counted(k=k, n=n, objects=min(n, objects)) for value, k in counted.items()}


def drawn(known: Floats, objects: float) -> Drawn:
    """Return the finite values."""
    return Drawn(values=np.sort(known[np.isfinite(known)]), objects=objects)


def _sources(now: "pl.DataFrame", batches: Sequence["pl.DataFrame"], alpha: float) -> list[Finding]:
    """Find sources of which nothing came, though every batch of the baseline had some.

    Half of the least share that any of them had would hardly leave them out by chance.
    """
    counts = categories(now, "source", n_objects(now)) if "source" in now.columns else {}
    if not counts:
        return []
    objects = next(iter(counts.values())).objects
    before = [categories(table, "source", n_objects(table)) for table in batches if "source" in table.columns]
    gone = sorted({name for one in before for name in one} - set(counts))
    found = []
    for name in gone:
        least = min(one[name].share if name in one else 0.0 for one in before)
        if (1 - least / 2) ** objects < alpha:
            words: Any = {"before": f"at least {least:.2%} of each batch", "now": f"none of {len(now)}"}
            told: Any = {"what": "source stopped delivering", "column": f"source = {name!r}"}
            found.append(Finding(**told, **words, effect=least))
    return found


def _renamed(
    counts: Mapping[str, Counted],
    before: Sequence[Mapping[str, Counted]],
    alpha: float,
    known: Any,
    told: Any,
) -> Iterator[Finding]:
    """Find values never seen before that are a known one in another spelling, or come while a known one has stopped."""
    there = {name for one in before for name in one}
    new = sorted(set(counts) - there - set(known or ()))
    spelled = {_plain(name): name for name in sorted(there) if _plain(name)}
    for name in new:
        old = spelled.get(_plain(name))
        if old is not None:
            words: Any = {"before": f"{old!r}", "now": f"{name!r} ({round(counts[name].k)} samples)"}
            yield Finding(what="renamed", **told, **words, effect=counts[name].share, certain=True)
    if not new:
        return
    for name in sorted(there - set(counts)):
        compared = comparison(name, counts, before, alpha)
        column = f"{told['column']} = {name!r} (new: {new[0]!r})"
        yield from compared.found(0.0, what="renamed", of=told["of"], column=column)


def _plain(name: str) -> str:
    return "".join(character for character in name.casefold() if character.isalnum())


def _without_echoes(found: Sequence[Finding]) -> list[Finding]:
    """Leave out findings of a source that all samples of its kind show."""
    whole = {(one.what, one.column) for one in found if "," not in one.of}
    return [one for one in found if "," not in one.of or (one.what, one.column) not in whole]
