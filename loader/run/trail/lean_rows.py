"""Parse a run log's objects without what a page of the whole run does not show.

Checksums of fields are not decoded, nor are columns whose footer shows one value or none. A few candidates per metric
stay in memory, not all samples.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from ...dataset.tables.parquet import integers, parse_table
from .row_objects import StoredRows, join_tables, rows_of_rank
from .step_rows import NOTE, SCHEMA, cast_rows

if TYPE_CHECKING:
    import polars as pl

MOST_CANDIDATES = 64
"""Samples kept per metric: with the largest values, and as many of the first steps whose value is not finite."""
START_CHARACTERS = 16
"""Length of a start's id. Writers may shorten longer texts in a footer's statistics."""
_START = "start"
_LARGEST = "largest"
_SAMPLED = ["step", "at_us", _LARGEST]
_SAMPLE = ("step", "rank", "at_us", "note", "slot", "value")


@dataclass(frozen=True, slots=True, kw_only=True)
class LeanRows:
    """Rows of some objects."""

    frames: "list[pl.DataFrame]" = field(default_factory=list)
    """Without samples and checksums."""
    largest: "list[pl.DataFrame]" = field(default_factory=list)
    """Candidates for the largest samples."""
    step_ranges: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Object -> its first and its last step."""
    starts: set[str] = field(default_factory=set)
    """Ids of the rows' starts."""


_Rank = tuple[int, int]
"""Rank and world size."""
_Place = tuple[int, int, str]
"""Rank, world size, and the start of all rows of an object; "" if its table has the column."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _PlaceRows:
    """Tables of the objects of one place."""

    tables: dict[str, pa.Table] = field(default_factory=dict)
    """By the object's full name."""
    n_rows: dict[str, int] = field(default_factory=dict)
    """Object -> its rows."""


def lean_rows(batches: Iterable[Sequence[StoredRows]]) -> LeanRows:
    """Return the rows of some objects. Raises: Corrupt; FormatTooNew; as `batches`."""
    footers = _Footers()
    rows = LeanRows()
    places: dict[_Place, _PlaceRows] = {}
    for batch in batches:
        samples: dict[_Rank, dict[str, pa.Table]] = {}
        for stored in batch:
            table = footers.table(stored)
            rank = (stored.rank, stored.world_size)
            if _LARGEST in table.column_names:
                of_rank = samples.setdefault(rank, {})
                of_rank[stored.where] = table.select(_SAMPLED)
                table = table.drop_columns(_LARGEST)
            place = (*rank, footers.start)
            of_place = places.setdefault(
                place,
                _PlaceRows(),
            )
            of_place.tables[stored.where] = table
            of_place.n_rows[stored.name] = table.num_rows
        if samples:
            largest = _batch_candidates(samples)
            rows.largest.append(largest)
    # The tables of a place are joined once, here: the rows of joined batches would be copied again.
    for place, of_place in places.items():
        _add_place(rows, place, of_place)
    return rows


def _add_place(
    rows: LeanRows,
    place: _Place,
    of_place: _PlaceRows,
) -> None:
    joined = join_tables(of_place.tables)
    steps = integers(joined["step"])
    ranges = _step_ranges(of_place.n_rows, steps)
    rows.step_ranges.update(ranges)
    frame = rows_of_rank(joined, *place)
    rows.frames.append(frame)
    start = place[-1]
    if start:
        rows.starts.add(start)
    else:
        starts = frame["start"].unique()
        rows.starts.update(starts)


def _step_ranges(
    n_rows: Mapping[str, int],
    steps: NDArray[np.int64],
) -> dict[str, tuple[int, int]]:
    """Return object -> its first and its last step.

    n_rows: object -> its rows. steps: int64 [rows of all objects], in their order.
    """
    ranges: dict[str, tuple[int, int]] = {}
    begin = 0
    for name, n in n_rows.items():
        end = begin + n
        if n:
            of_object = steps[begin:end]
            first = of_object.min()
            last = of_object.max()
            ranges[name] = (int(first), int(last))
        begin = end
    return ranges


def _batch_candidates(samples: Mapping[_Rank, dict[str, pa.Table]]) -> "pl.DataFrame":
    """Return the candidates of a batch. samples: rank -> object -> its samples."""
    frames = [no_samples()]
    for rank, tables in samples.items():
        joined = join_tables(tables)
        frame = rows_of_rank(joined, *rank)
        n_samples = frame[_LARGEST].list.len()
        listed = frame.filter(n_samples > 0)
        exploded = listed.explode(_LARGEST)
        of_rank = exploded.unnest(_LARGEST)
        frames.append(of_rank.select(_SAMPLE))
    return candidates(frames)


def no_samples() -> "pl.DataFrame":
    import polars as pl

    types: dict[str, pl.DataType] = {}
    for name in _SAMPLE:
        types[name] = pl.Int64()
    types["note"] = pl.String()
    types["value"] = pl.Float64()
    return pl.DataFrame(schema=types)


def no_rows_without_samples() -> "pl.DataFrame":
    columns = [column for column in SCHEMA if column.name != _LARGEST]
    schema = pa.schema(columns)
    table = pa.Table.from_batches([], schema)  # `empty_table` imports pandas
    return rows_of_rank(table, 0, 0)


def candidates(samples: "Sequence[pl.DataFrame]") -> "pl.DataFrame":
    """Return up to MOST_CANDIDATES samples of each metric with finite values, and as many others."""
    import polars as pl

    if len(samples) == 1:
        return samples[0]  # a result of this function, or empty
    rows = pl.concat(samples)
    is_finite = rows["value"].is_finite()
    others = pl.exclude("note")
    order = ("step", "slot", "at_us")
    largest = others.top_k_by(
        ["value", *order],
        MOST_CANDIDATES,
        reverse=[False, True, True, False],
    )
    first = others.bottom_k_by(order, MOST_CANDIDATES)
    finite = rows.filter(is_finite)
    not_finite = rows.filter(~is_finite)
    parts = [
        _of_each_metric(finite, largest),
        _of_each_metric(not_finite, first),
    ]
    return pl.concat(parts)


def _of_each_metric(
    rows: "pl.DataFrame",
    chosen: "pl.Expr",
) -> "pl.DataFrame":
    by_metric = rows.group_by("note").agg(chosen)
    lists = [name for name in _SAMPLE if name != "note"]
    return by_metric.explode(lists).select(_SAMPLE)


class _Footers:
    """Chooses an object's columns by its footer, and remembers what it left out."""

    start: str
    """Start of all rows of the last object; "" if the column was chosen."""
    left_out: tuple[str, ...]
    """Columns of `SCHEMA` that were not chosen."""

    def __init__(self) -> None:
        self._known = SCHEMA
        self._written: tuple[bytes, int] = b"", 0
        self._names = list[str]()
        self._leaves = dict[str, int]()

    def table(self, stored: StoredRows) -> pa.Table:
        """Return the rows of an object. Raises: Corrupt; FormatTooNew."""
        table = parse_table(
            stored.data,
            stored.where,
            self.columns,
        )
        if not table.schema.equals(self._known):  # most objects of a run have the same columns
            table = cast_rows(
                table,
                stored.where,
                self.left_out,
            )
            self._known = table.schema
        return table

    def columns(self, footer: pq.FileMetaData) -> list[str]:
        """Return the columns to decode. The footer is as trustworthy as the values, which have no checksum of ours."""
        # A footer and its `schema` refer to each other: only the garbage collector frees them, at 40 us each.
        facts = footer.metadata or {}
        arrow_schema = facts.get(b"ARROW:schema", b"")
        written = (arrow_schema, footer.num_columns)
        if not arrow_schema or written != self._written:
            self._set_schema(footer.schema)
            self._written = written
        numbers = range(footer.num_row_groups)
        groups = [footer.row_group(number) for number in numbers]
        left_out = []
        self.start = ""
        if _START in self._leaves:
            self.start = _one_text(groups, self._leaves[_START])
        if self.start:
            left_out.append(_START)
        if _LARGEST in self._leaves:
            leaf = self._leaves[_LARGEST]
            if _is_empty(groups, leaf):
                left_out.append(_LARGEST)
        self.left_out = tuple(left_out)
        return [name for name in self._names if name not in left_out]

    def _set_schema(self, schema: pq.ParquetSchema) -> None:
        """Find the columns of a schema."""
        self._names = []
        for name in schema.to_arrow_schema().names:
            if name in SCHEMA.names or name.startswith(NOTE):
                self._names.append(name)
        self._leaves = {}
        for number in range(len(schema)):
            path = schema.column(number).path
            top = path.partition(".")[0]
            self._leaves.setdefault(top, number)


def _one_text(
    groups: Sequence[pq.RowGroupMetaData],
    leaf: int,
) -> str:
    """Return the start's id that all rows have, or "" if the statistics do not show one."""
    texts = set[str]()
    for group in groups:
        statistics = group.column(leaf).statistics
        if statistics is None:
            return ""
        if not statistics.has_min_max or statistics.null_count != 0:
            return ""
        texts.add(statistics.min)
        texts.add(statistics.max)
    if len(texts) != 1:
        return ""
    text = texts.pop()
    if isinstance(text, str) and len(text) == START_CHARACTERS:
        return text
    return ""


def _is_empty(
    groups: Sequence[pq.RowGroupMetaData],
    leaf: int,
) -> bool:
    """Return whether the statistics show that a list column has no entries."""
    for group in groups:
        # `num_values` counts the entries, and one null for each row without entries.
        column = group.column(leaf)
        statistics = column.statistics
        if statistics is None:
            return False
        if statistics.null_count != column.num_values:
            return False
    return True
