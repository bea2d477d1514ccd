"""One page of the samples that satisfy a filter, in the order of a sort expression or of similarity."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

import loader
from loader.dataset.versions.sample_search import MOST_RESULTS
from loader.dataset.versions.samples_table import import_polars, live_columns
from loader.errors import FieldNotFound, InvalidRuntime

from ...text import clean
from ..facets.column_codes import Bools
from ..facets.map_columns import map_columns
from ..facets.version_columns import VersionColumns
from ..json_record import JsonRecord
from ..kinds.field_sparks import FieldSpark, field_sparks
from .rollout_tiles import rollout_lines

if TYPE_CHECKING:
    import polars

PAGE = 60
"""Samples per page of the grid."""
LABEL = "label"
GRID_COLUMNS = (LABEL, "kind", "split", "language", "licence", "raw_key")
"""A sample's columns in the grid, if present."""
MOST_CHARACTERS = 80
"""Characters of a value in the grid."""
MEMBERS_AT_ONCE = 2**18
"""Samples of a filter that are searched at once for a page's."""
Int64s = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True, slots=True, kw_only=True)
class GridRow(JsonRecord):
    ordinal: int
    """Index in the version."""
    key: str
    """Sample key."""
    fields: tuple[str, ...]
    """Field names."""
    columns: Mapping[str, str]
    """Texts of the requested columns, else GRID_COLUMNS'; of an unfiltered page `label`'s, if it is read already."""
    score: float | None
    """Cosine with the mean of the samples of `like=`, or the value of the sort expression, if it is a number."""
    place: tuple[float, float] | None = None
    """Place on the map; None without one."""
    line: str = ""
    """Environment, reward and length of a rollout; "" for other samples."""
    sparks: Mapping[str, FieldSpark] = field(default_factory=dict)
    """Requested fields of arrays, as lines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GridPage:
    ordinals: Int64s
    """[samples of the page]."""
    scores: tuple[float | None, ...]
    """Score of each sample."""
    n_found: int
    """Counted samples that satisfy the filter."""
    damaged: Mapping[str, str] = field(default_factory=dict)
    """Path of a segment of codes that was left out -> what is wrong with it."""


def grid_page(
    version: "loader.Version",
    members: Bools | None,
    sort: str,
    first: int,
    columns: VersionColumns,
) -> GridPage:
    """Return a page of a filter's samples.

    members: bool [live samples], or None for all. first: index of the page's first sample among them. Raises:
    FieldNotFound if the sort expression cannot be evaluated.
    """
    n_found = len(version)
    if members is not None:
        n_found = int(np.count_nonzero(members))
    stop = min(first + PAGE, n_found)
    start = min(first, n_found)
    if members is None and not sort:
        ordinals = np.arange(start, stop)
        return GridPage(ordinals=ordinals, scores=(None,) * len(ordinals), n_found=n_found)
    counted = columns.ordinals(version)
    if not sort:
        assert members is not None  # an unfiltered page has returned
        ordinals = true_positions(members, start, stop)
        if counted is not None:
            ordinals = counted[ordinals]
        return GridPage(
            ordinals=ordinals,
            scores=(None,) * len(ordinals),
            n_found=n_found,
        )
    if members is None:
        rows = np.arange(columns.n_rows(version))
    else:
        rows = np.flatnonzero(members)
    ordinals = rows
    if counted is not None:
        ordinals = counted[rows]
    expression = sort.removeprefix("-")
    query = expression, f"sort={sort!r}"
    values = live_columns(
        version,
        [query],
        scan=columns.scan,
        extra=map_columns(version),
    ).to_series()
    if members is not None:
        values = values.gather(rows)
    positions = _smallest(
        values,
        stop,
        descending=sort.startswith("-"),
    )[start:]
    scores = tuple(_score(value) for value in values.gather(positions).to_list())
    return GridPage(
        ordinals=ordinals[positions],
        scores=scores,
        n_found=n_found,
    )


def similar_page(
    version: "loader.Version",
    members: Bools | None,
    keys: str | Sequence[str],
    first: int,
    columns: VersionColumns,
) -> GridPage:
    """Return a page of a filter's samples. Those without a usable embedding come last, in version order.

    members: bool [live samples], or None for all. first: index of the page's first sample. Raises: as
    `VersionSearches.ranked`.
    """
    if first >= MOST_RESULTS:
        raise InvalidRuntime(
            f"like ranks the first {MOST_RESULTS:,} samples; from = {first:,}. Narrow the filter to see the others"
        )
    if members is None:
        members = np.ones(len(version), bool)
    n_found = int(np.count_nonzero(members))
    stop = min(first + PAGE, n_found, MOST_RESULTS)
    result = columns.searches.ranked(
        version,
        keys,
        max(1, stop),
        members,
    )
    others = members.copy()
    others[result.ordinals] = False
    n_ranked = len(result)
    unranked = true_positions(
        others,
        max(0, first - n_ranked),
        max(0, stop - n_ranked),
    )
    shown = slice(first, stop)
    ordinals = np.concatenate([result.ordinals[shown], unranked])
    scores: list[float | None] = result.scores[shown].tolist()
    scores += [None] * len(unranked)
    return GridPage(
        ordinals=ordinals,
        scores=tuple(scores),
        n_found=n_found,
        damaged=result.damaged,
    )


def true_positions(members: Bools, start: int, stop: int) -> Int64s:
    """Return the positions of the true values from the start-th to the stop-th. Reads no further than needed."""
    positions = [np.zeros(0, np.int64)]
    n_read = 0
    for first in range(0, len(members), MEMBERS_AT_ONCE):
        part = members[first : first + MEMBERS_AT_ONCE]
        n = int(np.count_nonzero(part))
        if n <= start and not n_read:
            # All of them come before the page.
            start -= n
            stop -= n
            continue
        positions.append(first + np.flatnonzero(part))
        n_read += n
        if n_read >= stop:
            break
    return np.concatenate(positions)[start:stop]


def _score(value: Any) -> float | None:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    return None


def _smallest(
    values: "polars.Series",
    n: int,
    *,
    descending: bool,
) -> Int64s:
    """Return the positions of the first n values in order: nulls last, equal ones by position.

    Sorts n values, not all: the n-th is found first, and those before it and as many equal ones as needed are sorted.
    """
    pl = import_polars()
    present = values.is_not_null().arg_true()
    try:
        numbers = values.gather(present)
        n_present = min(n, len(numbers))
        if 0 < n_present < len(numbers):
            ends = numbers.top_k(n_present) if descending else numbers.bottom_k(n_present)
            # NaN is above every number for sort, top_k and comparisons alike, but not for max().
            limit = ends.sort(descending=descending).tail(1)
            is_better = numbers > limit if descending else numbers < limit
            better = is_better.arg_true()
            equal = (numbers == limit).arg_true().head(n_present - len(better))
            chosen = pl.concat([better, equal]).sort()
        else:
            chosen = pl.Series(np.arange(n_present, dtype=np.uint32))
        frame = pl.DataFrame({"position": present.gather(chosen), "value": numbers.gather(chosen)})
        ordered = frame.sort(
            "value",
            descending=descending,
            maintain_order=True,
        )["position"]
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        raise FieldNotFound(f"values of type {values.dtype} cannot be sorted: {error}") from error
    nulls = values.is_null().arg_true().head(n - n_present)
    return np.concatenate([ordered.to_numpy(), nulls.to_numpy()]).astype(np.int64)


def grid_rows(
    version: "loader.Version",
    page: GridPage,
    names: Sequence[str],
    columns: VersionColumns,
    shown: Sequence[str] = (),
) -> tuple[GridRow, ...]:
    """Return the rows of a page, with these columns' values. shown: names of which fields are drawn as lines."""
    ordinals = page.ordinals
    if not len(ordinals):
        return ()
    texts = [dict[str, str]() for _ in ordinals]
    of_map = map_columns(version)
    for name in names:
        for row, value in zip(
            texts,
            _values(
                version,
                ordinals,
                name,
                columns,
            ),
            strict=True,
        ):
            if value is not None:
                row[name] = _cell(value, is_of_map=name in of_map)
    fields_of_rows = sample_fields(version, ordinals.tolist())
    lines = rollout_lines(version, ordinals, fields_of_rows)
    sparks = [dict[str, FieldSpark]() for _ in ordinals]
    for name in [name for name in shown if name in version.fields]:
        drawn = field_sparks(version, ordinals, fields_of_rows, name)
        for row_sparks, spark in zip(sparks, drawn, strict=True):
            if spark is not None:
                row_sparks[name] = spark
    return tuple(
        GridRow(
            ordinal=ordinal,
            key=key,
            fields=fields,
            columns=row,
            score=score,
            line=lines.get(ordinal, ""),
            sparks=row_sparks,
        )
        for ordinal, key, fields, row, score, row_sparks in zip(
            ordinals.tolist(),
            version.keys(ordinals),
            fields_of_rows,
            texts,
            page.scores,
            sparks,
            strict=True,
        )
    )


def _cell(value: Any, *, is_of_map: bool) -> str:
    if is_of_map and isinstance(value, float):
        # The map has three digits.
        return f"{value:.4f}"
    return clean(value, MOST_CHARACTERS)


def _values(
    version: "loader.Version",
    ordinals: Int64s,
    name: str,
    columns: VersionColumns,
) -> list[Any]:
    """Return a column's values of these samples, from codes where each value has its own."""
    counted = columns.ordinals(version)
    if counted is not None:
        # A sample that is not among the counted has no value here: reading it costs a row group.
        positions = np.searchsorted(counted, ordinals)
        last = len(counted) - 1
        # np.isin would sort all 4e6 of them.
        is_counted = counted[np.minimum(positions, last)] == ordinals
        if not is_counted.all():
            return [None] * len(ordinals)
        ordinals = positions
    if columns.has_codes(version, name):
        coded = columns.codes(version, name)
        codes = coded.codes[ordinals].tolist()
        listed = [one.value for one in coded.values]
        if not coded.bins and all(code < len(listed) for code in codes):
            return [listed[code] for code in codes]
    values: list[Any] = columns.values(version, [name])[name].gather(ordinals).to_list()
    return values


def sample_fields(version: "loader.Version", ordinals: Sequence[int]) -> list[tuple[str, ...]]:
    """Return samples' fields by their part's groups."""
    part, _ = version.parts.locate(np.asarray(ordinals, np.int64))
    groups = {name: version.parts.has_group(name) for name in version.manifest["groups"]}
    fields = {name: tuple(body["field_nbytes"]) for name, body in version.manifest["groups"].items()}
    return [
        tuple(field for name, has in groups.items() if has[position] for field in fields[name])
        for position in part.tolist()
    ]
