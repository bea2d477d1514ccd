"""A version with a page of samples, and the difference between two versions."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import loader
from loader.dataset.versions.version import View
from loader.errors import FieldNotFound, InvalidRuntime, PenstockError, StoreError
from loader.keywords import did_you_mean

from ...text import clean
from ...upkeep.diff import Diff, diff
from ..facets.facet_record import Facet
from ..facets.facets import facets, select_counted
from ..facets.filter_members import FilterMembers, drop_unmapped, filter_members
from ..facets.map_columns import map_columns
from ..facets.spread_rows import is_spread
from ..facets.version_columns import VersionColumns
from ..facets.version_filter import CheckedFilter, VersionFilter, check_filter
from ..json_record import JsonRecord
from ..kinds.field_sparks import has_spark
from .grid_rows import (
    GRID_COLUMNS,
    LABEL,
    PAGE,
    GridPage,
    GridRow,
    grid_page,
    grid_rows,
    sample_fields,
    similar_page,
)

__all__ = [
    "PAGE",
    "Difference",
    "Facet",
    "GridRow",
    "VersionPageRecord",
    "difference",
    "sample_fields",
    "version_record",
]

MOST_SAMPLES = 200
"""Most samples listed per side."""
LAYOUTS = ("grid", "table")
MOST_COLUMNS = 40
"""Most columns of the grid that an address may ask for."""


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
    """Columns' values and bins, with counts that follow the filter."""
    where: str
    """SQL filter as it was written, or "". It does not apply if `error` names it."""
    terms: tuple[str, ...]
    """Valid terms of facets, SQL over one column each."""
    map_terms: tuple[str, ...]
    """Those over columns of the map, such as `cluster`; `sql` lacks them."""
    sql: str
    """`where` and all terms over stored columns, for `version.where()`; "" for all samples."""
    words: str
    """Words as they were written, or ""."""
    like: str
    """Key or RUN@STEP as it was written: the most similar samples come first. ""."""
    sort: str
    """SQL, prefixed with `-` for descending; "" for the version's order."""
    within: tuple[str, ...]
    """Slices whose samples are shown (`in=`)."""
    without: tuple[str, ...]
    """Slices whose samples are not shown (`not=`)."""
    lasso: str
    """Polygon on the map, or ""."""
    box: str = ""
    """Part of the map that is drawn, `x0,y0,x1,y1`; "" for all of it."""
    error: str
    """Why parts of the filter do not apply, a sentence a line; ""."""
    damaged: Mapping[str, str]
    """Path of a segment of the search index that was left out -> what is wrong with it."""
    columns: tuple[str, ...]
    """Columns that the address asks for in rows (`cols=`)."""
    n_found: int
    """Samples that match."""
    about: float | None
    """Share of the samples that are counted, if `n_found` is an estimate from them; None if it is exact."""
    first: int
    """This page's first index among the matches."""
    layout: str
    """"grid" or "table" (`as=`)."""
    rows: tuple[GridRow, ...]
    """Samples on this page."""

    @property
    def address(self) -> VersionFilter:
        """The filter as the page's links repeat it."""
        return VersionFilter(
            where=self.where,
            terms=self.terms,
            words=self.words,
            like=self.like,
            sort=self.sort,
            within=self.within,
            without=self.without,
            lasso=self.lasso,
        )


def version_record(
    version: "loader.Version",
    address: VersionFilter | None = None,
    *,
    first: int = 0,
    columns: Sequence[str] = (),
    facet_names: Sequence[str] | None = None,
    layout: str = "grid",
    exact: bool = False,
    cache: VersionColumns | None = None,
    keep_page: bool = False,
    most_bytes: int | None = None,
    liked: Callable[[str], Sequence[str]] | None = None,
) -> VersionPageRecord:
    """Return a version's page. address: its filter and order; None shows all samples.

    first: index of the page's first sample among the matches. columns: columns and fields to show in each row.
    facet_names: columns to count, besides the columns of terms. "*" counts all. None counts the first ones, or none if
    stored statistics have all counts. layout: one of `LAYOUTS`, else the first of them.
    exact: counts all matches of a large version. cache: the viewer's; None: a new one.
    keep_page: shows the page without a wrong part of the filter, and its `error`. most_bytes: as in `check_filter`.
    liked: returns the keys that the address's `like` names; None: `like` is a key itself.
    Raises: FieldNotFound for a rejected part of the filter, unless `keep_page`; InvalidRuntime.
    """
    _check_first(first)
    cache = cache or VersionColumns()
    address = address or VersionFilter()
    checked = drop_unmapped(version, check_filter(version, address, most_bytes), cache)
    shown, column_error = _row_columns(version, columns, cache)
    counted = select_counted(version, checked, cache, facet_names)
    names = _row_names(version, checked, counted, shown)
    needed = _value_columns(version, checked, counted, names, cache)
    cache.prepare(version, counted, needed)
    if not names and cache.has_codes(version, LABEL):
        # An unfiltered page reads no column for its cards.
        names = (LABEL,)
    members = filter_members(version, checked, cache)
    page, order_error = _order_page(version, members, first, cache, liked)
    errors = [error for error in (*members.checked.errors, order_error, column_error) if error]
    if errors and not keep_page:
        raise FieldNotFound("; ".join(errors))
    return VersionPageRecord(
        **_version_facts(version),
        **_filter_facts(members.checked),
        facets=facets(version, members, cache, counted),
        where=address.where,
        words=address.words,
        like=address.like,
        sort=address.sort,
        error="\n".join(errors),
        damaged={**members.damaged, **page.damaged},
        columns=shown,
        **_count(version, members, page, cache, exact),
        first=first,
        layout=layout if layout in LAYOUTS else LAYOUTS[0],
        rows=grid_rows(version, page, names, cache, shown),
    )


def _row_names(
    version: "loader.Version",
    checked: CheckedFilter,
    counted: Sequence[str],
    shown: tuple[str, ...],
) -> tuple[str, ...]:
    """Return the columns that rows have. shown: columns and fields that the address asks for."""
    of_table = {*version.manifest["columns"], *map_columns(version)}
    columns = tuple(name for name in shown if name in of_table)
    if columns or checked.filter == VersionFilter():
        return columns
    names = _grid_columns(version)
    if is_spread(version):
        # Texts of 4e6 rows do not fit in the cache: each answer would read them again for its sixty samples.
        names = tuple(name for name in names if name in counted)
    return names


def _version_facts(version: "loader.Version") -> dict[str, Any]:
    manifest = version.manifest
    dataset, _, number = version.name.partition("@")
    properties = manifest["producer"].items()
    return {
        "dataset": dataset,
        "number": int(number),
        "version_id": version.id,
        "n_samples": len(version),
        "n_excluded": manifest["n_rows"] - len(version),
        "fields": version.fields,
        "created_us": manifest["created_us"],
        "producer": {key: clean(value, 200) for key, value in properties if isinstance(value, str | int)},
    }


def _count(
    version: "loader.Version",
    members: FilterMembers,
    page: GridPage,
    cache: VersionColumns,
    exact: bool,
) -> dict[str, Any]:
    """Return how many samples match: of a large version an estimate, unless it is `exact`."""
    if members.whole is None or not is_spread(version):
        return {"n_found": page.n_found, "about": None}
    valid = members.checked.filter
    is_of_map = valid.lasso or members.checked.map_terms
    if exact and not is_of_map:
        view = View(
            version,
            (),
            valid.sql or None,
        )
        for name in valid.within:
            view = view.slice(name)
        for name in valid.without:
            view = view.without(name)
        return {"n_found": len(view), "about": None}
    share = cache.n_rows(version) / len(version)
    return {"n_found": round(page.n_found / share), "about": share}


def _filter_facts(checked: CheckedFilter) -> dict[str, Any]:
    valid = checked.filter
    return {
        "terms": valid.terms,
        "map_terms": checked.map_terms,
        "sql": checked.sql,
        "within": valid.within,
        "without": valid.without,
        "lasso": valid.lasso,
    }


def _grid_columns(version: "loader.Version") -> tuple[str, ...]:
    return tuple(name for name in GRID_COLUMNS if name in version.manifest["columns"])


def _value_columns(
    version: "loader.Version",
    checked: CheckedFilter,
    counted: Sequence[str],
    shown: Sequence[str],
    cache: VersionColumns,
) -> list[str]:
    """Return the columns whose values a page reads. counted: columns with codes. shown: columns of its rows."""
    valid = checked.filter
    columns = checked.columns
    uncoded = [
        term
        for term in valid.terms
        if cache.code_of(
            version,
            columns[term],
            term,
        )
        is None
    ]
    expressions = [text for text in (valid.where, *uncoded) if not cache.has_members(version, text)]
    expressions.append(valid.sort.removeprefix("-"))
    names = {name for text in expressions for name in checked.names.get(text, ())}
    # Codes have the values of most columns that a row shows.
    names.update(name for name in shown if name not in counted)
    return sorted(names)


def _order_page(
    version: "loader.Version",
    members: FilterMembers,
    first: int,
    cache: VersionColumns,
    liked: Callable[[str], Sequence[str]] | None,
) -> tuple[GridPage, str]:
    """Return (the page, the error of its order). After an error the page has the version's order."""
    valid = members.checked.filter
    try:
        if valid.like:
            keys: str | Sequence[str] = valid.like
            if liked is not None:
                keys = liked(valid.like)
            page = similar_page(
                version,
                members.whole,
                keys,
                first,
                cache,
            )
        else:
            page = grid_page(
                version,
                members.whole,
                valid.sort,
                first,
                cache,
            )
        return page, ""
    # A store that is down is not a fault of the order, and another order would not help.
    except StoreError:
        raise
    except PenstockError as error:
        unordered = grid_page(
            version,
            members.whole,
            "",
            first,
            cache,
        )
        return unordered, str(error)


def _check_first(first: int) -> None:
    if first < 0:
        raise InvalidRuntime(f"from = {first}; pass a number from 0")


def _row_columns(
    version: "loader.Version",
    names: Sequence[str],
    cache: VersionColumns,
) -> tuple[tuple[str, ...], str]:
    """Return (columns of the version and of its map among these, an error that names the others)."""
    columns = set(version.manifest["columns"])
    of_map = map_columns(version)
    if not columns.issuperset(names) and not set(of_map).isdisjoint(names):
        error = cache.map_error(version)
        if error:
            return tuple(name for name in names if name in columns)[:MOST_COLUMNS], error
        columns.update(of_map)
    distinct = dict.fromkeys(names)
    # A field of arrays is shown as a line.
    accepted = {*columns, *filter(has_spark, version.fields)}
    known = tuple(name for name in distinct if name in accepted)
    unknown = [name for name in distinct if name not in accepted]
    if unknown:
        hint = did_you_mean(unknown[0], sorted(accepted)) or ";"
        return known[
            :MOST_COLUMNS
        ], f"cols names {clean(unknown[0], 80)!r}{hint} it is not a column of {version.name}"
    if len(known) > MOST_COLUMNS:
        return known[:MOST_COLUMNS], f"cols names {len(known):,} columns; accepted are up to {MOST_COLUMNS}"
    return known, ""


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
    removed = keys[0].join(
        keys[1],
        on="key",
        how="anti",
        maintain_order="left",
    )
    added = keys[1].join(
        keys[0],
        on="key",
        how="anti",
        maintain_order="left",
    )
    return Difference(
        counts=diff(a, b),
        left_out=tuple(removed.head(MOST_SAMPLES).iter_rows()),
        added=tuple(added.head(MOST_SAMPLES).iter_rows()),
        n_left_out=removed.height,
        n_added=added.height,
    )
