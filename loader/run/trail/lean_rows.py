"""Parse a run log's objects without what a page of the whole run does not show.

Checksums of fields are not decoded, nor are columns whose footer shows one value or none. A few candidates per metric
stay in memory, not all samples.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from ...dataset.tables.parquet import integers, parse_table
from .row_objects import StoredRows, joined_tables, rows_of_rank
from .step_rows import NOTE, SCHEMA, typed_rows

if TYPE_CHECKING:
    import polars as pl

MOST_CANDIDATES = 64
"""Samples kept per metric: with the largest values, and as many of the first steps whose value is not finite."""
START_CHARACTERS = 16
"""Length of a start's id. Writers may shorten longer texts in a footer's statistics."""
_START = "start"
_LARGEST = "largest"
_SAMPLE = ("step", "rank", "at_us", "note", "slot", "value")


@dataclass(frozen=True, slots=True, kw_only=True)
class LeanRows:
    """Rows of a batch of objects."""

    frames: "list[pl.DataFrame]" = field(default_factory=list)
    """Without samples and checksums."""
    largest: "list[pl.DataFrame]" = field(default_factory=list)
    """Candidates for the largest samples."""
    step_ranges: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Object -> its first and its last step."""


def lean_rows(objects: Sequence[StoredRows]) -> LeanRows:
    """Return the rows of some objects. Raises: Corrupt; FormatTooNew."""
    footers = _Footers()
    tables: dict[tuple[int, int, str], dict[str, pa.Table]] = {}
    batch = LeanRows()
    known = SCHEMA
    for stored in objects:
        table = parse_table(
            stored.data,
            stored.where,
            footers.columns,
        )
        if not table.schema.equals(known):  # most objects of a run have the same columns
            table = typed_rows(
                table,
                stored.where,
                footers.left_out,
            )
            known = table.schema
        place = (stored.rank, stored.world_size, footers.start)
        of_place = tables.setdefault(place, {})
        of_place[stored.where] = table
        steps = table["step"]
        if len(steps) and not steps.null_count:
            numbers = integers(steps)
            first = int(numbers.min())
            last = int(numbers.max())
            batch.step_ranges[stored.name] = (first, last)
    samples = [no_samples()]
    for (rank, world_size, start), of_place in tables.items():
        rows = joined_tables(of_place)
        names = [name for name in rows.column_names if name != _LARGEST]
        frame = rows_of_rank(
            rows.select(names),
            rank,
            world_size,
            start,
        )
        batch.frames.append(frame)
        if _LARGEST in rows.column_names:
            samples.append(_samples(rows, rank, world_size))
    if len(samples) > 1:
        batch.largest.append(candidates(samples))
    return batch


def _samples(
    rows: pa.Table,
    rank: int,
    world_size: int,
) -> "pl.DataFrame":
    """Return the samples of all rows."""
    columns = rows.select(["step", "at_us", _LARGEST])
    frame = rows_of_rank(columns, rank, world_size)
    n_samples = frame[_LARGEST].list.len()
    listed = frame.filter(n_samples > 0)
    samples = listed.explode(_LARGEST)
    return samples.unnest(_LARGEST).select(_SAMPLE)


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
        self._schema: pq.ParquetSchema | None = None
        self._names = list[str]()
        self._leaves = dict[str, int]()

    def columns(self, footer: pq.FileMetaData) -> list[str]:
        """Return the columns to decode. The footer is as trustworthy as the values, which have no checksum of ours."""
        schema = footer.schema
        if self._schema is None or not schema.equals(self._schema):
            self._set_schema(schema)
        numbers = range(footer.num_row_groups)
        groups = [footer.row_group(number) for number in numbers]
        left_out = []
        self.start = ""
        if _START in self._leaves:
            self.start = _one_text(groups, self._leaves[_START])
        if self.start:
            left_out.append(_START)
        if _LARGEST in self._leaves:
            is_empty = _is_empty(groups, self._leaves[_LARGEST])
            if is_empty:
                left_out.append(_LARGEST)
        self.left_out = tuple(left_out)
        return [name for name in self._names if name not in left_out]

    def _set_schema(self, schema: pq.ParquetSchema) -> None:
        """Find the columns of a schema."""
        self._schema = schema
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
        column = group.column(leaf)
        statistics = column.statistics
        if statistics is None:
            return False
        if statistics.null_count != column.num_values:
            return False
    return True
