"""Facets of a version's page: each column's values and bins, with counts of live samples.

A facet counts the samples that satisfy every part of the filter but its own column's terms. So a click, which replaces
those terms by the clicked one, finds exactly the number beside it.
"""

from collections.abc import Sequence

import loader
from loader.dataset.tables.columns import SOURCE_COLUMNS

from .facet_record import Facet, facet_from_codes, facet_from_statistics, plain_facet, tells_apart
from .filter_members import FilterMembers
from .map_columns import MAP_TYPES, map_columns
from .version_columns import VersionColumns
from .version_filter import CheckedFilter, VersionFilter

_IDENTITY = frozenset((*SOURCE_COLUMNS, "key")) - {"split", "subject"}
FIRST_COLUMNS = ("label", "kind", "split", "language", "licence", *MAP_TYPES)
"""Columns whose facets come first, if present."""
FACETS = 8
"""Facets that are counted at least; more if the version is small."""
MOST_CELLS = 4_000_000
"""Most samples times facets that are counted without being asked for."""


def facet_columns(version: "loader.Version", columns: VersionColumns) -> list[str]:
    """Return the columns that have facets, in the order of the page: also the map's, once it was read."""
    names = set(columns.statistics(version)) - _IDENTITY
    if columns.has_places(version):
        names.update(map_columns(version))
    return sorted(names, key=_place)


def facets_in_sight(version: "loader.Version", columns: VersionColumns) -> list[str]:
    """Return the columns whose facets a page shows first: all of a small version."""
    n = MOST_CELLS // max(1, len(version))
    return facet_columns(version, columns)[: max(FACETS, n)]


def first_columns(
    version: "loader.Version",
    columns: VersionColumns,
    most: int,
) -> list[str]:
    """Return the columns whose facets a page draws first: up to `most` that can tell samples apart.

    Decides by stored statistics, and reads no column. Texts with more values than these list may name samples: a person
    asks for their facet.
    """
    statistics = columns.statistics(version)
    drawn: list[str] = []
    for name in facet_columns(version, columns):
        if len(drawn) == most:
            break
        if name not in statistics or tells_apart(facet_from_statistics(name, statistics[name])):
            drawn.append(name)
    return drawn


def unread_columns(
    version: "loader.Version",
    columns: VersionColumns,
    names: Sequence[str],
) -> list[str]:
    """Return the columns among these whose unfiltered counts need a read: no stored statistics or codes have them."""
    statistics = columns.statistics(version)
    unread = []
    for name in names:
        # Stored statistics count excluded samples, which no filter finds.
        is_stored = name in statistics and not version.parts.has_exclusions
        if is_stored:
            is_stored = facet_from_statistics(name, statistics[name]).is_counted
        if not is_stored and not columns.has_codes(version, name):
            unread.append(name)
    return unread


def select_counted(
    version: "loader.Version",
    checked: CheckedFilter,
    columns: VersionColumns,
    names: Sequence[str] | None,
) -> list[str]:
    """Return the columns whose facets are counted from codes. Those with terms always are.

    names: requested columns; "*" all; None the first ones, or none if stored statistics have all counts.
    """
    of_map = frozenset(map_columns(version))
    # A person who asks for a column of the map waits for the map.
    if names is not None and ("*" in names or not of_map.isdisjoint(names)):
        columns.map_error(version)
    ordered = facet_columns(version, columns)
    if names is None:
        names = []
        # Stored statistics count excluded samples, which no filter finds.
        if checked.filter != VersionFilter() or version.parts.has_exclusions:
            names = facets_in_sight(version, columns)
    if "*" in names:
        return ordered
    # A column with a term is counted without it, which stored statistics cannot do.
    requested = {*names, *checked.columns.values()}
    return [name for name in ordered if name in requested]


def facets(
    version: "loader.Version",
    members: FilterMembers,
    columns: VersionColumns,
    counted: Sequence[str],
) -> tuple[Facet, ...]:
    """Return the facets of a version's columns. counted: columns with codes."""
    statistics = columns.statistics(version)
    # Stored statistics describe all samples, and include excluded ones.
    is_stored = members.whole is None and not version.parts.has_exclusions
    out = []
    for name in facet_columns(version, columns):
        is_of_map = name not in statistics
        type_name = MAP_TYPES.get(name, "")
        if not is_of_map:
            type_name = statistics[name]["type"]
        if name not in counted and not columns.has_codes(version, name):
            facet = plain_facet(name, type_name)
            if is_stored and not is_of_map:
                facet = facet_from_statistics(name, statistics[name])
            out.append(facet)
            continue
        # Of a large version it takes a read to find which samples are counted, so stored facets do not ask.
        share = columns.n_rows(version) / max(1, len(version))
        terms = tuple(term for term in members.checked.filter.terms if members.checked.columns[term] == name)
        out.append(
            facet_from_codes(
                columns.codes(version, name),
                members.all_but(name),
                type_name,
                terms,
                share,
            )
        )
    return tuple(out)


def _place(name: str) -> tuple[int, str]:
    if name in FIRST_COLUMNS:
        return FIRST_COLUMNS.index(name), name
    return len(FIRST_COLUMNS), name
