"""A root, a version with a page of samples, and the difference between two versions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np

import loader
from loader.dataset.tables.columns import SOURCE_COLUMNS
from loader.dataset.versions.expression import counts, tokens_of
from loader.dataset.versions.samples_table import live_columns, scan_samples
from loader.errors import FieldNotFound, InvalidRuntime
from loader.run.trail.read_trail import trail_runs
from loader.storage.mirror import primary_of

from ...text import clean
from ...upkeep.diff import Diff, column_statistics, diff
from ..json_record import JsonRecord
from ..lru_cache import LruCache

# Limits for filter and sort expressions, so that a page cannot keep its server busy for minutes. polars takes time
# quadratic in the words and exponential in the depth, because BETWEEN, CASE and some functions repeat their operand.
MOST_WORDS = 600
"""Most words and operators: about 200 comparisons."""
MOST_DEPTH, MOST_CASE_DEPTH, MOST_WHENS = 6, 1, 40
"""Deepest bracket and CASE nesting, and most WHEN clauses."""
REPEATS, MOST_REPEATS = frozenset(("BETWEEN", "CASE", "NULLIF", "RIGHT", "SPLIT_PART")), 8
"""Keywords whose operand polars repeats, and how many are allowed."""
PAGE = 60
"""Samples per page of the grid."""
MOST_CATEGORIES = 12
"""Most values per column."""
GRID_COLUMNS = ("label", "kind", "split", "language", "licence", "raw_key")
"""A sample's columns in the grid, if present."""
_IDENTITY = frozenset((*SOURCE_COLUMNS, "key"))
MOST_SAMPLES = 200
"""Most samples listed per side."""


def check_limit(text: str, what: str) -> None:
    """Raise FieldNotFound beyond the limits. what: "where" or "sort"."""
    tokens = tokens_of(text)
    words = [token for kind, token in tokens if kind == "word"]
    counts_by_limit = {
        f"words and operators, up to {MOST_WORDS}": (
            sum(counts(kind, token) for kind, token in tokens),
            MOST_WORDS,
        ),
        f"nested brackets, up to {MOST_DEPTH}": (
            _depth([token for kind, token in tokens if kind == "bracket"], "(", ")"),
            MOST_DEPTH,
        ),
        f"nested CASE, up to {MOST_CASE_DEPTH}": (
            _depth(words, "CASE", "END"),
            MOST_CASE_DEPTH,
        ),
        f"WHEN, up to {MOST_WHENS}": (words.count("WHEN"), MOST_WHENS),
        f"of {', '.join(sorted(REPEATS))}, up to {MOST_REPEATS}": (
            sum(word in REPEATS for word in words),
            MOST_REPEATS,
        ),
    }
    beyond = [f"{n:,} {limit}" for limit, (n, most) in counts_by_limit.items() if n > most]
    if beyond:
        raise FieldNotFound(
            f"the {what} of this page has {'; '.join(beyond)}. Write column IN (...) for many values, or ask in "
            "Python: version.where(...) takes more"
        )


def _depth(tokens: list[str], begin: str, end: str) -> int:
    return max(accumulate((token == begin) - (token == end) for token in tokens), default=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Facet(JsonRecord):
    column: str
    """Column name."""
    type: str
    """Arrow type."""
    n: int
    """Samples with a value."""
    nulls: int
    """Samples without a value."""
    low: float | None = None
    """Smallest; None for text."""
    high: float | None = None
    """Largest; None for text."""
    mean: float | None = None
    """Mean; None for text."""
    values: tuple[tuple[str, int], ...] = ()
    """Most frequent (value, samples); empty for numbers or too many."""
    n_values: int = 0
    """Distinct; 0 if not counted."""

    def where(self, value: str) -> str:
        """Return the SQL filter for the samples with one of `values`."""
        literal = "'" + value.replace("'", "''") + "'"
        if self.type == "bool":
            literal = value.upper()
        return f'"{self.column}" = {literal}'


@dataclass(frozen=True, slots=True, kw_only=True)
class GridRow(JsonRecord):
    ordinal: int
    """Index in the version."""
    key: str
    """Sample key."""
    fields: tuple[str, ...]
    """Field names."""
    columns: Mapping[str, str]
    """GRID_COLUMNS' values, if the page is filtered or sorted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionPageRecord(JsonRecord):
    """A version and one page of its samples."""

    dataset: str
    """Dataset name."""
    number: int
    version_id: str
    n_samples: int
    """Live samples."""
    n_excluded: int
    fields: tuple[str, ...]
    """Field names."""
    created_us: int
    """UTC microseconds."""
    producer: Mapping[str, str]
    """Property -> value, from the manifest."""
    facets: tuple[Facet, ...]
    """Column statistics of live samples."""
    where: str
    """SQL filter, or ""."""
    sort: str
    """SQL, prefixed with `-` for descending; "" for the version's order."""
    n_found: int
    """Samples that match."""
    first: int
    """This page's first index among the matches."""
    rows: tuple[GridRow, ...]
    """Samples on this page."""


def version_record(
    version: "loader.Version", *, where: str = "", sort: str = "", first: int = 0
) -> VersionPageRecord:
    """Return a version's page. Raises: FieldNotFound for a rejected expression; InvalidRuntime.

    Reads the samples table only to filter or sort, and once per version with exclusions.
    """
    if first < 0:
        raise InvalidRuntime(f"from = {first}; pass a number from 0")
    ordinals, n_found, columns = _page(version, where, sort, first)
    manifest = version.manifest
    dataset, _, number = version.name.partition("@")
    return VersionPageRecord(
        dataset=dataset,
        number=int(number),
        version_id=version.id,
        n_samples=len(version),
        n_excluded=manifest["n_rows"] - len(version),
        fields=version.fields,
        created_us=manifest["created_us"],
        producer={
            key: clean(value, 200)
            for key, value in manifest["producer"].items()
            if isinstance(value, str | int)
        },
        facets=_FACETS.get((version.store.url, version.id), lambda: _facets(version)),
        where=where,
        sort=sort,
        n_found=n_found,
        first=first,
        rows=_rows(version, ordinals, columns),
    )


def fields_of(version: "loader.Version", ordinals: Sequence[int]) -> list[tuple[str, ...]]:
    """Return samples' fields by their part's groups."""
    part, _ = version.parts.locate(np.asarray(ordinals, np.int64))
    groups = {name: version.parts.has_group(name) for name in version.manifest["groups"]}
    fields = {name: tuple(body["field_nbytes"]) for name, body in version.manifest["groups"].items()}
    return [
        tuple(field for name, has in groups.items() if has[position] for field in fields[name])
        for position in part.tolist()
    ]


def _page(
    version: "loader.Version", where: str, sort: str, first: int
) -> tuple[list[int], int, list[dict[str, Any]]]:
    for what, text in (("where", where), ("sort", sort)):
        check_limit(text, what)
    if not where and not sort:
        whole = list(range(min(first, len(version)), min(first + PAGE, len(version))))
        return whole, len(version), [{} for _ in whole]
    columns = [name for name in GRID_COLUMNS if name in version.manifest["columns"]]
    frame = live_columns(
        version,
        [
            (where or "TRUE", f"where({where!r})"),
            *((f'"{name}"', "the grid") for name in columns),
            *([(sort.removeprefix("-"), f"sort={sort!r}")] if sort else ()),
        ],
        truths=1,
    )
    matches = frame["0"].arg_true()
    if sort:
        descending = sort.startswith("-")
        ranked = frame[matches, -1].to_frame().with_row_index("at")
        name = ranked.columns[-1]
        matches = matches[
            ranked.sort(name, descending=descending, nulls_last=True, maintain_order=True)["at"]
        ]
    page = matches[first : first + PAGE]
    values = [frame[str(i + 1)][page].to_list() for i in range(len(columns))]
    # If a version has none of these columns, each sample gets an empty row.
    rows = zip(*values, strict=True) if values else (() for _ in page)
    return page.to_list(), len(matches), [dict(zip(columns, row, strict=True)) for row in rows]


_FACETS: LruCache[tuple[Facet, ...]] = LruCache(64)
"""Facets by root and version id: a version with exclusions is counted once."""


def _facets(version: "loader.Version") -> tuple[Facet, ...]:
    facets = []
    for name, statistics in column_statistics(version).items():
        if name in _IDENTITY and name not in ("split", "subject"):
            continue
        # Stored statistics include excluded samples, which no filter finds.
        shown = _live_statistics(version, name, statistics) if version.parts.has_exclusions else statistics
        categories = dict(shown.get("categories") or ())
        top = sorted(categories.items(), key=lambda item: (-item[1], item[0]))
        facets.append(
            Facet(
                column=name,
                type=statistics["type"],
                n=shown["n"] - shown["nulls"],
                nulls=shown["nulls"],
                low=shown.get("min"),
                high=shown.get("max"),
                mean=shown.get("mean"),
                values=tuple(top[:MOST_CATEGORIES]),
                n_values=len(categories),
            )
        )
    return tuple(sorted(facets, key=lambda facet: facet.column))


def _live_statistics(
    version: "loader.Version", name: str, statistics: Mapping[str, Any]
) -> Mapping[str, Any]:
    """Return a column's statistics without excluded samples. statistics: the stored ones. Reads the column."""
    values = scan_samples(version, [name]).collect()[name]
    live: dict[str, Any] = {"n": len(values), "nulls": values.null_count()}
    if "categories" in statistics:
        counted = values.drop_nulls().value_counts(sort=False)
        live["categories"] = {str(value): n for value, n in counted.iter_rows()}
    if values.dtype.is_numeric():
        numbers = values.drop_nulls().cast(float)
        finite = numbers.filter(numbers.is_finite())
        live |= {"min": finite.min(), "max": finite.max(), "mean": finite.mean()}
    return live


def _rows(
    version: "loader.Version", ordinals: list[int], columns: list[dict[str, Any]]
) -> tuple[GridRow, ...]:
    if not ordinals:
        return ()
    keys = version.keys(np.array(ordinals, np.int64))
    return tuple(
        GridRow(
            ordinal=ordinal,
            key=key,
            fields=fields,
            columns={name: clean(value, 80) for name, value in row.items() if value is not None},
        )
        for ordinal, key, fields, row in zip(
            ordinals, keys, fields_of(version, ordinals), columns, strict=True
        )
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference(JsonRecord):
    """Between versions a and b."""

    counts: Diff
    """Counts from small tables only."""
    left_out: tuple[tuple[int, str], ...]
    """(ordinal in a, key) of the first 200 only in a."""
    added: tuple[tuple[int, str], ...]
    """(ordinal in b, key) of the first 200 only in b."""
    n_left_out: int
    """Samples only in a."""
    n_added: int
    """Samples only in b."""


def difference(a: "loader.Version", b: "loader.Version") -> Difference:
    """Compare a with b by their key columns."""
    keys = [one.samples().select("ordinal", "key").collect() for one in (a, b)]
    removed = keys[0].join(keys[1], on="key", how="anti", maintain_order="left")
    added = keys[1].join(keys[0], on="key", how="anti", maintain_order="left")
    return Difference(
        counts=diff(a, b),
        left_out=tuple(removed.head(MOST_SAMPLES).iter_rows()),
        added=tuple(added.head(MOST_SAMPLES).iter_rows()),
        n_left_out=removed.height,
        n_added=added.height,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionLine(JsonRecord):
    number: int
    retired: bool
    """True if it is retired."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RootRecord(JsonRecord):
    root: str
    """Root URL."""
    runs: tuple[str, ...]
    """Runs with a run log, sorted."""
    datasets: Mapping[str, tuple[VersionLine, ...]]
    """Versions, newest first."""


def root_record(root: loader.Root) -> RootRecord:
    """Return a root's record. Reads its state, and lists its runs."""
    state = root.state
    return RootRecord(
        root=root.url,
        runs=tuple(trail_runs(primary_of(root.store))),
        datasets={
            name: tuple(
                VersionLine(number=one.number, retired=one.retired is not None)
                for one in reversed(state.versions(name))
            )
            for name in root.datasets()
        },
    )
