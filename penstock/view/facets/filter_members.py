"""The samples that satisfy a filter, as a whole and without the terms of one column."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

import loader
from loader.dataset.versions.slice_members import newest_slice
from loader.errors import (
    Corrupt,
    FieldNotFound,
    FormatTooNew,
    InvalidName,
    InvalidRuntime,
    NotIndexed,
    SliceNotFound,
)

from .column_codes import Bools, Int64s
from .slice_samples import page_slice_ordinals
from .spread_rows import is_spread
from .version_columns import VersionColumns
from .version_filter import CheckedFilter, VersionFilter, check_filter


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FilterMembers:
    """The samples that satisfy parts of a filter. bool [live samples]; None stands for all samples."""

    checked: CheckedFilter
    """Without expressions that could not be evaluated."""
    base: Bools | None
    """`where`, slices, lasso and words."""
    by_column: Mapping[str, Bools]
    """Column -> samples that satisfy its terms."""
    whole: Bools | None
    """Samples that satisfy `where`, slices, lasso, words and all terms."""
    damaged: Mapping[str, str] = field(default_factory=dict)
    """Path of a segment of texts that was left out -> what is wrong with it."""

    def all_but(self, column: str) -> Bools | None:
        """Return the samples that satisfy all of the filter but the column's terms."""
        if column not in self.by_column:
            return self.whole
        others = [members for name, members in self.by_column.items() if name != column]
        return _both(self.base, *others)


def _both(*parts: Bools | None) -> Bools | None:
    members = [part for part in parts if part is not None]
    if not members:
        return None
    together: Bools = np.logical_and.reduce(members)
    return together


def filter_members(
    version: "loader.Version",
    checked: CheckedFilter,
    columns: VersionColumns,
) -> FilterMembers:
    """Evaluate a filter. Expressions that fail are dropped, with an error."""
    checked = drop_unmapped(version, checked, columns)
    term_members: dict[str, Bools] = {}
    for term, column in checked.columns.items():
        code = columns.code_of(
            version,
            column,
            term,
        )
        if code is not None:
            term_members[term] = columns.codes(version, column).codes == code
    valid = checked.filter
    # Terms without codes go to polars; the others cost a comparison of bytes.
    queries = [(term, f"term {term!r}") for term in valid.terms if term not in term_members]
    if valid.where:
        queries.append((valid.where, f"where({valid.where!r})"))
    members, errors = _evaluate(
        version,
        queries,
        columns,
    )
    for text, error in errors.items():
        checked = checked.dropping(text, error)
    term_members |= members
    by_column: dict[str, Bools] = {}
    for term in checked.filter.terms:
        column = checked.columns[term]
        satisfied = term_members[term]
        if column in by_column:
            # Two terms over one column, such as a lower and an upper bound.
            satisfied = satisfied & by_column[column]
        by_column[column] = satisfied
    base = None
    if checked.filter.where:
        base = members[checked.filter.where]
    slices, checked = _slice_members(version, checked, columns)
    lasso, checked = _lasso_members(version, checked, columns)
    base = _both(base, lasso, *slices)
    damaged: Mapping[str, str] = {}
    if checked.filter.words:
        try:
            # Last: the index then looks only at samples that satisfy the rest of `base`.
            base, damaged = columns.searches.word_members(version, checked.filter.words, base)
        except (FieldNotFound, NotIndexed, InvalidRuntime, Corrupt, FormatTooNew) as error:
            checked = checked.dropping_words(str(error))
    whole = _both(base, *by_column.values())
    return FilterMembers(
        checked=checked,
        base=base,
        by_column=by_column,
        whole=whole,
        damaged=damaged,
    )


def drop_unmapped(
    version: "loader.Version",
    checked: CheckedFilter,
    columns: VersionColumns,
) -> CheckedFilter:
    """Return the filter without terms and an order over columns of the map, if the map cannot be read."""
    named = [text for text, names in checked.names.items() if names & checked.of_map]
    valid = checked.filter
    named = [text for text in named if text in (*valid.terms, valid.sort.removeprefix("-"))]
    if not named:
        return checked
    error = columns.map_error(version)
    if not error:
        return checked
    for text in named:
        checked = checked.dropping(text, error)
    # Several terms fail for one reason: the map is missing.
    errors = tuple(dict.fromkeys(checked.errors))
    return replace(checked, errors=errors)


def find_ordinals(
    version: "loader.Version",
    address: VersionFilter,
    columns: VersionColumns,
    k: int | None = None,
    liked: Callable[[str], Sequence[str]] | None = None,
) -> Int64s:
    """Return the int64 live ordinals that a page with this filter finds, ascending; of a ranking the first `k`.

    liked: as in `version_record`. Raises: FieldNotFound if a part of the filter does not apply; InvalidRuntime for a
    version that pages count by some of its samples; as `VersionSearches.ranked`.
    """
    if is_spread(version):
        raise InvalidRuntime(
            f"{version.name} has {len(version):,} samples, of which a page counts some: save the slice by a command, "
            "such as penstock slice save REF NAME --lasso"
        )
    members = filter_members(
        version,
        check_filter(version, address),
        columns,
    )
    if members.checked.errors:
        raise FieldNotFound("; ".join(members.checked.errors))
    if address.like:
        if k is None:
            raise InvalidRuntime(
                "like= ranks all samples: pass k, the number of the most similar ones to save"
            )
        keys: str | Sequence[str] = address.like
        if liked is not None:
            keys = liked(address.like)
        ranked = columns.searches.ranked(
            version,
            keys,
            k,
            members.whole,
        )
        return ranked.ordinals
    if members.whole is None:
        return np.arange(len(version))
    return np.flatnonzero(members.whole)


def _slice_members(
    version: "loader.Version",
    checked: CheckedFilter,
    columns: VersionColumns,
) -> tuple[list[Bools], CheckedFilter]:
    """Return (bool [counted samples] for each slice: what it allows, the filter without slices that failed)."""
    members = []
    valid = checked.filter
    for name in (*valid.within, *valid.without):
        try:
            record = newest_slice(version, name)
            # bool [live samples]; reduced below to the counted rows of a large version.
            is_in_slice = np.zeros(len(version), bool)
            is_in_slice[page_slice_ordinals(version, record)] = True
            if name in valid.within:
                members.append(is_in_slice)
            if name in valid.without:
                members.append(~is_in_slice)
        except (SliceNotFound, FieldNotFound, InvalidName, Corrupt, FormatTooNew) as error:
            checked = checked.dropping_slice(name, str(error))
    if members:
        ordinals = columns.ordinals(version)
        if ordinals is not None:
            members = [one[ordinals] for one in members]
    return members, checked


def _lasso_members(
    version: "loader.Version",
    checked: CheckedFilter,
    columns: VersionColumns,
) -> tuple[Bools | None, CheckedFilter]:
    """Return (bool [counted samples] inside the lasso, the filter without a lasso that failed)."""
    if not checked.filter.lasso:
        return None, checked
    try:
        places = columns.places(version)
    except (NotIndexed, FieldNotFound, Corrupt, FormatTooNew) as error:
        return None, checked.dropping_lasso(str(error))
    inside = places.lasso_members(checked.filter.lasso)
    ordinals = columns.ordinals(version)
    if ordinals is not None:
        inside = inside[ordinals]
    return inside, checked


def _evaluate(
    version: "loader.Version",
    queries: Sequence[tuple[str, str]],
    columns: VersionColumns,
) -> tuple[dict[str, Bools], dict[str, str]]:
    """Return (expression -> its samples, expression -> its error)."""
    try:
        return columns.members(version, queries), {}
    except FieldNotFound:
        pass  # one of them is at fault, such as a text compared with a number
    members: dict[str, Bools] = {}
    errors: dict[str, str] = {}
    for query in queries:
        try:
            members |= columns.members(version, [query])
        except FieldNotFound as error:
            errors[query[0]] = str(error)
    return members, errors
